"""A mixture that holds behind filters, splitters and packers, and resumes at every record."""

from __future__ import annotations

import json
import logging
import zlib
from fractions import Fraction

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

import zephon_jax as zx

NAMES = {"a": 0, "b": 1, "c": 2}
EVEN = dict.fromkeys(NAMES, 1)


def hashed(*words):
    return zlib.crc32(repr(words).encode())


def source_of(num_samples=400, weights=(1, 1, 1), sizes=None, **settings):
    datasets = [
        zx.Dataset.from_source(name, [(d, n) for n in range((sizes or [num_samples] * 3)[d])])
        for d, name in enumerate(NAMES)
    ]
    settings = {"chunk_size": 60, **settings}
    return zx.StaticMixtureWorkSource(datasets, dict(zip(NAMES, weights, strict=True)), **settings)


def keep(element):
    """Drops 90 % of the first component."""
    component, n = element["data"]
    return component != 0 or hashed(n, 5) % 10 == 0


class Split(grain.experimental.FlatMapTransform):
    """Makes 1 to 200 records of one."""

    max_fan_out = 200

    def __init__(self, most=200):
        self.most = most

    def flat_map(self, element):
        size = hashed(*element["data"]) % self.most + 1
        stamps = {"exhausted": element["exhausted"]} if "exhausted" in element else {}
        return [
            {"component_id": element["component_id"], "name": (*element["data"], n),
             "tokens": hashed(n, *element["data"]) % 50 + 1, **stamps}
            for n in range(size)
        ]  # fmt: skip


def uneven(lane, most=200):
    """After a filter that drops 90 % of one component, and a splitter."""
    return grain.experimental.FlatMapIterDataset(lane.filter(keep), Split(most))


def uneven_lane(num_samples, most=200, **settings):
    return uneven(zx.LaneIterDataset(source_of(num_samples, **settings)), most)


def worst_window(records, target, weigh, window=1000):
    """The largest distance of a component's share from its target in any window of records."""
    weights = np.array([weigh(record) for record in records])
    components = np.array([int(record["component_id"]) for record in records])
    of_each = (components[:, None] == np.arange(len(target))) * weights[:, None]
    sums = np.cumsum(np.concatenate([np.zeros((1, len(target))), of_each]), axis=0)
    inside = sums[window:] - sums[:-window]
    shares = inside / inside.sum(axis=1, keepdims=True)
    return float(np.abs(shares - np.array(target) / sum(target)).max())


def one(record):
    return 1


def tokens_of(record):
    return record["tokens"]


@pytest.mark.parametrize("weigh", [one, tokens_of])
@pytest.mark.parametrize("target", [(1, 1, 1), (5, 3, 2)])
def test_mixture_holds_behind_a_filter_and_a_splitter(weigh, target):
    records = list(
        zx.EnsureMixture(
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
    before = list(uneven_lane(30))
    dataset = zx.EnsureMixture(
        uneven_lane(30), EVEN, component_ids=NAMES, max_buffer_size=max_buffer_size
    )
    iterator, records = iter(dataset), []
    for record in iterator:
        records.append(record["name"])
        assert iterator._num_held <= max_buffer_size
    assert sorted(records) == sorted(r["name"] for r in before)


def test_even_records_come_as_chunks_are_read():
    """With records of weight 1 that are all there, the order is that of the core."""
    records = [{"component_id": d, "n": n} for d, c in enumerate((5, 3, 2)) for n in range(10 * c)]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = zx.EnsureMixture(
        dataset, {"a": 5, "b": 3, "c": 2}, component_ids=NAMES, weigh=one, max_buffer_size=100
    )
    counts = np.array([50, 30, 20])
    assert [r["component_id"] for r in mixed] == zx.swrr.order(counts).tolist()


class Records(grain.IterDataset):
    """A list as a stream."""

    def __init__(self, records):
        super().__init__()
        self.records = records

    def __iter__(self):
        return RecordsIterator(self.records)


class RecordsIterator(grain.DatasetIterator):
    def __init__(self, records):
        super().__init__()
        self.records, self.place = records, 0

    def __next__(self):
        if self.place == len(self.records):
            raise StopIteration
        self.place += 1
        return self.records[self.place - 1]

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]


def expected_order(records, weights, size, replay):
    """The rule told again, with fractions and plain lists."""
    held, out, place, gone, ended = [], [], 0, set(), False
    active, given_out = {d for d, w in enumerate(weights) if w}, dict.fromkeys(range(3), 0)

    def behind(d):
        total = sum(given_out.values())
        share = Fraction(weights[d], sum(weights[other] for other in active))
        return share * max(1, total) - given_out[d], -d

    def give_out(n):
        record = records[held.pop(n)]
        given_out[record["component_id"]] += record["tokens"]
        out.append(record["n"])

    while True:
        if held and place - held[0] >= replay:
            held.pop(0) if size is None else give_out(0)
            continue
        best = max(active, key=behind, default=None)
        mine = [n for n, h in enumerate(held) if records[h]["component_id"] == best]
        if mine:
            give_out(mine[0])
        elif best is not None and (best in gone or (ended and size is not None)):
            active.remove(best)
            given_out = dict.fromkeys(range(3), 0)
        elif (ended and size is None) or (ended and not held):
            return out
        elif ended or (size is not None and len(held) >= size):
            present = {records[h]["component_id"] for h in held} & active
            turn = max(present, key=behind, default=None)
            same = [n for n, h in enumerate(held) if records[h]["component_id"] == turn]
            give_out(same[0] if same else 0)
        elif place == len(records):
            ended = True  # known only when one more is wanted
        else:
            gone |= set(records[place].get("exhausted", ()))
            held.append(place)
            place += 1


@given(
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40),
    weights=st.tuples(*[st.integers(0, 3)] * 3).filter(any),
    size=st.none() | st.integers(1, 8),
    replay=st.integers(1, 12),
    stamped=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200)
