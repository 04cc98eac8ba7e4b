"""Elastic datasets of hosts side by side in one process, their pipelines and their batches."""

from __future__ import annotations

import json
import multiprocessing

import grain
import jax
import numpy as np

import zephon_jax as zx


def readable(sizes=(48, 80, 32), weights=None, **settings):
    """A source over datasets in memory: record n of dataset d is 1000 * d + n."""
    datasets = [
        zx.Dataset.from_source(f"d{d}", [1000 * d + n for n in range(size)])
        for d, size in enumerate(sizes)
    ]
    settings = {"chunk_size": 5, "shuffle_block_size": "auto", **settings}
    weights = sizes if weights is None else weights
    mix = {dataset.name: w for dataset, w in zip(datasets, weights, strict=True)}
    return zx.StaticMixtureWorkSource(datasets, mix, **settings)


def rows(lane):
    return lane.map(lambda e: {"x": np.int32(e["data"]), "sample_id": e["sample_id"]})


def filtered(lane):
    return rows(lane.filter(lambda e: e["data"] % 3 != 0))


def first_fit(lane):
    lane = lane.map(lambda e: {"x": np.full(e["data"] % 5 + 1, e["data"], np.int32)})
    return grain.experimental.FirstFitPackIterDataset(
        lane, length_struct={"x": 12}, num_packing_bins=3, shuffle_bins=False
    )


def concat_split(lane):
    lane = lane.map(lambda e: {"x": np.full(e["data"] % 5 + 1, e["data"], np.int32)})
    return grain.experimental.ConcatThenSplitIterDataset(lane, length_struct={"x": 8})


def noisy(lane):
    return rows(lane).random_map(lambda e, rng: {**e, "noise": rng.integers(1 << 30)})


def batched(lane):
    return rows(lane).batch(3)


PIPELINES = {
    "map": (rows, 1),
    "filter": (filtered, None),
    "first fit": (first_fit, None),
    "concat then split": (concat_split, None),
    "random map": (noisy, 1),
    "batches": (batched, 1),
}


def hosts(source, num_lanes, pipeline, count, **settings):
    return [
        zx.ElasticIterDataset(
            source, num_lanes, pipeline, process_index=h, process_count=count, **settings
        )
        for h in range(count)
    ]


def join(parts):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def in_step(iterators, limit=None):
    """Global batches of hosts side by side; all end when one does."""
    found = []
    while limit is None or len(found) < limit:
        parts = [next(iterator, None) for iterator in iterators]
        if any(part is None for part in parts):
            break
        found.append(join(parts))
    return found


def merged(iterators):
    """The states of all hosts as one, through JSON."""
    states = [json.loads(json.dumps(iterator.get_state())) for iterator in iterators]
    lanes = {lane: one for state in states for lane, one in state["lanes"].items()}
    return {**states[0], "lanes": lanes}


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, other)


def lane_workers():
    """The worker processes of elastic iterators, in the order in which they were started."""
    workers = [p for p in multiprocessing.active_children() if p.name == "zephon_jax lanes"]
    return sorted(workers, key=lambda process: int(process.pid))
