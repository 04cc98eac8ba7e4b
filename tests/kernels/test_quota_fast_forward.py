"""Carries and quotas of many chunks at once, where components get less than one sample a chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import stepped

from zephon_jax.kernels import quota, quota_fast_forward

# A surplus, where a component pays a slot back, is rare: this mixture has one within 60 chunks.
SURPLUS = ([40, 2, 40, 46, 9], 2)


def test_the_surplus_is_one():
    shares = quota.shares(*SURPLUS)
    assert any((carry >= shares.unit).any() for carry in stepped(shares, 60))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=9),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_forward_equals_stepping(weights, chunk_size, start, more):
    for w, size in ((weights, chunk_size), SURPLUS):
        shares = quota.shares(w, size)
        carries = stepped(shares, start + more)
        got = quota_fast_forward.forward(shares, carries[start], start, start + more)
        assert np.array_equal(got, carries[start + more])
        assert got.dtype == np.int32


@given(
    st.lists(st.sampled_from([1, 1, 2, 3, 40, 46, 47, 60]), min_size=1, max_size=9),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(0, 90),
)
def test_rows_equal_stepping(weights, chunk_size, start, more):
    for w, size in ((weights, chunk_size), SURPLUS, ([2, 40, 1, 1], 1)):
        assert_rows(quota.shares(w, size), start, more)


@given(
    st.lists(st.sampled_from([0, 1, 1, 2, 3, 40, 46, 60, 900]), min_size=1, max_size=7),
    st.integers(1, 40),
    st.lists(st.integers(-999, 1000), min_size=7, max_size=7),
    st.integers(0, 50),
)
def test_any_carry_goes_on_as_by_stepping(weights, chunk_size, per_mille, more):
    """Where weights change, carries begin above minus one sample and at most at one."""
    if not any(weights):
        return
    shares = quota.finer(quota.shares(weights, chunk_size), 1000)
    unit, active = int(shares.unit), np.asarray(weights) > 0
    carry = np.asarray(per_mille[: len(weights)]) * unit // 1000 * active
    for d in np.flatnonzero(active):  # those that have room make the sum zero
        carry[d] = np.clip(carry[d] - carry.sum(), 1 - unit, unit)
    if carry.sum():
        return
    carries, quotas = [carry.astype(np.int32)], []
    for _ in range(more):
        each, after = quota.step(shares, carries[-1])
        assert each.sum() == chunk_size
        assert (each >= 0).all()
        assert not each[~active].any()
        quotas.append(each)
        carries.append(after)
    got = quota_fast_forward.forward(shares, carries[0], 7, 7 + more)
    assert np.array_equal(got, carries[-1])
    drawn = quota.drawn_after(shares, more, carries[-1], carries[0])
    assert drawn.tolist() == np.sum(quotas, axis=0, initial=0, dtype=np.int64).tolist() or not more
    if more:
        assert np.array_equal(quota_fast_forward.quota_rows(shares, carries[0], 7, more)[0], quotas)
    if quota.is_closed_form(shares):
        closed = quota.steady_carry(shares, np.arange(more + 1), carries[0])
        assert np.array_equal(closed, carries)


def assert_rows(shares, start, more):
    carries = stepped(shares, start + more)
    quotas, after = quota_fast_forward.quota_rows(shares, carries[start], start, more)
    assert (quotas.dtype, after.dtype) == (np.int32, np.int32)
    assert np.array_equal(after, np.asarray(carries[start + 1 :]).reshape(after.shape))
    expected = [quota.step(shares, carry)[0] for carry in carries[start:-1]]
    assert np.array_equal(quotas, np.asarray(expected, dtype=np.int32).reshape(quotas.shape))


@pytest.mark.parametrize("num_rare", [1, 30, 200])
def test_long_rows_equal_stepping(num_rare):
    """Over the seams of blocks, by following the rare components and, above some, by stepping."""
    few = np.random.default_rng(num_rare).integers(1, 900, num_rare)
    shares = quota.shares([*few.tolist(), 4_000_003, 2_000_009, 11_007], 500)
    assert_rows(shares, 7, 4200)


@pytest.mark.parametrize("num_rare", [0, 1, 4, 70])
def test_forward_at_every_stop(num_rare):
    """At the chunks with a surplus too, after which the carry has to be stepped through."""
    mixtures = [SURPLUS] if num_rare == 4 else []
    mixtures.append(([1 + 3 * n for n in range(num_rare)] + [4_003, 2_009], 7))
    for weights, chunk_size in mixtures:
        shares = quota.shares(weights, chunk_size)
        carries = stepped(shares, 400)
        for stop in range(401):
            got = quota_fast_forward.forward(shares, carries[0], 0, stop)
            assert np.array_equal(got, carries[stop]), (weights, stop)
