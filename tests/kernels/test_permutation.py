"""Keyed permutations: one to one, inverted rightly, and as good as a shuffle can be told to be.

Thresholds are worked out, not guessed: each test says how likely an honest random permutation is
to fail it. The keys are fixed, so a test that passes once always passes.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

import zephon_jax as zx
from zephon_jax.kernels import keys, permutation

BIG_SIZES = (2**31 + 5, 2**32 + 5)


@functools.cache
def many_keys(count, label="test"):
    """Keys as root keys are made: from a seed and names."""
    made = np.array([permutation.make_key(seed, label) for seed in range(count)])
    made.flags.writeable = False
    return made


def folded_keys(count, label="folded"):
    """Keys as passes, blocks and shards get them: one root key folded with coordinates."""
    return keys.fold(permutation.make_key(0, label), np.arange(count))


def orders(size, table):
    """One order a row: (keys, size)."""
    return permutation.permute(np.arange(size)[None, :], size, table[:, None, :])


# One to one


@pytest.mark.parametrize("low", range(1, 2001, 250))
def test_every_size_up_to_2000_is_one_to_one(low):
    """grain 0.2.18: not a permutation at 4^j + 1."""
    for size in range(low, low + 250):
        key = permutation.make_key(size, "size")
        place = np.arange(size)
        there = permutation.permute(place, size, key)
        assert np.array_equal(np.sort(there), place), size
        assert np.array_equal(permutation.invert(there, size, key), place), size
        assert np.array_equal(
            permutation.permute(permutation.invert(place, size, key), size, key), place
        ), size


@pytest.mark.parametrize(
    "size",
    [65_537, 262_145, 1_048_577]  # 4^j + 1
    + [n for k in (12, 16, 17, 19, 20) for n in (2**k - 1, 2**k, 2**k + 1)]
    + [10_007, 999_983, 1_000_000, 3_000_017],
)
def test_large_sizes_are_one_to_one(size):
    """grain 0.2.18: not a permutation at 4^j + 1."""
    for seed in range(2):
        key = permutation.make_key(seed, "large")
        place = np.arange(size)
        there = permutation.permute(place, size, key)
        assert there.min() == 0
        assert np.bincount(there, minlength=size).max() == 1
        assert len(there) == size
        assert np.array_equal(permutation.invert(there, size, key), place)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 65])
def test_small_sizes_are_one_to_one_for_many_keys(size):
    table = many_keys(2000)
    there = orders(size, table)
    assert np.array_equal(np.sort(there, axis=1), np.tile(np.arange(size), (len(table), 1)))
    back = permutation.invert(there, size, table[:, None, :])
    assert np.array_equal(back, np.tile(np.arange(size), (len(table), 1)))


def samples_of(size, count=300_000):
    """Random places, both ends, and runs at the powers of two, without repeats."""
    rng = np.random.default_rng(size % 2**32)
    edges = [np.arange(1000), size - 1 - np.arange(1000)]
    edges += [
        middle + np.arange(-500, 500)
        for middle in (2**16, 2**31 - 1, 2**31, 2**32)
        if 500 <= middle < size - 500
    ]
    return np.unique(np.concatenate([rng.integers(0, size, count), *edges]))


@pytest.mark.parametrize("size", [*BIG_SIZES, 2**31, 2**32, 2**33 + 1, 2**40 + 3, 2**62])
def test_huge_sizes_stay_in_range_and_are_one_to_one_on_samples(size):
    """marin PR #1970, Megatron-LM #1056: 32-bit offsets wrapped on huge corpora."""
    place = samples_of(size)
    key = permutation.make_key(3, "huge")
    there = permutation.permute(place, size, key)
    assert there.dtype == np.int64
    assert there.min() >= 0
    assert there.max() < size
    assert len(np.unique(there)) == len(place)
    assert np.array_equal(permutation.invert(there, size, key), place)
    back = permutation.invert(place, size, key)
    assert back.min() >= 0
    assert back.max() < size
    assert np.array_equal(permutation.permute(back, size, key), place)
    # All of the range is used: of 300,000 draws, about a 1000th lies in the last 1000th.
    share = np.mean(there >= size - size // 1000)
    assert 0.0005 < share < 0.0015  # sd 5.8e-5: more than 8 of them


@pytest.mark.parametrize("size", BIG_SIZES)
def test_huge_sizes_are_shuffled_evenly(size):
    """Chi-square over 1,024 bins of where 300,000 random places go, p > 1e-4."""
    place = samples_of(size)
    there = permutation.permute(place, size, permutation.make_key(5, "huge"))
    counts = np.bincount((there * 1024) // size, minlength=1024)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_corpus_beyond_32_bits_is_read_without_wrapping():
    """marin PR #1970, Megatron-LM #1056, #1672: 32-bit offsets wrapped on huge corpora."""
    shards = [6_442_450_944 // 6144] * 6144
    datasets = [zx.Dataset.from_counts(name, shards) for name in ("left", "right")]
    for block in (None, "auto", "global"):
        source = zx.StaticMixtureWorkSource(
            datasets=datasets,
            mixture={"left": 0.5, "right": 0.5},
            seed=1,
            shuffle_within_shard=block != "global",
            shuffle_block_size=block,
        )
        last = len(source) - 1
        assert last == 2 * 6_442_450_944 - 1
        seen = np.array([tuple(source.sample_id_at(i)) for i in (0, 6_000_000_001, last)])
        assert seen.min() >= 0
        assert (seen[:, 0] < 2).all()
        assert (seen[:, 1] < 6144).all()
        assert (seen[:, 2] < shards[0]).all()
        around = np.arange(6_000_000_001 - 5000, 6_000_000_001 + 5000)
        ids = source.sample_ids_at(around)
        assert ids.min() >= 0
        assert len(np.unique(ids, axis=0)) == len(around)
    plain = zx.StaticMixtureWorkSource(
        datasets=datasets, mixture={"left": 0.5, "right": 0.5}, shuffle_shards=False
    )
    dataset, shard, sample = plain.sample_id_at(6_000_000_001)
    assert abs(shard * shards[0] + sample - 3_000_000_000) <= 1
    assert dataset in (0, 1)


# A shuffle, not only a bijection


def order_counts(size, table):
    """How often each of the size! orders came."""
    there = orders(size, table).astype(np.int64)
    rank = np.zeros(len(there), np.int64)
    for place in range(size):
        smaller = (there[:, place + 1 :] < there[:, place : place + 1]).sum(axis=1)
        rank = rank * (size - place) + smaller
    return np.bincount(rank, minlength=math.factorial(size))


@pytest.mark.parametrize("make", [many_keys, folded_keys])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_small_size_appears_equally_often(size, make):
    """levanter: only 4 of the 24 orders of 4 appeared; six rounds fail at 5 and 6.

    100 keys an order: one is missed with probability e^-100, and chi-square fails one honest
    shuffle in 10,000.
    """
    counts = order_counts(size, make(100 * math.factorial(size)))
    assert counts.min() > 0
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4, 5, 6, 7, 8])
def test_every_order_appears_equally_often_many(size):
    table = folded_keys(min(2_000_000, 4000 * math.factorial(size)), "many")
    counts = order_counts(size, table)
    assert counts.min() > 0
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("size", [7, 8, 9, 12, 13, 16, 31, 32, 33, 64, 65, 100, 257])
def test_each_place_goes_everywhere_equally_often(size):
    """Chi-square of the table (place, what lies there) over many keys.

    Rows and columns of the table both have fixed sums, so (size - 1)^2 degrees of freedom and a
    factor (size - 1) / size on the usual sum: a random permutation matrix has covariance
    1 / (size - 1) and not 1 / size. p > 1e-4.
    """
    table = folded_keys(40 * size, f"places {size}")
    there = orders(size, table)
    cells = np.bincount((there + size * np.arange(size)).ravel(), minlength=size * size)
    expected = len(table) / size
    statistic = ((cells - expected) ** 2).sum() / expected * (size - 1) / size
    assert stats.chi2.sf(statistic, (size - 1) ** 2) > 1e-4


def neighbour_ratio(size, num_keys, num_bins, gap=1, label="neighbours"):
    """The most frequent difference of neighbours against its fair share.

    Differences run over 1 .. size - 1 modulo the size and are equally likely in a random
    permutation. `num_bins` bins of equal width where that many differences are too many.
    """
    counts = np.zeros(num_bins, np.int64)
    fair = np.bincount(np.arange(1, size) * num_bins // size, minlength=num_bins) / (size - 1)
    total = 0
    table = folded_keys(num_keys, label)
    per_batch = max(1, 2_000_000 // size)
    for start in range(0, num_keys, per_batch):
        there = orders(size, table[start : start + per_batch]).astype(np.int64)
        difference = (there[:, gap:] - there[:, :-gap]) % size
        counts += np.bincount(difference.ravel() * num_bins // size, minlength=num_bins)
        total += difference.size
    possible = fair > 0
    assert counts[~possible].sum() == 0
    return (counts[possible] / (total * fair[possible])).max()


# (size, keys, bins). Each bin expects at least 400 differences, so its share has a standard
# deviation of 5 % at most: 1.4 is 8 of them, and of 10,000 bins not one in 10^11 honest runs passes
# it. 1.3 would still be 6.
NEIGHBOURS = [
    (16, 4000, 16),
    (64, 2000, 64),
    (100, 2000, 100),
    (10_000, 420, 10_000),
    (2**20, 3, 1024),
]


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize(("size", "num_keys", "num_bins"), NEIGHBOURS)
def test_neighbours_keep_no_fixed_distance(size, num_keys, num_bins, gap):
    """levanter: neighbours stayed a fixed distance apart."""
    assert neighbour_ratio(size, num_keys, num_bins, gap) < 1.4


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_of_one_key_keep_no_fixed_distance(seed):
    """One key at 2^20: 1,024 expected in each bin, 3.1 % each, so 1.2 is more than 6 sigma."""
    assert neighbour_ratio(2**20, 1, 1024, label=f"one key {seed}") < 1.2


def bit_scores(size, num_keys, label="bits"):
    """Standard scores of how often output bit b follows input bit a, as a matrix.

    In a random permutation of n places, of which n1 have bit a set and m1 have bit b set, the
    number with both is hypergeometric: mean n1 m1 / n and variance
    n1 m1 (n - n1) (n - m1) / (n^2 (n - 1)).
    """
    bits = (size - 1).bit_length()
    place = np.arange(size)
    with_bit = ((place[:, None] >> np.arange(bits)) & 1).astype(np.float64)
    ones = with_bit.sum(axis=0)
    both = np.zeros((bits, bits))
    table = folded_keys(num_keys, label)
    per_batch = max(1, 2_000_000 // size)
    for start in range(0, num_keys, per_batch):
        there = orders(size, table[start : start + per_batch])
        set_there = np.stack(
            [((there >> bit) & 1).sum(axis=0, dtype=np.int64) for bit in range(bits)], axis=1
        )
        both += with_bit.T @ set_there.astype(np.float64)
    mean = np.outer(ones, ones) / size
    variance = np.outer(ones * (size - ones), ones * (size - ones)) / (size**2 * (size - 1))
    return (both - num_keys * mean) / np.sqrt(num_keys * variance)


# 2,053 pairs of bits in all. One lies beyond 4 sigma with probability 6.3e-5, so an honest shuffle
# shows 0.13 of them; with fixed keys it shows none for good.
BIT_SIZES = [
    (4, 3000), (5, 3000), (8, 3000), (16, 3000), (17, 3000), (63, 3000), (64, 3000), (65, 3000),
    (100, 3000), (1000, 500), (4096, 200), (4097, 200), (10_000, 100), (2**16 + 1, 20), (2**20, 4),
]  # fmt: skip


@pytest.mark.parametrize(("size", "num_keys"), BIT_SIZES)
def test_no_output_bit_follows_an_input_bit(size, num_keys):
    """levanter: output bits that copied an input bit."""
    assert np.abs(bit_scores(size, num_keys)).max() < 4


def test_the_bit_scores_see_a_weak_shuffle():
    """An affine map of one key: its lowest bit follows the lowest input bit, always."""
    size = 1024
    place = np.arange(size)
    there = (place * 421 + 17) % size
    agree = ((place ^ there) & 1).mean()
    assert agree in (0, 1)
    assert 0.4 < ((place ^ permutation.permute(place, size, many_keys(1)[0])) & 1).mean() < 0.6


@pytest.mark.parametrize("size", [2**20, 3_000_017])
def test_output_bits_are_fair_and_flip_with_input_bits(size):
    """Avalanche on positions: flipping one input bit flips each output bit half the time.

    30,000 pairs for each input bit, so a share has sd 0.0029 and 5 sigma is 0.0145; 420 pairs of
    bits: an honest shuffle fails once in 4,000. Only the bits that a bound leaves fair count.
    """
    rng = np.random.default_rng(size)
    key = permutation.make_key(11, "avalanche")
    bits = size.bit_length() - 1
    for bit in range(bits):
        place = rng.integers(0, 2**bits, 30_000)
        one = permutation.permute(place, size, key)
        other = permutation.permute(place ^ (1 << bit), size, key)
        flips = (((one ^ other)[:, None] >> np.arange(bits - 1)) & 1).mean(axis=0)
        assert np.abs(flips - 0.5).max() < 0.0145 + 1 / 2 ** (bits / 2)


@pytest.mark.parametrize("size", [64, 1000, 65_537])
def test_cycles_are_those_of_a_random_permutation(size):
    """Fixed points and places that go back after two steps, over many keys.

    A key has 1 fixed point on average (variance 1), so K keys have K within 5 sqrt(K): an honest
    shuffle fails once in 1.7 million. Of places in cycles of two there is 1 as well (variance 2).
    """
    num_keys = 2000 if size <= 1000 else 200
    table = folded_keys(num_keys, f"cycles {size}")
    fixed = back = 0
    place = np.arange(size)
    for start in range(0, num_keys, 50):
        part = table[start : start + 50, None, :]
        once = permutation.permute(place[None, :], size, part)
        fixed += (once == place).sum()
        back += ((permutation.permute(once, size, part) == place) & (once != place)).sum()
    assert abs(fixed - num_keys) < 5 * math.sqrt(num_keys)
    assert abs(back - num_keys) < 5 * math.sqrt(2 * num_keys)


@pytest.mark.parametrize("size", [*range(2, 13), 20, 28, 33, 40, 56, 100, 257])
def test_odd_and_even_orders_are_equally_frequent(size):
    """Rounds of xor and of addition may all be even permutations; 4,000 keys, 5 sigma is 158."""
    there = orders(size, folded_keys(4000, f"parity {size}"))
    i, j = np.triu_indices(size, 1)
    odd = ((there[:, i] > there[:, j]).sum(axis=1) % 2).sum()
    assert abs(odd - 2000) < 158


# No correlation between keys


def agreement(one, other):
    """(equal places, chi-square p of the differences modulo the size, rank correlation's score).

    For independent shuffles: Poisson(1); uniform; standard normal.
    """
    size = len(one)
    difference = (one - other) % size
    bins = min(size, 256)
    counts = np.bincount(difference * bins // size, minlength=bins)
    fair = np.bincount(np.arange(size) * bins // size, minlength=bins)
    correlation = np.corrcoef(one, other)[0, 1] * math.sqrt(size - 1)
    return int((difference == 0).sum()), stats.chisquare(counts, fair).pvalue, correlation


def check_independent(table, size):
    """All pairs of the orders in `table`, and each against the identity and the others' inverses.

    Bounds for M pairs: equal places sum to M with sd sqrt(M), none is above 12 (Poisson(1): 6e-11);
    p-values and scores allow for M trials, so that an honest set fails once in 1,000.
    """
    pairs = list(itertools.combinations([np.arange(size), *table], 2))
    results = [agreement(*pair) for pair in pairs]
    equal, p_values, scores = (np.array(column) for column in zip(*results, strict=True))
    num_pairs = len(pairs)
    assert abs(equal.sum() - num_pairs) < 5 * math.sqrt(num_pairs)
    assert equal.max() <= 12
    assert p_values.min() > 0.0005 / num_pairs
    assert np.abs(scores).max() < stats.norm.isf(0.00025 / num_pairs)
    inverses = [np.argsort(order) for order in table]
    for (i, order), (j, inverse) in itertools.product(enumerate(table), enumerate(inverses)):
        if i != j:
            assert (order == inverse).sum() <= 14


PATHS = [
    (0, "web"), (1, "web"), (-1, "web"), (7, "web"), (8, "web"), (2**70, "web"), (2**32, "web"),
    (0, "toy"), (0, "web", "shards"), (0, "web", "within"), (0, "web", "blocks"), (0, "web", 0),
    (0, "web", 1), (0, "wea"), (0, ""), (0,),
]  # fmt: skip


@pytest.mark.parametrize("size", [1000, 4096, 65_537])
def test_orders_of_different_paths_do_not_correlate(size):
    table = [permutation.permute(np.arange(size), size, keys.make_key(*path)) for path in PATHS]
    check_independent(table, size)


@pytest.mark.parametrize("size", [1000, 4096, 65_537])
def test_orders_of_neighbouring_coordinates_do_not_correlate(size):
    """Passes, blocks and shards: small numbers in a row, two deep, and far ones."""
    root = permutation.make_key(0, "web")
    coordinates = [0, 1, 2, 3, 4, 2**16, 2**31, 2**32, 2**32 + 1, 2**40]
    table = [keys.fold(root, np.array([c]))[0] for c in coordinates]
    table += [keys.fold(table[0], np.array([c]))[0] for c in (0, 1, 2)]
    table += [keys.fold(table[1], np.array([c]))[0] for c in (0, 1)]
    check_independent([permutation.permute(np.arange(size), size, key) for key in table], size)


def flat_positions(source, name_id, start, count):
    """Positions in a dataset of one shard in the order in which a source draws them."""
    ids = source.sample_ids_at(np.arange(start, start + count))
    assert (ids[:, 0] == name_id).all()
    return ids[:, 2]


def one_dataset(name, size, seed, **shuffle):
    return zx.StaticMixtureWorkSource(
        datasets=[zx.Dataset.from_counts(name, [size])],
        mixture={name: 1},
        chunk_size=512,
        seed=seed,
        stop_after_passes=4,
        **shuffle,
    )


def test_levels_passes_and_datasets_of_a_source_do_not_correlate():
    """Zephon 0.2.0: two datasets of the same shape were walked in the same order. VeOmni PR #1075:
    (seed 0, pass 1) was (seed 1, pass 0)."""
    size = 4096
    table = []
    for shuffle in (
        {"shuffle_within_shard": True},
        {"shuffle_block_size": "global"},
        {"shuffle_block_size": size},
    ):
        for name, seed in (("web", 0), ("web", 1), ("toy", 0)):
            source = one_dataset(name, size, seed, **shuffle)
            table += [flat_positions(source, 0, n * size, size) for n in range(3)]
    assert all(np.array_equal(np.sort(order), np.arange(size)) for order in table)
    check_independent(table, size)


def test_shard_orders_of_a_source_do_not_correlate():
    """Shards of one sample each: the shard level alone, over passes, datasets and seeds."""
    size = 2048
    table = []
    for name, seed in (("web", 0), ("web", 1), ("toy", 0), ("toy", -1)):
        source = zx.StaticMixtureWorkSource(
            datasets=[zx.Dataset.from_counts(name, [1] * size)],
            mixture={name: 1},
            chunk_size=512,
            seed=seed,
            stop_after_passes=4,
        )
        table += [source.sample_ids_at(np.arange(n * size, (n + 1) * size))[:, 1] for n in range(4)]
    check_independent(table, size)


def test_shards_and_blocks_of_one_pass_do_not_correlate():
    """Orders within 16 shards of one size, and within 16 blocks of that size."""
    size, num = 1024, 16
    shards = zx.StaticMixtureWorkSource(
        datasets=[zx.Dataset.from_counts("web", [size] * num)],
        mixture={"web": 1},
        seed=0,
        shuffle_shards=False,
        shuffle_within_shard=True,
    )
    blocks = zx.StaticMixtureWorkSource(
        datasets=[zx.Dataset.from_counts("web", [size * num])],
        mixture={"web": 1},
        seed=0,
        shuffle_shards=False,
        shuffle_block_size=size,
    )
    within = shards.sample_ids_at(np.arange(size * num))[:, 2].reshape(num, size)
    mosaic = blocks.sample_ids_at(np.arange(size * num))[:, 2].reshape(num, size)
    mosaic = mosaic - size * np.arange(num)[:, None]
    check_independent([*within, *mosaic], size)


# The rest of the contract


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_the_type_of_the_index_is_kept(dtype):
    key = permutation.make_key(0, "types")
    wanted = permutation.permute(np.arange(100), 100, key)
    there = permutation.permute(np.arange(100, dtype=dtype), 100, key)
    assert there.dtype == dtype
    assert np.array_equal(there, wanted)
    assert permutation.invert(there, 100, key).dtype == dtype


def test_a_type_that_is_too_narrow_is_widened():
    key = permutation.make_key(0, "types")
    assert permutation.permute(np.arange(100, dtype=np.int8), 2**20, key).dtype == np.int64
    assert permutation.permute(np.arange(100, dtype=np.int32), 2**31 + 5, key).dtype == np.int64


def test_shapes_broadcast_with_keys():
    table = many_keys(6).reshape(2, 3, 2)
    place = np.arange(5)
    there = permutation.permute(place[:, None, None], 5, table)
    assert there.shape == (5, 2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert np.array_equal(there[:, i, j], permutation.permute(place, 5, table[i, j]))


def test_one_place_at_a_time_is_the_same():
    key = permutation.make_key(9, "single")
    whole = permutation.permute(np.arange(300), 300, key)
    assert [int(permutation.permute(np.array(i), 300, key)) for i in range(300)] == whole.tolist()
    backwards = permutation.permute(np.arange(300)[::-1], 300, key)
    assert np.array_equal(backwards, whole[::-1])


def test_nothing_stays_nothing():
    key = permutation.make_key(0)
    for size in (1, 50, 2**40):
        assert permutation.permute(np.empty(0, np.int64), size, key).shape == (0,)
        assert permutation.invert(np.empty((0, 3), np.int64), size, key).shape == (0, 3)


@pytest.mark.parametrize("stretch", [7, 1 << 15])
def test_many_permutations_at_once_are_the_same(stretch, monkeypatch):
    monkeypatch.setattr(permutation, "_STRETCH", stretch)
    sizes = np.array([1, 5, 64, 65, 1000, 2**33 + 5])
    table = many_keys(len(sizes))
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(sizes), 4000)
    place = rng.integers(0, sizes[rows])
    there = permutation.permute_rows(place, rows, permutation.make_grids(sizes, table))
    for row, size in enumerate(sizes.tolist()):
        mine = rows == row
        assert np.array_equal(there[mine], permutation.permute(place[mine], size, table[row]))
    own = rng.integers(0, sizes)
    single = permutation.permute_rows(own, np.arange(6), permutation.make_grids(sizes, table))
    wanted = [
        int(permutation.permute(own[r : r + 1], int(sizes[r]), table[r])[0])
        for r in range(len(sizes))
    ]
    assert single.tolist() == wanted


@pytest.mark.parametrize("function", [permutation.permute, permutation.invert])
def test_arguments_out_of_range_are_refused(function):
    key = permutation.make_key(0)
    for size in (0, -1, 2**62 + 1):
        with pytest.raises(ValueError, match=str(size)):
            function(np.zeros(1, np.int64), size, key)
    for index in (-1, 10, 2**40):
        with pytest.raises(IndexError, match=str(index)):
            function(np.array([0, index]), 10, key)


def test_sizes_of_their_own_are_permuted_like_one_size():
    import jax

    rng = np.random.default_rng(0)
    sizes = np.concatenate([np.arange(1, 70), [1000, 65_536, 2**20 + 1, 2**31 - 1, 2**31]])
    index = np.array([rng.integers(size) for size in sizes])
    roots = np.stack([permutation.make_key(n, "each") for n in range(sizes.size)])
    wide = sizes.astype(np.uint32), index.astype(np.uint32)
    found = jax.jit(permutation.permute_each)(wide[1], wide[0], roots)
    expected = [
        int(permutation.permute(np.array([i]), int(size), key)[0])
        for i, size, key in zip(index, sizes, roots, strict=True)
    ]
    assert found.tolist() == expected
    large = sizes > permutation.SMALL
    some = jax.jit(lambda *a: permutation.permute_each(*a, small=False))(
        wide[1][large], wide[0][large], roots[large]
    )
    assert some.tolist() == found[large].tolist()