def test_order_is_the_rule_and_resumes_anywhere(parts, weights, size, replay, stamped, data):
    replay = max(replay, 2) if size is None else replay
    records = []
    for n, (component, tokens) in enumerate(parts):
        later = {other for other, _ in parts[n:]}
        stamp = {"exhausted": sorted({0, 1, 2} - later)} if stamped else {}
        records.append({"component_id": component, "tokens": tokens, "n": n, **stamp})
    mixed = zx.EnsureMixture(
        Records(records), dict(zip(NAMES, weights, strict=True)), component_ids=NAMES,
        max_buffer_size=size, max_replay=replay, warn_tolerance=10,
    )  # fmt: skip
    expected = expected_order(records, weights, size, replay)
    assert [record["n"] for record in mixed] == expected
    if size is not None:
        assert sorted(expected) == list(range(len(records)))
    step = data.draw(st.integers(0, len(expected)))
    iterator, again = iter(mixed), iter(mixed)
    for _ in range(step):
        next(iterator)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert [record["n"] for record in again] == expected[step:]


SETTINGS = {
    "bounded": {"max_buffer_size": 40},
    "unbounded": {"max_buffer_size": None, "max_replay": 60},
    "tight": {"max_buffer_size": 100, "max_replay": 20},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_checkpoints_at_every_step(kind):
    dataset = zx.EnsureMixture(
        uneven_lane(40, most=4, chunk_size=6), EVEN, component_ids=NAMES, **SETTINGS[kind]
    )
    records, iterator, shapes = list(dataset), iter(dataset), set()
    assert len(records) > 20
    for step in range(len(records)):
        state = iterator.get_state()
        shapes.add((len(state["taken"]), len(state["emitted"]), tuple(state)))
        again = iter(dataset)
        again.set_state(json.loads(json.dumps(state)))
        assert again.get_state() == state
        assert [r["name"] for r in again] == [r["name"] for r in records[step:]]
        next(iterator)
    assert len(shapes) == 1
    short = zx.EnsureMixture(
        uneven_lane(12, most=5, chunk_size=6), EVEN, component_ids=NAMES, **SETTINGS[kind]
    )
    assert_equal_output_after_checkpoint(short)


@pytest.mark.parametrize("max_buffer_size", [None, 10_000])
def test_a_restore_replays_no_more_than_max_replay(max_buffer_size):
    read = 0

    def count(record):
        nonlocal read
        read += 1
        return record

    dataset = zx.EnsureMixture(
        uneven_lane(60).map(count), EVEN, component_ids=NAMES,
        max_buffer_size=max_buffer_size, max_replay=250,
    )  # fmt: skip
    iterator, worst, sizes = iter(dataset), 0, set()
    for _ in range(120):
        state = iterator.get_state()
        sizes.add(len(json.dumps(state)))
        assert state["num_elements"] <= 250
        before, again = read, iter(dataset)
        again.set_state(state)
        record = next(again)
        middle = read
        assert next(iterator)["name"] == record["name"]
        worst = max(worst, (middle - before) - (read - middle))
    print(f"elements replayed: {worst} of at most 250; state: {max(sizes)} bytes")
    assert 20 < worst <= 250
    assert max(sizes) < 1000


def test_a_component_that_is_used_up_is_not_waited_for():
    """Stamped, the others go on by their weights at once; not stamped, the buffer fills first."""
    source = source_of(
        sizes=[60, 900, 900], weights=(1, 1, 2), exhausted_policy="redistribute", chunk_size=30
    )
    held = {}
    for stamped in (True, False):
        lane = zx.LaneIterDataset(source)
        lane = zx.stamp_exhausted(lane) if stamped else lane
        records = lane.map(lambda e: {**e, "tokens": 1})
        target = {"a": 1, "b": 1, "c": 2}
        dataset = zx.EnsureMixture(
            records, target, component_ids=source.component_ids(), max_buffer_size=500
        )
        iterator, most, given = iter(dataset), 0, []
        for record in iterator:
            assert "exhausted" not in record
            given.append(int(record["component_id"]))
            if len(given) > 300:
                most = max(most, iterator._num_held)
        assert len(given) == len(source)
        after = np.array(given[300:1200])
        held[stamped] = most, np.bincount(after, minlength=3)
    assert held[True][0] < 40
    assert held[False][0] == 499  # the one that was given out left a place
    assert np.abs(held[True][1] / 900 - [0, 1 / 3, 2 / 3]).max() < 0.01


def test_drift_is_logged_once_each_time(caplog):
    def parts(counts):
        return [{"component_id": d, "tokens": 1} for d, n in enumerate(counts) for _ in range(n)]

    even = [{"component_id": n % 2, "tokens": 1} for n in range(200)]
    records = [*even, *parts([60, 0]), *parts([0, 60]), *even, *parts([200, 0])]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    two = {"a": 0, "b": 1}
    mixed = zx.EnsureMixture(
        dataset, {"a": 1, "b": 1}, component_ids=two, max_buffer_size=5, warn_tolerance=0.05
    )
    with caplog.at_level(logging.WARNING):
        iterator = iter(mixed)
        for n in range(len(records) - 1):
            next(iterator)
            if n % 20 == 0:  # a restore does not say it again
                state, iterator = iterator.get_state(), iter(mixed)
                iterator.set_state(state)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert all("the mixture drifts: 'a' has" in message for message in messages)
    assert "should have 50.0 %" in messages[0]


def test_rows_of_several_components_count_their_tokens():
    rng = np.random.default_rng(0)
    docs = [
        {"tokens": np.zeros(n, np.int32), "component_id": c}
        for n, c in zip(
            rng.integers(2, 60, 900), rng.choice(3, 900, p=[0.2, 0.5, 0.3]), strict=True
        )
    ]
    rows = zx.pack(grain.MapDataset.source(docs).to_iter_dataset(), 64, method="concat_then_split")
    mixed = zx.EnsureMixture(rows, EVEN, component_ids=NAMES, max_buffer_size=None)
    out = list(mixed)
    counts = zx.component_tokens(np.stack([row["component_ids"] for row in out]), 3)
    before = zx.component_tokens(np.stack([row["component_ids"] for row in rows]), 3)
    assert np.abs(before / before.sum() - 1 / 3).max() > 0.12
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 0.03


def test_weights_by_function_for_several_components():
    records = [{"parts": {0: 3, 1: 1}}, {"parts": {1: 2}}, {"parts": {}}, {"parts": {2: 9}}]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = zx.EnsureMixture(dataset, EVEN, component_ids=NAMES, weigh=lambda r: r["parts"])
    assert sorted(map(str, mixed)) == sorted(map(str, records))


@pytest.mark.filterwarnings("ignore:.*stay undelivered")
def test_elastic_lanes_resume_at_other_host_counts():
    source = source_of(200, chunk_size=10)

    def pipeline(lane):
        mixed = zx.EnsureMixture(
            uneven(zx.stamp_exhausted(lane), most=20),
            EVEN,
            component_ids=NAMES,
            max_buffer_size=None,
        )
        return mixed.map(lambda r: {"name": np.array(r["name"]), "tokens": np.int32(r["tokens"])})

    def hosts(count):
        return [
            iter(
                zx.ElasticIterDataset(
                    source, 4, pipeline, process_index=h, process_count=count,
                    lengths="unknown", global_batch_size=8,
                )
            )
            for h in range(count)
        ]  # fmt: skip

    def to_end(iterators):
        found = []
        while all(parts := [next(iterator, None) for iterator in iterators]):
            found.append(np.concatenate([part["name"] for part in parts]))
        return found

    expected = to_end(hosts(1))
    assert len(expected) > 20
    iterators = hosts(2)
    for step in range(0, len(expected) - 1, 9):
        states = [json.loads(json.dumps(it.get_state())) for it in iterators]
        lanes = {lane: state for single in states for lane, state in single["lanes"].items()}
        others = hosts(4)
        for other in others:
            other.set_state({**states[0], "lanes": lanes})
        np.testing.assert_equal(to_end(others), expected[step:])
        for _ in range(9):
            for iterator in iterators:
                next(iterator, None)


def test_flushed_lots_lose_nothing():
    lane = zx.LaneIterDataset(source_of(60, chunk_size=10))
    flushed = zx.FlushIterDataset(
        lane, lambda lane: zx.EnsureMixture(uneven(lane, 9), EVEN, component_ids=NAMES), 3
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
        ({"warn_tolerance": -1}, ValueError, "warn_tolerance = -1"),
        ({"weigh": "size"}, ValueError, r"weigh = 'size'.*got \['component_id', 'tokens'\]"),
        ({"weigh": lambda r: -2}, ValueError, "weight of a record must be at least 0; got -2"),
        ({"weigh": lambda r: 0.5}, TypeError, "weight of a record must be an integer"),
        ({"records": [{"tokens": 1}]}, ValueError, "must keep 'component_id'"),
        ({"records": [{"component_id": 7, "tokens": 1}]}, ValueError, "of component 7; known"),
        ({"records": [3]}, ValueError, "dicts with 'component_id'; got int"),
    ],
)
def test_bad_input(settings, error, text):
    records = settings.pop("records", [{"component_id": 0, "tokens": 1}])
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    arguments = {"dataset": dataset, "target_mixture": EVEN, "component_ids": NAMES, **settings}
    with pytest.raises(error, match=text):
        next(iter(zx.EnsureMixture(**arguments)))


