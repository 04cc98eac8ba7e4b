"""Pickles of public objects name `zephon_jax` alone: the package's layout is in none of them."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import pickletools

import cloudpickle
import pytest
from support.elastic_runs import readable
from support.helpers import mixture, scheduled, state_after

import zephon_jax as zx


def same(lane):
    return lane


def one(record):
    return 1


def elastic():
    dataset = zx.ElasticIterDataset(
        readable(), 2, same, process_index=0, process_count=1, global_batch_size=4
    )
    next(iter(dataset))
    return dataset


def ensured():
    target, ids = {"d0": 5, "d1": 3, "d2": 1}, {"d0": 0, "d1": 1, "d2": 2}
    return zx.ensure_mixture(zx.LaneIterDataset(readable()), target, weigh=one, component_ids=ids)


def read_by_index():
    dataset = zx.MixtureMapDataset(readable())
    assert dataset[0] is not None
    return dataset


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pickles")
    for n in range(2):
        lines = "".join(json.dumps({"text": f"{n} {i}"}) + "\n" for i in range(10))
        (folder / f"{n}.jsonl").write_text(lines)
    return zx.Dataset.from_path("lines", folder)


COUNTED = mixture([100, 200], chunk_size=10)
SCHEDULED = scheduled([100, 200], [(zx.samples(90), [1, 0]), (None, [1, 2])], chunk_size=10)
TOKENS = zx.TokenEstimation.from_shard_totals({"a": [900], "b": [2000]})
PICKLED = {  # by class
    "Audit": lambda: zx.audit(COUNTED, [state_after(COUNTED, 2)]),
    "BadRecord": lambda: zx.BadRecord("web", 0, 5, None, "it is no JSON"),
    "Dataset": lambda: zx.Dataset.from_counts("a", [3, 4]),
    "ElasticIterDataset": elastic,
    "EnsureMixtureIterDataset": ensured,
    "FlushIterDataset": lambda: zx.FlushIterDataset(zx.LaneIterDataset(readable()), same, 2),
    "LaneError": lambda: zx.LaneError("said", 1, 2, (0, 1, 2)),
    "LaneIterDataset": lambda: zx.LaneIterDataset(readable()),
    "StatefulLane": lambda: zx.StatefulLane(COUNTED, 1, 3),
    "MixtureMapDataset": read_by_index,
    "MixtureReadConfig": lambda: zx.MixtureReadConfig(mode="lattice"),
    "MixtureSpec": lambda: zx.MixtureSpec({"a": 1, "b": 0.5}),
    "MixtureState": lambda: state_after(COUNTED, 2),
    "OrderDifference": lambda: zx.diff(COUNTED, COUNTED.replace(seed=1)),
    "RowSamples": lambda: elastic().sample_ids_at(1)[0],
    "SampleId": lambda: COUNTED[3],
    "ScheduledMixtureWorkSource": lambda: SCHEDULED,
    "ShardManifest": lambda: zx.ShardManifest("run/shards", {"a": "a/*.jsonl"}),
    "Simulation": lambda: zx.simulate(COUNTED),
    "Stage": lambda: zx.Stage(until=zx.samples(9), mixture={"a": 1}, ramp="cosine"),
    "StaticMixtureWorkSource": lambda: COUNTED.replace(token_estimation=TOKENS),
    "TokenEstimation": lambda: TOKENS,
    "TracedMixture": lambda: zx.traced(COUNTED, num_chunks=3),
    "WorkChunk": lambda: COUNTED.next_chunk(COUNTED.init())[0],
}
NOT_PICKLED = {"GlobalBatches", "WorkSource"}  # an iterator and a base class


def modules_in(data):
    """The modules of this package that a pickle names."""
    texts = [arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str)]
    return {text for text in texts if text.split(".")[0] == "zephon_jax"}


def check(value):
    data = pickle.dumps(value)
    assert modules_in(data) <= {"zephon_jax"}
    again = pickle.loads(data)
    assert type(again) is type(value)
    assert modules_in(pickle.dumps(again)) <= {"zephon_jax"}
    assert modules_in(cloudpickle.dumps(value)) <= {"zephon_jax"}
    return again


@pytest.mark.parametrize("name", PICKLED)
def test_public_objects_do_not_hold_the_layout(name):
    value = PICKLED[name]()
    assert type(value) is getattr(zx, name)
    check(value)


def test_datasets_of_files_and_parts_do_not_hold_the_layout(on_disk):
    for dataset in (on_disk, on_disk.split(seed=1, train=0.5, rest=0.5)["train"]):
        assert check(dataset).shard_counts.tolist() == dataset.shard_counts.tolist()
    source = zx.StaticMixtureWorkSource([on_disk], {"lines": 1}, chunk_size=5)
    assert check(source)[3] == source[3]


def test_sources_made_of_others_do_not_hold_the_layout():
    parts = zx.interleave([COUNTED, zx.skip(COUNTED.replace(seed=1), 2)], [2, 1])
    source = check(zx.concatenate([zx.take(parts, 5), COUNTED]))
    state = state_after(source, 7)
    assert zx.encode_state(check(state)) == zx.encode_state(state)
    order = check(zx.traced(COUNTED, num_chunks=3))
    check(order.init())


def test_every_public_class_says_where_users_find_it():
    classes = {name for name in zx.__all__ if inspect.isclass(getattr(zx, name))}
    assert classes == PICKLED.keys() | NOT_PICKLED
    assert {getattr(zx, name).__module__ for name in classes} == {"zephon_jax"}


def test_a_chunk_and_its_copies_are_the_same():
    chunk, _ = COUNTED.next_chunk(COUNTED.init())
    for other in (pickle.loads(pickle.dumps(chunk)), copy.copy(chunk), copy.deepcopy(chunk)):
        assert [*other] == [*chunk]
        assert (other.chunk_index, other.mixture) == (chunk.chunk_index, chunk.mixture)
        assert not other.counts.flags.writeable
