"""Flushes at the ends of chunks, and who is used up."""

from __future__ import annotations

import json
from collections import Counter

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint

import zephon_jax as zx


def readable(sizes=(48, 80, 32), weights=None, **settings):
    """A source over datasets in memory: record n of dataset d is 1000 * d + n."""
    datasets = [
        zx.Dataset.from_source(f"d{d}", [1000 * d + n for n in range(size)])
        for d, size in enumerate(sizes)
    ]
    mix = dict(zip([d.name for d in datasets], weights or sizes, strict=True))
    return zx.StaticMixtureWorkSource(datasets, mix, **{"chunk_size": 10, **settings})


def document(element):
    size = element["data"] % 23
    return {"tokens": np.full(size, element["data"] + 1), "component_id": element["component_id"]}


def number(element):
    return element["data"]


def packed(method):
    return lambda lane: zx.pack(lane.map(document), 24, method=method, num_bins=64)


def noisy(lane):
    return lane.random_map(lambda e, rng: {"x": e["data"], "noise": int(rng.integers(1 << 30))})


def prefetched(lane):
    lane = lane.map(lambda e: {"x": e["data"]})
    return grain.experimental.ThreadPrefetchIterDataset(lane, prefetch_buffer_size=5)


PIPELINES = {
    "first fit": packed("first_fit"),
    "concat then split": packed("concat_then_split"),
    "random": noisy,
    "prefetched": prefetched,
    "filtered": lambda lane: lane.filter(lambda e: e["data"] % 5 == 0).map(lambda e: e["data"]),
}


@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("num_chunks", [1, 3])
def test_checkpoints_at_every_step(kind, num_chunks):
    lane = zx.LaneIterDataset(readable((30, 40, 20), chunk_size=5), 1, 2)
    flushed = zx.FlushIterDataset(lane, PIPELINES[kind], num_chunks)
    assert_equal_output_after_checkpoint(flushed)
    expected, iterator = list(flushed), iter(flushed)
    for step in range(len(expected)):
        again = iter(flushed)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        np.testing.assert_equal(list(again), expected[step:])
        next(iterator)


@pytest.mark.parametrize("kind", [*PIPELINES, "concat then split alone"])
def test_a_state_that_is_refused_changes_nothing(kind):
    def dataset(seed):
        lane = zx.LaneIterDataset(readable((30, 40, 20), chunk_size=5, seed=seed), 1, 2)
        alone = kind == "concat then split alone"
        pipeline = PIPELINES["concat then split" if alone else kind]
        return pipeline(lane) if alone else zx.FlushIterDataset(lane, pipeline, 2)

    expected = list(dataset(1))
    for step in range(len(expected)):
        iterator, other = iter(dataset(1)), iter(dataset(2))
        for _ in range(step):
            next(iterator)
            next(other, None)
        before = iterator.get_state()
        with pytest.raises(ValueError, match="seed"):
            iterator.set_state(other.get_state())
        assert iterator.get_state() == before
        np.testing.assert_equal(list(iterator), expected[step:])


