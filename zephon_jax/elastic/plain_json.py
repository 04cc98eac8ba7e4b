"""States of pipelines as plain JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int

__all__ = ["lane_state", "place_in", "plain", "revive"]

_TUPLE = "__tuple__"


def plain(value: object) -> object:
    """A state of Grain's as plain JSON: its iterators keep NumPy integers here and there.

    Tuples are marked: a packer that gets a list back for its tuple takes it for something else.

    Raises:
      TypeError: If there is something in it that JSON does not have.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [plain(item) for item in value]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a pipeline's state must be plain JSON; got {type(value).__name__}.")


def revive(value: Any) -> Any:
    """A pipeline's state as it was before it became plain JSON, but for NumPy's types."""
    if isinstance(value, Mapping):
        if set(value) == {_TUPLE}:
            return tuple(revive(item) for item in value[_TUPLE])
        revived = dict(value)
        for key, item in value.items():
            if isinstance(item, (Mapping, list)):
                revived[key] = revive(item)
        return revived
    return [revive(item) for item in value] if isinstance(value, list) else value


def lane_state(lane: int, state: Any) -> Any:
    """A lane's own state, for its pipeline to read.

    Raises:
      ValueError: If it is none, naming the lane.
    """
    try:
        used = as_int(state["used"], "used")
        revived = {**state, "pipeline": revive(state["pipeline"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"lane {lane}: not the state of a lane: {error!r}.") from None
    if used < 0:
        raise ValueError(f"lane {lane}: {used} rows of a batch were used, of which there is none.")
    return revived


def place_in(state: object) -> Mapping[str, Any] | None:
    """The place of the lane's dataset in the state of its pipeline; None where there is not one.

    Args:
      state: As `LaneRows.get_state` gives it, or any part of it.
    """
    waiting, found = [state], []
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if {"lane", "num_lanes", "state", "slot"} <= part.keys():
                found.append(part)
            else:
                waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part
    return found[0] if len(found) == 1 else None
