"""A mixture that holds behind filters, splitters and packers, and resumes at every record."""

from __future__ import annotations

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from support.mixed_records import (
    EVEN,
    NAMES,
    Records,
    one,
    source_of,
    tokens_of,
    uneven,
    uneven_lane,
    worst_window,
)

import zephon_jax as zx
from zephon_jax import ensure_mixture


@pytest.mark.parametrize("weigh", [one, tokens_of])
@pytest.mark.parametrize("target", [(1, 1, 1), (5, 3, 2)])
def test_mixture_holds_behind_a_filter_and_a_splitter(weigh, target):
    records = list(
        ensure_mixture(
            uneven_lane(160), dict(zip(NAMES, target, strict=True)), component_ids=NAMES,
            weigh=weigh, max_buffer_size=None,
        )
    )  # fmt: skip
    assert len(records) > 3000
    off = worst_window(records, target, weigh)
    print(f"worst window of 1,000 records, {weigh.__name__} {target}: {100 * off:.2f} points")
    assert off < 0.02
    before = list(uneven_lane(160))
    assert worst_window(before, target, weigh) > 0.3  # what it would be without
    assert len({r["name"] for r in records}) == len(records)  # none is doubled
    for component in range(3):  # records of one component keep their order
        mine = [r["name"] for r in records if r["component_id"] == component]
        rank = {name: n for n, name in enumerate(r["name"] for r in before)}
        assert [rank[name] for name in mine] == sorted(rank[name] for name in mine)


@pytest.mark.parametrize("max_buffer_size", [1, 50, 100_000])
def test_a_bounded_buffer_loses_nothing_and_never_stalls(max_buffer_size):
    before, taken = list(uneven_lane(30)), []
    dataset = ensure_mixture(
        uneven_lane(30).map(lambda record: taken.append(1) or record), EVEN, component_ids=NAMES,
        max_buffer_size=max_buffer_size,
    )  # fmt: skip
    records = []
    for record in dataset:
        records.append(record["name"])
        assert len(taken) - len(records) <= max_buffer_size
    assert sorted(records) == sorted(r["name"] for r in before)


def test_even_records_come_as_chunks_are_read():
    """With records of weight 1 that are all there, the order is that of the core."""
    records = [{"component_id": d, "n": n} for d, c in enumerate((5, 3, 2)) for n in range(10 * c)]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = ensure_mixture(
        dataset, {"a": 5, "b": 3, "c": 2}, component_ids=NAMES, weigh=one, max_buffer_size=100
    )
    counts = np.array([50, 30, 20])
    assert [r["component_id"] for r in mixed] == zx.swrr.order(counts).tolist()


def test_rows_of_several_components_count_their_tokens():
    rng = np.random.default_rng(0)
    docs = [
        {"tokens": np.zeros(n, np.int32), "component_id": c}
        for n, c in zip(
            rng.integers(2, 60, 900), rng.choice(3, 900, p=[0.2, 0.5, 0.3]), strict=True
        )
    ]
    rows = zx.pack(grain.MapDataset.source(docs).to_iter_dataset(), 64, method="concat_then_split")
    mixed = ensure_mixture(rows, EVEN, component_ids=NAMES, max_buffer_size=None)
    out = list(mixed)
    counts = zx.component_tokens(np.stack([row["component_ids"] for row in out]), 3)
    before = zx.component_tokens(np.stack([row["component_ids"] for row in rows]), 3)
    assert np.abs(before / before.sum() - 1 / 3).max() > 0.12
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 0.03


def test_numbers_may_be_arrays_of_no_dimensions():
    records = [{"component_id": np.asarray(n % 3), "tokens": np.asarray(2)} for n in range(9)]
    records += [{"component_id": jnp.asarray(n % 3), "tokens": jnp.asarray(2)} for n in range(3)]
    mixed = ensure_mixture(Records(records), EVEN, component_ids=NAMES)
    assert [int(record["component_id"]) for record in mixed] == [0, 1, 2] * 4


def test_weights_by_function_for_several_components():
    records = [{"parts": {0: 3, 1: 1}}, {"parts": {1: 2}}, {"parts": {}}, {"parts": {2: 9}}]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = ensure_mixture(dataset, EVEN, component_ids=NAMES, weigh=lambda r: r["parts"])
    assert sorted(map(str, mixed)) == sorted(map(str, records))


