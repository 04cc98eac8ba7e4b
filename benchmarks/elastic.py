"""What the elastic layer costs over bare lane pipelines, and how long a training step waits.

    python benchmarks/elastic.py            # a minute; nothing else should run on the machine
    python benchmarks/elastic.py --lanes 64 --workers 2

Bare: each lane's Grain pipeline is stepped by hand and its rows are stacked by NumPy, in the same
thread. Elastic: the same lanes through `ElasticIterDataset`. The two take turns in short rounds, so
that a slow moment of the machine falls on both; the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import jax
import numpy as np

import zephon_jax as zx

TOKENS = 1024


def make_source(samples):
    """Two corpora of rows of 1,024 tokens in memory."""
    datasets = [
        zx.Dataset.from_source(name, Rows(samples, seed)) for seed, name in enumerate(("a", "b"))
    ]
    return zx.StaticMixtureWorkSource(
        datasets, {"a": 3, "b": 1}, chunk_size=4096, exhausted_policy="repeat"
    )


class Rows:
    """Rows of tokens, a fresh array for each."""

    def __init__(self, size, seed):
        self.size, self.base = size, np.arange(TOKENS, dtype=np.int32) + seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.base + np.int32(index)


def pipeline(lane):
    return lane.map(lambda e: {"tokens": e["data"] % 50_000, "sample_id": e["sample_id"]})


def elastic_of(source, lanes, rows, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return iter(
            zx.ElasticIterDataset(
                source, lanes, pipeline, process_index=0, process_count=1,
                global_batch_size=lanes * rows, **settings,
            )
        )  # fmt: skip


def bare_steps(source, lanes, rows):
    """Batches of the same rows, by hand."""
    config = zx.MixtureReadConfig(mode="lattice")
    iterators = [
        iter(pipeline(zx.LaneIterDataset(source, lane, lanes, config))) for lane in range(lanes)
    ]
    while True:
        taken = [next(iterator) for iterator in iterators for _ in range(rows)]
        yield jax.tree.map(lambda *leaves: np.stack(leaves), *taken)


def seconds(iterator, steps):
    start = time.perf_counter()
    for _ in range(steps):
        next(iterator)
    return time.perf_counter() - start


def overhead(lanes, rows, rounds, steps, **settings):
    """Time of the elastic layer over that of the bare pipelines, and both in rows a second."""
    source = make_source(200_000)
    bare, elastic = bare_steps(source, lanes, rows), elastic_of(source, lanes, rows, **settings)
    seconds(bare, 3), seconds(elastic, 3)
    took = {"bare": [], "elastic": []}
    for _ in range(rounds):
        took["bare"].append(seconds(bare, steps))
        took["elastic"].append(seconds(elastic, steps))
    elastic.close()
    medians = {name: statistics.median(times) for name, times in took.items()}
    return medians["elastic"] / medians["bare"] - 1, {
        name: lanes * rows * steps / time for name, time in medians.items()
    }


def waiting(lanes, rows, steps, step_seconds, **settings):
    """Share of a step that is spent waiting for data."""
    iterator = elastic_of(make_source(200_000), lanes, rows, **settings)
    next(iterator)
    waits = []
    for _ in range(steps):
        time.sleep(step_seconds)  # the accelerator is at work and the host is idle
        start = time.perf_counter()
        next(iterator)
        waits.append(time.perf_counter() - start)
    iterator.close()
    return statistics.mean(waits) / step_seconds, max(waits)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--lanes", type=int, default=64)
    arguments.add_argument("--rows", type=int, default=1, help="of each lane in a step")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--step-seconds", type=float, default=0.05)
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=1)
    given = arguments.parse_args()
    how = {"num_workers": given.workers, "num_threads": given.threads}
    over, rates = overhead(given.lanes, given.rows, given.rounds, given.steps, **how)
    print(
        f"{given.lanes} lanes x {given.rows} rows: bare {rates['bare']:,.0f} rows/s, elastic"
        f" {rates['elastic']:,.0f} rows/s: overhead {over:+.1%} (at most 10 %)"
    )
    share, worst = waiting(given.lanes, given.rows, 100, given.step_seconds, **how)
    print(
        f"a step of {1000 * given.step_seconds:.0f} ms waits {share:.2%} of itself for data on"
        f" average (under 1 %), {1000 * worst:.2f} ms at worst"
    )


if __name__ == "__main__":
    main()
