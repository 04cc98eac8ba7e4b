"""A lane of a source as an object with a place, and its place in plain JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Generic, Protocol

from zephon_jax.sources.checks import LaneState, ShardedDataset, State, check_lane, draw, lane_of
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.codec import Decoded, decode, encode_state

__all__ = ["StatefulLane", "state_from_dict", "state_to_dict"]


class _Source(Decoded[State], Protocol[State]):
    """What a lane tells of its source."""

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]: ...

    def component_ids(self) -> Mapping[str, int]: ...

    def chunk_size_hint(self) -> int | None: ...


def state_to_dict(state: LaneState) -> dict[str, int | str]:
    """A lane's state as plain JSON: lane, number of lanes and the encoded state."""
    lane, num_lanes = lane_of(state)
    encoded = base64.b64encode(encode_state(state)).decode("ascii")
    return {"lane": lane, "num_lanes": num_lanes, "state": encoded}


def state_from_dict(
    source: Decoded[State], state: Mapping[str, Any], lane: tuple[int, int]
) -> State:
    """Decodes the "state" entry of a plain JSON state and checks the lane it is for.

    Raises:
      ValueError: If it is not a state of this source and lane.
    """
    try:
        data = base64.b64decode(state["state"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the state of a lane: {error!r}.") from None
    decoded = decode(source, data)
    got = lane_of(decoded)
    if got != lane:
        raise ValueError(
            f"the state is of lane {got[0]} of {got[1]}; this is lane {lane[0]} of {lane[1]}."
        )
    return decoded


class StatefulLane(Generic[State]):
    """A lane of a source as an object with a place: `next_chunk()` moves it on.

    Made by `WorkSource.clone_for_lane`; bound once and for all to its lane.
    """

    __module__ = "zephon_jax"

    def __init__(self, source: _Source[State], lane_id: int, canonical_replicas: int):
        self._source = source
        self._lane = check_lane(lane_id, canonical_replicas)
        self._state = source.init(*self._lane)

    @property
    def source(self) -> _Source[State]:
        """The source this is a lane of."""
        return self._source

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The source's datasets, by dataset id."""
        return self._source.datasets_by_id

    def component_ids(self) -> Mapping[str, int]:
        """The source's component ids."""
        return self._source.component_ids()

    def chunk_size_hint(self) -> int | None:
        """Samples in a whole chunk, or None where they vary."""
        return self._source.chunk_size_hint()

    def next_chunk(self) -> WorkChunk | None:
        """Returns this lane's next chunk, or None at the end."""
        chunk, self._state = draw(self._source, self._state)
        return chunk

    def state_dict(self) -> dict[str, int | str]:
        """The lane's place as plain JSON: lane, number of lanes and the encoded state."""
        return state_to_dict(self._state)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes to a place that `state_dict` described. On an error nothing has changed.

        Raises:
          ValueError: If it belongs to another lane, number of lanes or source.
        """
        self._state = state_from_dict(self._source, state, self._lane)

    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> StatefulLane[State]:
        """Always raises: a lane is bound once.

        Raises:
          ValueError: Always.
        """
        lane, num_lanes = self._lane
        raise ValueError(
            f"already bound to lane {lane} of {num_lanes}; got lane {lane_id} of"
            f" {canonical_replicas}. Call clone_for_lane on the source itself."
        )
