"""Many lanes of one process, whose windows are found and read together."""

import gc
import weakref

import numpy as np
import pytest
from support.elastic_runs import filtered, noisy, readable, rows

import zephon_jax as zx
from zephon_jax.elastic import open_lanes
from zephon_jax.pipelines.lane_group import LaneGroup

LANES = 130  # more than are read one by one


def open_all(source, pipeline=rows, **settings):
    settings = {"process_index": 0, "process_count": 1, **settings}
    return iter(zx.ElasticIterDataset(source, LANES, pipeline, **settings))


def make_source(**settings):
    return readable((2_000, 1_250, 650), chunk_size=6, **settings)


def taken(iterator, num):
    return [next(iterator)["sample_id"].tolist() for _ in range(num)]


def alone(monkeypatch):
    monkeypatch.setattr(open_lanes, "_READ_TOGETHER", 1 << 30)


@pytest.mark.parametrize(
    ("pipeline", "each"), [pytest.param(noisy, 1, marks=pytest.mark.slow), (filtered, None)]
)
def test_batches_and_states_are_those_of_lanes_read_one_by_one(monkeypatch, pipeline, each):
    source, states = make_source(), []
    together = open_all(source, pipeline, rows_per_sample=each)
    batches = []
    for _ in range(12):
        batches.append(next(together))
        states.append(together.get_state())
    together.set_state(states[4])
    again = [next(together) for _ in range(4)]
    together.close()
    alone(monkeypatch)
    by_itself = open_all(source, pipeline, rows_per_sample=each)
    for step in range(12):
        expected = next(by_itself)
        for name, column in expected.items():
            np.testing.assert_array_equal(batches[step][name], column)
            if 5 <= step < 9:
                np.testing.assert_array_equal(again[step - 5][name], column)
        assert by_itself.get_state() == states[step]
    by_itself.close()


def test_all_samples_come_once_and_lanes_end_together():
    source = make_source(weights=(1, 1, 1), exhausted_policy="redistribute")
    seen = [row for batch in open_all(source, pad=True) for row in masked(batch)]
    assert len(seen) == len(source)
    assert len(set(seen)) == 3_900


def masked(batch):
    ids, mask = batch["sample_id"].tolist(), batch["row_mask"].tolist()
    return [tuple(row) for row, real in zip(ids, mask, strict=True) if real]


def test_the_first_batch_reads_by_few_calls(monkeypatch):
    sizes = []
    read = LaneGroup.read
    monkeypatch.setattr(
        LaneGroup, "read", lambda g, cursors: sizes.append(len(cursors)) or read(g, cursors)
    )
    iterator = open_all(make_source())
    taken(iterator, 1)
    iterator.close()
    assert sum(sizes[:4]) == LANES


def test_a_record_that_cannot_be_read_is_an_error_of_its_lane_alone():
    class Numbers:
        def __init__(self):
            self.broken = True

        def __len__(self):
            return 3_900

        def __getitem__(self, number):
            if number == 2345 and self.broken:
                raise OSError("not there")
            return number

    numbers = Numbers()
    data = zx.Dataset.from_source("d", numbers)
    source = zx.StaticMixtureWorkSource([data], {"d": 1}, 6)
    iterator, found = open_all(source), []
    with pytest.raises(zx.LaneError, match="not there"):
        found.extend(batch["sample_id"].tolist() for batch in iterator)
    state = iterator.get_state()
    iterator.close()
    numbers.broken = False
    assert found
    restored = open_all(source)
    restored.set_state(state)
    found += taken(restored, 2)
    restored.close()
    whole = open_all(source)
    assert found == taken(whole, len(found))
    whole.close()


def test_a_source_that_fails_for_one_lane_fails_there_alone():
    class Failing(zx.StaticMixtureWorkSource):
        def next_chunk(self, state):
            if int(state.lane) == 70:
                raise OSError("no chunk")
            return super().next_chunk(state)

    data = zx.Dataset.from_source("d", list(range(3_900)))
    iterator = open_all(Failing([data], {"d": 1}, 6))
    with pytest.raises(zx.LaneError, match=r"lane 70.*no chunk") as caught:
        next(iterator)
    assert caught.value.lane == 70
    iterator.close()


def test_lanes_that_are_dropped_are_not_kept():
    iterator = open_all(make_source())
    taken(iterator, 3)
    iterator.close()
    lanes = [weakref.ref(lane._dataset.opened) for lane in iterator._lanes]
    del iterator
    gc.collect()
    assert not any(lane() for lane in lanes)
