"""Carries at any chunk, however they are come by, are those of stepping."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_jax.kernels import backend, quota
from zephon_jax.kernels import quota_fast_forward as rare
from zephon_jax.mixture.allocation import Allocation


def stepped(shares, num_chunks):
    carries = [quota.init_carry(shares)]
    for _ in range(num_chunks):
        carries.append(quota.step(shares, carries[-1])[1])
    return carries


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
        got = rare.forward(shares, carries[start], start, start + more)
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
    quotas, after = rare.quota_rows(shares, carries[start], start, more)
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


@pytest.mark.parametrize("name", backend.BACKENDS)
@pytest.mark.parametrize("num_rare", [0, 3, 70])
def test_carry_at_and_advance(name, num_rare):
    few = np.random.default_rng(num_rare).integers(1, 900, num_rare)
    shares = quota.shares([*few.tolist(), 40_000_003, 20_000_009], 2000)
    assert rare.rare_components(shares).size == num_rare
    carries = stepped(shares, 3000)
    backend.use_backend(name)
    try:
        allocation = Allocation(shares)
        assert allocation.closed == (num_rare == 0)
        for n in (0, 1, 2047, 2048, 2049, 3000, 17):
            assert np.array_equal(allocation.carry_at(n), carries[n])
        for start, stop in ((0, 3000), (5, 6), (100, 2900), (2500, 2500)):
            assert np.array_equal(allocation.advance(carries[start], start, stop), carries[stop])
    finally:
        backend.use_backend("numpy")


def test_saved_carries_stay_bounded(monkeypatch):
    from zephon_jax.mixture import allocation as module

    monkeypatch.setattr(module, "_STRIDE", 4)
    monkeypatch.setattr(module, "_MAX_SAVED", 8)
    shares = quota.shares([1, 40_000_003, 20_000_009], 2000)
    carries = stepped(shares, 500)
    allocation = Allocation(shares)
    for n in (500, 3, 250, 499, 77):
        assert np.array_equal(allocation.carry_at(n), carries[n])
        assert len(allocation._saved) <= 9


def test_threads_share_saved_carries(monkeypatch):
    """Carries are saved, and strides double, while other threads look for theirs."""
    from zephon_jax.mixture import allocation as module

    monkeypatch.setattr(module, "_STRIDE", 1)
    monkeypatch.setattr(module, "_MAX_SAVED", 4)
    shares = quota.shares([1, 40_000_003, 20_000_009], 2000)
    carries = stepped(shares, 200)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                allocation = Allocation(shares)
                found = pool.map(allocation.carry_at, list(range(200, 0, -7)) * 2)
                for n, carry in zip(list(range(200, 0, -7)) * 2, found, strict=True):
                    assert np.array_equal(carry, carries[n])
    finally:
        sys.setswitchinterval(interval)
