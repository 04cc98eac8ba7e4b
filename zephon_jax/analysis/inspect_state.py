"""What a saved state says by itself, without the source that it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from zephon_jax._text import counted, some
from zephon_jax.analysis.saved_states import SavedState, check_saved_lane, read_states
from zephon_jax.mixture.fingerprint import differing, named_digests
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.codec import open_fields, state_name
from zephon_jax.sources.words import from_words

__all__ = ["Inspected", "LaneState", "StatesDifference", "compare", "inspect_states"]

_SHOWN = 8  # lanes that are listed one by one


class LaneState(NamedTuple):
    """One lane's state in a mixture."""

    lane: int
    num_lanes: int
    chunk: int  # the lane's next chunk is its first from here on
    slot: int  # samples read of that chunk
    origin: int  # chunk from which on there are so many lanes
    drawn: tuple[int, ...]  # samples of each component before `chunk`, of all lanes
    digests: tuple[tuple[str, int], ...]  # of what fixes the order, by name
    num_bytes: int  # encoded
    checksum: str  # of the encoded state: states that have the same are equal

    @property
    def settings(self) -> dict[str, int]:
        """Digests by what they are of. A setting without one has its default value."""
        return dict(self.digests)


class Inspected(NamedTuple):
    """What was found in a file or folder."""

    kind: str
    step: int | None  # steps that the run had made
    num_lanes: int | None  # of the run; None where the lanes are of runs with several numbers
    lanes: tuple[LaneState, ...]
    others: tuple[str, ...]  # kinds of state records that are not those of a mixture

    @property
    def missing(self) -> tuple[int, ...]:
        """Lanes of the run that are not there."""
        held = {lane.lane for lane in self.lanes}
        return tuple(n for n in range(self.num_lanes or 0) if n not in held)

    def summary(self) -> str:
        """The states in words."""
        lines = [self.kind + ("" if self.step is None else f" at step {self.step:,}")]
        if self.step is None and len(self.lanes) == 1:
            lines.append(f"lane {self.lanes[0].lane} of {self.num_lanes}")
        elif self.num_lanes is not None:
            held = len({lane.lane for lane in self.lanes})
            lines.append(
                f"lanes: {held} of {self.num_lanes}"
                + (f"; missing: {some(self.missing)}" if self.missing else "")
            )
        if self.lanes:
            lines += _positions(self.lanes)
        lines += [f"! {one}" for one in _trouble(self.lanes)]
        lines += [f"a {record}, the state of another kind of source" for record in self.others]
        return "\n".join(lines)


def _trouble(lanes: Sequence[LaneState]) -> list[str]:
    """What keeps states from being those of one moment of one run."""
    said = []
    kinds = sorted({lane.num_lanes for lane in lanes})
    if len(kinds) > 1:
        said.append(f"the states are of runs with {kinds} lanes; give those of one run.")
    distinct = sorted(set(lanes))
    for one, other in pairwise(distinct):
        if one[:2] == other[:2]:
            said.append(
                f"lane {one.lane} of {one.num_lanes} is given twice, at {_place(one)} and"
                f" {_place(other)}."
            )
    return said


def _place(lane: LaneState) -> str:
    return f"chunk {lane.chunk:,} slot {lane.slot:,}"


def _positions(lanes: Sequence[LaneState]) -> list[str]:
    low, high = (choose(lanes, key=lambda lane: lane.chunk) for choose in (min, max))
    where = f"next chunk: {low.chunk:,}"
    if high.chunk != low.chunk:
        where += f" (lane {low.lane}) to {high.chunk:,} (lane {high.lane})"
    inside = [lane for lane in lanes if lane.slot]
    stand = f"; {counted(len(inside), 'lane')} {'stands' if len(inside) == 1 else 'stand'} inside"
    lines = [where + (f"{stand} a chunk" if inside else "")]
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


def inspect_states(states: object) -> Inspected:
    """Looks into states in any form in which they are kept.

    Args:
      states: What `zx.audit` takes: a state, the bytes or the plain JSON of one, an elastic
        iterator's state, or a list of these.

    Raises:
      TypeError, ValueError: If it is none of these, or damaged.
    """
    saved = read_states(states)
    if not saved.states:
        raise ValueError("there is no state of a lane in it.")
    opened = [_lane(one) for one in saved.states]
    lanes = tuple(one for one in opened if isinstance(one, LaneState))
    others = tuple(one for one in opened if isinstance(one, str))
    num_lanes = saved.num_lanes
    if num_lanes is None and len({lane.num_lanes for lane in lanes}) == 1:
        num_lanes = lanes[0].num_lanes
    return Inspected(saved.kind, saved.step, num_lanes, lanes, others)


