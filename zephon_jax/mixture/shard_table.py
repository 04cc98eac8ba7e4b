"""Which shard of which pass holds a sample, for all datasets at once. A run is a shard in a pass.

The runs of all passes that are drawn from are laid end to end in one table, which one search
serves; a large dataset has a table of its own. When a dataset comes to a pass that the table lacks,
the table is made anew. So that this happens seldom, a dataset that goes through its passes in turn
has the runs of its next passes put in too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.kernels.permutation import Grids
from zephon_jax.mixture.dataset_order import DatasetOrder, Table, make_tables

__all__ = ["LARGE", "FoundShards", "PassRanges", "ShardTable", "table_for"]

LARGE = 1 << 12  # shards; larger tables are searched by themselves
_FAR = 1 << 44  # samples; positions in the joint table stay below 2^62
_MAX_ROWS = 1 << 18  # runs whose permutations are kept
_WORTH = 8  # questions after which they are made for all runs
_BUCKETS = 2  # buckets a run, at least
_MAX_STEPS = 3  # from here on a binary search is faster
_AHEAD = 8  # times as many passes made ahead as are asked for,
_AHEAD_SHARE = 16  # but no more runs than one in so many places that are asked for


class PassRanges(NamedTuple):
    """The passes of each dataset that are asked for; none where last < first."""

    first: np.ndarray  # int64 (k,)
    last: np.ndarray  # int64 (k,)


class FoundShards(NamedTuple):
    """Where elements lie, as places in runs."""

    row: np.ndarray  # int64 (n,), each element's run
    offset: np.ndarray  # int64 (n,), place in the run
    dataset: np.ndarray  # int64 (R,)
    passes: np.ndarray  # int64 (R,)
    shard: np.ndarray  # int64 (R,), place in the dataset's list
    samples: np.ndarray  # int64 (R,)
    grids: Grids | None  # the permutations of the places within the runs, where they are kept


GridsOf = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Grids]


class ShardTable:
    """The runs of some passes of each dataset. Immutable but for what is made for later questions.

    Args:
      orders: The datasets' orders.
      tables: Of the datasets and passes that are covered, by dataset.
    """

    __slots__ = (
        "_buckets",
        "_grids",
        "_large",
        "_orders",
        "_shift",
        "_start",
        "_steps",
        "_used",
        "base",
        "dataset",
        "first",
        "last",
        "passes",
        "samples",
        "shard",
        "tables",
    )  # fmt: skip

    tables: dict[int, Table]  # by dataset
    first: np.ndarray  # int64 (k,), the passes that are covered; none where last < first
    last: np.ndarray  # int64 (k,)
    base: np.ndarray  # int64 (k,), where a dataset's first run begins in the joint table
    dataset: np.ndarray  # int64 (R,), of the runs of the joint table, and so on as in FoundShards
    passes: np.ndarray
    shard: np.ndarray
    samples: np.ndarray
    _start: np.ndarray  # int64 (R + 1,), samples before each
    _large: np.ndarray  # bool (k,), has a table of its own
    _used: int  # questions so far: after some it is worth preparing more
    _grids: Grids | None
    _buckets: np.ndarray | None  # int64 (B,), the last run that begins before the bucket does
    _shift: int  # log2 of the samples in a bucket
    _steps: int  # runs that begin in one bucket, at most

    def __init__(self, orders: Sequence[DatasetOrder], tables: dict[int, Table]):
        k = len(orders)
        self.tables, self._orders = tables, orders
        self.first, self.last = np.zeros(k, dtype=np.int64), np.full(k, -1)
        self.base, self._large = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=bool)
        joined: list[tuple[np.ndarray, ...]] = []
        end = 0
        for d, table in tables.items():
            self.first[d], self.last[d] = table.first, table.last
            total, runs = int(table.start[-1]), table.start.size - 1
            self._large[d] = runs > LARGE or total > _FAR
            if not self._large[d]:
                self.base[d] = end
                joined.append(_rows(orders[d], table, d, end))
                end += total
        none = np.zeros(0, dtype=np.int64)
        columns = zip(*joined, strict=True) if joined else [[none]] * 5
        start, self.dataset, self.passes, self.shard, self.samples = map(np.concatenate, columns)
        self._start = np.append(start, end)
        self._used, self._grids, self._buckets = 0, None, None

    def prepare(self, asked: int, within: np.ndarray, grids_of: GridsOf) -> None:
        """Makes what pays by now, for a question about so many places.

        Args:
          asked: Places asked for.
          within: bool (k,), the datasets whose shards are shuffled.
          grids_of: Makes the permutations within runs, of their datasets, passes, shards and
            samples.
        """
        self._used += 1
        if not 0 < self.samples.size <= min(_MAX_ROWS, self._used * asked):
            return
        if self._buckets is None:
            self._make_buckets()
        if self._grids is None and self._used > _WORTH and within[self.dataset].any():
            self._grids = grids_of(self.dataset, self.passes, self.shard, self.samples)

    def _make_buckets(self) -> None:
        """Counts how many runs begin before each of many stretches of equal length."""
        shift = max(0, (int(self._start[-1]) // (_BUCKETS * self.samples.size)).bit_length())
        begun = np.bincount(self._start[1:] >> shift, minlength=1)
        self._shift, self._steps = shift, int(begun.max())
        # In one assignment, for other threads: the last thing that `_find` looks at.
        self._buckets = np.cumsum(begun) - begun

    def _find(self, position: np.ndarray) -> np.ndarray:
        """The runs that hold positions of the joint table: int64 (n,)."""
        if self._buckets is None or self._steps > _MAX_STEPS:
            return np.searchsorted(self._start, position, side="right") - 1
        run = self._buckets.take(position >> self._shift)
        for _ in range(self._steps):
            run += self._start.take(run + 1) <= position
        return run

    def locate(self, dataset: np.ndarray, row: np.ndarray, position: np.ndarray) -> FoundShards:
        """Finds the runs that hold elements.

        Args:
          dataset: int64 (T,), of tiles.
          row: int64 (n,), each element's tile.
          position: int64 (n,), of the elements in the joint table, or in the large one's own.
        """
        large = self._large[dataset]
        columns = self.dataset, self.passes, self.shard, self.samples
        if not large.any():
            run = self._find(position)
            return FoundShards(run, position - self._start.take(run), *columns, grids=self._grids)
        run, offset = np.empty_like(position), np.empty_like(position)
        parts: list[tuple[np.ndarray, ...]] = [columns]
        if not large.all():
            mine = np.flatnonzero(~large.take(row))
            run[mine] = found = self._find(position.take(mine))
            offset[mine] = position.take(mine) - self._start.take(found)
        end = self.dataset.size
        for d in np.unique(dataset[large]).tolist():
            mine = np.flatnonzero((dataset == d).take(row))
            part, offset[mine] = _search(self._orders[d], self.tables[d], d, position.take(mine))
            run[mine] = np.arange(end, end + mine.size)
            end += mine.size
            parts.append(part)
        return FoundShards(run, offset, *map(np.concatenate, zip(*parts, strict=True)), grids=None)


def _rows(order: DatasetOrder, table: Table, d: int, base: int) -> tuple[np.ndarray, ...]:
    """A dataset's rows of the joint table: start, dataset, pass, shard and samples of each run."""
    num = order.counts.size
    num_passes = table.last - table.first + 1
    passes = np.repeat(np.arange(table.first, table.last + 1), num)
    place = np.tile(np.arange(num), num_passes) if table.shard is None else table.shard
    shard = place if order.filled is None else order.filled[place]
    return table.start[:-1] + base, np.full(passes.size, d), passes, shard, order.counts[place]


