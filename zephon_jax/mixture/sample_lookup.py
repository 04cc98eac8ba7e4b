"""From draws to samples, for all datasets of a chunk (or of many chunks) at once.

Draws are cut into tiles on the host, in 64 bits: a tile is the part of one block of one pass of
one dataset, or of a whole pass where there is no mosaic. Then each step is one call over all
elements: the permutation of the places in the tiles, the search for the shard, the permutation of
the places in the shards. For small chunks a NumPy call costs more than its elements, so datasets
are not gone through one by one; only tables of shards are made for each dataset, when it comes to
another pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.kernels import backend
from zephon_jax.kernels.keys import fold
from zephon_jax.kernels.permutation import Grids, make_grids, permute_rows
from zephon_jax.mixture.dataset_order import DatasetOrder
from zephon_jax.mixture.shard_table import FoundShards, PassRanges, ShardTable, table_for

__all__ = ["SampleLookup"]

_MAX_TABLE = 1 << 22  # runs in the tables of one question
_PASS_COST = 1 << 10  # runs that take as long as one more pass does


class _Tiles(NamedTuple):
    """Parts of the datasets' orders that are permuted as a whole, in the order of the elements."""

    dataset: np.ndarray  # int64 (T,)
    passes: np.ndarray  # int64 (T,)
    number: np.ndarray  # int64 (T,), which block of the pass
    first: np.ndarray  # int64 (T,), position in the pass at which it begins
    size: np.ndarray  # int64 (T,)


class _Places(NamedTuple):
    """Elements, as places in tiles."""

    row: np.ndarray  # int64 (n,), each element's tile
    place: np.ndarray  # int64 (n,), place in the tile


