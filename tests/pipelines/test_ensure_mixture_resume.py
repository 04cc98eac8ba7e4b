"""`zx.ensure_mixture` restored: at every step, after errors, and from states that are refused."""

from __future__ import annotations

import json
from typing import ClassVar

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from support.mixed_records import (
    EVEN,
    NAMES,
    Records,
    RecordsIterator,
    source_of,
    uneven,
    uneven_lane,
)

import zephon_jax as zx
from zephon_jax import ensure_mixture

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
