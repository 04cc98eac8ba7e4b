"""Lanes of a process that are read together.

A lane's next window costs some forty NumPy calls and a read of a few records of each shard. Lanes
that go on in step want their windows at about the same time: a group draws their chunks, finds
their samples and reads them by calls that serve all of them. What a lane delivers is the same.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon_jax._process import PerProcess
from zephon_jax.data.read_samples import datasets_of
from zephon_jax.data.reader import PROBE, default_reader
from zephon_jax.pipelines.read_threads import submit
from zephon_jax.sources.checks import draw_of_lanes
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.chunk_windows import ChunkWindow, windows_of
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.work_source import WorkSource

__all__ = ["LaneCursor", "LaneGroup", "LaneWindow", "ReadWindow"]

# Slots of all lanes together that are looked up at first, so that the first batch does not wait for
# those after it, and at most: of 1,024 lanes a window took some 30 microseconds a lane whatever its
# length, and 2 to 4 a record, against 20 for what Grain does with each.
_FIRST_SLOTS, _MOST_SLOTS = 1 << 16, 1 << 19
_LEAST_FIRST, _LEAST_MOST = 4, 16  # of each lane
_MOST_FIRST = 1 << 10
_PARTS = 4  # jobs for the windows of all lanes: as many as there are threads
_LEAST_BYTES = 1 << 16  # of a window of each lane


class LaneWindow(NamedTuple):
    """A run of a lane's elements that are read together."""

    state: Any  # the source's state before the window's chunk
    places: np.ndarray  # int64 (n,), slots in the chunk
    component_ids: np.ndarray  # int32 (n,)
    sample_ids: np.ndarray  # int64 (n, 3)
    chunk: WorkChunk


class ReadWindow(NamedTuple):
    """A window and its records."""

    window: LaneWindow
    records: list[object]


class _Lane(Protocol):
    """An iterator of a lane."""

    def request(self) -> object:
        """Asks for its next window, where it has not."""
        ...


class LaneCursor:
    """Up to where a lane has been cut into windows."""

    def __init__(self, state: Any, slot: int, slots: int):
        self.state = self.before = state  # before the chunk that is drawn next, and the one in hand
        self.slot = slot  # the first that is not looked up
        self.slots = slots  # to be looked up next
        self.chunk: WorkChunk | None = None
        self.ended = False
        self.component = np.zeros(0, dtype=np.int32)  # of slots that are looked up and not read,
        self.ids = np.zeros((0, 3), dtype=np.int64)  # and their samples

    @property
    def wants_chunk(self) -> bool:
        """True where no slot of its chunk is left to look up."""
        return not self.ended and (self.chunk is None or self.slot >= len(self.chunk))

    @property
    def wants_slots(self) -> bool:
        """True where nothing is looked up that could be read."""
        return not self.ended and not len(self.ids)

    def open(self, chunk: WorkChunk | None, after: Any) -> None:
        """Goes to the lane's next chunk, or to its end."""
        if chunk is None:
            self.ended = True
            return
        if self.chunk is not None:
            self.slot -= len(self.chunk)
        self.before, self.state, self.chunk = self.state, after, chunk

    def upcoming(self) -> ChunkWindow:
        """The slots to look up."""
        assert self.chunk is not None
        return ChunkWindow(self.chunk, self.slot, min(len(self.chunk), self.slot + self.slots))

    def look_up(self, component: np.ndarray, ids: np.ndarray, most: int) -> None:
        """Takes what `upcoming` slots hold; more of them are looked up the next time."""
        self.component, self.ids = component, ids
        self.slot += len(ids)
        self.slots = max(self.slots, min(4 * self.slots, most))

    def take(self, num: int, stamps: np.ndarray) -> LaneWindow:
        """The next of the slots that are looked up, which have been read."""
        assert self.chunk is not None
        begin = self.slot - len(self.ids)
        window = LaneWindow(
            self.before, np.arange(begin, begin + num), stamps[self.component[:num]],
            self.ids[:num], self.chunk,
        )  # fmt: skip
        self.component, self.ids = self.component[num:], self.ids[num:]
        return window


