"""Sample ids by shard, in the order of the files, and the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["IdGroup", "as_ids", "group_ids"]


class IdGroup(NamedTuple):
    """The samples of one shard in a call, in file order."""

    dataset_id: int
    shard_id: int
    # Place in the shard, int64 (n,), sorted.
    indices: np.ndarray


def as_ids(sample_ids: Any) -> np.ndarray:
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
