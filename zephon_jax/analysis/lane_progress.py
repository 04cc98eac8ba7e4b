"""How far lanes have read, from saved states and the source that they belong to."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

from zephon_jax.analysis.saved_states import SavedState, SavedStates, check_saved_lane
from zephon_jax.sources.checks import lane_of
from zephon_jax.sources.codec import encode_state
from zephon_jax.sources.restore import decode_state
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["FINISHED", "LaneProgress", "progress_of"]

FINISHED = 1 << 62  # next chunk of a lane that has read its last
_MOST_WALKED = 1_000_000  # chunks of a lane, until a state counts as foreign


class LaneProgress(NamedTuple):
    """How far a lane has read."""

    __module__ = "zephon_jax"

    lane: int
    num_lanes: int
    origin: int  # chunk from which on there are so many lanes
    chunk: int  # it has read all of its chunks before this one, or all, where it is FINISHED
    slot: int  # samples that it has read of its next chunk


def progress_of(source: WorkSource, saved: SavedStates) -> list[LaneProgress]:
    """How far the lanes of some states have read.

    Args:
      source: The source that they belong to.
      saved: The states.

    Raises:
      ValueError: If a state does not belong to the source, naming what differs, or contradicts
        itself.
    """
    return [_of_state(source, one) for one in saved.states]


def _of_state(source: WorkSource, saved: SavedState) -> LaneProgress:
    state, slot = decode_state(source, saved.data), saved.slot
    source.check_slot(saved.data, slot)
    lane, num_lanes = lane_of(state)
    check_saved_lane(saved, lane, num_lanes)
    chunk, after = source.next_chunk(state)
    if slot > (0 if chunk is None else len(chunk)):
        size = "has ended" if chunk is None else f"has {len(chunk)} samples"
        raise ValueError(
            f"{saved.where} contradicts itself: slot = {slot}, and the lane's next chunk {size}."
            " It is damaged, or of a lane of which only every n-th sample is read, which cannot be"
            " audited."
        )
    if chunk is not None and slot == len(chunk):  # the iterator goes on when it is next asked
        state, slot = after, 0
        chunk, _ = source.next_chunk(state)
    origin = source.origin_of(state)
    if chunk is None:
        return LaneProgress(lane, num_lanes, origin, FINISHED, 0)
    index = _number(source, state) if chunk.chunk_index is None else chunk.chunk_index
    return LaneProgress(lane, num_lanes, origin, index, slot)


def _number(source: WorkSource, state: Any) -> int:
    """The next chunk's number where chunks do not say it: as dealt in turn."""
    lane, num_lanes = lane_of(state)
    wanted, here = encode_state(state), source.init(lane, num_lanes)
    for step in islice(walk(source, [here]), _MOST_WALKED):
        if encode_state(step.before) == wanted:
            return step.chunk_index
    raise ValueError(
        f"the state of lane {lane} of {num_lanes} is none that {type(source).__name__} comes to."
    )
