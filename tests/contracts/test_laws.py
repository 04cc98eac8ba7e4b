"""Laws that every source obeys. A new source is one more line in SOURCES."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import chunks_of, mixture, samples_of
from support.sources import ALL_SHUFFLES, SOURCES, CountSource, plain, ways_of_stepping

import zephon_jax as zx

LANES = (1, 2, 3, 7, 64)


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_the_laws_of_all_sources(source):
    zx.testing.check_source(source, num_chunks=200, lanes=LANES, other_process=False)


def test_chunks_say_the_block_of_their_lane(source):
    for num_lanes in (1, 3, 64):
        for lane in (0, num_lanes - 1):
            for chunk in chunks_of(source, lane, num_lanes):
                assert chunk.num_lanes == num_lanes
                assert chunk.slot == chunk.chunk_index % num_lanes
                component, ids = chunk.order()
                assert (component.dtype, ids.dtype) == (np.int32, np.int64)
                assert ids.shape == (len(chunk), 3)


def test_a_last_state_is_given_back_itself(source):
    state = source.seek(10**6)
    for _ in range(3):
        chunk, after = source.next_chunk(state)
        assert chunk is None
        assert after is state


def test_pickled_source_is_the_same(source):
    again = pickle.loads(pickle.dumps(source))
    expected = [plain(c) for c in chunks_of(source, limit=5)]
    assert [plain(c) for c in chunks_of(again, limit=5)] == expected
    chunk = chunks_of(source, limit=1)[0]
    assert plain(pickle.loads(pickle.dumps(chunk))) == plain(chunk)


def test_shell_is_the_same_lane(source):
    expected = [plain(c) for c in chunks_of(source, 1, 2)]
    shell = source.clone_for_lane(1, 2)
    got, saved = [], []
    while True:
        saved.append(shell.state_dict())
        chunk = shell.next_chunk()
        if chunk is None:
            break
        got.append(plain(chunk))
    assert got == expected
    assert dict(shell.component_ids()) == dict(source.component_ids())
    middle = len(saved) // 2
    fresh = source.clone_for_lane(1, 2)
    fresh.load_state_dict(saved[middle])
    assert plain(fresh.next_chunk()) == expected[middle]
    with pytest.raises(ValueError, match="already bound to lane 1 of 2"):
        shell.clone_for_lane(0, 2)


def test_lanes_are_checked(source):
    for lane, num_lanes in ((2, 2), (-1, 2), (0, 0)):
        for begin in (
            lambda a, b: source.seek(0, a, b),
            source.clone_for_lane,
            lambda a, b: zx.LaneIterDataset(source, a, b),
        ):
            with pytest.raises(ValueError, match="lane"):
                begin(lane, num_lanes)


def test_indexing_is_the_stream(source):
    stream = [sample for sample, _ in samples_of(chunks_of(source))]
    if not source.supports_indexing():
        for call in (lambda: len(source), lambda: source.sample_id_at(0), lambda: source[0]):
            with pytest.raises(NotImplementedError, match=type(source).__name__):
                call()
        with pytest.raises(TypeError, match=type(source).__name__):
            zx.MixtureMapDataset(source)
        return
    assert len(source) == len(stream)
    assert [tuple(i) for i in source.sample_ids_at(np.arange(len(stream))).tolist()] == stream
    rng = np.random.default_rng(0)
    some = rng.integers(-len(stream), len(stream), 200)
    assert [tuple(i) for i in source.sample_ids_at(some).tolist()] == [stream[i] for i in some]
    for i in (*range(min(len(stream), 40)), len(stream) - 1, -1, -len(stream)):
        assert source[i] == stream[i]
    for i in (len(stream), -len(stream) - 1):
        with pytest.raises(IndexError):
            source[i]
    with pytest.raises(TypeError):
        source["0"]


def test_every_chunk_reads_its_own_samples(source):
    for mode in ("smooth_weighted_round_robin", "weighted_random", "lattice"):
        for shuffle in (False, True):
            config = zx.MixtureReadConfig(mode=mode, shuffle_within_component=shuffle)
            for chunk in chunks_of(source, 1, 3, limit=4):
                component, ids = chunk.order(config)
                for d, (name, stored) in enumerate(chunk.components.items()):
                    read = ids[component == d]
                    assert name == chunk.names[d]
                    if shuffle:
                        assert sorted(read.tolist()) == sorted(stored.tolist())
                    else:
                        assert np.array_equal(read, stored)


EXACTLY_ONCE = [
    pytest.param(block, within, shards, id=f"{block}-{within}-{shards}")
    for block in (None, 1000, 7, "auto", "global")
    for within in (False, True)
    for shards in (False, True)
    if not (block == "global" and within)
]


@pytest.mark.parametrize(("block", "within", "shards"), EXACTLY_ONCE)
@pytest.mark.parametrize("chunk_size", [1, 5, 64, 500])
def test_every_sample_exactly_once_a_pass(block, within, shards, chunk_size):
    sizes = [[9, 0, 17, 4], [3], [30, 30]]
    source = mixture(
        sizes, [5, 2, 3], chunk_size=chunk_size, stop_after_passes=2, shuffle_block_size=block,
        shuffle_within_shard=within, shuffle_shards=shards,
    )  # fmt: skip
    chunks = chunks_of(source)
    for d, (name, counts) in enumerate(zip("abc", sizes, strict=True)):
        ids = np.concatenate([chunk.components[name] for chunk in chunks])
        whole = sorted((d, s, i) for s, count in enumerate(counts) for i in range(count))
        passes, rest = divmod(len(ids), len(whole))
        assert passes >= 2
        for n in range(passes):
            part = ids[n * len(whole) : (n + 1) * len(whole)]
            assert sorted(map(tuple, part.tolist())) == whole
        assert len(set(map(tuple, ids[passes * len(whole) :].tolist()))) == rest


def test_datasets_do_not_touch_each_other():
    """Adding, dropping or reordering datasets leaves every other dataset's own order alone."""
    settings = {"chunk_size": 60, "seed": 4, "exhausted_policy": "repeat", **ALL_SHUFFLES}

    def order_of(name, names):
        source = mixture([[10, 20, 30]] * len(names), names=names, **settings)
        chunks = chunks_of(source, limit=6)
        return np.concatenate([c.components[name][:, 1:] for c in chunks])[:100]

    alone = order_of("web", ["web"])
    assert np.array_equal(order_of("web", ["toy", "web"])[:100], alone)
    assert np.array_equal(order_of("web", ["web", "code", "toy"])[:100], alone)
    assert not np.array_equal(order_of("code", ["code"]), alone)


