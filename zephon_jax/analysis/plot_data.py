"""What pictures show beyond a simulated run: where samples move to, and what batches hold."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._text import short
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.data.dataset import Dataset
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["LEVELS", "Moves", "batch_rows", "lane_counts", "moves_of", "sources_by_level"]

_MOST_SAMPLES = 1 << 20  # samples of a pass that are looked at

LEVELS: dict[str, dict[str, Any]] = {
    "no shuffle": {"shuffle_shards": False},
    "shards": {},
    "shards + within": {"shuffle_within_shard": True},
    "shards + block": {"shuffle_block_size": "auto"},
    "global": {"shuffle_block_size": "global"},
}
"""Settings of every shuffle level, by the name that a picture shows."""


class Moves(NamedTuple):
    """A dataset's samples in the order of their first pass."""

    stored: np.ndarray  # int64 (n,), place in storage of each position
    total: int  # samples in the pass
    shard_starts: np.ndarray  # int64 (S + 1,), samples before each shard
    mean_move: float  # samples, between a sample's place in storage and its position


def sources_by_level(dataset: Dataset, seed: int = 42) -> dict[str, WorkSource]:
    """One-dataset sources at every shuffle level."""
    size = max(1, min(16384, dataset.num_samples))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a level may have no effect on a dataset of one shard
        return {
            title: StaticMixtureWorkSource([dataset], {dataset.name: 1}, size, seed, **settings)
            for title, settings in LEVELS.items()
        }


def moves_of(source: WorkSource, component: str | None) -> Moves:
    """The first pass of a dataset, or its beginning where it is long.

    Raises:
      ValueError: If the component is not a dataset of the source.
    """
    check_source(source)
    datasets = {dataset.name: dataset for dataset in source.datasets_by_id.values()}
    name = next(iter(datasets), None) if component is None else component
    if name is None or name not in datasets:
        raise ValueError(f"component must be one of {list(datasets)}; got {short(component)}.")
    counts = np.asarray(datasets[name].shard_counts, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    total, parts, state = int(starts[-1]), [], source.init()
    wanted = min(total, _MOST_SAMPLES)
    while wanted > 0:
        chunk, state = source.next_chunk(state)
        if chunk is None:
            break
        if name not in chunk.names:
            continue
        ids = chunk.components[name][:wanted]
        parts.append(starts[ids[:, 1]] + ids[:, 2])
        wanted -= len(ids)
    stored = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    moved = np.abs(stored - np.arange(len(stored)))
    return Moves(stored, total, starts, float(moved.mean()) if len(moved) else 0.0)


def lane_counts(run: Simulation, component: str, max_steps: int) -> np.ndarray:
    """Samples of a component by lane and lane step, float64 (L, steps), NaN past a lane's end.

    Raises:
      ValueError: If the component is not known, or a row of the run is more than one chunk.
    """
    if component not in run.names:
        raise ValueError(f"component must be one of {list(run.names)}; got {short(component)}.")
    if run.stride > 1:
        raise ValueError(
            f"a row of this run is {run.stride} chunks of several lanes. Simulate fewer chunks:"
            f" {max_steps} for each lane are shown."
        )
    shown = min(len(run.lane), run.num_lanes * max_steps)
    lane, draws = run.lane[:shown], run.draws[:shown, run.names.index(component)]
    order = np.argsort(lane, kind="stable")
    begins = np.searchsorted(lane[order], np.arange(run.num_lanes))
    step = np.empty(shown, dtype=np.int64)
    step[order] = np.arange(shown) - begins[lane[order]]
    counts = np.full((run.num_lanes, int(step.max()) + 1), np.nan)
    counts[lane, step] = draws
    return counts[:, :max_steps]


def batch_rows(
    source: WorkSource, num_lanes: int, rows: int, num_steps: int, config: MixtureReadConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each component in global batches: int64 (steps, k), and the target shares (k,).

    Fewer steps where a lane ends before.
    """
    place = {name: d for d, name in enumerate(source.component_ids())}
    counts = np.zeros((num_steps, len(place)), dtype=np.int64)
    target, ended = np.zeros(len(place)), num_steps
    for lane in range(num_lanes):
        state, parts, got = source.init(lane, num_lanes), [], 0
        while got < num_steps * rows:
            chunk, state = source.next_chunk(state)
            if chunk is None:
                break
            names = np.asarray([place[name] for name in chunk.names])
            parts.append(names[chunk.order(config)[0]])
            got += len(chunk)
            for name, share in chunk.target_mixture.items() if not target.any() else ():
                target[place[name]] = share
        read = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        ended = min(ended, len(read) // rows)
        steps = np.arange(min(num_steps, len(read) // rows)).repeat(rows)
        np.add.at(counts, (steps, read[: len(steps)]), 1)
    return counts[:ended], target
