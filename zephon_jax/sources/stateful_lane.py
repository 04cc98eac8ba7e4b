"""A lane of a source as an object with a place, and its place in plain JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zephon_jax.sources.checks import check_lane, lane_of
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.codec import decode_fields, encode_state

if TYPE_CHECKING:
    from zephon_jax.sources.work_source import WorkSource

__all__ = ["StatefulLane", "decode", "state_from_dict", "state_to_dict"]


def decode(source: WorkSource, data: bytes) -> Any:
    """Decodes a state and checks that it belongs to a source.

    Raises:
      TypeError: If `data` is not bytes.
      ValueError: If it is damaged, or belongs to another source, naming what differs.
    """
    state = decode_fields(source.init(), data, source.check_encoded)
    source.check_state(state)
    return state


def state_to_dict(state: Any) -> dict[str, Any]:
    """A lane's state as plain JSON: lane, number of lanes and the encoded state."""
    lane, num_lanes = lane_of(state)
    encoded = base64.b64encode(encode_state(state)).decode("ascii")
    return {"lane": lane, "num_lanes": num_lanes, "state": encoded}


def state_from_dict(source: WorkSource, state: Mapping[str, Any], lane: tuple[int, int]) -> Any:
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


class StatefulLane:
    """A lane of a source as an object with a place: `next_chunk()` moves it on.

    Made by `WorkSource.clone_for_lane`; bound once and for all to its lane.
    """

    __module__ = "zephon_jax"

    def __init__(self, source: WorkSource, lane_id: int, canonical_replicas: int):
        self._source = source
        self._lane = check_lane(lane_id, canonical_replicas)
        self._state = source.init(*self._lane)

    @property
    def source(self) -> WorkSource:
        """The source this is a lane of."""
        return self._source

    @property
    def datasets_by_id(self) -> Mapping[int, Any]:
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
        chunk, self._state = self._source.next_chunk(self._state)
        return chunk

    def state_dict(self) -> dict[str, Any]:
        """The lane's place as plain JSON: lane, number of lanes and the encoded state."""
        return state_to_dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a place that `state_dict` described. On an error nothing has changed.

        Raises:
          ValueError: If it belongs to another lane, number of lanes or source.
        """
        self._state = state_from_dict(self._source, state, self._lane)

    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> StatefulLane:
        """Always raises: a lane is bound once.

        Raises:
          ValueError: Always.
        """
        lane, num_lanes = self._lane
        raise ValueError(
            f"already bound to lane {lane} of {num_lanes}; got lane {lane_id} of"
            f" {canonical_replicas}. Call clone_for_lane on the source itself."
        )
