"""A part of a combined source: a stretch of another source's chunks, gone through as one lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from zephon_jax.sources.checks import State, draw
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.chunk_spans import ChunkSpan
from zephon_jax.sources.work_source import WorkSource

__all__ = ["FAR", "Cursor", "Part", "clipped"]

FAR = 1 << 62  # chunks of a part that never ends


class Cursor(NamedTuple):
    """How far a part has been gone through."""

    place: int  # chunks of its source before the state
    state: Any  # a state of the source as one lane


class Part:
    """Chunks `skip` to `skip + limit` of a source, numbered from 0.

    Immutable but for its number of chunks, which is remembered once it is known.

    Fields:
      seeks: Whether its source goes to any chunk at once.

    Args:
      source: Any source.
      skip: Chunks that are left out at its beginning.
      limit: Chunks at most; FAR for all.
    """

    def __init__(self, source: WorkSource[Any], skip: int = 0, limit: int = FAR):
        self.source, self.skip, self.limit = source, skip, limit
        # What replays is gone on with from where one stands: that is shorter.
        replays = type(source).seek is WorkSource.seek  # pyright: ignore[reportUnknownMemberType]
        self.seeks = bool(getattr(source, "seeks_at_once", not replays))
        self._total = _total_of(source)
        self._told = self._total is not None  # by the source, not found out

    @property
    def num_chunks(self) -> int | None:
        """Chunks of the part, FAR where it never ends, None where that is not known yet."""
        if self._total is None:
            return None
        if self._total == FAR:
            return self.limit
        return max(0, min(self._total - self.skip, self.limit))

    def start(self) -> Cursor:
        """Before the source's first chunk."""
        return Cursor(0, self.source.init())

    def holds(self, cursor: Cursor, number: int) -> tuple[bool, Cursor]:
        """Whether the part has a chunk, and a cursor that has come nearer to it.

        Where the source does not say how long it is, the cursor is moved whether or not the end has
        been met before: a state must not tell what a process remembers.
        """
        if number >= self.limit:
            return False, cursor
        if self._told and self._total is not None:
            return self.skip + number < self._total, cursor
        if cursor.place > self.skip + number:
            return True, cursor
        chunk, cursor, _ = self._go(cursor, self.skip + number)
        return chunk is not None, cursor

    def chunk(self, cursor: Cursor, number: int) -> tuple[WorkChunk | None, Cursor]:
        """A chunk of the part and the cursor after it; None past its end."""
        if number >= self.limit:
            return None, cursor
        chunk, cursor, after = self._go(cursor, self.skip + number)
        if chunk is None:
            return None, cursor
        if chunk.chunk_index not in (None, cursor.place):
            raise ValueError(
                f"{type(self.source).__name__} numbers its chunks {chunk.chunk_index} where chunk"
                f" {cursor.place} comes: a source that is combined numbers them 0, 1, 2 ... without"
                " gaps."
            )
        return chunk, Cursor(cursor.place + 1, after)

    def _go(self, cursor: Cursor, wanted: int) -> tuple[WorkChunk | None, Cursor, object]:
        """The source's chunk with a number, the cursor before it, and the state after it."""
        if cursor.place > wanted:
            cursor = self.start()
        if self.seeks and cursor.place != wanted:
            found = self._drawn_at(wanted)
            if found[0] is not None:
                return found
            if self._total is None:  # the end lies between the cursor and here
                low, high = cursor.place, wanted
                while low < high:
                    middle = (low + high) // 2
                    whole = self._drawn_at(middle)[0] is not None
                    low, high = (middle + 1, high) if whole else (low, middle)
                self._total = low
            return None, cursor, cursor.state
        while True:
            chunk, after = draw(self.source, cursor.state)
            if chunk is None:
                self._total = cursor.place if self._total is None else self._total
                return None, cursor, cursor.state
            if cursor.place == wanted:
                return chunk, cursor, after
            cursor = Cursor(cursor.place + 1, after)

    def _drawn_at(self, wanted: int) -> tuple[WorkChunk | None, Cursor, object]:
        state = self.source.seek(wanted)
        chunk, after = draw(self.source, state)
        return chunk, Cursor(wanted, state), after

    def spans(self) -> tuple[ChunkSpan, ...] | None:
        """The part's chunks as its source says them, numbered from 0; None where it does not."""
        spans, size = self.source.chunk_spans(), self.source.chunk_size_hint()
        if spans is None or size is None:
            return None
        end = None if self.limit >= FAR else self.skip + self.limit
        cut = [clipped(span, size, self.skip, end) for span in spans]
        return tuple(
            span._replace(first_chunk=span.first_chunk - self.skip)
            for span in cut
            if span.num_chunks != 0
        )

    def short_chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """The chunks that are not whole: number in the part, and samples that it lacks."""
        for span in self.spans() or ():
            if span.num_chunks is not None and span.num_samples is not None:
                missing = span.num_chunks * size - span.num_samples
                if missing:
                    yield span.first_chunk + span.num_chunks - 1, missing


def _total_of(source: WorkSource[State]) -> int | None:
    """Chunks of a source, FAR where it never ends, None where it does not say."""
    spans = source.chunk_spans()
    if not spans:
        return None
    last = spans[-1]
    return FAR if last.num_chunks is None else last.first_chunk + last.num_chunks


def clipped(span: ChunkSpan, size: int, begin: int, end: int | None) -> ChunkSpan:
    """The part of a span from one chunk to another; only a span's last chunk may be short.

    Args:
      span: Consecutive chunks.
      size: Samples in a whole chunk.
      begin: The first chunk that is kept.
      end: The first chunk after these that is not kept; None for all.
    """
    first = max(span.first_chunk, begin)
    stop = None if span.num_chunks is None else span.first_chunk + span.num_chunks
    if end is not None and (stop is None or end < stop):
        first = min(first, end)
        return ChunkSpan(first, end - first, (end - first) * size)
    if stop is None or span.num_samples is None:
        return ChunkSpan(first, None, None)
    if first >= stop:
        return ChunkSpan(first, 0, 0)
    return ChunkSpan(first, stop - first, span.num_samples - (first - span.first_chunk) * size)