def test_relane_reads_every_chunk_exactly_once():
    source = SOURCES["passes"]()
    one = [plain(chunk) for chunk in chunks_of(source)]
    for before, after, steps in ((2, 3, 2), (4, 1, 1), (1, 8, 3), (3, 3, 0), (5, 2, 100)):
        states, found = [], []
        for lane in range(before):
            state = source.init(lane, before)
            for _ in range(steps):
                chunk, state = source.next_chunk(state)
                found += [] if chunk is None else [plain(chunk)]
            states.append(zx.decode_state(source, zx.encode_state(state)))
        cut = zx.relane(states[::-1], after)
        again = zx.relane(zx.relane(cut, 6), after)  # cutting is free until somebody reads
        for pieces in (cut, again):
            rest = [plain(c) for state in pieces for c in chunks_of(source, state=state)]
            assert sorted(found + rest, key=lambda c: c[0]) == one
            assert [int(state.lane) for state in pieces] == list(range(after))


def test_seek_with_an_origin_equals_stepping_on_from_the_cut():
    source = SOURCES["passes"]()
    two = [source.seek(6, lane, 2) for lane in range(2)]
    for lane, state in enumerate(zx.relane(two, 3)):
        whole = [plain(c) for c in chunks_of(source, state=state)]
        for g in (6, 7, 11, 12, 20):
            expected = [c for c in whole if c[0] >= g]
            found = chunks_of(source, state=source.seek(g, lane, 3, origin=6))
            assert [plain(c) for c in found] == expected


def test_relane_refuses_what_is_not_one_run():
    source = SOURCES["passes"]()
    states = [source.init(lane, 3) for lane in range(3)]
    ahead = source.next_chunk(states[1])[1]
    ahead = source.next_chunk(ahead)[1]
    other = mixture([10], chunk_size=5).init(1, 3)
    for wrong, text in (
        ([], "none"),
        (states[:2], r"lanes \[0, 1\]"),
        ([*states, states[0]], r"lanes \[0, 0, 1, 2\]"),
        ([states[0], ahead, states[2]], "same number of chunks"),
        ([states[0], other, states[2]], "different runs"),
        ([states[0], source.init(1, 4), states[2]], "3, 4"),
    ):
        with pytest.raises(ValueError, match=text):
            zx.relane(wrong, 2)
    with pytest.raises(ValueError, match="num_lanes"):
        zx.relane(states, 0)
    with pytest.raises(TypeError, match="CountState"):
        zx.relane([CountSource().init()], 2)


def test_undeclared_component_is_named():
    class Careless(CountSource):
        def next_chunk(self, state):
            return zx.WorkChunk({"stray": [(0, 0, 1)]}), state

    for step in ways_of_stepping(Careless()):
        with pytest.raises(ValueError, match="stray"):
            step()


def test_lane_resonance():
    """A component that comes every P chunks: modulo starves lanes, permute reaches them all."""
    for period, num_lanes in ((4, 8), (6, 8), (5, 8)):
        # One sample a chunk and one in `period` chunks of the second dataset.
        reached = {}
        for assignment in ("modulo", "permute"):
            source = mixture(
                [10**6] * 2, [period - 1, 1], chunk_size=1, exhausted_policy="repeat",
                lane_assignment=assignment,
            )  # fmt: skip
            reached[assignment] = sum(
                any(c.counts[1] for c in chunks_of(source, lane, num_lanes, limit=60))
                for lane in range(num_lanes)
            )
        assert reached["modulo"] == num_lanes // np.gcd(period, num_lanes)
        assert reached["permute"] == num_lanes


