"""Quotas: how many samples each component gives to a chunk, against an oracle on fractions."""

import functools
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles

from zephon_jax.kernels import quota

CONFIGURATIONS = {
    "kind": st.sampled_from(oracles.KINDS),
    "k": st.one_of(st.integers(1, 12), st.integers(1, 300)),
    "chunk_size": st.one_of(
        st.integers(1, 65_536), st.integers(1, 40), st.sampled_from([64, 1024, 16_384, 65_536])
    ),
    "seed": st.integers(0, 10**6),
    "zeros": st.booleans(),
}


def shares_of(weights, chunk_size):
    """Shares, without the warning about rounding: test_weights.py looks at that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return quota.shares(weights, chunk_size)


def library_run(shares, num_chunks, carry=None):
    carry = quota.init_carry(shares) if carry is None else carry
    rows = []
    for _ in range(num_chunks):
        quotas, carry = quota.step(shares, carry)
        rows.append(quotas)
    return np.array(rows), carry


def compare(kind, k, chunk_size, seed, zeros):
    weights = oracles.draw_weights(kind, k, seed, zeros)
    shares = shares_of(weights, chunk_size)
    exact = oracles.effective(weights)
    numerators, denominator = oracles.units(weights)
    assert int(shares.unit) == denominator
    owed = [int(w) * denominator + int(r) for w, r in zip(shares.whole, shares.rem, strict=True)]
    assert owed == [n * chunk_size for n in numerators]

    num_chunks = max(2, min(24, 240 // k))
    rows, carry = library_run(shares, num_chunks)
    wanted, wanted_carry = oracles.quota_run(exact, chunk_size, num_chunks)
    assert rows.tolist() == wanted
    assert carry.tolist() == [c * denominator for c in wanted_carry]

    # And from a place far into the run, where carries are no longer close to zero.
    if quota.is_closed_form(shares):
        far = quota.steady_carry(shares, seed + 1)
        rows, carry = library_run(shares, 2, far)
        start = [Fraction(int(c), denominator) for c in far]
        wanted, wanted_carry = oracles.quota_run(exact, chunk_size, 2, start)
        assert rows.tolist() == wanted
        assert carry.tolist() == [c * denominator for c in wanted_carry]


@settings(max_examples=2500)
@given(**CONFIGURATIONS)
def test_quotas_equal_the_oracle(kind, k, chunk_size, seed, zeros):
    compare(kind, k, chunk_size, seed, zeros)


@pytest.mark.slow
@settings(max_examples=20_000)
@given(**CONFIGURATIONS)
def test_quotas_equal_the_oracle_many(kind, k, chunk_size, seed, zeros):
    compare(kind, k, chunk_size, seed, zeros)


@pytest.mark.parametrize(
    ("weights", "chunk_size"),
    [
        ([1e-9, 1e9], 1),
        ([1e-9, 1.0, 1e9], 65_536),
        ([1e-9] * 299 + [1e9], 7),
        ([10.0 ** (e % 19 - 9) for e in range(300)], 65_536),
        ([1] * 300, 1),
        ([1] * 300, 299),
        ([1] * 299 + [10**9], 65_536),
        ([0, 1, 0], 5),
        ([1], 1),
        ([Fraction(1, 3), Fraction(1, 7), Fraction(1, 11)], 10),
    ],
)
def test_quotas_at_the_ends_of_the_ranges(weights, chunk_size):
    shares = shares_of(weights, chunk_size)
    rows, _ = library_run(shares, 6)
    assert rows.tolist() == oracles.quota_run(oracles.effective(weights), chunk_size, 6)[0]


def check_invariants(weights, chunk_size, limit):
    """Bounds at every chunk, and the whole period where it is no longer than `limit` chunks."""
    shares = shares_of(weights, chunk_size)
    numerators, denominator = oracles.units(weights)
    numerators = np.array(numerators, np.int64)
    whole_period = denominator // math.gcd(denominator, chunk_size)
    num_chunks = min(whole_period, limit)
    rows = np.empty((num_chunks, len(weights)), np.int64)
    carries = np.empty_like(rows)
    carry = quota.init_carry(shares)
    for n in range(num_chunks):
        rows[n], carry = quota.step(shares, carry)
        carries[n] = carry
    assert rows.min() >= 0
    assert (rows.sum(axis=1) == chunk_size).all()
    # drawn - n * C * w, in units of 1 / W: drawn <= 20,000 * 2^16 < 2^31 and W <= 2^29.
    n = np.arange(1, num_chunks + 1)[:, None]
    ahead = np.cumsum(rows, axis=0) * denominator - n * chunk_size * numerators
    assert (ahead > -2 * denominator).all()
    assert (ahead < denominator).all()
    assert np.array_equal(ahead, -carries)
    assert rows[:, numerators == 0].sum() == 0
    if num_chunks == whole_period:
        assert not carry.any()
        assert quota.period(shares) % whole_period == 0
    return -carries.max() / denominator, -carries.min() / denominator


@settings(max_examples=60)
@given(**CONFIGURATIONS)
def test_quotas_keep_their_bounds_for_long(kind, k, chunk_size, seed, zeros):
    check_invariants(oracles.draw_weights(kind, k, seed, zeros), chunk_size, 800)


@pytest.mark.slow
@settings(max_examples=500)
@given(**CONFIGURATIONS)
def test_quotas_keep_their_bounds_for_very_long(kind, k, chunk_size, seed, zeros):
    check_invariants(oracles.draw_weights(kind, k, seed, zeros), chunk_size, 20_000)


@settings(max_examples=150)
@given(
    numerators=st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any),
    chunk_size=st.integers(1, 300),
)
def test_carries_are_zero_after_a_period(numerators, chunk_size):
    check_invariants(numerators, chunk_size, 1300)


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 64])
def test_bounds_where_most_components_rest(chunk_size):
    """Many weights far below a slot a chunk: quotas of 0 are common and clipping is at work."""
    low, high = check_invariants([100] + [1] * 99, chunk_size, 4000)
    assert low > -2
    assert high < 1


@settings(max_examples=200)
@given(
    kind=st.sampled_from(oracles.KINDS),
    k=st.integers(1, 60),
    chunk_size=st.integers(1, 65_536),
    seed=st.integers(0, 10**6),
    zeros=st.booleans(),
)
def test_steady_carry_equals_stepping(kind, k, chunk_size, seed, zeros):
    weights = oracles.draw_weights(kind, k, seed, zeros)
    shares = shares_of(weights, chunk_size)
    owed = [share * chunk_size for share in oracles.effective(weights)]
    assert quota.is_closed_form(shares) == all(o == 0 or o >= 1 for o in owed)
    if not quota.is_closed_form(shares):
        return
    carry = quota.init_carry(shares)
    assert np.array_equal(quota.steady_carry(shares, 0), carry)
    stepped = [carry]
    for _ in range(60):
        _, carry = quota.step(shares, carry)
        stepped.append(carry)
    stepped = np.array(stepped)
    closed = quota.steady_carry(shares, np.arange(61))
    assert np.array_equal(closed, stepped)
    assert closed.dtype == stepped.dtype == np.int32
    assert np.array_equal(quota.steady_carry(shares, 60), stepped[-1])
    # Far off, one step leads from one closed form to the next.
    far = 10**6 * (seed + 1)
    _, carry = quota.step(shares, quota.steady_carry(shares, far))
    assert np.array_equal(carry, quota.steady_carry(shares, far + 1))


def test_quotas_between_and_drawn_after_agree_with_stepping():
    shares = quota.shares([0.7, 0.2, 0.0999, 0.0001], 64)
    carry = quota.init_carry(shares)
    carries, rows = [carry], []
    for _ in range(300):
        quotas, carry = quota.step(shares, carry)
        carries.append(carry)
        rows.append(quotas)
    carries, rows = np.array(carries), np.array(rows)
    between = quota.quotas_between(shares, carries[:-1], carries[1:])
    assert np.array_equal(between, rows)
    assert between.dtype == np.int32
    for num_chunks in (0, 1, 299, 300):
        drawn = quota.drawn_after(shares, num_chunks, carries[num_chunks])
        assert np.array_equal(drawn, rows[:num_chunks].sum(axis=0))
        assert drawn.dtype == np.int64


def test_drawn_after_does_not_wrap():
    shares = quota.shares([1, 1], 2**28)
    num_chunks = 2**30
    drawn = quota.drawn_after(shares, num_chunks, quota.steady_carry(shares, num_chunks))
    assert drawn.tolist() == [2**57, 2**57]


def test_a_component_below_one_slot_a_chunk_is_drawn():
    """marin #4132: a component smaller than one slot per block was never drawn."""
    shares = quota.shares([0.7, 0.2999, 0.0001], 64)
    rows, _ = library_run(shares, 10_000)
    assert rows.min() >= 0
    assert np.abs(rows.sum(axis=0) - [448_000, 191_936, 64]).max() <= 1
    assert int(np.flatnonzero(rows[:, 2])[0]) <= 157


