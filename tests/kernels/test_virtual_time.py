"""Quotas by virtual time: the order of weighted fair queueing, found at any draw."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles
from support.helpers import chunks_of, mixture

import zephon_jax as zx
from zephon_jax.kernels import virtual_time
from zephon_jax.kernels.quota import exact_weights
from zephon_jax.kernels.virtual_time import VirtualTime
from zephon_jax.mixture.dataset_order import make_dataset_order, shard_order
from zephon_jax.mixture.token_costs import RunningCost, UnitCost, shared


def counts_by_draw(order, k):
    """Draws of each component among the first n, for every n: (n + 1, k)."""
    hot = np.zeros((len(order) + 1, k), dtype=np.int64)
    hot[np.arange(1, len(order) + 1), order] = 1
    return np.cumsum(hot, axis=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
def test_equals_the_queue_draw_by_draw(weights):
    rows = counts_by_draw(oracles.fair_queue(weights, 60), len(weights))
    got = [virtual_time.draws_after(weights, n).tolist() for n in range(61)]
    assert got == rows.tolist()


@pytest.mark.filterwarnings("ignore:mixture weights are held")
@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize("k", [2, 5, 17])
def test_equals_the_queue_for_drawn_weights(kind, k):
    weights = oracles.draw_weights(kind, k, seed=k, zeros=True)
    shares = oracles.units(oracles.fractions(weights))[0]
    rows = counts_by_draw(oracles.fair_queue(shares, 200), k)
    for n in (0, 1, 2, 3, 50, 199, 200):
        assert virtual_time.draws_after(weights, n).tolist() == rows[n].tolist()


def worst_prefix(weights, num_draws):
    """How far any prefix of the draws is from its shares, in draws."""
    shares = [float(share) for share in oracles.fractions(weights)]
    allocation = VirtualTime(
        exact_weights(weights), 1, [UnitCost()] * len(weights), np.zeros(len(weights), np.int64)
    )
    counts = np.stack([allocation.draws_after(n) for n in range(num_draws + 1)])
    return np.abs(counts - np.arange(num_draws + 1)[:, None] * np.asarray(shares)).max()


@pytest.mark.parametrize(
    ("weights", "limit"),
    [
        ([1] * 100 + [100], 1.1),
        ([1 / (d + 1) for d in range(32)], 2.8),
        ([0.9, 0.1], 1.0),
        ([1, 1, 1], 1.0),
    ],
    ids=["hundred and one", "harmonic", "two", "thirds"],
)
def test_every_prefix_is_near_its_shares(weights, limit):
    assert worst_prefix(weights, 1500) <= limit


@pytest.mark.filterwarnings("ignore:mixture weights are held")
@pytest.mark.parametrize("kind", oracles.KINDS)
def test_many_chunks_at_once_equal_one_by_one(kind):
    """Floats look for the moments of many chunks; what they find is what integers find."""
    rng = np.random.default_rng(1)
    for k in (1, 2, 7, 23):
        weights = exact_weights(oracles.draw_weights(kind, k, seed=k, zeros=True))
        for size in (1, 3, 64, 16384):
            base = np.zeros(k, dtype=np.int64)
            vt = VirtualTime(weights, size, [UnitCost()] * k, base)
            start = int(rng.choice([0, 1000, 10**9, 2**40]))
            chunks = np.concatenate([start + np.arange(150), rng.integers(0, 2**40, 20)])
            expected = [vt.step(n, vt.init_carry())[0].tolist() for n in chunks.tolist()]
            assert vt.quotas_of(chunks).tolist() == expected
            # A few are remembered, and answer when they are asked for one by one.
            vt = VirtualTime(weights, size, [UnitCost()] * k, base)
            assert vt.quotas_of(chunks[-30:]).tolist() == expected[-30:]
            again = [vt.step(n, vt.init_carry())[0].tolist() for n in chunks[-30:].tolist()]
            assert again == expected[-30:]


def test_far_draws_go_on_from_near_ones():
    """At 2^60 draws the counts still differ by one draw from one number to the next."""
    weights = [5, 3, 1.7, 1e-6]
    for start in (10**6, 2**40 + 3, 2**60):
        rows = np.stack([virtual_time.draws_after(weights, start + n) for n in range(40)])
        steps = np.diff(rows, axis=0)
        assert (rows.sum(axis=1) == start + np.arange(40)).all()
        assert ((steps == 0) | (steps == 1)).all()
        assert (steps.sum(axis=1) == 1).all()
        shares = np.asarray([float(s) for s in oracles.effective(weights)])
        assert np.abs(rows[0] / start - shares).max() < 2 / start + 1e-12


def test_the_way_there_does_not_matter():
    """Answers are remembered and the search starts near the last one; neither may show."""
    weights = exact_weights([7, 5, 3, 2, 1])
    base = np.zeros(5, np.int64)
    numbers = np.random.default_rng(0).integers(0, 10**9, 60).tolist()
    one = VirtualTime(weights, 1, [UnitCost()] * 5, base)
    there = [one.draws_after(n).tolist() for n in numbers]
    for n, counts in zip(numbers, there, strict=True):
        fresh = VirtualTime(weights, 1, [UnitCost()] * 5, base)
        assert fresh.draws_after(n).tolist() == counts


# Costs that differ


def cursor_of(counts, shuffle_block_size=None, shards=True, reshuffle=True):
    return make_dataset_order(
        "a",
        np.asarray(counts, np.int64),
        seed=3,
        epoch=0,
        shuffle_shards=shards,
        shuffle_within_shard=False,
        shuffle_block_size=shuffle_block_size,
        reshuffle_on_repeat=reshuffle,
    )


def listed_costs(cursor, shard_costs, num_passes):
    """Cost of each draw of some passes, one by one."""
    found = []
    for one in range(num_passes):
        if cursor.global_:
            samples, total = cursor.total, int(sum(shard_costs))
            found += [total * (q + 1) // samples - total * q // samples for q in range(samples)]
            continue
        places, _ = shard_order(cursor, one if cursor.reshuffle and cursor.shards else 0)
        ids = cursor.shard_ids[places].tolist()
        lengths = cursor.counts[places].tolist()
        found += oracles.piece_costs(lengths, [shard_costs[s] for s in ids], cursor.block)
    return found


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any),
    st.sampled_from([None, 2, 5, 8, "auto", "global"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_running_cost_equals_adding_up(counts, block, shards, reshuffle, data):
    cursor = cursor_of(counts, block, shards, reshuffle)
    shard_costs = [data.draw(st.integers(n, 50 * n), label="cost") for n in counts]
    running = RunningCost(cursor, np.asarray(shard_costs, np.int64))
    costs = listed_costs(cursor, shard_costs, 3)
    before = [0, *np.cumsum(costs).tolist()]
    assert before[-1] == 3 * sum(shard_costs)
    for j, cost in enumerate(costs):
        assert running.draw(j) == (j, before[j], cost)
        for amount in (before[j], before[j] + cost - 1):
            assert running.last_before(amount) == (j, before[j], cost)
    start = data.draw(st.integers(0, len(costs) - 1), label="start")
    some = np.arange(start, len(costs))
    assert (running.spent(some) + before[start]).tolist() == before[start:-1]
    stop = data.draw(st.integers(start + 1, len(costs)), label="stop")
    pieces = running.pieces(start, stop)
    assert pieces.first[0] <= start < pieces.first[1]
    assert pieces.first[-2] < stop <= pieces.first[-1]
    assert len(pieces.first) - 1 <= running.num_pieces(start, stop)
    known = pieces.first <= len(costs)
    assert (pieces.base + pieces.before[known]).tolist() == [
        before[draw] for draw in pieces.first[known].tolist()
    ]
    # Looked at so thinly, a table of pieces is not worth it.
    assert running.spent(some[[0, -1]]).tolist() == [0, before[-2] - before[start]]


def test_pieces_are_made_where_they_are_asked_for():
    """A pass of 10^9 samples has 6 * 10^7 blocks of 16; a few draws lie in a few of them."""
    cursor = cursor_of([10**7] * 100, 16)
    running = RunningCost(cursor, np.arange(100, 200) * 10**7)
    start = 10**9 - 40  # over the end of the pass
    pieces = running.pieces(start, start + 100)
    assert pieces.first.tolist() == [10**9 - 48 + 16 * n for n in range(8)]
    few = np.asarray([start, start + 60])
    assert running.spent(few)[1] == running.draw(start + 60).before - running.draw(start).before


@given(
    st.integers(0, (1 << 62) - 1),
    st.integers(1, 1 << 41).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
)
def test_costs_are_shared_within_64_bits(cost, of):
    arrays = (np.asarray([number]) for number in (cost, *of))
    assert shared(*arrays).tolist() == [cost * of[1] // of[0]]


@pytest.mark.parametrize("block", [None, 7, "auto", "global"])
def test_queue_with_costs_draw_by_draw(block):
    """Three components whose shards' costs lie a hundred times apart, over several passes."""
    rng = np.random.default_rng(5)
    counts = [[5, 9, 2], [4], [3, 3, 1, 6]]
    cursors = [cursor_of(c, block) for c in counts]
    shard_costs = [[int(n) * int(rng.integers(1, 400)) for n in c] for c in counts]
    running = [
        RunningCost(cursor, np.asarray(costs, np.int64))
        for cursor, costs in zip(cursors, shard_costs, strict=True)
    ]
    listed = [
        listed_costs(cursor, costs, 60) for cursor, costs in zip(cursors, shard_costs, strict=True)
    ]
    order = oracles.fair_queue([3, 2, 1], 150, cost=lambda d, j: listed[d][j])
    rows = counts_by_draw(order, 3)
    allocation = VirtualTime(exact_weights([3, 2, 1]), 1, running, np.zeros(3, np.int64))
    for n in [*range(151), *range(150, -1, -7)]:
        assert allocation.draws_after(n).tolist() == rows[n].tolist()
    assert allocation.order(0, 150).tolist() == order
    assert allocation.order(37, 50).tolist() == order[37:87]


