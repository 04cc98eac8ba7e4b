"""The Grain datasets under Grain's own transformations, prefetching and checkpointing."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import threading
import time

import grain
import numpy as np
import pytest
from absl import flags
from grain.experimental import assert_equal_output_after_checkpoint
from support.helpers import mixture

import zephon_jax as zx
from zephon_jax.data.cache.stager import default_stager

SLOW = pytest.mark.slow


def readable(sizes=(30, 50, 20), weights=(1, 2, 1), **settings):
    """A source over datasets in memory: record n of dataset d is 1000 * d + n."""
    names = "abcdef"[: len(sizes)]
    datasets = [
        zx.Dataset.from_source(name, [1000 * d + n for n in range(size)])
        for d, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]
    settings = {"chunk_size": 7, "shuffle_block_size": "auto", **settings}
    return zx.StaticMixtureWorkSource(datasets, dict(zip(names, weights, strict=True)), **settings)


def numbers(element):
    return element["data"]


def expected_records(source, lane, num_lanes):
    """Records of a lane by the source alone."""
    state, found = source.init(lane, num_lanes), []
    while True:
        chunk, state = source.next_chunk(state)
        if chunk is None:
            return found
        found += [1000 * sample.dataset_id + sample.sample_index for sample, _ in chunk]


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_lane_delivers_the_records_of_its_chunks(num_lanes):
    source = readable()
    for lane in range(num_lanes):
        elements = list(zx.LaneIterDataset(source, lane, num_lanes))
        assert [e["data"] for e in elements] == expected_records(source, lane, num_lanes)
        for e in elements:
            assert e["data"] == 1000 * e["component_id"] + e["sample_id"][2]
            assert e["component_id"].dtype == np.int32
            assert e["sample_id"].dtype == np.int64


def test_lattice_reading_reaches_the_lane():
    source = readable(chunk_size=16)
    config = zx.MixtureReadConfig(mode="lattice")
    state = source.init(1, 2)
    chunk, _ = source.next_chunk(state)
    ids = chunk.order(config)[1]
    got = [e["sample_id"].tolist() for e in zx.LaneIterDataset(source, 1, 2, config)]
    assert got[:16] == ids.tolist()


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda ds: ds.map(numbers),
        lambda ds: ds.map(numbers).batch(4),
        lambda ds: ds.filter(lambda e: e["component_id"] != 1).map(numbers),
        lambda ds: grain.experimental.ThreadPrefetchIterDataset(
            ds.map(numbers), prefetch_buffer_size=3
        ),
        lambda ds: grain.experimental.ConcatThenSplitIterDataset(
            ds.map(lambda e: {"x": np.arange(e["data"] % 9 + 1)}), length_struct={"x": 8}
        ),
    ],
    ids=["map", "batch", "filter", "thread prefetch", "packing"],
)
def test_checkpoints_at_every_step(pipeline):
    assert_equal_output_after_checkpoint(pipeline(zx.LaneIterDataset(readable(), 0, 2)))


def test_map_dataset_checkpoints():
    ds = zx.MixtureMapDataset(readable())
    assert_equal_output_after_checkpoint(ds.map(numbers).to_iter_dataset())
    assert_equal_output_after_checkpoint(ds.map(numbers).batch(5).to_iter_dataset())


def test_state_is_plain_json_of_constant_shape():
    source = mixture([30], chunk_size=7)  # counts only: nothing can be opened
    iterator = iter(zx.LaneIterDataset(source, 1, 2))
    before = iterator.get_state()
    assert json.loads(json.dumps(before)) == before
    iterator = iter(zx.LaneIterDataset(readable(), 1, 2))
    shapes, sizes = set(), set()
    for _ in range(30):
        state = iterator.get_state()
        shapes.add(tuple((k, type(v).__name__) for k, v in state.items()))
        sizes.add(len(json.dumps(state)))
        next(iterator)
    assert len(shapes) == 1
    assert max(sizes) <= 512


def test_set_state_refuses_and_changes_nothing():
    source = readable()
    iterator = iter(zx.LaneIterDataset(source, 1, 3))
    expected = expected_records(source, 1, 3)
    got = [next(iterator)["data"] for _ in range(5)]
    good = iterator.get_state()
    for bad, text in (
        (iter(zx.LaneIterDataset(source, 0, 3)).get_state(), "lane 0 of 3; this is lane 1 of 3"),
        (iter(zx.LaneIterDataset(source, 1, 2)).get_state(), "lane 1 of 2; this is lane 1 of 3"),
        (iter(zx.LaneIterDataset(readable(seed=9), 1, 3)).get_state(), "other seed"),
        ({**good, "slot": -1}, "slot"),
        ({**good, "slot": "0"}, "slot"),
        ({"slot": 0}, "state"),
    ):
        with pytest.raises(ValueError, match=text):
            iterator.set_state(bad)
    got += [e["data"] for e in iterator]
    assert got == expected
    iterator.set_state(good)
    assert [e["data"] for e in iterator] == expected[5:]
    with pytest.raises(StopIteration):
        next(iterator)


def test_error_leaves_the_iterator_usable():
    class Flaky(list):
        broken = True

        def __getitem__(self, index):
            if self.broken and index == 11:
                raise OSError("disk trouble")
            return super().__getitem__(index)

    records = Flaky(range(30))
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_source("a", records)], {"a": 1}, chunk_size=10, shuffle_shards=False
    )
    iterator = iter(zx.LaneIterDataset(source))
    got = [next(iterator)["data"] for _ in range(10)]
    for _ in range(2):
        with pytest.raises(OSError, match=r"'a', shard 0: record 11.*disk trouble"):
            next(iterator)
    records.broken = False
    assert got + [e["data"] for e in iterator] == list(range(30))


def test_map_dataset_by_index():
    source = readable()
    ds = zx.MixtureMapDataset(source)
    stream = expected_records(source, 0, 1)
    assert len(ds) == len(stream) == len(source)
    assert [ds[i]["data"] for i in range(len(ds))] == stream
    assert [e["data"] for e in ds.__getitems__(range(len(ds)))] == stream
    assert [e["data"] for e in ds.__getitems__([5, 0, 5])] == [stream[5], stream[0], stream[5]]
    assert ds[-1]["data"] == stream[-1]
    assert [e["data"] for e in ds[3:20:4]] == stream[3:20:4]
    assert [e["data"] for e in ds.slice(slice(1, None, 3))] == stream[1::3]
    with pytest.raises(IndexError):
        ds[-len(ds) - 1]
    with pytest.raises(TypeError):
        ds["0"]


def test_epochs_have_the_same_members_in_another_order():
    sizes = (30, 50, 20)
    whole = readable(sizes, sizes, exhausted_policy="redistribute")
    ds = zx.MixtureMapDataset(whole)
    epochs = [[ds[i + e * len(ds)]["data"] for i in range(len(ds))] for e in range(3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    ds = zx.MixtureMapDataset(readable())  # ends within passes: counts alone are the same
    n = len(ds)
    first, second = ([int(ds[i + e * n]["component_id"]) for i in range(n)] for e in range(2))
    assert first == second
    repeated = list(zx.MixtureMapDataset(whole).map(numbers).repeat(2))
    assert repeated == epochs[0] + epochs[1]


def test_sources_without_indexing_or_end_are_refused():
    with pytest.raises(TypeError, match="never ends"):
        zx.MixtureMapDataset(readable(exhausted_policy="repeat"))


def test_counts_only_cannot_be_read():
    counts = mixture([30, 20], chunk_size=7)
    with pytest.raises(ValueError, match="'a'"):
        next(iter(zx.LaneIterDataset(counts)))
    with pytest.raises(ValueError, match="'a'"):
        zx.MixtureMapDataset(counts)[0]


class Numbers(zx.WorkSource):
    """A source that says nothing of its datasets."""

    def init(self, lane=0, num_lanes=1):
        return mixture([30], chunk_size=7).init(lane, num_lanes)

    def next_chunk(self, state):
        return mixture([30], chunk_size=7).next_chunk(state)

    def component_ids(self):
        return {"a": 0}


def test_source_without_datasets_steps_and_cannot_be_read():
    source = Numbers()
    chunk, _ = source.next_chunk(source.init())
    assert len(chunk) == 7
    with pytest.raises(ValueError, match="dataset"):
        next(iter(zx.LaneIterDataset(source)))


@pytest.mark.parametrize(
    "num_workers", [pytest.param(1, marks=SLOW), 2, pytest.param(3, marks=SLOW)]
)
def test_worker_processes_keep_the_order(num_workers):
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    source = readable((40, 60), (1, 2))
    expected = expected_records(source, 1, 2)
    ds = zx.LaneIterDataset(source, 1, 2).map(numbers)
    ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    iterator = iter(ds)
    got = [next(iterator) for _ in range(9)]
    state = iterator.get_state()
    assert got + list(iterator) == expected
    again = iter(ds)
    again.set_state(json.loads(json.dumps(state)))
    assert list(again) == expected[9:]


def test_sequential_slices_are_refused():
    with pytest.raises(ValueError, match="sequential"):
        zx.LaneIterDataset(readable()).set_slice(slice(0, None, 2), sequential_slice=True)


class SlowNumbers:
    """So slow that a window is on its way whenever anything happens."""

    def __len__(self):
        return 30

    def __getitem__(self, place):
        time.sleep(0.002)
        return place


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_fork_while_a_window_is_on_its_way():
    numbers = zx.Dataset.from_source("numbers", SlowNumbers())
    lane = zx.LaneIterDataset(zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=5))
    expected = [element["data"] for element in lane]
    iterator = iter(lane)
    begun = [next(iterator)["data"] for _ in range(7)]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if begun + [element["data"] for element in iterator] == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert begun + [element["data"] for element in iterator] == expected


def test_dropped_lanes_wait_for_no_lock(tmp_path):
    """The garbage collector may end them in any thread, inside whatever that one was doing."""
    for shard in range(6):
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(b"1\n2\n3\n"))
    packed = zx.Dataset.from_path("packed", tmp_path)
    source = zx.StaticMixtureWorkSource([packed], {"packed": 1}, chunk_size=3)
    stager = default_stager()
    ahead = stager._ahead.get()
    gc.disable()
    try:
        iterator = iter(zx.LaneIterDataset(source))
        next(iterator)
        iterator._ahead.result()
        assert ahead._plans
        del iterator
        with ahead._changed, stager.cache.plans._lock:
            collector = threading.Thread(target=gc.collect, daemon=True)
            collector.start()
            collector.join(20)
            assert not collector.is_alive()
    finally:
        gc.enable()
    deadline = time.monotonic() + 20
    while ahead._plans and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not ahead._plans


def test_bad_record_spoils_no_other_one(tmp_path):
    lines = [b"%d\n" % number if number != 40 else b"oops\n" for number in range(60)]
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    mixed = zx.MixtureMapDataset(
        zx.StaticMixtureWorkSource(
            [zx.Dataset.from_path("a", tmp_path)], {"a": 1}, chunk_size=60, shuffle_block_size=None
        )
    )
    found, errors = [], []
    for index in range(60):
        try:
            found.append(mixed[index]["data"])
        except ValueError as error:
            errors.append(str(error))
    assert sorted(found) == [number for number in range(60) if number != 40]
    (error,) = errors
    assert "record 40 (line 41) is not valid JSON" in error


@pytest.mark.parametrize("skipped", [0, 250, 1333])
def test_components_belong_to_their_samples_in_every_window_of_a_chunk(skipped):
    """A chunk of records in memory is read in several windows, also from a slot in its middle."""
    source = readable((600, 900, 300), chunk_size=1800, exhausted_policy="redistribute")
    iterator = iter(zx.LaneIterDataset(source))
    for _ in range(skipped):
        next(iterator)
    again = iter(zx.LaneIterDataset(source))
    again.set_state(iterator.get_state())
    elements = list(again)
    assert len(elements) == 1800 - skipped
    components = np.asarray([e["component_id"] for e in elements])
    assert np.array_equal(components, [e["sample_id"][0] for e in elements])
    assert np.array_equal([e["data"] for e in elements], expected_records(source, 0, 1)[skipped:])