class SampleLookup:
    """Finds the samples that draws of a source's datasets stand for.

    Immutable but for tables that it keeps; threads may share it.

    Args:
      orders: The datasets' orders, by dataset id.
    """

    def __init__(self, orders: Sequence[DatasetOrder]):
        self.orders = orders
        self._total = np.asarray([c.total for c in orders], dtype=np.int64)
        self._block = np.asarray([c.block or max(1, c.total) for c in orders], dtype=np.int64)
        self._blocks = -(-self._total // self._block)
        self._mosaic = np.asarray([c.block > 0 for c in orders])
        self._within = np.asarray([c.within for c in orders])
        self._reshuffle = np.asarray([c.reshuffle for c in orders])
        self._by_pass = np.asarray([c.by_pass for c in orders])
        self._shards = np.asarray([c.counts.size for c in orders])
        level = ["global" if c.global_ else "blocks" for c in orders]
        self._keys_of_tiles = np.stack([c.keys[key] for c, key in zip(orders, level, strict=True)])
        self._keys_within = np.stack([c.keys["within"] for c in orders])
        self.table: ShardTable | None = None
        self._kept: tuple[_Tiles, Grids] | None = None

    def of_ranges(self, dataset: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Samples of consecutive draws.

        Args:
          dataset: int64 (p,), which dataset each range is of.
          first: int64 (p,), its first draw.
          count: int64 (p,), draws, at least one.

        Returns:
          int64 (n, 3): dataset id, shard id and sample index, range after range.
        """
        return self._locate_all(*self._tiles_of(dataset, first, count))

    def _tiles_of(
        self, dataset: np.ndarray, first: np.ndarray, count: np.ndarray
    ) -> tuple[_Tiles, _Places]:
        """Cuts ranges where blocks and passes end."""
        total, block, blocks = self._total[dataset], self._block[dataset], self._blocks[dataset]
        ends = first + count
        low_pass, low = np.divmod(first, total)
        high_pass, high = np.divmod(ends - 1, total)
        cell = low_pass * blocks + low // block
        many = high_pass * blocks + high // block - cell + 1
        if (many > 1).any():
            piece = np.repeat(np.arange(many.size), many)
            cell = cell[piece] + np.arange(piece.size) - (np.cumsum(many) - many)[piece]
            dataset, total, block, blocks, first, ends = (
                x[piece] for x in (dataset, total, block, blocks, first, ends)
            )
        passes, number = np.divmod(cell, blocks)
        start = number * block
        size = np.minimum(block, total - start)
        drawn = passes * total + start  # draws before the tile
        begin = np.maximum(first - drawn, 0)
        lengths = np.minimum(ends - drawn, size) - begin
        row = np.repeat(np.arange(lengths.size), lengths)
        place = np.arange(row.size) + np.repeat(begin - (np.cumsum(lengths) - lengths), lengths)
        return _Tiles(dataset, passes, number, start, size), _Places(row, place)

    def of_draws(self, dataset: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Samples of any draws, in any order, but faster where neighbors are close.

        Args:
          dataset: int64 (n,).
          draw: int64 (n,).

        Returns:
          int64 (n, 3).
        """
        total = self._total[dataset]
        passes, position = np.divmod(draw, total)
        number = position // self._block[dataset]
        new = np.ones(draw.shape, dtype=bool)
        new[1:] = (
            (dataset[1:] != dataset[:-1]) | (passes[1:] != passes[:-1])
            | (number[1:] != number[:-1])
        )  # fmt: skip
        at = np.flatnonzero(new)
        dataset, passes, number = dataset[at], passes[at], number[at]
        start = number * self._block[dataset]
        size = np.minimum(self._block[dataset], total[at] - start)
        tiles = _Tiles(dataset, passes, number, start, size)
        row = np.cumsum(new) - 1
        return self._locate_all(tiles, _Places(row, position - start[row]))

    def _locate_all(self, tiles: _Tiles, places: _Places) -> np.ndarray:
        spans = self._spans(tiles)
        # In floats: a bound, and no order.
        runs = (spans.last - spans.first + 1).astype(np.float64) * (self._shards + _PASS_COST)
        if runs[spans.last >= spans.first].sum() > _MAX_TABLE + 4 * places.row.size:
            return self._locate_far(tiles, places)
        return self._locate(tiles, places, spans)

    def _spans(self, tiles: _Tiles) -> PassRanges:
        """The passes whose runs the tiles need."""
        first = np.full(self._total.size, np.iinfo(np.int64).max)
        last = np.full(self._total.size, -1)
        passes = np.where(self._by_pass[tiles.dataset], tiles.passes, 0)
        np.minimum.at(first, tiles.dataset, passes)
        np.maximum.at(last, tiles.dataset, passes)
        return PassRanges(first, last)

    def _locate_far(self, tiles: _Tiles, places: _Places) -> np.ndarray:
        """The same where one table of all passes would be too large: a few passes at a time."""
        order = np.lexsort((tiles.passes, tiles.dataset))
        dataset, passes = tiles.dataset[order], tiles.passes[order]
        gap = np.ones(order.size)
        gap[1:] = np.where(dataset[1:] == dataset[:-1], passes[1:] - passes[:-1], 1)
        rows = np.minimum(gap * (self._shards[dataset] + _PASS_COST), _MAX_TABLE)
        group = np.empty(order.size, dtype=np.int64)
        group[order] = np.cumsum(rows) // _MAX_TABLE
        out = np.empty((places.row.size, 3), dtype=np.int64)
        for one in np.unique(group):
            mine = group == one
            chosen = np.flatnonzero(mine[places.row])
            row = (np.cumsum(mine) - 1)[places.row[chosen]]
            part = _Tiles(*(field[mine] for field in tiles))
            inside = _Places(row, places.place[chosen])
            out[chosen] = self._locate(part, inside, self._spans(part))
        return out

    def _locate(self, tiles: _Tiles, places: _Places, spans: PassRanges) -> np.ndarray:
        place = self._in_tiles(tiles, places)
        runs = self._in_runs(tiles, places.row, place, spans)
        offset = self._in_shards(runs)
        out = np.empty((place.size, 3), dtype=np.int64)
        out[:, 0] = tiles.dataset.take(places.row)
        out[:, 1] = runs.shard.take(runs.row)
        out[:, 2] = offset
        return out

    def _keys(
        self, roots: np.ndarray, dataset: np.ndarray, passes: np.ndarray, place: np.ndarray
    ) -> np.ndarray:
        """Keys (T, 2) by dataset, pass and place: pass 0's where repeats are not reshuffled."""
        passes = np.where(self._reshuffle[dataset], passes, 0)
        return fold(fold(roots[dataset], passes), place)

    def _in_tiles(self, tiles: _Tiles, places: _Places) -> np.ndarray:
        """Places in the tiles after the mosaic: int64 (n,)."""
        moves = self._mosaic[tiles.dataset]
        if not moves.any():
            return places.place
        kept = self._kept  # read once: another thread may put others there
        if kept is not None and all(
            np.array_equal(one, other) for one, other in zip(kept[0], tiles, strict=True)
        ):
            grids = kept[1]
        else:
            keys = self._keys(self._keys_of_tiles, tiles.dataset, tiles.passes, tiles.number)
            grids = make_grids(tiles.size, keys)
            self._kept = tiles, grids
        trip = backend.rounds()
        if moves.all():
            return permute_rows(places.place, places.row, grids, trip)
        out = places.place.copy()
        mine = np.flatnonzero(moves.take(places.row))
        out[mine] = permute_rows(out.take(mine), places.row.take(mine), grids, trip)
        return out

    def _in_runs(
        self, tiles: _Tiles, row: np.ndarray, place: np.ndarray, spans: PassRanges
    ) -> FoundShards:
        """Finds the runs that hold the places."""
        # Read once: another thread may put another table there.
        table = self.table = table_for(self.orders, spans, self.table, place.size)
        table.prepare(place.size, self._within, self._grids_within)
        passes = np.where(self._by_pass[tiles.dataset], tiles.passes, 0)
        before = (passes - table.first[tiles.dataset]) * self._total[tiles.dataset] + tiles.first
        position = place + (before + table.base[tiles.dataset]).take(row)
        return table.locate(tiles.dataset, row, position)

    def _in_shards(self, runs: FoundShards) -> np.ndarray:
        """Places in the shards after their own shuffle: int64 (n,)."""
        within = self._within[runs.dataset]
        if not within.any():
            return runs.offset
        mine = None if within.all() else np.flatnonzero(within.take(runs.row))
        row, offset = runs.row, runs.offset
        if mine is not None:
            row, offset = row.take(mine), offset.take(mine)
        grids = runs.grids
        if grids is None:  # permutations for these elements alone
            chosen, row = _distinct(row, runs.dataset.size)
            grids = self._grids_within(*(field.take(chosen) for field in runs[2:6]))
        moved = permute_rows(offset, row, grids, backend.rounds())
        if mine is None:
            return moved
        out = runs.offset.copy()
        out[mine] = moved
        return out

    def _grids_within(
        self, dataset: np.ndarray, passes: np.ndarray, shard: np.ndarray, count: np.ndarray
    ) -> Grids:
        """The permutations of the places within shards of passes."""
        return make_grids(count, self._keys(self._keys_within, dataset, passes, shard))


def _distinct(row: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur, and each element's place among them; the rows as such where many."""
    if num_rows > 8 * row.size:
        return row, np.arange(row.size)
    chosen = np.flatnonzero(np.bincount(row, minlength=num_rows))
    place = np.empty(num_rows, dtype=np.int64)
    place[chosen] = np.arange(chosen.size)
    return chosen, place.take(row)
