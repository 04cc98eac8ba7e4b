"""From draws to samples, against a slow oracle that looks at one draw at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from zephon_jax.kernels.keys import fold
from zephon_jax.kernels.permutation import permute
from zephon_jax.mixture import sample_lookup as draws_module
from zephon_jax.mixture import shard_table
from zephon_jax.mixture.dataset_order import DatasetOrder, make_dataset_order
from zephon_jax.mixture.sample_lookup import SampleLookup


def one(index, size, key):
    return int(permute(np.asarray([index]), size, key)[0])


def sample(cursor: DatasetOrder, counts, settings, draw):
    """Shard and place of one draw, step by step as the order is described."""
    shards = [s for s, count in enumerate(counts) if count]
    total = sum(counts)
    passes, position = divmod(draw, total)
    passes = passes if settings["reshuffle_on_repeat"] else 0
    block = settings["shuffle_block_size"]
    whole = block == "global"
    if block == "auto":
        block = 8 * max(counts)
    if block is not None and block != 1:
        block = total if whole else min(block, total)
        number, place = divmod(position, block)
        key = fold(cursor.keys["global" if whole else "blocks"], passes)
        size = min(block, total - number * block)
        position = number * block + one(place, size, fold(key, number))
    if settings["shuffle_shards"] and not whole and len(shards) > 1:
        key = fold(cursor.keys["shards"], passes)
        shards = [shards[one(n, len(shards), key)] for n in range(len(shards))]
    for shard in shards:
        if position < counts[shard]:
            break
        position -= counts[shard]
    if settings["shuffle_within_shard"] and not whole:
        key = fold(fold(cursor.keys["within"], passes), shard)
        position = one(position, counts[shard], key)
    return shard, position


def drawn_datasets(rnd):
    """Datasets of drawn shapes and settings: cursors, counts and settings."""
    cursors, shapes, knobs = [], [], []
    for d in range(rnd.randint(1, 5)):
        high = rnd.choice([1, 3, 70, 500, 10**6, 10**10])
        counts = [rnd.randint(0, high) for _ in range(rnd.choice([1, 1, 2, 5, 40]))]
        counts[0] = counts[0] or 1
        settings = {
            "shuffle_shards": rnd.random() < 0.7,
            "shuffle_within_shard": rnd.random() < 0.5,
            "shuffle_block_size": rnd.choice([None, "auto", "global", 1, 2, 7, 100, 10**5]),
            "reshuffle_on_repeat": rnd.random() < 0.7,
        }
        made = make_dataset_order(f"d{d}", np.asarray(counts), seed=7, epoch=0, **settings)
        cursors.append(made), shapes.append(counts), knobs.append(settings)
    return cursors, shapes, knobs


def drawn_first(rnd, total):
    return rnd.choice([0, total - 1, rnd.randrange(total), rnd.randrange(1000 * total)])


def compare(seed, questions):
    rnd = random.Random(seed)
    cursors, shapes, knobs = drawn_datasets(rnd)
    draws = SampleLookup(cursors)
    for _ in range(questions):
        chosen = [d for d in range(len(cursors)) if rnd.random() < 0.8] or [0]
        first = [drawn_first(rnd, sum(shapes[d])) for d in chosen]
        count = [rnd.choice([1, 5, 60]) for _ in chosen]
        found = draws.of_ranges(*map(np.asarray, (chosen, first, count)))
        asked = [
            (d, start + n)
            for d, start, many in zip(chosen, first, count, strict=True)
            for n in range(many)
        ]
        wanted = [(d, *sample(cursors[d], shapes[d], knobs[d], draw)) for d, draw in asked]
        assert found.tolist() == [list(row) for row in wanted]
        order = rnd.sample(range(len(asked)), len(asked))
        scattered = draws.of_draws(*np.asarray(asked)[order].T)
        assert np.array_equal(scattered, found[order])


@pytest.mark.parametrize("seed", range(16))
def test_equal_to_one_draw_at_a_time(seed):
    compare(seed, questions=3)


@pytest.mark.slow
def test_equal_to_one_draw_at_a_time_long():
    for seed in range(100, 1500):
        compare(seed, questions=4)


@pytest.mark.parametrize(
    "limit", ["_WORTH", "LARGE", "_FAR", "_MAX_TABLE", "_MAX_ROWS", "_MAX_STEPS"]
)
def test_the_limits_of_tables_change_nothing(limit, monkeypatch):
    """Each way of searching, whatever the sizes."""
    monkeypatch.setattr(draws_module if limit == "_MAX_TABLE" else shard_table, limit, 2)
    for seed in range(40, 45):
        compare(seed, questions=2)


def test_passes_in_turn_need_few_tables():
    """Tables are made for some passes ahead: every sample is right, and few tables are made."""
    shapes = [[70] * 11, [50, 0, 90, 10], [600], [130] * 6]
    settings = {
        "shuffle_shards": True,
        "shuffle_within_shard": True,
        "shuffle_block_size": 16,
        "reshuffle_on_repeat": True,
    }
    cursors = [
        make_dataset_order(f"d{d}", np.asarray(counts), seed=3, epoch=0, **settings)
        for d, counts in enumerate(shapes)
    ]
    draws, tables, count = SampleLookup(cursors), [], np.asarray([300, 60, 240, 310])
    for n in range(60):  # each comes to another pass in every second or third question
        ids = draws.of_ranges(np.arange(4), n * count, count)
        tables.append(draws.table)
        for d, part in enumerate(np.split(ids, np.cumsum(count)[:-1])):
            draw = n * int(count[d]) + n % int(count[d])
            wanted = sample(cursors[d], shapes[d], settings, draw)
            assert part[n % int(count[d])].tolist() == [d, *wanted]
        first, last = draws.table.first, draws.table.last
        shards = np.asarray([c.counts.size for c in cursors])
        assert ((last - first + 1) * shards <= shard_table.LARGE).all()
    assert len({id(table) for table in tables}) < 25
    orders = [c.shard_orders.get(one) for c in cursors for one in range(100)]
    assert all(order.base is None for order in orders if order is not None)


def test_repeats_and_neighbors_of_far_passes():
    counts = [5, 0, 9, 1]
    settings = {
        "shuffle_shards": True,
        "shuffle_within_shard": True,
        "shuffle_block_size": 4,
        "reshuffle_on_repeat": True,
    }
    cursor = make_dataset_order("far", np.asarray(counts), seed=0, epoch=0, **settings)
    asked = np.asarray([15 * 10**12, 3, 3, 15 * 10**12 + 1, 15 * 10**6, 2**59])
    found = SampleLookup([cursor]).of_draws(np.zeros(6, dtype=np.int64), asked)
    assert found.tolist() == [
        [0, *sample(cursor, counts, settings, draw)] for draw in asked.tolist()
    ]
