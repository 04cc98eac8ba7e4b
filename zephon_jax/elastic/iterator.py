"""The iterator of an elastic dataset: it hands out steps and knows where the last one ended."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

import grain

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.elastic.checkpoint.lane_files import load_files, to_files, write_files
from zephon_jax.elastic.columns import Columns
from zephon_jax.elastic.lane_rows import LaneRows, RowBlock
from zephon_jax.elastic.metrics import RunMeter
from zephon_jax.elastic.open_lanes import open_lanes
from zephon_jax.elastic.pipeline_name import pipeline_name
from zephon_jax.elastic.plain_json import lane_state, plain
from zephon_jax.elastic.prefetch import StepPrefetcher
from zephon_jax.elastic.process_engine import ProcessEngine
from zephon_jax.elastic.run_id import run_id_of
from zephon_jax.elastic.saved_changes import check_changes, check_not_read, plain_changes
from zephon_jax.elastic.steps import (
    Engine,
    Step,
    StepPosition,
    StepRules,
    make_batch,
    rows_before,
    see_row,
)
from zephon_jax.elastic.thread_engine import ThreadEngine

if TYPE_CHECKING:
    from zephon_jax.elastic.checkpoint.folder import Checkpoint

__all__ = ["ElasticIterator", "HostPlan"]

_VERSION = 2  # since 2 with what the pipeline is made of
_SECONDS_TO_END = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What one host runs, and how."""

    rules: StepRules  # with the lanes that it owns
    written_lanes: tuple[int, ...]  # those that it saves; others may own the same lanes
    run_id: str
    pipeline_id: str  # what the user calls the pipeline; empty where it has no name
    one_to_one: bool  # True where the pipeline yields one row for each sample
    num_workers: int
    num_threads: int
    prefetch: int  # steps
    timeout: float  # seconds


