"""Schedules draw what an oracle draws, wherever one looks: by chunk, by sample, by lane."""

from __future__ import annotations

import pickle
import random
import warnings
from fractions import Fraction

import numpy as np
import pytest
from support import oracles
from support.elastic_runs import hosts, rows
from support.helpers import chunks_of, mixture, samples_of, scheduled

import zephon_jax as zx
from zephon_jax.mixture.positions import Steps

NAMES = "abcdefghij"


class Drawn:
    """A drawn schedule, with what an oracle says of it."""

    def __init__(self, seed, most_chunks=60):
        rnd = random.Random(seed)
        k = rnd.choice([1, 2, 2, 3, 4, 6])
        self.chunk_size = rnd.choice([1, 2, 3, 5, 7, 16, 100])
        ends = sorted(rnd.sample(range(1, most_chunks), rnd.randint(0, 8)))
        self.stages = []
        for end in [*ends, None]:
            weights = [0]
            while not any(weights):
                weights = [rnd.choice([0, 0, 1, 2, 0.3, rnd.randint(1, 999)]) for _ in range(k)]
            kind = rnd.choice(["step", "linear", "cosine"]) if end is not None else "step"
            self.stages.append((end, weights, kind))
        most = most_chunks * self.chunk_size // max(1, k - 1)
        self.sizes = [rnd.randint(1, most) for _ in range(k)]
        self.policy = rnd.choice(["repeat", "passes", "redistribute", "mixed"])
        self.num_chunks = most_chunks + 20
        self.settings = {"exhausted_policy": "repeat", "chunk_size": self.chunk_size}
        limits = {}
        if self.policy == "passes":
            passes = rnd.randint(1, 3)
            self.settings["exhausted_policy"], limits["passes"] = None, passes
            self.settings["stop_after_passes"] = passes
        elif self.policy == "redistribute":
            self.settings["exhausted_policy"] = "redistribute"
            limits["leaving"] = range(k)
        elif self.policy == "mixed":
            given = [rnd.choice(["stop", "repeat", "redistribute"]) for _ in range(k)]
            self.settings["exhausted_policy"] = dict(zip(NAMES, given, strict=False))
            limits["leaving"] = [d for d in range(k) if given[d] == "redistribute"]
            pairs = zip(given, self.sizes, strict=True)
            limits["caps"] = [size if one == "stop" else None for one, size in pairs]
        self.changes = oracles.schedule_weights(self.stages)
        self.rows = oracles.scheduled_run(
            self.changes, self.chunk_size, self.sizes, self.num_chunks, **limits
        )

    def source(self):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a chunk of")  # that goes through all data
            return self._source()

    def _source(self):
        return scheduled(self.sizes, self.stages, **self.settings)


def counts_of(source, num_chunks):
    rows, first = [], 0
    while first < num_chunks:
        part = source.chunk_counts(first, num_chunks - first)
        rows += part.counts.tolist()
        first += len(part.counts)
        if part.ended:
            break
    return rows


def drawn_schedule(seed):
    """A drawn schedule whose first quotas are possible, and its source."""
    drawn = Drawn(seed)
    try:
        return drawn, drawn.source()
    except ValueError as error:
        if drawn.policy != "mixed" or " has only " not in str(error):
            raise
        return None


def check_counts(seed):
    found = drawn_schedule(seed)
    if found is None:
        return
    drawn, source = found
    assert counts_of(source, drawn.num_chunks) == drawn.rows, seed
    if drawn.policy in ("repeat", "passes"):
        check_shares(drawn)


def check_targets(seed):
    """Each chunk tells the weights that hold there, in whatever order chunks are asked for."""
    found = drawn_schedule(seed)
    if found is None:
        return
    drawn, source = found
    leaving = [p == "redistribute" for p in source.settings.exhausted_policy]
    given, wanted = [0] * len(drawn.sizes), []
    for g, row in enumerate(drawn.rows):
        shares = [c for c in drawn.changes if c[0] <= g][-1][1]
        ended = [
            left and n >= size for left, n, size in zip(leaving, given, drawn.sizes, strict=True)
        ]
        here = [0 if over else share for over, share in zip(ended, shares, strict=True)]
        names = zip(source.settings.names, here, strict=True)
        wanted.append({name: float(share / sum(here)) for name, share in names})
        given = [a + b for a, b in zip(given, row, strict=True)]
    places = list(range(len(wanted)))
    for g in random.Random(seed).sample([*places, *places], len(places)):
        chunk, _ = source.next_chunk(source.seek(g))
        assert chunk.target_mixture == pytest.approx(wanted[g], abs=1e-12), (seed, g)