def test_flushed_lots_lose_nothing():
    lane = zx.LaneIterDataset(source_of(60, chunk_size=10))
    flushed = zx.FlushIterDataset(
        lane,
        lambda lane: ensure_mixture(uneven(lane, 9), EVEN, component_ids=NAMES),
        3,
    )
    assert sorted(r["name"] for r in flushed) == sorted(r["name"] for r in uneven(lane, 9))


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"dataset": [1]}, TypeError, r"grain\.IterDataset; got list"),
        ({"target_mixture": {"a": 1}}, ValueError, r"no weight for \['b', 'c'\]"),
        ({"target_mixture": {**EVEN, "d": 1}}, ValueError, r"unknown components \['d'\]"),
        ({"target_mixture": {**EVEN, "a": -1}}, ValueError, r"mixture\['a'\] = -1"),
        ({"max_buffer_size": 0}, ValueError, "max_buffer_size must be at least 1"),
        ({"max_replay": 0}, ValueError, "max_replay must be at least 1"),
        ({"weigh": 3}, TypeError, "weigh must be a function or the name of an entry; got 3"),
        (
            {"warn_tolerance": -1},
            ValueError,
            "a share of at least 0; got -1",
        ),
        ({"weigh": "size"}, ValueError, r"weigh = 'size'.*got \['component_id', 'tokens'\]"),
        ({"weigh": lambda r: -2}, ValueError, "weight of a record must be at least 0; got -2"),
        ({"weigh": lambda r: 0.5}, TypeError, "weight of a record must be an integer"),
        ({"records": [{"tokens": 1}]}, ValueError, "must keep 'component_id'"),
        ({"records": [{"component_id": 7, "tokens": 1}]}, ValueError, "of a record is 7, of no"),
        (
            {"records": [{"component_id": 0.0, "tokens": 1}]},
            TypeError,
            "must be an integer; got 0.0",
        ),
        (
            {"records": [{"component_id": 0, "tokens": 2.5}]},
            ValueError,
            "record holds float",
        ),
        ({"records": [{"component_id": 0, "tokens": "five"}]}, ValueError, "one.*holds str"),
        (
            {"records": [{"component_id": 0, "tokens": [[1], [2, 3]]}]},
            ValueError,
            "holds list of list",
        ),
        ({"records": [{"component_ids": [0, -2]}]}, ValueError, "of a record is -2, of no"),
        (
            {"records": [{"component_id": 0, "tokens": 1, "exhausted": [4]}]},
            ValueError,
            "an id in 'exhausted' is 4, of no component; known ids are",
        ),
        (
            {"weigh": "tokens", "records": [{"component_ids": [0], "tokens": 1}]},
            ValueError,
            "must keep 'component_id'",
        ),
        ({"records": [3]}, ValueError, "dicts with 'component_id'; got int"),
        ({"component_ids": ["a", "b", "c"]}, TypeError, "must map names to ids.*got list"),
        ({"component_ids": {"a": 0, "b": 1, "c": 1}}, ValueError, "must differ from each other"),
        ({"component_ids": {"a": 0, "b": 1, "c": "2"}}, TypeError, r"component_ids\['c'\] must be"),
    ],
)
def test_bad_input(settings, error, text):
    records = settings.pop("records", [{"component_id": 0, "tokens": 1}])
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    arguments = {"dataset": dataset, "target_mixture": EVEN, "component_ids": NAMES, **settings}
    with pytest.raises(error, match=text):
        next(iter(ensure_mixture(**arguments)))


def test_packed_rows_of_rare_components_hold_the_mixture():
    """A row of 10 documents seldom has most of a component of 5 %, often more than its share."""
    rng, target = np.random.default_rng(1), [90, 5, 5]
    sizes, components = rng.integers(2, 50, 15_000), rng.choice(3, 15_000, p=[0.9, 0.05, 0.05])
    documents = [
        {"tokens": np.zeros(n, np.int32), "component_id": c}
        for n, c in zip(sizes, components, strict=True)
    ]
    lane = grain.MapDataset.source(documents).to_iter_dataset()
    rows = list(zx.pack(lane, 256, method="concat_then_split"))

    def worst(rows, num_rows=100):
        rows = rows[: len(rows) * 6 // 10]  # while stock lasts
        tokens = np.stack([zx.component_tokens(row["component_ids"], 3) for row in rows])
        sums = np.cumsum(np.concatenate([np.zeros((1, 3), np.int64), tokens]), axis=0)
        inside = sums[num_rows:] - sums[:-num_rows]
        shares = inside / inside.sum(axis=1, keepdims=True)
        return float(np.abs(shares - np.array(target) / 100).max())

    for max_buffer_size in (None, 512):
        mixed = ensure_mixture(
            Records(rows), dict(zip(NAMES, target, strict=True)), component_ids=NAMES,
            max_buffer_size=max_buffer_size,
        )  # fmt: skip
        out = list(mixed)
        print(f"worst window: {100 * worst(rows):.2f} points before, {100 * worst(out):.2f} after")
        assert worst(out) < 0.007
        assert worst(rows) > 0.015
        assert len(out) > 0.85 * len(rows)
