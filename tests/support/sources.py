"""One list of every source, and a source as a user would write one."""

from __future__ import annotations

from typing import NamedTuple

import zephon_jax as zx
from support.helpers import mixture, scheduled
from zephon_jax.sources.stopped import StoppedSource


class CountState(NamedTuple):
    lane: int
    num_lanes: int
    step: int


class CountSource(zx.WorkSource):
    """A source as a user would write one: thirty chunks of two components, by the base's rules."""

    def init(self, lane=0, num_lanes=1):
        return CountState(lane, num_lanes, 0)

    def next_chunk(self, state):
        g = state.step * state.num_lanes + state.lane
        if g >= 30:
            return None, state
        ids = {
            "odd": [(0, 0, 5 * g + i) for i in range(3)],
            "even": [(1, 0, 2 * g), (1, 0, 2 * g + 1)],
        }
        chunk = zx.WorkChunk(ids, seed=1, chunk_index=g, slot=state.lane, num_lanes=state.num_lanes)
        return chunk, state._replace(step=state.step + 1)

    def component_ids(self):
        return {"odd": 3, "even": 7}


ALL_SHUFFLES = {"shuffle_within_shard": True, "shuffle_block_size": "auto"}


def sharing():
    """Two mixtures that have a dataset in common."""
    datasets = [
        zx.Dataset.from_counts(name, counts)
        for name, counts in (("a", [31, 3]), ("b", [50]), ("c", [70, 0, 9]))
    ]
    settings = {"chunk_size": 8, **ALL_SHUFFLES}
    return [
        zx.StaticMixtureWorkSource(datasets[:2], {"a": 2, "b": 1}, **settings),
        zx.StaticMixtureWorkSource(datasets[1:], {"b": 1, "c": 3}, seed=7, **settings),
    ]


SOURCES = {
    "one dataset": lambda: mixture([[40, 7, 0, 33]], chunk_size=9, **ALL_SHUFFLES),
    "passes": lambda: mixture(
        [[31, 3], [50], 3], [5, 3, 1], chunk_size=16, stop_after_passes=3, **ALL_SHUFFLES
    ),
    "stop": lambda: mixture(
        [200, 300], [0.4, 0.6], chunk_size=17, exhausted_policy="stop", shuffle_block_size="global"
    ),
    "capped": lambda: mixture([20, 30], [0.3, 0.7], chunk_size=7, max_repeats=4),
    "redistribute": lambda: mixture(
        [[20, 5], 90, 41, 0],
        [4, 3, 2, 1],
        chunk_size=13,
        exhausted_policy="redistribute",
        shuffle_block_size=10,
    ),
    "policies": lambda: mixture(
        [60, 20, 500],
        [1, 2, 3],
        chunk_size=11,
        exhausted_policy={"a": "redistribute", "b": "repeat", "c": "stop"},
    ),
    "fixed": lambda: mixture([40, 90], [1, 3], chunk_size=10, allocation="fixed"),
    "modulo": lambda: mixture([100, 100], [1, 3], chunk_size=6, lane_assignment="modulo"),
    "rare": lambda: mixture([5, 700], [1, 400], chunk_size=8, exhausted_policy="redistribute"),
    "virtual time": lambda: mixture(
        [[31, 3], [50], 3],
        [5, 3, 1],
        chunk_size=16,
        stop_after_passes=3,
        allocation="virtual_time",
        **ALL_SHUFFLES,
    ),
    "virtual time, redistribute": lambda: mixture(
        [[20, 5], 90, 41, 0],
        [4, 3, 2, 1],
        chunk_size=13,
        exhausted_policy="redistribute",
        allocation="virtual_time",
    ),
    "virtual time, policies": lambda: mixture(
        [60, 20, 500],
        [1, 2, 3],
        chunk_size=11,
        exhausted_policy={"a": "redistribute", "b": "repeat", "c": "stop"},
        allocation="virtual_time",
    ),
    "virtual time, many": lambda: mixture([[7, 6]] * 70, chunk_size=30, allocation="virtual_time"),
    "tokens": lambda: mixture(
        [[20, 0, 13], [31, 4], 9],
        [3, 2, 1],
        chunk_size=11,
        stop_after_passes=2,
        token_estimation=zx.TokenEstimation.from_shard_totals(
            {"a": [900, 0, 300], "b": [200, 800], "c": [45]}
        ),
        **ALL_SHUFFLES,
    ),
    "many": lambda: mixture([[7, 6]] * 70, chunk_size=30, shuffle_within_shard=True),
    "schedule": lambda: scheduled(
        [[31, 3], 50, [40, 0, 7]],
        [(2, [1, 0, 0]), (8, [3, 1, 0], "linear"), (None, [0, 1, 0.7])],
        chunk_size=13,
        stop_after_passes=2,
        **ALL_SHUFFLES,
    ),
    "schedule, redistribute": lambda: scheduled(
        [[20, 5], 90, 41, 0],
        [(3, [4, 3, 2, 1]), (7, [1, 1, 0, 0], "cosine"), (None, [0, 1, 5, 1])],
        chunk_size=7,
        exhausted_policy="redistribute",
    ),
    "changed": lambda: mixture(
        [[31, 3], [50]], [5, 3], chunk_size=9, stop_after_passes=2, **ALL_SHUFFLES
    ).with_mixture(
        {"a": 1, "b": 0, "new": 2},
        5,
        datasets=[
            zx.Dataset.from_counts("a", [31, 3, 0, 8]),
            zx.Dataset.from_counts("new", [20, 6]),
        ],
    ),
    "custom": CountSource,
    "concatenate": lambda: zx.concatenate(sharing()),
    "interleave": lambda: zx.interleave(sharing(), [5, 3]),
    "take": lambda: zx.take(SOURCES["passes"](), 20),
    "skip": lambda: zx.skip(SOURCES["policies"](), 5),
    "combined": lambda: zx.interleave(
        [
            zx.skip(CountSource(), 19),
            zx.concatenate([zx.take(CountSource(), 3), CountSource()]),
            zx.take(CountSource(), 2),
        ],
        [1, 2.5, 0.2],
    ),
}


def plain(chunk):
    """Everything that a chunk says, as plain values (but for what depends on the lanes)."""
    parts = {name: ids.tolist() for name, ids in chunk.components.items()}
    target = dict(chunk.target_mixture)
    return chunk.chunk_index, parts, list(chunk), target, chunk.source_exhausted, chunk.seed


def ways_of_stepping(source):
    """Where the library draws a source's first chunk."""
    return (
        lambda: source.seek(1),
        lambda: source.clone_for_lane(0, 1).next_chunk(),
        lambda: next(iter(zx.LaneIterDataset(source))),
        lambda: source.locate((0, 0, 0)),
        lambda: zx.simulate(source, 1),
        lambda: StoppedSource(source, 3).next_chunk(source.init()),
    )