def check_shares(drawn):
    """At each chunk boundary every component is within 2 samples of the sum of its shares."""
    exact, given = [0] * len(drawn.sizes), [0] * len(drawn.sizes)
    for g, row in enumerate(drawn.rows):
        shares = [c for c in drawn.changes if c[0] <= g][-1][1]
        exact = [a + share * drawn.chunk_size for a, share in zip(exact, shares, strict=True)]
        given = [a + b for a, b in zip(given, row, strict=True)]
        assert all(abs(a - b) < 2 for a, b in zip(exact, given, strict=True))
        assert sum(row) == drawn.chunk_size


def test_drawn_schedules():
    for seed in range(60):
        check_counts(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_drawn_schedules_long(part):
    for seed in range(1000 + 500 * part, 1500 + 500 * part):
        check_counts(seed)


def own_order(source, d, number):
    """The first samples of a dataset, from a source that has no other."""
    dataset = source.datasets_by_id[d]
    alone = zx.StaticMixtureWorkSource(
        [dataset], {dataset.name: 1}, source.chunk_size_hint(), exhausted_policy="repeat"
    )
    return alone.sample_ids_at(np.arange(number))[:, 1:].tolist()


def check_everywhere(seed):
    found = drawn_schedule(seed)
    if found is None:
        return
    drawn, source = found
    rnd = random.Random(seed)
    chunks = chunks_of(source, limit=drawn.num_chunks)
    assert [chunk.counts.tolist() for chunk in chunks] == drawn.rows
    assert [chunk.chunk_index for chunk in chunks] == list(range(len(drawn.rows)))
    for d, name in enumerate(source.component_ids()):  # each goes on where it was
        ids = [row for chunk in chunks for row in chunk.components[name][:, 1:].tolist()]
        assert ids == own_order(source, d, len(ids))
    flat = [tuple(one) for one, _ in samples_of(chunks)]
    places = rnd.sample(range(len(flat)), min(len(flat), 30)) if flat else []
    fresh = drawn.source()  # that has not seen anything
    assert [tuple(fresh[i]) for i in places] == [flat[i] for i in places]
    num_lanes, lanes = rnd.choice([1, 2, 3, 8]), {}
    for lane in range(num_lanes):
        state = source.init(lane, num_lanes)
        while True:
            state = zx.decode_state(fresh, zx.encode_state(state))
            chunk, state = fresh.next_chunk(state)
            if chunk is None or chunk.chunk_index >= drawn.num_chunks:
                break
            lanes[chunk.chunk_index] = [tuple(one) for one, _ in chunk]
    assert [lanes[g] for g in sorted(lanes)] == [[tuple(one) for one, _ in c] for c in chunks]
    for g in rnd.sample(range(len(chunks)), min(len(chunks), 10)):
        chunk, _ = drawn.source().next_chunk(drawn.source().seek(g))
        assert list(chunk) == list(chunks[g])


def test_chunks_samples_and_lanes_of_drawn_schedules():
    for seed in [*range(10_000, 10_012), 20_084]:  # in the last one a dataset leaves at a change
        check_everywhere(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_chunks_samples_and_lanes_of_drawn_schedules_long(part):
    for seed in range(20_000 + 60 * part, 20_000 + 60 * part + 60):
        check_everywhere(seed)


def test_chunks_tell_the_weights_that_hold_there():
    for seed in range(6):
        check_targets(seed)


def test_one_stage_is_the_static_mixture():
    sizes, weights = [[31, 3], 50, 3], [5, 3, 0.7]
    static = mixture(sizes, weights, chunk_size=16, stop_after_passes=3)
    for stages in ([(None, weights)], [(4, weights), (9, weights, "linear"), (None, weights)]):
        source = scheduled(sizes, stages, chunk_size=16, stop_after_passes=3)
        assert samples_of(chunks_of(source)) == samples_of(chunks_of(static))
        for n, lanes in ((0, 1), (5, 3)):
            state = static.seek(n, lanes - 1, lanes)
            assert zx.encode_state(source.seek(n, lanes - 1, lanes)) == zx.encode_state(state)
            assert list(source.next_chunk(state)[0]) == list(static.next_chunk(state)[0])


def test_a_component_that_is_switched_on_late():
    """SimpleTuner#3099: a dataset that was switched on late gave hosts other numbers of rows."""
    datasets = [zx.Dataset.from_source(name, [n] * 900) for n, name in enumerate("abc")]
    stages = [  # chunk 10 is inside a block of 8 lanes
        zx.Stage(until=10, mixture={"a": 1, "b": 1, "c": 0}),
        zx.Stage(mixture={"a": 1, "b": 1, "c": 2}),
    ]
    source = zx.ScheduledMixtureWorkSource(
        datasets, stages, chunk_size=40, exhausted_policy="repeat"
    )
    assert source.component_ids() == {"a": 0, "b": 1, "c": 2}
    lanes = [chunks_of(source, lane, 8, limit=4) for lane in range(8)]
    assert {len(chunk) for lane in lanes for chunk in lane} == {40}
    by_index = {chunk.chunk_index: chunk for lane in lanes for chunk in lane}
    assert sorted(by_index) == list(range(32))
    assert [by_index[g].counts.tolist() for g in (9, 10)] == [[20, 20, 0], [10, 10, 20]]
    iterators = [iter(d) for d in hosts(source, 8, rows, 8, global_batch_size=8)]
    held = []
    for _ in range(120):
        parts = [next(iterator)["x"] for iterator in iterators]
        assert {part.shape for part in parts} == {(1,)}
        held.append(2 in np.concatenate(parts))
    # Six of the eight chunks of the second block have it, then all; by the lattice, at each step.
    assert not any(held[:40])
    assert sum(held[40:80]) > 30
    assert all(held[80:])


@pytest.mark.parametrize("until", [0, 1, 7, 8, 300])
def test_boundaries_anywhere(until):
    """At chunk 0, inside and at the end of a block of lanes, and past the end of the run."""
    expected = [[8, 0] if g < until else [4, 4] for g in range(30)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if until == 0 else "error")
        source = scheduled([160, 60], [(until, [1, 0]), (None, [1, 1])], chunk_size=8)
    assert source.boundaries == (0, until)
    chunks = chunks_of(source)
    # The run ends where both have had a pass; one that only comes later is waited for.
    assert [c.counts.tolist() for c in chunks][:30] == expected[: len(chunks)]
    assert len(source) == sum(map(len, chunks))
    lanes = {c.chunk_index for lane in range(8) for c in chunks_of(source, lane, 8)}
    assert lanes == set(range(len(chunks)))


def test_carries_go_on_where_somebody_waits():
    """Switched off and on again a thousand times, a component still has what it was owed."""
    stages = [(n + 1, [1, 1, n % 2]) for n in range(999)] + [(None, [1, 1, 1])]
    source = scheduled([50] * 3, stages, chunk_size=5, exhausted_policy="repeat")
    drawn = source.drawn_before(999)
    exact = Fraction(5 * 500, 2) + Fraction(5 * 499, 3)
    assert all(abs(n - exact) < 2 for n in drawn[:2].tolist())
    assert abs(int(drawn[2]) - Fraction(5 * 499, 3)) < 2


def test_samples_round_to_the_nearest_chunk():
    stages = [(zx.samples(149), [1]), (zx.samples(250), [2]), (None, [3])]
    assert scheduled([900], stages, chunk_size=100).boundaries == (0, 1, 3)


def one(until, weight=1, ramp=None):
    return zx.Stage(until=until, mixture={"a": weight}, ramp=ramp)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([], "at least one zx.Stage"),
        ("abc", "list of zx.Stage; got 'abc'"),
        ([{"until": 3}], r"stages\[0\] must be a zx.Stage"),
        ([one(5), one(3), one(None)], r"stages\[1\].until = 3 is chunk 3.*begins at chunk 5"),
        ([one(5), one(5), one(None)], r"stages\[1\].until = 5.*ascending"),
        ([one(zx.samples(16)), one(zx.samples(17)), one(None)], r"stages\[1\].until.*ascending"),
        ([one(5), one(8)], r"stages\[1\] is the last one.*None; got 8"),
        ([one(None), one(None)], r"stages\[0\].until is missing"),
        ([one(5), one(zx.samples(99)), one(None)], r"stages\[1\].until counts samples"),
        ([one(zx.tokens(5)), one(None)], r"stages\[0\].until = 5 tokens"),
        ([one(-1), one(None)], r"stages\[0\].until must be"),
        ([one(2.5), one(None)], r"stages\[0\].until must be"),
        ([one(2, 0), one(None)], r"stages\[0\]: mixture must have a positive weight"),
        ([one(2), one(None, -1)], r"stages\[1\]: mixture weights must not be negative"),
        ([one(2), zx.Stage(mixture={"b": 1})], r"stages\[1\]: mixture must give every dataset"),
        ([one(2, ramp="fast"), one(None)], r"stages\[0\].ramp must be one of .*got 'fast'"),
        ([one(2, ramp=-3), one(None)], r"stages\[0\].ramp must be one of .*got -3"),
        ([one(2), one(None, ramp="linear")], r"stages\[1\].ramp = 'linear' has no stage"),
    ],
)  # fmt: skip
def test_bad_stages_are_named(stages, says):
    with pytest.raises((ValueError, TypeError), match=says):
        zx.ScheduledMixtureWorkSource([zx.Dataset.from_counts("a", [9])], stages, chunk_size=4)


