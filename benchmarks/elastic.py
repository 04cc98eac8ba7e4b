"""What the elastic layer costs over bare lane pipelines, how long a training step waits, and more.

    python benchmarks/elastic.py [--rounds 15] [--quick] [--json FILE]    # nothing else should run
    python benchmarks/elastic.py --lanes 64 --workers 2

Bare: each lane's Grain pipeline is stepped by hand and its rows are stacked by NumPy, in the same
thread. Elastic: the same lanes through `ElasticIterDataset`. The two take turns in short rounds, so
that a slow moment of the machine falls on both; the medians are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings

import grain
import jax
import numpy as np
from common import Table

import zephon_jax as zx
from zephon_jax.elastic.checkpoint.save_restore import to_files

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
    """Seconds that some steps take, and of the processor."""
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        next(iterator)
    return time.perf_counter() - start, time.process_time() - busy


def overhead(lanes, rows, rounds, steps, **settings):
    """Seconds of the bare pipelines and of the elastic layer, round by round.

    By the clock and of the processor, which other work on the machine disturbs less.
    """
    source = make_source(200_000)
    bare, elastic = bare_steps(source, lanes, rows), elastic_of(source, lanes, rows, **settings)
    seconds(bare, 3), seconds(elastic, 3)
    took = [(seconds(bare, steps), seconds(elastic, steps)) for _ in range(rounds)]
    elastic.close()
    return took


def waiting(lanes, rows, steps, step_seconds, **settings):
    """Seconds that each step waits for data."""
    iterator = elastic_of(make_source(200_000), lanes, rows, **settings)
    next(iterator)
    waits = []
    for _ in range(steps):
        time.sleep(step_seconds)  # the accelerator is at work and the host is idle
        start = time.perf_counter()
        next(iterator)
        waits.append(time.perf_counter() - start)
    iterator.close()
    return waits


MIXTURES = {
    "(.9, .1)": (0.9, 0.1),
    "(.5, .25, .125, .0625, .04, .01, .01, .0025)": (
        0.5, 0.25, 0.125, 0.0625, 0.04, 0.01, 0.01, 0.0025,
    ),
    "thirds": (1, 1, 1),
    "(840, 420, 280, 210, 168, 140, 120, 105)": (840, 420, 280, 210, 168, 140, 120, 105),
}  # fmt: skip


def worst_batch(weights, num_lanes=64):
    """How many rows the worst global batch of one row a lane is off its mixture."""
    names = [f"d{d}" for d in range(len(weights))]
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_counts(name, [10**6]) for name in names],
        dict(zip(names, weights, strict=True)), chunk_size=64 * num_lanes,
        exhausted_policy="repeat",
    )  # fmt: skip
    config = zx.MixtureReadConfig(mode="lattice")
    orders = [
        source.next_chunk(source.init(lane, num_lanes))[0].order(config)[0]
        for lane in range(num_lanes)
    ]
    steps = np.stack(orders, axis=1)
    counts = np.stack([(steps == d).sum(axis=1) for d in range(len(weights))], axis=1)
    shares = np.asarray(weights, dtype=float) / float(sum(weights))
    return float(np.abs(counts - num_lanes * shares).max())


def batches(quick):
    """The worst of the listed mixtures, and of 20 drawn ones."""
    rng = np.random.default_rng(0)
    drawn = [
        (rng.pareto(1.2, rng.integers(2, 33)) + 0.05).round(4).tolist()
        for _ in range(3 if quick else 20)
    ]
    yield from ((name, worst_batch(weights)) for name, weights in MIXTURES.items())
    yield f"{len(drawn)} drawn mixtures", max(map(worst_batch, drawn))


def packed(lane):
    lane = lane.map(lambda e: {"tokens": e["data"]})
    return grain.experimental.ConcatThenSplitIterDataset(lane, length_struct={"tokens": 2048})


def bytes_a_lane(make, per_sample, lanes=64):
    """Bytes of a checkpoint for each lane, after some steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator = iter(zx.ElasticIterDataset(
            make_source(200_000), lanes, make, process_index=0, process_count=1,
            rows_per_sample=per_sample,
        ))  # fmt: skip
    for _ in range(5):
        next(iterator)
    size = sum(map(len, to_files(iterator.get_state()).values()))
    iterator.close()
    return size / lanes


def restore_seconds(rounds, lanes=8, steps=(10, 100_000)):
    """Seconds of restores with their first batch, at an early and a late step."""
    took = {step: [] for step in steps}
    with tempfile.TemporaryDirectory() as folder:
        iterator = elastic_of(make_source(200_000), lanes, 1)
        for step in steps:
            iterator.seek(step)
            zx.save_checkpoint(folder, iterator)
        iterator.close()
        for _ in range(rounds):
            for step in steps:
                iterator = elastic_of(make_source(200_000), lanes, 1)
                start = time.perf_counter()
                zx.restore_checkpoint(folder, iterator, step=step)
                next(iterator)
                took[step].append(time.perf_counter() - start)
                iterator.close()
    return [took[step] for step in steps]


def main(argv: list[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--json", help="write the figures to this file")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--quick", action="store_true", help="few rounds, short ones")
    arguments.add_argument("--lanes", type=int, default=64)
    arguments.add_argument("--rows", type=int, default=1, help="of each lane in a step")
    arguments.add_argument("--step-seconds", type=float, default=0.05)
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--threads", type=int, default=1)
    given = arguments.parse_args(argv)
    table = Table()
    add_speed(table, given)
    for what, off in batches(given.quick):
        table.add(f"64 lanes: worst batch, {what}", [off], "rows", most=1.5)
    table.add("checkpoint: map", [bytes_a_lane(pipeline, 1)], "B/lane", most=1024)
    packs = [bytes_a_lane(packed, None)]
    table.add("checkpoint: concat-then-split", packs, "B/lane", most=1024)
    early, late = restore_seconds(3 if given.quick else max(7, given.rounds))
    table.add("restore and first batch at step 10", [1e3 * one for one in early], "ms")
    ratios = [a / b for a, b in zip(late, early, strict=True)]
    table.add("the same at step 100,000 over that", ratios, "x", most=1.5)
    table.write(given.json)


def add_speed(table, given):
    """What the layer costs, and what a step waits for."""
    rounds, steps = (2, 10) if given.quick else (given.rounds, 40)
    how = {"num_workers": given.workers, "num_threads": given.threads}
    name = f"{given.lanes} lanes x {given.rows} rows"
    took = overhead(given.lanes, given.rows, rounds, steps, **how)
    rows = given.lanes * given.rows * steps
    table.add(f"{name}: bare pipelines", [rows / bare[0] for bare, _ in took], "rows/s")
    table.add(f"{name}: elastic", [rows / elastic[0] for _, elastic in took], "rows/s")
    for n, what in enumerate(("by the clock", "in processor time")):
        more = [100 * (elastic[n] / bare[n] - 1) for bare, elastic in took]
        table.add(f"{name}: overhead {what}", more, "%", most=10)
    waits = waiting(given.lanes, given.rows, 20 if given.quick else 200, given.step_seconds, **how)
    shares = [100 * wait / given.step_seconds for wait in waits]
    table.add(f"{name}: data wait in a step of {1e3 * given.step_seconds:g} ms",
              [sum(shares) / len(shares)], "%", most=1)  # fmt: skip
    table.add(f"{name}: longest data wait", [1e3 * max(waits)], "ms")


if __name__ == "__main__":
    main()