def test_costs_go_on_where_an_era_begins():
    """After a base of earlier draws the queue starts anew, with the costs of the places."""
    costs = [[30, 400, 7, 90], [11, 5]]
    cursors = [cursor_of([4] * 4), cursor_of([3] * 2)]
    running = [RunningCost(c, np.asarray(w, np.int64)) for c, w in zip(cursors, costs, strict=True)]
    listed = [listed_costs(c, w, 40) for c, w in zip(cursors, costs, strict=True)]
    base = [7, 4]
    order = oracles.fair_queue([1, 2], 80, cost=lambda d, j: listed[d][base[d] + j])
    rows = counts_by_draw(order, 2)
    allocation = VirtualTime(exact_weights([1, 2]), 1, running, np.asarray(base))
    assert [allocation.draws_after(n).tolist() for n in range(81)] == rows.tolist()


# In a source


def test_chunks_hold_the_first_draws_of_the_queue():
    weights, size = [5, 3, 1.7], 16
    source = mixture(
        [100, 40, 7], weights, chunk_size=size, allocation="virtual_time",
        exhausted_policy="repeat",
    )  # fmt: skip
    shares = oracles.units(oracles.fractions(weights))[0]
    rows = counts_by_draw(oracles.fair_queue(shares, 30 * size), 3)
    got = [chunk.counts.tolist() for chunk in chunks_of(source, limit=30)]
    assert got == np.diff(rows[::size], axis=0).tolist()
    assert source.init().carry is None


