"""Where a run holds a sample, against going through all of it."""

from __future__ import annotations

import sys
import time
import warnings
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import chunks_of, mixture, state_after
from support.sources import SOURCES, CountSource

import zephon_jax as zx
from zephon_jax.elastic.relane import RelanedSource
from zephon_jax.sources import find_sample

READS = [
    zx.MixtureReadConfig(mode=mode, shuffle_within_component=shuffle)
    for mode in ("smooth_weighted_round_robin", "weighted_random", "lattice")
    for shuffle in (False, True)
]


def everywhere(source, num_lanes, up_to_chunk=None, read_config=None):
    """All places of all samples by reading every chunk: (chunk, lane, step, slot) by sample id."""
    found = {}
    for lane in range(num_lanes):
        state, step = source.init(lane, num_lanes), 0
        while True:
            chunk, state = source.next_chunk(state)
            if chunk is None or (up_to_chunk is not None and chunk.chunk_index >= up_to_chunk):
                break
            for slot, row in enumerate(chunk.order(read_config)[1].tolist()):
                found.setdefault(tuple(row), []).append((chunk.chunk_index, lane, step, slot))
            step += 1
    return {sample: sorted(places) for sample, places in found.items()}


def assert_found(source, expected, samples, **arguments):
    for sample in samples:
        places = source.locate(sample, **arguments)
        assert [place[1:] for place in places] == expected.get(sample, [])
        assert sorted(place.pass_number for place in places) == list(range(len(places)))


def samples_of(source, most=60):
    """Some samples of every dataset, the ends of each shard among them."""
    found = []
    for d, dataset in source.datasets_by_id.items():
        for shard, count in enumerate(dataset.shard_counts.tolist()):
            some = np.unique(np.linspace(0, count - 1, min(count, 4)).astype(int)).tolist()
            found += [(d, shard, i) for i in some]
    step = max(1, len(found) // most)
    return found[::step]


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "custom"])
@pytest.mark.parametrize("num_lanes", [1, 3, 8])
def test_every_source_and_number_of_lanes(name, num_lanes):
    source = SOURCES[name]()
    expected = everywhere(source, num_lanes)
    assert_found(source, expected, samples_of(source), num_lanes=num_lanes)
    expected = everywhere(source, num_lanes, up_to_chunk=7)
    assert_found(source, expected, samples_of(source, 12), num_lanes=num_lanes, up_to_chunk=7)


@pytest.mark.parametrize("reshuffle", [True, False])
@pytest.mark.parametrize("block", [None, 5, 64, "auto", "global"])
def test_every_shuffle_level(block, reshuffle):
    for within in (False, True):
        for shards in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # some of these have no effect together
                source = mixture(
                    [[9, 0, 17, 4, 30], [3], [30, 30]], [5, 2, 3], chunk_size=19,
                    stop_after_passes=3, shuffle_block_size=block, shuffle_within_shard=within,
                    shuffle_shards=shards, reshuffle_on_repeat=reshuffle,
                )  # fmt: skip
            assert_found(source, everywhere(source, 2), samples_of(source, 12), num_lanes=2)


@pytest.mark.parametrize("config", READS)
def test_every_reading_order(config):
    source = SOURCES["passes"]()
    for num_lanes in (1, 4):
        expected = everywhere(source, num_lanes, read_config=config)
        assert_found(
            source, expected, samples_of(source, 4), num_lanes=num_lanes, read_config=config
        )