def test_an_error_leaves_the_iterator_usable():
    broken = True

    def weigh(record):
        if broken and record["n"] == 7:
            raise RuntimeError("no tokenizer")
        return 1

    records = [{"component_id": n % 3, "n": n} for n in range(20)]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = zx.EnsureMixture(dataset, EVEN, component_ids=NAMES, weigh=weigh)
    iterator = iter(mixed)
    assert [next(iterator)["n"] for _ in range(7)] == list(range(7))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no tokenizer"):
            next(iterator)
    broken = False
    assert [record["n"] for record in iterator] == list(range(7, 20))


@pytest.mark.parametrize("size", [4, None])
def test_an_error_while_records_are_read_again_is_no_loss(size):
    """A parent that fails once, at each of the elements that a restore takes again."""

    class Flaky(RecordsIterator):
        fails_at = None

        def __next__(self):
            if self.place == self.fails_at:
                self.fails_at = None
                raise OSError("disk trouble")
            return super().__next__()

    class FlakyRecords(Records):
        def __iter__(self):
            return Flaky(self.records)

    records = [{"component_id": c, "tokens": 1, "n": n} for n, c in enumerate([0, 0, 0, 1, 2] * 9)]
    mixed = zx.EnsureMixture(
        FlakyRecords(records), EVEN, component_ids=NAMES, max_buffer_size=size, max_replay=12,
        warn_tolerance=10,
    )  # fmt: skip
    whole = [record["n"] for record in mixed]
    for step in range(len(whole)):
        iterator = iter(mixed)
        for _ in range(step):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        for n in range(state["num_elements"]):
            again = iter(mixed)
            again.set_state(state)
            again._parents[0].fails_at = state["parent"]["place"] + n
            with pytest.raises(OSError, match="disk trouble"):
                next(again)
            assert again.get_state() == state
            assert [record["n"] for record in again] == whole[step:]


