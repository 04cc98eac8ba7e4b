"""Chunks planned ahead of a lane: the same ones that each chunk finds by itself."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from support.helpers import chunks_of, mixture

import zephon_jax as zx
from zephon_jax.kernels import backend, swrr
from zephon_jax.mixture.chunk_planner import ChunkPlanner
from zephon_jax.mixture.random_access import RandomAccess

SETTINGS = {
    "repeats": {"exhausted_policy": "repeat", "shuffle_block_size": 64},
    "leaves": {"exhausted_policy": "redistribute", "shuffle_within_shard": True},
    "stops": {"exhausted_policy": "stop"},
    "passes": {"stop_after_passes": 3, "shuffle_block_size": "global"},
    "virtual time": {"allocation": "virtual_time", "stop_after_passes": 2},
    "rare": {"chunk_size": 3, "stop_after_passes": 2},
}


def source_of(name):
    settings = {"chunk_size": 40, **SETTINGS[name]}
    return mixture([[300, 500], 900, [70] * 9], [3, 2, 1.37], **settings)


def alone(name, chunk, lane):
    """The chunk's samples from a source that has never drawn another."""
    fresh = source_of(name)
    return fresh.next_chunk(fresh.seek(chunk.chunk_index, *lane))[0]


@pytest.mark.parametrize("num_lanes", [1, 5])
@pytest.mark.parametrize("name", SETTINGS)
def test_chunks_in_turn_are_what_each_is_alone(name, num_lanes):
    source = source_of(name)
    lanes = [chunks_of(source, lane, num_lanes, limit=90) for lane in range(num_lanes)]
    assert len(lanes[0]) > 2
    for lane, chunks in enumerate(lanes):
        for chunk in [*chunks[:4], *chunks[-3:]]:
            wanted = alone(name, chunk, (lane, num_lanes)).components
            assert all(np.array_equal(chunk.components[c], wanted[c]) for c in wanted)
    found = np.concatenate([chunk.order()[1] for lane in lanes for chunk in lane])
    every = chunks_of(source_of(name), limit=sum(map(len, lanes)))
    if num_lanes * 90 > len(every):  # the whole run
        whole = np.concatenate([chunk.order()[1] for chunk in every])
        assert sorted(found.tolist()) == sorted(whole.tolist())


def test_lanes_side_by_side_and_states_asked_again():
    source = source_of("repeats")
    states = [source.init(lane, 3) for lane in range(3)]
    for _ in range(30):
        for lane in range(3):
            chunk, after = source.next_chunk(states[lane])
            again, _ = source.next_chunk(states[lane])
            assert np.array_equal(chunk.order()[1], again.order()[1])
            states[lane] = after
            if chunk.chunk_index % 7 == 0:
                other = alone("repeats", chunk, (lane, 3))
                assert np.array_equal(chunk.order()[1], other.order()[1])


def positions_of(source, lanes, planner, num_steps):
    """Goes through lanes side by side by a planner; their chunks' samples by chunk index."""
    found, at = {}, {lane: source.eras.seek(lane.chunk_from(0)) for lane in lanes}
    for _ in range(num_steps):
        for lane in lanes:
            plan = planner.next(at[lane], lane)
            at[lane] = plan.after
            component = np.repeat(np.arange(plan.quotas.size), plan.quotas)
            number = np.concatenate([np.arange(count) for count in plan.quotas])
            ids = plan.finder.of_numbers(component, number)
            assert plan.ids is None or np.array_equal(plan.ids, ids)
            found[plan.position.chunk_index] = ids
    return found


def ahead_of(source, lane, position):
    """How many chunks are planned with a lane's second one from a position on."""
    first = source.run.planner.next(position, lane)
    return len(source.run.planner.next(first.after, lane).upcoming)


@pytest.mark.parametrize(
    "allocation", ["incremental", pytest.param("virtual_time", marks=pytest.mark.slow)]
)
def test_chunks_of_very_many_components_are_planned_few_at_a_time(allocation):
    for k, ahead in ((8, 31), (2000, 15), (33_000, 0)):
        source = mixture([500_000] * k, allocation=allocation, chunk_size=40_000)
        position = source.eras.seek(0)
        assert ahead_of(source, source.run.states.lane(0, 1), position) == ahead