@settings(max_examples=40, deadline=None)
@given(
    shards=st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=5), min_size=1, max_size=4),
    weights=st.lists(st.sampled_from([0.01, 0.3, 1, 3, 7]), min_size=4, max_size=4),
    policies=st.lists(st.sampled_from(["stop", "repeat", "redistribute"]), min_size=4, max_size=4),
    chunk_size=st.integers(1, 30),
    num_lanes=st.integers(1, 5),
    block=st.sampled_from([None, 3, 16, "auto", "global"]),
    allocation=st.sampled_from(["incremental", "fixed", "virtual_time"]),
    chosen=st.integers(0, 10**6),
)
def test_drawn_mixtures(
    shards, weights, policies, chunk_size, num_lanes, block, allocation, chosen
):
    names = "abcd"[: len(shards)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = mixture(
                shards, weights[: len(shards)], chunk_size=chunk_size, shuffle_block_size=block,
                exhausted_policy=dict(zip(names, policies, strict=False)), allocation=allocation,
            )  # fmt: skip
    except ValueError:
        return  # refused at construction, by name
    samples = samples_of(source)
    expected = everywhere(source, num_lanes, up_to_chunk=60)
    some = [samples[(chosen + 7 * n) % len(samples)] for n in range(3)]
    assert_found(source, expected, some, num_lanes=num_lanes, up_to_chunk=60)


@pytest.mark.parametrize("name", SOURCES)
def test_indexing_and_locating_are_inverse(name):
    source = SOURCES[name]()
    if not source.supports_indexing():
        return
    starts = [0]
    state = source.init()
    while (chunk := source.next_chunk(state)[0]) is not None:
        starts.append(starts[-1] + len(chunk))
        state = source.next_chunk(state)[1]
    for index in np.unique(np.linspace(0, len(source) - 1, 25).astype(int)).tolist():
        places = source.locate(source[index])
        assert index in [starts[place.chunk] + place.slot for place in places]
        assert {source[starts[p.chunk] + p.slot] for p in places} == {source[index]}


def test_own_sources_are_gone_through():
    source = CountSource()
    expected = everywhere(source, 4)
    for sample in ((0, 0, 3), (0, 0, 149), (1, 0, 59), (1, 0, 60)):
        places = source.locate(sample, 4)
        assert [place[1:] for place in places] == expected.get(sample, [])
    assert source.locate((0, 0, 149), up_to_chunk=10) == []


def test_a_chunk_that_holds_a_sample_often_is_read_once(monkeypatch):
    """A run of 60 chunks and 40 passes a chunk has 2,400 places and 60 reading orders."""
    read, orders = sys.modules["zephon_jax.mixture.locate"].read_order, []

    def counted(counts, *args, **kwargs):
        orders.append(kwargs["chunk_index"])
        return read(counts, *args, **kwargs)

    monkeypatch.setattr("zephon_jax.mixture.locate.read_order", counted)
    source = mixture([[2, 1], 10**4], [3, 1], chunk_size=160, exhausted_policy="repeat")
    expected = everywhere(source, 3, up_to_chunk=60)
    for sample in ((0, 0, 0), (0, 0, 1), (0, 1, 0)):
        orders.clear()
        assert_found(source, expected, [sample], num_lanes=3, up_to_chunk=60)
        assert orders == list(range(60))
    assert len(expected[0, 1, 0]) == 2400


@pytest.mark.filterwarnings("ignore:a chunk of .* times all data")
def test_many_places_take_seconds():
    """164,000 places, which took 2.5 s when each was looked for on its own: 0.2 s together."""
    source = mixture([1], chunk_size=16384, exhausted_policy="repeat")
    begin = time.perf_counter()
    places = source.locate((0, 0, 0), 4, 10)
    assert time.perf_counter() - begin < 2
    assert [place.pass_number for place in places] == list(range(10 * 16384))
    assert [16384 * place.chunk + place.slot for place in places] == list(range(10 * 16384))


@pytest.mark.parametrize("weights", [[3, 1, 0], [3, 0.001, 0]])
def test_endless_runs_are_gone_through_place_by_place(weights):
    source = mixture([[7, 4], 5, 9], weights, chunk_size=20, exhausted_policy="repeat")
    expected = everywhere(source, 2, up_to_chunk=1000)
    for sample in ((0, 1, 2), (1, 0, 4)):
        wanted = expected[sample]
        places = islice(source.places_of(sample, 2), len(wanted))
        assert [place[1:] for place in places] == wanted
    assert list(source.places_of((2, 0, 0), 2)) == []


def test_places_beyond_a_list_are_refused_with_advice(monkeypatch):
    monkeypatch.setattr(find_sample, "_MOST_LISTED", 50)
    for source, sample in (
        (mixture([1], chunk_size=10, exhausted_policy="repeat"), (0, 0, 0)),
        (Repeating(), (0, 0, 1)),
    ):
        assert len(source.locate(sample, 2, up_to_chunk=5)) == 50
        with pytest.raises(ValueError, match="more than 50 times, up to chunk 5: too often"):
            source.locate(sample, 2, up_to_chunk=6)
        assert len(list(islice(source.places_of(sample, 2), 70))) == 70


class Repeating(CountSource):
    """Ten times the same sample in each chunk, for ever."""

    def next_chunk(self, state):
        g = state.step * state.num_lanes + state.lane
        chunk = zx.WorkChunk({"odd": [(0, 0, 1)] * 10}, chunk_index=g)
        return chunk, state._replace(step=state.step + 1)


@pytest.mark.parametrize("name", ["passes", "redistribute", "rare", "tokens", "modulo"])
@pytest.mark.parametrize("config", [None, zx.MixtureReadConfig(mode="lattice")])
def test_a_run_that_was_cut_anew(name, config):
    """From the cut on, lanes, lane steps and slots are those of the new lanes."""
    source = SOURCES[name]()
    lanes = zx.relane([state_after(source, 1, lane, 2) for lane in range(2)], 3)
    expected = {}
    for lane, start in enumerate(lanes):
        for step, chunk in enumerate(chunks_of(source, state=start)):
            for slot, row in enumerate(chunk.order(config)[1].tolist()):
                place = (chunk.chunk_index, lane, step, slot)
                expected.setdefault(tuple(row), []).append(place)
    whole = everywhere(source, 1)
    for sample in samples_of(source, 20):
        places = source.locate(sample, 3, origin=2, read_config=config)
        assert [place[1:] for place in places] == sorted(expected.get(sample, []))
        before = sum(chunk < 2 for chunk, *_ in whole.get(sample, []))
        passes = range(before, before + len(places))
        assert sorted(place.pass_number for place in places) == list(passes)
        cut = RelanedSource(source, 2, 3)
        assert cut.locate(sample, 3, read_config=config) == places
        assert cut.locate(sample, 3, origin=2, read_config=config) == places
    with pytest.raises(ValueError, match="the run was cut at chunk 2; got origin = 4"):
        cut.locate(sample, 3, origin=4)
    endless = RelanedSource(mixture([10], chunk_size=5, exhausted_policy="repeat"), 2, 3)
    with pytest.raises(ValueError, match="never ends: say how far to look with up_to_chunk="):
        endless.locate((0, 0, 1), 3)
    assert next(endless.places_of((0, 0, 1), 3)).chunk in (2, 3)
    with pytest.raises(ValueError, match="is not cut anew in mid-run: origin must be 0; got 2"):
        CountSource().locate((0, 0, 3), origin=2)


def test_a_run_of_a_million_chunks_is_answered_at_once():
    """Cold within seconds, warm within 50 ms on a machine that does nothing else."""
    sizes = [[10**6] * 900, [10**5] * 3000, [10**6] * 700, [10**7] * 60]
    source = mixture(
        sizes, [5, 1, 3, 2], exhausted_policy="repeat", shuffle_within_shard=True,
        shuffle_block_size="auto", chunk_size=4096,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for d in range(4):
        shard = int(rng.integers(len(sizes[d])))
        sample = (d, shard, int(rng.integers(sizes[d][shard])))
        places = source.locate(sample, 512, 10**6)
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            assert source.locate(sample, 512, 10**6) == places
            took.append(time.perf_counter() - begin)
        assert min(took) < 0.5  # 0.05 on a quiet machine
        assert places
        for place in places:
            assert place.chunk < 10**6
            state = source.seek(place.chunk, place.lane, 512)
            chunk, _ = source.next_chunk(state)
            assert chunk.chunk_index == place.chunk
            assert tuple(chunk.order()[1][place.slot].tolist()) == sample


def test_a_dataset_without_weight_is_never_held():
    source = mixture([10, 10], [1, 0], chunk_size=5)
    assert source.locate((1, 0, 3)) == []


def test_bad_input_is_named():
    source = SOURCES["passes"]()
    endless = mixture([10], chunk_size=10, exhausted_policy="repeat")
    for call, error, text in (
        (lambda: source.locate(5), TypeError, "sample id is"),
        (lambda: source.locate((0, 0)), TypeError, "sample id is"),
        (lambda: source.locate((0, 0, 1.5)), TypeError, "sample_index"),
        (lambda: source.locate((0, 0, -1)), ValueError, "sample_index"),
        (lambda: source.locate((7, 0, 0)), ValueError, "dataset_id must be one of"),
        (lambda: source.locate((0, 2, 0)), ValueError, "'a' has 2 shards; got shard_id = 2"),
        (lambda: source.locate((0, 1, 3)), ValueError, "'a' has 3 samples in shard 1"),
        (lambda: source.locate((0, 0, 0), 0), ValueError, "num_lanes"),
        (lambda: source.locate((0, 0, 0), 1, -1), ValueError, "up_to_chunk"),
        (lambda: source.locate((0, 0, 0), 1, 2**63), ValueError, "up_to_chunk"),
        (lambda: source.locate((0, 0, 0), 1, origin=-1), ValueError, "origin"),
        (lambda: source.places_of((0, 0, 0), 1, origin=2**63), ValueError, "origin"),
        (
            lambda: CountSource().places_of((0, 0, 3), 2**21),
            ValueError,
            "at most 1,048,576 of them",
        ),
        (lambda: source.places_of((0, 0, 31)), ValueError, "31 samples in shard 0"),
        (lambda: source.locate((0, 0, 0), read_config="lattice"), TypeError, "read_config"),
        (lambda: endless.locate((0, 0, 0)), ValueError, "how far to look with up_to_chunk="),
    ):
        with pytest.raises(error, match=text):
            call()
