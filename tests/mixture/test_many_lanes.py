"""Many lanes at once give what each of them gives alone."""

import itertools

import numpy as np
import pytest

import zephon_jax as zx
from zephon_jax.mixture.chunk_planner import ChunkPlanner
from zephon_jax.sources.chunk_windows import ChunkWindow, windows_of

LANES = 40


def make_source(policy="repeat", allocation="incremental", chunk_size=70, weights=(1, 2, 5)):
    datasets = [zx.Dataset.from_counts(f"d{n}", [300 + 37 * n, 400]) for n in range(len(weights))]
    return zx.StaticMixtureWorkSource(
        datasets, {d.name: w for d, w in zip(datasets, weights, strict=True)}, chunk_size,
        exhausted_policy=policy, allocation=allocation, shuffle_block_size="auto",
    )  # fmt: skip


def alike(one, other):
    return zx.encode_state(one) == zx.encode_state(other)


@pytest.mark.parametrize(
    ("policy", "allocation"),
    [
        *itertools.product(("repeat", "redistribute", "stop"), ("incremental", "virtual_time")),
        ("repeat", "fixed"),
    ],
)
@pytest.mark.parametrize("weights", [(1, 2, 5), (1, 2, 997)])  # the second has no closed form
def test_lanes_drawn_together_give_what_each_gives_alone(policy, allocation, weights):
    chunk_size = 70 if allocation != "fixed" or sum(weights) < 70 else 1000
    together, alone = (make_source(policy, allocation, chunk_size, weights) for _ in range(2))
    states = together.init_lanes(range(LANES), LANES)
    expected = [alone.init(lane, LANES) for lane in range(LANES)]
    assert all(map(alike, states, expected))
    for _ in range(3):
        drawn = together.next_chunks(states)
        one_by_one = [alone.next_chunk(state) for state in expected]
        for (chunk, state), (other, after) in zip(drawn, one_by_one, strict=True):
            assert alike(state, after)
            assert (chunk is None) == (other is None)
            if chunk is not None:
                assert (chunk.chunk_index, chunk.slot) == (other.chunk_index, other.slot)
                assert chunk.source_exhausted == other.source_exhausted
                assert chunk.target_mixture == other.target_mixture
                for mine, its in zip(chunk.order(), other.order(), strict=True):
                    np.testing.assert_array_equal(mine, its)
        states, expected = [s for _, s in drawn], [s for _, s in one_by_one]


@pytest.mark.parametrize("mode", ["lattice", "smooth_weighted_round_robin", "weighted_random"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_windows_of_many_chunks_are_parts_of_their_orders(mode, shuffled):
    source = make_source(chunk_size=300)
    config = zx.MixtureReadConfig(mode=mode, shuffle_within_component=shuffled)
    chunks = [c for c, _ in source.next_chunks(source.init_lanes(range(LANES), LANES))]
    chunks.append(source.next_chunk(source.init(3, 5))[0])  # of another run
    cuts = [(0, 300), (5, 9), (5, 9), (7, 7), (299, 300), *[(40, 77)] * 36]
    found = windows_of([ChunkWindow(c, *cut) for c, cut in zip(chunks, cuts, strict=True)], config)
    for chunk, (start, stop), (component, ids) in zip(chunks, cuts, found, strict=True):
        whole = chunk.order(config)
        np.testing.assert_array_equal(component, whole[0][start:stop])
        np.testing.assert_array_equal(ids, whole[1][start:stop])


def test_a_source_with_a_next_chunk_or_an_init_of_its_own_keeps_to_them():
    class Own(zx.StaticMixtureWorkSource):
        def next_chunk(self, state):
            return None, state

        def init(self, lane=0, num_lanes=1):
            return super().init(0, num_lanes)

    data = zx.Dataset.from_counts("d", [300])
    source = Own([data], {"d": 1}, 10)
    states = source.init_lanes([2, 3], 4)
    assert [int(state.lane) for state in states] == [0, 0]
    assert [chunk for chunk, _ in source.next_chunks(states)] == [None, None]


def test_restored_lanes_are_drawn_together_too(monkeypatch):
    source = make_source()
    saved = [zx.encode_state(state) for state in source.init_lanes(range(LANES), LANES)]
    other = make_source()
    states = [zx.decode_state(other, one) for one in saved]
    alone = [other.next_chunk(state)[0] for state in states]
    monkeypatch.setattr(ChunkPlanner, "next", None)  # what draws for one lane
    for mine, (chunk, _) in zip(alone, other.next_chunks(states), strict=True):
        np.testing.assert_array_equal(chunk.order()[1], mine.order()[1])
