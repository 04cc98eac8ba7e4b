"""What sources may say of their run in advance, against going through their chunks."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import chunks_of, mixture
from support.sources import SOURCES

import zephon_jax as zx


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_counts_in_advance_are_those_of_the_chunks(source):
    chunks = chunks_of(source)
    if source.chunk_counts(0, 1) is None:
        assert source.drawn_before(3) is None
        assert source.pass_sizes() is None
        assert source.fingerprint() is None
        assert source.with_chunk_size(5) is None
        return
    expected = np.asarray([chunk.counts for chunk in chunks])
    for first, most in ((0, 10**6), (3, 2), (7, 10**6), (0, 1)):
        got, at, ended = [], first, False
        while not ended and at < first + most:
            part = source.chunk_counts(at, first + most - at)
            assert part.first_chunk == at
            got += part.counts.tolist()
            at, ended = at + len(part.counts), part.ended
        assert got == expected[first : first + most].tolist()
        assert ended == (first + most >= len(chunks))
    for g in (0, 1, 5, len(chunks), len(chunks) + 9):
        assert source.drawn_before(g).tolist() == expected[:g].sum(axis=0).tolist()
    after = source.chunk_counts(len(chunks), 5)
    assert after.counts.shape == (0, len(source.component_ids()))
    assert after.ended
    assert not len(source.chunk_counts(0, 0).counts)


def test_times_read_are_places_counted(source):
    for sample in ((0, 0, 0), (0, 0, 4), (1, 0, 1)):
        if sample[0] in (source.datasets_by_id or {0: None, 1: None}):
            for g in (0, 3, 10**4):
                places = source.places_of(sample, up_to_chunk=g)
                assert source.times_read(sample, g) == sum(1 for _ in places)


def test_origin_and_part_of_any_source(source):
    assert source.uncut is source
    assert source.begin == 0
    assert source.origin_of(source.init(1, 3)) == 0
    tokens = getattr(source, "token_estimation", None) is not None
    assert source.unit == ("tokens" if tokens else "samples")
    if not isinstance(source.init(), zx.MixtureState):
        with pytest.raises(ValueError, match="origin must be 0"):
            source.seek(7, 0, 2, origin=4)
        return
    states = zx.relane([source.seek(2)], 3)
    assert [source.origin_of(state) for state in states] == [2, 2, 2]


def test_fingerprints_say_what_differs():
    one, two = (mixture([90], chunk_size=size).fingerprint() for size in (10, 20))
    assert [name for name in one if one[name] != two[name]] == ["chunk_size"]
    assert mixture([90], chunk_size=10).fingerprint() == one


def test_the_same_data_in_other_chunks():
    source = mixture([90, 40], [2, 1], chunk_size=10)
    other = source.with_chunk_size(15)
    assert other.chunk_size_hint() == 15
    assert list(other.component_ids()) == list(source.component_ids())
