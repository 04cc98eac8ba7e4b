"""Sources that are a part of another one: the base of such sources, and the part before a chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.sources.checks import ShardedDataset, State, draw
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.chunk_spans import ChunkSpan
from zephon_jax.sources.codec import Plain
from zephon_jax.sources.part_cursor import clipped
from zephon_jax.sources.work_source import WorkSource

__all__ = ["SourcePart", "StoppedSource"]


class SourcePart(WorkSource[State]):
    """A source that is another one but for where it begins or ends."""

    def __init__(self, source: WorkSource[State]):
        self.source = source
        self.seed, self.unit, self.begin = source.seed, source.unit, source.begin

    @property
    def uncut(self) -> WorkSource[State]:
        """The whole source of which this is a part."""
        return self.source.uncut

    @property
    def changes(self) -> Sequence[Sequence[object]]:
        """The source's changes."""
        return self.source.changes

    def init(self, lane: int = 0, num_lanes: int = 1) -> State:
        """The source's own first state."""
        return self.source.init(lane, num_lanes)

    def next_chunk(self, state: State) -> tuple[WorkChunk | None, State]:
        """The source's own next chunk."""
        return self.source.next_chunk(state)

    def component_ids(self) -> Mapping[str, int]:
        """The source's component ids."""
        return self.source.component_ids()

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The source's datasets."""
        return self.source.datasets_by_id

    def chunk_size_hint(self) -> int | None:
        """Samples in a whole chunk."""
        return self.source.chunk_size_hint()

    def origin_of(self, state: State) -> int:
        """The chunk from which on there are as many lanes as now."""
        return self.source.origin_of(state)

    def seek(
        self, chunk_index: int, lane: int = 0, num_lanes: int = 1, *, origin: int = 0
    ) -> State:
        """The source's own state at a chunk."""
        return self.source.seek(chunk_index, lane, num_lanes, origin=origin)

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, *, origin: int = 0
    ) -> np.ndarray | None:
        """The lane of each chunk."""
        return self.source.lanes_of_chunks(chunk_index, num_lanes, origin=origin)

    def chunk_spans(self) -> tuple[ChunkSpan, ...] | None:
        """The source's chunks that are delivered."""
        spans, size = self.source.chunk_spans(), self.chunk_size_hint()
        if spans is None or size is None:
            return None
        return tuple(clipped(span, size, self.begin, self.end) for span in spans)

    def check_encoded(self, fields: list[Plain]) -> None:
        """Checks that an encoded state belongs to the source."""
        self.source.check_encoded(fields)

    def check_state(self, state: State) -> None:
        """Checks that a state belongs to the source."""
        self.source.check_state(state)

    def check_slot(self, data: bytes, slot: int) -> None:
        """Checks that a lane may go on inside a chunk."""
        self.source.check_slot(data, slot)


class StoppedSource(SourcePart[State]):
    """A source that ends before a chunk, so that its lanes end at a common block boundary.

    Args:
      source: Any source that numbers its chunks.
      chunk_index: The first chunk that is not delivered.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [80])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> stopped = StoppedSource(source, 3)
      >>> chunk, state = stopped.next_chunk(stopped.seek(2))
      >>> chunk.chunk_index, stopped.next_chunk(state)[0]
      (2, None)
    """

    def __init__(self, source: WorkSource[State], chunk_index: int):
        super().__init__(source)
        self._stop = self.end = as_int(chunk_index, "chunk_index", self.begin)

    def next_chunk(self, state: State) -> tuple[WorkChunk | None, State]:
        """The lane's next chunk, or None from the end on."""
        chunk, after = draw(self.source, state)
        if chunk is None or (chunk.chunk_index is not None and chunk.chunk_index >= self._stop):
            return None, state
        return chunk, after
