"""From draws to samples, for all datasets of a chunk (or of many chunks) at once.

Draws are cut into tiles on the host, in 64 bits: a tile is the part of one block of one pass of
one dataset, or of a whole pass where there is no mosaic. Then each step is one call over all
elements: the permutation of the places in the tiles, the search for the shard, the permutation of
the places in the shards. Calls are what is dear, so nothing is done dataset by dataset, but for
tables of shards that are made when a dataset comes to another pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax import backend
from zephon_jax.cursor import Cursor, Table, make_tables
from zephon_jax.keys import fold
from zephon_jax.permutation import Grids, make_grids, permute_rows

__all__ = ["Draws"]

_LARGE = 1 << 12  # shards; larger tables are searched by themselves
_FAR = 1 << 44  # samples; positions in the joint table stay below 2^62
_MAX_ROWS = 1 << 18  # runs whose permutations are kept
_WORTH = 8  # questions after which they are made for all runs
_BUCKETS = 2  # buckets a run, at least
_MAX_STEPS = 3  # from here on a binary search is faster
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


class _Runs(NamedTuple):
    """Where elements lie, as places in runs: a run is a shard in a pass."""

    row: np.ndarray  # int64 (n,), each element's run
    offset: np.ndarray  # int64 (n,), place in the run
    dataset: np.ndarray  # int64 (R,)
    passes: np.ndarray  # int64 (R,)
    shard: np.ndarray  # int64 (R,), the shard's place in the dataset's list
    samples: np.ndarray  # int64 (R,), in the whole run
    grids: Grids | None  # the permutations of the places within the runs, where they are kept


class _Plan:
    """The tables of all datasets, the small ones joined to one. Made anew when passes change."""

    __slots__ = (
        "base", "buckets", "count", "dataset", "first", "grids", "large", "last", "passes",
        "shard", "shift", "start", "steps", "tables", "used",
    )  # fmt: skip

    tables: dict[int, Table]  # by dataset
    first: np.ndarray  # int64 (k,), the passes that are covered; none where last < first
    last: np.ndarray  # int64 (k,)
    base: np.ndarray  # int64 (k,), where a dataset's first run begins in the joint table
    large: np.ndarray  # bool (k,), has a table of its own
    start: np.ndarray  # int64 (R + 1,), samples before each run of the joint table
    dataset: np.ndarray  # int64 (R,), and so on as in _Runs
    passes: np.ndarray
    shard: np.ndarray
    count: np.ndarray
    used: int  # questions so far: after some it is worth preparing more
    grids: Grids | None
    buckets: np.ndarray | None  # int64 (B,), the last run that begins before the bucket does
    shift: int  # log2 of the samples in a bucket
    steps: int  # runs that begin in one bucket, at most

    def __init__(self, cursors: Sequence[Cursor], tables: dict[int, Table]):
        k = len(cursors)
        self.tables = tables
        self.first, self.last = np.zeros(k, dtype=np.int64), np.full(k, -1)
        self.base, self.large = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=bool)
        joined: list[tuple[np.ndarray, ...]] = []
        end = 0
        for d, table in tables.items():
            self.first[d], self.last[d] = table.first, table.last
            samples, runs = int(table.start[-1]), table.start.size - 1
            self.large[d] = runs > _LARGE or samples > _FAR
            if not self.large[d]:
                self.base[d] = end
                joined.append(_rows(cursors[d], table, d, end))
                end += samples
        none = np.zeros(0, dtype=np.int64)
        columns = zip(*joined, strict=True) if joined else [[none]] * 5
        start, self.dataset, self.passes, self.shard, self.count = map(np.concatenate, columns)
        self.start = np.append(start, end)
        self.used, self.grids, self.buckets = 0, None, None

    def prepare(self, draws: Draws, asked: int) -> Grids | None:
        """Makes what pays by now for so many places; returns the permutations within all runs."""
        self.used += 1
        if not 0 < self.count.size <= min(_MAX_ROWS, self.used * asked):
            return self.grids
        if self.buckets is None:
            self._make_buckets()
        if self.grids is None and self.used > _WORTH and draws.within[self.dataset].any():
            self.grids = draws.grids_within(self.dataset, self.passes, self.shard, self.count)
        return self.grids

    def _make_buckets(self) -> None:
        """Counts how many runs begin before each of many stretches of equal length."""
        shift = max(0, (int(self.start[-1]) // (_BUCKETS * self.count.size)).bit_length())
        begun = np.bincount(self.start[1:] >> shift, minlength=1)
        self.shift, self.steps = shift, int(begun.max())
        # In one assignment, for other threads: the last thing that `find` looks at.
        self.buckets = np.cumsum(begun) - begun

    def find(self, position: np.ndarray) -> np.ndarray:
        """The runs that hold positions of the joint table: int64 (n,)."""
        if self.buckets is None or self.steps > _MAX_STEPS:
            return np.searchsorted(self.start, position, side="right") - 1
        run = self.buckets.take(position >> self.shift)
        for _ in range(self.steps):
            run += self.start.take(run + 1) <= position
        return run


def _rows(cursor: Cursor, table: Table, d: int, base: int) -> tuple[np.ndarray, ...]:
    """A dataset's rows of the joint table: start, dataset, pass, shard and count of each run."""
    num = cursor.counts.size
    num_passes = table.last - table.first + 1
    passes = np.repeat(np.arange(table.first, table.last + 1), num)
    place = np.tile(np.arange(num), num_passes) if table.shard is None else table.shard
    shard = place if cursor.filled is None else cursor.filled[place]
    return table.start[:-1] + base, np.full(passes.size, d), passes, shard, cursor.counts[place]


