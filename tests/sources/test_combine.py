"""Sources made of sources, against lists of the chunks of their parts."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import chunks_of, mixture, state_after
from support.sources import CountSource, plain

import zephon_jax as zx


class Numbers(CountSource):
    """As many chunks as one likes, of one component, each with its own number in its samples."""

    def __init__(self, name, num_chunks):
        self.name, self.num_chunks = name, num_chunks

    def next_chunk(self, state):
        g = state.step * state.num_lanes + state.lane
        if g >= self.num_chunks:
            return None, state
        return zx.WorkChunk({self.name: [(0, 0, g)]}, chunk_index=g), state._replace(
            step=state.step + 1
        )

    def component_ids(self):
        return {self.name: 0}


class Seekable(Numbers):
    """The same with a seek of its own, which tells how far it was asked to go."""

    def seek(self, chunk_index, lane=0, num_lanes=1, *, origin=0):
        step = -(-(chunk_index - lane) // num_lanes)
        return self.init(lane, num_lanes)._replace(step=max(0, step))


class Sized(Seekable):
    """The same, which also says how many chunks it has."""

    def chunk_size_hint(self):
        return 1

    def chunk_spans(self):
        from zephon_jax.sources.chunk_spans import ChunkSpan

        return (ChunkSpan(0, self.num_chunks, self.num_chunks),)


KINDS = (Numbers, Seekable, Sized)


def told(chunk):
    """A chunk of one sample as its component and number."""
    ((sample, name),) = chunk
    return name, sample.sample_index


def names_of(source):
    return [told(chunk) for chunk in chunks_of(source)]


# A tree of combinations of sources, and the list of what it must give.
leaves = st.builds(
    lambda kind, name, n: (kind(name, n), [(name, i) for i in range(n)]),
    st.sampled_from(KINDS), st.sampled_from("abc"), st.integers(0, 9),
)  # fmt: skip


def concatenated(parts):
    return zx.concatenate([s for s, _ in parts]), [one for _, told in parts for one in told]


def taken(part, n):
    return zx.take(part[0], n), part[1][:n]


def skipped(part, n):
    spans = part[0].chunk_spans()
    if spans and n >= sum(span.num_chunks for span in spans):
        return part
    return zx.skip(part[0], n), part[1][n:]


trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(concatenated),
        st.builds(taken, inner, st.integers(1, 12)),
        st.builds(skipped, inner, st.integers(1, 12)),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(tree=trees, num_lanes=st.integers(1, 5), at=st.integers(0, 25))
def test_any_combination_gives_the_chunks_of_its_parts_in_turn(tree, num_lanes, at):
    source, expected = tree
    lanes = [chunks_of(source, lane, num_lanes) for lane in range(num_lanes)]
    found = sorted((chunk for lane in lanes for chunk in lane), key=lambda c: c.chunk_index)
    assert [told(chunk) for chunk in found] == expected
    rest = [
        chunk
        for lane in range(num_lanes)
        for chunk in chunks_of(source, state=source.seek(at, lane, num_lanes))
    ]
    assert sorted(map(told, rest)) == sorted(expected[at:])


@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=4),
    data=st.data(),
    num_lanes=st.integers(1, 4),
)
def test_interleaved_parts_keep_to_their_weights(kinds, data, num_lanes):
    lengths = [data.draw(st.integers(0, 30)) for _ in kinds]
    weights = [data.draw(st.fractions(Fraction(1, 9), 9, max_denominator=9)) for _ in kinds]
    source = zx.interleave([kind(f"part {n}", lengths[n]) for n, kind in enumerate(kinds)], weights)
    one = names_of(source)
    for n, length in enumerate(lengths):  # each part's chunks once, in their own order
        assert [i for name, i in one if name == f"part {n}"] == list(range(length))
    given_, total = [0] * len(kinds), sum(weights)
    for turn in count(1):
        if turn > len(one) or any(g >= n for g, n in zip(given_, lengths, strict=True)):
            break  # from here on a part may have ended
        given_[int(one[turn - 1][0][5:])] += 1
        for g, weight in zip(given_, weights, strict=True):
            assert abs(g - turn * weight / total) < 2
    lanes = [chunks_of(source, lane, num_lanes) for lane in range(num_lanes)]
    found = sorted((chunk for lane in lanes for chunk in lane), key=lambda c: c.chunk_index)
    assert [told(chunk) for chunk in found] == one
    middle = len(one) // 2
    assert [told(c) for c in chunks_of(source, state=source.seek(middle))] == one[middle:]


def test_lengths_are_known_where_the_parts_know_them():
    sized = [mixture([75], names=[name], chunk_size=10) for name in "ab"]
    for source in (
        zx.concatenate(sized),
        zx.interleave(sized, [1, 2]),
        zx.concatenate([zx.skip(zx.interleave(sized, [1, 2]), 3), zx.take(sized[0], 4)]),
    ):
        sizes = [len(chunk) for chunk in chunks_of(source)]
        at = 0
        for span in source.chunk_spans():
            assert span.first_chunk == at
            at += span.num_chunks
            part = sizes[span.first_chunk : at]
            assert sum(part) == span.num_samples
            assert set(part[:-1]) <= {10}
        assert at == len(sizes)
    assert zx.concatenate([*sized, Numbers("c", 3)]).chunk_spans() is None
    endless = mixture([75], chunk_size=10, exhausted_policy="repeat")
    assert zx.concatenate([sized[1], endless]).chunk_spans()[-1].num_chunks is None
    assert zx.take(endless, 5).chunk_spans()[-1].num_samples == 50


def test_one_dataset_in_several_sources_is_one_dataset():
    web, code, notes = (zx.Dataset.from_source(n, [f"{n} {i}" for i in range(40)]) for n in "wcn")
    first = zx.StaticMixtureWorkSource([web, code], {"w": 1, "c": 1}, 10)
    second = zx.StaticMixtureWorkSource([notes, web], {"w": 1, "n": 3}, 10)
    both = zx.concatenate([first, second])
    assert dict(both.component_ids()) == {"w": 0, "c": 1, "n": 2}
    assert {number: d.name for number, d in both.datasets_by_id.items()} == {0: "w", 1: "c", 2: "n"}
    alone = [e["data"] for source in (first, second) for e in zx.LaneIterDataset(source)]
    elements = list(zx.LaneIterDataset(both))
    assert [element["data"] for element in elements] == alone
    assert all("wcn"[e["component_id"]] == e["data"][0] for e in elements)
    assert len(both.locate((0, 0, 7))) == sum(data == "w 7" for data in alone)


def test_what_is_used_up_has_nothing_to_come():
    a, b = (zx.Dataset.from_counts(name, [40]) for name in "ab")
    stop = {"chunk_size": 10, "exhausted_policy": "redistribute"}
    first = zx.StaticMixtureWorkSource([a, b], {"a": 3, "b": 1}, **stop)
    chunks = chunks_of(zx.concatenate([first, zx.StaticMixtureWorkSource([b], {"b": 1}, **stop)]))
    said = {name for chunk in chunks for name in chunk.source_exhausted}
    assert said == {"a"}


def readable_source():
    parts = [
        zx.StaticMixtureWorkSource(
            [zx.Dataset.from_source(name, [np.array([100 * n + i]) for i in range(80)])],
            {name: 1}, chunk_size=8, shuffle_block_size="global",
        )
        for n, name in enumerate("abc")
    ]  # fmt: skip
    return zx.concatenate([zx.interleave(parts[:2], [2, 1]), zx.skip(parts[2], 2)])


def test_elastic_datasets_resume_on_other_hosts():
    source = readable_source()

    def batches(process_index, process_count, state=None):
        dataset = zx.ElasticIterDataset(
            source, 4, lambda lane: lane.map(lambda element: element["data"]),
            process_index=process_index, process_count=process_count, global_batch_size=8,
        )  # fmt: skip
        return iter(dataset)

    one = batches(0, 1)
    whole = [next(one).ravel().tolist() for _ in range(20)]
    halves = [batches(n, 2) for n in range(2)]
    for n in range(9):
        parts = [next(half).ravel().tolist() for half in halves]
        assert parts[0] + parts[1] == whole[n]
    fresh = [batches(n, 2) for n in range(2)]
    for old, new in zip(halves, fresh, strict=True):
        new.set_state(old.get_state())
    for n in range(9, 20):
        parts = [next(half).ravel().tolist() for half in fresh]
        assert parts[0] + parts[1] == whole[n]


def test_looking_at_a_run():
    source = readable_source()
    run = zx.simulate(source, num_lanes=3)
    assert run.num_samples == 80 + 80 + 64
    states = [state_after(source, 5, lane, 3) for lane in range(3)]
    found = zx.audit(source, [zx.encode_state(state) for state in states])
    assert found.whole_chunks == 15
    assert sum(found.samples.values()) == 120
    assert zx.diff(source, pickle.loads(pickle.dumps(source))).same
    assert zx.diff(source, zx.concatenate([source, source])).chunk == run.num_chunks


def test_far_chunks_are_sought():
    """No part is gone through: each of a million chunks is as near as any."""
    parts = [
        mixture([10**9], names=[name], chunk_size=64, exhausted_policy="stop") for name in "ab"
    ]
    source = zx.interleave([zx.skip(parts[0], 10**5), parts[1]], [3, 1])
    drawn = [0, 0]

    for g in (10**6, 10**6 + 1, 10**6 + 2, 10**6 + 3):
        chunk, _ = source.next_chunk(source.seek(g))
        place = "ab".index(next(n for n, c in zip(chunk.names, chunk.counts, strict=True) if c))
        drawn[place] += 1
        lane = int(source.lanes_of_chunks(np.asarray([g]), 7)[0])
        mine, _ = source.next_chunk(source.seek(g, lane, 7))
        assert plain(mine) == plain(chunk)
    assert drawn == [3, 1]


def test_parts_that_cannot_seek_are_gone_through_once_by_each_lane():
    calls = []

    class Counted(Numbers):
        def next_chunk(self, state):
            calls.append(1)
            return super().next_chunk(state)

    inner = zx.concatenate([Counted("a", 60), Counted("b", 60)])
    source = zx.interleave([zx.skip(inner, 5), Counted("c", 60)], [1, 1])
    for lane in range(4):
        calls.clear()
        assert len(chunks_of(source, lane, 4)) in (43, 44)
        assert len(calls) < 5 * 180  # those that are passed are drawn to see that they are there


def test_states_of_other_combinations_are_refused():
    parts = [mixture([40], names=[name], chunk_size=10) for name in "ab"]
    other = mixture([40], names=["b"], chunk_size=10, seed=1)
    source = zx.interleave(parts, [1, 2])
    data = zx.encode_state(state_after(source, 3))
    for foreign, text in (
        (zx.interleave(parts, [2, 1]), "put together in another way"),
        (zx.concatenate(parts), "put together in another way"),
        (zx.interleave([parts[0], other], [1, 2]), r"sources\[1\]: .* other seed"),
        (parts[0], "belongs to another kind of source"),
    ):
        with pytest.raises(ValueError, match=text):
            zx.decode_state(foreign, data)
    with pytest.raises(TypeError, match="CountState"):
        source.next_chunk(CountSource().init())
    state = source.init()
    with pytest.raises(ValueError, match="must be of 2 parts"):
        source.next_chunk(state._replace(lane_step=-1))
    with pytest.raises(ValueError, match="contradicts itself"):
        source.next_chunk(state._replace(places=np.uint32([[0, 0], [0, 1 << 31]])))


def test_states_of_other_stretches_are_refused():
    """A run that goes on from a state with one more chunk left out would read one twice."""
    a, b = (mixture([90], names=[name], chunk_size=10) for name in "ab")
    kinds = {
        "skip": lambda n: zx.skip(a, n),
        "take": lambda n: zx.take(a, n),
        "both": lambda n: zx.take(zx.skip(a, n), 2),
        "skip in a row": lambda n: zx.concatenate([b, zx.skip(a, n)]),
        "take in a row": lambda n: zx.concatenate([zx.take(a, n), b]),
        "skip side by side": lambda n: zx.interleave([zx.skip(a, n), b], [1, 2]),
        "rest": lambda n: zx.concatenate([zx.take(a, n), zx.skip(a, n)]),
    }
    for kind, make in kinds.items():
        data = zx.encode_state(state_after(make(3), 2))
        assert zx.encode_state(zx.decode_state(make(3), data)) == data, kind
        for n in (2, 4):
            with pytest.raises(ValueError, match="put together in another way"):
                zx.decode_state(make(n), data)


def test_wrong_arguments_are_named():
    a = mixture([40], chunk_size=10)
    other = zx.Dataset.from_source("a", list(range(40)))
    endless = a.replace(exhausted_policy="repeat")
    tokens = a.replace(token_estimation=zx.TokenEstimation(str.split))
    for call, kind, text in (
        (lambda: zx.concatenate(a), TypeError, "list of zx.WorkSource"),
        (lambda: zx.concatenate([]), ValueError, "at least one"),
        (lambda: zx.concatenate([a, 3]), TypeError, r"sources\[1\]"),
        (lambda: zx.concatenate([endless, a]), ValueError, r"sources\[0\] never ends.*zx.take"),
        (lambda: zx.concatenate([a, a.replace(datasets=[other])]), ValueError, "named 'a'"),
        (lambda: zx.concatenate([tokens]), ValueError, "primed"),
        (lambda: zx.interleave([a, a], [1]), ValueError, "1 for 2"),
        (lambda: zx.interleave([a, a], [1, 0]), ValueError, r"weights\[1\] must be positive"),
        (lambda: zx.interleave([a, a], [1, -2]), ValueError, "negative"),
        (lambda: zx.interleave([a], {"a": 1}), TypeError, "list of numbers"),
        (lambda: zx.take(a, 0), ValueError, "num_chunks"),
        (lambda: zx.take("a", 1), TypeError, "source"),
        (lambda: zx.skip(a, 4), ValueError, "num_chunks must leave something"),
        (lambda: zx.skip(a, 1.5), TypeError, "num_chunks"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_parts_that_break_the_contract_are_named():
    class Gaps(Numbers):
        def next_chunk(self, state):
            chunk, after = super().next_chunk(state)
            return chunk and zx.WorkChunk(chunk.components, chunk_index=2 * state.step), after

    with pytest.raises(ValueError, match="Gaps numbers its chunks 2 where chunk 1 comes"):
        chunks_of(zx.concatenate([Gaps("a", 5)]))
    known = mixture([40], chunk_size=10)
    with pytest.raises(ValueError, match=r"sources\[1\] \(Numbers\).*datasets_by_id"):
        chunks_of(zx.concatenate([known, Numbers("b", 2)]))
