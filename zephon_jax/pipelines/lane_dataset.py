"""The stream of one lane as a Grain dataset."""

from __future__ import annotations

import base64
import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.data.bad_records import Unreadable
from zephon_jax.data.read_samples import datasets_of
from zephon_jax.data.reader import Reader, default_reader
from zephon_jax.pipelines.lane_group import LaneCursor, LaneGroup, LaneWindow, ReadWindow
from zephon_jax.pipelines.lane_lengths import number_of_sample, seek_sample
from zephon_jax.pipelines.planned_windows import distinct_shards, planned_windows
from zephon_jax.pipelines.read_threads import submit
from zephon_jax.pipelines.skipped_records import SKIPPED, SkippedRecords, checked_counts
from zephon_jax.sources.checks import check_lane, draw
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.codec import slot_check, slot_checks
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.stateful_lane import state_from_dict, state_to_dict
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["LaneIterDataset", "LaneIterator"]

_CHUNKS_PLANNED = 4  # chunks whose shards are fetched before they are wanted
_LEAST_WINDOW = 1 << 18  # bytes
# Slots of a chunk that are looked at together where chunks are long or lanes are many: few at
# first, so that a lane opens at once, then as many as cost no more a slot than the whole chunk.
_FIRST_SLOTS, _MOST_SLOTS = 1 << 10, 1 << 16
_reading: weakref.WeakSet[LaneIterator] = weakref.WeakSet()  # iterators that hold windows


