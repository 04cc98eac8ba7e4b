"""Elements a second from a lane's iterator over data in memory, beside Grain's and Zephon's ids.

python benchmarks/end_to_end.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import itertools
import sys

import grain
import mixtures
from common import Measured, Table, clock, run

import zephon_jax as zx

SIZES = {"a": 200_000, "b": 100_000}
WEIGHTS = {"a": 2, "b": 1}


def rate(iterator, num) -> float:
    for _ in itertools.islice(iterator, 2000):
        pass
    begin = clock()
    taken = sum(1 for _ in itertools.islice(iterator, num))
    return taken / (clock() - begin)


def amount(quick) -> int:
    return 30_000 if quick else 250_000


def source():
    datasets = [zx.Dataset.from_source(name, range(size)) for name, size in SIZES.items()]
    return zx.StaticMixtureWorkSource(datasets, WEIGHTS, **mixtures.SHUFFLED)


def mixed():
    parts = [grain.MapDataset.range(size).shuffle(seed=n) for n, size in enumerate(SIZES.values())]
    return grain.MapDataset.mix(parts, weights=list(WEIGHTS.values()))


def lane(quick):
    return {"rate": rate(iter(zx.LaneIterDataset(source())), amount(quick))}


def mapped(quick):
    dataset = zx.MixtureMapDataset(source()).to_iter_dataset(grain.ReadOptions(num_threads=0))
    return {"rate": rate(iter(dataset), amount(quick))}


def grain_0_threads(quick):
    dataset = mixed().to_iter_dataset(grain.ReadOptions(num_threads=0))
    return {"rate": rate(iter(dataset), amount(quick))}


def grain_default(quick):
    return {"rate": rate(iter(mixed().to_iter_dataset()), amount(quick) // 10)}


PEERS = {
    "LaneIterDataset": lane,
    "MixtureMapDataset.to_iter_dataset, 0 threads": mapped,
    "Grain to_iter_dataset, 0 threads": grain_0_threads,
    "Grain to_iter_dataset, default": grain_default,
}


def report(table: Table, found: Measured) -> None:
    for peer in PEERS:
        table.add(peer, found.of(peer, "rate"), "elements/s")
    ratios = found.ratios("LaneIterDataset", "Grain to_iter_dataset, 0 threads", "rate")
    table.add("LaneIterDataset over Grain at 0 threads", ratios, "x", least=4)


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
