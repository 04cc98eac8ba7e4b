"""A mixture that holds behind filters, splitters and packers, and resumes at every record."""

from __future__ import annotations

import json
import logging
import zlib
from fractions import Fraction
from typing import ClassVar

import grain
import jax.numpy as jnp
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

import zephon_jax as zx
from zephon_jax import ensure_mixture

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


class Endless(Exception):
    """A wait that drops too many records."""


class Expected:
    """The rule told again, with fractions and plain lists."""

    def __init__(self, weights, size, replay):
        self.weights, self.size, self.replay = weights, size, replay
        self.active = {d for d, weight in enumerate(weights) if weight}
        self.given_out = dict.fromkeys(range(3), 0)

    def furthest(self, those):
        """Who of some components is furthest behind its share of what these were given."""

        def behind(d):
            total = sum(self.given_out[other] for other in those)
            share = Fraction(self.weights[d], sum(self.weights[other] for other in those))
            return share * max(1, total) - self.given_out[d], -d

        return max(those, key=behind, default=None)

    def waits_for(self, parts):
        """The component that a row has most of for its target; of equals the one named first."""
        wanted = {d: weight for d, weight in parts.items() if weight and self.weights[d]}
        return max(wanted, key=lambda d: Fraction(wanted[d], self.weights[d]), default=None)

    def find(self, held, best):
        """Place in the buffer of the oldest that waits for a component."""
        return next((n for n, parts in enumerate(held) if self.waits_for(parts) == best), None)

    def order(self, records):
        held, out, place, used_up, ended, in_vain = [], [], 0, set(), False, 0

        def give_out(n):
            record = records[held.pop(n)]
            for d, weight in record["parts"].items():
                self.given_out[d] += weight
            out.append(record["n"])
            return 0

        def drop(n):
            if in_vain >= 16 * self.replay:
                raise Endless
            held.pop(n)
            return in_vain + 1

        while True:
            parts = [records[h]["parts"] for h in held]
            nobodys = self.find(parts, None)
            if nobodys is not None:
                pass_on = self.size is not None or not any(parts[nobodys].values())
                in_vain = give_out(nobodys) if pass_on else drop(nobodys)
                continue
            present = {self.waits_for(p) for p in parts}
            best = self.furthest(self.active)
            ends = ended and self.size is not None
            if best is not None and best not in present and (ends or best in used_up):
                self.active -= {d for d in self.active - present if ends or d in used_up}
                best = self.furthest(self.active)
            window = place - held[0] if held else 0
            full = held and (window >= self.replay or len(held) >= (self.size or len(records) + 1))
            if best is not None and best in present:
                in_vain = give_out(self.find(parts, best))
            elif not (ended or full):
                if place == len(records):
                    ended = True  # known only when one more is wanted
                    continue
                record = records[place]
                used_up |= set(record.get("exhausted", ()))
                self.active |= {self.waits_for(record["parts"])} - {None}
                held.append(place)
                place += 1
            elif not held or (ended and self.size is None):
                return out
            elif self.size is None:
                in_vain = drop(0)
            elif window >= self.replay:
                in_vain = give_out(0)
            else:
                in_vain = give_out(self.find(parts, self.furthest(present & self.active)))


def all_parts(record):
    return record["parts"]