@pytest.mark.parametrize("k", [3, 90])
def test_seek_far_is_stepping(k):
    source = mixture(
        [10**6] * k, list(range(1, k + 1)), chunk_size=1000, allocation="virtual_time",
        exhausted_policy="repeat",
    )  # fmt: skip
    for g in (0, 1000, 10**6, 10**12):
        for lane in (0, 5):
            state = source.seek(g, lane, 8)
            chunk, after = source.next_chunk(state)
            assert chunk.chunk_index >= g
            other, _ = source.next_chunk(zx.decode_state(source, zx.encode_state(after)))
            assert other.chunk_index == source.next_chunk(after)[0].chunk_index
            again = source.next_chunk(source.seek(other.chunk_index, lane, 8))[0]
            assert again.order()[1].tolist() == other.order()[1].tolist()


def test_a_state_with_other_counts_is_refused():
    source = mixture(
        [50, 60], chunk_size=10, allocation="virtual_time", exhausted_policy="redistribute"
    )
    state = source.seek(3)
    drawn = state.drawn.copy()
    drawn[0, 0] += 1
    drawn[1, 0] -= 1
    with pytest.raises(ValueError, match="contradicts itself"):
        source.next_chunk(source.init()._replace(drawn=drawn, chunk=state.chunk))
    other = mixture([50, 60], chunk_size=10, exhausted_policy="redistribute")
    with pytest.raises(ValueError, match="other allocation"):
        other.next_chunk(state)


