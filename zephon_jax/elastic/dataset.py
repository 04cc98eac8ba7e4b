"""Lanes on any number of hosts: the same global batches, and a state that any of them restores."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import grain
import numpy as np

from zephon_jax import _compat
from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.elastic.iterator import ElasticIterator, HostPlan
from zephon_jax.elastic.lane_rows import LaneError, LanePlan, Pipeline, lane_dataset
from zephon_jax.elastic.relane import RelanedSource, boundary_of
from zephon_jax.elastic.row_samples import RowSamples, sample_ids_at
from zephon_jax.elastic.row_sharding import owners_of_lanes
from zephon_jax.elastic.run_id import run_id_of
from zephon_jax.elastic.steps import StepRules, constant_rows, rows_at, rows_each
from zephon_jax.pipelines.lane_lengths import ENDLESS, check_even, lane_lengths
from zephon_jax.sources.checks import draw, first_state
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.stopped import StoppedSource
from zephon_jax.sources.work_source import WorkSource, check_source

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = ["ElasticIterDataset", "ElasticIterator", "LaneError", "Relaned"]


class Relaned(NamedTuple):
    """What it takes to go on with another number of lanes."""

    rest: ElasticIterator  # what the lanes so far still owe, in steps with a `row_mask`
    source: RelanedSource  # what the new lanes read; `source.begin` is where they begin


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
      rows_per_sample: 1 where the pipeline yields one row for each sample: all hosts know when to
        end. None for filters and packing: go through `zx.synchronized` on several hosts.
      num_workers: Worker processes that run the lanes; 0 runs them in threads of this process.
      num_threads: Threads that run the lanes. More than one helps where transforms release the
        GIL; shards are read on threads of their own in any case.
      batched: Whether the pipeline yields batches; found out from its last transformations.
      prefetch: Steps that are made ahead.
      pipeline_id: A name for the pipeline, kept in states: a state of another name is refused, and
        one of the same name taken as it is. Without names a state is restored with a warning where
        the pipeline is made of other transformations.
      timeout: Seconds to wait for one step, or for a pipeline to come back when the iterator moves
        elsewhere, before giving up with a `TimeoutError`.

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

    __module__ = "zephon_jax"

    def __init__(
        self,
        source: WorkSource,
        num_lanes: int,
        pipeline: Pipeline,
        *,
        process_index: int,
        process_count: int,
        global_batch_size: int | Callable[[int], int] | None = None,
        read_config: MixtureReadConfig | None = None,
        pad: bool = False,
        rows_per_sample: int | None = 1,
        num_workers: int = 0,
        num_threads: int = 1,
        batched: bool | None = None,
        prefetch: int = 2,
        pipeline_id: str = "",
        timeout: float = 600.0,
    ):
        super().__init__()
        check_source(source)
        _check_settings(pipeline, rows_per_sample, timeout, pipeline_id)
        _check_skips(source, rows_per_sample)
        self.num_lanes = as_int(num_lanes, "num_lanes", 1, (1 << 31) - 1)
        owned = _plain_lanes(self.num_lanes, process_index, process_count)
        self._own(owned, owned)
        self.source, self.pad, self.rows_per_sample = source, pad, rows_per_sample
        self.num_workers = as_int(num_workers, "num_workers", 0)
        self.num_threads = as_int(num_threads, "num_threads", 1)
        self.steps_ahead = as_int(prefetch, "prefetch", 1)
        self.timeout, self.pipeline_id = float(timeout), pipeline_id
        self.plan = LanePlan(
            source=source, num_lanes=self.num_lanes, pipeline=pipeline,
            read_config=read_config or MixtureReadConfig(mode="lattice"),
            seed=_seed_of(source), batched=batched,
        )  # fmt: skip
        self.rows_of = self._make_rows_of(global_batch_size)
        self._lane_lengths = self._make_lengths()

    @classmethod
    def for_sharding(
        cls, source: WorkSource, num_lanes: int, pipeline: Pipeline,
        sharding: NamedSharding, **settings: Any,
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

        owners = owners_of_lanes(sharding, as_int(num_lanes, "num_lanes", 1))
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

    def _make_rows_of(self, global_batch_size: object) -> Callable[[int], int]:
        if global_batch_size is None:
            batching = self._batching
            if batching is None and self.plan.batched:
                raise ValueError(
                    "the size of the pipeline's batches is not known; give global_batch_size."
                )
            if batching is None or self.plan.batched is False:
                return functools.partial(constant_rows, 1)
            return functools.partial(constant_rows, batching.size)
        if callable(global_batch_size):
            return functools.partial(rows_at, cast(Any, global_batch_size), self.num_lanes)
        return functools.partial(constant_rows, rows_each(global_batch_size, self.num_lanes))

    @functools.cached_property
    def _batching(self) -> _compat.Batching | None:
        """How the pipeline batches, by that of the first owned lane."""
        return _compat.batching_of(lane_dataset(self.plan, self.owned_lanes[0])[1])

    def _make_lengths(self) -> np.ndarray | None:
        known = self.rows_per_sample is not None
        if not known and (self.pad or self.source.chunk_size_hint() is None):
            return None
        try:
            lengths = lane_lengths(self.source, self.num_lanes)
        except ValueError:
            if known:
                raise
            return None
        if known and lengths.min() and not self._whole_batches(lengths).min():
            raise ValueError(
                f"a lane has {lengths.min()} samples, too few for a batch, and the pipeline drops"
                " batches that are not full. Use smaller batches or fewer lanes."
            )
        lengths = self._whole_batches(lengths) if known else lengths
        if not self.pad:
            check_even(self.source, self.num_lanes, lengths, self.rows_of(0) if known else 1)
        elif not lengths.min():
            check_even(self.source, self.num_lanes, lengths, 1)
        return lengths if known else None

    def _whole_batches(self, lengths: np.ndarray) -> np.ndarray:
        """What is left of the lanes' lengths where batches that are not full are dropped."""
        batching = self._batching
        if batching is None or not batching.drops or lengths.min() == ENDLESS:
            return lengths
        return lengths // batching.size * batching.size

    def rules(self) -> StepRules:
        """How many rows a step takes, and when all lanes end."""
        lengths, shortest, longest = self._lane_lengths, None, None
        if lengths is not None:
            shortest, longest = int(lengths.min()), int(lengths.max())
            if longest >= ENDLESS // 2:
                shortest = longest = ENDLESS
        return StepRules(
            self.rows_of, self.pad, lengths, self.owned_lanes, shortest, longest, self.plan
        )

    @functools.cached_property
    def run_id(self) -> str:
        """Names the run: a digest of the source's settings and the number of lanes."""
        return run_id_of(self.source, self.num_lanes)

    def padded(self, source: WorkSource) -> ElasticIterDataset:
        """The same lanes over another part of the run, with masked rows up to the last lane's end.

        Args:
          source: The same source, but for where it ends.
        """
        other = copy.copy(self)
        for known in ("_batching", "run_id"):
            vars(other).pop(known, None)
        other.source, other.pad = source, True
        other.plan = self.plan._replace(source=source)
        known = self.rows_per_sample is not None
        other._lane_lengths = None
        if known:
            other._lane_lengths = other._whole_batches(lane_lengths(source, self.num_lanes))
        return other

    def sample_ids_at(
        self, step: int, state: Mapping[str, object] | None = None
    ) -> list[RowSamples]:
        """Says which samples are in the rows of a global batch: "what did the model see there?".

        Where the pipeline yields one row for each sample this is arithmetic: no data is read.
        Where it filters, packs or shuffles, the pipelines of the lanes are run from a state of
        before, up to the step: rows that keep `sample_id`, and rows of `zx.pack` from documents
        that keep it, tell their samples.

        Args:
          step: The global batch, from 0.
          state: A state at this step or before, of all lanes whose rows are wanted, such as
            `zx.read_checkpoint` returns. None for arithmetic.

        Returns:
          The rows in the order of the batch: lane, row of the lane, and sample ids, int64 (n, 3),
          which `zx.read` takes. A masked row has none.

        Raises:
          TypeError, ValueError: If the step is not in the run, the state does not fit or comes
            later, or the pipeline does not tell.

        Example:
          >>> import zephon_jax as zx
          >>> numbers = zx.Dataset.from_source("numbers", list(range(64)))
          >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
          >>> lanes = zx.ElasticIterDataset(
          ...     source, 2, lambda lane: lane.map(lambda e: e["data"]), process_index=0,
          ...     process_count=1)
          >>> [zx.read(source, row.sample_ids) for row in lanes.sample_ids_at(3)]
          [[11], [3]]
          >>> list(lanes)[3].tolist()
          [11, 3]
        """
        return sample_ids_at(self, step, state)

    def boundary(self, state: Mapping[str, object]) -> int:
        """The first chunk of a block of lanes that no lane has read, where a run may be changed.

        `source.with_mixture(mixture, at=dataset.boundary(state))` is a source that goes on from the
        state. What pipelines hold back counts as read: each lane is restored and reads for a row.

        Args:
          state: Where the run stands, with all lanes, as for `relane`.

        Raises:
          ValueError: If lanes are missing, or a pipeline reads in processes of its own.

        Example:
          >>> import zephon_jax as zx
          >>> numbers = zx.Dataset.from_source("numbers", list(range(64)))
          >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
          >>> lanes = zx.ElasticIterDataset(
          ...     source, 2, lambda lane: lane.map(lambda e: e["data"]), process_index=0,
          ...     process_count=1)
          >>> iterator = iter(lanes)
          >>> _ = [next(iterator) for _ in range(9)]  # each lane is in its second chunk
          >>> lanes.boundary(iterator.get_state())
          4
        """
        return boundary_of(self.plan, state)

    def relane(self, state: Mapping[str, object], num_lanes: int) -> Relaned:
        """Goes on with another number of lanes. All hosts call it, with the same state.

        Go through `zx.synchronized(relaned.rest)` first: it ends all lanes at a common block
        boundary and delivers what their pipelines hold back. Then make an `ElasticIterDataset` of
        `relaned.source` and the new lanes.
        To restore that later, make its source again:
        `RelanedSource(source, relaned.source.begin, num_lanes)`.

        Args:
          state: Where the run stands, with all lanes: `read_checkpoint` gives one, or `from_files`
            of the files of all hosts.
          num_lanes: The new number of lanes.

        Returns:
          The rest of the lanes so far and the source of the new ones.

        Raises:
          TypeError: If the source is not a mixture.
          ValueError: If lanes are missing from the state.
        """
        end = boundary_of(self.plan, state)
        after = RelanedSource(self.source, end, num_lanes)
        rest = iter(self.padded(StoppedSource(self.source, end)))
        rest.set_state(state)
        return Relaned(rest, after)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Always raises: hosts and workers share the work by lanes.

        Raises:
          ValueError: Always.
        """
        raise ValueError("an elastic dataset is not sliced: use num_workers= instead of prefetch.")

    def __str__(self) -> str:
        lanes = f"lanes {self.owned_lanes[0]} to {self.owned_lanes[-1]} of {self.num_lanes}"
        return f"ElasticIterDataset({self.source!r}, {lanes})"

    def __getstate__(self) -> dict[str, Any]:
        # A pipeline that was opened to look at it is opened anew where it is asked for.
        return {name: value for name, value in vars(self).items() if name != "_batching"}

    def __iter__(self) -> ElasticIterator:
        return ElasticIterator(HostPlan(
            rules=self.rules(), written_lanes=self.written_lanes, run_id=self.run_id,
            pipeline_id=self.pipeline_id,
            one_to_one=self.rows_per_sample is not None, num_workers=self.num_workers,
            num_threads=self.num_threads, prefetch=self.steps_ahead, timeout=self.timeout,
        ))  # fmt: skip


def _check_settings(
    pipeline: object, rows_per_sample: object, timeout: Any, pipeline_id: object
) -> None:
    if not callable(pipeline):
        raise TypeError(
            "pipeline must be a function of a lane's dataset that returns a grain.IterDataset;"
            f" got {short(pipeline)}."
        )
    if isinstance(rows_per_sample, bool) or rows_per_sample not in (1, None):
        raise ValueError(
            "rows_per_sample must be 1, or None where a pipeline filters or packs; got"
            f" {short(rows_per_sample)}."
        )
    if not isinstance(pipeline_id, str):
        raise TypeError(f"pipeline_id must be a string; got {short(pipeline_id)}.")
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout must be a positive number of seconds; got {short(timeout)}.")


def _check_skips(source: WorkSource, rows_per_sample: int | None) -> None:
    for dataset in source.datasets_by_id.values() if rows_per_sample is not None else ():
        if getattr(dataset, "on_bad_record", "raise") == "skip":
            raise ValueError(
                f"dataset {dataset.name!r} skips bad records, so that lanes differ in length, and"
                " rows_per_sample = 1 counts on one row for each sample. Give"
                " rows_per_sample=None, or on_bad_record a function that returns a record."
            )


def _seed_of(source: WorkSource) -> int:
    """The source's seed: what it says, else what its first chunk carries."""
    seed = source.seed
    if seed is None:
        chunk, _ = draw(source, first_state(source, 0, 1))
        seed = None if chunk is None else chunk.seed
    return 0 if seed is None else int(seed)


def _plain_lanes(num_lanes: int, process_index: object, process_count: object) -> tuple[int, ...]:
    count = as_int(process_count, "process_count", 1)
    if num_lanes % count:
        fitting = [n for n in range(1, min(num_lanes, 1 << 16) + 1) if num_lanes % n == 0]
        raise ValueError(
            f"process_count must divide num_lanes = {num_lanes}; got {count}. These do: {fitting}."
        )
    index = as_int(process_index, "process_index", 0, count - 1)
    each = num_lanes // count
    return tuple(range(index * each, (index + 1) * each))
