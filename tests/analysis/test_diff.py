"""Two runs compared: the same order, or the first place where they differ, by looking."""

from __future__ import annotations

import re

import pytest
from support.helpers import chunks_of, mixture
from support.sources import SOURCES, CountSource

import zephon_jax as zx
from zephon_jax.analysis.inspect_state import compare, inspect_states

CHANGES = {
    "seed": {"seed": 1},
    "fewer passes": {"stop_after_passes": 1},
    "more passes": {"stop_after_passes": 5},
    "redistribute": {"stop_after_passes": None, "exhausted_policy": "redistribute"},
    "capped": {"stop_after_passes": None, "max_repeats": 9},
    "no mosaic": {"shuffle_block_size": None},
    "no reshuffle": {"reshuffle_on_repeat": False},
    "weights": {"mixture": {"a": 5, "b": 3, "c": 2}},
    "smaller chunks": {"chunk_size": 8},
    "fixed": {"allocation": "fixed"},
    "virtual time": {"allocation": "virtual_time"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_difference_is_the_first(name):
    first = SOURCES["passes"]()
    second = first.replace(**CHANGES[name])
    found = zx.diff(first, second)
    assert not found.same
    assert found.settings
    pair = [[list(chunk) for chunk in chunks_of(source)] for source in (first, second)]
    assert pair[0][: found.chunk] == pair[1][: found.chunk]
    here = [chunks[found.chunk] if found.chunk < len(chunks) else [] for chunks in pair]
    assert here[0][: found.slot] == here[1][: found.slot]
    there = [chunk[found.slot] if found.slot < len(chunk) else None for chunk in here]
    assert there[0] != there[1]
    for sample, said in zip(there, (found.first, found.second), strict=True):
        assert (sample is None) == (said is None)
        if sample is not None:
            assert (said.dataset, *said[1:]) == (sample[1], *sample[0][1:])


def test_the_same_is_proven():
    for name, make in SOURCES.items():
        found = zx.diff(make(), make())
        assert found.same
        assert found.proven == (make().fingerprint() is not None), name


def test_late_differences_are_found_by_counts():
    source = mixture([10**6, 10**6], [3, 1], chunk_size=64, stop_after_passes=10)
    found = zx.diff(source, source.replace(stop_after_passes=9))
    end = zx.simulate(source.replace(stop_after_passes=9)).num_chunks
    assert (found.chunk, found.second) == (end, None)
    assert found.num_chunks == end + 1
    far = zx.diff(source, source.replace(stop_after_passes=9), num_chunks=1000)
    assert far.same
    assert not far.proven
    assert str(far) == (
        "settings that differ: stop_after_passes\nno difference in the first 1,000 chunks"
    )


def test_lanes_are_compared():
    source = mixture([1000, 1000], chunk_size=10)
    other = source.replace(lane_assignment="modulo")
    assert zx.diff(source, other).same
    found = zx.diff(source, other, num_lanes=4)
    chunk = next(
        g for g in range(200)
        if zx.lanes.lane_of_chunk(g, 4, 42) != zx.lanes.lane_of_chunk(g, 4, 42, "modulo")
    )  # fmt: skip
    assert (found.same, found.lane_chunk, found.chunk) == (False, chunk, None)
    assert f"lanes differ from chunk {chunk} on" in str(found)


def test_datasets_are_compared_by_name():
    sets = [zx.Dataset.from_counts(name, [300]) for name in ("web", "code")]
    first = zx.StaticMixtureWorkSource(sets, {"web": 1, "code": 0}, chunk_size=10)
    second = zx.StaticMixtureWorkSource(sets[::-1], {"web": 1, "code": 0}, chunk_size=10)
    found = zx.diff(first, second)
    assert found.same
    assert not found.proven
    assert "dataset names" in found.settings


def test_other_sources_are_gone_through():
    class Longer(CountSource):
        def next_chunk(self, state):
            if state.step * state.num_lanes + state.lane == 20:
                return zx.WorkChunk({"odd": [(0, 0, 5)]}, chunk_index=20), state._replace(
                    step=state.step + 1
                )
            return super().next_chunk(state)

    assert zx.diff(CountSource(), CountSource()).same
    found = zx.diff(CountSource(), Longer())
    assert (found.chunk, found.slot) == (20, 0)
    assert zx.diff(CountSource(), Longer(), num_chunks=20).same


def test_runs_that_are_read_in_other_ways_differ():
    """Only in how chunks are read: the same counts, and another sample at the slot named."""
    source = mixture([900, 300], [3, 1], chunk_size=100)
    ways = [zx.MixtureReadConfig(), zx.MixtureReadConfig(mode="lattice")]
    for one, other in (ways, ways[::-1]):
        found = zx.diff(source, source, read_config=one, second_read_config=other)
        assert (found.same, found.proven, found.settings) == (False, False, ("read_config",))
        first, second = (
            source.next_chunk(source.init())[0].order(config)[1].tolist() for config in (one, other)
        )
        slot = next(n for n in range(100) if first[n] != second[n])
        assert (found.chunk, found.slot) == (0, slot)
        for said, rows in ((found.first, first), (found.second, second)):
            assert said == ("ab"[rows[slot][0]], *rows[slot][1:])
    assert zx.diff(source, source, read_config=ways[1]).proven
    kept = zx.MixtureReadConfig(precompute=True)
    assert zx.diff(source, source, second_read_config=kept).proven


@pytest.mark.parametrize("num_lanes", [1, 3, 8])
def test_the_lattice_is_compared_as_the_lanes_read_it(num_lanes):
    lattice = zx.MixtureReadConfig(mode="lattice")
    source = mixture([900, 300], [3, 1], chunk_size=100)
    other = source.replace(shuffle_shards=False, mixture={"a": 2, "b": 1})
    found = zx.diff(source, other, num_lanes=num_lanes, read_config=lattice)
    slots = []
    for lane in range(num_lanes):
        pair = [one.next_chunk(one.init(lane, num_lanes))[0] for one in (source, other)]
        first, second = (chunk.order(lattice)[1].tolist() for chunk in pair)
        if pair[0].chunk_index == found.chunk:
            slots.append(next(n for n in range(100) if first[n] != second[n]))
            assert found.first == ("ab"[first[slots[-1]][0]], *first[slots[-1]][1:])
    assert [found.slot] == slots


def test_runs_without_chunks_are_compared():
    class Nothing(CountSource):
        def next_chunk(self, state):
            return None, state

    found = zx.diff(Nothing(), Nothing())
    assert (found.same, found.num_chunks) == (True, 0)
    found = zx.diff(Nothing(), CountSource())
    assert (found.same, found.chunk, found.slot, found.first) == (False, 0, 0, None)


def test_no_chunk_differs_in_no_chunks():
    source = mixture([1000, 1000], chunk_size=10)
    other = source.replace(seed=7)
    chunk = zx.diff(source, other, 50, 3).lane_chunk
    assert zx.diff(source, other, 0, 3).same
    lanes = source.replace(lane_assignment="modulo")
    first = zx.diff(source, lanes, 50, 3).lane_chunk
    assert first is not None
    assert zx.diff(source, lanes, first, 3).same
    assert zx.diff(source, lanes, first + 1, 3).lane_chunk == first
    assert chunk is None or chunk < 50


SETS = [zx.Dataset.from_counts("a", [600, 400]), zx.Dataset.from_counts("b", [50])]


def repeated(**settings):
    return zx.StaticMixtureWorkSource(
        SETS, {"a": 3, "b": 1}, chunk_size=10, exhausted_policy="repeat", **settings
    )


def test_states_are_compared_lane_by_lane():
    source = repeated(seed=1)
    here = [source.seek(8, lane, 2) for lane in range(2)]
    whole = inspect_states(here)
    assert not compare(whole, inspect_states(here[::-1])).notes
    assert not compare(whole, inspect_states([*here, here[0]])).notes
    other = next(
        one for one in (repeated(seed=seed) for seed in range(2, 30))
        if one.seek(8, 1, 2).chunk_index == here[1].chunk_index
    )  # fmt: skip
    found = compare(whole, inspect_states([here[0], other.seek(8, 1, 2)]))
    assert found.settings == ("seed",)
    assert found.summary() == "lane 1: the states are of runs with other seed"
    chunks = [state.chunk_index for state in here]
    by_origin = {n: [source.seek(8, lane, 2, origin=n) for lane in (0, 1)] for n in (2, 4, 6)}
    origin, cut = next(
        (origin, states)
        for origin, states in by_origin.items()
        if [state.chunk_index for state in states] == chunks
    )
    found = compare(whole, inspect_states(cut))
    assert (found.settings, found.lanes) == ((), (0, 1))
    assert f"lane 0: lanes dealt from chunk 0 on against chunk {origin}" in found.notes


def test_states_of_several_moments_or_runs_are_not_compared():
    source = repeated(seed=1)
    here = [source.seek(8, lane, 2) for lane in range(2)]
    twice, mixed = [*here, source.seek(4, 0, 2)], [here[0], source.seek(8, 3, 4)]
    early, late = sorted((twice[2].chunk_index, here[0].chunk_index))
    named = f"lane 0 of 2 is given twice, at chunk {early} slot 0 and chunk {late} slot 0"
    for states, text in ((twice, named), (mixed, r"of runs with [2, 4] lanes")):
        found = inspect_states(states)
        assert text in found.summary()
        for pair in ((found, inspect_states(here)), (inspect_states(here), found), (found, found)):
            with pytest.raises(ValueError, match=re.escape(text)):
                compare(*pair)
    assert "lanes: 2 of 2\n" in inspect_states(twice).summary()
    with pytest.raises(ValueError, match="those of a mixture"):
        compare(inspect_states([here[0], CountSource().init()]), inspect_states(here))


def test_settings_that_only_one_version_knows_are_told():
    lane = inspect_states(repeated().init())
    newer = (*lane.lanes[0].digests, ("schedule", 5))
    other = lane._replace(lanes=(lane.lanes[0]._replace(digests=newer),))
    assert compare(other, other).settings == ()
    for pair in ((lane, other), (other, lane)):
        assert compare(*pair).settings == ("schedule",)


def test_bad_input_is_named():
    source = SOURCES["passes"]()
    for call, error, text in (
        (lambda: zx.diff(source, 5), TypeError, "must be a zx.WorkSource"),
        (lambda: zx.diff(source, source, -1), ValueError, "num_chunks"),
        (lambda: zx.diff(source, source, 5, 0), ValueError, "num_lanes"),
        (lambda: zx.diff(source, source, read_config="x"), TypeError, "read_config"),
    ):
        with pytest.raises(error, match=text):
            call()
