"""What a saved state says by itself, without the source that it belongs to."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._xp import as_int
from zephon_jax.codec import open_fields
from zephon_jax.knobs import CONFIG_THINGS
from zephon_jax.progress import places_in
from zephon_jax.state import MixtureState, from_words

__all__ = ["Inspected", "LaneState", "inspect_states"]


class LaneState(NamedTuple):
    """One lane's state in a mixture."""

    lane: int
    num_lanes: int
    chunk: int  # the lane's next chunk is its first from here on
    slot: int  # samples read of that chunk
    origin: int  # chunk from which on there are so many lanes
    drawn: tuple[int, ...]  # samples of each component before `chunk`, of all lanes
    digests: tuple[int, ...]  # of each thing in CONFIG_THINGS
    num_bytes: int  # encoded

    @property
    def settings(self) -> dict[str, int]:
        """Digests by what they stand for; empty where they are of another version."""
        if len(self.digests) != len(CONFIG_THINGS):
            return {}
        return dict(zip(CONFIG_THINGS, self.digests, strict=True))


class Inspected(NamedTuple):
    """What was found in a file or folder."""

    kind: str
    step: int | None  # steps that the run had made
    num_lanes: int | None  # of the run
    lanes: tuple[LaneState, ...]
    others: tuple[str, ...]  # kinds of state records that are not those of a mixture

    @property
    def missing(self) -> tuple[int, ...]:
        """Lanes of the run that are not there."""
        held = {lane.lane for lane in self.lanes}
        return tuple(n for n in range(self.num_lanes or 0) if n not in held)

    def summary(self) -> str:
        """The states in words."""
        lines = [self.kind + ("" if self.step is None else f" of step {self.step:,}")]
        if self.step is None and len(self.lanes) == 1:
            lines.append(f"lane {self.lanes[0].lane} of {self.num_lanes}")
        elif self.num_lanes is not None:
            lines.append(
                f"lanes: {len(self.lanes)} of {self.num_lanes}"
                + (f"; missing: {list(self.missing[:16])}" if self.missing else "")
            )
        if self.lanes:
            lines += _positions(self.lanes)
        lines += [f"a {record}, the state of another kind of source" for record in self.others]
        return "\n".join(lines)


def _positions(lanes: Sequence[LaneState]) -> list[str]:
    low, high = (choose(lanes, key=lambda lane: lane.chunk) for choose in (min, max))
    where = f"next chunk: {low.chunk:,}"
    if high.chunk != low.chunk:
        where += f" (lane {low.lane}) to {high.chunk:,} (lane {high.lane})"
    inside = [lane for lane in lanes if lane.slot]
    lines = [where + (f"; {len(inside)} lanes stand inside a chunk" if inside else "")]
    origins = sorted({lane.origin for lane in lanes if lane.origin})
    if origins:
        lines.append(f"lanes were cut anew at chunk {', '.join(f'{one:,}' for one in origins)}")
    if low.drawn:
        lines.append(f"samples drawn before chunk {low.chunk:,}: {sum(low.drawn):,}")
        if len(low.drawn) <= 16:
            lines.append("  by component: " + ", ".join(f"{n:,}" for n in low.drawn))
    kinds = {lane.digests for lane in lanes}
    lines.append(f"encoded size: {max(lane.num_bytes for lane in lanes)} bytes a lane")
    if len(kinds) > 1:
        lines.append(f"! the lanes are of {len(kinds)} runs with other settings or data")
    return lines


def inspect_states(states: Any) -> Inspected:
    """Looks into states in any form in which they are kept.

    Args:
      states: The bytes of a state, the plain JSON of one, or an elastic iterator's state:
        what `progress.load_states` reads.

    Raises:
      TypeError, ValueError: If it is none of these, or damaged.
    """
    if isinstance(states, (bytes, bytearray)):
        return _inspected("an encoded state", None, None, [(bytes(states), 0)])
    if not isinstance(states, Mapping):
        raise TypeError(f"not a state: {type(states).__name__}.")
    found = [
        (_bytes_of(place), as_int(place.get("slot", 0), "slot", 0)) for place in places_in(states)
    ]
    if not found:
        raise ValueError("there is no state of a lane in it.")
    if "lanes" in states:
        step = as_int(states.get("step", 0), "step", 0)
        num_lanes = as_int(states.get("num_lanes"), "num_lanes", 1)
        return _inspected("a checkpoint of an elastic iterator", step, num_lanes, found)
    return _inspected("the state of an iterator", None, None, found)


def _inspected(
    kind: str, step: int | None, num_lanes: int | None, found: Sequence[tuple[bytes, int]]
) -> Inspected:
    opened = [_lane(*one) for one in found]
    lanes = tuple(one for one in opened if isinstance(one, LaneState))
    others = tuple(one for one in opened if isinstance(one, str))
    if num_lanes is None and lanes:
        num_lanes = lanes[0].num_lanes
    return Inspected(kind, step, num_lanes, lanes, others)


def _bytes_of(place: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(place["state"], validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"not the state of a lane: {error}") from None


def _lane(data: bytes, slot: int) -> LaneState | str:
    """A mixture's lane, or what other kind of record it is."""
    record, fields = open_fields(data)
    if record != MixtureState.__name__ or len(fields) != len(MixtureState._fields):
        return record
    words = {
        name: np.frombuffer(raw, dtype="<u4")
        for name, raw in zip(MixtureState._fields, fields, strict=True)
    }
    drawn = from_words(words["drawn"].reshape(-1, 2))
    return LaneState(
        lane=int(words["lane"][0]),
        num_lanes=int(words["num_lanes"][0]),
        chunk=from_words(words["chunk"]),
        slot=slot,
        origin=from_words(words["origin"]),
        drawn=tuple(drawn.tolist()),
        digests=tuple(words["config"].tolist()),
        num_bytes=len(data),
    )
