"""Samples of each component in thousands of chunks at once, without the samples.

What `next_chunk` draws one chunk at a time is worked out here for many: in closed form where the
mixture has one, and by following its rare components alone where it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.token_estimation import TOKEN_UNIT
from zephon_jax.kernels import quota
from zephon_jax.kernels import quota_fast_forward as rare
from zephon_jax.kernels.virtual_time import VirtualTime
from zephon_jax.mixture.allocation import Allocation
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.positions import UNCAPPED, Position
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
        costs: Sequence[Any] | None,
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
        ended = position.chunk_index < first or eras.ended(position)
        if ended or not num_chunks:
            none = np.zeros((0, len(self._names)), dtype=np.int64)
            return ChunkCounts(first, none, np.zeros(len(self._names)), ended=ended)
        most = min(num_chunks, max(1, min(_BLOCK, _NUMBERS // len(self._names))))
        counts, after, gone = _next_rows(eras, position, most)
        costs = self._costs
        self._reached = after
        return ChunkCounts(
            first_chunk=first,
            counts=counts,
            target=np.asarray(list(self._target_at(position).values()), dtype=np.float64),
            tokens=None if costs is None else _tokens(costs, position.drawn, counts),
            exhausted=tuple(self._names[d] for d in np.flatnonzero(gone)),
            bound=self._bound,
            ended=after is None or eras.ended(after),
        )


def _tokens(costs: Sequence[Any], before: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Tokens in each chunk, as far as they are known: float64 (n, k)."""
    drawn = before + np.concatenate([np.zeros_like(counts[:1]), np.cumsum(counts, axis=0)])
    tokens = np.zeros(counts.shape)
    for d in np.flatnonzero(counts.any(axis=0)).tolist():
        tokens[:, d] = np.diff(costs[d].spent(drawn[:, d])) / TOKEN_UNIT
    return tokens


def _next_rows(
    eras: Eras, start: Position, most: int
) -> tuple[np.ndarray, Position | None, np.ndarray]:
    """Counts of up to so many chunks of one era, (n, k), with the position after them.

    The position is None where the run has ended. The last result says which components leave, or
    end the run: bool (k,).
    """
    rules, era = eras.rules, start.era
    nobody = np.zeros_like(era.active)
    assert era.allocation is not None  # the run has not ended
    since = start.chunk_index - era.first_chunk
    quotas, carry = _quotas(era.allocation, start.carry, since, most)
    drawn = start.drawn + np.concatenate([np.zeros_like(quotas[:1]), np.cumsum(quotas, axis=0)])
    leaving = era.active & rules.leaves
    left = leaving & (drawn[1:] >= rules.totals)
    departs = left.any(axis=1)
    num_rows = int(departs.argmax()) + 1 if departs.any() else most
    over = _over(eras, start, drawn[:-1], quotas)[:num_rows]
    ended = over.all(axis=1) if rules.passes is not None else over.any(axis=1)
    if ended.any():
        end = int(ended.argmax())
        return quotas[:end], None, nobody if rules.passes is not None else over[end]
    chunk_index = start.chunk_index + num_rows
    if not departs.any():
        return quotas, Position(chunk_index, era, carry, drawn[-1]), nobody
    # The chunk in which somebody leaves is short where its quota was more than what was left.
    before, quota_ = drawn[num_rows - 1], quotas[num_rows - 1]
    given = np.where(leaving, np.minimum(quota_, rules.totals - before), quota_)
    counts = np.concatenate([quotas[: num_rows - 1], given[None]])
    zero = np.zeros_like(start.carry)
    after = eras.resume(chunk_index, chunk_index, zero, before + given)
    return counts, after, left[num_rows - 1]


def _over(eras: Eras, start: Position, before: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """Components that would end the run before a chunk: bool (n, k).

    One is enough, but with `passes`, where all have to have had theirs.
    """
    rules, active = eras.rules, start.era.active
    if rules.passes is not None:
        return ~active | (before >= rules.passes * rules.totals)
    capped = active & (rules.caps != UNCAPPED)
    return capped & (before + quotas > rules.caps)


def _quotas(
    allocation: Allocation | VirtualTime, carry: np.ndarray, since: int, num_chunks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Quotas of consecutive chunks of an era, int64 (n, k), and the carry after them."""
    if isinstance(allocation, VirtualTime):
        quotas = allocation.quotas_of(np.arange(since, since + num_chunks))
        return quotas.astype(np.int64), carry
    shares = allocation.shares
    if allocation.closed:
        carries = quota.steady_carry(shares, np.arange(since, since + num_chunks + 1))
        quotas, carries = quota.quotas_between(shares, carries[:-1], carries[1:]), carries[1:]
    else:
        quotas, carries = rare.quota_rows(shares, carry, since, num_chunks)
    return quotas.astype(np.int64), carries[-1]