@given(
    parts=st.lists(
        st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=2)
        | st.builds(lambda d, n: {d: n}, st.integers(0, 2), st.integers(1, 5)),
        max_size=60,
    ),
    weights=st.tuples(*[st.integers(0, 3)] * 3).filter(any),
    size=st.none() | st.integers(1, 8),
    replay=st.sampled_from([1, 2, 3, 7, 12]),
    stamped=st.sampled_from(["never", "right", "too early"]),
    data=st.data(),
)
@settings(max_examples=1000)
def test_order_is_the_rule_and_resumes_anywhere(parts, weights, size, replay, stamped, data):
    """Records of one component and rows of several, of no weight, and of components stamped off."""
    replay = max(replay, 2) if size is None else replay
    records = []
    for n, own in enumerate(parts):
        later = {other for row in parts[n + 7 * (stamped == "too early") :] for other in row}
        stamp = {} if stamped == "never" else {"exhausted": sorted({0, 1, 2} - later)}
        records.append({"parts": own, "n": n, **stamp})
    mixed = ensure_mixture(
        Records(records), dict(zip(NAMES, weights, strict=True)), component_ids=NAMES,
        weigh=all_parts, max_buffer_size=size, max_replay=replay, warn_tolerance=10,
    )  # fmt: skip
    try:
        expected = Expected(weights, size, replay).order(records)
    except Endless:
        with pytest.raises(ValueError, match="records in a row were dropped to wait for"):
            list(mixed)
        return
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
    dataset = ensure_mixture(
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
    short = ensure_mixture(
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

    dataset = ensure_mixture(
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
        lane = zx.mark_exhausted(lane) if stamped else lane
        taken = []
        records = lane.map(lambda e, taken=taken: taken.append(1) or {**e, "tokens": 1})
        target = {"a": 1, "b": 1, "c": 2}
        dataset = ensure_mixture(
            records, target, component_ids=source.component_ids(), max_buffer_size=500
        )
        most, given = 0, []
        for record in dataset:
            assert "exhausted" not in record
            given.append(int(record["component_id"]))
            if len(given) > 300:
                most = max(most, len(taken) - len(given))
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
    mixed = ensure_mixture(
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


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_elastic_lanes_resume_at_other_host_counts():
    source = source_of(200, chunk_size=10)

    def pipeline(lane):
        mixed = ensure_mixture(
            uneven(zx.mark_exhausted(lane), most=20),
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
                    rows_per_sample=None, global_batch_size=8,
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


def test_an_error_leaves_the_iterator_usable():
    broken = True

    def weigh(record):
        if broken and record["n"] == 7:
            raise RuntimeError("no tokenizer")
        return 1

    records = [{"component_id": n % 3, "n": n} for n in range(20)]
    dataset = grain.MapDataset.source(records).to_iter_dataset()
    mixed = ensure_mixture(dataset, EVEN, component_ids=NAMES, weigh=weigh)
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

    fails_at = []

    class Flaky(RecordsIterator):
        def __next__(self):
            if self.place in fails_at:
                fails_at.clear()
                raise OSError("disk trouble")
            return super().__next__()

    class FlakyRecords(Records):
        def __iter__(self):
            return Flaky(self.records)

    records = [{"component_id": c, "tokens": 1, "n": n} for n, c in enumerate([0, 0, 0, 1, 2] * 9)]
    mixed = ensure_mixture(
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
            fails_at.append(state["parent"]["place"] + n)
            with pytest.raises(OSError, match="disk trouble"):
                next(again)
            assert again.get_state() == state
            assert [record["n"] for record in again] == whole[step:]


def dropping(records, target=None, **settings):
    """The order of a mixture without a bound, over windows of 8 elements."""
    mixed = ensure_mixture(
        Records(records), target or EVEN, component_ids=NAMES, max_buffer_size=None, max_replay=8,
        warn_tolerance=10, **settings,
    )  # fmt: skip
    return [record["n"] for record in mixed]


def test_drops_are_told_ever_more_seldom_and_in_all_at_the_end(caplog):
    """Bursts of one component that has too much: seven of it to one of the others."""
    records = [
        {"component_id": [1, 2, 0, 0, 0, 0, 0, 0, 0][n % 9], "tokens": 1, "n": n}
        for n in range(9000)
    ]
    order = dropping(records)
    assert len(order) == 3001  # all of the others, and of the first as many and the next in turn
    told = [int(record.getMessage().split()[0]) for record in caplog.records]
    assert told == [1, 16, 256, 4096, 9000 - len(order)]
    assert "dropped so far, of components that have more than" in caplog.records[0].getMessage()
    assert caplog.records[-1].getMessage() == f"{9000 - len(order)} records were dropped in all."


@pytest.mark.parametrize("kind", ["never comes", "ran out", "rows hold too little"])
def test_a_wait_without_end_is_an_error(kind):
    records, settings = {
        "never comes": ([{"component_id": n % 2, "tokens": 1} for n in range(5000)], {}),
        "ran out": ([{"component_id": min(n, 2), "tokens": 1} for n in range(5000)], {}),
        "rows hold too little": (
            [{"parts": {0: 6, 1: 3, 2: 1}} for _ in range(5000)], {"weigh": all_parts}
        ),
    }[kind]  # fmt: skip
    records = [{**record, "n": n} for n, record in enumerate(records)]
    waits_for = "a" if kind == "ran out" else "c"
    with pytest.raises(ValueError, match=rf"128 records in a row were dropped.*for '{waits_for}'"):
        dropping(records, **settings)
    right = {
        "never comes": {"a": 1, "b": 1, "c": 0},
        "ran out": {"a": 0, "b": 0, "c": 1},
        "rows hold too little": {"a": 6, "b": 3, "c": 1},
    }[kind]
    assert dropping(records, right, **settings) == list(range(2 * (kind == "ran out"), 5000))


def test_nothing_is_waited_for_where_all_is_used_up():
    """Stamps say that nobody with a weight comes any more: what else comes has no place."""
    last = [{"component_id": 2, "tokens": 1, "n": n, "exhausted": [0, 1]} for n in range(5000)]
    with pytest.raises(ValueError, match="to wait for no component"):
        dropping(last, {"a": 1, "b": 1, "c": 0})


def test_a_component_comes_back_that_was_said_to_be_used_up():
    """A transform between the stamp and the mixture may hold elements back."""
    stamps = [[], [], [1], [1], [1], [1], [1], [1]]
    components = [0, 1, 0, 0, 0, 1, 0, 1]
    records = [
        {"component_id": c, "tokens": 1, "n": n, "exhausted": stamp}
        for n, (c, stamp) in enumerate(zip(components, stamps, strict=True))
    ]
    mixed = ensure_mixture(
        Records(records), {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1}, max_buffer_size=2
    )
    # The second is not waited for, and goes at once where it comes, for it is behind.
    assert [record["n"] for record in mixed] == list(range(8))


def test_records_that_weigh_nothing_go_at_once():
    """One component comes without tokens only: it is not given out in the others' place."""
    records = [{"component_id": n % 3, "tokens": 0 if n % 3 == 0 else 5, "n": n} for n in range(9)]
    mixed = ensure_mixture(Records(records), EVEN, component_ids=NAMES, max_buffer_size=3)
    order = [record["n"] for record in mixed]
    assert sorted(order) == list(range(9))
    assert [n for n in order if n % 3 == 0] == [0, 3, 6]
    assert order.index(3) == 1  # before any of those that wait for the first component


@pytest.mark.parametrize("max_buffer_size", [256, None])
def test_components_of_weight_0_take_no_place_in_the_buffer(max_buffer_size):
    """Bursts of 50 and 50, and a record that is not wanted behind each."""
    bursts = [d for burst in range(40) for d in [burst % 2] * 50]
    records = [{"component_id": c, "tokens": 1} for d in bursts for c in (d, 2)]
    mixed = ensure_mixture(
        Records(records), {"a": 1, "b": 1, "c": 0}, component_ids=NAMES,
        max_buffer_size=max_buffer_size,
    )  # fmt: skip
    found = [record["component_id"] for record in mixed]
    assert found.count(2) == (2000 if max_buffer_size else 0)
    wanted = [component for component in found if component < 2]
    assert wanted == [0, 1] * 1000


def test_those_that_wait_share_by_their_weights():
    """The first component has ended, unstamped; bursts of the others hold them 4 to 1."""
    burst = [1] * 40 + [2] * 10
    records = [{"component_id": d, "tokens": 1} for d in [0, 1, *burst * 40]]
    mixed = ensure_mixture(
        Records(records), {"a": 5, "b": 4, "c": 1}, component_ids=NAMES, max_buffer_size=200,
        warn_tolerance=10,
    )  # fmt: skip
    found = np.array([record["component_id"] for record in mixed])[300:1800]
    of_third = np.cumsum(np.r_[0, found == 2])
    windows = of_third[50:] - of_third[:-50]
    assert set(windows.tolist()) <= {9, 10, 11}


def test_a_state_that_is_refused_changes_nothing():
    def lane(seed):
        return uneven(zx.LaneIterDataset(source_of(40, chunk_size=6, seed=seed)), 4)

    def mixed(seed):
        return ensure_mixture(lane(seed), EVEN, component_ids=NAMES, max_buffer_size=40)

    expected = [record["name"] for record in mixed(1)]
    for step in (0, 1, 20, len(expected) - 1):
        iterator, other = iter(mixed(1)), iter(mixed(2))
        for _ in range(step):
            next(iterator)
            next(other)
        before = iterator.get_state()
        for _ in range(2):
            with pytest.raises(ValueError, match="seed"):
                iterator.set_state(other.get_state())
        assert iterator.get_state() == before
        assert [record["name"] for record in iterator] == expected[step:]
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        iterator.set_state(before)


def test_an_error_of_the_parent_loses_nothing():
    """What failed is met again, and states that are saved later hold."""

    class Flaky(RecordsIterator):
        fails_at: ClassVar = {7, 25}

        def __next__(self):
            if self.place in self.fails_at:
                self.place += 1  # as Grain's iterators do
                self.fails_at.discard(self.place - 1)
                raise OSError("disk trouble")
            return super().__next__()

    class FlakyRecords(Records):
        def __iter__(self):
            return Flaky(self.records)

    records = [{"component_id": n // 10 % 3, "tokens": 1, "n": n} for n in range(60)]
    mixed = ensure_mixture(FlakyRecords(records), EVEN, component_ids=NAMES, max_buffer_size=30)
    whole = [r["n"] for r in ensure_mixture(Records(records), EVEN, component_ids=NAMES)]
    iterator, found, errors = iter(mixed), [], 0
    while len(found) < 60:
        try:
            found.append(next(iterator)["n"])
        except OSError:
            errors += 1
        again = iter(mixed)
        again.set_state(iterator.get_state())
        if not Flaky.fails_at:
            assert [record["n"] for record in again] == whole[len(found) :]
    assert (found, errors) == (whole, 2)


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


def test_restored_in_place_behind_a_flat_map():
    """Grain's flat map, at its end, hands its last elements out again after a restore."""
    dataset = ensure_mixture(
        uneven_lane(12, most=5, chunk_size=6), EVEN, component_ids=NAMES, max_buffer_size=40
    )
    expected = [record["name"] for record in dataset]
    iterator = iter(dataset)
    states = [(iterator.get_state(), next(iterator)) for _ in expected]
    assert next(iterator, None) is None
    for step in (0, len(expected) // 2, len(expected) - 1):
        iterator.set_state(states[step][0])
        assert [record["name"] for record in iterator] == expected[step:]


def test_states_of_others_are_refused():
    dataset = grain.MapDataset.source([{"component_id": 0, "tokens": 1}]).to_iter_dataset()
    iterator = iter(ensure_mixture(dataset, EVEN, component_ids=NAMES))
    good = iterator.get_state()
    two = ensure_mixture(dataset, {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1})

    def state_of(**other):
        settings = {"target_mixture": EVEN, "component_ids": NAMES, **other}
        return iter(ensure_mixture(dataset, **settings)).get_state()

    broken = "not the state of EnsureMixtureIterDataset"
    for bad, text in (
        ({}, broken),
        (None, broken),
        ([1], broken),
        ({name: value for name, value in good.items() if name != "used_up"}, broken),
        ({**good, "drifting": 7}, broken),
        ({**good, "emitted": ["x", 0, 0]}, broken),
        ({**good, "emitted": [0, 0]}, "there are 3 components"),
        ({**good, "active": "1x1"}, broken),
        ({**good, "num_elements": 1 << 40}, "num_elements"),
        ({**good, "taken": "AQ=="}, "'taken' is not of 0 elements"),
        (iter(two).get_state(), "other component_ids"),
        (state_of(target_mixture={"a": 2, "b": 1, "c": 1}), "another target_mixture"),
        (state_of(component_ids={"b": 0, "a": 1, "c": 2}), "other component_ids"),
        (state_of(max_buffer_size=None), "max_buffer_size"),
        (state_of(max_replay=9), "max_replay"),
        (state_of(weigh="size"), "weigh"),
    ):
        with pytest.raises(ValueError, match=text):
            iterator.set_state(bad)
    iterator.set_state({**good, "num_elements": 2})
    with pytest.raises(ValueError, match="the data ended"):
        next(iterator)
