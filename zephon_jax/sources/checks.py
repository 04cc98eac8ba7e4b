"""What any source must keep to, checked where it meets the library: its lanes and its chunks.

Whoever steps through a source does so by `first_state` and `draw`, so that the methods of a user's
source stay as they were written and its mistakes are still named. (But for `next_chunk`, which says
by name that JAX cannot trace it: that is called by JAX alone.)
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, SupportsInt, TypeVar, runtime_checkable

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.sources.chunk import WorkChunk

__all__ = [
    "LaneState",
    "ShardedDataset",
    "State",
    "Stepped",
    "SteppedTogether",
    "check_components",
    "check_lane",
    "draw",
    "draw_of_lanes",
    "first_state",
    "first_states",
    "lane_of",
]

_MOST_STEPPED = 1 << 20  # lanes that are stepped through side by side


class LaneState(Protocol):
    """A state: a NamedTuple that says which lane it is of."""

    @property
    def lane(self) -> SupportsInt:
        """The lane."""
        ...

    @property
    def num_lanes(self) -> SupportsInt:
        """The number of lanes."""
        ...


State = TypeVar("State", bound=LaneState)


@runtime_checkable
class ShardedDataset(Protocol):
    """What sample ids refer to: a `zx.Dataset`, or a dataset that is read by other means."""

    @property
    def name(self) -> str:
        """What the dataset is called."""
        ...

    @property
    def shard_counts(self) -> Sequence[int] | np.ndarray:
        """Samples of each shard: (num_shards,)."""
        ...


class Stepped(Protocol[State]):
    """What stepping through a source needs of it."""

    def init(self, lane: int = 0, num_lanes: int = 1) -> State:
        """The state before a lane's first chunk."""
        ...

    def next_chunk(self, state: State) -> tuple[WorkChunk | None, State]:
        """The lane's next chunk and the state after it."""
        ...

    def check_chunk(self, chunk: WorkChunk) -> None:
        """Refuses a chunk that holds undeclared components."""
        ...


class SteppedTogether(Stepped[State], Protocol[State]):
    """What stepping through many lanes of a source needs of it."""

    def next_chunks(self, states: Sequence[State]) -> list[tuple[WorkChunk | None, State]]:
        """The next chunk of many lanes and the states after them."""
        ...


def check_lane(lane: object, num_lanes: object) -> tuple[int, int]:
    """Returns a lane and the number of lanes as ints.

    Raises:
      TypeError: If one is not an integer.
      ValueError: If there is not at least one lane, or the lane is not among them.
    """
    num_lanes = as_int(num_lanes, "num_lanes", 1, (1 << 31) - 1)
    lane = as_int(lane, "lane")
    if not 0 <= lane < num_lanes:
        raise ValueError(
            f"lane must be in [0, num_lanes); got lane = {lane} and num_lanes = {num_lanes}."
        )
    return lane, num_lanes


def check_components(chunk: WorkChunk, declared: Mapping[str, int], source_name: str) -> None:
    """Checks that a chunk holds declared components only.

    Args:
      chunk: What the source's `next_chunk` gave.
      declared: The source's component ids.
      source_name: The name of the source's class, for an error.

    Raises:
      TypeError: If it is not a `WorkChunk`.
      ValueError: If it holds a component that is not declared, or the declared ids are not unique.
    """
    if not isinstance(chunk, WorkChunk):
        raise TypeError(f"next_chunk must return a WorkChunk or None; got {short(chunk)}.")
    numbers = list(declared.values())
    if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
        raise ValueError(
            f"{source_name}.component_ids() must give unique ids that are not negative; got"
            f" {dict(declared)}."
        )
    unknown = [name for name in chunk.names if name not in declared]
    if unknown:
        raise ValueError(
            f"{source_name}.next_chunk gave samples of undeclared components {unknown};"
            f" component_ids() names {list(declared)}. Declare them all from the start."
        )


def lane_of(state: LaneState) -> tuple[int, int]:
    """The lane and the number of lanes that a state belongs to."""
    try:
        return int(state.lane), int(state.num_lanes)
    except AttributeError:
        raise TypeError(
            "a source's states must have the fields 'lane' and 'num_lanes'; got"
            f" {type(state).__name__}."
        ) from None


def first_state(source: Stepped[State], lane: int, num_lanes: int) -> State:
    """The state before a lane's first chunk, once the lane has been checked.

    Raises:
      TypeError, ValueError: If the lane is not in [0, num_lanes).
    """
    return source.init(*check_lane(lane, num_lanes))


def first_states(source: Stepped[State], num_lanes: int) -> list[State]:
    """The state before the first chunk of each lane, where all lanes have to be stepped through.

    Raises:
      ValueError: If there are more than 2^20 lanes.
    """
    if num_lanes > _MOST_STEPPED:
        raise ValueError(
            f"lanes of a {type(source).__name__} have to be gone through chunk by chunk, at most"
            f" {_MOST_STEPPED:,} of them; got num_lanes = {num_lanes}."
        )
    return [first_state(source, lane, num_lanes) for lane in range(num_lanes)]


def draw(source: Stepped[State], state: State) -> tuple[WorkChunk | None, State]:
    """Returns a lane's next chunk, checked, and the state after it.

    Raises:
      TypeError: If the source gives something else than a chunk, or None, and a state.
      ValueError: If the chunk holds a component that the source does not declare.
    """
    return _checked(source, source.next_chunk(state))


def draw_of_lanes(
    source: SteppedTogether[State], states: Sequence[State]
) -> list[tuple[WorkChunk | None, State]]:
    """`draw` of many lanes at once.

    Raises:
      TypeError, ValueError: As `draw`.
    """
    return [_checked(source, drawn) for drawn in source.next_chunks(states)]


def _checked(
    source: Stepped[State], drawn: tuple[WorkChunk | None, State]
) -> tuple[WorkChunk | None, State]:
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise TypeError(
            f"{type(source).__name__}.next_chunk must return a chunk and a state; got"
            f" {short(drawn)}."
        )
    chunk, after = drawn
    if chunk is not None:
        source.check_chunk(chunk)
    return chunk, after