class StatesDifference(NamedTuple):
    """Where states of two moments or runs differ."""

    settings: tuple[str, ...]  # of the runs, by what states call them
    lanes: tuple[int, ...]  # that stand at other places
    notes: tuple[str, ...]  # all of it in words

    def summary(self) -> str:
        """The difference in words; nothing where there is none."""
        return "\n".join(self.notes)


def compare(first: Inspected, second: Inspected) -> StatesDifference:
    """Compares states by what they say themselves.

    Raises:
      ValueError: If one of them holds no state of a mixture, or states of other sources too, or
        those of several runs or moments.
    """
    for found in (first, second):
        if not found.lanes or found.others:
            raise ValueError("states can be compared where they are those of a mixture.")
        if trouble := _trouble(found.lanes):
            raise ValueError(trouble[0])
    notes = []
    if first.num_lanes != second.num_lanes:
        notes.append(f"lanes differ: {first.num_lanes} against {second.num_lanes}")
    places, others = ({lane.lane: lane for lane in found.lanes} for found in (first, second))
    pairs = {n: (places[n], others[n]) for n in places if n in others}
    things, said = _other_settings(pairs)
    notes += said
    moved = [n for n, (one, other) in pairs.items() if _moved(one, other)]
    notes += [f"lane {n}: {_moved(*pairs[n])}" for n in moved[:_SHOWN]]
    if len(moved) > _SHOWN:
        notes.append(f"and {counted(len(moved) - _SHOWN, 'more lane')}")
    apart = sorted(places.keys() ^ others.keys())
    if apart and first.num_lanes == second.num_lanes:
        notes.append(f"lanes that only one of them has: {some(apart)}")
    return StatesDifference(things, tuple(moved), tuple(notes))


def _other_settings(
    pairs: Mapping[int, tuple[LaneState, LaneState]],
) -> tuple[tuple[str, ...], list[str]]:
    """The settings in which the lanes of two runs differ, and in words for which lanes."""
    by_things: dict[tuple[str, ...], list[int]] = {}
    for n, (one, other) in pairs.items():
        if things := tuple(differing(one.settings, other.settings)):
            by_things.setdefault(things, []).append(n)
    notes = []
    for things, lanes in by_things.items():
        whose = "" if len(lanes) == len(pairs) else f"{_named(lanes)}: "
        notes.append(f"{whose}the states are of runs with other {', '.join(things)}")
    return tuple(dict.fromkeys(t for things in by_things for t in things)), notes


def _named(lanes: Sequence[int]) -> str:
    return f"{'lane' if len(lanes) == 1 else 'lanes'} {some(lanes)}"


def _moved(one: LaneState, other: LaneState) -> str:
    """How two states of a lane stand at other places; nothing where they do not."""
    if (one.chunk, one.slot) != (other.chunk, other.slot):
        return f"{_place(one)} against {_place(other)}"
    if one.origin != other.origin:
        return f"lanes dealt from chunk {one.origin:,} on against chunk {other.origin:,}"
    if one.digests == other.digests and one.checksum != other.checksum:
        return f"{_place(one)} in both, and other samples before it"
    return ""


def _lane(saved: SavedState) -> LaneState | str:
    """A mixture's lane, or what other kind of record it is."""
    record, fields = open_fields(saved.data)
    if record != state_name(MixtureState) or len(fields) != len(MixtureState._fields):
        return record
    words = {
        name: np.frombuffer(raw, dtype="<u4")
        for name, raw in zip(MixtureState._fields, fields, strict=True)
        if isinstance(raw, bytes)
    }
    drawn = from_words(words["drawn"].reshape(-1, 2))
    lane, num_lanes = int(words["lane"][0]), int(words["num_lanes"][0])
    check_saved_lane(saved, lane, num_lanes)
    return LaneState(
        lane=lane,
        num_lanes=num_lanes,
        chunk=from_words(words["chunk"]),
        slot=saved.slot,
        origin=from_words(words["origin"]),
        drawn=tuple(drawn.tolist()),
        digests=tuple(named_digests(words["config"]).items()),
        num_bytes=len(saved.data),
        checksum=hashlib.blake2b(saved.data, digest_size=8).hexdigest(),
    )
