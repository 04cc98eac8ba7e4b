"""Tokens per byte: what is given, what is measured, and what each shard costs."""

from __future__ import annotations

import functools
import gzip
import json
import os
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import zephon_jax as zx
from zephon_jax.data.formats.riegeli import data_bytes
from zephon_jax.data.measure_tokens import choose_samples, count_shard_tokens, measure
from zephon_jax.data.token_estimation import (
    MAX_COST,
    RATIO_UNIT,
    TOKEN_UNIT,
    TokenEstimation,
    shard_costs,
)

from_ratios, from_totals = TokenEstimation.from_ratios, TokenEstimation.from_shard_totals


def words(text):
    return len(text.split())


# What is given


def test_ratios_are_what_was_typed():
    given = {"a": 1, "b": Fraction(1, 3), "c": Decimal("0.1"), "d": 0.1, "e": np.float32(0.1)}
    ratios = from_ratios(given).ratios
    tenth = round(Fraction(1, 10) * RATIO_UNIT)
    third = round(Fraction(1, 3) * RATIO_UNIT)
    assert ratios == {"a": RATIO_UNIT, "b": third, "c": tenth, "d": tenth, "e": tenth}
    assert from_ratios({"a": 1e-30}).ratios == {"a": 1}  # never 0


def test_estimations_compare_hash_and_pickle_by_what_they_hold():
    one = from_totals({"b": [1, 2], "a": np.array([3])})
    other = from_totals({"a": [3], "b": np.array([1, 2], dtype=np.uint8)})
    assert one == other
    assert hash(one) == hash(other)
    assert one != from_totals({"a": [3], "b": [2, 1]})
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    assert {name: t.tolist() for name, t in copy.shard_totals.items()} == {"a": [3], "b": [1, 2]}
    assert not copy.shard_totals["b"].flags.writeable
    assert one.ratios is None
    assert from_ratios({"a": 1}).shard_totals is None
    assert from_ratios({"a": 1}) != from_ratios({"a": 2})


def test_tokenizers_are_told_apart_by_name():
    class Model:
        name_or_path = "some/model"

        def __call__(self, text):
            return 1

        def encode(self, text):
            return [1]

    names = [
        TokenEstimation(tokenizer).tokenizer_name
        for tokenizer in (words, functools.partial(words), str.split, Model(), Model().encode)
    ]
    assert names[0] == names[1] == f"{__name__}.words"
    assert names[2] == "builtins.str.split"
    assert all(name.endswith(" some/model") for name in names[3:])
    assert len(set(names)) == 4
    assert TokenEstimation(words, tokenizer_name="mine").tokenizer_name == "mine"
    assert TokenEstimation(words) != TokenEstimation(str.split)


