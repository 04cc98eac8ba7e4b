"""How many samples each lane of a source gives, worked out without drawing them.

In a run that ends, all chunks are whole but the last ones before a component leaves. What follows
from that (steps of a run, the lane a sample is in) every host computes for itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from zephon_jax._warn import warn
from zephon_jax.sources.checks import draw, first_state, first_states
from zephon_jax.sources.chunk_spans import ChunkSpan
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["ENDLESS", "check_even", "lane_lengths", "number_of_sample", "seek_sample"]

ENDLESS = 1 << 62  # samples of a lane that never ends
_TOLERATED = 1e-3  # share of the samples that may are dropped without a warning
_SUGGESTIONS = 8  # each is tried out, and that takes a while


def _short_chunks(spans: tuple[ChunkSpan, ...], size: int) -> Iterator[tuple[int, int]]:
    """Chunks that are not whole: (chunk index, samples it lacks)."""
    for span in spans:
        if span.num_chunks and span.num_samples is not None:
            missing = span.num_chunks * size - span.num_samples
            if missing:
                yield span.first_chunk + span.num_chunks - 1, missing


def _known_spans(source: WorkSource, num_lanes: int) -> tuple[ChunkSpan, ...] | None:
    """The source's chunks, where it says them and how lanes share them."""
    spans = source.chunk_spans() if source.chunk_size_hint() is not None else None
    if not spans or source.lanes_of_chunks(np.asarray([spans[0].first_chunk]), num_lanes) is None:
        return None
    return spans


def _owner(source: WorkSource, chunk_index: int, num_lanes: int) -> int:
    found = source.lanes_of_chunks(np.asarray([chunk_index]), num_lanes)
    assert found is not None
    return int(found[0])


def _lengths_of(source: WorkSource, num_lanes: int, spans: tuple[ChunkSpan, ...]) -> np.ndarray:
    size, last = source.chunk_size_hint(), spans[-1]
    assert size is not None
    if last.num_chunks is None:
        return np.full(num_lanes, ENDLESS, dtype=np.int64)
    begin, end = spans[0].first_chunk, last.first_chunk + last.num_chunks
    blocks, rest = divmod(end - begin, num_lanes)
    found = np.full(num_lanes, blocks * size, dtype=np.int64)
    if rest:
        found[source.lanes_of_chunks(np.arange(end - rest, end), num_lanes)] += size
    for chunk_index, missing in _short_chunks(spans, size):
        found[_owner(source, chunk_index, num_lanes)] -= missing
    return found


def lane_lengths(source: WorkSource, num_lanes: int) -> np.ndarray:
    """Returns the samples of each lane: int64 (num_lanes,), ENDLESS where they never end.

    Raises:
      ValueError: If the source does not say how large its chunks are, or has no length.
    """
    if source.chunk_size_hint() is None:
        raise ValueError(
            f"the steps of a run follow from chunks of one size, and {type(source).__name__} gives"
            " no chunk_size_hint(). Use rows_per_sample=None."
        )
    spans = _known_spans(source, num_lanes)
    if spans is not None:
        return _lengths_of(source, num_lanes, spans)
    try:
        len(source)
    except TypeError:
        return np.full(num_lanes, ENDLESS, dtype=np.int64)
    except NotImplementedError as error:
        raise ValueError(
            f"the steps of a run cannot be known: {error} Use rows_per_sample=None."
        ) from None
    found = np.zeros(num_lanes, dtype=np.int64)
    for step in walk(source, first_states(source, num_lanes)):
        found[step.lane] += len(step.chunk)
    return found


def seek_sample(source: WorkSource, lane: int, num_lanes: int, index: int) -> tuple[Any, int]:
    """Where a lane's sample number `index` is: the state before its chunk, and the slot in it.

    Past the end it is a place after the lane's last sample. A source that does not say where its
    chunks are is replayed.
    """
    spans = _known_spans(source, num_lanes)
    if spans is None:
        state = first_state(source, lane, num_lanes)
        for step in walk(source, [state]):
            if index < len(step.chunk):
                return step.before, index
            state, index = step.after, index - len(step.chunk)
        return state, index
    size, begin = source.chunk_size_hint(), spans[0].first_chunk
    assert size is not None
    for chunk_index, missing in _short_chunks(spans, size):
        whole = (chunk_index - begin) // num_lanes + 1  # chunks of the lane, this one included
        if index >= whole * size - missing and _owner(source, chunk_index, num_lanes) == lane:
            index += missing
    step, slot = divmod(index, size)
    return source.seek(begin + step * num_lanes, lane, num_lanes), slot


def number_of_sample(
    source: WorkSource, lane: int, num_lanes: int, state: Any, slot: int
) -> int | None:
    """How many samples of the lane come before a slot of the chunk after a state.

    Returns:
      The number, or None where the source does not say where its chunks are.
    """
    spans = _known_spans(source, num_lanes)
    if spans is None:
        return None
    chunk, _ = draw(source, state)
    if chunk is None:
        return int(_lengths_of(source, num_lanes, spans)[lane])
    size, begin = source.chunk_size_hint(), spans[0].first_chunk
    assert size is not None
    assert chunk.chunk_index is not None
    number = (chunk.chunk_index - begin) // num_lanes * size + slot
    for chunk_index, missing in _short_chunks(spans, size):
        if chunk_index < chunk.chunk_index and _owner(source, chunk_index, num_lanes) == lane:
            number -= missing
    return number


def check_even(source: WorkSource, num_lanes: int, lengths: np.ndarray, rows: int) -> None:
    """Says what is dropped when all lanes end with the shortest.

    Args:
      source: The source.
      num_lanes: Number of lanes.
      lengths: Samples of each lane.
      rows: Samples that a step takes from each lane.

    Raises:
      ValueError: If a lane gets nothing at all.
    """
    if int(lengths.min()) == ENDLESS:
        return
    if not lengths.min():
        empty = np.flatnonzero(lengths == 0).tolist()
        raise ValueError(
            f"lanes {empty[:8]} of {num_lanes} get no chunk: there are too few chunks of"
            f" {source.chunk_size_hint()} samples.{_advice(source, num_lanes, rows)}"
        )
    total, lost = _lost(lengths, rows)
    if lost > _TOLERATED * total:
        warn(
            f"{lost} of {total} samples ({lost / total:.2%}) are dropped, because all lanes"
            f" end with the shortest.{_advice(source, num_lanes, rows)} pad=True delivers all."
        )


def _lost(lengths: np.ndarray, rows: int) -> tuple[int, int]:
    total = int(lengths.sum())
    return total, total - int(lengths.min()) // rows * rows * len(lengths)


def _advice(source: WorkSource, num_lanes: int, rows: int) -> str:
    """A chunk size that leaves next to nothing dropped, tried out; nothing where none is."""
    size = source.chunk_size_hint()
    if size is None or not source.supports_indexing():
        return " Use smaller chunks."
    total = len(source)
    blocks = max(1, total // (num_lanes * size))
    for n in range(blocks, blocks + _SUGGESTIONS):
        for candidate in {-(-total // (num_lanes * n)), total // (num_lanes * n)}:
            candidate = candidate // rows * rows
            if not 0 < candidate < size:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    other = source.with_chunk_size(candidate)
            except ValueError:
                continue
            if other is None:
                return " Use smaller chunks."
            lengths = lane_lengths(other, num_lanes)
            if lengths.min() and _lost(lengths, rows)[1] <= _TOLERATED * lengths.sum():
                return f" chunk_size = {candidate} avoids it."
    return " Use smaller chunks or fewer lanes."
