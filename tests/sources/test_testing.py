"""`zx.testing.check_source` finds each planted fault, and names the law and the place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import zephon_jax as zx
from zephon_jax.sources.chunk_spans import ChunkSpan


class State(NamedTuple):
    lane: int
    num_lanes: int
    step: int
    more: Any = ()


class Good(zx.WorkSource):
    """Forty samples of a dataset, four to a chunk but for the last two."""

    dataset = zx.Dataset.from_counts("numbers", [30, 8])
    order = tuple(range(38))
    stop = 10

    def init(self, lane=0, num_lanes=1):
        return State(lane, num_lanes, 0)

    def number(self, state):
        return state.step * state.num_lanes + state.lane

    def ids(self, g):
        return [(0, i // 30, i % 30) for i in self.order[4 * g : 4 * g + 4]]

    def next_chunk(self, state):
        g = self.number(state)
        if g >= self.stop:
            return None, state
        chunk = zx.WorkChunk({"numbers": self.ids(g)}, chunk_index=g)
        return chunk, state._replace(step=state.step + 1)

    def component_ids(self):
        return {"numbers": 0}

    @property
    def datasets_by_id(self):
        return {0: self.dataset}

    def chunk_size_hint(self):
        return 4

    def chunk_spans(self):
        return (ChunkSpan(0, 10, 38),)


class Impure(Good):
    """A counter of its own moves on with each call."""

    def __init__(self):
        self.calls = 0

    def ids(self, g):
        self.calls += 1
        return [(0, 0, (4 * g + i + self.calls) % 30) for i in range(4)]


class ChangesItsState(Good):
    def init(self, lane=0, num_lanes=1):
        return State(lane, num_lanes, 0, np.zeros(2, dtype=np.int32))

    def next_chunk(self, state):
        chunk, after = super().next_chunk(state)
        state.more[0] += chunk is not None
        return chunk, after


class DropsATail(Good):
    """The last chunk, which is short, does not come."""

    stop = 9

    def chunk_spans(self):
        return (ChunkSpan(0, 9, 36),)


class TwiceOverLanes(Good):
    """Lanes begin at the same chunk."""

    def number(self, state):
        return state.step * state.num_lanes + max(0, state.lane - 1)


class Undeclared(Good):
    def next_chunk(self, state):
        chunk, after = super().next_chunk(state)
        if chunk is not None and chunk.chunk_index == 5:
            chunk = zx.WorkChunk({"stray": self.ids(5)}, chunk_index=5)
        return chunk, after


class ByHash(Good):
    """Sorted by the hash of a string, which is another one in each process."""

    def ids(self, g):
        order = sorted(range(38), key=lambda i: hash(f"sample {i}"))
        return [(0, i // 30, i % 30) for i in order[4 * g : 4 * g + 4]]


class MadeByHash(Good):
    """The same, when it is made: copies agree, and those that are made anew do not."""

    def __init__(self):
        self.order = sorted(range(38), key=lambda i: hash(f"sample {i}"))


class Grows(Good):
    """The state remembers all chunks so far."""

    def next_chunk(self, state):
        chunk, after = super().next_chunk(state)
        if chunk is not None:
            after = after._replace(more=(*after.more, chunk.chunk_index))
        return chunk, after


class NotEncodable(Good):
    def init(self, lane=0, num_lanes=1):
        return State(lane, num_lanes, 0, 0.5)


class SeeksOffByOne(Good):
    def seek(self, chunk_index, lane=0, num_lanes=1, *, origin=0):
        step = -(-(chunk_index - lane) // num_lanes)
        return State(lane, num_lanes, max(0, step) + (chunk_index > 2))


class WrongLength(Good):
    def chunk_spans(self):
        return (ChunkSpan(0, 10, 40),)


class StopsEarly(Good):
    """A lane ends where a whole block would not fit any more."""

    def next_chunk(self, state):
        if (state.step + 1) * state.num_lanes > self.stop:
            return None, state
        return super().next_chunk(state)


class GoesOnAfterItsEnd(Good):
    def next_chunk(self, state):
        chunk, after = super().next_chunk(state)
        return chunk, after._replace(step=after.step + (chunk is None))


class Raises(Good):
    def ids(self, g):
        return self.order[99]


FAULTS = {
    Impure: ("purity", "drawn again from its state, chunk"),
    ChangesItsState: ("purity", "changed the state it was given"),
    DropsATail: ("exactly once", "2 of 38 samples of dataset 'numbers' never come.*(0, 1, 6)"),
    TwiceOverLanes: ("lanes", "chunk 0 comes twice: in lane 0 and in lane 1 of 2"),
    Undeclared: ("declared components", "chunk 5 holds .'stray'."),
    ByHash: ("another process", "chunk 0 is another one"),
    MadeByHash: ("another process", "chunk 0 is another one"),
    Grows: ("structure of states", "state.more.* is .* after 1 chunks|after 1 chunks state.more"),
    NotEncodable: ("encoded states", "TypeError.*must be an int"),
    SeeksOffByOne: ("seek", r"seek\(3, 0, 1\) leads to chunk 4, stepping to chunk 3"),
    WrongLength: ("length", "says 40 samples in 10 chunks from 0 on; they hold 38"),
    StopsEarly: ("lanes", r"chunks \[9\] of 10 come in no lane of 3"),
    GoesOnAfterItsEnd: ("end of the run", "must return the state it was given"),
    Raises: ("purity", "IndexError at test_testing.py"),
}


@pytest.mark.parametrize("faulty", FAULTS, ids=lambda faulty: faulty.__name__)
def test_each_fault_is_found(faulty):
    law, text = FAULTS[faulty]
    made = faulty if faulty is MadeByHash else faulty()
    with pytest.raises(
        AssertionError, match=rf"(?s)^{faulty.__name__} breaks .*- {law}: .*{text}"
    ) as said:
        zx.testing.check_source(made, exactly_once=True)
    assert len(str(said.value)) < 1000


def test_a_sound_source_passes():
    zx.testing.check_source(Good(), exactly_once=True)


def test_an_endless_source_is_looked_at_as_far_as_asked():
    toy = zx.Dataset.from_counts("toy", [40, 3])
    source = zx.StaticMixtureWorkSource(
        [toy], {"toy": 1}, chunk_size=7, exhausted_policy="repeat", shuffle_within_shard=True
    )
    zx.testing.check_source(source, num_chunks=20, lanes=(4,), other_process=False)
    with pytest.raises(AssertionError, match="needs the whole run"):
        zx.testing.check_source(source, num_chunks=20, exactly_once=True, other_process=False)


def test_wrong_arguments_are_named():
    for arguments, text in (
        ({"num_chunks": 1}, "num_chunks"), ({"lanes": ()}, "lanes"), ({"lanes": (0,)}, "lanes")
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            zx.testing.check_source(Good(), **arguments)
    with pytest.raises(TypeError, match=r"source must be a zx\.WorkSource"):
        zx.testing.check_source(dict)
