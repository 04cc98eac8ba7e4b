"""What is wrong is refused at once, by name; what is right cannot be made wrong from outside."""

from __future__ import annotations

import pickle
import warnings
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import chunks_of, mixture
from support.sources import ways_of_stepping

import zephon_jax as zx


def build(**settings):
    return mixture([100, 50], [3, 1], **{"chunk_size": 10, **settings})


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1; got 0"),
        ({"chunk_size": 2**28 + 1}, ValueError, "chunk_size must be at most"),
        ({"chunk_size": 10.0}, TypeError, "chunk_size must be an integer; got 10.0"),
        ({"chunk_size": True}, TypeError, "chunk_size"),
        ({"seed": 1.5}, TypeError, "seed must be an integer; got 1.5"),
        ({"seed": "1"}, TypeError, "seed"),
        ({"shuffle_shards": 1}, TypeError, "shuffle_shards must be True or False; got 1"),
        ({"shuffle_shards": {"a": True}}, ValueError, r"shuffle_shards.*\['b'\]"),
        ({"shuffle_shards": {"a": True, "b": True, "z": True}}, ValueError, r"unknown \['z'\]"),
        ({"shuffle_within_shard": {"a": 0, "b": True}}, TypeError, r"shuffle_within_shard\['a'\]"),
        ({"shuffle_block_size": 0}, ValueError, "shuffle_block_size must be at least 1"),
        ({"shuffle_block_size": "all"}, ValueError, "'auto' or 'global'; got 'all'"),
        ({"exhausted_policy": "loop"}, ValueError, "exhausted_policy must be one of.*'loop'"),
        ({"max_repeats": -1}, ValueError, "max_repeats must be at least 0"),
        ({"stop_after_passes": 0}, ValueError, "stop_after_passes must be at least 1"),
        ({"lane_assignment": "round"}, ValueError, "lane_assignment"),
        ({"allocation": "token"}, ValueError, "allocation must be one of"),
        ({"stop_after_passes": 2, "max_repeats": 1}, ValueError, "max_repeats = 1"),
        ({"stop_after_passes": 2, "exhausted_policy": "stop"}, ValueError, "'stop'"),
        ({"exhausted_policy": "stop", "chunk_size": 1000}, ValueError, "'a' gives 750 samples"),
        ({"allocation": "fixed", "chunk_size": 1}, ValueError, "2 components and chunk_size = 1"),
        ({"stop_after_passes": 2**31}, None, None),
        ({"max_repeats": 2**60}, ValueError, "2\\^60"),
    ],
)  # fmt: skip
def test_settings_are_checked_at_construction(settings, error, text):
    if error is None:
        build(**settings)
        return
    with pytest.raises(error, match=text):
        build(**settings)


def test_unknown_settings_and_datasets():
    toy = zx.Dataset.from_counts("toy", [10])
    with pytest.raises(TypeError, match="token_estimations"):
        zx.StaticMixtureWorkSource([toy], {"toy": 1}, token_estimations=None)
    with pytest.raises(TypeError, match="token_estimation must be"):
        zx.StaticMixtureWorkSource([toy], {"toy": 1}, token_estimation=len)
    tokens = zx.TokenEstimation.from_shard_totals({"toy": [70]})
    with pytest.raises(ValueError, match="allocation = 'fixed'"):
        mixture([10], names=["toy"], allocation="fixed", token_estimation=tokens)
    for datasets in ("toy", {"toy": toy}, toy, 5, None):
        with pytest.raises(TypeError, match="datasets"):
            zx.StaticMixtureWorkSource(datasets, {"toy": 1})
    with pytest.raises(ValueError, match="at least one"):
        zx.StaticMixtureWorkSource([], {"toy": 1})
    with pytest.raises(TypeError, match=r"datasets\[1\]"):
        zx.StaticMixtureWorkSource([toy, "toy"], {"toy": 1})
    with pytest.raises(TypeError, match="mapping"):
        zx.StaticMixtureWorkSource([toy], [("toy", 1)])
    with pytest.raises(ValueError, match="'b' has no samples"):
        mixture([10, 0], chunk_size=5)
    assert len(mixture([10, 0], [1, 0], chunk_size=5)) == 10


@pytest.mark.parametrize(
    "counts", [{5: 1}, {5}, "12", np.array([1.5], dtype=object), [True], [1.0], [-1], [], [[1]]]
)
def test_counts_are_checked(counts):
    with pytest.raises((TypeError, ValueError), match="'a'"):
        zx.Dataset.from_counts("a", counts)


