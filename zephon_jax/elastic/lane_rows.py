"""One lane at work: its own Grain pipeline, and rows taken from it a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import grain
import numpy as np

from zephon_jax import _compat
from zephon_jax.elastic.columns import Columns, Space, join, num_rows, slice_rows, stack
from zephon_jax.kernels.keys import digest_words
from zephon_jax.pipelines.lane_dataset import LaneIterator, LaneIterDataset
from zephon_jax.pipelines.lane_group import LaneGroup
from zephon_jax.pipelines.pack_iterator import PackIterator
from zephon_jax.pipelines.padding import padding_of
from zephon_jax.sources.checks import draw
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.stateful_lane import state_from_dict
from zephon_jax.sources.work_source import WorkSource

__all__ = [
    "LaneError",
    "LanePlan",
    "LaneRows",
    "Pipeline",
    "RowBlock",
    "first_row",
    "join_blocks",
    "padding_of_lane",
    "take_block",
]

# What runs in each lane: it takes the lane's dataset and returns what rows are taken from.
Pipeline: TypeAlias = Callable[[grain.IterDataset], grain.IterDataset]

_END = object()


class LaneError(RuntimeError):
    """A pipeline raised in one lane; the others are where they were, and all can be saved.

    Attributes:
      lane: The lane.
      chunk_index: Global index of the chunk it was reading, None where that is not known.
      sample_id: The last sample that the pipeline took, (dataset, shard, sample), None where it
        took none or that is not known.
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        message: str,
        lane: int,
        chunk_index: int | None = None,
        sample_id: tuple[int, int, int] | None = None,
    ):
        super().__init__(message)
        self.lane, self.chunk_index, self.sample_id = lane, chunk_index, sample_id

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.lane, self.chunk_index, self.sample_id)


class LanePlan(NamedTuple):
    """What it takes to run lanes, here or in another process."""

    __module__ = "zephon_jax"

    source: WorkSource
    num_lanes: int
    pipeline: Pipeline
    read_config: MixtureReadConfig
    seed: int
    batched: bool | None


class _Lane(LaneIterDataset):
    """A lane's dataset that knows the iterator which was opened on it last."""

    opened: LaneIterator | None = None

    def __iter__(self) -> LaneIterator:
        self.opened = super().__iter__()
        return self.opened


def lane_dataset(
    plan: LanePlan, lane: int, start: object = None, group: LaneGroup | None = None
) -> tuple[_Lane, Any]:
    """A lane's dataset and the user's pipeline on top of it, seeded from (seed, lane).

    Args:
      plan: What lanes run.
      lane: The lane.
      start: The lane's first state, where it is known.
      group: The lanes with which it is read, where they are many.
    """
    dataset = _Lane(plan.source, lane, plan.num_lanes, plan.read_config)
    dataset.start, dataset.group = start, group
    low, high = digest_words(2, plan.seed, "elastic lane", lane).tolist()
    try:
        pipeline = plan.pipeline(dataset.seed(low | high << 32))
    except Exception as error:
        error.add_note(f"raised by pipeline(lane_dataset) for lane {lane} of {plan.num_lanes}")
        raise
    if not isinstance(pipeline, grain.IterDataset):
        raise TypeError(
            "pipeline(lane_dataset) must return a grain.IterDataset; got"
            f" {type(pipeline).__name__}."
        )
    return dataset, pipeline


def padding_of_lane(plan: LanePlan, lane: int) -> Mapping[str, int]:
    """What the columns of a lane's pipeline hold where they are padded; empty where not known."""
    return padding_of(lane_dataset(plan, lane)[1])