def test_drops_are_told_once(caplog):
    records = [{"component_id": 0, "tokens": 1}] * 100
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = zx.EnsureMixture(
        dataset, EVEN, component_ids=NAMES, max_buffer_size=None, max_replay=9, warn_tolerance=10
    )
    assert len(list(mixed)) == 1
    assert [r.getMessage().count("'a' has more") for r in caplog.records] == [1]


def test_states_of_others_are_refused():
    dataset = grain.MapDataset.source([{"component_id": 0, "tokens": 1}]).to_iter_dataset()
    iterator = iter(zx.EnsureMixture(dataset, EVEN, component_ids=NAMES))
    good = iterator.get_state()
    two = zx.EnsureMixture(dataset, {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1})

    def state_of(**other):
        settings = {"target_mixture": EVEN, "component_ids": NAMES, **other}
        return iter(zx.EnsureMixture(dataset, **settings)).get_state()

    for bad, text in (
        ({}, "not the state of EnsureMixture"),
        ({**good, "emitted": ["x", 0, 0]}, "not the state of EnsureMixture"),
        ({**good, "num_elements": 1 << 40}, "num_elements"),
        ({**good, "taken": ""}, "another max_replay"),
        (iter(two).get_state(), "of 2 components; this mixture has 3"),
        (state_of(target_mixture={"a": 2, "b": 1, "c": 1}), "another target_mixture"),
        (state_of(component_ids={"b": 0, "a": 1, "c": 2}), "other component_ids"),
        (state_of(max_buffer_size=None), "another max_buffer_size"),
    ):
        with pytest.raises(ValueError, match=text):
            iterator.set_state(bad)
    iterator.set_state({**good, "num_elements": 2})
    with pytest.raises(ValueError, match="the data ended"):
        next(iterator)
