"""Mixtures in tokens: priming, restoring, exhaustion, how near the tokens are to the weights."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import oracles
import pytest
from helpers import chunks_of, mixture, state_after

import zephon_jax as zx
from zephon_jax.token_ratios import TOKEN_UNIT

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
            size = source._settings["shuffle_block_size"]
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
