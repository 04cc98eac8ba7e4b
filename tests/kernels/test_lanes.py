"""Lanes: which chunk belongs to whom, in both directions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from zephon_jax.kernels import lanes, quota

LANE_COUNTS = [1, 2, 3, 5, 7, 8, 16, 17, 64, 100, 512]
FAR = [0, 1000, 2**31 - 100, 2**31 + 5, 2**32 - 7, 2**32 + 12_345, 2**40 + 1]


def dealt(num_chunks, num_lanes, seed=0, assignment="permute", first=0, **settings):
    chunks = np.arange(first, first + num_chunks)
    return lanes.lane_of_chunk(chunks, num_lanes, seed, assignment, **settings)


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize("num_lanes", LANE_COUNTS)
def test_each_block_gives_every_lane_one_chunk(num_lanes, assignment):
    lane = dealt(20 * num_lanes, num_lanes, 3, assignment).reshape(20, num_lanes)
    assert np.array_equal(np.sort(lane, axis=1), np.tile(np.arange(num_lanes), (20, 1)))


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize("num_lanes", LANE_COUNTS)
@pytest.mark.parametrize("origin", [0, 1, 37, 10**6])
def test_both_directions_are_inverse(num_lanes, assignment, origin):
    chunks = np.arange(origin, origin + 7 * num_lanes)
    lane = lanes.lane_of_chunk(chunks, num_lanes, 5, assignment, origin=origin)
    step = (chunks - origin) // num_lanes
    back = lanes.chunk_of_lane(step, lane, num_lanes, 5, assignment, origin=origin)
    assert np.array_equal(back, chunks)
    steps, owners = np.meshgrid(np.arange(7), np.arange(num_lanes), indexing="ij")
    own = lanes.chunk_of_lane(steps, owners, num_lanes, 5, assignment, origin=origin)
    assert np.array_equal(np.sort(own.ravel()), chunks)
    assert np.array_equal(lanes.lane_of_chunk(own, num_lanes, 5, assignment, origin=origin), owners)


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint64])
def test_narrow_integers_do_not_wrap(dtype, assignment):
    """Lanes and chunks past what the given dtype holds come back in a wider one."""
    wide = np.arange(100)
    for num_lanes in (1, 3, 300, 70_000):
        narrow = wide.astype(dtype)
        for function, args in (
            (lanes.lane_of_chunk, (num_lanes, 7, assignment)),
            (lanes.chunk_of_lane, (num_lanes - 1, num_lanes, 7, assignment)),
        ):
            wanted, got = function(wide, *args), function(narrow, *args)
            assert got.tolist() == wanted.tolist()
            fits = wanted.max() <= np.iinfo(dtype).max
            assert got.dtype == (dtype if fits else np.int64)


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize("first", FAR)
def test_both_directions_are_inverse_far_off(first, assignment):
    for num_lanes in (1, 3, 64, 512):
        first_step = first // num_lanes
        steps = np.arange(first_step, first_step + 300)
        for lane in {0, num_lanes // 2, num_lanes - 1}:
            chunks = lanes.chunk_of_lane(steps, lane, num_lanes, 9, assignment)
            assert chunks.dtype == np.int64
            assert np.array_equal(chunks // num_lanes, steps)
            assert (lanes.lane_of_chunk(chunks, num_lanes, 9, assignment) == lane).all()


@settings(max_examples=300)
@given(
    num_lanes=st.integers(1, 5000),
    step=st.integers(0, 2**45),
    seed=st.integers(-(2**70), 2**70),
    assignment=st.sampled_from(lanes.ASSIGNMENTS),
    origin=st.integers(0, 2**45),
    data=st.data(),
)
def test_any_lane_finds_its_chunks(num_lanes, step, seed, assignment, origin, data):
    lane = data.draw(st.integers(0, num_lanes - 1))
    chunk = lanes.chunk_of_lane(np.array([step]), lane, num_lanes, seed, assignment, origin=origin)
    assert (chunk[0] - origin) // num_lanes == step
    back = lanes.lane_of_chunk(chunk, num_lanes, seed, assignment, origin=origin)
    assert back.tolist() == [lane]


def test_modulo_deals_in_turn():
    assert dealt(10, 4, assignment="modulo").tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    late = lanes.lane_of_chunk(np.arange(6, 12), 4, 0, "modulo", origin=6)
    assert late.tolist() == [0, 1, 2, 3, 0, 1]


def test_permute_is_the_default():
    chunks = np.arange(640)
    assert np.array_equal(lanes.lane_of_chunk(chunks, 64, 1), dealt(640, 64, 1, "permute"))
    assert not np.array_equal(lanes.lane_of_chunk(chunks, 64, 1), dealt(640, 64, 1, "modulo"))


# Resonance


@pytest.mark.parametrize("num_lanes", [8, 12, 64])
@pytest.mark.parametrize("period", [2, 3, 4, 6, 8, 12, 16, 64, 100])
def test_a_component_that_comes_every_few_chunks_reaches_every_lane(num_lanes, period):
    """By turns it reaches num_lanes / gcd of them; dealt by permutations, all.

    With N chunks dealt at random a lane is missed with probability (1 - 1 / L)^N; N = L (ln L + 30)
    makes that e^-30 for all lanes together. (More than one of the chunks in a block only helps.)
    """
    num = math.ceil(num_lanes * (math.log(num_lanes) + 30))
    for offset in (0, period - 1):
        chunks = offset + period * np.arange(num)
        turns = lanes.lane_of_chunk(chunks, num_lanes, 0, "modulo")
        assert len(np.unique(turns)) == num_lanes // math.gcd(period, num_lanes)
        spread = lanes.lane_of_chunk(chunks, num_lanes, 0, "permute")
        assert len(np.unique(spread)) == num_lanes


def test_a_small_component_reaches_every_lane():
    """The same through quotas: a weight of 1/64 at chunk size 1 comes every 64 chunks."""
    shares = quota.shares([63, 1], 1)
    carry = quota.init_carry(shares)
    comes = []
    for g in range(64 * 200):
        quotas, carry = quota.step(shares, carry)
        if quotas[1]:
            comes.append(g)
    assert len(comes) == 200
    assert set(np.diff(comes)) == {64}
    comes = np.array(comes)
    assert len(np.unique(lanes.lane_of_chunk(comes, 8, 0, "modulo"))) == 1
    # 8 (1 - 1/8)^200 = 2e-11
    assert len(np.unique(lanes.lane_of_chunk(comes, 8, 0, "permute"))) == 8


@pytest.mark.parametrize("num_lanes", [4, 8, 24, 64])
def test_lanes_are_dealt_evenly(num_lanes):
    """Every slot of a block goes to every lane equally often: chi-square, p > 1e-4.

    (L - 1)^2 degrees of freedom and a factor (L - 1) / L, as rows and columns have fixed sums.
    """
    blocks = 100 * num_lanes
    lane = dealt(blocks * num_lanes, num_lanes, 2).reshape(blocks, num_lanes)
    cells = np.bincount((lane + num_lanes * np.arange(num_lanes)).ravel(), minlength=num_lanes**2)
    statistic = ((cells - 100) ** 2).sum() / 100 * (num_lanes - 1) / num_lanes
    assert stats.chi2.sf(statistic, (num_lanes - 1) ** 2) > 1e-4


# Keys


@pytest.mark.parametrize("num_lanes", [64, 512])
def test_blocks_seeds_and_origins_do_not_correlate(num_lanes):
    """Equal places of two dealings are Poisson(1) a block: B blocks, 5 sqrt(B) around B."""
    blocks = 200
    num = blocks * num_lanes
    dealings = {
        "seed 0": dealt(num, num_lanes, 0),
        "seed 1": dealt(num, num_lanes, 1),
        "seed -1": dealt(num, num_lanes, -1),
        "seed 2^64": dealt(num, num_lanes, 2**64),
        "later": dealt(num, num_lanes, 0, first=num),
        "one block later": dealt(num, num_lanes, 0, first=num_lanes),
        "origin 1": dealt(num, num_lanes, 0, first=1, origin=1),
        "origin of a block": dealt(num, num_lanes, 0, first=num_lanes, origin=num_lanes),
        "origin far": dealt(num, num_lanes, 0, first=10**9, origin=10**9),
        "modulo": dealt(num, num_lanes, 0, "modulo"),
    }
    for (one, left), (other, right) in itertools.combinations(dealings.items(), 2):
        equal = (left == right).sum()
        assert abs(equal - blocks) < 5 * math.sqrt(blocks), (one, other)


def test_the_origin_is_part_of_the_key():
    plain = dealt(512, 64, 0, first=640)
    recut = dealt(512, 64, 0, first=640, origin=640)
    assert not np.array_equal(plain, recut)
    assert np.array_equal(dealt(512, 64, 0, first=640, origin=0), plain)


def test_the_number_of_lanes_changes_nothing_about_one_lane():
    assert not dealt(100, 1).any()
    assert np.array_equal(lanes.chunk_of_lane(np.arange(9), 0, 1, 4), np.arange(9))


# The rest of the contract


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_types_and_shapes_are_kept(dtype, assignment):
    chunks = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    lane = lanes.lane_of_chunk(chunks, 5, 0, assignment)
    assert lane.shape == chunks.shape
    assert lane.dtype == dtype
    back = lanes.chunk_of_lane(chunks // 5, lane, 5, 0, assignment)
    assert back.dtype == dtype
    assert np.array_equal(back, chunks)


def test_one_index_at_a_time_is_the_same():
    lane = dealt(50, 7, 1).tolist()
    assert [int(lanes.lane_of_chunk(np.array(g), 7, 1)) for g in range(50)] == lane


def test_steps_and_lanes_broadcast():
    own = lanes.chunk_of_lane(np.arange(4)[:, None], np.arange(6)[None, :], 6, 0)
    assert own.shape == (4, 6)
    assert np.array_equal(np.sort(own, axis=1), np.arange(24).reshape(4, 6))


@pytest.mark.parametrize("num_lanes", [0, -3])
def test_no_lanes_are_refused(num_lanes):
    """Zephon 0.2.0: 0 or -3 lanes failed deep inside."""
    with pytest.raises(ValueError, match=str(num_lanes)):
        lanes.lane_of_chunk(np.arange(3), num_lanes, 0)
    with pytest.raises(ValueError, match=str(num_lanes)):
        lanes.chunk_of_lane(np.arange(3), 0, num_lanes, 0)


@pytest.mark.parametrize("lane", [-1, 2, 5])
def test_lanes_out_of_range_are_refused(lane):
    """Zephon 0.2.0: lane 5 of 2 and lane -1 of 2 aliased lane 1."""
    with pytest.raises(ValueError, match=str(lane)):
        lanes.chunk_of_lane(np.arange(3), lane, 2, 0)


def test_chunks_before_the_first_are_refused():
    with pytest.raises((ValueError, IndexError), match="-1"):
        lanes.lane_of_chunk(np.array([0, -1]), 2, 0)
    with pytest.raises((ValueError, IndexError), match="7"):
        lanes.lane_of_chunk(np.array([9, 7]), 2, 0, origin=8)
    with pytest.raises((ValueError, IndexError), match="-2"):
        lanes.chunk_of_lane(np.array([-2]), 0, 2, 0)


def test_other_assignments_are_refused():
    with pytest.raises(ValueError, match="random"):
        lanes.lane_of_chunk(np.arange(3), 2, 0, "random")
    with pytest.raises(TypeError, match="seed"):
        lanes.lane_of_chunk(np.arange(3), 2, 0.5)
