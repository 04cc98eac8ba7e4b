"""How far lanes have read, from states in any form in which they are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import fsspec

from zephon_jax._xp import as_int
from zephon_jax.contract import lane_of
from zephon_jax.source import WorkSource, decode_state, encode_state, state_from_dict
from zephon_jax.state import MixtureState, from_words

__all__ = ["FINISHED", "LaneProgress", "load_states", "places_in", "progress_of"]

FINISHED = 1 << 62  # next chunk of a lane that has read its last
_MOST_WALKED = 1_000_000


class LaneProgress(NamedTuple):
    """How far a lane has read."""

    lane: int
    num_lanes: int
    origin: int  # chunk from which on there are so many lanes
    chunk: int  # it has read all of its chunks before this one, or all, where it is FINISHED
    slot: int  # samples that it has read of its next chunk


def load_states(path: Any, step: int | None = None) -> Any:
    """Reads states from a file or folder, as they were saved.

    Args:
      path: A checkpoint's folder or the one above, a folder with files of lanes, a file of
        `encode_state`, or a JSON file of a `get_state` or `state_dict`; local or by URL.
      step: Which checkpoint of the folder; the newest by default.

    Returns:
      An elastic state, the plain JSON of one lane, or the bytes of one.

    Raises:
      FileNotFoundError: If there is none.
      ValueError: If it is damaged.
    """
    fs, root = fsspec.core.url_to_fs(os.fspath(path))
    if fs.isdir(root):
        # The checkpoints of elastic iterators rest on Grain; states alone do not.
        from zephon_jax.checkpoint import read_checkpoint

        return read_checkpoint(path, step)
    if not fs.exists(root):
        raise FileNotFoundError(f"there is no file or folder {path}.")
    data = fs.cat_file(root)
    if data[:1] not in (b"{", b"["):
        return data
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"{path} is neither an encoded state nor JSON: {error}") from None


def progress_of(source: WorkSource, states: Any) -> list[LaneProgress]:
    """How far the lanes of some states have read.

    Args:
      source: The source that they belong to.
      states: A state, the bytes or the plain JSON of one, an elastic iterator's state, or a list
        of these.

    Raises:
      TypeError: If it is none of these.
      ValueError: If a state does not belong to the source, naming what differs.
    """
    if isinstance(states, Mapping) and "lanes" in states:
        if not isinstance(states["lanes"], Mapping):
            raise ValueError(f"'lanes' must hold states by lane; got {states['lanes']!r}.")
        return [_of_dict(source, one, f"lane {lane}") for lane, one in states["lanes"].items()]
    if isinstance(states, Mapping):
        return [_of_dict(source, states, "the state")]
    if isinstance(states, (bytes, bytearray, memoryview)):
        return [_of_state(source, decode_state(source, bytes(states)))]
    if isinstance(states, tuple) and hasattr(states, "_fields"):
        return [_of_state(source, states)]
    if not isinstance(states, Iterable) or isinstance(states, str):
        raise TypeError(f"states must be states, or what they were saved as; got {states!r}.")
    return [lane for one in states for lane in progress_of(source, one)]


def _of_dict(source: WorkSource, state: Any, where: str) -> LaneProgress:
    """The lane that a plain JSON state stands for, wherever in a pipeline's state it lies."""
    places = list(places_in(state))
    if len(places) != 1:
        raise ValueError(
            f"{where}: a pipeline's state must hold the place of one lane; found {len(places)}."
        )
    (place,) = places
    decoded = state_from_dict(source, place, (place["lane"], place["num_lanes"]))
    return _of_state(source, decoded, as_int(place.get("slot", 0), f"the slot of {where}", 0))


def places_in(state: Any) -> Iterable[Mapping[str, Any]]:
    """The places of lanes in a state of plain JSON, wherever in pipelines' states they lie."""
    if isinstance(state, Mapping):
        if {"lane", "num_lanes", "state"} <= state.keys():
            yield state
            return
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        for part in state:
            yield from places_in(part)


def _of_state(source: WorkSource, state: Any, slot: int = 0) -> LaneProgress:
    if type(state) is not type(source.init()):
        raise TypeError(
            f"the states of {type(source).__name__} are {type(source.init()).__name__}; got"
            f" {type(state).__name__}."
        )
    source.check_state(state)
    lane, num_lanes = lane_of(state)
    chunk, _ = source.next_chunk(state)
    if chunk is not None and slot >= len(chunk):  # the iterator goes on when it is next asked
        state, slot = source.next_chunk(state)[1], 0
        chunk, _ = source.next_chunk(state)
    origin = from_words(state.origin) if isinstance(state, MixtureState) else 0
    if chunk is None:
        return LaneProgress(lane, num_lanes, origin, FINISHED, 0)
    index = _number(source, state) if chunk.chunk_index is None else chunk.chunk_index
    return LaneProgress(lane, num_lanes, origin, index, slot)


def _number(source: WorkSource, state: Any) -> int:
    """The next chunk's number where chunks do not say it: as dealt in turn."""
    lane, num_lanes = lane_of(state)
    wanted, here = encode_state(state), source.init(lane, num_lanes)
    for step in range(_MOST_WALKED):
        if encode_state(here) == wanted:
            return step * num_lanes + lane
        chunk, here = source.next_chunk(here)
        if chunk is None:
            break
    raise ValueError(
        f"the state of lane {lane} of {num_lanes} is none that {type(source).__name__} comes to."
    )
