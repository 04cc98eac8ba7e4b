"""Saved states in any form in which they are kept, as one list: audits and inspections read it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import fsspec

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.sources.codec import encode_state, slot_check

__all__ = ["SavedState", "SavedStates", "check_saved_lane", "load_states", "read_states"]

_ELASTIC = "the state of an elastic iterator"
_OF_LANE = {"pipeline", "used"}  # what an elastic iterator keeps of each of its lanes
_ENCODED = b"\x93"  # a list of three, as `encode_state` begins; no JSON does


class SavedState(NamedTuple):
    """One lane's state as it was saved."""

    where: str  # what errors call it
    data: bytes  # encoded
    lane: tuple[int, int] | None  # the lane and number of lanes that were saved with it
    slot: int  # samples read of its next chunk
    elastic: bool  # True for what an elastic iterator saved, whose lanes read by lattice


class SavedStates(NamedTuple):
    """What was found in a file, folder or object."""

    kind: str
    step: int | None  # steps that the run had made
    num_lanes: int | None  # of the run, where that was saved apart from the states
    states: tuple[SavedState, ...]


def load_states(path: str | os.PathLike[str], step: int | None = None) -> object:
    """Reads states from a file or folder, as they were saved.

    Args:
      path: A checkpoint's folder or the one above, a folder with files of lanes, a file of
        `encode_state`, or a JSON file of a `get_state` or `state_dict`; local or by URL.
      step: Which checkpoint of the folder; the newest by default.

    Returns:
      What `read_states` takes.

    Raises:
      FileNotFoundError: If there is none.
      ValueError: If it is damaged, or a file where a step is asked for.
    """
    fs, root = fsspec.core.url_to_fs(os.fspath(path))
    if fs.isdir(root):
        # The checkpoints of elastic iterators rest on Grain; states alone do not.
        from zephon_jax.elastic.checkpoint.save_restore import read_checkpoint

        return read_checkpoint(path, step)
    if not fs.exists(root):
        raise FileNotFoundError(f"there is no file or folder {path}.")
    if step is not None:
        raise ValueError(f"{path} is a file: it has no steps to choose from; got step = {step}.")
    data = fs.cat_file(root)
    if data[:1] == _ENCODED:
        return data
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a state in JSON.") from None
    except ValueError as error:
        raise ValueError(f"{path} is neither an encoded state nor JSON: {error}") from None


def read_states(states: object) -> SavedStates:
    """Brings states into one form, without the source that they belong to.

    Args:
      states: A state, the bytes or the plain JSON of one, wherever in a pipeline's state it lies,
        an elastic iterator's state, or a list of these.

    Raises:
      TypeError: If it is none of these.
      ValueError: If there is no state in it, or a lane is not the one that it is kept under.
    """
    if isinstance(states, (bytes, bytearray, memoryview)):
        return _alone("an encoded state", bytes(states))
    if isinstance(states, tuple) and hasattr(states, "_fields"):
        return _alone("a state", encode_state(states))
    if isinstance(states, Mapping) and "lanes" in states:
        if not isinstance(states["lanes"], Mapping):
            raise ValueError(f"'lanes' must hold states by lane; got {short(states['lanes'])}.")
        step, num_lanes = states.get("step"), _num_lanes(states)
        step = None if step is None else as_int(step, "step", 0)
        return SavedStates(_ELASTIC, step, num_lanes, tuple(_of_elastic(states)))
    if isinstance(states, Mapping):
        found = tuple(_found_in(states))
        if not found:
            raise ValueError("there is no state of a lane in it.")
        return SavedStates("the state of an iterator", None, None, found)
    if not isinstance(states, (list, tuple)):
        raise TypeError(f"states must be states, or what they were saved as; got {short(states)}.")
    found = tuple(state for one in states for state in read_states(one).states)
    return SavedStates("a list of states", None, None, found)


def _alone(kind: str, data: bytes) -> SavedStates:
    return SavedStates(kind, None, None, (SavedState("the state", data, None, 0, False),))


def _num_lanes(states: Mapping[str, object]) -> int | None:
    num_lanes = states.get("num_lanes")
    return None if num_lanes is None else as_int(num_lanes, "num_lanes", 1)


def _of_elastic(states: Mapping[str, Any]) -> Iterator[SavedState]:
    """What the `get_state` of an elastic iterator holds, or several of them put together."""
    num_lanes = _num_lanes(states)
    for name, state in states["lanes"].items():
        where = f"lane {name}"
        found = list(_found_in(state, where, elastic=True))
        if len(found) != 1:
            raise ValueError(
                f"{where}: a pipeline's state must hold the place of one lane; found {len(found)}."
            )
        assert found[0].lane is not None
        lane, of = found[0].lane
        if str(lane) != str(name) or of != (num_lanes or of):
            raise ValueError(
                f"{where}{f' of {num_lanes}' if num_lanes else ''} holds the state of lane {lane}"
                f" of {of}: states were mixed up."
            )
        yield found[0]


def _found_in(
    states: object, where: str = "the state", *, elastic: bool = False
) -> Iterator[SavedState]:
    """The states of lanes in plain JSON, wherever in the states of pipelines or trainers they lie.

    Those in an elastic iterator's state, or in that of one of its lanes, are its own.
    """
    stack = [(states, elastic)]  # not by recursion: nobody knows how deep a file goes
    while stack:
        part, its = stack.pop()
        if isinstance(part, Mapping):
            if {"lane", "num_lanes", "state"} <= part.keys():
                yield _saved(part, where, its)
                continue
            if isinstance(part.get("lanes"), Mapping) and not its:
                yield from _of_elastic(part)
                continue
            its = its or part.keys() == _OF_LANE
            part = list(part.values())
        if isinstance(part, (list, tuple)):
            stack += [(one, its) for one in reversed(part)]


def _saved(place: Mapping[str, Any], where: str, elastic: bool) -> SavedState:
    """The state in a place, with the slot that it was saved with."""
    lane = as_int(place["lane"], f"the lane of {where}", 0)
    num_lanes = as_int(place["num_lanes"], f"the number of lanes of {where}", 1)
    slot = as_int(place.get("slot", 0), f"the slot of {where}", 0)
    try:
        data = base64.b64decode(place["state"], validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} is not the state of a lane: {error}") from None
    if place.get("check", slot_check(place["state"], slot)) != slot_check(place["state"], slot):
        raise ValueError(f"{where} is damaged: slot = {slot} does not fit its check.")
    return SavedState(where, data, (lane, num_lanes), slot, elastic)


def check_saved_lane(saved: SavedState, lane: int, num_lanes: int) -> None:
    """Checks that an encoded state is of the lane that was saved with it.

    Raises:
      ValueError: Naming both.
    """
    if saved.lane not in (None, (lane, num_lanes)):
        raise ValueError(
            f"{saved.where} was saved as that of lane {saved.lane[0]} of {saved.lane[1]}; it is of"
            f" lane {lane} of {num_lanes}."
        )