def test_measured_ratios_replace_the_tokenizer():
    estimation = TokenEstimation(words, field="text", samples_per_dataset=7)
    assert not estimation.primed
    primed = estimation.with_ratios({"web": 5, "code": 6}, {"web": 0.01, "code": 0.02})
    assert primed.primed
    assert (primed.ratios, primed.tokenizer) == ({"web": 5, "code": 6}, None)
    assert primed.tokenizer_name == estimation.tokenizer_name
    assert primed.standard_errors == {"web": 0.01, "code": 0.02}
    assert primed == estimation.with_ratios({"code": 6, "web": 5})  # errors are for printing
    assert "web" in primed.table()
    assert "1.00 %" in primed.table()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: TokenEstimation(), ValueError, "needs a tokenizer; got None"),
        (lambda: TokenEstimation("gpt2"), TypeError, "callable; got 'gpt2'"),
        (lambda: TokenEstimation(words, samples_per_dataset=0), ValueError, "at least 1; got 0"),
        (lambda: TokenEstimation(words, max_shards=0), ValueError, "max_shards must be at least 1"),
        (lambda: TokenEstimation(words, field=3), TypeError, "field must be a string; got 3"),
        (lambda: from_ratios({}), ValueError, "empty"),
        (lambda: from_ratios([0.3]), TypeError, "mapping"),
        (lambda: from_ratios({1: 0.3}), TypeError, "strings; got 1"),
        (lambda: from_ratios({"a": 0}), ValueError, r"ratios\['a'\] must be above 0"),
        (lambda: from_ratios({"a": -1}), ValueError, r"ratios\['a'\].*got -1"),
        (lambda: from_ratios({"a": float("nan")}), ValueError, r"ratios\['a'\].*nan"),
        (lambda: from_ratios({"a": Decimal("inf")}), ValueError, r"ratios\['a'\].*Infinity"),
        (lambda: from_ratios({"a": 1e6}), ValueError, r"ratios\['a'\].*at most 65536"),
        (lambda: from_ratios({"a": True}), TypeError, r"ratios\['a'\].*True"),
        (lambda: from_ratios({"a": "0.3"}), TypeError, r"ratios\['a'\].*'0.3'"),
        (lambda: from_totals({"a": [1, -2]}), ValueError, "'a': the total of shard 1.*-2"),
        (lambda: from_totals({"a": np.array([1, -2])}), ValueError, "'a': the total of shard 1"),
        (lambda: from_totals({"a": [0, 0]}), ValueError, "'a' has no tokens in any of its 2"),
        (lambda: from_totals({"a": [0.5]}), TypeError, "'a': the total of shard 0.*0.5"),
        (lambda: from_totals({"a": np.array([0.5])}), TypeError, "'a': shard totals.*float64"),
        (lambda: from_totals({"a": 7}), TypeError, "'a': shard totals must be a list.*7"),
        (lambda: from_totals({"a": [1 << 60]}), ValueError, "'a': the total of shard 0"),
    ],
)
def test_what_is_given_is_checked(make, error, text):
    with pytest.raises(error, match=text):
        make()


# What shards cost


def test_costs_are_bytes_times_ratio_rounded_down():
    data = zx.Dataset.from_counts("a", [10, 10, 0, 1000], num_bytes=[100, 0, 50, 10])
    costs = shard_costs(data, from_ratios({"a": Fraction(1, 3)}))
    third = round(Fraction(1, 3) * RATIO_UNIT)
    # A sample costs a unit at least, and a shard without samples nothing.
    least = 10 * third * TOKEN_UNIT // RATIO_UNIT
    assert costs.tolist() == [100 * third * TOKEN_UNIT // RATIO_UNIT, 10, 0, max(1000, least)]
    assert costs.dtype == np.int64


def test_costs_of_true_totals():
    data = zx.Dataset.from_counts("a", [10, 0, 5])
    assert shard_costs(data, from_totals({"a": [7, 0, 0]})).tolist() == [7 * TOKEN_UNIT, 0, 5]


def test_costs_beyond_64_bits_on_the_way():
    data = zx.Dataset.from_counts("a", [10, 5], num_bytes=[1 << 48, 1 << 20])
    costs = shard_costs(data, from_ratios({"a": 3}))
    assert costs.tolist() == [3 * TOKEN_UNIT << 48, 3 * TOKEN_UNIT << 20]
    with pytest.raises(ValueError, match=r"'a' has .* tokens; at most"):
        shard_costs(
            zx.Dataset.from_counts("a", [1, 1], num_bytes=[1 << 52] * 2), from_ratios({"a": 1})
        )
    with pytest.raises(ValueError, match=r"'a' has .* tokens; at most"):
        shard_costs(
            zx.Dataset.from_counts("a", [1], num_bytes=[1 << 61]), from_ratios({"a": 60000})
        )
    assert MAX_COST == 1 << 62


def test_parts_have_bytes_in_proportion():
    whole = zx.Dataset.from_counts("web", [1000, 500], num_bytes=[10_000, 50_000])
    parts = whole.split(seed=0, train=0.9, held=0.1)
    assert parts["train"].shard_bytes.tolist() == [9_000, 45_000]
    assert parts["held"].shard_bytes.tolist() == [1_000, 5_000]
    assert zx.Dataset.from_counts("web", [3]).shard_bytes is None
    assert not pickle.loads(pickle.dumps(whole)).shard_bytes.flags.writeable


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [([1], "num_bytes has 1 entries for 2 shards"), ([1, -1], "num_bytes must not be negative")],
)
def test_declared_bytes_are_checked(num_bytes, text):
    with pytest.raises(ValueError, match=text):
        zx.Dataset.from_counts("web", [1, 2], num_bytes=num_bytes)


