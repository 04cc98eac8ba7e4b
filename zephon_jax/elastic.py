"""Lanes on any number of hosts: the same global batches, and a state that any of them restores."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import grain
import numpy as np

from zephon_jax._xp import as_int
from zephon_jax.codec import encode_state
from zephon_jax.elastic_run import Engine, Place, Rules, Run, Step, ThreadEngine, make_batch
from zephon_jax.keys import digest_words
from zephon_jax.lane_rows import LaneError, LanePlan, LaneRows, Part
from zephon_jax.lengths import ENDLESS, check_even, lane_lengths
from zephon_jax.reading import MixtureReadConfig
from zephon_jax.rows import Columns
from zephon_jax.source import WorkSource

__all__ = ["ElasticIterDataset", "ElasticIterator", "LaneError"]

_VERSION = 1
_LENGTHS = ("schedule", "unknown")
_MAX_THREADS = 2
_TUPLE = "__tuple__"


class ElasticIterDataset(grain.IterDataset):
    """The lanes that one host owns, as a `grain.IterDataset` of its part of each global batch.

    Each lane has its own Grain pipeline, seeded from (seed, lane), with its own state. A step takes
    the same number of rows from each lane and puts them in lane order, so the global batch is the
    same for every number of hosts, and a state is kept by lane: any number of hosts restores it.

    Args:
      source: Any source.
      num_lanes: Number of lanes, chosen once for the whole run.
      pipeline: Takes a lane's dataset and returns a `grain.IterDataset` of rows or of batches.
      process_index: This host, 0 <= process_index < process_count.
      process_count: Number of hosts; it must divide the number of lanes. Host h owns lanes
        h * L / H to (h + 1) * L / H. See `for_sharding` for other meshes.
      global_batch_size: Rows of a global batch, a multiple of the lanes: an int, or a function of
        the step for batch ramps. By default each lane gives one element of its pipeline.
      read_config: How chunks are read; by default "lattice", which keeps each global batch close
        to the mixture.
      pad: When a lane ends, go on with masked rows until the last lane has ended, and give each
        batch a leaf "row_mask". By default all lanes end with the first.
      lengths: "schedule" where the pipeline yields one row for each sample: all hosts know when to
        end. "unknown" for filters and packing: go through `zx.in_step` on several hosts.
      num_workers: Worker processes that run the lanes; 0 runs them in threads of this process.
      num_threads: Threads that run the lanes; by default at most 2.
      batched: Whether the pipeline yields batches; found out from its last transformations.
      prefetch: Steps that are made ahead.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or a lane would get no chunk at all.

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(64)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
      >>> hosts = [
      ...     zx.ElasticIterDataset(
      ...         source, 4, lambda lane: lane.map(lambda e: e["data"]), global_batch_size=8,
      ...         process_index=h, process_count=2)
      ...     for h in range(2)]
      >>> [batch.shape for batch in hosts[0]][:2], sum(len(b) for host in hosts for b in host)
      ([(4,), (4,)], 64)
    """

    def __init__(
        self,
        source: WorkSource,
        num_lanes: int,
        pipeline: Callable[[Any], Any],
        *,
        process_index: int,
        process_count: int,
        global_batch_size: int | Callable[[int], int] | None = None,
        read_config: MixtureReadConfig | None = None,
        pad: bool = False,
        lengths: str = "schedule",
        num_workers: int = 0,
        num_threads: int | None = None,
        batched: bool | None = None,
        prefetch: int = 2,
    ):
        super().__init__()
        self.num_lanes = as_int(num_lanes, "num_lanes", 1, (1 << 31) - 1)
        owned = _plain_lanes(self.num_lanes, process_index, process_count)
        self._own(owned, owned)
        if lengths not in _LENGTHS:
            raise ValueError(f"lengths must be one of {_LENGTHS}; got {lengths!r}.")
        self.source, self.pad, self.lengths = source, pad, lengths
        self.num_workers = as_int(num_workers, "num_workers", 0)
        self.num_threads = as_int(_MAX_THREADS if num_threads is None else num_threads,
                                  "num_threads", 1)  # fmt: skip
        self.steps_ahead = as_int(prefetch, "prefetch", 1)
        self.plan = LanePlan(
            source=source, num_lanes=self.num_lanes, pipeline=pipeline,
            read_config=read_config or MixtureReadConfig(mode="lattice"),
            seed=_seed_of(source), batched=batched,
        )  # fmt: skip
        self.rows_of = self._make_rows_of(global_batch_size)
        self._lane_lengths = self._make_lengths()

    @classmethod
    def for_sharding(
        cls, source: WorkSource, num_lanes: int, pipeline: Callable[[Any], Any], sharding: Any,
        **settings: Any,
    ) -> ElasticIterDataset:  # fmt: skip
        """Takes the owned lanes from the sharding of a global batch, whatever its mesh.

        A host owns the lanes whose rows its devices hold, so hosts that hold the same rows (tensor
        or sequence parallelism across hosts) own the same lanes.

        Args:
          source: Any source.
          num_lanes: Number of lanes.
          pipeline: As for the class.
          sharding: A `jax.sharding.NamedSharding` of arrays whose first axis is the batch.
          **settings: The other settings of the class, but for the processes.

        Raises:
          ValueError: If the lanes cannot be split among the parts of the batch axis.
        """
        import jax

        owners = _owners(sharding, as_int(num_lanes, "num_lanes", 1))
        me = jax.process_index()
        self = cls(source, num_lanes, pipeline, process_index=0, process_count=1, **settings)
        owned = tuple(lane for lane, hosts in enumerate(owners) if me in hosts)
        if not owned:
            raise ValueError(f"process {me} has no device in the mesh, and so owns no lane.")
        self._own(owned, tuple(lane for lane in owned if min(owners[lane]) == me))
        return self

    def _own(self, owned: tuple[int, ...], written: tuple[int, ...]) -> None:
        self.owned_lanes = owned
        self.written_lanes = written  # those that this host saves; others may own the same lanes

    def _make_rows_of(self, global_batch_size: Any) -> Callable[[int], int]:
        if global_batch_size is None:
            batching = self.first_lane.batching
            if batching is None and self.plan.batched:
                raise ValueError(
                    "the size of the pipeline's batches is not known; give global_batch_size."
                )
            if batching is None or self.plan.batched is False:
                return functools.partial(_constant, 1)
            return functools.partial(_constant, batching.size)
        if callable(global_batch_size):
            return functools.partial(_rows_at, cast(Any, global_batch_size), self.num_lanes)
        return functools.partial(_constant, _rows_each(global_batch_size, self.num_lanes))

    @functools.cached_property
    def first_lane(self) -> LaneRows:
        """The first owned lane's rows, opened only to look at the pipeline."""
        return LaneRows(self.plan, self.owned_lanes[0])

    def _make_lengths(self) -> np.ndarray | None:
        known = self.lengths == "schedule"
        if not known and (self.pad or self.source.chunk_size_hint() is None):
            return None
        try:
            lengths = lane_lengths(self.source, self.num_lanes)
        except ValueError:
            if known:
                raise
            return None
        if not self.pad:
            check_even(self.source, self.num_lanes, lengths, self.rows_of(0) if known else 1)
        elif not lengths.min():
            check_even(self.source, self.num_lanes, lengths, 1)
        return lengths if known else None

    def rules(self) -> Rules:
        """How many rows a step takes, and when all lanes end."""
        lengths, shortest, longest = self._lane_lengths, None, None
        if lengths is not None:
            batching = self.first_lane.batching
            if batching is not None and batching.drops:
                lengths = lengths // batching.size * batching.size
            shortest, longest = int(lengths.min()), int(lengths.max())
            if longest >= ENDLESS // 2:
                shortest = longest = ENDLESS
        return Rules(self.rows_of, self.pad, lengths, self.owned_lanes, shortest, longest)

    @functools.cached_property
    def run_id(self) -> str:
        """Names the run: a digest of the source's settings and the number of lanes."""
        state = encode_state(self.source.init(0, self.num_lanes))
        return digest_words(2, "run", self.num_lanes, state).tobytes().hex()

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Always raises: hosts and workers share the work by lanes.

        Raises:
          ValueError: Always.
        """
        raise ValueError("an elastic dataset is not sliced: use num_workers= instead of prefetch.")

    def __str__(self) -> str:
        lanes = f"lanes {self.owned_lanes[0]} to {self.owned_lanes[-1]} of {self.num_lanes}"
        return f"ElasticIterDataset({self.source!r}, {lanes})"

    def __iter__(self) -> ElasticIterator:
        return ElasticIterator(self)


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

    def _make_engine(self) -> Engine:
        return ThreadEngine(self._lanes, self.dataset.num_threads)

    def __next__(self) -> Any:
        import jax

        self._assert_not_closed()
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
        if self._run is None:
            if self._dirty:
                self._engine.go_to(self._place.states)
            self._dirty = True
            self._run = Run(
                self._engine, self._rules, self._place, self.dataset.steps_ahead, self._like
            )

    def peek_error(self) -> Exception | None:
        """Makes the next step and keeps it; returns what goes wrong with it, if anything does."""
        self.start_prefetch()
        assert self._run is not None
        item = self._run.peek()
        return item if isinstance(item, Exception) else None

    def at_end(self) -> bool:
        """True where there is no next step; makes it, where there is, and keeps it."""
        self.start_prefetch()
        assert self._run is not None
        return self._run.peek() is None

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
        self._place, self._dirty = place, True

    def _read_state(self, state: Mapping[str, Any]) -> Place:
        dataset = self.dataset
        try:
            version, run, num_lanes = state["version"], state["run"], state["num_lanes"]
            step, rows = (as_int(state[name], name, 0) for name in ("step", "rows"))
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
        states = [_revive(lanes[str(lane)]) for lane in dataset.owned_lanes]
        return Place(step, rows, states, spec)

    def _refuse(self, state: Any) -> None:
        LaneRows(self.dataset.plan, self.dataset.owned_lanes[0]).set_state(state)
        raise ValueError("the state belongs to another run: its source has other settings.")

    def seek(self, step: int) -> None:
        """Goes to a step without a checkpoint: the next batch is number `step`.

        Raises:
          ValueError: If the pipeline does not yield one row for each sample.
        """
        step = as_int(step, "step", 0)
        if self.dataset.lengths != "schedule":
            raise ValueError(
                "only pipelines with one row for each sample can go to a step (lengths ="
                f" 'schedule'); this one has lengths = {self.dataset.lengths!r}."
            )
        rows_of = self.dataset.rows_of
        constant = getattr(rows_of, "func", None) is _constant
        rows = step * rows_of(0) if constant else sum(rows_of(n) for n in range(step))
        self._halt()
        self._dirty = True
        for lane in self._lanes:
            lane.seek(rows)
        states = [lane.get_state() for lane in self._lanes]
        self._place = Place(step, rows, states, self._place.spec)

    def _set_next_index(self, index: int) -> None:
        self.seek(index)

    def _get_next_index(self) -> int:
        return self._place.step

    def close(self) -> None:
        """Ends threads and worker processes."""
        if not self._closed and hasattr(self, "_engine"):
            self._halt()
            self._engine.close()
            for lane in self._lanes:
                lane.close()
        super().close()

    def __str__(self) -> str:
        return f"ElasticIterator({self.dataset})"


def _constant(rows: int, step: int) -> int:
    del step
    return rows


def _rows_each(global_batch_size: Any, num_lanes: int) -> int:
    size = as_int(global_batch_size, "global_batch_size", 1)
    if size % num_lanes:
        raise ValueError(
            f"global_batch_size must be a multiple of num_lanes = {num_lanes}; got {size}."
        )
    return size // num_lanes


def _rows_at(global_batch_size: Callable[[int], Any], num_lanes: int, step: int) -> int:
    return _rows_each(global_batch_size(step), num_lanes)


def _seed_of(source: WorkSource) -> int:
    """The source's seed: what it says, else what its first chunk carries."""
    seed = getattr(source, "seed", None)
    if seed is None:
        chunk, _ = source.next_chunk(source.init())
        seed = None if chunk is None else chunk.seed
    return 0 if seed is None else int(seed)


