"""Samples found ahead of a lane: the same ones that each chunk finds by itself."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import chunks_of, mixture

from zephon_jax.kernels import swrr
from zephon_jax.mixture import chunk_samples as chunk_ids
from zephon_jax.mixture import random_access as run_index
from zephon_jax.sources import read_order as reading

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


def test_what_is_kept_has_a_bound(monkeypatch):
    monkeypatch.setattr(chunk_ids, "_MAX_KEPT", 400)
    monkeypatch.setattr(chunk_ids, "_MAX_LANES", 4)
    source = source_of("repeats")
    states = [source.init(lane, 9) for lane in range(9)]
    for _ in range(12):
        for lane in range(9):
            _, states[lane] = source.next_chunk(states[lane])
            assert len(source.run._ids._found) <= 10
            assert len(source.run._ids._following) <= 4


@pytest.mark.parametrize("together", [1, 100, 1 << 16])
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_by_index_are_those_of_the_chunks(name, together, monkeypatch):
    """Whole chunks and single draws, in a row and not, several chunks found at once or each."""
    monkeypatch.setattr(run_index, "TOGETHER", together)
    every = np.concatenate([chunk.order()[1] for chunk in chunks_of(source_of(name), limit=60)])
    source, rng = source_of(name), np.random.default_rng(together)
    questions = [
        np.arange(len(every)),
        np.arange(7, len(every) - 3),
        rng.permutation(len(every)),
        rng.integers(0, len(every), 30),
        np.sort(rng.choice(len(every), len(every) // 2)),
        np.concatenate([np.arange(100), rng.integers(0, len(every), 9), np.arange(45, 90)]),
    ]
    for wanted in questions:
        assert np.array_equal(source.sample_ids_at(wanted), every[wanted])


def owner(array):
    while array.base is not None:
        array = array.base
    return array


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_who_keeps_samples_keeps_their_chunk_alone(num_lanes):
    """Chunks that were found with theirs must not live on in the same memory."""
    source = source_of("repeats")
    for chunk in chunks_of(source, 0, num_lanes, limit=70):
        for ids in [chunk.order()[1], *chunk.components.values(), chunk._ids]:
            assert owner(ids).nbytes <= 40 * 3 * 8


def test_long_chunks_are_not_ordered_many_at_a_time(monkeypatch):
    """Orders computed ahead take memory in proportion to the chunk."""
    monkeypatch.setattr(reading, "_remembered", reading._Remembered())
    monkeypatch.setattr(reading, "_MOST_SLOTS", 120)
    asked = []
    monkeypatch.setattr(
        reading.backend, "swrr_orders", lambda rows, size: asked.append(rows) or swrr.order(rows)
    )
    source = source_of("repeats")
    for chunk in chunks_of(source, limit=10):
        chunk.order()
    assert asked
    assert all(rows.sum() <= 160 for rows in asked)  # its own, and three of 40


def test_orders_are_not_computed_ahead_for_nothing(monkeypatch):
    """Lanes that together need more room than there is stop pushing out each other's orders."""
    monkeypatch.setattr(reading, "_MAX_REMEMBERED", 2000)
    monkeypatch.setattr(reading, "_remembered", reading._Remembered())
    names = [f"d{d}" for d in range(12)]
    source = mixture(
        [9000] * 12, [100 + 7.1 * d for d in range(12)], names=names, chunk_size=97,
        exhausted_policy="repeat",
    )  # fmt: skip
    states = [source.init(lane, 30) for lane in range(30)]
    for _ in range(8):
        for lane in range(30):
            chunk, states[lane] = source.next_chunk(states[lane])
            component, _ = chunk.order()
            assert np.array_equal(component, swrr.order(chunk.counts))
    assert reading._remembered.ahead < 4
    assert reading._remembered._slots <= 2000