def _search(
    order: DatasetOrder, table: Table, d: int, position: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The runs of elements of one dataset, a row for each, and the places in them."""
    run = np.searchsorted(table.start, position, side="right") - 1
    offset = position - table.start.take(run)
    num = order.counts.size
    passes = table.first + run // num
    shard = run % num if table.shard is None else table.shard.take(run)
    count = order.counts.take(shard)
    shard = shard if order.filled is None else order.filled.take(shard)
    return (np.full(run.size, d), passes, shard, count), offset


def table_for(
    orders: Sequence[DatasetOrder], spans: PassRanges, known: ShardTable | None, asked: int
) -> ShardTable:
    """The table that a question needs: the last one again where it holds all passes.

    Args:
      orders: The datasets' orders.
      spans: The passes that are asked for.
      known: The last table.
      asked: Places asked for.
    """
    first, last = spans
    missing = last >= first
    if known is not None:
        missing &= (first < known.first) | (last > known.last)
        if not missing.any():
            return known
    wanted: list[tuple[DatasetOrder, int, int]] = []
    for d in np.flatnonzero(missing).tolist():
        begin, end = int(first[d]), int(last[d])
        if known is not None and known.first[d] <= begin <= known.last[d] + 1:  # it goes on
            shards, passes = orders[d].counts.size, end - begin + 1
            room = LARGE // shards - passes
            if begin == known.last[d] + 1 and (passes == 1 or room > 0):
                begin, room = begin - 1, room - 1  # not all lanes have left that pass
            end += max(0, min(_AHEAD * passes, asked // (_AHEAD_SHARE * shards), room))
        wanted.append((orders[d], begin, end))
    tables = {} if known is None else dict(known.tables)
    made = make_tables(wanted)
    tables.update(zip(np.flatnonzero(missing).tolist(), made, strict=True))
    return ShardTable(orders, tables)
