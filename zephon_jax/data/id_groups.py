"""Sample ids by shard, in the order of the files, and checks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.data.dataset import Dataset

__all__ = ["IdGroup", "as_ids", "check_range", "check_readable", "group_ids", "put_back"]


class IdGroup(NamedTuple):
    """The samples of one shard in a call, in file order."""

    dataset_id: int
    shard_id: int
    # Place in the shard, int64 (n,), sorted.
    indices: np.ndarray


def as_ids(sample_ids: object) -> np.ndarray:
    """Returns sample ids as int64 (n, 3)."""
    return np.asarray(sample_ids, dtype=np.int64).reshape(-1, 3)


def group_ids(sample_ids: np.ndarray) -> tuple[list[IdGroup], np.ndarray | None]:
    """Sorts ids by place, cuts them by shard, and says where each id went.

    Args:
      sample_ids: int64 (n, 3).

    Returns:
      The groups, and the place of each id among all of theirs, int64 (n,); None if none moved.

    Example:
      >>> groups, place = group_ids(as_ids([(0, 1, 5), (0, 0, 7), (0, 1, 2)]))
      >>> [(group.shard_id, group.indices.tolist()) for group in groups], place.tolist()
      ([(0, [7]), (1, [2, 5])], [2, 0, 1])
    """
    order = np.lexsort((sample_ids[:, 2], sample_ids[:, 1], sample_ids[:, 0]))
    places = np.arange(len(order))
    ids, inverse = sample_ids, None
    if not np.array_equal(order, places):
        ids, inverse = sample_ids[order], np.empty_like(places)
        inverse[order] = places
    cuts = np.flatnonzero(np.any(ids[1:, :2] != ids[:-1, :2], axis=1)) + 1
    groups = [
        IdGroup(int(part[0, 0]), int(part[0, 1]), np.ascontiguousarray(part[:, 2]))
        for part in np.split(ids, cuts)
        if len(part)
    ]
    return groups, inverse


def put_back(found: Sequence[object], order: np.ndarray) -> list[object]:
    """Returns records that were read in sorted order at the places of their ids."""
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return [found[place] for place in inverse.tolist()]


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


def check_range(dataset: Dataset, group: IdGroup) -> None:
    """Refuses places that a dataset does not have.

    Raises:
      ValueError: Naming the dataset, and the shard where there is such a one.
    """
    if not 0 <= group.shard_id < len(dataset.shard_counts):
        raise ValueError(
            f"dataset {dataset.name!r} has {dataset.num_shards} shards; got shard {group.shard_id}."
        )
    count = int(dataset.shard_counts[group.shard_id])
    for index in (int(group.indices[0]), int(group.indices[-1])):
        if not 0 <= index < count:
            raise ValueError(
                f"{dataset.describe_shard(group.shard_id)} has {count} samples; got index {index}."
            )
