"""Mixtures in tokens: priming, restoring, exhaustion, how near the tokens are to the weights."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from support import oracles
from support.encoded import wrapped
from support.helpers import chunks_of, mixture, state_after

import zephon_jax as zx
from zephon_jax.data.token_estimation import TOKEN_UNIT
from zephon_jax.sources import codec

COUNTS = {"a": [400, 300, 500], "b": [90, 60], "c": [1000]}
TOTALS = {"a": [40_000, 9_000, 300_000], "b": [9_000, 60_000], "c": [4_000]}
NAMES = list(COUNTS)
TOKENS = zx.TokenEstimation.from_shard_totals(TOTALS)


def token_mixture(weights=(1, 1, 1), tokens=TOKENS, **settings):
    datasets = [zx.Dataset.from_counts(name, counts) for name, counts in COUNTS.items()]
    mix = dict(zip(NAMES, weights, strict=True))
    settings = {"chunk_size": 50, "exhausted_policy": "repeat", **settings}
    return zx.StaticMixtureWorkSource(datasets, mix, token_estimation=tokens, **settings)


def listed_costs(source, num_passes=30):
    """Cost of each draw of each dataset, from the shards that a run alone goes through."""
    found = []
    for name, counts in COUNTS.items():
        alone = source.replace(
            datasets=[zx.Dataset.from_counts(name, counts)],
            mixture={name: 1},
            token_estimation=None,
            shuffle_block_size=None,
            chunk_size=1000,
        )
        costs = []
        ids = alone.sample_ids_at(np.arange(num_passes * sum(counts)))[:, 1]
        for one in range(num_passes):
            shards = ids[one * sum(counts) : (one + 1) * sum(counts)]
            order = shards[np.r_[0, np.flatnonzero(np.diff(shards)) + 1]]
            totals = [TOTALS[name][s] * TOKEN_UNIT for s in order]
            block = {None: 0, "global": sum(counts), "auto": min(8 * max(counts), sum(counts))}
            (size,) = set(source.settings.shuffle_block_size)
            lengths = [counts[s] for s in order]
            costs += oracles.piece_costs(lengths, totals, block.get(size, size))
        found.append(costs)
    return found


@pytest.mark.parametrize("block", [None, 64, "global"])
def test_draws_follow_the_queue_of_token_costs(block):
    source = token_mixture((3, 2, 1), shuffle_block_size=block)
    costs = listed_costs(source)
    order = oracles.fair_queue([3, 2, 1], 40 * 50, cost=lambda d, j: costs[d][j])
    rows = np.asarray([np.bincount(order[g * 50 : g * 50 + 50], minlength=3) for g in range(40)])
    assert [c.counts.tolist() for c in chunks_of(source, limit=40)] == rows.tolist()
    assert chunks_of(source, limit=1)[0].target_mixture == {"a": 0.5, "b": 1 / 3, "c": 1 / 6}


def test_every_prefix_is_within_the_bound():
    """One draw's cost plus each share of the components' costs, at every number of draws."""
    source = token_mixture((5, 3, 2), chunk_size=1)
    costs = listed_costs(source)
    spent, drawn = [0, 0, 0], [0, 0, 0]
    most = [max(c) for c in costs]
    for chunk in chunks_of(source, limit=1000):
        d = int(chunk.counts.argmax())
        spent[d] += costs[d][drawn[d]]
        drawn[d] += 1
        total = sum(spent)
        for c, weight in enumerate((5, 3, 2)):
            share = Fraction(weight, 10)
            assert abs(spent[c] - share * total) <= most[c] + share * sum(most)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stop_after_passes": 2, "exhausted_policy": None},
        {"exhausted_policy": "redistribute", "shuffle_block_size": 70},
        {"exhausted_policy": {"a": "redistribute", "b": "repeat", "c": "stop"}},
        {"exhausted_policy": None, "max_repeats": 3, "shuffle_block_size": "auto"},
    ],
    ids=["repeat", "passes", "redistribute", "policies", "capped"],
)
def test_seek_index_lanes_and_resume_agree(settings):
    source = token_mixture((3, 2, 1), chunk_size=20, **settings)
    chunks = chunks_of(source, limit=200)
    for g in (0, 1, 7, len(chunks) - 1):
        found, _ = source.next_chunk(source.seek(g))
        assert found.order()[1].tolist() == chunks[g].order()[1].tolist()
    for lane in range(3):
        mine = chunks_of(source, lane, 3, limit=20)
        assert all(
            c.order()[1].tolist() == chunks[c.chunk_index].order()[1].tolist()
            for c in mine
            if c.chunk_index < len(chunks)
        )
    ids = np.concatenate([c.order()[1] for c in chunks])
    assert np.array_equal(source.sample_ids_at(np.arange(len(ids))), ids)
    if len(chunks) < 200:
        assert len(source) == len(ids)
    state = state_after(source, 5, 1, 3)
    again = zx.decode_state(source, zx.encode_state(state))
    assert [c.chunk_index for c in chunks_of(source, state=again, limit=4)] == [
        c.chunk_index for c in chunks_of(source, state=state, limit=4)
    ]


def test_redistribute_gives_each_sample_once():
    source = token_mixture((3, 2, 1), chunk_size=20, exhausted_policy="redistribute")
    ids = np.concatenate([c.order()[1] for c in chunks_of(source)])
    assert len(ids) == len(np.unique(ids, axis=0)) == len(source) == 2350


@pytest.mark.parametrize("chunk_size", [1, 4, 5])
@pytest.mark.parametrize("size", [3, 4, 7])
def test_draws_due_at_one_moment_end_a_dataset_in_the_right_chunk(size, chunk_size):
    """Of equal weights, draws of two tokens fall due together with every other one of one token.

    The earlier dataset goes first, so that its last draw may end a chunk, and the draw that is due
    with it begins the next one.
    """
    order = oracles.fair_queue([1, 1], 40, cost=lambda d, j: 2 - d)
    assert (np.flatnonzero(np.asarray(order[:12]) == 0) + 1).tolist() == [2, 5, 8, 11]
    few, many = zx.Dataset.from_counts("few", [size]), zx.Dataset.from_counts("many", [10**4])
    tokens = zx.TokenEstimation.from_shard_totals({"few": [2 * size], "many": [10**4]})
    source = zx.StaticMixtureWorkSource(
        [few, many], {"few": 1, "many": 1}, chunk_size, exhausted_policy="redistribute",
        token_estimation=tokens,
    )  # fmt: skip
    rows, left = [], size
    for first in range(0, 40 - chunk_size, chunk_size):
        ones = order[first : first + chunk_size].count(0)
        rows.append([min(ones, left), chunk_size - ones] if left else [0, chunk_size])
        left -= rows[-1][0]
    starts = np.cumsum(rows, axis=0) - rows  # one shard each, read from its beginning
    for g, chunk in enumerate(chunks_of(source, limit=len(rows))):
        fresh = source.replace()  # which comes to the chunk past the end of the dataset at once
        for one in (chunk, fresh.next_chunk(fresh.seek(g))[0]):
            assert (one.chunk_index, one.counts.tolist()) == (g, rows[g])
            first = [ids[:1, 2].tolist() for ids in one.components.values()]
            assert first == [[n] * (m > 0) for n, m in zip(starts[g], rows[g], strict=True)]
    stopped = source.replace(exhausted_policy="stop")
    drawn = [order[: g * chunk_size].count(0) for g in range(40 // chunk_size)]
    assert len(chunks_of(stopped)) == max(g for g, n in enumerate(drawn) if n <= size)


def test_document_weights_are_not_token_weights():
    """20,000 documents of 400 tokens and 2,000 of 4,000, half of the tokens each."""
    datasets = [
        zx.Dataset.from_counts("short", [20_000]), zx.Dataset.from_counts("long", [2_000])
    ]  # fmt: skip
    tokens = zx.TokenEstimation.from_shard_totals({"short": [8_000_000], "long": [8_000_000]})
    source = zx.StaticMixtureWorkSource(
        datasets, {"short": 1, "long": 1}, chunk_size=1, token_estimation=tokens
    )
    drawn = np.cumsum([c.counts for c in chunks_of(source, limit=1100)], axis=0)
    assert drawn[-1].tolist() == [1000, 100]
    assert np.abs(drawn[:, 0] * 400 - drawn[:, 1] * 4000).max() <= 4000


def with_ratios(ratios, tokenizer=str.split):
    datasets = [zx.Dataset.from_counts(n, [300, 200], num_bytes=[9000, 7000]) for n in ratios]
    estimation = zx.TokenEstimation(tokenizer)
    if all(ratios.values()):
        estimation = zx.TokenEstimation.from_ratios(ratios)
    return zx.StaticMixtureWorkSource(
        datasets, dict.fromkeys(ratios, 1), chunk_size=10, token_estimation=estimation
    )


def test_restore_takes_the_saved_ratios():
    primed = with_ratios({"x": 0.25, "y": 0.75})
    unprimed = with_ratios({"x": None, "y": None})
    assert unprimed.requires_token_priming
    assert not primed.requires_token_priming
    data = zx.encode_state(state_after(primed, 7))
    source, state = zx.restore(unprimed, data)
    assert not source.requires_token_priming
    assert source.token_estimation.ratios == primed.token_estimation.ratios
    rest = [c.order()[1].tolist() for c in chunks_of(primed, state=state_after(primed, 7))]
    assert [c.order()[1].tolist() for c in chunks_of(source, state=state)] == rest
    same, again = zx.restore(primed, data)
    assert same is primed
    assert again.chunk_index == 7
    assert len(data) <= 250


def test_other_ratios_are_refused_and_shown():
    state = with_ratios({"x": 0.25, "y": 0.75}).seek(2)
    with pytest.raises(ValueError, match=r"token_estimation.*'y': 0.75 in the state, 0.5 here"):
        zx.decode_state(with_ratios({"x": 0.25, "y": 0.5}), zx.encode_state(state))
    plain = mixture([500, 500], names=["x", "y"], chunk_size=10)
    with pytest.raises(ValueError, match="token_estimation"):
        zx.decode_state(plain, zx.encode_state(state))
    with pytest.raises(ValueError, match="token_estimation"):
        zx.decode_state(with_ratios({"x": 0.25, "y": 0.5}), zx.encode_state(plain.seek(2)))


def test_what_else_differs_is_told():
    """The same ratios with other bytes; no ratios to show where totals of shards are given."""
    one = with_ratios({"x": 0.25, "y": 0.75})
    longer = [zx.Dataset.from_counts(n, [300, 200], num_bytes=[9000, 7001]) for n in ("x", "y")]
    with pytest.raises(ValueError, match=r"\(tokens per byte are the same, the bytes"):
        zx.decode_state(one.replace(datasets=longer), zx.encode_state(one.seek(2)))
    near = one.replace(token_estimation=zx.TokenEstimation.from_ratios({"x": 0.25, "y": 0.7500001}))
    with pytest.raises(ValueError, match=r"'y': 0.75 in the state, 0.75000\d+ here"):
        zx.decode_state(near, zx.encode_state(one.seek(2)))
    totals = {"x": [10, 20], "y": [500, 1]}
    first, second = (
        one.replace(token_estimation=zx.TokenEstimation.from_shard_totals({**totals, "x": x}))
        for x in ([10, 20], [10, 5000])
    )
    with pytest.raises(ValueError, match=r"other token_estimation\. Restore"):
        zx.decode_state(second, zx.encode_state(first.seek(2)))


class Tagged(zx.StaticMixtureWorkSource):
    """A source that knows more than its base: before and after the base is made."""

    def __init__(self, *args, tag, **settings):
        self.tag = tag
        super().__init__(*args, **settings)
        self.later = [tag]

    def component_ids(self):
        return {"x": 7, "y": 9}


def test_a_subclass_stays_one():
    datasets = [zx.Dataset.from_source(n, ["a b", "c"] * 50) for n in ("x", "y")]
    words = zx.TokenEstimation(str.split)
    source = Tagged(datasets, {"x": 1, "y": 1}, 10, tag="t", token_estimation=words)
    primed = source.prime(progress=False)
    restored, _ = zx.restore(source, zx.encode_state(primed.seek(2)))
    changed = primed.replace(seed=1)
    assert changed.seed == 1
    for one in (primed, restored, changed, pickle.loads(pickle.dumps(primed))):
        assert (type(one), one.tag, one.later) == (Tagged, "t", ["t"])
        assert one.component_ids() == {"x": 7, "y": 9}
        assert one.next_chunk(one.init())[0] is not None
    with pytest.raises(TypeError, match="sed"):
        source.replace(sed=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lane", np.int32(3)), ("lane", np.int32(-1)), ("lane", 0.5), ("num_lanes", np.int32(0)),
        ("lag", np.zeros(2, np.int32)), ("chunk", 5), ("chunk", np.zeros(3, np.uint32)),
        ("origin", None), ("era", np.zeros(1, np.uint32)), ("carry", np.zeros(2, np.int32)),
        ("drawn", np.zeros((1, 2), np.uint32)), ("drawn", np.zeros((2, 2))),
        ("ledger", np.zeros(2, np.uint32)), ("ratios", np.zeros((3, 2), np.uint32)),
        ("ratios", np.zeros(3, np.uint32)), ("config", np.zeros(3, np.uint32)), ("config", None),
    ],
)  # fmt: skip
def test_a_field_of_another_form_is_refused(field, value):
    """Also where the state shares its digests with a good one, as `_replace` leaves them."""
    source = with_ratios({"x": 0.25, "y": 0.75})
    state = source.seek(5, 1, 3)
    with pytest.raises(ValueError, match=r"field|lane"):
        source.next_chunk(state._replace(**{field: value}))
    copied = state._replace(**{"config": state.config.copy(), field: value})
    with pytest.raises(ValueError, match=r"field|lane"):
        source.check_state(copied)


def test_a_state_that_contradicts_itself_is_refused():
    source = with_ratios({"x": 0.25, "y": 0.75})
    state = source.seek(5, 1, 3)
    lagging = state._replace(lag=np.int32(1 - state.lag))
    with pytest.raises(ValueError, match="contradicts itself"):
        zx.decode_state(source, zx.encode_state(lagging))
    measured = state._replace(ratios=state.ratios + np.uint32([1, 0]))
    with pytest.raises(ValueError, match=r"'x': 0\.2500000002"):
        zx.decode_state(source, zx.encode_state(measured))
    many = mixture([30] * 65, allocation="virtual_time", chunk_size=9)
    state = many.seek(5)
    with pytest.raises(ValueError, match="contradicts itself"):
        many.next_chunk(state._replace(era=np.asarray([1, 0], np.uint32)))


@pytest.mark.parametrize("fields", [5, None, True, "abc", b"abc", {}, [], [1], [[]] * 11])
def test_fields_of_another_kind_are_refused(fields):
    """Whoever can compute the checksum can write anything."""
    data = wrapped(["MixtureState", fields])
    primed, unprimed = with_ratios({"x": 0.25, "y": 0.75}), with_ratios({"x": None, "y": None})
    for restore in (zx.restore, zx.decode_state):
        for source in (primed, unprimed):
            if source is primed or restore is zx.restore:
                with pytest.raises(ValueError, match="state"):
                    restore(source, data)


@pytest.mark.parametrize("size", [4, 12, 20])
def test_half_a_ratio_is_refused(size):
    primed, unprimed = with_ratios({"x": 0.25, "y": 0.75}), with_ratios({"x": None, "y": None})
    name, fields = codec.open_fields(zx.encode_state(primed.seek(2)))
    fields[-2] = bytes(size)
    data = wrapped([name, fields])
    with pytest.raises(ValueError, match="holds no token ratios"):
        zx.restore(unprimed, data)
    with pytest.raises(ValueError, match=r"state\.ratios must be 16 bytes"):
        zx.decode_state(primed, data)


def test_restoring_what_holds_no_ratios_is_refused():
    unprimed = with_ratios({"x": None, "y": None})
    shards = {"x": [10, 20], "y": [500, 1]}
    totals = unprimed.replace(token_estimation=zx.TokenEstimation.from_shard_totals(shards))
    with pytest.raises(ValueError, match="holds no token ratios"):
        zx.restore(unprimed, zx.encode_state(totals.seek(2)))
    other = with_ratios({"x": 0.25, "y": 0.75}).replace(seed=1)
    with pytest.raises(ValueError, match="other seed"):
        zx.restore(unprimed, zx.encode_state(other.seek(2)))
    for data in (b"", b"nothing", zx.encode_state((1, 2))):
        with pytest.raises(ValueError, match="state"):
            zx.restore(unprimed, data)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.init(),
        lambda s: s.seek(3),
        len,
        lambda s: s[0],
        lambda s: s.sample_ids_at([1]),
        lambda s: zx.decode_state(s, b""),
        lambda s: s.next_chunk(with_ratios({"x": 0.25, "y": 0.75}).init()),
        lambda s: s.clone_for_lane(0, 1),
        lambda s: next(iter(zx.LaneIterDataset(s, 0, 1))),
    ],
)
def test_an_unprimed_source_says_so(use):
    unprimed = with_ratios({"x": None, "y": None})
    with pytest.raises(RuntimeError, match="prime"):
        use(unprimed)
    assert unprimed.component_ids() == {"x": 0, "y": 1}
    assert pickle.loads(pickle.dumps(unprimed)).requires_token_priming


def test_names_and_lengths_must_fit():
    with pytest.raises(ValueError, match="unknown datasets"):
        token_mixture(tokens=zx.TokenEstimation.from_shard_totals({**TOTALS, "d": [1]}))
    missing = {name: total for name, total in TOTALS.items() if name != "b"}
    with pytest.raises(ValueError, match="'b'"):
        token_mixture(tokens=zx.TokenEstimation.from_shard_totals(missing))
    with pytest.raises(ValueError, match="'a' has 3 shards"):
        token_mixture(tokens=zx.TokenEstimation.from_shard_totals({**TOTALS, "a": [1, 2]}))


def test_primes_from_real_data(tmp_path):
    """Two domains whose words differ in length by ten times: half of the words from each."""
    for name, length in (("short", 2), ("long", 20)):
        rows = [f'{{"text": "{" ".join(["w" * length] * (5 + n % 7))}"}}' for n in range(800)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    datasets = [zx.Dataset.from_path(n, tmp_path / f"{n}.jsonl") for n in ("short", "long")]
    source = zx.StaticMixtureWorkSource(
        datasets, {"short": 3, "long": 1}, chunk_size=100,
        token_estimation=zx.TokenEstimation(str.split, field="text", samples_per_dataset=200),
    ).prime(progress=False)  # fmt: skip
    again = zx.StaticMixtureWorkSource(
        datasets, {"short": 3, "long": 1}, chunk_size=100,
        token_estimation=zx.TokenEstimation(str.split, field="text", samples_per_dataset=200),
    ).prime(progress=False)  # fmt: skip
    assert source.token_estimation.ratios == again.token_estimation.ratios
    chunk, _ = source.next_chunk(source.init())
    words = np.asarray([5 + index % 7 for _, _, index in chunk.order()[1]])
    share = words[chunk.order()[0] == 0].sum() / words.sum()
    assert 0.7 < share < 0.8


def test_forty_thousand_datasets():
    names = [f"d{n}" for n in range(40_000)]
    tokens = zx.TokenEstimation.from_shard_totals({n: [70 + d % 9] for d, n in enumerate(names)})
    source = mixture([10] * 40_000, names=names, token_estimation=tokens)
    chunk, state = source.next_chunk(source.init())
    assert len(chunk) == 16_384
    assert source.next_chunk(state)[0].chunk_index == 1
    assert len(zx.encode_state(state)) < 300
