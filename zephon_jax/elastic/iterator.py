"""The iterator of an elastic dataset: it hands out steps and knows where the last one ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.elastic.checkpoint.lane_files import load_files, to_files, write_files
from zephon_jax.elastic.columns import Columns
from zephon_jax.elastic.lane_rows import LaneRows, Part
from zephon_jax.elastic.prefetch import Run
from zephon_jax.elastic.process_engine import ProcessEngine
from zephon_jax.elastic.steps import (
    Engine,
    Place,
    Step,
    ThreadEngine,
    constant_rows,
    make_batch,
    see_row,
)

if TYPE_CHECKING:
    from zephon_jax.elastic.checkpoint.folder import Checkpoint
    from zephon_jax.elastic.dataset import ElasticIterDataset

__all__ = ["ElasticIterator", "revive"]

_VERSION = 1
_SECONDS_TO_END = 5.0
_TUPLE = "__tuple__"


class ElasticIterator(grain.DatasetIterator):
    """Hands out this host's part of each global batch.

    Its state describes the last batch that was handed out, whatever is made ahead, and is plain
    JSON by lane: neither hosts nor threads nor workers are in it.
    """

    def __init__(self, dataset: ElasticIterDataset):
        super().__init__()
        self.dataset = dataset
        self._lanes = [LaneRows(dataset.plan, lane) for lane in dataset.owned_lanes]
        self._rules = dataset.rules()
        self._like: list[Columns] = []
        self._engine: Engine = self._make_engine()
        self._run: Run | None = None
        self._dirty = False  # True where the engine's lanes are not at the place
        self._place = Place(0, 0, [lane.get_state() for lane in self._lanes], "")
        # The abandoned checkpoint that was gone to, for the next save: it is no longer abandoned.
        self.taken_up: Checkpoint | None = None

    def _make_engine(self) -> Engine:
        dataset = self.dataset
        if dataset.num_workers:
            states = [lane.get_state() for lane in self._lanes]
            return ProcessEngine(dataset.plan, dataset.owned_lanes, states, dataset.num_workers)
        return ThreadEngine(self._lanes, dataset.num_threads)

    def __next__(self) -> Any:
        import jax

        self.start_prefetch()
        assert self._run is not None
        with jax.profiler.TraceAnnotation("zephon_jax.wait"):
            item = self._run.take()
        if isinstance(item, Step):
            self._place = item.place
            return item.batch
        self._halt()
        if item is None:
            raise StopIteration
        raise item

    def start_prefetch(self) -> None:
        """Starts making steps ahead, where that has not begun."""
        self._assert_not_closed()
        if self._run is not None and self._run.stopped:
            self._halt()  # a pipeline did not come back in time before
        if self._run is None:
            if self._dirty:
                self._engine.go_to(self._place.states)
            self._dirty = True
            self._run = Run(
                self._engine, self._rules, self._place, self.dataset.steps_ahead, self._like,
                self.dataset.timeout,
            )  # fmt: skip

    def peek_error(self) -> Exception | None:
        """Makes the next step and keeps it; returns what goes wrong with it, if anything does."""
        self.start_prefetch()
        assert self._run is not None
        try:
            item = self._run.peek()
        except TimeoutError as error:
            return error
        return item if isinstance(item, Exception) else None

    def at_end(self) -> bool:
        """True where there is no next step; makes it, where there is, and keeps it."""
        self.start_prefetch()
        assert self._run is not None
        return self._run.peek() is None

    def can_mask(self) -> bool:
        """True where it is known what masked rows look like: the lanes have a row at all."""
        return see_row(self._rules, self._like, self._place.spec)

    def masked_step(self) -> Any:
        """A batch of masked rows only, and goes on by a step: for a host whose lanes have ended.

        Raises:
          ValueError: Without pad=True, or where no row was ever seen.
        """
        if not self._rules.pad:
            raise ValueError("masked rows need pad=True.")
        self._halt()
        each = self._rules.rows_of(self._place.step)
        part = Part(None, [0] * len(self._lanes), self._place.states)
        batch = make_batch(part, self._rules, each, self._like, self._place.spec)
        self._place = self._place._replace(step=self._place.step + 1, rows=self._place.rows + each)
        return batch

    def _halt(self) -> None:
        """Drops what was made ahead; the next step starts at the last batch handed out."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch handed out, as plain JSON, of the lanes of this host."""
        return self.state_at(self._place)

    @property
    def place(self) -> Place:
        """The place after the last batch handed out; cheap to keep, see `state_at`."""
        return self._place

    def state_at(self, place: Place) -> dict[str, Any]:
        """A place as plain JSON."""
        dataset = self.dataset
        lanes = zip(dataset.owned_lanes, place.states, strict=True)
        return {
            "version": _VERSION, "run": dataset.run_id, "num_lanes": dataset.num_lanes,
            "step": place.step, "rows": place.rows, "spec": place.spec,
            "lanes": {str(lane): _plain(state) for lane, state in lanes},
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a place that `get_state` described on any number of hosts.

        Takes this host's lanes from it. On an error nothing has changed.

        Raises:
          ValueError: If lanes are missing, or it belongs to another run or pipeline.
        """
        place = self._read_state(state)
        self._halt()
        try:
            for lane, one in zip(self._lanes, place.states, strict=True):
                lane.set_state(one)
        except ValueError:
            self._dirty = True
            raise
        # Lanes of this process stand there already; those of workers are told before they go on.
        self._place, self._dirty, self.taken_up = place, self.dataset.num_workers > 0, None

    def checked_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A snapshot as `get_state` returned it, after all checks that need no pipeline.

        Raises:
          ValueError: As `set_state`.
        """
        return self.state_at(self._read_state(state))

    def _read_state(self, state: Mapping[str, Any]) -> Place:
        dataset = self.dataset
        try:
            version, run = as_int(state["version"], "version"), state["run"]
            num_lanes, step, rows = (
                as_int(state[name], name, 0) for name in ("num_lanes", "step", "rows")
            )
            spec, lanes = str(state["spec"]), dict(state["lanes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of an elastic dataset: {error!r}.") from None
        if version != _VERSION:
            raise ValueError(f"the state has version {version}; this reads version {_VERSION}.")
        if num_lanes != dataset.num_lanes:
            raise ValueError(
                f"the state is of {num_lanes} lanes; this run has {dataset.num_lanes}. Lanes are"
                " chosen once; cut a run anew with zx.relane."
            )
        missing = [lane for lane in dataset.owned_lanes if str(lane) not in lanes]
        if missing:
            raise ValueError(f"the state lacks lanes {missing} that this host owns.")
        if run != dataset.run_id:
            # The first lane's own state says what differs.
            self._refuse(lanes[str(dataset.owned_lanes[0])])
        if spec and self._place.spec and spec != self._place.spec:
            raise ValueError(
                f"the state is of a pipeline that yields {spec}; this one yields"
                f" {self._place.spec}."
            )
        states = [_lane_state(lane, lanes[str(lane)]) for lane in dataset.owned_lanes]
        return Place(step, rows, states, spec)

    def _refuse(self, state: Any) -> None:
        LaneRows(self.dataset.plan, self.dataset.owned_lanes[0]).set_state(state)
        raise ValueError("the state belongs to another run: its source has other settings.")

    async def save(self, directory: Any) -> Any:
        """Saves itself with Orbax v1: takes the state now and returns what writes it later."""
        return write_files(directory, to_files(self.get_state(), self.dataset.written_lanes))

    async def load(self, directory: Any) -> Any:
        """Loads itself with Orbax v1, whatever hosts saved it."""
        return load_files(directory, self)

    def seek(self, step: int) -> None:
        """Goes to a step without a checkpoint: the next batch is number `step`.

        Raises:
          ValueError: If the pipeline does not yield one row for each sample.
        """
        step = as_int(step, "step", 0)
        if self.dataset.rows_per_sample is None:
            raise ValueError(
                "only pipelines with one row for each sample can go to a step; this one has"
                " rows_per_sample = None."
            )
        rows_of = self.dataset.rows_of
        constant = getattr(rows_of, "func", None) is constant_rows
        rows = step * rows_of(0) if constant else sum(rows_of(n) for n in range(step))
        self._halt()
        self._dirty, self.taken_up = True, None
        for lane in self._lanes:
            lane.seek(rows)
        states = [lane.get_state() for lane in self._lanes]
        self._place = Place(step, rows, states, self._place.spec)

    def _set_next_index(self, index: int) -> None:
        self.seek(index)

    def _get_next_index(self) -> int:
        return self._place.step

    def close(self) -> None:
        """Ends threads and worker processes; a thread whose pipeline hangs is left behind."""
        if not self._closed and hasattr(self, "_engine"):
            ended = self._run is None or self._run.stop(_SECONDS_TO_END)
            if not ended and self._run is not None and self._engine.kill():
                ended = self._run.stop(_SECONDS_TO_END)
            if ended:
                self._engine.close()
                for lane in self._lanes:
                    lane.close()
        super().close()

    def __str__(self) -> str:
        return f"ElasticIterator({self.dataset})"


def _lane_state(lane: int, state: Any) -> Any:
    """A lane's own state, for its pipeline to read.

    Raises:
      ValueError: If it is none, naming the lane.
    """
    try:
        used = as_int(state["used"], "used")
        revived = revive({**state, "pipeline": state["pipeline"]})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"lane {lane}: not the state of a lane: {error!r}.") from None
    if used < 0:
        raise ValueError(f"lane {lane}: {used} rows of a batch were used, of which there is none.")
    return revived


def _plain(value: Any) -> Any:
    """A state of Grain's as plain JSON: its iterators keep NumPy integers here and there.

    Tuples are marked: a packer that gets a list back for its tuple takes it for something else.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a pipeline's state must be plain JSON; got {type(value).__name__}.")


def revive(value: Any) -> Any:
    """A pipeline's state as it was before it became plain JSON, but for NumPy's types."""
    if isinstance(value, Mapping):
        if set(value) == {_TUPLE}:
            return tuple(revive(item) for item in value[_TUPLE])
        return {key: revive(item) for key, item in value.items()}
    return [revive(item) for item in value] if isinstance(value, list) else value
