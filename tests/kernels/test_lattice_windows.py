"""Windows of lattice orders against the orders themselves."""

import numpy as np
import pytest

from zephon_jax.kernels import lattice
from zephon_jax.kernels.lattice_windows import LatticeWindows


def numbers_of(component, k):
    """Which of its component's samples each slot takes, one by one."""
    seen, found = np.zeros(k, np.int64), []
    for d in component.tolist():
        found.append(int(seen[d]))
        seen[d] += 1
    return np.asarray(found, np.int64)


def check(counts, slot, num_lanes, cuts):
    counts = np.asarray(counts)
    order = lattice.order(counts, slot, num_lanes)
    numbers = numbers_of(order, counts.size)
    windows = LatticeWindows(counts, slot, num_lanes)
    assert windows.size == counts.sum()
    for start, stop in cuts:
        got = windows.window(start, stop)
        np.testing.assert_array_equal(got.component, order[start:stop])
        assert got.component.dtype == np.int32
        np.testing.assert_array_equal(got.number, numbers[start:stop])
        np.testing.assert_array_equal(got.first, np.bincount(order[:start], minlength=counts.size))
        np.testing.assert_array_equal(
            got.counts, np.bincount(order[start:stop], minlength=counts.size)
        )


@pytest.mark.parametrize("size", [*range(1, 14), 21, 22, 33, 34, 35])
def test_all_windows_of_small_chunks(size):
    rng = np.random.default_rng(size)
    for k in (1, 2, 5):
        places = np.sort(rng.integers(0, size + 1, k - 1))
        counts = np.diff(places, prepend=0, append=size)  # some components may have none
        lanes = int(rng.integers(1, 70))
        cuts = [(a, b) for a in range(size + 1) for b in range(a, size + 1)]
        check(counts, int(rng.integers(lanes)), lanes, cuts)


def drawn(seed, largest):
    rng = np.random.default_rng(seed)
    fibonacci = [1, 2]
    while fibonacci[-1] < largest:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    if rng.random() < 0.5:  # sizes where one ring begins to hold all slots, and powers of two
        near = int(
            rng.choice([*fibonacci[3:-1], *(1 << n for n in range(3, largest.bit_length()))])
        )
        size = max(1, near + int(rng.integers(-1, 2)))
    else:
        size = int(np.exp(rng.uniform(0, np.log(largest)))) + 1
    k = int(min(size, rng.choice([1, 2, 3, 8, 40, 128, 300])))
    counts = np.diff(np.sort(rng.integers(0, size + 1, k - 1)), prepend=0, append=size)
    lanes = int(rng.integers(1, 5_000))
    cuts = [(0, size), (size, size)]
    for _ in range(4):
        a = int(rng.integers(0, size + 1))
        cuts.append((a, min(size, a + int(rng.choice([0, 1, 64, 1_024, 65_536])))))
    check(counts, int(rng.integers(lanes)), lanes, cuts)


@pytest.mark.parametrize(
    ("seeds", "largest"),
    [
        (range(150), 1 << 12),
        (range(8), 1 << 17),
        pytest.param(range(3_000), 1 << 19, marks=pytest.mark.slow),
        pytest.param(range(30), 1 << 24, marks=pytest.mark.slow),
    ],
)
def test_drawn_chunks(seeds, largest):
    for seed in seeds:
        drawn(seed, largest)


def test_the_largest_chunk():
    """At 2^28 slots by counts that add up: all windows of a few stretches, and what is before."""
    counts = np.asarray([1 << 27, (1 << 27) - 12_345, 345, 12_000])
    windows = LatticeWindows(counts, 17, 64)
    last, end = windows.window(0, 0), windows.size
    for start in (0, 1, 1_000_003, 99_999_999, 201_326_592, end - 5_000):
        got = windows.window(start, min(end, start + 5_000))
        again = windows.window(start, start + 1)
        assert again.component[0] == got.component[0]
        assert again.number[0] == got.number[0]
        assert got.first.sum() == start
        assert (got.first >= last.first).all()
        last = got
    np.testing.assert_array_equal(last.first + last.counts, counts)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="1 to 268435456 samples; got 0"):
        LatticeWindows(np.asarray([0, 0]), 0, 1)
    with pytest.raises(ValueError, match="got 268435457"):
        LatticeWindows(np.asarray([(1 << 28) + 1]), 0, 1)


@pytest.mark.parametrize("seed", range(12))
def test_many_orders_are_those_of_each_chunk(seed):
    rng = np.random.default_rng(seed)
    n, k, lanes = int(rng.integers(1, 20)), int(rng.choice([1, 2, 9])), int(rng.integers(1, 99))
    size = int(rng.integers(1, 500))
    cuts = np.sort(rng.integers(0, size + 1, (n, k - 1)), axis=1)
    counts = np.diff(cuts, prepend=0, append=size, axis=1)
    slots = rng.integers(0, lanes, n)
    many = LatticeWindows.of_chunks(counts, slots, lanes)
    start = int(rng.integers(0, size + 1))
    stop = int(rng.integers(start, size + 1))
    found = LatticeWindows.windows_of(many, start, stop)
    for row, slot, one, window in zip(counts, slots.tolist(), many, found, strict=True):
        order = lattice.order(row, slot, lanes)
        assert one.size == size
        np.testing.assert_array_equal(window.component, order[start:stop])
        np.testing.assert_array_equal(window.number, numbers_of(order, k)[start:stop])
        np.testing.assert_array_equal(window.first, np.bincount(order[:start], minlength=k))


def test_orders_found_together_are_of_one_size():
    with pytest.raises(ValueError, match="one size; got 3 to 4 samples"):
        LatticeWindows.of_chunks(np.asarray([[2, 1], [2, 2]]), np.asarray([0, 1]), 2)
    assert LatticeWindows.of_chunks(np.zeros((0, 2), np.int64), np.zeros(0, np.int64), 2) == []
    assert LatticeWindows.windows_of([], 0, 0) == []