class Draws:
    """Finds the samples that draws of a source's datasets stand for.

    Immutable but for tables that it keeps; threads may share it.

    Args:
      cursors: The datasets' cursors, by dataset id.
    """

    def __init__(self, cursors: Sequence[Cursor]):
        self.cursors = cursors
        self._total = np.asarray([c.total for c in cursors], dtype=np.int64)
        self._block = np.asarray([c.block or max(1, c.total) for c in cursors], dtype=np.int64)
        self._blocks = -(-self._total // self._block)
        self._mosaic = np.asarray([c.block > 0 for c in cursors])
        self.within = np.asarray([c.within for c in cursors])
        self._reshuffle = np.asarray([c.reshuffle for c in cursors])
        self._by_pass = np.asarray([c.by_pass for c in cursors])
        self._shards = np.asarray([c.counts.size for c in cursors])
        level = ["global" if c.global_ else "blocks" for c in cursors]
        self._tile_keys = np.stack([c.keys[key] for c, key in zip(cursors, level, strict=True)])
        self._within_keys = np.stack([c.keys["within"] for c in cursors])
        self._plan: _Plan | None = None
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
        return self._locate_all(_Tiles(dataset, passes, number, start, size), _Places(row, place))

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
        far = self._table_rows(tiles) > _MAX_TABLE + 4 * places.row.size
        return (self._locate_far if far else self._locate)(tiles, places)

    def _spans(self, tiles: _Tiles) -> tuple[np.ndarray, np.ndarray]:
        """First and last pass whose tables the tiles need, by dataset: int64 (k,) each."""
        first = np.full(self._total.size, np.iinfo(np.int64).max)
        last = np.full(self._total.size, -1)
        passes = np.where(self._by_pass[tiles.dataset], tiles.passes, 0)
        np.minimum.at(first, tiles.dataset, passes)
        np.maximum.at(last, tiles.dataset, passes)
        return first, last

    def _table_rows(self, tiles: _Tiles) -> int:
        first, last = self._spans(tiles)
        # In floats: a bound, and no order.
        rows = (last - first + 1).astype(np.float64) * (self._shards + _PASS_COST)
        return int(rows[last >= first].sum())

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
            out[chosen] = self._locate(part, _Places(row, places.place[chosen]))
        return out

    def _locate(self, tiles: _Tiles, places: _Places) -> np.ndarray:
        place = self._in_tiles(tiles, places)
        runs = self._in_runs(tiles, places.row, place)
        offset = self._in_shards(runs)
        out = np.empty((place.size, 3), dtype=np.int64)
        out[:, 0] = tiles.dataset.take(places.row)
        out[:, 1] = runs.shard.take(runs.row)
        out[:, 2] = offset
        return out

    def _keys(self, roots: np.ndarray, dataset: np.ndarray, passes: np.ndarray, place: np.ndarray):
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
            keys = self._keys(self._tile_keys, tiles.dataset, tiles.passes, tiles.number)
            grids = make_grids(tiles.size, keys)
            self._kept = tiles, grids
        trip = backend.rounds()
        if moves.all():
            return permute_rows(places.place, places.row, grids, trip)
        out = places.place.copy()
        mine = np.flatnonzero(moves.take(places.row))
        out[mine] = permute_rows(out.take(mine), places.row.take(mine), grids, trip)
        return out

    def _in_runs(self, tiles: _Tiles, row: np.ndarray, place: np.ndarray) -> _Runs:
        """Finds the runs that hold the places."""
        plan = self._plan_of(tiles)
        grids = plan.prepare(self, place.size)
        passes = np.where(self._by_pass[tiles.dataset], tiles.passes, 0)
        before = (passes - plan.first[tiles.dataset]) * self._total[tiles.dataset] + tiles.first
        position = place + (before + plan.base[tiles.dataset]).take(row)
        large = plan.large[tiles.dataset]
        if not large.any():
            run = plan.find(position)
            offset = position - plan.start.take(run)
            return _Runs(run, offset, plan.dataset, plan.passes, plan.shard, plan.count, grids)
        run, offset = np.empty_like(position), np.empty_like(position)
        parts: list[tuple[np.ndarray, ...]] = [(plan.dataset, plan.passes, plan.shard, plan.count)]
        if not large.all():
            mine = np.flatnonzero(~large.take(row))
            run[mine] = found = plan.find(position.take(mine))
            offset[mine] = position.take(mine) - plan.start.take(found)
        end = plan.dataset.size
        for d in np.unique(tiles.dataset[large]).tolist():
            mine = np.flatnonzero((tiles.dataset == d).take(row))
            part, offset[mine] = _search(self.cursors[d], plan.tables[d], d, position.take(mine))
            run[mine] = np.arange(end, end + mine.size)
            end += mine.size
            parts.append(part)
        dataset, passes, shard, samples = map(np.concatenate, zip(*parts, strict=True))
        return _Runs(run, offset, dataset, passes, shard, samples, None)

    def _in_shards(self, runs: _Runs) -> np.ndarray:
        """Places in the shards after their own shuffle: int64 (n,)."""
        within = self.within[runs.dataset]
        if not within.any():
            return runs.offset
        mine = None if within.all() else np.flatnonzero(within.take(runs.row))
        row, offset = runs.row, runs.offset
        if mine is not None:
            row, offset = row.take(mine), offset.take(mine)
        grids = runs.grids
        if grids is None:  # permutations for these elements alone
            chosen, row = _distinct(row, runs.dataset.size)
            grids = self.grids_within(*(field.take(chosen) for field in runs[2:6]))
        moved = permute_rows(offset, row, grids, backend.rounds())
        if mine is None:
            return moved
        out = runs.offset.copy()
        out[mine] = moved
        return out

    def grids_within(
        self, dataset: np.ndarray, passes: np.ndarray, shard: np.ndarray, count: np.ndarray
    ) -> Grids:
        """The permutations of the places within shards of passes."""
        return make_grids(count, self._keys(self._within_keys, dataset, passes, shard))

    def _plan_of(self, tiles: _Tiles) -> _Plan:
        """The tables that the tiles need, the last ones again where they hold all of them."""
        first, last = self._spans(tiles)
        plan = self._plan  # read once: another thread may put another there
        missing = last >= first
        if plan is not None:
            missing &= (first < plan.first) | (last > plan.last)
            if not missing.any():
                return plan
        places = np.flatnonzero(missing)
        if plan is not None:  # lanes do not cross into another pass all at once
            next_, one = plan.last[places] == first[places] - 1, plan.first <= plan.last
            first[places] -= next_ & one[places] & (first[places] == last[places])
        wanted = [(self.cursors[d], int(first[d]), int(last[d])) for d in places.tolist()]
        tables = {} if plan is None else dict(plan.tables)
        tables.update(zip(places.tolist(), make_tables(wanted), strict=True))
        self._plan = plan = _Plan(self.cursors, tables)
        return plan


def _distinct(row: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur, and each element's place among them; the rows as such where many."""
    if num_rows > 8 * row.size:
        return row, np.arange(row.size)
    chosen = np.flatnonzero(np.bincount(row, minlength=num_rows))
    place = np.empty(num_rows, dtype=np.int64)
    place[chosen] = np.arange(chosen.size)
    return chosen, place.take(row)


def _search(
    cursor: Cursor, table: Table, d: int, position: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The runs of elements of one dataset, a row for each, and the places in them."""
    run = np.searchsorted(table.start, position, side="right") - 1
    offset = position - table.start.take(run)
    num = cursor.counts.size
    passes = table.first + run // num
    shard = run % num if table.shard is None else table.shard.take(run)
    count = cursor.counts.take(shard)
    shard = shard if cursor.filled is None else cursor.filled.take(shard)
    return (np.full(run.size, d), passes, shard, count), offset
