"""Schedules by virtual time, in samples and in tokens: what an oracle draws, wherever one looks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support import oracles
from support.helpers import chunks_of, samples_of, scheduled

import zephon_jax as zx
from zephon_jax.data.token_estimation import TOKEN_UNIT

NAMES = "abcdef"


class Drawn:
    """A drawn schedule, in samples or in tokens, and what an oracle says of it."""

    def __init__(self, seed, most_chunks=30):
        rnd = random.Random(seed)
        k = rnd.choice([1, 2, 2, 3, 4, 6])
        self.chunk_size, self.num_chunks = rnd.choice([1, 2, 3, 7, 16, 40]), most_chunks + 8
        self.stages = []
        for end in [*sorted(rnd.sample(range(1, most_chunks), rnd.randint(1, 6))), None]:
            weights = [0]
            while not any(weights):
                weights = [rnd.choice([0, 0, 1, 2, 0.3, rnd.randint(1, 99)]) for _ in range(k)]
            self.stages.append((end, weights, rnd.choice(["step", "linear", "cosine"])))
        self.stages[-1] = (*self.stages[-1][:2], "step")
        self.sizes = [[rnd.randint(1, 60) for _ in range(rnd.choice([1, 1, 3]))] for _ in range(k)]
        self.settings = {"exhausted_policy": "repeat", "chunk_size": self.chunk_size}
        self.settings |= {"shuffle_shards": False, "allocation": "virtual_time"}
        self.costs = [[1] * sum(sizes) for sizes in self.sizes]
        if rnd.random() < 0.6:
            self.settings["allocation"] = "incremental"  # tokens say how
            long = [rnd.choice([1, 1, 30]) for _ in range(k)]
            totals = [
                [size * each * rnd.randint(1, 20) + rnd.randint(0, size) for size in sizes]
                for sizes, each in zip(self.sizes, long, strict=True)
            ]
            named = dict(zip(NAMES, totals, strict=False))
            self.settings["token_estimation"] = zx.TokenEstimation.from_shard_totals(named)
            self.costs = [
                oracles.piece_costs(sizes, [TOKEN_UNIT * one for one in total], 0)
                for sizes, total in zip(self.sizes, totals, strict=True)
            ]
        self.rows, self.beyond = oracles.scheduled_queue(
            oracles.schedule_weights(self.stages),
            self.chunk_size,
            self.num_chunks,
            lambda d, j: self.costs[d][j % len(self.costs[d])],
        )

    def source(self, **settings):
        return scheduled(self.sizes, self.stages, **{**self.settings, **settings})


def check(seed):
    drawn = Drawn(seed)
    source, rnd = drawn.source(), random.Random(seed)
    chunks = chunks_of(source, limit=drawn.num_chunks)
    assert [chunk.counts.tolist() for chunk in chunks] == drawn.rows, seed
    counts, first = [], 0
    fresh = drawn.source()  # that has not seen anything
    while first < drawn.num_chunks:
        part = fresh.chunk_counts(first, drawn.num_chunks - first)
        counts += part.counts.tolist()
        first += len(part.counts)
    assert counts == drawn.rows, seed
    # Within one draw of its own and one of each component from the integral of its weights.
    most = [max(costs) for costs in drawn.costs]
    for row in drawn.beyond:
        assert all(abs(a) <= own + sum(most) for a, own in zip(row, most, strict=True)), seed
    flat = [tuple(one) for one, _ in samples_of(chunks)]
    places = rnd.sample(range(len(flat)), min(len(flat), 20))
    fresh = drawn.source()
    assert [tuple(fresh[i]) for i in places] == [flat[i] for i in places]
    num_lanes = rnd.choice([2, 3, 8])
    for g in rnd.sample(range(drawn.num_chunks), 4):
        lane = int(source.lanes_of_chunks(np.asarray([g]), num_lanes)[0])
        state = zx.decode_state(fresh, zx.encode_state(drawn.source().seek(g, lane, num_lanes)))
        for _ in range(2):  # across changes, too
            chunk, state = fresh.next_chunk(state)
            if chunk.chunk_index < drawn.num_chunks:
                assert list(chunk) == list(chunks[chunk.chunk_index]), seed


def test_drawn_schedules():
    for seed in [*range(12), 1115, 1300]:  # in the last two somebody is ahead by many chunks
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_drawn_schedules_long(part):
    for seed in range(1000 + 100 * part, 1100 + 100 * part):
        check(seed)


@pytest.mark.parametrize("seed", range(2))
def test_switched_on_and_off(seed):
    """Hundreds of changes move nobody away from the sum of its shares."""
    rnd = random.Random(seed)
    mixes = [[rnd.randint(0, 9) for _ in range(4)] for _ in range(2)]
    mixes = [[1, *mix[1:]] for mix in mixes]
    stages = [(2 * n + 2, mixes[n % 2]) for n in range(150)] + [(None, [1, 1, 1, 1])]
    size, costs = 5, {"a": 3, "b": 40, "c": 1, "d": 7}
    tokens = zx.TokenEstimation.from_shard_totals({n: [900 * c] for n, c in costs.items()})
    source = scheduled(
        [900] * 4, stages, chunk_size=size, exhausted_policy="repeat", token_estimation=tokens
    )
    exact, given = np.zeros(4), np.zeros(4)
    first, most = 0, np.asarray(list(costs.values()))
    while first < 300:
        part = source.chunk_counts(first, 300 - first)
        spent = part.counts * most
        share = np.asarray(mixes[first // 2 % 2]) / sum(mixes[first // 2 % 2])
        exact, given = exact + share * spent.sum(), given + spent.sum(axis=0)
        assert np.abs(exact - given).max() <= most.max() + most.sum()
        first += len(part.counts)


def in_tokens(stages, sizes=(60, 40, 90), totals=(600, 4000, 900), **settings):
    named = {name: [total] for name, total in zip(NAMES, totals, strict=False)}
    settings = {"chunk_size": 7, "exhausted_policy": "repeat", **settings}
    tokens = zx.TokenEstimation.from_shard_totals(named)
    return scheduled(sizes, stages, token_estimation=tokens, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"exhausted_policy": None, "stop_after_passes": 2},
        {"exhausted_policy": "redistribute"},
        {"exhausted_policy": {"a": "redistribute", "b": "repeat", "c": "stop"}},
        {"exhausted_policy": None, "max_repeats": 1, "shuffle_block_size": 16},
    ],
    ids=["passes", "redistribute", "policies", "capped"],
)
def test_ends_are_found_from_anywhere(settings):
    stages = [(4, [1, 0, 1], "linear"), (9, [1, 2, 0]), (None, [2, 1, 1])]
    source = in_tokens(stages, **settings)
    chunks = chunks_of(source, limit=400)
    assert len(chunks) < 400
    assert len(source) == sum(map(len, chunks))
    ids = [one for one, _ in samples_of(chunks)]
    again = in_tokens(stages, **settings)
    assert again.sample_ids_at(np.arange(len(ids))).tolist() == [list(one) for one in ids]
    for g in (0, 4, len(chunks) // 2, len(chunks) - 1):
        assert list(again.next_chunk(again.seek(g))[0]) == list(chunks[g])
    lanes = [chunk for lane in range(3) for chunk in chunks_of(again, lane, 3)]
    assert sorted(one.chunk_index for one in lanes) == list(range(len(chunks)))
    assert all(list(one) == list(chunks[one.chunk_index]) for one in lanes)
    if settings["exhausted_policy"] == "redistribute":
        assert len(set(ids)) == len(ids)
        zx.testing.check_source(again, exactly_once=True)


def test_one_stage_is_the_static_mixture():
    stages = [(None, [3, 2, 1])]
    for settings in ({}, {"stop_after_passes": 2, "exhausted_policy": None}):
        one = in_tokens(stages, **settings)
        static = zx.StaticMixtureWorkSource(
            list(one.datasets_by_id.values()),
            {"a": 3, "b": 2, "c": 1},
            token_estimation=one.token_estimation,
            **{"chunk_size": 7, "exhausted_policy": "repeat", **settings},
        )
        assert zx.encode_state(one.seek(5, 1, 2)) == zx.encode_state(static.seek(5, 1, 2))
        assert samples_of(chunks_of(one, limit=50)) == samples_of(chunks_of(static, limit=50))


def test_a_mixture_in_tokens_is_changed_in_mid_run():
    source = in_tokens([(None, [1, 1, 0])])
    saved = zx.encode_state(source.seek(5))
    changed = source.with_mixture({"a": 0, "b": 1, "c": 1}, at=5)
    planned = in_tokens([(5, [1, 1, 0]), (None, [0, 1, 1])])
    assert samples_of(chunks_of(changed, limit=20)) == samples_of(chunks_of(planned, limit=20))
    state = zx.decode_state(changed, saved)
    assert list(changed.next_chunk(state)[0]) == list(planned.next_chunk(planned.seek(5))[0])
    more = zx.Dataset.from_counts("d", [30])
    with pytest.raises(ValueError, match=r"\['d'\] were added in mid-run to a mixture in tokens"):
        source.with_mixture({"a": 0, "b": 1, "c": 1, "d": 1}, at=5, datasets=[more])
    grown = zx.Dataset.from_counts("a", [60, 30])
    totals = zx.TokenEstimation.from_shard_totals({"a": [600, 300], "b": [4000], "c": [900]})
    with pytest.raises(ValueError, match=r"\['a'\] got shards in mid-run"):
        source.with_mixture(
            {"a": 1, "b": 1, "c": 1}, at=5, datasets=[grown], token_estimation=totals
        )


def test_shards_and_datasets_are_added_by_virtual_time():
    settings = {"exhausted_policy": "repeat", "allocation": "virtual_time", "chunk_size": 9}
    first = scheduled([[30], [20]], [(None, [3, 2])], **settings)
    more = [zx.Dataset.from_counts("a", [30, 25]), zx.Dataset.from_counts("c", [40])]
    changed = first.with_mixture({"a": 1, "b": 0, "c": 1}, at=5, datasets=more)
    saved = zx.encode_state(first.seek(5, 1, 2))
    chunks = chunks_of(changed, limit=20)
    rows, _ = oracles.scheduled_queue(
        oracles.schedule_weights([(5, [3, 2, 0], "step"), (None, [1, 0, 1], "step")]), 9, 20
    )
    assert [chunk.counts.tolist() for chunk in chunks] == rows
    assert samples_of(chunks[:5]) == samples_of(chunks_of(first, limit=5))
    after = changed.next_chunk(zx.decode_state(changed, saved))[0]
    assert list(after) == list(chunks[after.chunk_index])
    ids = [tuple(one) for one, name in samples_of(chunks) if name == "a"]
    assert len(set(ids[:55])) == 55  # the first pass ends with the new shards


def test_weights_far_apart_and_many_components():
    stages = [(n + 1, [n % 2, 1, 1e-6, *[1e-3] * 40]) for n in range(9)]
    stages.append((None, [1, 1, 1, *[1] * 40]))
    settings = {"chunk_size": 90, "exhausted_policy": "repeat", "allocation": "virtual_time"}
    names = [zx.Dataset.from_counts(f"d{d}", [50]) for d in range(43)]
    made = [
        zx.Stage(until=until, mixture={f"d{d}": w for d, w in enumerate(mix)})
        for until, mix in stages
    ]
    source = zx.ScheduledMixtureWorkSource(names, made, **settings)
    rows, beyond = oracles.scheduled_queue(
        oracles.schedule_weights([(*s, "step") for s in stages]), 90, 14
    )
    assert [chunk.counts.tolist() for chunk in chunks_of(source, limit=14)] == rows
    assert max(abs(one) for row in beyond for one in row) < 3
