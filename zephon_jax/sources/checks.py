"""What any source must keep to: its lanes, and what its functions take and give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from zephon_jax._arrays import as_int

__all__ = [
    "check_lane",
    "checked_init",
    "checked_next",
    "first_states",
    "lane_of",
    "never_ends",
]

_MOST_STEPPED = 1 << 20  # lanes that are stepped through side by side


def check_lane(lane: Any, num_lanes: Any) -> tuple[int, int]:
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


def lane_of(state: Any) -> tuple[int, int]:
    """The lane and the number of lanes that a state belongs to."""
    try:
        return int(state.lane), int(state.num_lanes)
    except AttributeError:
        raise TypeError(
            "a source's states must have the fields 'lane' and 'num_lanes'; got"
            f" {type(state).__name__}."
        ) from None


def first_states(source: Any, num_lanes: int) -> dict[int, Any]:
    """The state before the first chunk of each lane, where all lanes have to be stepped through.

    Raises:
      ValueError: If there are more than 2^20 lanes.
    """
    if num_lanes > _MOST_STEPPED:
        raise ValueError(
            f"lanes of a {type(source).__name__} have to be gone through chunk by chunk, at most"
            f" {_MOST_STEPPED:,} of them; got num_lanes = {num_lanes}."
        )
    return {lane: source.init(lane, num_lanes) for lane in range(num_lanes)}


def never_ends(source: Any) -> bool:
    """True for a source that says that its run has no end; False where it cannot say."""
    spans = source.chunk_spans()
    if spans:
        return spans[-1].num_chunks is None
    if source.supports_indexing():
        try:
            len(source)
        except TypeError:
            return True
    return False


def checked_init(init: Callable[..., Any]) -> Callable[..., Any]:
    """Puts the checks of lanes before a source's `init`."""

    @functools.wraps(init)
    def checked(self: Any, lane: int = 0, num_lanes: int = 1) -> Any:
        return init(self, *check_lane(lane, num_lanes))

    return checked


def checked_next(next_chunk: Callable[..., Any]) -> Callable[..., Any]:
    """Checks what a source's `next_chunk` gives."""

    @functools.wraps(next_chunk)
    def checked(self: Any, state: Any) -> tuple[Any, Any]:
        drawn = next_chunk(self, state)
        if not isinstance(drawn, tuple) or len(drawn) != 2:
            raise TypeError(
                f"{type(self).__name__}.next_chunk must return a chunk and a state; got {drawn!r}."
            )
        chunk, after = drawn
        if chunk is not None:
            self.check_chunk(chunk)
        return chunk, after

    return checked
