"""Carries that are found from the chunks just before, against stepping through all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.kernels import quota
from zephon_jax.kernels.quota_coalescence import coalesced

weights = st.lists(st.integers(1, 60), min_size=2, max_size=12)


def stepped(shares, num_chunks, carry=None):
    carries = [quota.init_carry(shares) if carry is None else carry]
    for _ in range(num_chunks):
        carries.append(quota.step(shares, carries[-1])[1])
    return carries


def check(shares, num_chunks, window, carries, start=None):
    found = coalesced(shares, num_chunks, window, start)
    if found is not None:
        assert num_chunks - window < found.num_chunks <= num_chunks
        assert found.carry.dtype == np.int32
        np.testing.assert_array_equal(found.carry, carries[found.num_chunks])
    return found


@settings(max_examples=60)
@given(weights, st.integers(1, 9), st.integers(0, 2), st.integers(1, 250))
def test_a_carry_found_alone_is_that_of_stepping(units, chunk_size, num_common, window):
    units = [unit * 50 if n < num_common else unit for n, unit in enumerate(units)]
    shares = quota.shares(units, chunk_size)
    check(shares, 260, window, stepped(shares, 260))


@settings(max_examples=40)
@given(weights, st.integers(1, 9), st.data())
def test_a_carry_after_a_change_of_weights_is_found_too(units, chunk_size, data):
    shares = quota.finer(quota.shares(units, chunk_size), 7)
    unit = int(shares.unit)
    start = data.draw(st.lists(st.integers(1 - unit, unit - 1), min_size=len(units) - 1,
                               max_size=len(units) - 1))  # fmt: skip
    last = -sum(start)
    if abs(last) < unit:
        carry = np.asarray([*start, last], dtype=np.int32)
        check(shares, 200, 150, stepped(shares, 200, carry), carry)


@pytest.mark.parametrize("seed", range(3))
def test_most_mixtures_forget_in_some_thousand_chunks(seed):
    shares = quota.shares(np.random.default_rng(seed).random(300).tolist(), 64)
    carries = stepped(shares, 9_000)
    found = [check(shares, 9_000, window, carries) for window in (3, 512, 2_048, 8_192)]
    assert found[0] is None
    assert found[-1] is not None


@pytest.mark.parametrize("units", [[0.7, 0.2999, 1e-7], [300, 1, 7, 0.01], [1, 1, 1, 1]])
def test_far_carries_follow_from_each_other(units):
    shares, far = quota.shares(units, 1), 900_000_017
    first, last = (coalesced(shares, far + n, 3_000) for n in (0, 400))
    assert first is not None
    assert last is not None
    carries = stepped(shares, last.num_chunks - first.num_chunks, first.carry)
    np.testing.assert_array_equal(carries[-1], last.carry)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_long_runs(seed):
    rng = np.random.default_rng(seed)
    k, chunk_size = int(rng.choice([3, 20, 150])), int(rng.choice([1, 7, 64]))
    units = np.exp(rng.normal(0, rng.choice([0.5, 2.0]), k)).tolist()
    shares = quota.shares(units, chunk_size)
    carries = stepped(shares, 20_000)
    for num_chunks in rng.integers(10_000, 20_000, 5).tolist():
        for window in (500, 5_000):
            check(shares, num_chunks, window, carries)
