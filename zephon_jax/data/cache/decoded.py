"""Decoded parts of shards in memory, within one budget for the whole process.

A part of a file that is decoded at once, such as a Parquet row group, holds far more rows than one
read asks for. Lanes say which parts their next reads take (`BlockPlan`), so the part whose next use
is farthest away goes first, as L. A. Belady found best (A study of replacement algorithms for a
virtual-storage computer, 1966). What goes leaves behind the few rows that the plans still ask for.
Parts that no plan knows go before those, oldest use first.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zephon_jax._process import DaemonThreads, PerProcess, from_environment
from zephon_jax.data.cache.block_plan import BlockPlan, BlockUse

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DecodedBlocks",
    "decoded_blocks",
    "default_decoded_bytes",
    "take_rows",
]

# Sixteen worker processes of a machine take a quarter of its memory together.
_MEMORY_SHARE = 64
_LEAST_BYTES = 1 << 26
_THREADS = 2  # that decode ahead
# Rows that evicted blocks leave behind take at most half of the budget: with scattered reads of
# many blocks a megabyte of them saves more decoding than one of whole blocks.
_ROWS_SHARE = 2
_SECONDS_AT_EXIT = 5.0


class _Rows(NamedTuple):
    """Some rows of a block."""

    rows: pa.Table
    # Their places in the block, int64 (n,), sorted; None for all rows.
    places: np.ndarray | None
    num_bytes: int


def take_rows(table: pa.Table, places: np.ndarray) -> pa.Table:
    """Some rows of a table.

    Args:
      table: The table, in one piece or several, which together may hold more than 2 GiB of text.
      places: int64 (n,), sorted.
    """
    if all(column.num_chunks <= 1 for column in table.columns):
        return table.take(places)
    pieces, end = [], 0
    for batch in table.to_batches():  # Arrow would join all pieces of nested columns first.
        begin, end = end, end + batch.num_rows
        first, last = np.searchsorted(places, (begin, end))
        if first < last:
            pieces.append(batch.take(places[first:last] - begin))
    return type(table).from_batches(pieces, table.schema)


class DecodedBlocks:
    """Decoded blocks by key. Safe to share between threads.

    Args:
      max_bytes: Budget. What is being decoded comes on top.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.num_decoded = 0  # blocks
        self.bytes_decoded = 0
        self.lock = threading.RLock()
        self._whole: OrderedDict[Hashable, _Rows] = OrderedDict()  # oldest use first
        self._left: dict[Hashable, _Rows] = {}  # planned rows of blocks that have gone
        self._whole_bytes = self._left_bytes = 0
        self._plans: list[BlockPlan] = []
        self._making: dict[Hashable, Future[pa.Table]] = {}
        self._threads = DaemonThreads(_THREADS, "zephon-decode")
        self._num_ahead = 0  # threads that decode ahead
        self._under_way: weakref.WeakSet[Future[None]] = weakref.WeakSet()
        self._process = os.getpid()
        self._closed = False
        _made.add(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept."""
        return self._whole_bytes + self._left_bytes

    def __len__(self) -> int:
        return len(self._whole)

    def rows(self, use: BlockUse) -> tuple[pa.Table, np.ndarray]:
        """Returns a table that has the rows of a use, and their places in it.

        A block that another thread is decoding is waited for.
        """
        with self.lock:
            found = self._find(use)
            self._count(use.key)
            making, mine = self._making.get(use.key), None
            if found is None and making is None:
                mine = self._making[use.key] = Future()
        if found is not None:
            return found
        if mine is not None:
            self._make(use, mine)
        waited = mine or making
        assert waited is not None
        return waited.result(), use.places

    def whole(self, use: BlockUse) -> pa.Table:
        """Returns a whole block."""
        with self.lock:
            held = self._whole.get(use.key)
        if held is not None:
            return held.rows
        block = use.decode()
        self._keep(use.key, block)
        return block

    def forget(self) -> None:
        """Drops all that is kept."""
        with self.lock:
            self._whole.clear()
            self._left.clear()
            self._whole_bytes = self._left_bytes = 0

    def plan(self) -> BlockPlan:
        """Returns a new plan, for one lane's reads in order."""
        plan = BlockPlan(self)
        with self.lock:
            self._plans.append(plan)
        return plan

    def close(self) -> None:
        """Decodes nothing ahead any more, and waits some seconds for what is being decoded."""
        self._closed = True
        if self._process == os.getpid():  # Threads that decode do not run in a forked one.
            wait(list(self._under_way), _SECONDS_AT_EXIT)

    def _find(self, use: BlockUse) -> tuple[pa.Table, np.ndarray] | None:
        held = self._whole.get(use.key)
        if held is not None:
            self._whole.move_to_end(use.key)
            return held.rows, use.places
        return self._find_left(use)

    def _find_left(self, use: BlockUse) -> tuple[pa.Table, np.ndarray] | None:
        """The rows of a use among those that a block has left behind, if all are there."""
        left = self._left.get(use.key)
        if left is None or left.places is None:
            return None
        where = np.searchsorted(left.places, use.places)
        where = np.minimum(where, len(left.places) - 1)
        if not np.array_equal(left.places[where], use.places):
            return None
        return left.rows, where

    def _make(self, use: BlockUse, future: Future[pa.Table]) -> None:
        """Decodes a block and gives it to all who wait for it."""
        try:
            block = use.decode()
            self._keep(use.key, block)
        except BaseException as error:
            with self.lock:
                self._making.pop(use.key, None)
            future.set_exception(error)
        else:
            with self.lock:
                self._making.pop(use.key, None)
            future.set_result(block)

    def _keep(self, key: Hashable, block: pa.Table) -> None:
        num_bytes = block.nbytes
        with self.lock:
            self.num_decoded += 1
            self.bytes_decoded += num_bytes
            self._drop(key)
            self._drop_left(key)
            self._whole[key] = _Rows(block, None, num_bytes)
            self._whole_bytes += num_bytes
            while self.num_bytes > self.max_bytes and len(self._whole) > 1:
                self._evict()

    def _evict(self) -> None:
        """Drops the block that is used last, but for the rows of it that plans know."""
        # The first of equals: the block that no plan knows and was used longest ago.
        key = max(self._whole, key=self._distance)
        held = self._whole[key]
        row_bytes = held.num_bytes / max(1, held.rows.num_rows)
        room = self.max_bytes / _ROWS_SHARE / max(1, len(self._plans))
        places = [use for plan in self._plans for use in plan.places_of(key, room / row_bytes)]
        self._drop(key)
        if not places:
            return
        wanted = np.unique(np.concatenate(places))
        rows = take_rows(held.rows, wanted)
        num_bytes = held.num_bytes * len(wanted) // max(1, held.rows.num_rows)
        self._left[key] = _Rows(rows, wanted, num_bytes)
        self._left_bytes += num_bytes
        while self._left_bytes > self.max_bytes // _ROWS_SHARE and len(self._left) > 1:
            self._drop_left(max(self._left, key=self._distance))

    def _drop(self, key: Hashable) -> None:
        held = self._whole.pop(key, None)
        self._whole_bytes -= 0 if held is None else held.num_bytes

    def _drop_left(self, key: Hashable) -> None:
        left = self._left.pop(key, None)
        self._left_bytes -= 0 if left is None else left.num_bytes

    def _distance(self, key: Hashable) -> float:
        """Uses of other blocks before the next one of this block; inf where no plan knows it."""
        return min((plan.distance(key) for plan in self._plans), default=math.inf)

    def _count(self, key: Hashable) -> None:
        """Strikes a use of a block off the plan that it belongs to."""
        for plan in self._plans:
            if plan.strike(key):
                break
        if key in self._left and self._distance(key) == math.inf:
            self._drop_left(key)

    def start_ahead(self) -> None:
        """Lets threads decode what is wanted next, as far as the budget goes."""
        with self.lock:
            self._plans = [plan for plan in self._plans if not plan.closed]
            if self._num_ahead < _THREADS and not self._closed and self._next_missing():
                self._num_ahead += 1
                self._under_way.add(self._threads.submit(self._decode_ahead, None))

    def _decode_ahead(self, _: None) -> None:
        while True:
            with self.lock:
                use = None if self._closed else self._next_missing(take=True)
                if use is None:
                    self._num_ahead -= 1
                    return
                future = self._making[use.key] = Future[Any]()
            self._make(use, future)  # Who reads it gets an error, with its name.

    def _next_missing(self, take: bool = False) -> BlockUse | None:
        """The first planned block that is not here and for which the budget has room.

        Each use is taken once: what goes again before it is read is not decoded for ever.
        """
        nearest, found, its_plan = math.inf, None, None
        for plan in self._plans:
            room, seen = self.max_bytes // len(self._plans), set[Hashable]()
            for distance, use in enumerate(plan.upcoming()):
                if distance >= nearest or room < 0:
                    break
                if use.key in seen:
                    continue
                seen.add(use.key)
                room -= use.num_bytes
                known = use.key in self._making or plan.number + distance < plan.taken
                here = use.key in self._whole or self._find_left(use) is not None
                if room >= 0 and not known and not here:
                    nearest, found, its_plan = distance, use, plan
        if take and its_plan is not None:
            its_plan.taken = its_plan.number + int(nearest) + 1
        return found


_made: weakref.WeakSet[DecodedBlocks] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Arrow is not at work as the interpreter goes: it would abort the program."""
    for blocks in list(_made):
        blocks.close()


def _memory_bytes() -> int:
    """Memory that this process may take: the machine's, or its container's."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                found = min(found, int(file.read()))
        except (OSError, ValueError):  # "max"
            continue
    return found


@functools.cache
def default_decoded_bytes() -> int:
    """The budget that nobody has set: a part of the memory."""
    return max(_LEAST_BYTES, _memory_bytes() // _MEMORY_SHARE)


_default: PerProcess[DecodedBlocks] = PerProcess(DecodedBlocks)


def decoded_blocks() -> DecodedBlocks:
    """Returns the blocks of this process, within `$ZEPHON_JAX_DECODED_BYTES`."""
    return _default.get(from_environment("DECODED_BYTES", default_decoded_bytes(), 1))
