"""Reads the records that a schedule names, in batches ordered by their place in the files.

One `Reader` serves a whole process: every lane, dataset and thread shares its open files. Which
records come back, and in which order, depends on nothing but the ids that were asked for.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.catalog import Dataset
from zephon_jax.formats import OpenShard, get_format
from zephon_jax.formats.files import File
from zephon_jax.index import check_unchanged, index_of

__all__ = ["Reader", "check_readable", "default_reader", "read"]


class _Group(NamedTuple):
    """The samples of one shard in a call, in file order."""

    dataset_id: int
    shard_id: int
    # Place in the shard, int64 (n,), sorted.
    indices: np.ndarray


class _Handle:
    """An open shard, the readers that use it now, and whether it should go after them."""

    def __init__(self, shard: OpenShard):
        self.shard = shard
        self.num_users = 0
        self.lock = threading.Lock()


class Reader:
    """Reads records by sample id. Safe to share between threads.

    Args:
      max_open_files: Files that stay open between calls. More are open only while that many
        threads read different files at the same time.
    """

    def __init__(self, *, max_open_files: int = 64):
        if max_open_files < 1:
            raise ValueError(f"max_open_files must be at least 1; got {max_open_files}.")
        self._max_open_files = max_open_files
        self._handles: OrderedDict[tuple[Any, ...], _Handle] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray) -> list[Any]:
        """Returns the records of `sample_ids`, in their order.

        Args:
          datasets_by_id: Dataset of each dataset id.
          sample_ids: int64 (n, 3): dataset id, shard id, place in the shard. Any order, repeats
            allowed.

        Raises:
          ValueError: If a dataset is counts only or unknown, an id is out of range, or a shard
            is cut, corrupted or changed. Names dataset and shard.
          FileNotFoundError: If a shard is gone.
        """
        sample_ids = np.asarray(sample_ids, dtype=np.int64).reshape(-1, 3)
        check_readable(datasets_by_id, sample_ids)
        groups, inverse = _group(sample_ids)
        records: list[Any] = []
        for group in groups:
            records += self._read_group(datasets_by_id[group.dataset_id], group)
        return [records[place] for place in inverse.tolist()]

    def close(self) -> None:
        """Closes the files that nobody is reading."""
        with self._lock:
            for key, handle in list(self._handles.items()):
                if not handle.num_users:
                    self._handles.pop(key).shard.close()

    def _read_group(self, dataset: Dataset, group: _Group) -> Sequence[Any]:
        _check_range(dataset, group)
        try:
            check_unchanged(dataset.shards[group.shard_id])
            with self._opened(dataset, group.shard_id) as handle:
                return handle.shard.read(group.indices)
        except OSError as error:
            raise type(error)(f"{dataset.describe_shard(group.shard_id)}: {error}") from error
        except Exception as error:
            raise ValueError(f"{dataset.describe_shard(group.shard_id)}: {error}.") from error

    @contextmanager
    def _opened(self, dataset: Dataset, shard_id: int) -> Iterator[_Handle]:
        file = dataset.shards[shard_id]
        key = (file, dataset.format, dataset.columns)
        with self._lock:
            handle = self._handles.pop(key, None)
            if handle is None:
                handle = _Handle(_open(dataset, file, int(dataset.shard_counts[shard_id])))
            self._handles[key] = handle  # Last is the most recently used.
            handle.num_users += 1
            self._close_oldest()
        try:
            yield handle
        finally:
            with self._lock:
                handle.num_users -= 1

    def _close_oldest(self) -> None:
        excess = len(self._handles) - self._max_open_files
        idle = [key for key, handle in self._handles.items() if not handle.num_users]
        for key in idle[: max(excess, 0)]:
            self._handles.pop(key).shard.close()


def _open(dataset: Dataset, file: File, num_samples: int) -> OpenShard:
    fmt = get_format(str(dataset.format))
    shard = fmt.open(file.path, index_of(file, fmt), dataset.columns)
    if shard.num_samples != num_samples:
        shard.close()
        raise ValueError(
            f"the shard holds {shard.num_samples} samples, not the {num_samples} it was declared "
            "with. Correct counts=, or build the dataset anew"
        )
    return shard


def check_readable(
    datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray | None = None
) -> None:
    """Refuses datasets that have no data behind them.

    Args:
      datasets_by_id: Dataset of each dataset id.
      sample_ids: int64 (n, 3); only the datasets that occur are checked. None for all.

    Raises:
      ValueError: Naming the dataset.
    """
    ids = datasets_by_id if sample_ids is None else np.unique(sample_ids[:, 0]).tolist()
    for dataset_id in ids:
        if dataset_id not in datasets_by_id:
            raise ValueError(
                f"sample ids name dataset {dataset_id}; known are {sorted(datasets_by_id)}."
            )
        dataset = datasets_by_id[dataset_id]
        if not dataset.readable:
            raise ValueError(
                f"dataset {dataset.name!r} cannot be read: only its counts are known. "
                "Build it with Dataset.from_path to read from it."
            )


def _check_range(dataset: Dataset, group: _Group) -> None:
    if not 0 <= group.shard_id < dataset.num_shards:
        raise ValueError(
            f"dataset {dataset.name!r} has {dataset.num_shards} shards; got shard {group.shard_id}."
        )
    count = int(dataset.shard_counts[group.shard_id])
    for index in (int(group.indices[0]), int(group.indices[-1])):
        if not 0 <= index < count:
            raise ValueError(
                f"{dataset.describe_shard(group.shard_id)} has {count} samples; got index {index}."
            )


def _group(sample_ids: np.ndarray) -> tuple[list[_Group], np.ndarray]:
    """Sorts ids by place, cuts them by shard, and says where each id went."""
    order = np.lexsort((sample_ids[:, 2], sample_ids[:, 1], sample_ids[:, 0]))
    ids = sample_ids[order]
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.arange(len(order))
    cuts = np.flatnonzero(np.any(ids[1:, :2] != ids[:-1, :2], axis=1)) + 1
    groups = [
        _Group(int(part[0, 0]), int(part[0, 1]), np.ascontiguousarray(part[:, 2]))
        for part in np.split(ids, cuts)
        if len(part)
    ]
    return groups, inverse


_default: tuple[int, Reader] | None = None
_default_lock = threading.Lock()


def default_reader() -> Reader:
    """Returns the reader that this process shares. A forked process gets its own."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), Reader())
        return _default[1]


def read(datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray) -> list[Any]:
    """Reads with the reader that this process shares; see `Reader.read`."""
    return default_reader().read(datasets_by_id, sample_ids)