def test_what_does_not_fit_the_dataset_is_refused():
    a, bare = (
        zx.Dataset.from_counts("a", [1, 0], num_bytes=[9, 9]),
        zx.Dataset.from_counts("a", [1]),
    )
    for data, estimation, text in (
        (a, from_ratios({"b": 1}), r"does not know dataset 'a'; it knows \['b'\]"),
        (a, from_totals({"a": [1]}), "'a' has 2 shards; its shard totals have 1 entries"),
        (a, from_totals({"a": [1, 1]}), "'a', shard 1 has no samples; its total is 1"),
        (bare, from_ratios({"a": 1}), "'a' has no known bytes"),
        (
            zx.Dataset.from_counts("a", [7], num_bytes=[0]),
            from_ratios({"a": 1}),
            "'a' has 7 samples in files of 0 bytes",
        ),
        (a, TokenEstimation(words), r"source\.prime\(\)"),
    ):
        with pytest.raises(ValueError, match=text):
            shard_costs(data, estimation)
    estimation = from_ratios({"a": 1, "b": 1})
    estimation.check_names(["b", "a"])
    with pytest.raises(ValueError, match=r"unknown datasets \['b'\]; datasets are \['a'\]"):
        estimation.check_names(["a"])
    with pytest.raises(ValueError, match=r"no ratios for datasets \['c'\]"):
        estimation.check_names(["a", "b", "c"])
    with pytest.raises(ValueError, match="prime"):
        TokenEstimation(words).check_names(["a"])


# What is measured


def test_samples_are_spread_over_the_shards_and_stay_the_same():
    counts = [100, 0, 1, 399, 500]
    places = choose_samples(zx.Dataset.from_counts("web", counts), 100)
    assert places.tolist() == sorted(places.tolist())
    assert len(set(map(tuple, places.tolist()))) == 100
    found = np.bincount(places[:, 0], minlength=5)
    assert (np.abs(found - np.array(counts) / 10) <= 1).all()
    assert (places[:, 1] < np.array(counts)[places[:, 0]]).all()
    again = choose_samples(zx.Dataset.from_counts("web", counts), 100)
    other = choose_samples(zx.Dataset.from_counts("code", counts), 100)
    assert np.array_equal(places, again)
    assert (places != other).any(axis=1).mean() > 0.8  # one stretch of ten places has one sample
    few = choose_samples(zx.Dataset.from_counts("web", [2, 0, 3]), 100)
    assert few.tolist() == [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]]
    assert choose_samples(zx.Dataset.from_counts("web", [0]), 100).shape == (0, 2)


def test_samples_come_from_few_shards():
    counts = np.random.default_rng(0).integers(50, 200, 5_000)
    counts[17] = 100_000  # a seventh of all
    data = zx.Dataset.from_counts("web", counts)
    places = choose_samples(data, 1_000, 50)
    shards, found = np.unique(places[:, 0], return_counts=True)
    assert 35 <= len(shards) <= 50
    assert len(set(map(tuple, places.tolist()))) == len(places)
    assert (places[:, 1] < counts[places[:, 0]]).all()
    assert found[shards == 17][0] == pytest.approx(1_000 * 100_000 / counts.sum(), abs=45)
    assert set(found[shards != 17].tolist()) == {20}
    assert np.array_equal(places, choose_samples(data, 1_000, 50))
    assert len(choose_samples(data, 7, 50)) == 7
    one = choose_samples(data, 1_000, 1)
    assert len(set(one[:, 0].tolist())) == 1