def test_settings_that_no_chunk_can_follow_are_refused():
    with pytest.raises(ValueError, match=r"ramp must be one of .*got 'fast'"):
        scheduled([9], [(None, [1])], ramp="fast")
    stages = [(2, [1, 0]), (None, [1, 1])]
    with pytest.raises(ValueError, match="'b' gives 4 samples to each chunk from 2 on"):
        scheduled([99, 3], stages, chunk_size=10, exhausted_policy="stop")


def test_states_of_another_schedule_are_refused():
    one, other = (
        scheduled([90, 90], [(until, [1, 1]), (None, [1, 2])], chunk_size=4) for until in (5, 6)
    )
    data = zx.encode_state(one.seek(3))
    assert zx.decode_state(one, data).chunk_index == 3
    with pytest.raises(ValueError, match="with other changes of the weights"):
        zx.decode_state(other, data)
    with pytest.raises(ValueError, match="number of changes of the weights, changes of"):
        zx.decode_state(mixture([90, 90], [1, 1], chunk_size=4), data)
    state = one.seek(8)
    wrong = state._replace(carry=state.carry + np.asarray([1, 0], dtype=np.int32))
    with pytest.raises(ValueError, match="contradicts itself"):
        one.next_chunk(wrong)


def test_long_histories_are_gone_through_once(monkeypatch):
    """A restore goes through no change before its chunk, and a seek only once through all."""
    rnd = random.Random(5)
    stages = [(1000 * (n + 1), [rnd.randint(1, 50) for _ in range(4)]) for n in range(99)]
    made = {"ramp": "linear", "chunk_size": 500, "exhausted_policy": "repeat"}
    source = scheduled([10**6] * 4, [*stages, (None, [1, 1, 1, 1])], **made)
    calls, step = [], Steps.changed

    def counted(self, position):
        calls.append(position.chunk_index)
        return step(self, position)

    monkeypatch.setattr(Steps, "changed", counted)
    data = zx.encode_state(source.seek(98_990))
    assert len(calls) > 5000
    for g in (98_991, 17, 55_555):
        calls.clear()
        source.seek(g)
        assert not calls
    fresh = pickle.loads(pickle.dumps(source))
    chunks = chunks_of(fresh, state=zx.decode_state(fresh, data), limit=3)
    assert len(calls) <= 1
    assert [list(c)[:9] for c in chunks] == [
        list(c)[:9] for c in chunks_of(source, state=source.seek(98_990), limit=3)
    ]


def test_a_stage_with_more_datasets_than_slots_is_refused_at_construction():
    datasets = [zx.Dataset.from_counts(name, [10]) for name in ("a", "b", "c")]
    stages = [
        zx.Stage(until=5, mixture={"a": 1, "b": 1, "c": 0}),
        zx.Stage(until=None, mixture={"a": 1, "b": 1, "c": 1}),
    ]
    with pytest.raises(ValueError, match="3 components and chunk_size = 2"):
        zx.ScheduledMixtureWorkSource(datasets, stages, chunk_size=2, allocation="fixed")
