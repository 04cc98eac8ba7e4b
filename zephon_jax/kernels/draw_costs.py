"""What a draw costs: one sample, or tokens in pieces that share a cost evenly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["PIECES", "Draw", "Pieces", "UnitCost", "shared"]

PIECES = 64  # pieces of cost that are worth a table, for each number that is looked up in it


class Draw(NamedTuple):
    """A draw of a dataset with its cost."""

    number: int  # draws before it
    before: int  # their cost
    cost: int  # its own, at least 1


class Pieces(NamedTuple):
    """Stretches of draws that share a cost evenly, one after another."""

    first: np.ndarray  # int64 (P + 1,), draws before each, and before the end
    before: np.ndarray  # int64 (P + 1,), their cost from here on:
    base: int


def shared(cost: np.ndarray, length: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The cost of the first draws of pieces: cost * inside // length, within 64 bits.

    Args:
      cost: int64, of all draws of a piece, below 2^62.
      length: int64, its draws, at most 2^41.
      inside: int64, how many of them, at most `length`.
    """
    whole, rest = np.divmod(cost, length)
    high, low = inside >> 20, inside & ((1 << 20) - 1)
    some, left = np.divmod(rest * high, length)
    return whole * inside + (some << 20) + ((left << 20) + rest * low) // length


class UnitCost:
    """Every draw costs 1: weights are shares of samples."""

    __slots__ = ()

    mean = 1.0  # cost of a draw, on average

    def draw(self, index: int) -> Draw:
        """The draw with this index."""
        return Draw(index, index, 1)

    def last_before(self, amount: int) -> Draw:
        """The last draw before which at most this much has been spent."""
        return Draw(amount, amount, 1)

    def num_pieces(self, start: int, stop: int) -> int:
        """How many pieces the draws from `start` up to `stop` have, at most."""
        return 1

    def pieces(self, start: int, stop: int) -> Pieces:
        """The pieces of the draws from `start` up to `stop`."""
        ends = np.asarray([start, stop])
        return Pieces(ends, ends - start, start)
