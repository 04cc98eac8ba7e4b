"""NumPy, eager JAX, jit, vmap and scan: equal values and equal types.

This file runs without JAX's 64-bit flag, as most training runs do; what needs it runs in a process
of its own.
"""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import oracles
from support.helpers import chunks_of, mixture

import zephon_jax as zx
from zephon_jax.kernels import backend, keys, lanes, lattice, permutation, quota, swrr
from zephon_jax.sources import read_order as reading

MIXTURES = {
    "two": ([0.7, 0.3], 64),
    "small third": ([0.7, 0.2999, 0.0001], 64),
    "clipped": ([100] + [1] * 20, 7),
    "one": ([1], 5),
    "idle": ([0, 3, 0, 4], 10),
    "many": ([1 / (d + 1) for d in range(300)], 16_384),
    "largest unit": ([1, 2**29 - 2, 1], 2**28),
}


def same(one, other):
    """Equal values, shapes and types, whichever library holds them."""
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert np.array_equal(np.asarray(one), np.asarray(other))


def test_this_process_has_32_bits():
    assert not jax.config.jax_enable_x64


# Quotas


@pytest.mark.filterwarnings("ignore:.*2\\^29.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*round.*:UserWarning")
@pytest.mark.parametrize("name", MIXTURES)
def test_quota_steps(name):
    weights, chunk_size = MIXTURES[name]
    shares = quota.shares(weights, chunk_size)
    on_jax = jax.tree.map(jnp.asarray, shares)
    compiled = jax.jit(quota.step)
    carry = quota.init_carry(shares)
    eager = there = jnp.asarray(carry)
    rows = []
    for n in range(20):
        quotas, carry = quota.step(shares, carry)
        assert isinstance(quotas, np.ndarray)
        assert quotas.dtype == carry.dtype == np.int32
        rows.append(quotas)
        if n < 4:
            eager_quotas, eager = quota.step(on_jax, eager)
            assert isinstance(eager_quotas, jax.Array)
            same(eager_quotas, quotas)
            same(eager, carry)
        jit_quotas, there = compiled(on_jax, there)
        same(jit_quotas, quotas)
        same(there, carry)

    def advance(carry, _):
        quotas, carry = quota.step(on_jax, carry)
        return carry, quotas

    last, scanned = jax.lax.scan(advance, jnp.asarray(quota.init_carry(shares)), None, length=20)
    same(scanned, np.array(rows))
    same(last, carry)


def test_quota_steps_under_vmap():
    """Over carries, and over mixtures too."""
    shares = quota.shares([0.5, 0.3, 0.2], 7)
    carries = [quota.init_carry(shares)]
    for _ in range(9):
        carries.append(quota.step(shares, carries[-1])[1])
    quotas, after = jax.vmap(quota.step, in_axes=(None, 0))(shares, jnp.array(carries))
    wanted = [quota.step(shares, carry) for carry in carries]
    same(quotas, np.array([w[0] for w in wanted]))
    same(after, np.array([w[1] for w in wanted]))

    mixtures = [quota.shares(w, 16) for w in ([1, 2, 3], [0.1, 0.1, 0.8], [5, 0, 2])]
    wanted = [quota.step(s, quota.init_carry(s)) for s in mixtures]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *mixtures)
    quotas, after = jax.vmap(quota.step)(together, jnp.zeros((3, 3), jnp.int32))
    same(quotas, np.array([w[0] for w in wanted]))
    same(after, np.array([w[1] for w in wanted]))


def test_shares_compile_once_for_all_carries():
    traces = []

    @jax.jit
    def step(shares, carry):
        traces.append(1)
        return quota.step(shares, carry)

    shares = quota.shares([0.7, 0.3], 64)
    carry = quota.init_carry(shares)
    for _ in range(5):
        _, carry = step(shares, carry)
    step(quota.shares([0.6, 0.4], 64), quota.init_carry(shares))
    assert len(traces) == 1


# Reading orders

COUNTS = {
    "plain": [7, 5, 3, 1],
    "zeros": [0, 9, 0, 7, 0],
    "worst": [1, 1, 1, 1, 3, 3, 19, 483],
    "one": [6],
    "many": [1 + d % 3 for d in range(200)],
}


