"""Two runs compared: the same order, or the first place where they differ, by looking."""

from __future__ import annotations

import pytest
from helpers import chunks_of, mixture
from test_laws import SOURCES, CountSource

import zephon_jax as zx

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
        assert found.proven == (name != "custom")


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