def test_the_last_chunks_that_64_bits_count_are_read():
    """Chunks of 2^28 samples dealt to 2^31 - 1 lanes: those planned ahead are past any count."""
    source = mixture(
        [2**59, 1], [2**28 - 1, 1], chunk_size=2**28, allocation="virtual_time",
        exhausted_policy="repeat", lane_assignment="modulo",
    )  # fmt: skip
    lane = source.run.states.lane(0, 2**31 - 1)
    position = source.eras.seek(lane.chunk_from(2**34 - 2**33))
    assert 1 < len(source.run.planner.rows(position, lane, 32).chunks) < 32


@pytest.mark.parametrize("max_words", [1, 2000, 20_000])
def test_pages_of_many_lanes_keep_to_their_bound(max_words):
    source = source_of("repeats")
    planner = ChunkPlanner(source.eras, source.run.orders.lookup(0), 40, max_words)
    lanes = [source.run.states.lane(lane, 9) for lane in range(9)]
    found = positions_of(source, lanes, planner, 12)
    one_page = 33 * 3 * 11 + 3 * 40 * 32
    assert planner.words <= max(max_words, one_page)
    for chunk in chunks_of(source_of("repeats"), limit=9 * 12):
        ids = np.concatenate(list(chunk.components.values()))
        assert np.array_equal(found[chunk.chunk_index], ids)


def test_chunks_keep_no_source_alive():
    source = source_of("repeats")
    chunks = chunks_of(source, limit=5)
    gone = weakref.ref(source.run)
    del source
    gc.collect()
    assert gone() is None
    assert [len(chunk.order()[0]) for chunk in chunks] == [40] * 5


@pytest.mark.parametrize("together", [1, 100, 1 << 16])
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_by_index_are_those_of_the_chunks(name, together):
    """Whole chunks and single draws, in a row and not, several chunks found at once or each."""
    every = np.concatenate([chunk.order()[1] for chunk in chunks_of(source_of(name), limit=60)])
    run, rng = source_of(name).run, np.random.default_rng(together)
    samples = RandomAccess(run.eras, source_of(name).settings, run.orders, together=together)
    questions = [
        np.arange(len(every)),
        np.arange(7, len(every) - 3),
        rng.permutation(len(every)),
        rng.integers(0, len(every), 30),
        np.sort(rng.choice(len(every), len(every) // 2)),
        np.concatenate([np.arange(100), rng.integers(0, len(every), 9), np.arange(45, 90)]),
    ]
    for wanted in questions:
        found = samples.sample_ids(wanted, 0, zx.MixtureReadConfig())
        assert np.array_equal(found, every[wanted])


def owner(array):
    while array.base is not None:
        array = array.base
    return array


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_who_keeps_samples_keeps_their_chunk_alone(num_lanes):
    """Chunks that were found with theirs must not live on in the same memory."""
    source = source_of("repeats")
    for chunk in chunks_of(source, 0, num_lanes, limit=70):
        for ids in [chunk.order()[1], *chunk.components.values()]:
            assert owner(ids).nbytes <= 40 * 3 * 8


def orders_asked_for(monkeypatch):
    """Rows of round robin orders that are computed together, as they come."""
    asked, compute = [], backend.swrr_orders
    monkeypatch.setattr(
        backend, "swrr_orders", lambda rows, size: asked.append(len(rows)) or compute(rows, size)
    )
    return asked


def unlike(num_lanes, chunk_size):
    """Chunks of one lane of many, whose counts no other test has asked for."""
    weights = [100 + 7.13 * d + num_lanes for d in range(12)]
    source = mixture([9000] * 12, weights, chunk_size=chunk_size, exhausted_policy="repeat")
    return [chunks_of(source, lane, num_lanes, limit=8) for lane in range(min(num_lanes, 30))]


def test_orders_of_a_lane_are_computed_together(monkeypatch):
    asked = orders_asked_for(monkeypatch)
    for chunk in unlike(1, 97)[0]:
        assert np.array_equal(chunk.order()[0], swrr.order(chunk.counts))
    assert asked[0] == 1
    assert asked[1] > 20  # its own, and the next ones of its page
    assert len(asked) == 2


def test_orders_of_long_chunks_are_computed_few_at_a_time(monkeypatch):
    """Orders computed ahead take memory in proportion to the chunk."""
    asked = orders_asked_for(monkeypatch)
    (chunks,) = unlike(1, 1 << 20)
    for chunk in chunks[:3]:
        chunk.order()
    assert max(asked) <= 4
