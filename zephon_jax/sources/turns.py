"""Whose turn a chunk is: the order in which the parts of a combined source give their chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.kernels.draw_costs import UnitCost
from zephon_jax.kernels.virtual_time import VirtualTime

__all__ = ["ByWeights", "InTurn", "Stretch", "Turns", "end_of_stretch"]

_KEPT = 16  # sets of parts whose turns are remembered


class Stretch(NamedTuple):
    """Consecutive chunks to which the same parts give, or the end of the run, without parts."""

    first: int  # its first chunk
    given: tuple[int, ...]  # chunks of each part before
    ended: tuple[bool, ...]  # parts that have nothing more to give


class Turns(Protocol):
    """An order of parts."""

    def after(self, ended: tuple[bool, ...], num_chunks: int) -> np.ndarray:
        """Of the first chunks of a stretch, those of each part: int64 (k,)."""
        ...


class InTurn:
    """One part after another."""

    def after(self, ended: tuple[bool, ...], num_chunks: int) -> np.ndarray:
        """All of the first part that has not ended."""
        given = np.zeros(len(ended), dtype=np.int64)
        given[ended.index(False)] = num_chunks
        return given


class ByWeights:
    """Parts side by side, by weighted fair queueing with chunks as cost.

    Args:
      weights: Shares of the chunks, all positive.
    """

    def __init__(self, weights: Sequence[Fraction]):
        self.weights = tuple(weights)
        self._queues: BoundedCache[tuple[bool, ...], VirtualTime] = BoundedCache(_KEPT)

    def after(self, ended: tuple[bool, ...], num_chunks: int) -> np.ndarray:
        """What weighted fair queueing gives out, in closed form."""
        queue = self._queues.get(ended)
        if queue is None:
            pairs = zip(self.weights, ended, strict=True)
            weights = [Fraction(0) if over else weight for weight, over in pairs]
            costs, base = [UnitCost()] * len(ended), np.zeros(len(ended), dtype=np.int64)
            queue = VirtualTime(weights, 1, costs, base)
            self._queues.put(ended, queue)
        return queue.draws_after(num_chunks)


def end_of_stretch(
    given_after: Callable[[int], np.ndarray], left: Sequence[int], num_chunks: int
) -> int:
    """Chunks of a stretch before the first turn that its part cannot take.

    Args:
      given_after: Of so many first chunks, those of each part: int64 (k,).
      left: Chunks that each part has, or more where it has enough for all of these turns.
      num_chunks: Chunks of the stretch of which one at least is such a turn.
    """

    def fits(num_chunks: int) -> bool:
        pairs = zip(given_after(num_chunks).tolist(), left, strict=True)
        return all(n <= chunks for n, chunks in pairs)

    low, high = 0, num_chunks
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
