"""Many chunks of a run at once, without their samples: what sources can say of them in advance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["ChunkCounts", "ChunkSpan"]


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