@pytest.mark.parametrize(("size", "error"), [(True, TypeError), (2.5, TypeError), (0, ValueError)])
def test_shard_size_is_checked(size, error):
    with pytest.raises(error, match="shard_size"):
        zx.Dataset.from_source("a", [1, 2], shard_size=size)


def test_weights_of_any_size_are_exact():
    huge = zx.MixtureSpec({"a": 10**400, "b": Decimal("1e400"), "c": Fraction(10**400)})
    assert set(huge.fractions().values()) == {Fraction(1, 3)}
    assert zx.MixtureSpec({"a": np.float32(0.1)})["a"] == Fraction(1, 10)
    for bad in (Decimal("sNaN"), Decimal("NaN"), Decimal("-Infinity"), float("-inf")):
        with pytest.raises(ValueError, match="'a'"):
            zx.MixtureSpec({"a": bad, "b": 1})
    one, other = zx.MixtureSpec({"a": 1, "b": 2}), zx.MixtureSpec({"b": 2, "a": 1})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_repeats": 2, "exhausted_policy": "redistribute"},
        {"shuffle_block_size": "global", "shuffle_within_shard": True},
        {"shuffle_block_size": 1},
        {"reshuffle_on_repeat": False, "shuffle_shards": False},
    ],
)
def test_settings_without_effect_warn(settings):
    with pytest.warns(UserWarning, match="no effect"):
        build(**settings)


def test_rounded_weights_warn_at_construction_and_not_in_mid_run():
    with pytest.warns(UserWarning, match="'c' moved") as caught:
        source = mixture(
            [100, 10**6, 10**6], [1, 1e-3, 1e-9], chunk_size=100,
            exhausted_policy={"a": "redistribute", "b": "repeat", "c": "repeat"},
        )  # fmt: skip
    assert "helpers" in caught[0].filename  # where the source was made
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(chunks_of(source, limit=5)) == 5
        source[400]
    with pytest.warns(UserWarning, match="'c' moved"):
        mixture(
            [10, 10, 10], [1, 1, 1e-12], chunk_size=9, allocation="fixed",
            exhausted_policy="repeat",
        )  # fmt: skip


def test_states_cannot_be_written():
    source = mixture([100, 100], [1000, 1], chunk_size=10, exhausted_policy="repeat")
    for state in (
        source.init(),
        source.seek(5),
        source.next_chunk(source.init())[1],
        zx.decode_state(source, zx.encode_state(source.seek(3, 1, 2))),
    ):
        for leaf in jax.tree.leaves(state):
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 7
    chunk = chunks_of(source, limit=1)[0]
    with pytest.raises(ValueError, match="read-only"):
        chunk.components["a"][:] = 1
    config = zx.MixtureReadConfig(mode="lattice", precompute=True)
    for kept in chunk.order(config):
        with pytest.raises(ValueError, match="read-only"):
            kept[:] = 0
    assert chunk.order(config)[1] is chunk.order(config)[1]


def test_a_writable_state_is_copied():
    source = mixture([100, 100], [1000, 1], chunk_size=10, exhausted_policy="repeat")
    mine = source.seek(4)._replace(carry=source.seek(4).carry.copy())
    expected = list(source.next_chunk(source.seek(4))[0])
    fresh = pickle.loads(pickle.dumps(source))
    fresh.next_chunk(mine)
    mine.carry[:] = 0
    assert list(fresh.next_chunk(fresh.seek(4))[0]) == expected


def test_pickled_source_does_not_follow_its_arguments():
    a, b = zx.Dataset.from_counts("a", [100]), zx.Dataset.from_counts("b", [100])
    datasets, weights, shards = [a, b], {"a": 3, "b": 1}, {"a": True, "b": False}
    source = zx.StaticMixtureWorkSource(datasets, weights, chunk_size=8, shuffle_shards=shards)
    weights["a"], shards["b"] = 1, True
    datasets.pop()
    again = pickle.loads(pickle.dumps(source))
    assert chunks_of(again, limit=1)[0].counts.tolist() == [6, 2]
    zx.decode_state(again, zx.encode_state(source.init()))
    frozen = zx.StaticMixtureWorkSource([a], MappingProxyType({"a": 1}), chunk_size=8)
    assert len(pickle.loads(pickle.dumps(frozen))) == len(frozen)


class OneDataset(zx.StaticMixtureWorkSource):
    """A subclass with arguments of its own."""

    def __init__(self, size):
        super().__init__([zx.Dataset.from_counts("only", [size])], {"only": 1}, chunk_size=4)
        self.size = size


