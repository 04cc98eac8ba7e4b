"""What a lane's pipeline can learn of the lane's chunks: where they end, and who is used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.kernels.keys import digest_words
from zephon_jax.pipelines.lane_dataset import _LaneIterator
from zephon_jax.sources.chunk import WorkChunk

__all__ = ["EXHAUSTED", "FlushIterDataset", "mark_exhausted"]

EXHAUSTED = "exhausted"  # the entry that `mark_exhausted` adds


def _lane_of(iterator: Any, who: str) -> _LaneIterator:
    """The lane's iterator, which must be right beneath: others hold elements of several chunks."""
    lane = iterator.lane if isinstance(iterator, _SegmentIterator) else iterator
    if not isinstance(lane, _LaneIterator):
        raise TypeError(
            f"{who} must stand right behind a lane; got {type(lane).__name__} there. Transform its"
            " elements afterwards."
        )
    return lane


class FlushIterDataset(grain.IterDataset):
    """Runs a pipeline on so many chunks of a lane at a time, and empties it after each lot.

    Whatever the pipeline holds back (rows that a packer fills, a buffer that is shuffled) comes out
    before the lane's next chunks go in, as it does at the end of the data. So a restore never
    replays more than these chunks. The price is rows that are padded, one packer's worth for each
    lot.

    Args:
      lane: A lane, as an elastic pipeline gets it. No prefetching between the two.
      pipeline: Takes a dataset of the lane's elements and returns a `grain.IterDataset`. Random
        transformations in it are seeded anew for each lot. Batch behind the flush, not in it.
      num_chunks: Chunks of the lane in each lot.

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(10)))
      >>> source = zx.StaticMixtureWorkSource(
      ...     [numbers], {"numbers": 1}, chunk_size=5, shuffle_shards=False)
      >>> lane = zx.LaneIterDataset(source)
      >>> pairs = zx.FlushIterDataset(lane, lambda lane: lane.map(lambda e: e["data"]).batch(4), 1)
      >>> [batch.tolist() for batch in pairs]
      [[0, 1, 2, 3], [4], [5, 6, 7, 8], [9]]
    """

    def __init__(
        self, lane: grain.IterDataset, pipeline: Callable[[Any], Any], num_chunks: int = 8
    ):
        super().__init__(lane)
        if not isinstance(lane, grain.IterDataset):
            raise TypeError(f"lane must be a grain.IterDataset; got {type(lane).__name__}.")
        self.lane, self.pipeline = lane, pipeline
        self.num_chunks = as_int(num_chunks, "num_chunks", 1)

    def __iter__(self) -> _FlushIterator:
        return _FlushIterator(self)

    def __str__(self) -> str:
        return f"FlushIterDataset(num_chunks={self.num_chunks})"


class _FlushIterator(grain.DatasetIterator):
    """Opens the pipeline anew for each lot; its place is the lot and the pipeline's own place."""

    def __init__(self, dataset: FlushIterDataset):
        self._dataset, parent = dataset, iter(dataset.lane)
        super().__init__(parent)
        self._lane = _lane_of(parent, "FlushIterDataset")
        self._open(0)

    def _open(self, lot: int) -> None:
        self._lot = lot
        self._lane.limit = (lot + 1) * self._dataset.num_chunks
        lane = self._lane.dataset
        low, high = digest_words(2, lane.source.seed or 0, "lot", lane.lane, lot).tolist()
        segment = _Segment(self._parents[0], self._lane)
        pipeline = self._dataset.pipeline(segment.seed(low | high << 32))
        if not isinstance(pipeline, grain.IterDataset):
            raise TypeError(
                f"pipeline(lane) must return a grain.IterDataset; got {type(pipeline).__name__}."
            )
        self._pipeline = iter(pipeline)

    def __next__(self) -> Any:
        self._assert_not_closed()
        while True:
            try:
                return next(self._pipeline)
            except StopIteration:
                block = self._lane.next_block()
                if block is None:
                    raise
            self._pipeline.close()
            self._open(block // self._dataset.num_chunks)

    def get_state(self) -> dict[str, Any]:
        return {"lot": self._lot, "pipeline": self._pipeline.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        lot, before = as_int(state["lot"], "lot", 0), self.get_state()
        try:
            self._go_to(lot, state["pipeline"])
        except BaseException:
            self._go_to(before["lot"], before["pipeline"])
            raise

    def _go_to(self, lot: int, place: Any) -> None:
        self._pipeline.close()
        self._open(lot)
        self._pipeline.set_state(place)

    def close(self) -> None:
        """Closes the pipeline, then the lane."""
        if not self._closed and hasattr(self, "_pipeline"):
            self._pipeline.close()
        super().close()

    def __str__(self) -> str:
        return f"FlushIterator({self._dataset})"


class _Segment(grain.IterDataset):
    """The elements of a lane's iterator up to its limit, as the source of another pipeline."""

    def __init__(self, iterator: grain.DatasetIterator, lane: _LaneIterator):
        super().__init__()
        self._iterator, self._lane = iterator, lane

    def __iter__(self) -> _SegmentIterator:
        return _SegmentIterator(self._iterator, self._lane)


class _SegmentIterator(grain.DatasetIterator):
    """Hands on; closing it leaves the lane open for the next lot."""

    def __init__(self, iterator: grain.DatasetIterator, lane: _LaneIterator):
        super().__init__()
        self._iterator, self.lane = iterator, lane

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        return self._iterator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(state)


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
      >>> stamped = mark_exhausted(zx.LaneIterDataset(source))
      >>> [(element["data"], element["exhausted"].tolist()) for element in stamped][2:6]
      [('a', []), ('b', []), ('b', [0]), ('b', [0])]
    """
    return _Stamped(lane)


class _Stamped(grain.IterDataset):
    def __init__(self, lane: grain.IterDataset):
        super().__init__(lane)
        self._behind = lane

    def __iter__(self) -> _StampIterator:
        return _StampIterator(iter(self._behind))

    def __str__(self) -> str:
        return "mark_exhausted"


class _StampIterator(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator):
        super().__init__(parent)
        self._lane = _lane_of(parent, "mark_exhausted")
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

    def get_state(self) -> dict[str, Any]:
        return self._parents[0].get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._parents[0].set_state(state)
