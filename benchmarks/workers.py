"""What worker processes give where the pipeline is bound by the processor.

    python benchmarks/workers.py [--rounds 9] [--quick] [--json FILE]    # nothing else should run

The same lanes without workers and with some take turns in short rounds, so that a slow moment of
the machine falls on all. Beside the clock, which other work on the machine disturbs, stands the
processor time of all processes and that of the busiest, which is the time that a machine with
cores enough would take: what is over 1 / workers of it was spent on handing rows over.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator

import numpy as np
from common import Table

import zephon_jax as zx

LANES, ROWS, LENGTH = 8, 32, 1024
WORDS = {f"w{n}": n for n in range(5000)}
TICKS = os.sysconf("SC_CLK_TCK")


class Texts:
    """Documents of some 200 words, made when they are read."""

    def __init__(self, size, seed):
        self.size, self.seed = size, seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        step = 1 + (index * 7 + self.seed) % 100
        return " ".join(f"w{(index + n * step) % 5000}" for n in range(100 + index % 200))


def tokenized(lane):
    return lane.map(lambda e: {
        "tokens": np.asarray([WORDS[word] for word in e["data"].split()], np.int32),
        "component_id": e["component_id"],
    })  # fmt: skip


def packed(lane):
    return zx.pack(tokenized(lane), LENGTH)


def fixed(lane):
    """One row a document: little to hand over for what it takes to make."""
    return tokenized(lane).map(lambda e: {"tokens": np.resize(e["tokens"], LENGTH)})


def small(lane):
    """Rows that are made in no time: all of it is handing over."""
    return lane.map(lambda e: {"x": np.full(LENGTH, len(e["data"]), np.int32)})


PIPELINES = {"words, packed": (packed, None), "words": (fixed, 1), "rows of no work": (small, 1)}


def opened(kind, workers):
    make, per_sample = PIPELINES[kind]
    data = [zx.Dataset.from_source(f"d{n}", Texts(100_000, n)) for n in range(2)]
    # Small chunks: what lanes read ahead is a small part of what is measured.
    source = zx.StaticMixtureWorkSource(
        data, {"d0": 3, "d1": 1}, chunk_size=32, exhausted_policy="repeat"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return iter(zx.ElasticIterDataset(
            source, LANES, make, process_index=0, process_count=1, global_batch_size=ROWS,
            rows_per_sample=per_sample, num_workers=workers,
        ))  # fmt: skip


def busy() -> Iterator[float]:
    """Processor seconds of this process and of those that it started."""
    yield time.process_time()
    for child in multiprocessing.active_children():
        with open(f"/proc/{child.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        yield (int(fields[11]) + int(fields[12])) / TICKS


def measured(iterator, steps):
    """Microseconds a row: by the clock, of all processes, and of the busiest of them."""
    before, start = list(busy()), time.perf_counter()
    for _ in range(steps):
        next(iterator)
    took = time.perf_counter() - start
    spent = [after - at for after, at in zip(busy(), before, strict=True)]
    return [1e6 * one / (steps * ROWS) for one in (took, sum(spent), max(spent))]


def compare(table, kind, workers, rounds, steps):
    """Rounds of some numbers of workers in turn."""
    found = {count: [] for count in workers}
    for _ in range(rounds):
        for count in workers:
            iterator = opened(kind, count)
            for _ in range(8):  # the first starts the processes
                next(iterator)
            found[count].append(measured(iterator, steps))
            iterator.close()
    for n, what in enumerate(("by the clock", "of all processes", "of the busiest")):
        for count in workers:
            one = [took[n] for took in found[count]]
            table.add(f"{kind}: {count} workers, {what}", one, "us/row")
        for count in workers[1:]:
            pairs = zip(found[workers[0]], found[count], strict=True)
            goal = {"least": 1.7} if count == 2 and n == 0 and "words" in kind else {}
            ratios = [none[n] / some[n] for none, some in pairs]
            table.add(f"{kind}: {count} workers over none, {what}", ratios, "x", **goal)


def main(argv: list[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--json", help="write the figures to this file")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    arguments.add_argument("--kind", choices=list(PIPELINES), nargs="*", default=list(PIPELINES))
    arguments.add_argument("--quick", action="store_true", help="one round, a short one")
    given = arguments.parse_args(argv)
    table = Table()
    for kind in given.kind:
        rounds, steps = (1, 5) if given.quick else (given.rounds, given.steps)
        compare(table, kind, given.workers, rounds, steps)
    table.write(given.json)


if __name__ == "__main__":
    main()
