"""What every source obeys, along one lane: purity, states, ends and what chunks may hold.

A law is a function that takes a `Subject` and raises `BrokenLaw` with what it found. It calls the
source's own methods and nothing that would mend their mistakes.
"""

# Whatever a source gives is looked at before it is trusted.
# pyright: standard

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._text import short
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.codec import encode_state
from zephon_jax.sources.restore import decode_state
from zephon_jax.sources.work_source import WorkSource

__all__ = ["BrokenLaw", "Drawn", "Subject", "along_a_lane", "difference"]


class BrokenLaw(Exception):
    """A law that a source breaks, and how."""


class Drawn(NamedTuple):
    """A chunk of a lane."""

    chunk_index: int  # its own number, or that of a chunk dealt in turn where it has none
    chunk: WorkChunk
    before: Any  # the state it was drawn from
    after: Any


@dataclass(frozen=True)
class Subject:
    """A source under test."""

    source: WorkSource[Any]
    num_chunks: int  # chunks of the run that are looked at
    lanes: tuple[int, ...]  # numbers of lanes
    once: bool  # each sample of the datasets comes exactly once in the run

    def lane(self, lane: int, num_lanes: int, state: Any = None) -> Iterator[Drawn]:
        """Goes through a lane from a state on, by default from its beginning."""
        source = self.source
        state = source.init(lane, num_lanes) if state is None else state
        dealt = lane
        while True:
            drawn: Any = source.next_chunk(state)
            if not isinstance(drawn, tuple) or len(drawn) != 2:
                raise BrokenLaw(f"next_chunk must return a chunk and a state; got {short(drawn)}.")
            chunk, after = drawn
            if chunk is None:
                return
            if not isinstance(chunk, WorkChunk):
                raise BrokenLaw(f"next_chunk must return a WorkChunk or None; got {short(chunk)}.")
            index = dealt if chunk.chunk_index is None else chunk.chunk_index
            yield Drawn(index, chunk, state, after)
            state, dealt = after, dealt + num_lanes

    @functools.cached_property
    def run(self) -> list[Drawn]:
        """The first chunks of the run as one lane, as they came the first time."""
        return list(islice(self.lane(0, 1), self.num_chunks))


def difference(one: WorkChunk, other: WorkChunk) -> str | None:
    """How two chunks that should be the same differ, but for their lanes; None where they do not.

    Names of components without samples do not matter.
    """
    parts = [{name: ids for name, ids in c.components.items() if len(ids)} for c in (one, other)]
    if list(parts[0]) != list(parts[1]):
        return f"components {list(parts[0])[:8]} and {list(parts[1])[:8]}"
    for name, ids in parts[0].items():
        if not np.array_equal(ids, parts[1][name]):
            return f"samples of {name!r}: {_first(ids, parts[1][name])}"
    for field in ("chunk_index", "seed"):
        if getattr(one, field) != getattr(other, field):
            return f"{field} {getattr(one, field)} and {getattr(other, field)}"
    if set(one.source_exhausted) != set(other.source_exhausted):
        return f"source_exhausted {one.source_exhausted} and {other.source_exhausted}"
    if dict(one.target_mixture) != dict(other.target_mixture):
        return "other shares in target_mixture"
    return None


def _first(one: np.ndarray, other: np.ndarray) -> str:
    if len(one) != len(other):
        return f"{len(one)} and {len(other)}"
    place = int((one != other).any(axis=1).argmax())
    return f"{tuple(one[place].tolist())} and {tuple(other[place].tolist())} at place {place}"


def _structure(value: object, where: str = "state") -> list[tuple[str, str]]:
    """Where each leaf of a state is, and of which kind."""
    if isinstance(value, dict):
        keys = sorted(value)
        return [pair for key in keys for pair in _structure(value[key], f"{where}[{key!r}]")]
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None) or [f"[{n}]" for n in range(len(value))]
        marks = [name if name[0] == "[" else f".{name}" for name in names]
        inner = [
            pair
            for mark, item in zip(marks, value, strict=True)
            for pair in _structure(item, where + mark)
        ]
        return [(where, f"{type(value).__name__} of {len(value)}"), *inner]
    if isinstance(value, (np.ndarray, np.generic)):
        return [(where, f"{value.dtype} {value.shape}")]
    return [(where, type(value).__name__)]


def _same(one: Any, other: Any) -> bool:
    """True for states that hold the same."""
    if _structure(one) != _structure(other):
        return False
    if isinstance(one, dict):
        return all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return all(map(_same, one, other))
    return bool(np.array_equal(one, other))


