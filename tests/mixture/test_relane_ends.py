"""Cuts near the end of a run, where the last block has fewer chunks than lanes."""

import numpy as np
import pytest

import zephon_jax as zx


def source_of(num_chunks, **settings):
    toy = zx.Dataset.from_counts("toy", [10 * num_chunks])
    return zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10, **settings)


def stepped(source, states):
    """One step of each lane: the chunks, and the states after them."""
    drawn = [source.next_chunk(state) for state in states]
    return [chunk.chunk_index for chunk, _ in drawn if chunk is not None], [s for _, s in drawn]


def test_two_cuts_near_the_end():
    """5 chunks: 2 lanes one step each, then 7 one step each, of which 4 have no chunk, then 3."""
    source = source_of(5)
    first, states = stepped(source, [source.init(lane, 2) for lane in range(2)])
    second, states = stepped(source, zx.relane(states, 7))
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    third = zx.relane(states, 3)
    assert stepped(source, third)[0] == []
    assert all(state.chunk_index == 5 for state in third)


def test_lanes_that_lag_behind_near_the_end_are_still_refused():
    source = source_of(5)
    _, states = stepped(source, [source.init(lane, 2) for lane in range(2)])
    seven = zx.relane(states, 7)
    drawn = [source.next_chunk(state) for state in seven]
    late = next(lane for lane, (chunk, _) in enumerate(drawn) if chunk is not None)
    states = [seven[late] if lane == late else after for lane, (_, after) in enumerate(drawn)]
    with pytest.raises(ValueError, match="Step the lanes that lag behind"):
        zx.relane(states, 3)


@pytest.mark.parametrize("assignment", ["permute", "modulo"])
def test_drawn_cuts_read_every_chunk_once(assignment):
    rng = np.random.default_rng(0)
    for _ in range(150):
        num_chunks = int(rng.integers(1, 25))
        source = source_of(num_chunks, lane_assignment=assignment, seed=int(rng.integers(9)))
        lanes = int(rng.integers(1, 9))
        states, found = [source.init(lane, lanes) for lane in range(lanes)], []
        for _ in range(6):
            for _ in range(int(rng.integers(0, 3))):
                chunks, states = stepped(source, states)
                found += chunks
            states = zx.relane(states, int(rng.integers(1, 9)))
        while chunks := (step := stepped(source, states))[0]:
            found, states = found + chunks, step[1]
        assert sorted(found) == list(range(num_chunks))
