"""Packed rows beside a slow oracle, restored at every row, with any settings."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from grain.experimental import FirstFitPackIterDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from support.packing import (
    LAYOUTS,
    METHODS,
    as_lists,
    dataset_of,
    documents_of,
    expected_rows,
    oracle,
)

import zephon_jax as zx

SETTINGS = {
    "sizes": st.lists(st.one_of(st.integers(0, 9), st.integers(0, 40)), max_size=30),
    "length": st.integers(1, 20),
    "num_bins": st.integers(1, 5),
    "method": st.sampled_from(METHODS),
    "layout": st.sampled_from(LAYOUTS),
    "max_segments": st.one_of(st.none(), st.integers(1, 4)),
    "pad_id": st.integers(0, 3),
}


@settings(max_examples=150, deadline=None)
@given(**SETTINGS)
def test_rows_are_those_of_the_oracle(sizes, length, **given):
    docs = documents_of(sizes)
    rows = list(zx.pack(dataset_of(docs), length, **given))
    assert as_lists(rows) == expected_rows(docs, length, **given)
    for name, column in itertools.chain.from_iterable(row.items() for row in rows):
        assert column.dtype == (np.float32 if name == "loss_weight" else np.int32)


@settings(max_examples=40, deadline=None)
@given(**SETTINGS)
def test_every_row_is_restored(sizes, length, **given):
    docs = documents_of(sizes)
    packed = zx.pack(dataset_of(docs), length, **given)
    expected, iterator = as_lists(packed), iter(packed)
    shapes, other = set(), iter(packed)
    for step in range(len(expected) + 1):
        state = iterator.get_state()
        shapes.add(str([(name, type(value)) for name, value in state.items()]))
        other.set_state(json.loads(json.dumps(state)))  # also one that was elsewhere
        assert json.loads(json.dumps(other.get_state())) == json.loads(json.dumps(state))
        assert as_lists(other) == expected[step:]
        assert next(iterator, None) is not None or step == len(expected)
    assert len(shapes) == 1


@settings(max_examples=60, deadline=None)
@given(**{**SETTINGS, "layout": st.sampled_from(["maxtext", "torchtitan"])})
def test_every_pair_occurs_once(sizes, length, layout, **given):
    docs = documents_of(sizes)
    names = {"maxtext": ("inputs", "targets"), "torchtitan": ("input", "labels")}[layout]
    found = []
    for row in zx.pack(dataset_of(docs), length, layout=layout, **given):
        real = row["component_ids"] >= 0
        assert real.any()
        found += zip(*(row[name][real].tolist() for name in names), strict=True)
    assert sorted(found) == [(t, t + 1) for d in docs for t in d["tokens"][:-1].tolist()]


def test_first_fit_is_that_of_grain():
    docs = documents_of(np.random.default_rng(3).integers(2, 40, 300).tolist())
    pairs = [{"x": d["tokens"][:-1]} for d in docs]
    theirs = FirstFitPackIterDataset(
        dataset_of(pairs), length_struct={"x": 64}, num_packing_bins=5, shuffle_bins=False
    )
    ours = zx.pack(dataset_of(docs), 64, num_bins=5)
    assert [r["inputs"].tolist() for r in ours] == [r["x"].tolist() for r in theirs]


def padding_share(rows):
    """Share of places that are padded; the last rows, of what is left, count for nothing."""
    filled = [sum(piece[2] for piece in row) for row in rows[:-16]]
    return 1 - sum(filled) / (len(filled) * 1024)


@pytest.mark.parametrize("kind", ["short", "long", "mixed"])
def test_best_fit_pads_least(kind):
    rng = np.random.default_rng(0)
    sizes = {
        "short": rng.integers(1, 400, 3000),
        "long": rng.integers(200, 1024, 1200),
        "mixed": np.clip(rng.lognormal(5.5, 1.2, 2000), 1, 5000).astype(int),
    }[kind].tolist()
    first, best = (
        padding_share([*map(_pieces, zx.pack(dataset_of(documents_of(sizes)), 1024, method=m))])
        for m in ("first_fit", "best_fit")
    )
    print(f"padding of {kind} documents: first fit {first:.1%}, best fit {best:.1%}")
    assert best < 0.8 * first
    assert best < {"short": 0.02, "long": 0.12, "mixed": 0.04}[kind]


def _pieces(row):
    return [(0, 0, int((row["inputs_segmentation"] > 0).sum()))]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.uint32, ">i4", list, "mixed"])
def test_tokens_of_any_integer_type(dtype):
    docs = documents_of([5, 1, 0, 9, 30])
    kinds = itertools.cycle([np.uint8, np.int64, np.uint64, list]) if dtype == "mixed" else None
    given = []
    for doc in docs:
        kind = next(kinds) if kinds else dtype
        tokens = doc["tokens"].tolist() if kind is list else doc["tokens"].astype(kind)
        given.append({**doc, "tokens": tokens})
    for method in METHODS:
        rows = zx.pack(dataset_of(given), 8, method=method)
        assert as_lists(rows) == as_lists(zx.pack(dataset_of(docs), 8, method=method))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
def test_components_by_token_are_those_by_document(layout, method):
    docs = documents_of([5, 1, 0, 9, 30, 2, 2, 17])
    given = [
        d if n % 3 == 1 else {"tokens": d["tokens"], "component_ids": [n % 3] * len(d["tokens"])}
        for n, d in enumerate(docs)
    ]
    rows = zx.pack(dataset_of(given), 8, method=method, layout=layout)
    assert as_lists(rows) == as_lists(zx.pack(dataset_of(docs), 8, method=method, layout=layout))


def test_long_documents_are_not_copied_over_and_over():
    """A document of many windows costs as much a row as many documents do."""
    docs = documents_of([200_000])
    rows = list(zx.pack(dataset_of(docs), 100, num_bins=2, method="concat_then_split"))
    assert len(rows) == 2000
    assert [int(row["targets"][-1]) for row in rows[:-1]] == list(range(101, 200_000, 100))


@pytest.mark.parametrize("method", METHODS)
def test_an_error_leaves_the_packer_where_it_was(method):
    docs = documents_of([5, 9, 3, 30, 8, 8])
    broken = [*docs[:3], {**docs[3], "tokens": -docs[3]["tokens"]}, *docs[4:]]
    iterator, expected = iter(zx.pack(dataset_of(broken), 8, method=method, num_bins=1)), []
    for _ in range(2):
        with pytest.raises(ValueError, match=r"'tokens' must be in \[0, 2\^31\).*got -\d+ to"):
            expected.extend(iterator)
    state = iterator.get_state()
    again = iter(zx.pack(dataset_of(docs), 8, method=method, num_bins=1))
    again.set_state(state)
    whole = as_lists(zx.pack(dataset_of(docs), 8, method=method, num_bins=1))
    assert as_lists(again) == whole[len(expected) :]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"row": -1}, "row must be at least 0"),
        ({"row": 16}, "the state's window has 16 rows"),
        ({"documents": 99}, "the data ended before the documents"),
        ({"tokens": 1000}, "has used 1000 tokens of a document with fewer"),
        ({"parent": 3}, "int"),
        ({"tokens": "1"}, "not the state of pack"),
    ],
)
def test_states_that_do_not_fit(change, text):
    packed = zx.pack(dataset_of(documents_of([5, 9, 3, 30, 8, 8])), 8, num_bins=2)
    iterator = iter(packed)
    next(iterator)
    state = {**iterator.get_state(), **change}

    def restored():
        iterator.set_state(state)
        return next(iterator)

    with pytest.raises((ValueError, TypeError), match=text):
        restored()


def test_oracle_by_hand():
    assert oracle([3, 4, 2], 5, 2, "concat_then_split") == [
        [[0, 0, 3], [1, 0, 2]], [[1, 2, 2], [2, 0, 2]]
    ]  # fmt: skip
    assert oracle([3, 4, 2], 5, 2, "first_fit") == [[[0, 0, 3], [2, 0, 2]], [[1, 0, 4]]]
    assert oracle([3, 4, 2, 1], 5, 2, "best_fit") == [
        [[0, 0, 3], [2, 0, 2]], [[1, 0, 4], [3, 0, 1]]
    ]  # fmt: skip
