"""Many chunks of a run at once, without their samples: what sources can say of them in advance."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["ChunkCounts", "ChunkSpan", "KnownRun", "never_ends"]


class ChunkSpan(NamedTuple):
    """Consecutive chunks of one size, of which the last may be short."""

    first_chunk: int
    num_chunks: int | None  # None where the run never ends
    num_samples: int | None  # None where the run never ends


class ChunkCounts(NamedTuple):
    """Samples of each component in consecutive chunks that stand for the same shares."""

    first_chunk: int
    counts: np.ndarray  # int64 (n, k), samples of each component in each chunk
    target: np.ndarray  # float64 (k,), the shares the chunks stand for, which sum to 1
    # Tokens of each component in each chunk, float64 (n, k); None where shares are of samples.
    tokens: np.ndarray | None = None
    # Components that give nothing more after these chunks, or because of which the run ends there.
    exhausted: tuple[str, ...] = ()
    # Bounds on the samples of a component beyond its share of the chunks so far; None for no bound.
    bound: tuple[float, float] | None = None
    ended: bool = False  # True where the run ends with these chunks


class KnownRun(Protocol):
    """What a source says of the length of its run."""

    def chunk_spans(self) -> tuple[ChunkSpan, ...] | None:
        """All chunks of the run, where the source can say."""
        ...

    def supports_indexing(self) -> bool:
        """True where the source has a length."""
        ...

    def __len__(self) -> int: ...


def never_ends(source: KnownRun) -> bool:
    """True for a source that says that its run has no end; False where it cannot say."""
    spans = source.chunk_spans()
    if spans:
        return spans[-1].num_chunks is None
    if source.supports_indexing():
        try:
            len(source)
        except TypeError:
            return True
    return False