def _plain_lanes(num_lanes: int, process_index: Any, process_count: Any) -> tuple[int, ...]:
    count = as_int(process_count, "process_count", 1)
    if num_lanes % count:
        fitting = [n for n in range(1, min(num_lanes, 1 << 16) + 1) if num_lanes % n == 0]
        raise ValueError(
            f"process_count must divide num_lanes = {num_lanes}; got {count}. These do: {fitting}."
        )
    index = as_int(process_index, "process_index", 0, count - 1)
    each = num_lanes // count
    return tuple(range(index * each, (index + 1) * each))


def _owners(sharding: Any, num_lanes: int) -> list[set[int]]:
    """The processes whose devices hold each lane's rows."""
    from jax.sharding import NamedSharding, PartitionSpec

    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding must be a NamedSharding; got {type(sharding).__name__}.")
    first = sharding.spec[0] if len(sharding.spec) else None
    names = () if first is None else (first,) if isinstance(first, str) else first
    parts = int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))
    if num_lanes % parts:
        raise ValueError(
            f"num_lanes must be a multiple of the {parts} parts that {names} cut the batch into;"
            f" got {num_lanes}."
        )
    by_rows = NamedSharding(sharding.mesh, PartitionSpec(first))
    owners: list[set[int]] = [set() for _ in range(num_lanes)]
    for device, (rows,) in by_rows.devices_indices_map((num_lanes,)).items():
        for lane in range(*rows.indices(num_lanes)):
            owners[lane].add(device.process_index)
    return owners


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


def _revive(value: Any) -> Any:
    """The inverse of `_plain`, but for NumPy's types."""
    if isinstance(value, Mapping):
        if set(value) == {_TUPLE}:
            return tuple(_revive(item) for item in value[_TUPLE])
        return {key: _revive(item) for key, item in value.items()}
    return [_revive(item) for item in value] if isinstance(value, list) else value
