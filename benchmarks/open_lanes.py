"""How long a host takes to open its lanes, and how much memory, for many lanes and long chunks.

python benchmarks/open_lanes.py [--rounds 3] [--quick] [--json FILE]

Records of 64 bytes in memory, one row of each lane in a batch, shuffled in blocks.
"""

from __future__ import annotations

import functools
import os
import sys

import numpy as np
from common import Measured, Table, clock, run

import zephon_jax as zx

SHAPES = {  # lanes, chunk_size
    "64 lanes": (64, 16_384),
    "4,096 lanes": (4_096, 16_384),
    "16,384 lanes": (16_384, 16_384),
    "64 lanes, long chunks": (64, 4_194_304),
}


def resident() -> float:
    """Megabytes of memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def words(lane):
    return lane.map(lambda element: element["data"])


def dataset_of(lanes: int, chunk_size: int) -> zx.ElasticIterDataset:
    records = zx.Dataset.from_source("records", np.zeros((2 * chunk_size, 8), np.int64))
    source = zx.StaticMixtureWorkSource(
        [records], {"records": 1}, chunk_size, exhausted_policy="repeat",
        shuffle_block_size="auto",
    )  # fmt: skip
    return zx.ElasticIterDataset(source, lanes, words, process_index=0, process_count=1)


def opened(quick, *, shape):
    lanes, chunk_size = SHAPES[shape]
    lanes = lanes // 16 if quick else lanes
    next(iter(dataset_of(2, 1_024)))  # what every process needs once
    dataset = dataset_of(lanes, chunk_size)
    before, begin = resident(), clock()
    iterator = iter(dataset)
    constructed = clock()
    next(iterator)
    first, held = clock(), resident() - before
    num, since = 0, clock()
    while clock() - since < (0.5 if quick else 4):
        next(iterator)
        num += 1
    rate = num * lanes / (clock() - since)
    state = iterator.get_state()
    iterator.close()
    again = iter(dataset)
    restoring = clock()
    again.set_state(state)
    next(again)
    restored = clock() - restoring
    again.close()
    return {
        "construct": constructed - begin, "first": first - constructed, "restore": restored,
        "memory": held, "rate": rate,
    }  # fmt: skip


PEERS = {shape: functools.partial(opened, shape=shape) for shape in SHAPES}
GOALS = {
    "4,096 lanes": {"construct": 0.5, "first": 2, "restore": 3, "memory": 300},
    "64 lanes, long chunks": {"first": 0.5, "memory": 50},
}
UNITS = {"construct": "s", "first": "s", "restore": "s", "memory": "MB"}


def report(table: Table, found: Measured) -> None:
    for shape in SHAPES:
        goals = GOALS.get(shape, {})
        for name, unit in UNITS.items():
            table.add(f"{shape}: {name}", found.of(shape, name), unit, most=goals.get(name))
        table.add(f"{shape}: rows", found.of(shape, "rate"), "rows/s")
    ratios = found.ratios("4,096 lanes", "64 lanes", "rate")
    table.add("rows a second, 4,096 lanes over 64", ratios, "x", least=0.7)


def main(argv: list[str] | None = None) -> None:
    run(sys.argv[1:] if argv is None else argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main()