FAR = {
    "repeat": {"exhausted_policy": "repeat"},
    "passes": {"stop_after_passes": 10**7},
    "stop": {"exhausted_policy": "stop"},
    "capped": {"max_repeats": 10**7},
    "redistribute": {"exhausted_policy": "redistribute"},
    "fixed": {"exhausted_policy": "repeat", "allocation": "fixed"},
}


@pytest.mark.parametrize("policy", FAR)
@pytest.mark.parametrize("weights", [(5, 3, 1.7), (0.55, 0.4497, 0.0003)], ids=["plain", "rare"])
def test_seek_far_equals_stepping_the_quotas(policy, weights):
    """Chunks 1,000 and 1,000,000, alone and in 512 lanes, against plain stepping of the rule."""
    long = policy in ("stop", "redistribute")
    sizes = [10**9] * 3 if long else [1000, 77, 5000]
    settings = {"chunk_size": 64, **FAR[policy]}
    source = mixture(sizes, weights, **settings)
    stepped = stepped_draws(weights, 64, 1_000_000, fixed=policy == "fixed")
    for g in (0, 1, 1000, 1_000_000):
        state = source.seek(g)
        assert state.drawn[:, 0].tolist() == stepped[g]
        chunk, _ = source.next_chunk(state)
        assert chunk.chunk_index == g
        lanes = [source.seek(g, lane, 512) for lane in (0, 77, 511)]
        for lane, state in zip((0, 77, 511), lanes, strict=True):
            mine, _ = source.next_chunk(state)
            assert g <= mine.chunk_index < g + 1024
            assert zx.lanes.lane_of_chunk(mine.chunk_index, 512, 42) == lane
            assert plain(mine)[:4] == plain(source.next_chunk(source.seek(mine.chunk_index))[0])[:4]


def stepped_draws(weights, chunk_size, num_chunks, *, fixed):
    """Draws at some chunks by the rule itself, in plain integers."""
    from fractions import Fraction

    total = sum(Fraction(str(w)) for w in weights)
    exact = [Fraction(str(w)) / total for w in weights]
    if fixed:
        rest = [share * (chunk_size - 3) for share in exact]
        quotas = [1 + int(r) for r in rest]
        order = sorted(range(3), key=lambda d: (int(rest[d]) - rest[d], d))
        for d in order[: chunk_size - sum(quotas)]:
            quotas[d] += 1
        return {g: [g * q for q in quotas] for g in (0, 1, 1000, num_chunks)}
    unit = int(np.lcm.reduce([share.denominator for share in exact]))
    units = [int(share * unit) for share in exact]
    carry, drawn, kept = [0] * 3, [0] * 3, {}
    for g in range(num_chunks + 1):
        if g in (0, 1, 1000, num_chunks):
            kept[g] = list(drawn)
        carry = [a + w * chunk_size for a, w in zip(carry, units, strict=True)]
        quotas = [a // unit if a >= 0 else -(-a // unit) for a in carry]
        carry = [a - q * unit for a, q in zip(carry, quotas, strict=True)]
        missing = chunk_size - sum(quotas)
        while missing > 0:
            d = carry.index(max(carry))
            quotas[d], carry[d], missing = quotas[d] + 1, carry[d] - unit, missing - 1
        while missing < 0:
            d = min((a, d) for d, (a, q) in enumerate(zip(carry, quotas, strict=True)) if q > 0)[1]
            quotas[d], carry[d], missing = quotas[d] - 1, carry[d] + unit, missing + 1
        drawn = [n + q for n, q in zip(drawn, quotas, strict=True)]
    return kept


def test_state_through_jit_and_device():
    """A state is a pytree of 32-bit words: jit and device_put without x64 leave it as it was."""
    jax = pytest.importorskip("jax")
    for name in ("passes", "many"):
        source = SOURCES[name]()
        state = source.seek(3, 1, 2)._replace()
        for moved in (jax.jit(lambda s: s)(state), jax.device_put(state)):
            assert zx.encode_state(moved) == zx.encode_state(state)
            assert plain(source.next_chunk(moved)[0]) == plain(source.next_chunk(state)[0])
    far = mixture([2**40] * 2, chunk_size=2**20, exhausted_policy="repeat").seek(2**33 + 5)
    assert zx.encode_state(jax.jit(lambda s: s)(far)) == zx.encode_state(far)


def test_same_chunk_in_another_process():
    code = (
        "import sys, pickle, base64\n"
        "source, state = pickle.loads(base64.b64decode(sys.argv[1]))\n"
        "print([tuple(s) for s, _ in source.next_chunk(state)[0]])"
    )
    import base64

    source = SOURCES["passes"]()
    state = source.seek(5, 1, 3)
    packed = base64.b64encode(pickle.dumps((source, state))).decode()
    ran = subprocess.run(
        [sys.executable, "-c", code, packed], capture_output=True, text=True, timeout=60, check=True
    )
    expected = [tuple(s) for s, _ in source.next_chunk(state)[0]]
    assert ran.stdout.strip() == str(expected)