def declared_components(subject: Subject) -> None:
    """Components have unique ids from the start, and chunks hold no others."""
    source = subject.source
    declared = dict(source.component_ids())
    for name, number in declared.items():
        if not isinstance(name, str) or not isinstance(number, (int, np.integer)) or number < 0:
            raise BrokenLaw(
                "component_ids() must give names ids that are integers and not negative; got"
                f" {name!r}: {short(number)}."
            )
    if len(set(declared.values())) < len(declared):
        raise BrokenLaw(f"component_ids() must give unique ids; got {short(declared)}.")
    for drawn in subject.run:
        stray = [name for name in drawn.chunk.names if name not in declared]
        if stray:
            raise BrokenLaw(
                f"chunk {drawn.chunk_index} holds {stray[:8]}, and component_ids() names"
                f" {list(declared)[:8]} alone. Declare all components from the start."
            )
    if dict(source.component_ids()) != declared:
        raise BrokenLaw("component_ids() are others once chunks have been drawn.")


def structure_of_states(subject: Subject) -> None:
    """States are NamedTuples of their lane whose structure, shapes and dtypes never change."""
    for lane, num_lanes in ((0, 1), (subject.lanes[-1] - 1, subject.lanes[-1])):
        first = subject.source.init(lane, num_lanes)
        if not isinstance(first, tuple) or not hasattr(first, "_fields"):
            raise BrokenLaw(f"a state must be a NamedTuple; got {short(first)}.")
        structure = _structure(first)
        states = (drawn.after for drawn in subject.lane(lane, num_lanes))
        for step, state in enumerate([first, *islice(states, subject.num_chunks)]):
            for field, wanted in (("lane", lane), ("num_lanes", num_lanes)):
                if not hasattr(state, field):
                    raise BrokenLaw(f"a state must have the field {field!r}; it has none.")
                if getattr(state, field) != wanted:
                    raise BrokenLaw(
                        f"a state of lane {lane} of {num_lanes} says {field} ="
                        f" {short(getattr(state, field))} after {step} chunks."
                    )
            found = _structure(state)
            if found != structure:
                pairs = zip([*structure, ("", "")], [*found, ("", "")], strict=False)
                was, now = next(pair for pair in pairs if pair[0] != pair[1])
                raise BrokenLaw(
                    "states must have one structure for ever; after"
                    f" {step} chunks {now[0] or was[0]} is {now[1] or 'missing'} and was {was[1]}"
                    f" ({was[0]}). Keep what grows out of the state."
                )


def purity(subject: Subject) -> None:
    """A state always gives the same chunk and next state, and is never changed."""
    source, run = subject.source, subject.run
    kept = [copy.deepcopy(drawn.before) for drawn in run]
    some = run[:: max(1, len(run) // 16)]
    for drawn in [*some[::-1], *some[:2]]:  # in another order than before
        chunk, after = source.next_chunk(drawn.before)
        again = f"drawn again from its state, chunk {drawn.chunk_index}"
        if chunk is None:
            raise BrokenLaw(f"{again} is None. What decides a chunk must lie in the state alone.")
        if differs := difference(drawn.chunk, chunk):
            raise BrokenLaw(
                f"{again} differs: {differs}. What decides a chunk must lie in the state alone."
            )
        if not _same(after, drawn.after):
            raise BrokenLaw(
                f"{again} leaves another state: {short(after)}, and before {short(drawn.after)}."
            )
    for drawn, was in zip(run, kept, strict=True):
        if not _same(drawn.before, was):
            raise BrokenLaw(
                f"next_chunk changed the state it was given: {short(drawn.before)}, and before"
                f" {short(was)}. Make a new one, with _replace."
            )


def end_of_the_run(subject: Subject) -> None:
    """At the end there is no chunk, the state stays, and it is the end for ever."""
    source, run = subject.source, subject.run
    state = run[-1].after if run else source.init()
    if len(run) == subject.num_chunks and source.next_chunk(state)[0] is not None:
        return
    for _ in range(3):
        chunk, after = source.next_chunk(state)
        if chunk is not None:
            raise BrokenLaw(f"after its end the run goes on with {chunk!r}.")
        if not _same(after, state):
            raise BrokenLaw(
                f"at the end next_chunk must return the state it was given, {short(state)}; got"
                f" {short(after)}."
            )
        state = after


def codec_of_states(subject: Subject) -> None:
    """States become bytes and come back the same, and the run goes on from them."""
    source, num_lanes = subject.source, subject.lanes[-1]
    for lane, lanes in ((0, 1), (0, num_lanes)):
        steps = list(islice(subject.lane(lane, lanes), subject.num_chunks))
        for drawn in steps[:: max(1, len(steps) // 8)]:
            data = encode_state(drawn.before)
            back = decode_state(source, data)
            if not _same(back, drawn.before):
                raise BrokenLaw(
                    f"a state before chunk {drawn.chunk_index} came back from its bytes as"
                    f" {short(back)}; it was {short(drawn.before)}."
                )
            if encode_state(back) != data:
                raise BrokenLaw("a state that was decoded has other bytes than before.")
            chunk, _ = source.next_chunk(back)
            if chunk is None or difference(drawn.chunk, chunk):
                raise BrokenLaw(
                    f"from its decoded state, chunk {drawn.chunk_index} comes as {chunk!r}."
                )


along_a_lane = {
    "declared components": declared_components,
    "structure of states": structure_of_states,
    "purity": purity,
    "end of the run": end_of_the_run,
    "encoded states": codec_of_states,
}