class LaneRows:
    """Rows of one lane, whether its pipeline yields rows or batches.

    The state is the pipeline's own, before the batch that is being used up, and how many of its
    rows were taken; a pipeline that yields rows has none in hand.
    """

    def __init__(
        self,
        plan: LanePlan,
        lane: int,
        start: object = None,
        group: LaneGroup | None = None,
        like: grain.IterDataset | None = None,
    ):
        self.lane, self._plan = lane, plan
        self._dataset, self._pipeline = lane_dataset(plan, lane, start, group)
        if like is not None:
            _compat.share_names(self._pipeline, like)
        self.batching = _compat.batching_of(self._pipeline)
        self._batched = (self.batching is not None) if plan.batched is None else plan.batched
        self._iterator = iter(self._pipeline)
        self._untouched = True  # nothing was asked of the iterator yet
        self._forget()

    def _forget(self) -> None:
        self._batch: Any = None
        self._before: Any = None
        self._used, self._size = 0, 0
        self._skip = 0  # rows of the next batch that were used before a restore

    @property
    def pipeline(self) -> grain.IterDataset:
        """What the user's function made of the lane's dataset."""
        return self._pipeline

    def take(self, num_rows: int) -> list[Any]:
        """The next rows, as rows or as pieces of batches; fewer at the end.

        Raises:
          LaneError: If the pipeline raises.
        """
        self._untouched = False
        try:
            return self._take_pieces(num_rows) if self._batched else self._take_rows(num_rows)
        except Exception as error:
            raise self._named(error) from error

    def _take_rows(self, count: int) -> list[object]:
        iterator = self._iterator
        if count == 1:
            row = next(iterator, _END)
            return [] if row is _END else [row]
        found = []
        for _ in range(count):
            try:
                found.append(next(iterator))
            except StopIteration:
                break
        return found

    def _take_pieces(self, count: int) -> list[object]:
        found = []
        while count and (self._used < self._size or self._open_batch()):
            end = min(self._size, self._used + count)
            found.append(slice_rows(self._batch, self._used, end))
            count -= end - self._used
            self._used = end
            if self._used >= self._size:
                self._forget()
        return found

    def _open_batch(self) -> bool:
        before = self._iterator.get_state()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if self._skip:
                raise _no_such_batch(self._skip) from None
            return False
        size = num_rows(batch)
        if self._skip >= max(size, 1):
            raise _no_such_batch(self._skip)
        self._batch, self._before, self._size = batch, before, size
        self._used, self._skip = self._skip, 0
        return True

    def get_state(self) -> dict[str, Any]:
        """The lane's place; cheap, and not changed by later steps."""
        if self._batch is None:
            return {"pipeline": self._iterator.get_state(), "used": self._skip}
        return {"pipeline": self._before, "used": self._used}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a place that `get_state` described, without reading.

        Raises:
          ValueError: If it belongs to another lane, source or pipeline, naming the lane.
        """
        try:
            pipeline, used = state["pipeline"], int(state["used"])
            if not self._untouched:
                # Opened anew: some of Grain's iterators keep what they held before (a flat map at
                # its end hands its last elements out again).
                self._iterator.close()
                self._iterator = iter(self._pipeline)
            self._untouched = False
            self._iterator.set_state(pipeline)
            self._forget()
            if used and (not self._batched or (self.batching and used >= self.batching.size)):
                raise _no_such_batch(used)
            self._skip = used
        except Exception as error:
            raise ValueError(
                f"lane {self.lane}: the state does not fit the pipeline: {type(error).__name__}:"
                f" {error}"
            ) from error

    def seek(self, row: int) -> None:
        """Goes to a row by its number in the lane.

        Raises:
          ValueError: If the pipeline does not yield one row for each sample.
        """
        self._untouched = False
        self._forget()
        if not self._batched:
            _compat.set_next_index(self._iterator, row)
            return
        if self.batching is None:
            raise ValueError("the size of the pipeline's batches is not known, so it cannot seek.")
        batch, used = divmod(row, self.batching.size)
        _compat.set_next_index(self._iterator, batch)
        if used and self._open_batch():
            self._used = used
            if used >= self._size:  # at the end, or among masked rows after it
                self._forget()

    def read_up_to(self) -> dict[str, Any]:
        """Where the lane's dataset stands: how far the pipeline has read, whatever it holds.

        Raises:
          ValueError: If the pipeline reads in processes of its own.
        """
        if self._dataset.opened is None or not self._dataset.opened.has_read:
            raise ValueError(
                f"lane {self.lane}: how far the pipeline has read is not known, for it reads in"
                " processes of its own. Use num_workers= instead of mp_prefetch."
            )
        return self._dataset.opened.get_state()

    def record_packed(self) -> list[list[np.ndarray]] | None:
        """A list to which the samples of each row that is packed from here on are added.

        None where the pipeline does not pack with `zx.pack`.
        """
        iterators: list[Any] = [self._iterator]
        while iterators:
            iterator = iterators.pop()
            if isinstance(iterator, PackIterator):
                return iterator.record()
            iterators += iterator._parents
        return None

    def close(self) -> None:
        """Gives back what the pipeline holds."""
        self._iterator.close()

    def _named(self, error: Exception) -> LaneError:
        chunk_index, sample_id = self._place()
        where = "" if chunk_index is None else f", chunk {chunk_index}"
        if sample_id is not None:
            name = getattr(self._plan.source.datasets_by_id.get(sample_id[0]), "name", "?")
            where += f", at or just after sample {sample_id} of dataset {name!r}"
        return LaneError(
            f"lane {self.lane}{where}: {type(error).__name__}: {error}",
            self.lane, chunk_index, sample_id,
        )  # fmt: skip

    def _place(self) -> tuple[int | None, tuple[int, int, int] | None]:
        """The chunk and the last sample that the lane gave to the pipeline."""
        if self._dataset.opened is None:
            return None, None
        state = self._dataset.opened.get_state()
        place = self._dataset.lane, self._dataset.num_lanes
        source = self._plan.source
        try:
            chunk, _ = draw(source, state_from_dict(source, state, place))
        except Exception:  # the very error that is being named
            return None, None
        if chunk is None:
            return None, None
        ids = chunk.order(self._plan.read_config)[1]
        slot = min(int(state["slot"]), len(ids)) - 1
        sample = tuple(int(word) for word in ids[slot]) if slot >= 0 else None
        return chunk.chunk_index, sample  # type: ignore[return-value]


def _no_such_batch(used: int) -> ValueError:
    return ValueError(f"{used} rows of a batch were used, and there is no such batch")


class RowBlock(NamedTuple):
    """One step of some lanes."""

    columns: Columns | None  # rows in lane order; None where there are none
    counts: list[int]  # rows of each lane
    states: Sequence[Any]  # of each lane, after these rows


def take_block(lanes: Sequence[LaneRows], num_rows_each: int, out: Space | None = None) -> RowBlock:
    """Takes rows from lanes, in lane order, and puts them together.

    Args:
      lanes: The lanes.
      num_rows_each: Rows of each lane; fewer come at its end.
      out: Arrays to write rows to, where they fit.

    Raises:
      LaneError: If a lane's pipeline raises, or its rows are unlike those before.
    """
    pieces, counts, states = [], [], []
    batched = False
    for lane in lanes:
        taken = lane.take(num_rows_each)
        batched = lane._batched
        counts.append(sum(map(num_rows, taken)) if batched else len(taken))
        states.append(lane.get_state())
        pieces += taken
    if not pieces:
        return RowBlock(None, counts, states)
    try:
        columns = join(pieces, out) if batched else stack(pieces, out)
    except ValueError as error:
        raise LaneError(f"lanes {lanes[0].lane} to {lanes[-1].lane}: {error}", lanes[0].lane) from (
            error
        )
    return RowBlock(columns, counts, states)


def first_row(plan: LanePlan, owned: Sequence[int]) -> Columns | None:
    """The first row of the first of these lanes that has any, read anew; None without rows."""
    for lane in owned:
        rows = LaneRows(plan, lane)
        try:
            part = take_block([rows], 1)
        finally:
            rows.close()
        if part.columns is not None:
            return part.columns
    return None


def join_blocks(parts: Sequence[RowBlock]) -> RowBlock:
    """Several groups of lanes as one, in order."""
    if len(parts) == 1:
        return parts[0]
    given = [part.columns for part in parts if part.columns is not None]
    columns = None
    if given:
        if any(other.tree != given[0].tree for other in given):
            raise ValueError("elements of all lanes must be alike.")
        joined = [np.concatenate(leaves) for leaves in zip(*(c.leaves for c in given), strict=True)]
        columns = Columns(given[0].tree, joined)
    return RowBlock(
        columns,
        [count for part in parts for count in part.counts],
        [state for part in parts for state in part.states],
    )