def corpus(seed):
    """A drawn corpus: weights, and cursors and shard costs of its datasets."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 7))
    kind = oracles.KINDS[seed % len(oracles.KINDS)]
    weights = oracles.units(oracles.fractions(oracles.draw_weights(kind, k, seed, zeros=True)))[0]
    cursors, costs = [], []
    for _ in range(k):
        counts = rng.integers(0, 9, int(rng.integers(1, 6)))
        counts[0] += 1
        block = [None, 3, 7, "auto", "global"][int(rng.integers(5))]
        cursors.append(cursor_of(counts, block, bool(rng.integers(2)), bool(rng.integers(2))))
        lengths = np.exp(rng.normal(3, 1.5, counts.size))
        costs.append([max(int(n), int(n * one)) for n, one in zip(counts, lengths, strict=True)])
    return weights, cursors, costs


def check_corpus(seed, num_draws):
    weights, cursors, costs = corpus(seed)
    passes = [num_draws // cursor.total + 2 for cursor in cursors]
    listed = [listed_costs(*pair) for pair in zip(cursors, costs, passes, strict=True)]
    order = oracles.fair_queue(weights, num_draws, cost=lambda d, j: listed[d][j])
    running = [RunningCost(c, np.asarray(w, np.int64)) for c, w in zip(cursors, costs, strict=True)]
    allocation = VirtualTime(
        exact_weights(weights), 1, running, np.zeros(len(weights), dtype=np.int64)
    )
    rows = counts_by_draw(order, len(weights))
    for n in np.random.default_rng(seed).integers(0, num_draws + 1, 12).tolist():
        assert allocation.draws_after(n).tolist() == rows[n].tolist(), seed
    assert allocation.order(0, num_draws).tolist() == order, seed
    allocation = VirtualTime(
        exact_weights(weights), 1, running, np.zeros(len(weights), dtype=np.int64)
    )
    assert np.array_equal(allocation.drawn_before(np.arange(num_draws + 1)), rows), seed
    some = np.random.default_rng(seed).integers(0, num_draws + 1, 40)
    assert np.array_equal(allocation.drawn_before(some), rows[some]), seed
    check_bound(weights, listed, order)


def check_bound(weights, listed, order):
    """Each component's cost within its largest draw and its share of all largest ones."""
    k, total = len(weights), sum(weights)
    most = [max(costs) if weight else 0 for costs, weight in zip(listed, weights, strict=True)]
    spent, had = [0] * k, [0] * k
    for d in order:
        spent[d] += listed[d][had[d]]
        had[d] += 1
        whole = sum(spent)
        for c, weight in enumerate(weights):
            if weight:
                off = abs(spent[c] * total - weight * whole)
                assert off <= most[c] * total + weight * sum(most)


@pytest.mark.parametrize("seed", range(80))
def test_drawn_corpora(seed):
    check_corpus(seed, 60)


def large_mixture(settings):
    """Datasets of drawn shards, some with dues at the same moment, some beyond what floats hold."""
    rng = np.random.default_rng(settings["seed"])
    running = []
    for size in settings["sizes"]:
        cursor = cursor_of(rng.integers(1, size, 40), settings["block"])
        each = 7 if settings["even"] else rng.integers(1, settings["tokens"], 40)
        running.append(RunningCost(cursor, cursor.counts * each))
    base = np.asarray(settings.get("base", [0] * len(running)), dtype=np.int64)
    weights = [Fraction(weight) for weight in settings["weights"]]
    return VirtualTime(weights, settings["chunk_size"], running, base)


LARGE = {
    "plain": {},
    "one cost": {"even": True, "weights": [1, 1, 1, 1]},
    "integer ratios": {"even": True, "weights": [4, 2, 1, 1]},
    "blocks": {"block": "auto"},
    "global": {"block": "global"},
    "many passes": {"sizes": [3, 4, 900, 10**6]},
    "later era": {"base": [17, 10**5, 3, 10**9]},
    "dear": {"tokens": 1 << 36},
    "beyond 64 bits": {"tokens": 1 << 52, "sizes": [9, 9, 9, 9]},
    "one draw a chunk": {"chunk_size": 1},
}