class _Waiting:
    """What lanes of one process wait for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.cold: weakref.WeakSet[_Lane] = weakref.WeakSet()  # they have asked for nothing yet
        self.wanted: dict[Future[ReadWindow | None], LaneCursor] = {}


class LaneGroup:
    """Reads the windows of some lanes of a source together. Threads may share it.

    Args:
      source: Any source.
      read_config: How chunks are read.
      num_lanes: Lanes that this process goes through.
    """

    def __init__(self, source: WorkSource, read_config: MixtureReadConfig, num_lanes: int):
        self._source, self._config, self._num_lanes = source, read_config, num_lanes
        self._component_ids = dict(source.component_ids())
        self._first_slots = min(max(_LEAST_FIRST, _FIRST_SLOTS // num_lanes), _MOST_FIRST)
        self._most_slots = max(_LEAST_MOST, _MOST_SLOTS // num_lanes)
        self._enough = -(-num_lanes // _PARTS)
        self._waiting: PerProcess[_Waiting] = PerProcess(_Waiting)
        self._stamps: tuple[tuple[str, ...], np.ndarray] = ((), np.zeros(0, dtype=np.int32))

    @property
    def lock(self) -> threading.RLock:
        """Held where a lane asks for a window, or goes elsewhere."""
        return self._waiting.get().lock

    def reads_together(self) -> bool:
        """False where lanes have to be looked at alone: shards are copied or decoded in blocks."""
        by_id, reader = datasets_of(self._source), default_reader()
        return not reader.needs_plan(by_id) and not reader.plans_blocks(by_id)

    def add(self, lane: _Lane) -> None:
        """A lane that will want its first window when the others do."""
        self._waiting.get().cold.add(lane)

    def cursor(self, state: Any, slot: int) -> LaneCursor:
        """Begins to cut a lane into windows, before a slot of the chunk after a state."""
        return LaneCursor(state, slot, self._first_slots)

    def ask(self, lane: _Lane, cursor: LaneCursor) -> Future[ReadWindow | None]:
        """A lane's next window, None at its end: read when enough lanes have asked."""
        waiting, future = self._waiting.get(), Future[ReadWindow | None]()
        with waiting.lock:
            waiting.cold.discard(lane)
            waiting.wanted[future] = cursor
            if len(waiting.wanted) >= self._enough:
                self._begin(waiting)
        return future

    def hurry(self, future: Future[ReadWindow | None]) -> None:
        """Begins to read what a lane waits for, and what others have asked for."""
        waiting = self._waiting.get()
        if future.done() or future not in waiting.wanted:
            return
        with waiting.lock:
            for lane in list(waiting.cold):
                with contextlib.suppress(Exception):  # It is that lane's own, when its turn comes.
                    lane.request()
            self._begin(waiting)

    def _begin(self, waiting: _Waiting) -> None:
        wanted, waiting.wanted = waiting.wanted, {}
        if wanted:
            submit(self._serve, wanted)

    def _serve(self, wanted: dict[Future[ReadWindow | None], LaneCursor]) -> None:
        live = {f: cursor for f, cursor in wanted.items() if f.set_running_or_notify_cancel()}
        try:
            found = self.read(list(live.values()))
        except Exception:  # Some lanes may have no part in it.
            self._serve_alone(live)
        except BaseException as error:
            for future in live:
                future.set_exception(error)
        else:
            for future, one in zip(live, found, strict=True):
                future.set_result(one)

    def _serve_alone(self, live: dict[Future[ReadWindow | None], LaneCursor]) -> None:
        for future, cursor in live.items():
            try:
                future.set_result(self.read([cursor])[0])
            except BaseException as error:
                future.set_exception(error)

    def read(self, cursors: Sequence[LaneCursor]) -> list[ReadWindow | None]:
        """Reads the next window of some lanes; None for a lane that has ended.

        Where it raises, all lanes are where they were.
        """
        import jax

        with jax.profiler.TraceAnnotation("zephon_jax.read"):  # reads show up in profiles
            self._look_up(cursors)
            live = [cursor for cursor in cursors if not cursor.ended]
            if not live:
                return [None] * len(cursors)
            by_id, nums = datasets_of(self._source), self._cut(live)
            ids = [cursor.ids[:num] for cursor, num in zip(live, nums, strict=True)]
            records = default_reader().read(by_id, np.concatenate(ids), marked=True)
        found: list[ReadWindow | None] = []
        begin, sizes = 0, iter(nums)
        for cursor in cursors:
            if cursor.ended:
                found.append(None)
                continue
            num = next(sizes)
            window = cursor.take(num, self._stamps_of(cursor.chunk))
            found.append(ReadWindow(window, records[begin : begin + num]))
            begin += num
        return found

    def _look_up(self, cursors: Sequence[LaneCursor]) -> None:
        """Draws chunks and finds samples, so that each lane has something to read or has ended."""
        while empty := [cursor for cursor in cursors if cursor.wants_slots]:
            dry = [cursor for cursor in empty if cursor.wants_chunk]
            drawn = draw_of_lanes(self._source, [cursor.state for cursor in dry]) if dry else []
            for cursor, (chunk, after) in zip(dry, drawn, strict=True):
                cursor.open(chunk, after)
            ready = [one for one in empty if not one.ended and not one.wants_chunk]
            found = windows_of([cursor.upcoming() for cursor in ready], self._config)
            for cursor, (component, ids) in zip(ready, found, strict=True):
                cursor.look_up(component, ids, self._most_slots)

    def _cut(self, cursors: Sequence[LaneCursor]) -> list[int]:
        """How many of its slots each lane reads now, so that all of them keep to their bytes."""
        reader, many = default_reader(), [len(cursor.ids) for cursor in cursors]
        lane = np.repeat(np.arange(len(many)), many)
        number = np.arange(lane.size) - np.repeat(np.cumsum(many) - many, many)
        order = np.argsort(number, kind="stable")  # the first of each lane, then the second
        ids = np.concatenate([cursor.ids for cursor in cursors])[order]
        # Each lane has two windows: the one that it delivers and the one that is read ahead.
        share = max(_LEAST_BYTES, reader.window_bytes // (2 * self._num_lanes))
        num, by_id = len(many), datasets_of(self._source)
        _, stop = next(reader.windows(by_id, ids, share * num, PROBE * num))
        return np.maximum(1, np.bincount(lane[order[:stop]], minlength=num)).tolist()

    def _stamps_of(self, chunk: WorkChunk | None) -> np.ndarray:
        """The component id of each of a chunk's components: int32 (k,)."""
        assert chunk is not None
        names, stamps = self._stamps  # read once: another thread may put others there
        if names is not chunk.names:
            ids = [self._component_ids[name] for name in chunk.names]
            names, stamps = self._stamps = chunk.names, np.asarray(ids, dtype=np.int32)
        return stamps
