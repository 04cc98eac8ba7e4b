"""`zx.ensure_mixture` where records wait: for whom, how long, and what is dropped."""

from __future__ import annotations

import logging

import grain
import numpy as np
import pytest
from support.mixed_records import EVEN, NAMES, Records, all_parts, dropping, source_of

import zephon_jax as zx
from zephon_jax import ensure_mixture


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
