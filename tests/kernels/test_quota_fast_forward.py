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