@pytest.mark.parametrize("name", COUNTS)
def test_round_robin(name):
    counts = COUNTS[name]
    total = sum(counts)
    wanted = swrr.order(np.array(counts))
    same(wanted, np.array(oracles.round_robin(counts), np.int32))
    same(swrr.order(jnp.array(counts)), wanted)
    compiled = jax.jit(swrr.order, static_argnames="size")
    same(compiled(jnp.array(counts), size=total), wanted)
    same(compiled(jnp.array(counts), size=total + 3), swrr.order(np.array(counts), size=total + 3))


def test_round_robin_under_vmap_and_scan():
    rows = np.array([[3, 1, 0], [0, 2, 2], [1, 1, 2], [4, 0, 0]])
    wanted = np.array([swrr.order(row, size=4) for row in rows])
    order = functools.partial(swrr.order, size=4)
    same(jax.vmap(order)(jnp.array(rows)), wanted)
    same(jax.jit(jax.vmap(order))(jnp.array(rows)), wanted)
    same(jax.lax.scan(lambda c, row: (c, order(row)), 0, jnp.array(rows))[1], wanted)
    same(swrr.order(rows, size=4), wanted)
    same(swrr.order(jnp.array(rows), size=4), wanted)


def test_round_robin_at_the_largest_products():
    """Counts of 2^15 and more: n * t and E * C are near 2^31, the differences are not."""
    counts = np.array([40_000, 20_000, 5_000, 535, 1])
    wanted = swrr.order(counts)
    assert oracles.first_broken_slot(wanted, counts) is None
    same(jax.jit(swrr.order, static_argnames="size")(jnp.array(counts), size=65_536), wanted)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(("slot", "num_lanes"), [(0, 1), (0, 8), (5, 8), (4095, 4096)])
def test_lattice(name, slot, num_lanes):
    counts = COUNTS[name]
    total = sum(counts)
    wanted = lattice.order(np.array(counts), slot, num_lanes)
    same(wanted, np.array(oracles.lattice(counts, slot, num_lanes), np.int32))
    same(lattice.order(jnp.array(counts), slot, num_lanes), wanted)
    compiled = jax.jit(lattice.order, static_argnames=("num_lanes", "size"))
    same(compiled(jnp.array(counts), slot, num_lanes=num_lanes, size=total), wanted)


@pytest.mark.parametrize("size", [0, 1, 9, 16, 20])
@pytest.mark.parametrize("slot", [0, 2])
def test_lattice_cut_and_padded(slot, size):
    """The first slots of an order are those of the whole, whose ranks are among all of them."""
    whole = oracles.lattice([5, 3, 8], slot, 4)
    wanted = np.array((whole + [-1] * 20)[:size], np.int32)
    counts = np.array([5, 3, 8])
    same(lattice.order(jnp.array(counts), slot, 4, size=size), wanted)
    same(lattice.order(counts, slot, 4, size=size), wanted)


def test_lattice_under_vmap_and_scan():
    """Over slots, and over counts of one length."""
    counts = np.array([9, 5, 2])
    wanted = np.array([lattice.order(counts, slot, 8) for slot in range(8)])

    def order(slot):
        return lattice.order(jnp.array(counts), slot, 8, size=16)

    same(jax.vmap(order)(jnp.arange(8)), wanted)
    same(jax.lax.scan(lambda c, slot: (c, order(slot)), 0, jnp.arange(8))[1], wanted)
    rows = np.array([[9, 5, 2], [8, 8, 0], [0, 1, 15], [1, 2, 3]])
    wanted = np.array([lattice.order(row, 3, 8, size=16) for row in rows])
    same(jax.vmap(lambda row: lattice.order(row, 3, 8, size=16))(jnp.array(rows)), wanted)


def test_lattice_with_long_chunks_and_many_lanes():
    """Slot * length is beyond 32 bits."""
    counts = np.array([100_000, 31_000, 72])
    wanted = lattice.order(counts, 32_000, 32_768)
    compiled = jax.jit(lattice.order, static_argnames=("num_lanes", "size"))
    same(compiled(jnp.array(counts), 32_000, num_lanes=32_768, size=131_072), wanted)


# Permutations

SIZES = [1, 5, 64, 65, 65_537, 2**20, 2**31]


