"""The counts of a run's chunks with their lanes: many chunks at a time where the source can say.

A source that counts chunks in advance (`WorkSource.chunk_counts`) is asked for thousands; any other
source is walked, and gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from zephon_jax.sources.checks import first_states
from zephon_jax.sources.chunk_spans import ChunkCounts, never_ends
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["DealtChunks", "count_chunks"]

_MOST_ASKED = 1 << 30  # chunks asked for at once; a source gives as many as it works out together


class DealtChunks(NamedTuple):
    """Consecutive chunks that stand for the same shares, with the lane of each."""

    chunks: ChunkCounts
    lane: np.ndarray  # int64 (n,)
    seed: int | None = None  # the seed of a chunk that has no index of its own


def count_chunks(
    source: WorkSource, num_chunks: int | None, num_lanes: int, *, most_walked: int = 1_000_000
) -> Iterator[DealtChunks]:
    """Goes through the first chunks of a run, or all of it.

    Args:
      source: Any source.
      num_chunks: Chunks to go through, of all lanes together; None for the whole run.
      num_lanes: Lanes that the chunks are dealt to.
      most_walked: Chunks after which a source that cannot say whether its run ends, and whose whole
        run is asked for, counts as endless.

    Raises:
      ValueError: If the whole of an endless run is asked for.
    """
    if num_chunks is None and never_ends(source):
        raise ValueError(f"{source!r} never ends: say how far to look with num_chunks=.")
    none = np.zeros(0, dtype=np.int64)
    if source.chunk_counts(0, 0) is None or source.lanes_of_chunks(none, num_lanes) is None:
        return _walked(source, num_chunks, num_lanes, most_walked)
    return _counted(source, num_chunks, num_lanes)


def _counted(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[DealtChunks]:
    """The run of a source that counts its chunks."""
    first = 0
    while True:
        wanted = _MOST_ASKED if num_chunks is None else num_chunks - first
        part = source.chunk_counts(first, wanted)
        assert part is not None
        chunk_index = np.arange(first, first + len(part.counts))
        lane = source.lanes_of_chunks(chunk_index, num_lanes)
        assert lane is not None
        yield DealtChunks(part, lane)
        first += len(part.counts)
        if part.ended or first == num_chunks:
            return


def _walked(
    source: WorkSource, num_chunks: int | None, num_lanes: int, most_walked: int
) -> Iterator[DealtChunks]:
    """The same for any source, chunk by chunk."""
    place = {name: d for d, name in enumerate(source.component_ids())}
    exhausted: set[str] = set()
    for walked, step in enumerate(walk(source, first_states(source, num_lanes))):
        index, chunk = step.chunk_index, step.chunk
        if num_chunks is not None and index >= num_chunks:
            return
        if num_chunks is None and walked >= most_walked:
            raise ValueError(
                f"{type(source).__name__} did not end within {most_walked:,} chunks: say how far"
                " to look with num_chunks=."
            )
        counts, target = np.zeros((1, len(place)), dtype=np.int64), np.zeros(len(place))
        for name, count in zip(chunk.names, chunk.counts.tolist(), strict=True):
            counts[0, place[name]] = count
        for name, share in chunk.target_mixture.items():
            target[place[name]] = share
        new = tuple(name for name in chunk.source_exhausted if name not in exhausted)
        exhausted.update(new)
        seed = chunk.seed if chunk.chunk_index is None else None
        found = ChunkCounts(index, counts, target, exhausted=new)
        yield DealtChunks(found, np.asarray([step.lane]), seed)
    nothing = np.zeros((0, len(place)), dtype=np.int64)
    end = ChunkCounts(0, nothing, np.zeros(len(place)), ended=True)
    yield DealtChunks(end, np.zeros(0, dtype=np.int64))