def test_a_component_without_draws_is_no_error():
    """Megatron-LM PR #1007: a dataset with no draws broke the size check."""
    with pytest.warns(UserWarning, match="0"):
        shares = quota.shares([1e-9, 0.5, 0.5], 10)
    assert quota.step(shares, quota.init_carry(shares))[0].tolist() == [0, 5, 5]


def test_the_memoryless_rule_is_another_one():
    """Rounding n * C * w afresh for each n would need negative quotas; this rule never does."""
    weights = [3, 3, 1]
    shares = quota.shares(weights, 1)
    rows, _ = library_run(shares, 7)
    exact = oracles.fractions(weights)
    fresh = [oracles.round_to(n, [share * n for share in exact]) for n in range(8)]
    assert np.diff(fresh, axis=0).min() < 0
    assert rows.min() == 0
    assert rows.sum(axis=0).tolist() == weights


@settings(max_examples=500)
@given(**CONFIGURATIONS)
def test_fixed_quotas_equal_the_oracle(kind, k, chunk_size, seed, zeros):
    weights = oracles.draw_weights(kind, k, seed, zeros)
    exact = oracles.effective(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if sum(share > 0 for share in exact) > chunk_size:
            with pytest.raises(ValueError, match=r"slot|active|chunk_size"):
                quota.fixed_shares(weights, chunk_size)
            return
        shares = quota.fixed_shares(weights, chunk_size)
    wanted = oracles.fixed_quotas(exact, chunk_size)
    carry = quota.init_carry(shares)
    for _ in range(3):
        quotas, carry = quota.step(shares, carry)
        assert quotas.tolist() == wanted
        assert not carry.any()


def test_fixed_quotas_give_each_active_component_a_slot():
    shares = quota.fixed_shares([0.9, 0.0999, 0.0001, 0], 4)
    assert quota.step(shares, quota.init_carry(shares))[0].tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize("chunk_size", [0, -1, 2**28 + 1])
@pytest.mark.parametrize("make", [quota.shares, quota.fixed_shares])
def test_chunk_sizes_out_of_range_are_refused(make, chunk_size):
    with pytest.raises(ValueError, match="chunk_size") as error:
        make([1, 1], chunk_size)
    assert str(chunk_size) in str(error.value)


@pytest.mark.parametrize("chunk_size", [1.5, "64", True, None])
@pytest.mark.parametrize("make", [quota.shares, quota.fixed_shares])
def test_chunk_sizes_of_other_types_are_refused(make, chunk_size):
    with pytest.raises(TypeError, match="chunk_size"):
        make([1, 1], chunk_size)


@pytest.mark.parametrize("k", [1, 32, 33, 200])
def test_slots_go_to_the_earlier_of_equals(k):
    """Chosen without a sort where there are many components: the same ones, ties and all."""
    rng = np.random.default_rng(k)
    for high in (1, 3, 50, 2**29 // k):
        shares_of = functools.partial(quota.shares, [high] * k)
        unit = int(shares_of(1).unit)
        for number in {1, k - 1, *rng.integers(1, k + 1, 9).tolist()} - {0, k}:
            shares = shares_of(number)
            owed = rng.integers(0, min(high, unit), k, dtype=np.int32)
            # Nobody is owed a whole sample, so all slots are missing; then each is owed one.
            for whole, chosen in ((0, -owed), (1, owed)):
                quotas, carry = quota.step(shares, owed + np.int32(whole * unit) - shares.rem)
                first = np.lexsort((np.arange(k), chosen))[: k - number if whole else number]
                wanted = np.full(k, whole)
                wanted[first] = 1 - whole
                assert quotas.tolist() == wanted.tolist()
                assert carry.tolist() == (owed + (whole - wanted) * unit).tolist()


def test_a_step_leaves_its_input_alone():
    shares = quota.shares([3, 2, 2], 4)
    carry = quota.init_carry(shares)
    carry.flags.writeable = False
    first = quota.step(shares, carry)
    again = quota.step(shares, carry)
    assert first[0].tolist() == again[0].tolist()
    assert not carry.any()
    assert first[0].dtype == first[1].dtype == carry.dtype == np.int32


def test_the_largest_chunk_in_32_bits():
    """Weights of 2^29 units and 2^28 slots: what would overflow first."""
    weights = [1, 2**29 - 2, 1]
    shares = quota.shares(weights, 2**28)
    rows, carry = library_run(shares, 8)
    wanted, wanted_carry = oracles.quota_run(oracles.fractions(weights), 2**28, 8)
    assert rows.tolist() == wanted
    assert carry.tolist() == [c * 2**29 for c in wanted_carry]
