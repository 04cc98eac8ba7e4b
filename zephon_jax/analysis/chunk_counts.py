"""A run in stretches of chunks with their quotas, many at a time and without samples.

Sources that can say the counts of thousands of chunks are asked for them; any other source is
stepped through.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from zephon_jax.sources.checks import first_states
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource, never_ends

__all__ = ["Stretch", "stretches"]

_MOST = 1 << 30  # chunks asked for at once
_MOST_WALKED = 1_000_000  # chunks after which a source without an index counts as endless


class Stretch(NamedTuple):
    """Consecutive chunks that stand for the same shares."""

    first_chunk: int
    counts: np.ndarray  # int64 (n, k), samples of each component in each chunk
    lane: np.ndarray  # int64 (n,), the lane of each chunk
    target: np.ndarray  # float64 (k,), shares that sum to 1
    # What the shares are shares of where that is tokens, float64 (n, k); None for samples.
    tokens: np.ndarray | None = None
    # Components that give nothing more after these chunks, or because of which the run ends there.
    gone: tuple[str, ...] = ()
    seed: int | None = None  # the seed of a chunk that has no index of its own
    ended: bool = False  # True where the run ends with these chunks


def stretches(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[Stretch]:
    """Goes through the first chunks of a run, or all of it.

    Args:
      source: Any source.
      num_chunks: Chunks to go through, of all lanes together; None for the whole run.
      num_lanes: Lanes that the chunks are dealt to.

    Raises:
      ValueError: If the whole of an endless run is asked for.
    """
    if num_chunks is None and never_ends(source):
        raise ValueError(f"{source!r} never ends: say how far to look with num_chunks=.")
    counted = source.chunk_counts(0, 0) is not None
    if counted and source.lanes_of_chunks(np.zeros(1, dtype=np.int64), num_lanes) is not None:
        return _counted(source, num_chunks, num_lanes)
    return _by_stepping(source, num_chunks, num_lanes)


def _counted(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[Stretch]:
    """The run of a source that says the counts of its chunks."""
    first = 0
    while True:
        wanted = _MOST if num_chunks is None else num_chunks - first
        part = source.chunk_counts(first, wanted)
        assert part is not None
        after = first + len(part.counts)
        lane = source.lanes_of_chunks(np.arange(first, after), num_lanes)
        assert lane is not None
        if part.ended or after > first:
            yield Stretch(
                first, part.counts, lane, part.target, part.tokens, part.exhausted, ended=part.ended
            )
        if part.ended or after == first:
            return
        first = after


def _nothing(num_components: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, lanes and target of no chunk at all."""
    none = np.zeros((0, num_components), dtype=np.int64)
    return none, none[:, 0], np.zeros(num_components)


def _by_stepping(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[Stretch]:
    """The same for any source."""
    place = {name: d for d, name in enumerate(source.component_ids())}
    gone: set[str] = set()
    for walked, step in enumerate(walk(source, first_states(source, num_lanes))):
        if num_chunks is not None and step.chunk_index >= num_chunks:
            return
        if walked >= _MOST_WALKED and num_chunks is None:
            raise ValueError(
                f"{type(source).__name__} did not end within {_MOST_WALKED:,} chunks: say how far"
                " to look with num_chunks=."
            )
        chunk = step.chunk
        counts = np.zeros((1, len(place)), dtype=np.int64)
        target = np.zeros(len(place))
        for name, count in zip(chunk.names, chunk.counts.tolist(), strict=True):
            counts[0, place[name]] = count
        for name, share in chunk.target_mixture.items():
            target[place[name]] = share
        new = tuple(name for name in chunk.source_exhausted if name not in gone)
        gone.update(new)
        seed = chunk.seed if chunk.chunk_index is None else None
        yield Stretch(step.chunk_index, counts, np.asarray([step.lane]), target, None, new, seed)
    yield Stretch(0, *_nothing(len(place)), ended=True)