class ElasticIterator(grain.DatasetIterator):
    """Hands out this host's part of each global batch.

    Its state describes the last batch that was handed out, whatever is made ahead, and is plain
    JSON by lane: neither hosts nor threads nor workers are in it.

    Attributes:
      restored_from: The abandoned checkpoint that it goes on from, which the next save makes one of
        the run's own line again; None otherwise.
    """

    restored_from: Checkpoint | None = None

    def __init__(self, plan: HostPlan):
        super().__init__()
        self._plan, self._rules = plan, plan.rules
        self._lanes = open_lanes(self._rules.plan, self._rules.owned)
        self._pipeline_name = pipeline_name(self._lanes[0].pipeline)
        self._meter = RunMeter(self._rules.plan, self._rules.owned, one_to_one=plan.one_to_one)
        self._changes = plain_changes(self._rules.plan.source)
        self._like: list[Columns] = []
        self._engine: Engine = self._make_engine()
        self._ahead: StepPrefetcher | None = None
        self._dirty = False  # True where the engine's lanes are not at the place
        self._place = StepPosition(0, 0, [lane.get_state() for lane in self._lanes], "")

    @property
    def run_id(self) -> str:
        """Names the run: a digest of the source's settings and the number of lanes."""
        return self._plan.run_id

    @property
    def num_lanes(self) -> int:
        """Lanes of the run."""
        return self._rules.plan.num_lanes

    @property
    def owned_lanes(self) -> tuple[int, ...]:
        """Lanes that this host runs."""
        return self._rules.owned

    @property
    def written_lanes(self) -> tuple[int, ...]:
        """Lanes that this host saves."""
        return self._plan.written_lanes

    @property
    def pads(self) -> bool:
        """True where lanes that have ended go on with masked rows."""
        return self._rules.pad

    def _make_engine(self) -> Engine:
        plan = self._plan
        if plan.num_workers:
            states = [lane.get_state() for lane in self._lanes]
            return ProcessEngine(self._rules.plan, self._rules.owned, states, plan.num_workers)
        return ThreadEngine(self._lanes, plan.num_threads)

    def __next__(self) -> Any:
        import jax

        self.start_prefetch()
        assert self._ahead is not None
        began = time.perf_counter()
        with jax.profiler.TraceAnnotation("zephon_jax.wait"):
            item = self._ahead.take()
        self._meter.seconds_waited += time.perf_counter() - began
        if isinstance(item, Step):
            self._place = item.place
            self._meter.see(item.batch)
            return item.batch
        self._halt()
        if item is None:
            raise StopIteration
        raise item

    def start_prefetch(self) -> None:
        """Starts making steps ahead, where that has not begun."""
        self._assert_not_closed()
        if self._ahead is not None and self._ahead.stopped:
            self._halt()  # a pipeline did not come back in time before
        if self._ahead is None:
            if self._dirty:
                self._engine.go_to(self._place.states)
            self._dirty = True
            self._ahead = StepPrefetcher(
                self._engine, self._rules, self._place, self._plan.prefetch, self._like,
                self._plan.timeout,
            )  # fmt: skip

    def peek_error(self) -> Exception | None:
        """Makes the next step and keeps it; returns what goes wrong with it, if anything does."""
        self.start_prefetch()
        assert self._ahead is not None
        try:
            item = self._ahead.peek()
        except TimeoutError as error:
            return error
        return item if isinstance(item, Exception) else None

    def at_end(self) -> bool:
        """True where there is no next step; makes it, where there is, and keeps it."""
        self.start_prefetch()
        assert self._ahead is not None
        return self._ahead.peek() is None

    def can_mask(self) -> bool:
        """True where it is known what masked rows look like: the lanes have a row at all."""
        return see_row(self._rules, self._like, self._place.spec)

    def masked_step(self) -> object:
        """A batch of masked rows only, and goes on by a step: for a host whose lanes have ended.

        Raises:
          ValueError: Without pad=True, or where no row was ever seen.
        """
        if not self._rules.pad:
            raise ValueError("masked rows need pad=True.")
        self._halt()
        each = self._rules.rows_of(self._place.step)
        part = RowBlock(None, [0] * len(self._lanes), self._place.states)
        batch = make_batch(part, self._rules, each, self._like, self._place.spec)
        self._place = self._place._replace(step=self._place.step + 1, rows=self._place.rows + each)
        return batch

    def _halt(self) -> None:
        """Drops what was made ahead; the next step starts at the last batch handed out."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch handed out, as plain JSON, of the lanes of this host."""
        return self.state_at(self._place)

    @property
    def place(self) -> StepPosition:
        """The place after the last batch handed out; cheap to keep, see `state_at`."""
        return self._place

    def state_at(self, place: StepPosition) -> dict[str, object]:
        """A place as plain JSON; with the chunk before which it ends, where it is cut there."""
        end = self._rules.plan.source.end
        lanes = zip(self.owned_lanes, place.states, strict=True)
        return {
            "version": _VERSION, "run": self.run_id, "num_lanes": self.num_lanes,
            "step": place.step, "rows": place.rows, "spec": place.spec,
            "pipeline": self._pipeline_name, "pipeline_id": self._plan.pipeline_id,
            "lanes": {str(lane): plain(state) for lane, state in lanes},
            **({} if end is None else {"end": end}),
            **({"changes": self._changes} if self._changes else {}),
        }  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a place that `get_state` described on any number of hosts.

        Takes this host's lanes from it. On an error nothing has changed.

        Raises:
          ValueError: If lanes are missing, or it belongs to another run or pipeline.
        """
        self._assert_not_closed()
        place = self.read_state(state)
        self._halt()
        try:
            for lane, one in zip(self._lanes, place.states, strict=True):
                lane.set_state(one)
        except ValueError:
            self._dirty = True
            raise
        # Lanes of this process stand there already; those of workers are told before they go on.
        self._place, self._dirty = place, self._plan.num_workers > 0
        self.restored_from = None
        self._compare_pipelines(state)

    def checked_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """A snapshot as `get_state` returned it, after all checks that need no pipeline.

        Raises:
          ValueError: As `set_state`.
        """
        return self.state_at(self.read_state(state))

    def read_state(self, state: Mapping[str, Any]) -> StepPosition:
        """The place that a snapshot describes, of this host's lanes; goes nowhere.

        Raises:
          ValueError: As `set_state`.
        """
        try:
            version, run = as_int(state["version"], "version"), state["run"]
            num_lanes = as_int(state["num_lanes"], "num_lanes", 0)
            step, rows = as_int(state["step"], "step", 0), as_int(state["rows"], "rows", 0)
            spec, lanes = str(state["spec"]), dict(state["lanes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of an elastic dataset: {error!r}.") from None
        if not 1 <= version <= _VERSION:
            raise ValueError(
                f"the state has version {version}; this reads up to version {_VERSION}."
            )
        if num_lanes != self.num_lanes:
            raise ValueError(
                f"the state is of {num_lanes} lanes; this run has {self.num_lanes}. Lanes are"
                " chosen once; go on with another number by dataset.relane."
            )
        missing = [lane for lane in self.owned_lanes if str(lane) not in lanes]
        if missing:
            raise ValueError(f"the state lacks lanes {missing} that this host owns.")
        if run != self.run_id:
            check_changes(state, self._changes)
            self._refuse(run, lanes)
        if spec and self._place.spec and spec != self._place.spec:
            raise ValueError(
                f"the state is of a pipeline that yields {spec}; this one yields"
                f" {self._place.spec}."
            )
        self._check_pipeline_id(state)
        states = [lane_state(lane, lanes[str(lane)]) for lane in self.owned_lanes]
        return StepPosition(step, rows, states, spec)

    def _check_pipeline_id(self, state: Mapping[str, object]) -> None:
        mine, other = self._plan.pipeline_id, state.get("pipeline_id")
        if mine and other and other != mine:
            raise ValueError(
                f"the state is of the pipeline {short(other)}; this one has pipeline_id ="
                f" {short(mine)}."
            )

    def _compare_pipelines(self, state: Mapping[str, object]) -> None:
        """Warns where a state that fits is of a pipeline that is made of something else."""
        name, mine = state.get("pipeline"), self._plan.pipeline_id
        named_alike = mine and state.get("pipeline_id") == mine
        if name is not None and name != self._pipeline_name and not named_alike:
            warn(
                f"the state is of the pipeline {name!r}; this one is {self._pipeline_name!r}, so"
                " its rows may go on otherwise. Give a pipeline_id= that both have, where they"
                " mean the same."
            )

    def _refuse(self, run: object, states: Mapping[str, object]) -> None:
        """Says what differs; returns where the run goes on with what changed."""
        plan, lane = self._rules.plan, self.owned_lanes[0]
        LaneRows(plan, lane).set_state(lane_state(lane, states[str(lane)]))
        source = plan.source
        for form in reversed(source.earlier_forms()):
            if run_id_of(form, self.num_lanes) == run:
                check_not_read(
                    plan, form, {n: lane_state(n, states[str(n)]) for n in self.owned_lanes}
                )
                return
        datasets = source.datasets_by_id.values()
        if any(getattr(dataset, "data_changed", "raise") == "warn" for dataset in datasets):
            return  # It has warned of what differs.
        raise ValueError("the state belongs to another run: its source has other settings.")

    def metrics(self) -> dict[str, int | float]:
        """Numbers for logs, after the last batch handed out: cheap enough for each step.

        Of the run, the same on all hosts:
          step, rows: Batches and rows of all hosts together.
          samples/NAME: Samples of a component that were drawn, all lanes together: exact where a
            chunk ends, in proportion inside.
          passes/NAME: The same in passes of the component's data, where it is drawn pass by pass.
        Where pipelines filter or pack, lanes are at different places: samples and passes are then
        the mean of this host's lanes, up to what packers hold back.

        Of this host:
          lane_lag_chunks: Chunks between its first and its last lane.
          tokens/NAME: Tokens with a component in `component_ids` of its batches, since the iterator
            was made; missing where rows are not packed.
          seconds_waited: Time that `next` has waited for batches.
          cache_hits, cache_misses: Reads of remote or packed shards that found their copy in the
            cache folder, or did not; in this process, as blocks_decoded, the Parquet row groups
            that were decoded.

        Example:
          >>> import zephon_jax as zx
          >>> numbers = zx.Dataset.from_source("numbers", list(range(64)))
          >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
          >>> lanes = iter(zx.ElasticIterDataset(
          ...     source, 2, lambda lane: lane.map(lambda e: e["data"]), process_index=0,
          ...     process_count=1))
          >>> batches = [next(lanes) for _ in range(3)]
          >>> found = lanes.metrics()
          >>> found["step"], found["rows"], found["samples/numbers"], found["passes/numbers"]
          (3, 6, 6, 0.09375)
        """
        return self._meter.metrics(self._place)

    async def save(self, directory: object) -> Awaitable[None]:
        """Saves itself with Orbax v1: takes the state now and returns what writes it later."""
        return write_files(directory, to_files(self.get_state(), self.written_lanes))

    async def load(self, directory: object) -> Awaitable[None]:
        """Loads itself with Orbax v1, whatever hosts saved it."""
        return load_files(directory, self)

    def seek(self, step: int) -> None:
        """Goes to a step without a checkpoint: the next batch is number `step`.

        Raises:
          ValueError: If the pipeline does not yield one row for each sample.
        """
        step = as_int(step, "step", 0)
        if not self._plan.one_to_one:
            raise ValueError(
                "only pipelines with one row for each sample can go to a step; this one has"
                " rows_per_sample = None."
            )
        rows = rows_before(self._rules, step)
        self._halt()
        self._dirty, self.restored_from = True, None
        for lane in self._lanes:
            lane.seek(rows)
        states = [lane.get_state() for lane in self._lanes]
        self._place = StepPosition(step, rows, states, self._place.spec)

    def _set_next_index(self, index: int) -> None:
        self.seek(index)

    def _get_next_index(self) -> int:
        return self._place.step

    def close(self) -> None:
        """Ends threads and worker processes; a thread whose pipeline hangs is left behind."""
        if not self._closed and hasattr(self, "_engine"):
            ended = self._ahead is None or self._ahead.stop(_SECONDS_TO_END)
            if not ended and self._ahead is not None and self._engine.kill():
                ended = self._ahead.stop(_SECONDS_TO_END)
            if ended:
                self._engine.close()
                for lane in self._lanes:
                    lane.close()
        super().close()

    def __str__(self) -> str:
        return f"ElasticIterator(lanes {self.owned_lanes} of {self.num_lanes})"
