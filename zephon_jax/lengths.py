"""How many samples each lane of a source gives, worked out without drawing them.

In a run that ends, all chunks are whole but the last ones before a component leaves. What follows
from that (steps of a run, the lane a sample is in) every host computes for itself.
"""

from __future__ import annotations

import functools
import warnings
from typing import NamedTuple

import numpy as np

from zephon_jax import lanes
from zephon_jax.source import WorkSource
from zephon_jax.static_mixture import StaticMixtureWorkSource

__all__ = ["ENDLESS", "check_even", "lane_lengths", "place_in_lane"]

ENDLESS = 1 << 62  # samples of a lane that never ends
_TOLERATED = 1e-3  # share of the samples that may stay undelivered without a warning
_SUGGESTIONS = 8  # each is tried out, and that takes a while


class _Chunks(NamedTuple):
    """The chunks of a run."""

    size: int  # samples in a whole chunk
    num_chunks: int  # ENDLESS where the run does not end
    short: tuple[tuple[int, int], ...]  # (chunk index, samples it lacks)


@functools.lru_cache(maxsize=8)
def _chunks(source: StaticMixtureWorkSource) -> _Chunks:
    size, eras, short = source.chunk_size_hint(), source._eras, []
    eras.span_of_sample(ENDLESS - 1)  # works out all eras
    for span in eras._spans:
        if span.num_samples >= ENDLESS:
            return _Chunks(size, ENDLESS, tuple(short))
        missing = span.num_chunks * size - span.num_samples
        if missing:
            short.append((span.start.chunk_index + span.num_chunks - 1, missing))
    last = eras._spans[-1]
    return _Chunks(size, last.start.chunk_index + last.num_chunks, tuple(short))


def _lane_of(source: StaticMixtureWorkSource, chunk: np.ndarray, num_lanes: int) -> np.ndarray:
    knobs = source._knobs
    return lanes.lane_of_chunk(chunk, num_lanes, knobs.seed, knobs.lane_assignment)


def _walk(source: WorkSource, num_lanes: int) -> np.ndarray:
    """Goes through all chunks of a source that is known to end."""
    found = np.zeros(num_lanes, dtype=np.int64)
    for lane in range(num_lanes):
        state = source.init(lane, num_lanes)
        while True:
            chunk, state = source.next_chunk(state)
            if chunk is None:
                break
            found[lane] += len(chunk)
    return found


def lane_lengths(source: WorkSource, num_lanes: int) -> np.ndarray:
    """Returns the samples of each lane: int64 (num_lanes,), ENDLESS where they never end.

    Raises:
      ValueError: If the source does not say how large its chunks are, or has no length.
    """
    if source.chunk_size_hint() is None:
        raise ValueError(
            f"the steps of a run follow from chunks of one size, and {type(source).__name__} gives"
            " no chunk_size_hint(). Use lengths='unknown'."
        )
    if isinstance(source, StaticMixtureWorkSource):
        chunks = _chunks(source)
        if chunks.num_chunks == ENDLESS:
            return np.full(num_lanes, ENDLESS, dtype=np.int64)
        blocks, rest = divmod(chunks.num_chunks, num_lanes)
        found = np.full(num_lanes, blocks * chunks.size, dtype=np.int64)
        last = np.arange(chunks.num_chunks - rest, chunks.num_chunks)
        if rest:
            found[_lane_of(source, last, num_lanes)] += chunks.size
        for chunk, missing in chunks.short:
            found[_lane_of(source, np.asarray([chunk]), num_lanes)] -= missing
        return found
    try:
        len(source)
    except TypeError:
        return np.full(num_lanes, ENDLESS, dtype=np.int64)
    except NotImplementedError as error:
        raise ValueError(
            f"the steps of a run cannot be known: {error} Use lengths='unknown'."
        ) from None
    return _walk(source, num_lanes)


def place_in_lane(source: WorkSource, lane: int, num_lanes: int, index: int) -> tuple[int, int]:
    """Where a lane's sample number `index` is: (the lane's chunk, counted by lane; the slot in it).

    Past the end it is the place after the lane's last sample.

    Raises:
      ValueError: If the source does not say how large its chunks are.
    """
    size = source.chunk_size_hint()
    if size is None:
        raise ValueError(f"{type(source).__name__} gives no chunk_size_hint(): it cannot be sought")
    short: tuple[tuple[int, int], ...] = ()
    if isinstance(source, StaticMixtureWorkSource):
        short = _chunks(source).short
    for chunk, missing in short:
        owner = int(_lane_of(source, np.asarray([chunk]), num_lanes)[0])  # type: ignore[arg-type]
        if owner == lane and index >= (chunk // num_lanes + 1) * size - missing:
            index += missing
    return divmod(index, size)


def check_even(source: WorkSource, num_lanes: int, lengths: np.ndarray, rows: int) -> None:
    """Says what stays undelivered when all lanes end with the shortest.

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
        warnings.warn(
            f"{lost} of {total} samples ({lost / total:.2%}) stay undelivered, because all lanes"
            f" end with the shortest.{_advice(source, num_lanes, rows)} pad=True delivers all.",
            stacklevel=4,
        )


def _lost(lengths: np.ndarray, rows: int) -> tuple[int, int]:
    total = int(lengths.sum())
    return total, total - int(lengths.min()) // rows * rows * len(lengths)


def _advice(source: WorkSource, num_lanes: int, rows: int) -> str:
    """A chunk size that leaves next to nothing undelivered, tried out; nothing where none is."""
    if not isinstance(source, StaticMixtureWorkSource):
        return " Use smaller chunks."
    settings = {**source._settings, "datasets": source._datasets}
    total, size = len(source), source.chunk_size_hint()
    blocks = max(1, total // (num_lanes * size))
    for n in range(blocks, blocks + _SUGGESTIONS):
        for candidate in {-(-total // (num_lanes * n)), total // (num_lanes * n)}:
            candidate = candidate // rows * rows
            if not 0 < candidate < size:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    other = StaticMixtureWorkSource(**{**settings, "chunk_size": candidate})
            except ValueError:
                continue
            lengths = lane_lengths(other, num_lanes)
            if lengths.min() and _lost(lengths, rows)[1] <= _TOLERATED * lengths.sum():
                return f" chunk_size = {candidate} avoids it."
    return " Use smaller chunks or fewer lanes."
