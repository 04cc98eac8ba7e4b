"""Tells a lane's pipeline which components of the mixture have no samples left."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np

from zephon_jax.pipelines.flush import lane_iterator
from zephon_jax.sources.chunk import WorkChunk

__all__ = ["EXHAUSTED", "mark_exhausted"]

EXHAUSTED = "exhausted"  # the entry that `mark_exhausted` adds


def mark_exhausted(lane: grain.IterDataset) -> grain.IterDataset:
    """Adds to each element of a lane which components are exhausted, so that none waits for them.

    Args:
      lane: A lane, as an elastic pipeline gets it. No prefetching between the two.

    Returns:
      The elements with the entry "exhausted", int32 (n,): the ids of the components of which no
      sample is in the element's chunk or any later one. Keep it in what your functions return;
      `EnsureMixtureIterDataset` takes it out. Batches need it out before: its length n differs.

    Example:
      >>> import zephon_jax as zx
      >>> data = [zx.Dataset.from_source(name, list(name * n)) for name, n in (("a", 2), ("b", 6))]
      >>> source = zx.StaticMixtureWorkSource(
      ...     data, {"a": 1, "b": 1}, chunk_size=2, exhausted_policy="redistribute")
      >>> marked = mark_exhausted(zx.LaneIterDataset(source))
      >>> [(element["data"], element["exhausted"].tolist()) for element in marked][2:6]
      [('a', []), ('b', []), ('b', [0]), ('b', [0])]
    """
    return _MarkExhausted(lane)


class _MarkExhausted(grain.IterDataset):
    def __init__(self, lane: grain.IterDataset):
        super().__init__(lane)
        self._behind = lane

    def __iter__(self) -> _MarkIterator:
        return _MarkIterator(iter(self._behind))

    def __str__(self) -> str:
        return "mark_exhausted"


class _MarkIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator):
        super().__init__(parent)
        self._lane = lane_iterator(parent, "mark_exhausted")
        self._ids = dict(self._lane.dataset.source.component_ids())
        self._last: tuple[WorkChunk | None, np.ndarray] = None, np.zeros(0, np.int32)

    def __next__(self) -> dict[str, Any]:
        element = next(self._parents[0])
        chunk = self._lane.chunk
        assert chunk is not None
        if chunk is not self._last[0]:
            self._last = chunk, self._gone(chunk)
        return {**element, EXHAUSTED: self._last[1]}

    def _gone(self, chunk: WorkChunk) -> np.ndarray:
        """Ids of the components that have ended, and not in this chunk: int32, read-only."""
        here = {name for name, n in zip(chunk.names, chunk.counts.tolist(), strict=True) if n}
        gone = [self._ids[name] for name in chunk.source_exhausted if name not in here]
        ids = np.asarray(sorted(gone), dtype=np.int32)
        ids.setflags(write=False)
        return ids

    def get_state(self) -> dict[str, object]:
        return self._parents[0].get_state()

    def set_state(self, state: dict[str, object]) -> None:
        self._parents[0].set_state(state)
