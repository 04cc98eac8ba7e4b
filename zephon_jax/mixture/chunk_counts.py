"""Samples of each component in thousands of chunks at once, without the samples.

What `next_chunk` draws one chunk at a time is worked out here for many: in closed form where the
mixture has one, and by following its rare components alone where it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.token_estimation import TOKEN_UNIT
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.positions import Position
from zephon_jax.sources.chunk_spans import ChunkCounts

__all__ = ["ChunkCounter"]

_BLOCK = 8192  # chunks worked out together, at most:
_NUMBERS = 1 << 21  # chunks x components worked out together


class ChunkCounter:
    """Counts of many chunks of a mixture. Immutable but for the place that it came to last.

    Args:
      eras: Positions of the run.
      names: The components' names.
      target_at: Gives the shares that the chunk at a position stands for, by name.
      costs: Running token costs of the datasets, where weights are shares of tokens.
      bound: Samples that a component can be from its share, where the allocation bounds it.
    """

    def __init__(
        self,
        eras: Eras,
        names: tuple[str, ...],
        target_at: Callable[[Position], Mapping[str, float]],
        costs: Sequence[object] | None,
        bound: tuple[float, float] | None,
    ):
        self._eras, self._names, self._target_at = eras, names, target_at
        self._costs, self._bound = costs, bound
        self._reached: Position | None = None  # a rare mixture's seek steps through chunks

    def counts(self, first: int, num_chunks: int) -> ChunkCounts:
        """Counts of the chunks from one on: the first of them that are worked out together.

        Args:
          first: Global index of the first chunk.
          num_chunks: Chunks that are wanted.
        """
        eras, reached = self._eras, self._reached
        known = reached is not None and reached.chunk_index == first
        position = reached if known and reached is not None else eras.seek(first)
        ended = position.chunk_index < first or eras.steps.ended(position)
        if ended or not num_chunks:
            none = np.zeros((0, len(self._names)), dtype=np.int64)
            return ChunkCounts(first, none, np.zeros(len(self._names)), ended=ended)
        most = min(num_chunks, max(1, min(_BLOCK, _NUMBERS // len(self._names))))
        counts, after, gone = eras.steps.stretch(position, most)
        costs = self._costs
        self._reached = after
        return ChunkCounts(
            first_chunk=first,
            counts=counts,
            target=np.asarray(list(self._target_at(position).values()), dtype=np.float64),
            tokens=None if costs is None else _tokens(costs, position.drawn, counts),
            exhausted=tuple(self._names[d] for d in np.flatnonzero(gone)),
            bound=self._bound,
            ended=after is None or eras.steps.ended(after),
        )


def _tokens(costs: Sequence[Any], before: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Tokens in each chunk, as far as they are known: float64 (n, k)."""
    drawn = before + np.concatenate([np.zeros_like(counts[:1]), np.cumsum(counts, axis=0)])
    tokens = np.zeros(counts.shape)
    for d in np.flatnonzero(counts.any(axis=0)).tolist():
        tokens[:, d] = np.diff(costs[d].spent(drawn[:, d])) / TOKEN_UNIT
    return tokens