@pytest.mark.parametrize(("shards", "size"), [(100_000, 1), (1_000, 5), (1_000, 2_000)])
def test_small_shards_give_as_many_samples(shards, size):
    places = choose_samples(zx.Dataset.from_counts("web", [size] * shards), 1_024)
    assert 1_000 <= len(places) <= 1_024
    assert len(set(map(tuple, places.tolist()))) == len(places)
    from_shards = len(set(places[:, 0].tolist()))
    assert from_shards == 64 if size == 2_000 else from_shards <= -(-1_024 // size)


NUM_SHARDS, PER_SHARD = 6, 400


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Texts with lognormal lengths that drift by 10 times over the shards, in each format."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    for kind in ("jsonl", "gz", "parquet", "array_record", "array_record_grouped"):
        (folder / kind).mkdir()
    totals = []
    for shard in range(NUM_SHARDS):
        lengths = (
            rng.lognormal(3.5 + 2.3 * shard / (NUM_SHARDS - 1), 1.5, PER_SHARD).astype(int) + 1
        )
        texts = [" ".join(rng.choice(["a", "bcd", "efghijkl"], n)) for n in lengths.tolist()]
        totals.append(sum(map(words, texts)))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / "jsonl" / f"{shard}.jsonl").write_text(lines)
        (folder / "gz" / f"{shard}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        table = pa.table({"text": texts, "num_tokens": [words(text) for text in texts]})
        pq.write_table(table, folder / "parquet" / f"{shard}.parquet", row_group_size=50)
        for kind, options in (("", "group_size:1"), ("_grouped", "group_size:50")):
            path = folder / f"array_record{kind}" / f"{shard}.array_record"
            writer = ArrayRecordWriter(str(path), options)
            for text in texts:
                writer.write(text.encode())
            writer.close()
    return folder, np.array(totals)


@pytest.mark.parametrize("kind", ["jsonl", "gz", "parquet", "array_record", "array_record_grouped"])
def test_measured_totals_are_near_the_true_ones(corpus, kind):
    folder, totals = corpus
    data = zx.Dataset.from_path("web", folder / kind)
    field = None if kind.startswith("array_record") else "text"
    estimation = TokenEstimation(words, field=field, samples_per_dataset=600)
    primed = measure([data], estimation)
    found = shard_costs(data, primed).sum() / TOKEN_UNIT
    error = primed.standard_errors["web"]
    assert 0 < error < 0.01
    assert abs(found / totals.sum() - 1) < 0.01
    assert measure([data], estimation, num_threads=1, progress=False) == primed


def test_everything_read_makes_no_error(corpus):
    folder, totals = corpus
    data = zx.Dataset.from_path("web", folder / "jsonl")
    primed = measure([data], TokenEstimation(words, field="text", samples_per_dataset=10**6))
    assert primed.standard_errors["web"] == 0
    exact = Fraction(int(totals.sum()), int(data.shard_bytes.sum()))
    assert primed.ratios["web"] == round(exact * RATIO_UNIT)


def test_standard_error_says_how_far_off_it_is(corpus):
    """Of 40 corpora named apart (so that others of the samples are read) most are within two."""
    folder, totals = corpus
    off = []
    for n in range(40):
        data = zx.Dataset.from_path(f"web{n}", folder / "jsonl")
        primed = measure([data], TokenEstimation(words, field="text", samples_per_dataset=60))
        found = int(data.shard_bytes.sum()) * primed.ratios[data.name] / RATIO_UNIT
        off.append((found / totals.sum() - 1) / primed.standard_errors[data.name])
    assert np.mean(np.abs(off) < 2) >= 0.85
    assert np.mean(np.abs(off) < 0.5) <= 0.7  # and it does not say too much


def test_standard_error_where_samples_come_from_some_of_the_shards():
    """Samples of a shard are alike: 1,024 of them from 64 shards say no more than 64."""
    off = []
    for n in range(60):
        lengths = np.random.default_rng(n).lognormal(3, 1, 1_000).astype(int) + 1
        values = np.repeat(lengths, 20)
        data = zx.Dataset.from_source(f"x{n}", values.tolist(), shard_size=20)
        primed = measure([data], TokenEstimation(int), progress=False)
        ratio = primed.ratios[data.name] / RATIO_UNIT
        off.append((ratio / values.mean() - 1) / primed.standard_errors[data.name])
    assert 0.7 < np.sqrt(np.mean(np.square(off))) < 1.4


def test_parts_are_measured_through_the_whole(corpus):
    folder, totals = corpus
    parts = zx.Dataset.from_path("web", folder / "jsonl").split(seed=0, train=0.5, held=0.1)
    primed = measure(list(parts.values()), TokenEstimation(words, field="text"))
    for name, share in (("train", 0.5), ("held", 0.1)):
        found = shard_costs(parts[name], primed).sum() / TOKEN_UNIT
        assert found == pytest.approx(share * totals.sum(), rel=0.02)


def test_count_shard_tokens(corpus):
    folder, totals = corpus
    table = zx.Dataset.from_path("table", folder / "parquet")
    lines = zx.Dataset.from_path("lines", folder / "jsonl")
    assert count_shard_tokens([lines], words, field="text")["lines"].tolist() == totals.tolist()
    by_column = count_shard_tokens([table], "num_tokens", progress=False)
    assert by_column["table"].tolist() == totals.tolist()
    costs = shard_costs(table, from_totals(by_column))
    assert costs.tolist() == (totals * TOKEN_UNIT).tolist()
    ids = zx.Dataset.from_source("ids", [{"ids": [1, 2]}, {"ids": np.zeros(5)}, {"ids": ()}], 2)
    assert count_shard_tokens([ids], "ids")["ids"].tolist() == [7, 0]


def test_true_shares_after_64_chunks(tmp_path):
    """Lognormal lengths, sigma 1.5, that drift by 10 times over the shards; weights of tokens."""
    rng, weights = np.random.default_rng(0), {"d0": 5, "d1": 3, "d2": 2, "d3": 2}
    lengths = {}
    for d, (name, word) in enumerate(
        zip(weights, ("a ", "bcd ", "efgh ", "ijklmno "), strict=True)
    ):
        (tmp_path / name).mkdir()
        medians = 5 * 3**d * 10 ** np.linspace(0, 1, 8)
        drawn = [rng.lognormal(np.log(median), 1.5, 250).astype(int) + 1 for median in medians]
        for shard, sizes in enumerate(drawn):
            lines = "".join(json.dumps({"text": word * size}) + "\n" for size in sizes.tolist())
            (tmp_path / name / f"{shard}.jsonl").write_text(lines)
        lengths[name] = np.array(drawn)

    def off(estimation):
        source = zx.StaticMixtureWorkSource(
            [zx.Dataset.from_path(name, tmp_path / name) for name in weights], weights, 1024,
            exhausted_policy="repeat", shuffle_within_shard=True, shuffle_block_size="auto",
            token_estimation=estimation,
        ).prime()  # fmt: skip
        state, tokens = source.init(), dict.fromkeys(weights, 0)
        for _ in range(64):
            chunk, state = source.next_chunk(state)
            for name, ids in chunk.components.items():
                tokens[name] += int(lengths[name][ids[:, 1], ids[:, 2]].sum())
        total = sum(tokens.values())
        return max(abs(tokens[n] / total - w / 12) for n, w in weights.items())

    measured, plain = off(TokenEstimation(words, field="text")), off(None)
    print(f"off after 64 chunks: {100 * measured:.2f} points; by documents: {100 * plain:.2f}")
    assert measured < 0.02
    assert plain > 0.2
    counted = off(from_totals({n: sizes.sum(axis=1) for n, sizes in lengths.items()}))
    assert counted < 0.02


@pytest.mark.parametrize(
    ("tokenizer", "field", "text"),
    [
        (lambda text: 1 // 0, "text", r"sample \(0, 0, 0\) of dataset 'web'.*ZeroDivisionError"),
        (lambda text: None, "text", r"sample \(0, 0, 0\).*the tokenizer returned nothing"),
        (lambda text: -3, "text", r"sample \(0, 0, 0\).*returned -3 tokens"),
        (lambda text: {"input_ids": [1]}, "text", r"returned dict with \['input_ids'\]"),
        (lambda text: np.zeros((1, 4)), "text", r"returned ndarray of shape \(1, 4\)"),
        (lambda text: text, "text", "returned str"),
        (lambda text: True, "text", "returned bool"),
        (lambda text: 0, "text", "'web' has no tokens: the tokenizer found 0 in all 10 samples"),
        (words, "txt", r"no field 'txt'; fields are \['text'\]"),
    ],
)
def test_tokenizers_that_fail_name_the_sample(tmp_path, tokenizer, field, text):
    (tmp_path / "0.jsonl").write_text('{"text": "a b"}\n' * 10)
    data = zx.Dataset.from_path("web", tmp_path)
    with pytest.raises(ValueError, match=text):
        measure([data], TokenEstimation(tokenizer, field=field))


def test_in_a_source_in_memory_a_sample_stands_for_a_byte():
    """Ten samples of 1 and of 9 words: 5 tokens a sample, in the whole and in its parts."""
    data = zx.Dataset.from_source("web", ["a", "a " * 9] * 5, shard_size=4)
    primed = measure([data], TokenEstimation(words))
    assert primed.ratios == {"web": 5 * RATIO_UNIT}
    assert shard_costs(data, primed).tolist() == [20 * TOKEN_UNIT, 20 * TOKEN_UNIT, 10 * TOKEN_UNIT]
    part = data.split(seed=0, half=0.5)["half"]
    costs = shard_costs(part, TokenEstimation.from_ratios({"half": 5}))
    assert costs.tolist() == [5 * n * TOKEN_UNIT for n in part.shard_counts.tolist()]
    assert measure([part], TokenEstimation(words)).names == ("half",)


def test_a_batch_of_token_ids_is_no_sequence_of_them():
    """What a tokenizer gives for a list of texts would count as one token."""
    data = zx.Dataset.from_source("web", ["a b c"])
    assert count_shard_tokens([data], str.split)["web"].tolist() == [3]
    with pytest.raises(ValueError, match="returned list of list"):
        count_shard_tokens([data], lambda text: [[1, 2, 3]])


def test_datasets_of_one_name_are_refused():
    two = [zx.Dataset.from_source("same", list("ab")), zx.Dataset.from_source("same", list("c"))]
    with pytest.raises(ValueError, match="dataset names must differ; got 'same' more than once"):
        zx.count_shard_tokens(two, len)
    with pytest.raises(ValueError, match="dataset names must differ; got 'same' more than once"):
        measure(two, zx.TokenEstimation(len))


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="'web' cannot be read"):
        measure([zx.Dataset.from_counts("web", [5])], TokenEstimation(words))
    with pytest.raises(ValueError, match="none any more"):
        measure([], from_ratios({"a": 1}))
    with pytest.raises(ValueError, match="dicts; got str"):
        count_shard_tokens([zx.Dataset.from_source("web", ["a"])], words, field="text")
    with pytest.raises(ValueError, match="column is named already"):
        count_shard_tokens([], "num_tokens", field="text")


# The bytes of ArrayRecord files


@pytest.mark.parametrize(
    "options",
    ["group_size:1", "group_size:1,uncompressed", "group_size:64", "group_size:9,transpose:true"],
)
@pytest.mark.parametrize("num_records", [0, 1, 2_000, 60_000])
def test_bytes_of_array_records(tmp_path, options, num_records):
    """Exact in small files, sampled in large ones; records cross the blocks of 64 KiB."""
    path, rng = str(tmp_path / "a.array_record"), np.random.default_rng(1)
    sizes = rng.lognormal(4.5, 1.2, num_records).astype(int)
    writer = ArrayRecordWriter(path, options)
    noise = os.urandom(1 << 20)
    for size in sizes.tolist():
        writer.write(noise[size : 2 * size])
    writer.close()
    exact = os.path.getsize(path) < 4 << 20
    assert data_bytes(path) == pytest.approx(int(sizes.sum()), rel=0 if exact else 0.02)


def test_bytes_of_no_array_record(tmp_path):
    path = tmp_path / "a.array_record"
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(ValueError, match="no valid footer"):
        data_bytes(str(path))
