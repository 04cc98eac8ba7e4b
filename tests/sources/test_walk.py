"""Going through the chunks of any source, against stepping by hand."""

from __future__ import annotations

import pytest
from support.sources import SOURCES, CountSource, plain

from zephon_jax.sources.walk import walk


class Unnumbered(CountSource):
    """Chunks that do not say their number."""

    def next_chunk(self, state):
        chunk, state = super().next_chunk(state)
        if chunk is not None:
            chunk.chunk_index = None
        return chunk, state


@pytest.fixture(params=[*SOURCES, "unnumbered"])
def source(request):
    return {**SOURCES, "unnumbered": Unnumbered}[request.param]()


def by_hand(source, state):
    found = []
    while True:
        chunk, after = source.next_chunk(state)
        if chunk is None:
            return found
        found.append((state, chunk, after))
        state = after


def test_a_walk_of_one_lane_is_stepping(source):
    for lane, num_lanes in ((0, 1), (2, 3)):
        steps = list(walk(source, [source.init(lane, num_lanes)]))
        expected = by_hand(source, source.init(lane, num_lanes))
        assert len(steps) == len(expected)
        for n, (step, (before, chunk, after)) in enumerate(zip(steps, expected, strict=True)):
            dealt = n * num_lanes + lane if chunk.chunk_index is None else chunk.chunk_index
            assert step[:3] == (dealt, lane, n)
            assert plain(step.chunk) == plain(chunk)
            same = [(step.before, before), (step.after, after)]
            assert all(str(one) == str(other) for one, other in same)


def test_lanes_are_merged_in_the_order_of_the_run(source):
    one = [step.chunk_index for step in walk(source, [source.init()])]
    for num_lanes in (2, 5):
        states = [source.init(lane, num_lanes) for lane in range(num_lanes)]
        steps = list(walk(source, states))
        assert [step.chunk_index for step in steps] == one == list(range(len(one)))
        assert all(step.lane_step == step.chunk_index // num_lanes for step in steps)


def test_a_walk_from_the_middle_numbers_chunks_from_there():
    source = Unnumbered()
    for first in (0, 1, 7, 8):
        states = [source.seek(first, lane, 3) for lane in range(3)]
        found = [step.chunk_index for step in walk(source, states, first)]
        assert found == list(range(first, 30))
    assert not list(walk(source, []))
