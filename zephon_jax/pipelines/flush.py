"""Empties a lane's pipeline at the ends of chunks, so that a restore replays few of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grain

from zephon_jax._arrays import as_int
from zephon_jax.kernels.keys import digest_words
from zephon_jax.pipelines.lane_dataset import LaneIterator
from zephon_jax.pipelines.padding import padding_of

__all__ = ["FlushIterDataset", "lane_iterator"]


def lane_iterator(iterator: grain.DatasetIterator, transform: str) -> LaneIterator:
    """Returns the lane's iterator that a transform reads from.

    Args:
      iterator: The iterator right beneath: the lane's own, or one lot of it in a flush.
      transform: Name of the transform, for errors.

    Raises:
      TypeError: If it is another one, which may hold elements of several chunks.
    """
    lane = iterator.lane if isinstance(iterator, _LotIterator) else iterator
    if not isinstance(lane, LaneIterator):
        raise TypeError(
            f"{transform} must stand right behind a lane; got {type(lane).__name__} there."
            " Transform its elements afterwards."
        )
    return lane


class FlushIterDataset(grain.IterDataset):
    """Runs a pipeline on a few chunks of a lane at a time, and empties it after each lot of them.

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

    __module__ = "zephon_jax"

    def __init__(
        self,
        lane: grain.IterDataset,
        pipeline: Callable[[grain.IterDataset], grain.IterDataset],
        num_chunks: int = 8,
    ):
        super().__init__(lane)
        if not isinstance(lane, grain.IterDataset):
            raise TypeError(f"lane must be a grain.IterDataset; got {type(lane).__name__}.")
        self.lane, self.pipeline = lane, pipeline
        self.num_chunks = as_int(num_chunks, "num_chunks", 1)

    @property
    def padding(self) -> Mapping[str, int]:
        """What the columns of the pipeline's rows hold where they are padded."""
        return padding_of(self.pipeline(self.lane))

    def __iter__(self) -> _FlushIterator:
        return _FlushIterator(self)

    def __str__(self) -> str:
        return f"FlushIterDataset(num_chunks={self.num_chunks})"


class _FlushIterator(grain.DatasetIterator):
    """Opens the pipeline anew for each lot; its place is the lot and the pipeline's own place."""

    def __init__(self, dataset: FlushIterDataset):
        self._dataset, parent = dataset, iter(dataset.lane)
        super().__init__(parent)
        self._lane = lane_iterator(parent, "FlushIterDataset")
        self._open(0)

    def _open(self, lot: int) -> None:
        self._lot = lot
        self._lane.limit = (lot + 1) * self._dataset.num_chunks
        lane = self._lane.dataset
        low, high = digest_words(2, lane.source.seed or 0, "lot", lane.lane, lot).tolist()
        elements = _Lot(self._parents[0], self._lane)
        pipeline = self._dataset.pipeline(elements.seed(low | high << 32))
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

    def get_state(self) -> dict[str, object]:
        return {"lot": self._lot, "pipeline": self._pipeline.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        lot = as_int(state["lot"], "lot", 0)
        before = self._lot, self._pipeline.get_state()
        try:
            self._go_to(lot, state["pipeline"])
        except BaseException:
            self._go_to(*before)
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


class _Lot(grain.IterDataset):
    """The elements of a lane's iterator up to its limit, as the source of another pipeline."""

    def __init__(self, iterator: grain.DatasetIterator, lane: LaneIterator):
        super().__init__()
        self._iterator, self._lane = iterator, lane

    def __iter__(self) -> _LotIterator:
        return _LotIterator(self._iterator, self._lane)


class _LotIterator(grain.DatasetIterator):
    """Hands on; closing it leaves the lane open for the next lot."""

    def __init__(self, iterator: grain.DatasetIterator, lane: LaneIterator):
        super().__init__()
        self._iterator, self.lane = iterator, lane

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> dict[str, object]:
        return self._iterator.get_state()

    def set_state(self, state: dict[str, object]) -> None:
        self._iterator.set_state(state)
