"""Carries at any chunk, however they are come by, are those of stepping."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.helpers import stepped

import zephon_jax as zx
from zephon_jax.kernels import quota, quota_fast_forward
from zephon_jax.mixture.allocation import CarriedQuotas


@pytest.mark.parametrize("num_rare", [0, 3, 70])
def test_carry_at_and_advance(num_rare):
    few = np.random.default_rng(num_rare).integers(1, 900, num_rare)
    shares = quota.shares([*few.tolist(), 40_000_003, 20_000_009], 2000)
    carries = stepped(shares, 3000)
    allocation = CarriedQuotas(shares)
    assert allocation.closed == (num_rare == 0)
    for n in (0, 1, 2047, 2048, 2049, 3000, 17):
        assert np.array_equal(allocation.carry_at(n), carries[n])
    for start, stop in ((0, 3000), (5, 6), (100, 2900), (2500, 2500)):
        assert np.array_equal(allocation.advance(carries[start], start, stop), carries[stop])


def test_saved_carries_stay_bounded():
    shares = quota.shares([1, 40_000_003, 20_000_009], 2000)
    carries = stepped(shares, 500)
    allocation = CarriedQuotas(shares, stride=4, max_saved=8)
    for n in (500, 3, 250, 499, 77):
        assert np.array_equal(allocation.carry_at(n), carries[n])
        assert len(allocation.saved) <= 9


def test_threads_share_saved_carries():
    """Carries are saved, and strides double, while other threads look for theirs."""
    shares = quota.shares([1, 40_000_003, 20_000_009], 2000)
    carries = stepped(shares, 200)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(20):
                allocation = CarriedQuotas(shares, stride=1, max_saved=4)
                found = pool.map(allocation.carry_at, list(range(200, 0, -7)) * 2)
                for n, carry in zip(list(range(200, 0, -7)) * 2, found, strict=True):
                    assert np.array_equal(carry, carries[n])
    finally:
        sys.setswitchinterval(interval)


def test_far_chunks_of_many_rare_components_are_found_without_those_before(monkeypatch):
    weights = np.random.default_rng(0).random(300).tolist()
    datasets = [zx.Dataset.from_counts(f"d{n}", [10**7]) for n in range(300)]
    source = zx.StaticMixtureWorkSource(
        datasets, {f"d{n}": weight for n, weight in enumerate(weights)}, 64
    )
    steps, step = [], quota.step
    monkeypatch.setattr(quota_fast_forward, "step", lambda *a: steps.append(1) or step(*a))
    state = source.seek(1_000_000)
    assert len(source) > 64_000_000
    assert source.sample_id_at(64_000_000) in {sample for sample, _ in source.next_chunk(state)[0]}
    assert len(steps) < 20_000  # of a million
    for _ in range(5):
        _, state = source.next_chunk(state)
    assert zx.encode_state(state) == zx.encode_state(source.seek(1_000_005))