def test_pickled_subclass():
    again = pickle.loads(pickle.dumps(OneDataset(9)))
    assert (again.size, len(again), type(again)) == (9, 12, OneDataset)


def test_relane_after_the_end_of_a_block():
    """Some lanes have read their chunk of the last block and some have not: refused."""
    source = mixture([60], chunk_size=10)  # 6 chunks: the second block of 4 lanes is 4 and 5 only
    read, states = [], []
    for lane in range(4):
        chunk, state = source.next_chunk(source.init(lane, 4))
        read.append(chunk.chunk_index)
        states.append(zx.decode_state(source, zx.encode_state(state)))
    after = [source.next_chunk(state) for state in states]
    ahead = next(i for i, (chunk, _) in enumerate(after) if chunk and chunk.chunk_index == 5)
    mixed = [after[i][1] if i == ahead else state for i, state in enumerate(states)]
    with pytest.raises(ValueError, match="same number of chunks"):
        zx.relane(mixed, 2)
    rest = [c.chunk_index for s in zx.relane(states, 2) for c in chunks_of(source, state=s)]
    assert sorted(read + rest) == list(range(6))
    ended = zx.relane([state for _, state in after], 3)
    assert not any(chunks_of(source, state=state) for state in ended)


def test_lattice_prefix_is_the_same_in_both():
    counts = np.array([5, 3, 9])
    whole = zx.lattice.order(counts, 1, 3)
    for size in (0, 4, 16, 17, 20):
        mine = zx.lattice.order(counts, 1, 3, size=size)
        assert np.array_equal(zx.lattice.order(jnp.asarray(counts), 1, 3, size=size), mine)
        assert np.array_equal(mine[:17], whole[:size])


def test_runs_too_long_for_64_bits():
    with pytest.raises(ValueError, match=r"'a' has 20000000000 samples.*2\^60"):
        mixture([2 * 10**10], stop_after_passes=10**9)
    with pytest.raises(ValueError, match=r"2\^60"):
        mixture([2**60 + 1])
    long = mixture([2**59, 10**6], [1, 10**4], stop_after_passes=1)
    with pytest.raises(ValueError, match=r"longer than 2\^62"):
        len(long)
    assert chunks_of(long, limit=1)
    endless = mixture([10_000], exhausted_policy="repeat")
    for index in (2**62, 2**63, 2**70):
        with pytest.raises(IndexError, match=r"2\^62"):
            endless[index]
    with pytest.raises(ValueError, match="chunk_index"):
        endless.seek(2**60)
    far = endless.seek(2**47)
    assert far.samples_drawn.tolist() == [2**61]


def test_indices_are_integers_in_range():
    source = build()
    with pytest.raises(IndexError):
        source.sample_ids_at(np.array([2**64 - 1], dtype=np.uint64))
    for bad in ([[1, 2]], np.zeros((2, 2), dtype=int), np.int64(3)):
        with pytest.raises(ValueError, match="shape"):
            source.sample_ids_at(bad)
    for bad in ([0.5], ["1"], [None], [True]):
        with pytest.raises(TypeError, match="integer"):
            source.sample_ids_at(bad)
    assert source.sample_ids_at([]).shape == (0, 3)
    with pytest.raises(TypeError, match="lattice"):
        source.sample_ids_at([0], read_config="lattice")


def test_first_samples_do_not_wait_for_the_end_of_an_era():
    weights = [1.37**d for d in range(64)]  # some below one sample a chunk, and no short period
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = mixture([10**6] * 64, weights, chunk_size=1024)
    allocation = source.eras.steps.start().era.allocation
    assert not allocation.closed
    stream = [s for chunk in chunks_of(source, limit=3) for s, _ in chunk]
    got = [source[i] for i in (0, 1, 2000, 1023, 1024, 3071)]
    assert got == [stream[i] for i in (0, 1, 2000, 1023, 1024, 3071)]
    assert max(allocation.saved) < 10_000  # nothing far away was looked at


def test_sources_and_configurations_are_checked_by_the_datasets():
    source = build()
    for make in (zx.LaneIterDataset, zx.MixtureMapDataset):
        with pytest.raises(TypeError, match="source must be"):
            make("x")
        with pytest.raises(TypeError, match="read_config"):
            make(source, read_config="lattice")
    with pytest.raises(TypeError, match="read_config"):
        chunks_of(source, limit=1)[0].order("lattice")
    with pytest.raises(TypeError, match="source must be"):
        zx.decode_state(None, b"")
    for state in (None, (0, 1), {"lane": 0}):
        with pytest.raises(TypeError, match="MixtureState"):
            source.next_chunk(state)