def test_lots_are_whole_chunks_of_the_lane():
    source, num_lanes = readable(), 3
    for lane in range(num_lanes):
        whole = [e["data"] for e in zx.LaneIterDataset(source, lane, num_lanes)]
        lots = zx.FlushIterDataset(
            zx.LaneIterDataset(source, lane, num_lanes),
            lambda lane: lane.map(number).batch(1000),
            2,
        )
        sizes = [len(batch) for batch in lots]
        assert np.concatenate(list(lots)).tolist() == whole
        assert sizes == [20] * (len(whole) // 20) + [len(whole) % 20] * (len(whole) % 20 > 0)


@pytest.mark.parametrize("method", ["first_fit", "best_fit", "concat_then_split"])
def test_no_token_is_lost_or_doubled(method):
    source = readable()
    lane = zx.LaneIterDataset(source)
    found = Counter()
    for row in zx.FlushIterDataset(lane, packed(method), 2):
        real = row["targets_segmentation"] > 0
        found.update(row["targets"][real].tolist())
    expected = Counter()
    for element in lane:
        expected[int(element["data"]) + 1] += max(0, element["data"] % 23 - 1)
    assert found == +expected


def test_noise_differs_from_lot_to_lot():
    lane = zx.LaneIterDataset(readable(), 0, 2)
    values = [e["noise"] for e in zx.FlushIterDataset(lane, noisy, 1)]
    assert len(set(values)) == len(values)
    other = [e["noise"] for e in zx.FlushIterDataset(zx.LaneIterDataset(readable(), 1, 2), noisy)]
    assert not set(values) & set(other)


def test_restores_replay_no_more_than_a_lot():
    """Rows for 64 bins take 130 chunks of documents; a flush bounds what a restore reads."""
    source = readable((4000, 4000), exhausted_policy="repeat")
    counts = Counter()

    def counting(name):
        def count(element):
            counts[name] += 1
            return document(element)

        return lambda lane: zx.pack(lane.map(count), 24, num_bins=64)

    replayed = {}
    for name, num_chunks in (("never", None), ("every 4", 4), ("every chunk", 1)):
        pipeline = counting(name)
        lane = zx.LaneIterDataset(source)
        rows = pipeline(lane) if num_chunks is None else None
        rows = rows or zx.FlushIterDataset(lane, pipeline, num_chunks)
        iterator, worst = iter(rows), 0
        for _ in range(60):
            before, again = counts[name], iter(rows)
            again.set_state(iterator.get_state())
            row = next(again)
            middle = counts[name]
            np.testing.assert_equal(next(iterator), row)
            # What the restored one read for this row, and the other had read already.
            worst = max(worst, (middle - before) - (counts[name] - middle))
        replayed[name] = worst
    print(f"elements that a restore replayed: {replayed}")
    assert replayed["every chunk"] <= 10
    assert replayed["every 4"] <= 40
    assert replayed["never"] > 80


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_elastic_lanes_resume_at_other_host_counts():
    source, num_lanes = readable((90, 120)), 4

    def pipeline(lane):
        return zx.FlushIterDataset(lane, packed("first_fit"), 2)

    def hosts(count):
        return [
            iter(
                zx.ElasticIterDataset(
                    source, num_lanes, pipeline, process_index=h, process_count=count,
                    rows_per_sample=None, global_batch_size=4,
                )
            )
            for h in range(count)
        ]  # fmt: skip

    def to_end(iterators):
        found = []
        while all(parts := [next(iterator, None) for iterator in iterators]):
            found.append(np.concatenate([part["inputs"] for part in parts]))
        return found

    expected = to_end(hosts(1))
    assert len(expected) > 5
    iterators = hosts(2)
    for step in range(0, len(expected) - 1, 3):
        states = [json.loads(json.dumps(it.get_state())) for it in iterators]
        lanes = {lane: state for one in states for lane, state in one["lanes"].items()}
        others = hosts(4)
        for other in others:
            other.set_state({**states[0], "lanes": lanes})
        np.testing.assert_equal(to_end(others), expected[step:])
        for _ in range(3):
            for iterator in iterators:
                next(iterator, None)


def test_exhausted_components_are_stamped():
    source = readable((12, 40, 100), (1, 1, 1), exhausted_policy="redistribute", chunk_size=6)
    last = {}
    for num_lanes in (1, 3):
        for lane in range(num_lanes):
            elements = list(zx.mark_exhausted(zx.LaneIterDataset(source, lane, num_lanes)))
            plain = list(zx.LaneIterDataset(source, lane, num_lanes))
            assert [e["data"] for e in elements] == [e["data"] for e in plain]
            for n, element in enumerate(elements):
                gone = set(element["exhausted"].tolist())
                later = {int(e["component_id"]) for e in elements[n:]}
                assert not gone & later
                last[lane, num_lanes] = gone
    assert last[0, 1] == {0, 1}  # the third never leaves others behind
    assert all({0} <= gone for gone in last.values())


def test_bad_input():
    lane = zx.LaneIterDataset(readable())
    with pytest.raises(ValueError, match="num_chunks must be at least 1; got 0"):
        zx.FlushIterDataset(lane, noisy, 0)
    with pytest.raises(TypeError, match=r"lane must be a grain\.IterDataset; got list"):
        zx.FlushIterDataset([1], noisy)
    with pytest.raises(TypeError, match=r"return a grain\.IterDataset; got list"):
        iter(zx.FlushIterDataset(lane, list))
    numbers = grain.MapDataset.range(5).to_iter_dataset()
    for make in (zx.mark_exhausted, lambda lane: zx.FlushIterDataset(lane, noisy)):
        with pytest.raises(TypeError, match="right behind a lane"):
            iter(make(numbers))
        for held_back in (
            grain.experimental.WindowShuffleIterDataset(lane, window_size=7, seed=0),
            grain.experimental.ThreadPrefetchIterDataset(lane, prefetch_buffer_size=5),
            lane.batch(2),
        ):
            with pytest.raises(TypeError, match=r"right behind a lane; got \w+ there"):
                iter(make(held_back))
        assert next(iter(make(lane.seed(3)))) is not None
