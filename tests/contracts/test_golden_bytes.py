"""Golden bytes: what is written to disk, and the order of later epochs, change for nobody unseen.

`golden_bytes.json` holds states, checkpoint files and the parts of an index file as an earlier
release wrote them. A run that goes on from a state reads bytes of another day, so that what is
written has to stay as it is, and what was written has to stay readable. Run this file as a script
to write what is not there yet; it never replaces anything.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import struct
import tempfile
import zlib

import jax
import numpy as np
import pytest
from support.elastic_runs import readable
from support.golden import Golden
from support.helpers import mixture, state_after
from test_golden import LANE, NUM_IDS, READING, SETTINGS, SHARDS, WEIGHTS

import zephon_jax as zx

GOLDEN = pathlib.Path(__file__).with_name("golden_bytes.json")
NUM_CHUNKS = 3
WITH_EPOCHS = ["defaults", "redistribute", "capped"]
STAMP = 1_700_000_000  # when the shards of the index were changed last


def sha256(data):
    return hashlib.sha256(data).hexdigest()


# States


def golden_source(name):
    return mixture(SHARDS, WEIGHTS, **SETTINGS[name])


def state_of(name):
    return state_after(golden_source(name), NUM_CHUNKS, *LANE.get(name, (0, 1)))


def encoded(name):
    return zx.encode_state(state_of(name)).hex()


# Iterators, over pipelines that hold nothing of Grain's, whose own states may change


def lane():
    return zx.LaneIterDataset(readable(), 1, 3)


def same(lane):
    return lane


def elastic():
    return zx.ElasticIterDataset(
        readable(), 2, same, process_index=0, process_count=1, global_batch_size=4
    )


def one(record):
    return 1


def ensured():
    """More of the last component comes in than goes out, so that its records wait."""
    return zx.ensure_mixture(
        zx.LaneIterDataset(readable()), {"d0": 5, "d1": 3, "d2": 1}, weigh=one,
        component_ids={"d0": 0, "d1": 1, "d2": 2}, max_buffer_size=20,
    )  # fmt: skip


ITERATORS = {"lane": (lane, 7), "elastic": (elastic, 2), "mixture": (ensured, 30)}


def iterator_after(make, num_elements):
    iterator = iter(make())
    for _ in range(num_elements):
        next(iterator)
    return iterator


def state_in_json(kind):
    return json.dumps(iterator_after(*ITERATORS[kind]).get_state(), sort_keys=True)


# Checkpoints


def checkpoint():
    """The files of a checkpoint, whole: they are small, and hold neither a time nor a path."""
    with tempfile.TemporaryDirectory() as folder:
        zx.save_checkpoint(folder, iterator_after(elastic, 1), step=1)
        root = pathlib.Path(folder)
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        return {path.relative_to(root).as_posix(): path.read_bytes().decode() for path in files}


# Indices


def index_parts(path, location):
    """The parts of an index file, with "/data" for the folder of the shards."""
    data = path.read_bytes()
    length, checksum, magic = struct.unpack("<QI8s", data[-20:])
    offsets, table = data[: -20 - length], data[-20 - length : -20]
    assert len(table) == length
    assert checksum == zlib.crc32(table)
    assert len(offsets) % 8 == len(table) % 8 == 0
    rows = json.loads(table)
    assert table.rstrip(b" ") == json.dumps(rows).encode()
    rows = [[row[0].replace(location, "/data"), *row[1:]] for row in rows]
    return {
        "magic": magic.decode(),
        "offsets": np.frombuffer(offsets, "<i8")[:8].tolist(),
        "offsets sha256": sha256(offsets),
        "table": rows[:3],
        "table sha256": sha256(json.dumps(rows).encode()),
    }


def write_shards(folder):
    """As many as an index file is written for."""
    folder.mkdir()
    for n in range(64):
        path = folder / f"part-{n}.jsonl"
        path.write_text("".join(f'{{"n": {10**i}}}\n' for i in range(n % 5 + 1)))
        os.utime(path, (STAMP, STAMP))


def index(beside):
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        root = pathlib.Path(temporary)
        patch.setenv("ZEPHON_JAX_CACHE", str(root / "cache"))
        write_shards(root / "shards")
        if beside:
            (root / "shards" / ".zephon_jax").mkdir()
        location = zx.Dataset.from_path("a", root / "shards").location
        (path,) = root.rglob("*.index")
        if beside:
            assert path == root / "shards" / ".zephon_jax" / "jsonl.index"
        else:
            name = hashlib.blake2b(f"{location} jsonl".encode(), digest_size=16).hexdigest()
            assert path == root / "cache" / "index" / f"{name}.index"
        return index_parts(path, location)


# Later epochs


def readable_golden(name):
    """A golden configuration whose datasets hold numbers in place of records."""
    datasets = []
    for letter, counts in zip("abc", SHARDS, strict=True):
        counts = np.atleast_1d(counts)
        dataset = zx.Dataset.from_source(letter, range(int(counts.sum())))
        datasets.append(dataclasses.replace(dataset, shard_counts=counts))
    weights = dict(zip("abc", WEIGHTS, strict=True))
    return zx.StaticMixtureWorkSource(datasets, weights, **SETTINGS[name])


def epoch_digests(name):
    """Of the first ids of the second and the third epoch."""
    dataset, digests = zx.MixtureMapDataset(readable_golden(name)), []
    for epoch in (1, 2):
        begin, num_ids = epoch * len(dataset), min(NUM_IDS, len(dataset))
        elements = dataset.__getitems__(range(begin, begin + num_ids))
        ids = np.stack([element["sample_id"] for element in elements]).astype("<i8")
        digests.append(sha256(ids.tobytes()))
    return digests


WRITTEN = {
    **{f"state, {name}": functools.partial(encoded, name) for name in SETTINGS},
    **{f"iterator, {kind}": functools.partial(state_in_json, kind) for kind in ITERATORS},
    "checkpoint": checkpoint,
    "index": functools.partial(index, False),
    **{f"epochs, {name}": functools.partial(epoch_digests, name) for name in WITH_EPOCHS},
}


# In forms of before: they are only read.
OLDER = ("iterator, elastic, version 1", "checkpoint, version 1")


@functools.cache
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", WRITTEN)
def test_bytes_are_the_golden_ones(name):
    assert WRITTEN[name]() == golden()[name]


def test_golden_file_and_what_is_written_agree():
    assert set(golden()) == {*WRITTEN, *OLDER}
    digests = [sha for name in WITH_EPOCHS for sha in golden()[f"epochs, {name}"]]
    assert len(set(digests)) == len(digests)


def test_an_index_beside_the_data_is_the_same_file():
    assert index(beside=True) == golden()["index"]


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", SETTINGS)
def test_runs_go_on_from_golden_states(name):
    source, expected = golden_source(name), state_of(name)
    state = zx.decode_state(source, bytes.fromhex(golden()[f"state, {name}"]))
    assert_same(state, expected)
    chunk, _ = source.next_chunk(state)
    unbroken, _ = source.next_chunk(expected)
    assert chunk.chunk_index == unbroken.chunk_index
    assert_same(chunk.order(READING.get(name)), unbroken.order(READING.get(name)))


@pytest.mark.parametrize("name", [*(f"iterator, {kind}" for kind in ITERATORS), OLDER[0]])
def test_iterators_go_on_from_golden_states(name):
    kind = name.split(", ")[1]
    unbroken, restored = iterator_after(*ITERATORS[kind]), iter(ITERATORS[kind][0]())
    restored.set_state(json.loads(golden()[name]))
    for _ in range(5):
        assert_same(next(restored), next(unbroken))


def test_records_wait_in_the_golden_state_of_a_mixture():
    state = json.loads(golden()["iterator, mixture"])
    num_taken = sum(byte.bit_count() for byte in base64.b64decode(state["taken"]))
    assert 3 < num_taken < state["num_elements"] - 3


@pytest.mark.parametrize("written", ["checkpoint", "checkpoint, version 1"])
def test_runs_go_on_from_a_golden_checkpoint(written, tmp_path):
    for name, text in golden()[written].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    restored = iter(elastic())
    assert zx.restore_checkpoint(tmp_path, restored) == 1
    assert_same(next(restored), next(iterator_after(elastic, 1)))


if __name__ == "__main__":
    Golden(GOLDEN, WRITTEN, lambda name: WRITTEN[name]()).add_missing()