def test_damaged_slot_is_refused():
    iterator = iter(zx.LaneIterDataset(build()))
    state = iterator.get_state()
    for slot in (10**6, 1):
        with pytest.raises(ValueError, match="slot"):
            iterator.set_state({**state, "slot": slot})


def test_custom_sources_are_checked():
    class Careless(zx.WorkSource):
        def init(self, lane=0, num_lanes=1):
            return build().init(lane, num_lanes)

        def next_chunk(self, state):
            return zx.WorkChunk({"n": [(0, 0, 0)]}), state

        def component_ids(self):
            return self.ids

    source = Careless()
    for ids in ({"n": 0, "m": 0}, {"n": -3}):
        source.ids = ids
        for step in ways_of_stepping(source):
            with pytest.raises(ValueError, match="unique"):
                step()

    class Nothing(Careless):
        ids: ClassVar = {"n": 0}

        def next_chunk(self, state):
            return None

    for step in ways_of_stepping(Nothing()):
        with pytest.raises(TypeError, match="a chunk and a state"):
            step()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([],), TypeError, "components must be a mapping"),
        (({1: []},), TypeError, "components"),
        (({"a": [(0, 0)]},), ValueError, "'a'"),
        (({"a": [(0, 0, 0), (1,)]},), ValueError, "'a'"),
        (({"a": [(0, 0, -1)]},), ValueError, "'a'.*negative"),
        (({"a": np.array([[0, 0, 2**63]], dtype=np.uint64)},), ValueError, "'a'.*2\\^62"),
        (({"a": [(0, 0, 0.5)]},), ValueError, "'a'"),
        (({}, 1.5), TypeError, "seed"),
        (({}, 1, 5), TypeError, "target_mixture"),
        (({}, 1, {"a": float("nan")}), ValueError, "target_mixture"),
        (({}, 1, {"a": "x"}), ValueError, "target_mixture"),
        (({}, 1, None, "abc"), TypeError, "source_exhausted"),
        (({}, 1, None, None), TypeError, "source_exhausted"),
        (({}, 1, None, [1]), TypeError, "source_exhausted"),
    ],
)
def test_chunks_are_checked(arguments, error, text):
    with pytest.raises(error, match=text):
        zx.WorkChunk(*arguments)


def test_random_reading_needs_a_seed():
    chunk = zx.WorkChunk({"a": [(0, 0, 0), (0, 0, 1)]})
    random = zx.MixtureReadConfig(mode="weighted_random")
    with pytest.raises(ValueError, match="seed"):
        chunk.order(random)
    chunk.order(zx.MixtureReadConfig(mode="weighted_random", seed=1))
    for bad, error in (({"mode": "x"}, ValueError), ({"seed": "x"}, TypeError)):
        with pytest.raises(error, match=next(iter(bad))):
            zx.MixtureReadConfig(**bad)
    assert zx.WorkChunk({}).order()[1].shape == (0, 3)


def test_kernels_check_what_they_can():
    quotas, carry = zx.quota.step(zx.quota.shares([1, 1], 3), [0, 0])
    assert quotas.dtype == carry.dtype == np.int32
    with pytest.raises(TypeError, match="weights"):
        zx.quota.shares(5, 4)
    key = zx.permutation.make_key(0)
    assert zx.permutation.permute([], 5, key).shape == (0,)
    for index in (np.array([0.5]), jnp.array([1.5])):
        with pytest.raises(TypeError, match="index"):
            zx.permutation.permute(index, 5, key)
    assert zx.lanes.chunk_of_lane(np.int32(2**30), 1, 2**10, 0) // 2**10 == 2**30
    assert zx.lanes.lane_of_chunk(np.arange(200, dtype=np.uint8), 300, 0).max() > 255
    with pytest.raises(ValueError, match="lane_step"):
        zx.lanes.chunk_of_lane(2**60, 1, 2**10, 0)
    for assignment in zx.lanes.ASSIGNMENTS:
        with pytest.raises(TypeError, match="seed"):
            zx.lanes.lane_of_chunk(0, 4, 1.5, assignment)


def test_a_cut_past_the_end_of_a_run_is_refused():
    source = zx.StaticMixtureWorkSource([zx.Dataset.from_counts("a", [30])], {"a": 1}, 10)
    for origin in (0, 2, 3):  # the run has chunks 0, 1 and 2
        assert source.next_chunk(source.seek(4, 0, 2, origin=origin))[0] is None
    for origin in (4, 1000):
        with pytest.raises(ValueError, match=f"origin = {origin} is past the end.*has 3 chunks"):
            source.seek(1000, 0, 2, origin=origin)
