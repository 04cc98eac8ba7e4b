"""What a lane's windows will need, planned before they are read: shards and decoded blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np

from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import Reader
from zephon_jax.pipelines.lane_group import LaneWindow

__all__ = ["distinct_shards", "planned_windows"]

_WINDOWS_ADDED = 3  # windows looked ahead with each: the first batch does not wait for all of them


def planned_windows(
    reader: Reader, datasets_by_id: Mapping[int, Dataset], windows: Iterator[LaneWindow]
) -> Iterator[LaneWindow]:
    """Windows whose decoded blocks are planned some windows ahead."""
    plan = decoded_blocks().plan()
    waiting: deque[LaneWindow] = deque()
    error: BaseException | None = None
    more = True
    try:
        while more or waiting:
            for _ in range(_WINDOWS_ADDED):
                if not more or not plan.wants_more():
                    break
                try:
                    window = next(windows, None)
                except Exception as found:  # It is raised when its window's turn has come.
                    window, error = None, found
                more = window is not None
                if window is not None:
                    waiting.append(window)
                    uses = reader.block_uses(datasets_by_id, window.sample_ids)
                    plan.add(len(window.sample_ids), uses)
            if waiting:
                plan.begin()
                yield waiting.popleft()
        if error is not None:
            raise error
    finally:
        plan.close()


def distinct_shards(ids: np.ndarray) -> np.ndarray:
    """Dataset and shard of samples, each pair once, in order of first use: int64 (n, 2)."""
    _, first = np.unique(ids[:, 0] << 40 | ids[:, 1], return_index=True)
    return ids[np.sort(first), :2]
