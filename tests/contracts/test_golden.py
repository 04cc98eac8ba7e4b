"""Golden orders: nobody's data order changes unseen.

`golden_orders.json` holds the SHA-256 of the first 50,000 sample ids of each configuration, as
little-endian int64 triples in reading order. A digest that changes is a breaking change: it needs
a new order version and an entry "Order changes" in CHANGELOG.md. Run this file as a script to
write digests for configurations that have none; it never replaces one.
"""

from __future__ import annotations

import hashlib
import pathlib

import numpy as np
import pytest
from support.golden import Golden
from support.helpers import mixture, scheduled

import zephon_jax as zx

NUM_IDS = 50_000
SHARDS = [[4000, 1500, 0, 2501], [333] * 30, 7001]
WEIGHTS = [0.55, 0.35, 0.1]
READ = zx.MixtureReadConfig
ENDLESS = {"exhausted_policy": "repeat"}

TOKENS = zx.TokenEstimation.from_shard_totals(
    {"a": [400_000, 90_000, 0, 1_000_000], "b": [n * 1000 for n in range(1, 31)], "c": [9999]}
)
LATTICE = READ(mode="lattice")
RANDOM = READ(mode="weighted_random", shuffle_within_component=True)
SETTINGS = {
    "defaults": {"stop_after_passes": 9},
    "unshuffled": {"shuffle_shards": False, **ENDLESS},
    "within": {"shuffle_within_shard": True, "seed": 7, **ENDLESS},
    "block auto": {"shuffle_block_size": "auto", **ENDLESS},
    "block 100 and within": {
        "shuffle_block_size": 100,
        "shuffle_within_shard": True,
        "seed": -3,
        **ENDLESS,
    },
    "global": {"shuffle_block_size": "global", "seed": 2**70, **ENDLESS},
    "same order in each pass": {"reshuffle_on_repeat": False, "shuffle_block_size": 64, **ENDLESS},
    "fixed, chunk of 1000": {"allocation": "fixed", "chunk_size": 1000, **ENDLESS},
    "weighted random": {"chunk_size": 4096, **ENDLESS},
    "lattice, lane 5 of 8": {"chunk_size": 2048, "shuffle_block_size": "auto", **ENDLESS},
    "modulo, lane 1 of 3": {"chunk_size": 777, "lane_assignment": "modulo", **ENDLESS},
    "redistribute": {
        "chunk_size": 512,
        "exhausted_policy": "redistribute",
        "shuffle_block_size": 9,
    },
    "virtual time": {"allocation": "virtual_time", "chunk_size": 1000, **ENDLESS},
    "tokens by shard": {"token_estimation": TOKENS, "chunk_size": 1000, **ENDLESS},
    "tokens by block, passes": {
        "token_estimation": TOKENS,
        "chunk_size": 777,
        "shuffle_block_size": 500,
        "stop_after_passes": 9,
    },
    "capped": {"chunk_size": 512, "max_repeats": 5},
}
WARM, MAIN, LAST = [1, 0, 0], WEIGHTS, [0.2, 0.3, 0.5]
SCHEDULES = {  # stages, and settings
    "schedule of one stage": ([(None, MAIN)], {"chunk_size": 1003, **ENDLESS}),
    "schedule, two stages": ([(20, MAIN), (None, LAST)], {"chunk_size": 1000, **ENDLESS}),
    "schedule, a dataset on and off": (
        [(7, WARM), (19, MAIN), (30, [0, 1, 1]), (None, LAST)],
        {"chunk_size": 999, "shuffle_within_shard": True, **ENDLESS},
    ),
    "schedule, linear": (
        [(10, WARM), (40, WARM, "linear"), (None, LAST)],
        {"chunk_size": 1000, "shuffle_block_size": "auto", **ENDLESS},
    ),
    "schedule, linear all through": (
        [(10, WARM), (40, MAIN), (None, LAST)],
        {"chunk_size": 777, "ramp": "linear", **ENDLESS},
    ),
    "schedule, cosine": ([(45, MAIN, "cosine"), (None, LAST)], {"chunk_size": 1024, **ENDLESS}),
    "schedule, long cosine": (
        [(900, LAST, "cosine"), (None, MAIN)],
        {"chunk_size": 50, "shuffle_block_size": "global", **ENDLESS},
    ),
    "schedule in samples, passes": (
        [(zx.samples(9000), WARM), (zx.samples(25_000), MAIN), (None, LAST)],
        {"chunk_size": 512, "stop_after_passes": 2},
    ),
    "schedule, redistribute": (
        [(9, MAIN), (12, LAST, "linear"), (None, [1, 1, 0])],
        {"chunk_size": 512, "exhausted_policy": "redistribute"},
    ),
    "schedule, capped": (
        [(15, MAIN), (60, WARM, "linear"), (None, LAST)],
        {"chunk_size": 512, "max_repeats": 4},
    ),
    "schedule, fixed": (
        [(5, WARM), (30, MAIN, "linear"), (None, LAST)],
        {"chunk_size": 600, "allocation": "fixed", **ENDLESS},
    ),
    "schedule, lattice, lane 5 of 8": (
        [(21, WARM), (90, WARM, "cosine"), (None, MAIN)],
        {"chunk_size": 2048, **ENDLESS},
    ),
    "schedule, virtual time": (
        [(10, WARM), (40, WARM, "linear"), (60, MAIN), (None, LAST)],
        {"chunk_size": 700, "allocation": "virtual_time", **ENDLESS},
    ),
    "schedule in tokens": (
        [(7, WARM), (19, MAIN, "cosine"), (30, [0, 1, 1]), (None, LAST)],
        {"chunk_size": 777, "token_estimation": TOKENS, "shuffle_block_size": 500, **ENDLESS},
    ),
    "schedule in tokens, redistribute": (
        [(9, MAIN, "linear"), (25, LAST), (None, [1, 1, 0])],
        {"chunk_size": 512, "token_estimation": TOKENS, "exhausted_policy": "redistribute"},
    ),
    "schedule that ends after tokens": (
        [(zx.tokens(900_000), WARM), (zx.tokens(1_150_000), MAIN, "linear"), (None, LAST)],
        {"chunk_size": 400, "token_estimation": TOKENS, "shuffle_within_shard": True, **ENDLESS},
    ),
    "shards and a dataset added": (
        [(None, [11, 7])],
        {
            "chunk_size": 900,
            "shuffle_within_shard": True,
            "changes": [
                [15, [11, 7, 2], [2, 30], [8250, 5250]],
                [30, [1, 1, 1], [3, 30, 1], [15675, 9975, 1350]],
            ],
            **ENDLESS,
        },
    ),
    "schedule of rare datasets": (
        [(300, [5000, 3, 1]), (900, [5000, 3, 1], "linear"), (None, [500, 300, 0])],
        {"chunk_size": 40, **ENDLESS},
    ),
}
READING = {
    "weighted random": RANDOM,
    "lattice, lane 5 of 8": LATTICE,
    "schedule, lattice, lane 5 of 8": LATTICE,
}
LANE = {
    "lattice, lane 5 of 8": (5, 8),
    "schedule, lattice, lane 5 of 8": (5, 8),
    "modulo, lane 1 of 3": (1, 3),
}
NAMES = [*SETTINGS, *SCHEDULES]


def digest(name):
    if name in SCHEDULES:
        stages, settings = SCHEDULES[name]
        source = scheduled(SHARDS, stages, **settings)
    else:
        source = mixture(SHARDS, WEIGHTS, **SETTINGS[name])
    state, ids, count = source.init(*LANE.get(name, (0, 1))), [], 0
    while count < NUM_IDS:
        chunk, state = source.next_chunk(state)
        if chunk is None:
            break
        ids.append(chunk.order(READING.get(name))[1])
        count += len(chunk)
    flat = np.concatenate(ids)[:NUM_IDS].astype("<i8")
    return hashlib.sha256(flat.tobytes()).hexdigest()


GOLDEN = Golden(pathlib.Path(__file__).with_name("golden_orders.json"), NAMES, digest)


@pytest.mark.parametrize("name", NAMES)
def test_order_is_the_golden_one(name):
    GOLDEN.check(name)


def test_golden_file_and_configurations_agree():
    GOLDEN.check_names()


if __name__ == "__main__":
    GOLDEN.add_missing()
