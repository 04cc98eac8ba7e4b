"""Steps of many lanes: rows of each, put together as the batch of one host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.elastic.columns import Columns, masked, masked_row, spec_of, tree_of
from zephon_jax.elastic.lane_rows import (
    LaneError,
    LanePlan,
    RowBlock,
    first_row,
    padding_of_lane,
)

__all__ = [
    "Engine",
    "Step",
    "StepPosition",
    "StepRules",
    "constant_rows",
    "has_ended",
    "make_batch",
    "make_step",
    "rows_at",
    "rows_before",
    "rows_each",
    "see_row",
]


class StepPosition(NamedTuple):
    """Where a run of lanes stands."""

    step: int  # global batches handed out
    rows: int  # rows that each lane has given, masked ones included
    states: Sequence[Any]  # of each lane
    spec: str  # leaves of a row; empty before the first


class Step(NamedTuple):
    """One batch of this host and the place after it."""

    batch: Any
    place: StepPosition


class StepRules(NamedTuple):
    """How many rows a step takes, and when all lanes end."""

    rows_of: Callable[[int], int]  # step -> rows from each lane
    pad: bool
    lengths: np.ndarray | None  # int64 (num_lanes,), samples of all lanes; None where not known
    owned: tuple[int, ...]
    shortest: int | None  # rows of the shortest lane, None where not known
    longest: int | None
    plan: LanePlan


class Engine(Protocol):
    """Runs lanes, in threads or in processes."""

    ahead: int  # steps that it wants to hear of beyond the one that is taken

    def go_to(self, states: Sequence[Any]) -> None:
        """Puts each lane at a state."""
        ...

    def take(self, num_rows_each: int, following: Sequence[int] = ()) -> RowBlock:
        """Takes rows from each lane; those of the following steps will be taken next."""
        ...

    def kill(self) -> bool:
        """Ends processes that do not answer; returns False for threads, which cannot be ended."""
        ...

    def close(self) -> None:
        """Ends threads and processes."""
        ...


def constant_rows(rows: int, step: int) -> int:
    """Rows of a lane where all steps are alike."""
    del step
    return rows


constant_rows.__module__ = "zephon_jax"  # as for the classes that public objects hold


def rows_before(rules: StepRules, step: int) -> int:
    """Rows that each lane gives before a step."""
    if getattr(rules.rows_of, "func", None) is constant_rows:
        return step * rules.rows_of(0)
    return sum(rules.rows_of(n) for n in range(step))


def rows_each(global_batch_size: object, num_lanes: int) -> int:
    """Rows that each lane gives to a global batch.

    Raises:
      TypeError, ValueError: If the size is no multiple of the lanes.
    """
    size = as_int(global_batch_size, "global_batch_size", 1)
    if size % num_lanes:
        raise ValueError(
            f"global_batch_size must be a multiple of num_lanes = {num_lanes}; got {size}."
        )
    return size // num_lanes


def rows_at(global_batch_size: Callable[[int], object], num_lanes: int, step: int) -> int:
    """Rows of a lane where batches change with the step."""
    return rows_each(global_batch_size(step), num_lanes)


def _expected(rules: StepRules, rows: int, each: int) -> list[int] | None:
    """Rows that each owned lane must give next, where the schedule says so."""
    if rules.lengths is None:
        return None
    left = rules.lengths[list(rules.owned)] - rows
    return np.clip(left, 0, each).tolist()


def _check_counts(rules: StepRules, counts: list[int], rows: int, each: int) -> None:
    expected = _expected(rules, rows, each)
    if expected is None or expected == counts:
        return
    n = next(i for i, (a, b) in enumerate(zip(counts, expected, strict=True)) if a != b)
    raise ValueError(
        f"lane {rules.owned[n]} gave {rows + counts[n]} rows so far where its chunks hold"
        f" {rows + expected[n]}: the pipeline does not yield one row for each sample. Use"
        " rows_per_sample=None for pipelines that filter, pack or repeat."
    )


def has_ended(rules: StepRules, place: StepPosition, each: int) -> bool:
    """True where the schedule says that there is no further step."""
    if rules.pad:
        return rules.longest is not None and place.rows >= rules.longest
    return rules.shortest is not None and place.rows + each > rules.shortest


def _check_end(engine: Engine, rules: StepRules, place: StepPosition, each: int) -> None:
    """Checks that the pipelines have no more rows than the schedule says.

    Raises:
      ValueError: If one has: it repeats or splits, and a part of its rows would be lost.
    """
    try:
        part = engine.take(each)
    except LaneError:  # rows that nobody is to have
        return
    _check_counts(rules, part.counts, place.rows, each)


def _following(rules: StepRules, place: StepPosition, count: int) -> list[int]:
    """Rows of each lane in the steps after the next, as far as it is known that they come."""
    found: list[int] = []
    rows = place.rows
    with contextlib.suppress(Exception):  # a function of the step that knows no further ones
        for step in range(place.step, place.step + count):
            rows += rules.rows_of(step)
            following, each = place._replace(rows=rows), rules.rows_of(step + 1)
            if has_ended(rules, following, each):
                break
            found.append(each)
    return found


def make_step(
    engine: Engine, rules: StepRules, place: StepPosition, like: list[Columns]
) -> Step | None:
    """Makes the step after a place, or None at the end. `like` keeps a masked row.

    Raises:
      LaneError: If a lane's pipeline raises.
      ValueError: If the pipeline is not what `rows_per_sample` says, or not the one of the
        checkpoint.
    """
    each = rules.rows_of(place.step)
    if has_ended(rules, place, each):
        _check_end(engine, rules, place, each)
        return None
    part = engine.take(each, _following(rules, place, engine.ahead))
    short = any(count < each for count in part.counts)
    if rules.pad or not short:
        _check_counts(rules, part.counts, place.rows, each)
    if short and not rules.pad:
        if rules.shortest is not None:
            _check_counts(rules, part.counts, place.rows, each)
        return None
    if part.columns is None and rules.longest is None:
        return None
    spec = place.spec
    if part.columns is not None:
        if not (like and place.spec and _alike(part.columns, like[0])):
            spec = _checked_spec(part.columns, place.spec)
        if not like:
            like.append(_masked_row(part.columns, rules))
    batch = make_batch(part, rules, each, like, spec)
    return Step(batch, StepPosition(place.step + 1, place.rows + each, part.states, spec))


def _alike(columns: Columns, other: Columns) -> bool:
    """True where rows have the same leaves: cheaper than comparing what they are called."""
    return columns.tree == other.tree and all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:]
        for a, b in zip(columns.leaves, other.leaves, strict=True)
    )


def _checked_spec(columns: Columns, before: str) -> str:
    spec = spec_of(columns)
    if before and spec != before:
        raise ValueError(
            f"the pipeline yields rows of another kind: they were {before} and are {spec}. Restore"
            " with the pipeline that the state was saved with."
        )
    return spec


def _masked_row(columns: Columns, rules: StepRules) -> Columns:
    """A masked row: padding as the pipeline makes it, where it packs."""
    return masked_row(columns, padding_of_lane(rules.plan, rules.owned[0]) if rules.pad else {})


def see_row(rules: StepRules, like: list[Columns], spec: str) -> bool:
    """Reads a first row, where a run began among masked ones: of other lanes if these have none.

    Returns:
      Whether there is one, or one was seen before.
    """
    if not like:
        others = sorted(set(range(rules.plan.num_lanes)).difference(rules.owned))
        row = first_row(rules.plan, [*rules.owned, *others])
        if row is not None:
            _checked_spec(row, spec)
            like.append(_masked_row(row, rules))
    return bool(like)


def make_batch(
    part: RowBlock, rules: StepRules, each: int, like: list[Columns], spec: str
) -> object:
    """The batch of a part, with masked rows where lanes gave fewer.

    Raises:
      ValueError: If there is no row to tell what masked ones look like.
    """
    if not rules.pad:
        assert part.columns is not None
        return tree_of(part.columns)
    if not like and not see_row(rules, like, spec):
        raise ValueError(
            f"lanes {rules.owned[0]} to {rules.owned[-1]} have yielded no row, nor has any other,"
            " so masked rows cannot be made: their shapes are not known."
        )
    mask = (np.arange(each) < np.asarray(part.counts)[:, None]).ravel()
    columns = part.columns if mask.all() else masked(part.columns, part.counts, each, like[0])
    assert columns is not None
    return tree_of(columns, mask)