class LaneIterDataset(grain.IterDataset):
    """The stream of one lane: a `grain.IterDataset` whose state is a few hundred bytes of JSON.

    Elements are those of `MixtureMapDataset`. Windows of a chunk are read ahead on a thread,
    shard by shard, and delivered in reading order.

    Args:
      source: Any source.
      lane: The lane, 0 <= lane < num_lanes.
      num_lanes: Number of lanes, the same for the whole run.
      read_config: How chunks are read; smooth weighted round robin by default.

    Raises:
      TypeError, ValueError: If the lane is not in [0, num_lanes).

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(100)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=10)
      >>> lanes = [iter(zx.LaneIterDataset(source, lane, 2)) for lane in range(2)]
      >>> sorted(e["data"] for lane in lanes for e in lane) == list(range(100))
      True
    """

    __module__ = "zephon_jax"

    start: Any = None  # the lane's first state, where it is known
    group: LaneGroup | None = None  # the lanes with which it is read, where they are many

    def __init__(
        self,
        source: WorkSource,
        lane: int = 0,
        num_lanes: int = 1,
        read_config: MixtureReadConfig | None = None,
    ):
        super().__init__()
        check_source(source)
        self.source = source
        self.lane, self.num_lanes = check_lane(lane, num_lanes)
        self.read_config = check_read_config(read_config)
        self._slice = slice(0, None, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "group": None}  # another process goes through other lanes

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Takes every n-th element, for worker processes that share the lane.

        Raises:
          ValueError: For sequential slices, which would put the stream into another order.
        """
        if sequential_slice:
            raise ValueError(
                "a lane is a stream and has no sequential slices; use mp_prefetch with"
                " sequential_slice=False."
            )
        self._slice = slice(sl.start or 0, None, sl.step or 1)

    def check_place(self, state: Mapping[str, Any]) -> tuple[Any, int]:
        """Checks that a place of `get_state` is of this lane; nothing is read.

        Returns:
          The source's state, and how many samples of its next chunk were taken.

        Raises:
          ValueError: If it belongs to another lane, number of lanes or source.
        """
        decoded = state_from_dict(self.source, state, (self.lane, self.num_lanes))
        slot, check = state.get("slot"), state.get("check")
        if type(slot) is not int or slot < 0 or check != slot_check(state["state"], slot):
            raise ValueError(
                f"not the state of a lane, or damaged: slot = {slot!r} does not fit its check."
            )
        self.source.check_slot(base64.b64decode(state["state"]), slot)
        return decoded, slot

    def __str__(self) -> str:
        return f"LaneIterDataset({self.source!r}, lane={self.lane}, num_lanes={self.num_lanes})"

    def __iter__(self) -> LaneIterator:
        return LaneIterator(self, self._slice)


class LaneIterator(grain.DatasetIterator):
    """Delivers windows; its place is a chunk's state and a slot, whatever is read ahead."""

    def __init__(self, dataset: LaneIterDataset, part: slice):
        super().__init__()
        self._dataset, self._part = dataset, part
        self._lane = dataset.lane, dataset.num_lanes
        self._ids = dict(dataset.source.component_ids())
        self.limit: int | None = None  # the block of lanes before which it ends
        self.has_read = False  # False for ever where another process reads
        # Who takes every n-th element reads in a process of its own.
        self._group = dataset.group if part == slice(0, None, 1) else None
        start = dataset.start
        self._go_to(dataset.source.init(*self._lane) if start is None else start, part.start)

    @property
    def dataset(self) -> LaneIterDataset:
        """The lane it goes through."""
        return self._dataset

    def _go_to(self, state: Any, slot: int, skipped: Mapping[str, int] | None = None) -> None:
        """Stands before a slot of the chunk after a state; nothing is read yet."""
        with contextlib.nullcontext() if self._group is None else self._group.lock:
            self._stand(state, slot, skipped)
            if self._group is not None:
                self._group.add(self)

    def _stand(self, state: Any, slot: int, skipped: Mapping[str, int] | None) -> None:
        self._skipped = SkippedRecords(datasets_of(self._dataset.source).values(), skipped)
        self._state = state
        self._encoded: tuple[dict[str, Any], Callable[[int], int]] | None = None
        self._windows: Iterator[LaneWindow] | None = None  # of a lane that is read alone,
        self._cursor: LaneCursor | None = None  # and of one that is read with others
        self._ahead: Future[ReadWindow | None] | None = None
        self._elements: Iterator[tuple[Any, np.int32, np.ndarray]] = iter(())
        self._slots: list[int] = [slot]  # of the window's elements, and the one after them
        self._delivered = 0
        self._process = os.getpid()  # Threads that read ahead do not run in a forked one.
        self.chunk: WorkChunk | None = None  # of the last element that was delivered

    def __next__(self) -> dict[str, Any]:
        element = next(self._elements, None)
        while element is None:  # A window may have bad records alone.
            self._load()
            element = next(self._elements, None)
        self._delivered += 1
        if type(element[0]) is Unreadable:  # The next call goes on behind it.
            raise element[0].error
        return {"data": element[0], "component_id": element[1], "sample_id": element[2]}

    @property
    def _slot(self) -> int:
        """The slot of the next element."""
        return self._slots[self._delivered]

    def _load(self) -> None:
        """Takes the window that was read ahead and starts on the one after it."""
        loaded = self._look_ahead()
        if loaded is None or (self.limit is not None and self._block(loaded[0]) >= self.limit):
            raise StopIteration
        window, records = loaded
        self._skipped.pass_on(self._slot)
        if self._state is not window.state:
            self._state, self._encoded = window.state, None
        places = window.places.tolist()
        end = places[-1] + self._part.step
        if Unreadable in set(map(type, records)):
            kept, records = self._settle(window, records)
            window = window._replace(
                component_ids=window.component_ids[kept], sample_ids=window.sample_ids[kept]
            )
            places = window.places[kept].tolist()
        self._elements = zip(records, window.component_ids, window.sample_ids, strict=True)
        self._slots, self._delivered = [*places, end], 0
        self.chunk = window.chunk
        self._ahead = None
        self.request()

    def _settle(self, window: LaneWindow, records: list[object]) -> tuple[list[int], list[object]]:
        """The places in a window that are delivered, and their records.

        A record that raises is delivered as what it raises.
        """
        by_id, kept, left = datasets_of(self._dataset.source), [], []
        for place, record in enumerate(records):
            if type(record) is Unreadable:
                dataset = by_id[int(window.sample_ids[place, 0])]
                found = self._skipped.settle(dataset, record, int(window.places[place]))
            else:
                found = [record]
            kept += [place] * len(found)
            left += found
        return kept, left

    @property
    def num_skipped(self) -> dict[str, int]:
        """Bad records before the next element that were left out or replaced, by dataset."""
        return self._skipped.before(self._slot)

    def request(self) -> Future[ReadWindow | None]:
        """The window after the one that is delivered; asks for it where that was not done."""
        group = self._group
        if group is None:
            return self._request_alone()
        with group.lock:
            if self._cursor is None and not group.reads_together():
                self._group = None
                return self._request_alone()
            if self._cursor is None:
                _reading.add(self)
                self._cursor = group.cursor(self._state, self._slot)
            if self._ahead is None:
                self.has_read = True
                self._ahead = group.ask(self, self._cursor)
            return self._ahead

    def _request_alone(self) -> Future[ReadWindow | None]:
        if self._windows is None:
            self._windows = self._make_windows(self._state, self._slot)
        if self._ahead is None:
            self._ahead = submit(self._read, self._windows)
        return self._ahead

    def _look_ahead(self) -> ReadWindow | None:
        """The window after the one that is delivered, which stays ahead; None at the end."""
        if self._process != os.getpid():
            self._go_to(self._state, self._slot, self.num_skipped)
        try:
            ahead = self.request()
            if self._group is not None:
                self._group.hurry(ahead)
            return ahead.result()
        except BaseException:
            # Stand where we stood, so that the next call tries the same window again.
            self._go_to(self._state, self._slot, self.num_skipped)
            raise

    def _block(self, window: LaneWindow) -> int:
        """The block of lanes that a window's chunk is in; it grows by one a chunk of this lane."""
        chunk = window.chunk
        if chunk.chunk_index is None:
            raise ValueError(
                f"{type(self._dataset.source).__name__} does not number its chunks; give them a"
                " chunk_index."
            )
        return (chunk.chunk_index - chunk.slot) // self._lane[1]

    def next_block(self) -> int | None:
        """The block of the next element's chunk, past any limit; None at the end.

        To be asked where a window has been delivered to its end.
        """
        loaded = self._look_ahead()
        return None if loaded is None else self._block(loaded[0])

    def _read(self, windows: Iterator[LaneWindow]) -> ReadWindow | None:
        import jax

        self.has_read = True
        with jax.profiler.TraceAnnotation("zephon_jax.read"):  # reads show up in profiles
            window = next(windows, None)
            if window is None:
                return None
            by_id = datasets_of(self._dataset.source)
            return ReadWindow(window, default_reader().read(by_id, window.sample_ids, marked=True))

    def _make_windows(self, state: object, slot: int) -> Iterator[LaneWindow]:
        reader, by_id = default_reader(), datasets_of(self._dataset.source)
        _reading.add(self)
        windows = self._cut_windows(reader, state, slot)
        return planned_windows(reader, by_id, windows) if reader.plans_blocks(by_id) else windows

    def _cut_windows(self, reader: Reader, state: Any, slot: int) -> Iterator[LaneWindow]:
        by_id = datasets_of(self._dataset.source)
        size = _FIRST_SLOTS
        for before, chunk, ordered in self._chunks_ahead(reader, state):
            names = np.asarray([self._ids[name] for name in chunk.names], dtype=np.int32)
            while slot < len(chunk):
                # What is looked at together decides what a lane costs before its first element.
                together = size if ordered is None or len(chunk) > _MOST_SLOTS else len(chunk)
                stop, size = min(len(chunk), slot + together), min(4 * size, _MOST_SLOTS)
                places = np.arange(slot, stop, self._part.step)
                if ordered is None:
                    component, ids = chunk.window(slot, stop, self._dataset.read_config)
                    component, ids = component[:: self._part.step], ids[:: self._part.step]
                else:
                    component, ids = (array[places] for array in ordered)
                stamped = names[component]
                # All lanes of the process keep to the setting together, each with the window it
                # delivers and the one that is read ahead.
                share = max(_LEAST_WINDOW, reader.window_bytes // (2 * len(_reading)))
                for a, b in reader.windows(by_id, ids, share):
                    yield LaneWindow(before, places[a:b], stamped[a:b], ids[a:b], chunk)
                slot = int(places[-1]) + self._part.step
            slot -= len(chunk)

    def _chunks_ahead(self, reader: Reader, state: Any) -> Iterator[tuple[Any, WorkChunk, Any]]:
        """Chunks with their order; the shards of those to come are planned where that helps."""
        source, config = self._dataset.source, self._dataset.read_config
        plan = reader.needs_plan(datasets_of(source))
        waiting: deque[tuple[Any, WorkChunk, Any]] = deque()
        more, owner = True, object()
        try:
            while more or waiting:
                while more and len(waiting) < (_CHUNKS_PLANNED if plan else 1):
                    chunk, after = draw(source, state)
                    more = chunk is not None
                    if chunk is not None:
                        late = chunk.by_window and not plan
                        waiting.append((state, chunk, None if late else chunk.order(config)))
                        state = after
                if plan:
                    shards = [distinct_shards(ordered[1]) for _, _, ordered in waiting]
                    upcoming = np.concatenate([np.zeros((0, 2), dtype=np.int64), *shards])
                    reader.plan(datasets_of(source), upcoming, owner=owner)
                if waiting:
                    yield waiting.popleft()
        finally:  # also when the iterator is dropped: its shards need no more protection
            if plan:
                reader.forget(owner)

    def get_state(self) -> dict[str, Any]:
        """The lane's place as plain JSON."""
        if self._encoded is None:
            encoded = state_to_dict(self._state)
            self._encoded = encoded, slot_checks(str(encoded["state"]))
        encoded, check = self._encoded
        slot = self._slots[self._delivered]
        skipped = self._skipped.before(slot)
        found = {**encoded, "slot": slot, "check": check(slot)}
        return {**found, SKIPPED: skipped} if skipped else found

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a place that `get_state` described. On an error nothing has changed.

        Raises:
          ValueError: If it belongs to another lane, number of lanes or source.
        """
        decoded, slot = self._dataset.check_place(state)
        self._go_to(decoded, slot, checked_counts(state.get(SKIPPED, {})))

    def _set_next_index(self, index: int) -> None:
        """Goes to an element by its number in the lane, by Grain's `set_next_index`."""
        number = self._part.start + as_int(index, "index", 0) * self._part.step
        self._go_to(*seek_sample(self._dataset.source, *self._lane, number))

    def _get_next_index(self) -> int:
        place = self._state, self._slot
        number = number_of_sample(self._dataset.source, *self._lane, *place)
        if number is None:
            raise NotImplementedError(
                f"{type(self._dataset.source).__name__} gives no chunk_spans(), so the number of"
                " an element is not known."
            )
        return -(-(number - self._part.start) // self._part.step)

    def __str__(self) -> str:
        return f"LaneIterator({self._dataset})"
