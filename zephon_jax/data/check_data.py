"""Reads everything once and says what cannot be read, before a run does."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from zephon_jax.data.bad_records import BadRecord, Unreadable
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import default_reader

__all__ = ["ShardCheck", "check_datasets"]

_BATCH = 1 << 12  # records read together
_MOST_PROCESSES = 8
_MOST_LISTED = 100  # bad records of one shard
_WORTH_BYTES = 1 << 28  # of data, from which on it is worth starting processes


class ShardCheck(NamedTuple):
    """What was found in a shard."""

    dataset: str
    shard_id: int
    path: str | None
    num_samples: int
    num_bad: int
    # The first of them.
    bad: list[BadRecord]
    # Why the shard could not be read at all, or not to its end.
    error: str | None


def check_datasets(
    datasets: Sequence[Dataset], num_processes: int | None = None
) -> Iterator[ShardCheck]:
    """Reads all records of some datasets, whatever the datasets do about bad ones.

    Args:
      datasets: What to read.
      num_processes: Processes that read; 0 for none but this one, None to go by the size.

    Yields:
      What was found in each shard, in order.
    """
    tasks = [(d, shard) for d, one in enumerate(datasets) for shard in range(one.num_shards)]
    if num_processes is None:
        num_bytes = sum(file.size for dataset in datasets for file in dataset.shards)
        num_processes = min(_MOST_PROCESSES, os.cpu_count() or 1, len(tasks))
        num_processes *= num_bytes >= _WORTH_BYTES
    if num_processes <= 1:
        for d, shard_id in tasks:
            yield _check_shard(datasets[d], shard_id)
        return
    context = multiprocessing.get_context("spawn")  # Threads of this one may hold locks.
    with ProcessPoolExecutor(
        num_processes, context, initializer=_begin, initargs=(tuple(datasets),)
    ) as pool:
        try:
            yield from pool.map(_check_here, tasks)
        finally:
            pool.shutdown(cancel_futures=True)


_datasets: tuple[Dataset, ...] = ()


def _begin(datasets: tuple[Dataset, ...]) -> None:
    global _datasets
    _datasets = datasets


def _check_here(task: tuple[int, int]) -> ShardCheck:
    return _check_shard(_datasets[task[0]], task[1])


def _check_shard(dataset: Dataset, shard_id: int) -> ShardCheck:
    count, reader = int(dataset.shard_counts[shard_id]), default_reader()
    path = dataset.shards[shard_id].path if dataset.shards else None
    num_bad, bad, error = 0, list[BadRecord](), None
    try:
        for start in range(0, count, _BATCH):
            indices = np.arange(start, min(start + _BATCH, count))
            ids = np.stack(np.broadcast_arrays(0, shard_id, indices), axis=1)
            for a, b in reader.windows({0: dataset}, ids):
                records = reader.read({0: dataset}, ids[a:b], marked=True)
                found = (record for record in records if type(record) is Unreadable)
                for record in found:
                    num_bad += 1
                    if len(bad) < _MOST_LISTED:
                        bad.append(record.bad)
    except Exception as raised:
        error = str(raised) or type(raised).__name__
    return ShardCheck(dataset.name, shard_id, path, count, num_bad, bad, error)