@pytest.mark.parametrize("name", LARGE)
def test_many_chunks_of_token_mixtures_equal_one_by_one(name):
    settings = {
        "seed": 5, "block": None, "even": False, "tokens": 10**6, "weights": [5, 3, 0.01, 7],
        "sizes": [10**4, 300, 10**3, 10**6], "chunk_size": 1000, **LARGE[name],
    }  # fmt: skip
    rng = np.random.default_rng(0)
    for chunks in (np.arange(300), 10**9 + np.arange(40), rng.integers(0, 10**6, 30)):
        found = large_mixture(settings).drawn_before(chunks)
        slow = large_mixture(settings)
        expected = [slow.draws_after(n * settings["chunk_size"]) for n in chunks.tolist()]
        assert found.tolist() == np.asarray(expected).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 4100, 500))
def test_thousands_of_drawn_corpora(start):
    for seed in range(start, start + 500):
        check_corpus(seed, 150)


def test_many_departures_and_far_ends_take_few_looks(monkeypatch):
    """Ends are looked for where draws fall due, not by halving the whole way there."""
    looks = []
    find = VirtualTime._given
    monkeypatch.setattr(VirtualTime, "_given", lambda self, n: looks.append(n) or find(self, n))
    source = mixture(
        [10**12, 10**9, 700], allocation="virtual_time", chunk_size=64, stop_after_passes=None,
        exhausted_policy={"a": "redistribute", "b": "repeat", "c": "repeat"},
    )  # fmt: skip
    spans = source.chunk_spans()
    assert spans[1].first_chunk == -(-3 * 10**12 // 64)
    assert len(looks) <= 12
    looks.clear()
    capped = source.replace(exhausted_policy=None, max_repeats=10**6)
    assert capped.seek(2**55).chunk_index == 3 * 700 * (10**6 + 1) // 64
    assert len(looks) <= 12


def test_each_departure_takes_one_look(monkeypatch):
    """The chunk in which somebody leaves is computed, and only its counts are looked for."""
    looks = []
    find = VirtualTime._given
    monkeypatch.setattr(VirtualTime, "_given", lambda self, n: looks.append(n) or find(self, n))
    sizes = [400 + 37 * d for d in range(50)]
    source = mixture(
        sizes, [1 + d % 7 for d in range(50)], names=[f"d{d}" for d in range(50)], chunk_size=32,
        allocation="virtual_time", exhausted_policy="redistribute",
    )  # fmt: skip
    assert len(source) == sum(sizes)
    num_eras = len(source.chunk_spans())
    assert num_eras > 40
    assert len(looks) <= num_eras + 5


@pytest.mark.parametrize("chunk_size", [1, 7, 40])
@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_chunk_of_a_draw_is_known_exactly(seed, chunk_size):
    """From the order's rule, and without a look at the chunks around it."""
    if seed is None:
        exact, costs = exact_weights([2, 1, 1, 2, 1]), [UnitCost()] * 5
    else:
        weights, cursors, prices = corpus(seed)
        exact = exact_weights(weights)
        pairs = zip(cursors, prices, strict=True)
        costs = [RunningCost(c, np.asarray(p, np.int64)) for c, p in pairs]
    k, base = len(exact), np.zeros(len(exact), np.int64)
    fair = VirtualTime(exact, chunk_size, costs, base)
    given = np.stack([fair.draws_after(n * chunk_size) for n in range(60)])
    rng = np.random.default_rng(chunk_size)
    for _ in range(20):
        wanted = 1 + (rng.random(k) * (given[-1] - 1)).astype(np.int64)
        chosen = (given[-1] > 0) & (rng.random(k) < 0.7)
        chosen[given[-1].argmax()] = True
        there = (given >= wanted) | ~chosen
        one = ((given >= wanted) & chosen).any(axis=1)
        assert fair.chunks_until(wanted, chosen, last=False) == one.argmax()
        assert fair.chunks_until(wanted, chosen, last=True) == there.all(axis=1).argmax()


def test_few_draws_on_equals_looking_for_the_moment():
    """Many components go on draw by draw from the last number asked for."""
    k = 300
    weights = exact_weights([d % 17 + 1 for d in range(k)])
    base = np.zeros(k, np.int64)
    one = VirtualTime(weights, 1, [UnitCost()] * k, base)
    for n in (5000, 5001, 5200, 5199, 5498, 9000, 9300, 9300, 9299):
        fresh = VirtualTime(weights, 1, [UnitCost()] * k, base)
        assert one.draws_after(n).tolist() == fresh.draws_after(n).tolist()
