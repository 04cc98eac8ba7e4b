"""What draws cost: one sample each, or tokens as far as they are known.

Tokens are known by the shard. A draw costs the mean over the smallest piece of its dataset's
order whose place can be computed: its shard without block shuffle, its block with it, each shard
counting by the part that lies in the block, and the whole dataset when that is shuffled at once.
So the cost of a dataset's first draws is piecewise linear, takes a few numbers a shard to hold,
and can be inverted. All of it is integers: pieces are cut by rounding down, their sums are exact.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.kernels.draw_costs import PIECES, Draw, Pieces, UnitCost, shared
from zephon_jax.mixture.dataset_order import DatasetOrder, make_tables, shard_order, starts_of

__all__ = ["PIECES", "Draw", "Pieces", "RunningCost", "UnitCost", "shared"]

_KEPT_PASSES = 4
_MOST_SHARING = 1 << 41
_MOST_COST = MAX_INDEX


class _Piece(NamedTuple):
    """Consecutive positions of a pass that share a cost evenly."""

    first: int  # position
    length: int  # positions
    before: int  # cost of the positions before, in this pass
    cost: int  # cost of all its positions


class _Table(NamedTuple):
    """The shards of one pass in its order. Memory views: their items are Python ints."""

    starts: memoryview  # int64 (S + 1,), samples before each
    sums: memoryview  # int64 (S + 1,), cost before each


class RunningCost:
    """The cost of a dataset's draws, in the order of its passes. Immutable but for a small cache.

    Args:
      order: The dataset's order.
      shard_costs: int64 (num_shards,), cost of all samples of each shard, in any unit; what is
        less than 1 a sample counts as 1.
    """

    def __init__(self, order: DatasetOrder, shard_costs: np.ndarray):
        self._order = order
        self._costs = np.maximum(shard_costs[order.shard_ids], order.counts)
        self._samples, self._total = order.total, int(self._costs.sum())
        self.mean = self._total / max(1, self._samples)
        # One piece where nothing smaller is known: a single shard, or all shuffled at once.
        even = order.block >= order.total or (not order.block and order.counts.size == 1)
        self._whole = _Piece(0, self._samples, 0, self._total) if even else None
        # The last piece that an amount lay in, with its pass: most questions are near there.
        self._recent = (-1, _Piece(0, 0, 0, 0))
        self._tables: BoundedCache[int, _Table] = BoundedCache(_KEPT_PASSES)

    def _table(self, pass_index: int) -> _Table:
        """The shard order of a pass with its costs."""
        name = pass_index if self._order.shards and self._order.reshuffle else 0
        known = self._tables.get(name)
        if known is not None:
            return known
        shard, starts = shard_order(self._order, name)
        sums = starts_of(self._costs[shard])
        table = _Table(np.ascontiguousarray(starts).data, sums.data)
        self._tables.put(name, table)
        return table

    def _run(self, table: _Table, place: int) -> _Piece:
        """The shard at a place of a pass."""
        first, before = table.starts[place], table.sums[place]
        return _Piece(first, table.starts[place + 1] - first, before,
                      table.sums[place + 1] - before)  # fmt: skip

    def _spent(self, table: _Table, position: int) -> int:
        """Cost of a pass's first positions, by shards alone."""
        if position >= self._samples:
            return self._total
        run = self._run(table, bisect.bisect_right(table.starts, position) - 1)
        return run.before + run.cost * (position - run.first) // run.length

    def _block(self, table: _Table, position: int) -> _Piece:
        """The block of the mosaic that holds a position."""
        first = position - position % self._order.block
        length = min(self._order.block, self._samples - first)
        before = self._spent(table, first)
        return _Piece(first, length, before, self._spent(table, first + length) - before)

    def _piece_at(self, pass_index: int, position: int) -> _Piece:
        if self._whole is not None:
            return self._whole
        known, piece = self._recent
        if known == pass_index and 0 <= position - piece.first < piece.length:
            return piece
        table = self._table(pass_index)
        if self._order.block:
            return self._block(table, position)
        return self._run(table, bisect.bisect_right(table.starts, position) - 1)

    def _piece_of(self, pass_index: int, amount: int) -> _Piece:
        """The piece in which a pass's cost comes to be more than an amount below its total."""
        if self._whole is not None:
            return self._whole
        known, piece = self._recent
        if known == pass_index and 0 <= amount - piece.before < piece.cost:
            return piece
        table = self._table(pass_index)
        piece = self._run(table, bisect.bisect_right(table.sums, amount) - 1)
        if self._order.block:
            piece = self._block(table, piece.first + _most(piece, amount))
        self._recent = (pass_index, piece)
        return piece

    def draw(self, index: int) -> Draw:
        """The draw with this index."""
        pass_index, position = divmod(index, self._samples)
        piece = self._piece_at(pass_index, position)
        return self._of(piece, pass_index, position - piece.first)

    def last_before(self, amount: int) -> Draw:
        """The last draw before which at most this much has been spent."""
        pass_index, amount = divmod(amount, self._total)
        piece = self._piece_of(pass_index, amount)
        return self._of(piece, pass_index, _most(piece, amount))

    def num_pieces(self, start: int, stop: int) -> int:
        """How many pieces the draws from `start` up to `stop` have, at most."""
        passes = (stop - 1) // self._samples - start // self._samples + 1
        if self._whole is not None:
            return passes
        of_pass = self._order.counts.size
        if self._order.block:
            of_pass = -(-self._samples // self._order.block)
        return min(passes * of_pass, stop - start + passes)

    def pieces(self, start: int, stop: int) -> Pieces | None:
        """The pieces of the draws from `start` up to `stop`; None where they exceed 64 bits."""
        first, last = start // self._samples, (stop - 1) // self._samples
        longest = (
            self._samples
            if self._whole is not None
            else max(self._order.block, self._order.counts.max())
        )
        if longest > _MOST_SHARING or (last - first + 2) * self._total > _MOST_COST:
            return None
        zero, base = first * self._samples, first * self._total
        if self._whole is not None:
            passes = np.arange(last - first + 2)
            return Pieces(zero + passes * self._samples, passes * self._total, base)
        ends, sums = self._runs(first, last)
        if self._order.block:
            at = self._block_starts(start - zero, stop - zero)
            run = np.searchsorted(ends[1:-1], at, side="right")
            cost, length = sums[run + 1] - sums[run], ends[run + 1] - ends[run]
            return Pieces(zero + at, sums[run] + shared(cost, length, at - ends[run]), base)
        near = _around(ends, start - zero, stop - zero)
        return Pieces(zero + ends[near], sums[near], base)

    def _block_starts(self, start: int, stop: int) -> np.ndarray:
        """Where blocks begin, passes laid end to end: those from `start` on, and the end."""
        block, of_pass = self._order.block, -(-self._samples // self._order.block)
        low, high = (
            position // self._samples * of_pass + position % self._samples // block
            for position in (start, stop - 1)
        )
        pass_index, place = np.divmod(np.arange(low, high + 2), of_pass)
        return pass_index * self._samples + place * block

    def _runs(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Samples and cost before each shard of some passes laid end to end: int64 (R + 1,)."""
        if first == last:
            table = self._table(first)
            return np.asarray(table.starts), np.asarray(table.sums)
        order = self._order
        shuffled = order.shards and order.reshuffle
        (table,) = make_tables([(order, first, last) if shuffled else (order, 0, 0)])
        shard = np.arange(order.counts.size) if table.shard is None else table.shard
        shard = shard if shuffled else np.tile(shard, last - first + 1)
        return starts_of(order.counts[shard]), starts_of(self._costs[shard])

    def spent(self, draws: np.ndarray) -> np.ndarray:
        """Cost of the draws from the first of some numbers up to each: int64 (n,), ascending."""
        ends = int(draws[0]), int(draws[-1]) + 1
        pieces = self.pieces(*ends) if self.num_pieces(*ends) <= PIECES * draws.size else None
        if pieces is None:
            before = [self.draw(n).before for n in draws.tolist()]
            return np.asarray([one - before[0] for one in before], dtype=np.int64)
        cost, length = np.diff(pieces.before), np.diff(pieces.first)
        piece = np.searchsorted(pieces.first, draws, side="right") - 1
        inside = draws - pieces.first[piece]
        before = pieces.before[piece] + shared(cost[piece], length[piece], inside)
        return before - before[0]

    def _of(self, piece: _Piece, pass_index: int, inside: int) -> Draw:
        spent = piece.cost * inside // piece.length
        cost = piece.cost * (inside + 1) // piece.length - spent
        return Draw(
            pass_index * self._samples + piece.first + inside,
            pass_index * self._total + piece.before + spent,
            cost,
        )


def _around(ends: np.ndarray, start: int, stop: int) -> slice:
    """The part of ascending numbers from the last one not above `start` to one not below `stop`."""
    begin = int(np.searchsorted(ends, start, side="right")) - 1
    return slice(begin, int(np.searchsorted(ends, stop)) + 1)


def _most(piece: _Piece, amount: int) -> int:
    """The most positions of a piece that keep the cost at or below an amount."""
    # The largest q with cost * q // length <= rest; below `length`, for all of it costs more.
    return ((amount - piece.before + 1) * piece.length - 1) // piece.cost