def places_of(size):
    few = np.random.default_rng(size % 1000).integers(0, size, 300)
    return np.concatenate([few, [0, size - 1, size // 2]]).astype(np.int32)


@pytest.mark.parametrize("function", [permutation.permute, permutation.invert])
@pytest.mark.parametrize("size", SIZES)
def test_permutations(size, function):
    place = places_of(size)
    key = permutation.make_key(size, "parity")
    wanted = function(place, size, key)
    assert wanted.dtype == np.int32
    same(function(jnp.array(place), size, jnp.array(key)), wanted)
    same(function(jnp.array(place), size, key), wanted)
    compiled = jax.jit(function, static_argnums=1)
    same(compiled(jnp.array(place), size, key), wanted)


@pytest.mark.parametrize("function", [permutation.permute, permutation.invert])
@pytest.mark.parametrize("size", [5, 100_000])
def test_permutations_under_vmap_and_scan(size, function):
    """Over places, over keys, and over both with a key folded inside."""
    place = places_of(size)
    root = permutation.make_key(1, "parity")
    table = keys.fold(root, np.arange(len(place)))
    wanted = function(place, size, root)
    same(jax.vmap(lambda i: function(i, size, root))(jnp.array(place)), wanted)
    own = function(place, size, table)
    same(jax.vmap(lambda i, k: function(i, size, k))(jnp.array(place), jnp.array(table)), own)
    same(function(jnp.array(place), size, jnp.array(table)), own)

    def body(carry, at):
        n, i = at
        return carry, function(i[None], size, keys.fold(jnp.array(root), n[None]))[0]

    numbers = jnp.arange(len(place))
    same(jax.lax.scan(body, 0, (numbers, jnp.array(place)))[1], own)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_permutations_keep_the_type(dtype):
    key = permutation.make_key(0, "types")
    place = np.arange(100, dtype=dtype)
    same(permutation.permute(jnp.array(place), 100, key), permutation.permute(place, 100, key))


@pytest.mark.parametrize("function", [permutation.permute, permutation.invert])
@pytest.mark.parametrize("size", [2**31 + 1, 2**31 + 5, 2**32 + 5])
def test_sizes_beyond_32_bits_are_refused_without_x64(size, function):
    """JAX without x64 would cut the index in silence."""
    key = permutation.make_key(0)
    with pytest.raises(ValueError, match=str(size)):
        function(jnp.arange(4), size, key)
    with pytest.raises(ValueError, match=str(size)):
        jax.jit(function, static_argnums=1)(jnp.arange(4), size, key)


def test_folded_keys():
    root = permutation.make_key(3, "parity")
    wanted = keys.fold(root, np.arange(50, dtype=np.int32))
    same(keys.fold(jnp.array(root), jnp.arange(50)), wanted)
    same(jax.jit(keys.fold)(jnp.array(root), jnp.arange(50)), wanted)
    same(keys.fold(root, np.arange(50)), wanted)  # int64 coordinates have the same bits


# Lanes


@pytest.mark.parametrize("assignment", lanes.ASSIGNMENTS)
@pytest.mark.parametrize(("num_lanes", "origin"), [(1, 0), (7, 13), (64, 0)])
def test_lanes(num_lanes, assignment, origin):
    chunks = np.concatenate([np.arange(200), 2**31 - 1 - np.arange(100)]).astype(np.int32)
    chunks = np.maximum(chunks, origin)
    settings = {"seed": 4, "assignment": assignment, "origin": origin}
    lane_of = functools.partial(lanes.lane_of_chunk, num_lanes=num_lanes, **settings)
    chunk_of = functools.partial(lanes.chunk_of_lane, num_lanes=num_lanes, **settings)
    lane = lane_of(chunks)
    assert lane.dtype == np.int32
    for function in (lane_of, jax.jit(lane_of), jax.vmap(lane_of)):
        same(function(jnp.array(chunks)), lane)
    same(jax.lax.scan(lambda c, g: (c, lane_of(g)), 0, jnp.array(chunks))[1], lane)
    step = (chunks - origin) // num_lanes
    assert np.array_equal(chunk_of(step, lane), chunks)
    for function in (chunk_of, jax.jit(chunk_of), jax.vmap(chunk_of)):
        same(function(jnp.array(step), jnp.array(lane)), chunks)


# A whole schedule in one program


def test_a_schedule_in_one_scan():
    """Quotas, their order and a shuffled place for each slot, compiled together."""
    weights, chunk_size, size = [0.6, 0.3, 0.1], 20, 1000
    shares = quota.shares(weights, chunk_size)
    key = permutation.make_key(0, "web")

    def chunk(carry, _):
        quotas, carry = quota.step(shares, carry)
        order = swrr.order(quotas, size=chunk_size)
        slots = lattice.order(quotas, 3, 8, size=chunk_size)
        return carry, (quotas, order, slots, permutation.permute(order, size, key))

    _, compiled = jax.lax.scan(chunk, jnp.asarray(quota.init_carry(shares)), None, length=10)
    carry = quota.init_carry(shares)
    for n in range(10):
        quotas, carry = quota.step(shares, carry)
        order = swrr.order(quotas)
        wanted = (
            quotas,
            order,
            lattice.order(quotas, 3, 8),
            permutation.permute(order, size, key),
        )
        for one, other in zip(compiled, wanted, strict=True):
            same(one[n], other)


# Processes of their own: the 64-bit flag, and the compiled backend

WITH_X64 = """
import jax, jax.numpy as jnp, numpy as np
from zephon_jax.kernels import lanes
from zephon_jax.kernels import lattice
from zephon_jax.kernels import permutation
from zephon_jax.kernels import quota
from zephon_jax.kernels import swrr

assert jax.config.jax_enable_x64

def same(one, other):
    assert one.dtype == other.dtype, (one.dtype, other.dtype)
    assert np.array_equal(np.asarray(one), np.asarray(other))

for size in (2**31 + 5, 2**32 + 5):
    key = permutation.make_key(1, "x64")
    place = np.concatenate([np.random.default_rng(0).integers(0, size, 5000), [0, size - 1]])
    for function in (permutation.permute, permutation.invert):
        wanted = function(place, size, key)
        assert wanted.dtype == np.int64
        same(function(jnp.array(place), size, key), wanted)
        same(jax.jit(function, static_argnums=1)(jnp.array(place), size, key), wanted)
    there = permutation.permute(jnp.array(place), size, key)
    same(permutation.invert(there, size, key), place)

chunks = np.concatenate([np.arange(300), 2**31 + np.arange(-9, 300), 2**40 + np.arange(300)])
for assignment in lanes.ASSIGNMENTS:
    for num_lanes in (7, 64):
        lane = lanes.lane_of_chunk(chunks, num_lanes, 4, assignment)
        same(lanes.lane_of_chunk(jnp.array(chunks), num_lanes, 4, assignment), lane)
        compiled = jax.jit(lambda g: lanes.lane_of_chunk(g, num_lanes, 4, assignment))
        same(compiled(jnp.array(chunks)), lane)
        step = chunks // num_lanes
        back = lanes.chunk_of_lane(jnp.array(step), jnp.array(lane), num_lanes, 4, assignment)
        same(back, chunks)

for weights, chunk_size in (([0.7, 0.2999, 0.0001], 64), ([1, 2**29 - 2, 1], 2**28)):
    shares = quota.shares(weights, chunk_size)
    carry, there = quota.init_carry(shares), jnp.asarray(quota.init_carry(shares))
    compiled = jax.jit(quota.step)
    for _ in range(50):
        quotas, carry = quota.step(shares, carry)
        got, there = compiled(shares, there)
        same(got, quotas)
        same(there, carry)
        assert quotas.dtype == np.int32

counts = np.array([9, 0, 5, 2])
for dtype in (np.int32, np.int64):
    same(swrr.order(jnp.array(counts, dtype)), swrr.order(counts))
    same(lattice.order(jnp.array(counts, dtype), 3, 8), lattice.order(counts, 3, 8))
print("same")
"""

BACKENDS = """
import numpy as np
import zephon_jax as zx
from zephon_jax.kernels import backend

def draw():
    shards = [6_442_450_944 // 6144] * 6144
    rows = []
    for block in (None, "auto", "global"):
        source = zx.StaticMixtureWorkSource(
            datasets=[zx.Dataset.from_counts(name, shards) for name in ("left", "right")],
            mixture={"left": 0.5, "right": 0.5},
            seed=1,
            shuffle_block_size=block,
        )
        places = np.array([0, 1, 6_000_000_001, len(source) - 1])
        rows.append(source.sample_ids_at(places))
        chunk, _ = source.next_chunk(source.seek(chunk_index=366_000))
        rows.append(chunk.order()[1][:500])
    return rows

plain = draw()
zx.use_backend("jax")
first = draw()  # NumPy still draws while the kernels are compiled
assert all(np.array_equal(one, other) for one, other in zip(plain, first, strict=True))
backend.finish_compiling()
assert backend.compiled(), "nothing was compiled"
compiled = draw()
for one, other in zip(plain, compiled, strict=True):
    assert one.dtype == other.dtype == np.int64
    assert np.array_equal(one, other)
    assert one.min() >= 0
print("same")
"""


def run_alone(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "same\n", done.stderr[-3000:]


def test_all_of_it_with_x64():
    """marin PR #1970, Megatron-LM #1056: 32-bit offsets wrapped on huge corpora."""
    run_alone(WITH_X64, JAX_ENABLE_X64="1")


def test_the_compiled_backend_draws_the_same_from_a_huge_corpus():
    """marin PR #1970, Megatron-LM #1056, #1672: 32-bit offsets wrapped on huge corpora."""
    run_alone(BACKENDS)


@pytest.fixture
def compiled_backend():
    zx.use_backend("jax")
    yield
    zx.use_backend("numpy")


MIXED = {
    "blocks and within": {"shuffle_block_size": "auto", "shuffle_within_shard": True},
    "mixed": {
        "shuffle_block_size": {"a": None, "b": "global", "c": 50, "d": "auto"},
        "shuffle_within_shard": {"a": True, "b": False, "c": True, "d": False},
    },
}


@pytest.mark.parametrize("name", MIXED)
def test_compiled_chunks_are_the_same(name, compiled_backend):
    """Compiled kernels for both permutations and for round robin, large rows and small ones."""
    shards = ([5000, 60, 1, 4000], [7000], [33] * 90, [900, 20, 0, 9000])
    source = mixture(shards, [4, 3, 2, 1.5], chunk_size=6000, stop_after_passes=9, **MIXED[name])

    def read():
        return [chunk.order() for chunk in chunks_of(source, limit=12)]

    read()
    backend.finish_compiling()
    reading.remembered.forget()
    compiled = read()
    assert {kernel[0] for kernel in backend.compiled()} >= {"rounds", "swrr"}
    zx.use_backend("numpy")
    reading.remembered.forget()
    for one, other in zip(compiled, read(), strict=True):
        same(one[0], other[0])
        same(one[1], other[1])


def test_compiled_kernels_of_one_size_do_not_serve_another(compiled_backend):
    """Sources side by side, of as many components and other chunk sizes, or the other way round."""
    draw = np.random.default_rng(5)
    for k, size in ((3, 40), (3, 200), (4, 40), (4, 200), (3, 40), (3, 90)):
        counts = draw.multinomial(size, draw.dirichlet([1] * k), 40)  # more than a kernel's block
        counts[1] //= 2  # a short chunk
        for _ in range(2):  # by NumPy while the kernel is compiled, then by the kernel
            for row, order in zip(counts, backend.swrr_orders(counts, size), strict=True):
                assert np.array_equal(order, swrr.order(row)), (k, size)
            backend.finish_compiling()
    assert len({kernel for kernel in backend.compiled() if kernel[0] == "swrr"}) >= 5


@pytest.mark.parametrize("k", [1, 2, 3, 7, 64, 256, 257, 300])
def test_packed_round_robin_is_the_same(k):
    counts = np.random.default_rng(k).multinomial(
        500, np.random.default_rng(k).dirichlet([0.5] * k), 9
    )
    counts[3:5] = 0
    counts[3, k // 2] = 500
    counts[4, -1] = 500
    assert swrr.can_pack(k, 500)
    packed = swrr.order_packed(jnp.asarray(counts.T, jnp.int32), 500)
    assert np.array_equal(np.asarray(packed).T, swrr.order(counts, 500))
    assert np.array_equal(swrr.order(counts, 500), swrr.order(counts.copy(order="F"), 500))


def test_use_backend_refuses_other_names():
    with pytest.raises(ValueError, match="torch"):
        zx.use_backend("torch")
