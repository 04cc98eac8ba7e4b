"""Remote shards over a real S3 API: copies, faults, look-ahead."""

import errno
import gzip
import json
import multiprocessing
import os
import random
import signal
import threading
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from array_record.python.array_record_module import ArrayRecordWriter
from support.helpers import wait_until
from support.s3_server import S3Server

import zephon_jax as zx
from zephon_jax._process import DaemonThreads
from zephon_jax.data import fetch
from zephon_jax.data.cache.stager import Stager
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import Reader

PAYLOAD = 40_000


@pytest.fixture(scope="module")
def server():
    with S3Server() as running:
        yield running


@pytest.fixture
def bucket(server, request, tmp_path, monkeypatch):
    """An empty bucket; faults are off, pauses are short, nothing is remembered."""
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(fetch, "_FIRST_DELAY", 0.01)
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    faults = server.faults
    faults.latency = faults.errors_left = faults.cuts_left = 0
    faults.down = faults.forbidden = False
    fs = fsspec.filesystem("s3", **server.storage_options)
    name = request.node.name.lower().replace("_", "-").replace("[", "-").replace("]", "")[:60]
    fs.mkdir(name)
    faults.num_requests = faults.num_bytes = 0
    return fs, name


@pytest.fixture
def stager(tmp_path):
    stager = Stager(tmp_path / "cache", max_bytes=1 << 30)
    yield stager
    stager.close()


def put(bucket, name, data):
    fs, root = bucket
    fs.pipe(f"s3://{root}/{name}", data)


def jsonl(num_lines, shard=0):
    return b"".join(b'{"at": [%d, %d]}\n' % (shard, index) for index in range(num_lines))


def array_record(tmp_path, num_records, size=1000):
    path = tmp_path / "made.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(num_records):
        writer.write(b"%d " % number + os.urandom(size))
    writer.close()
    return path.read_bytes()


def open_remote(server, bucket, **kwargs):
    url = f"s3://{bucket[1]}/"
    return Dataset.from_path("far", url, storage_options=server.storage_options, **kwargs)


def ids(*pairs):
    return np.array([(0, shard, index) for shard, index in pairs])


def test_formats(server, bucket, stager, tmp_path):
    reader = Reader(stager=stager)
    folders = {
        "jsonl": {"1.jsonl": jsonl(3, 1), "0.jsonl": jsonl(5)},
        "gz": {"1.jsonl.gz": gzip.compress(jsonl(3, 1)), "0.jsonl": jsonl(5)},
    }
    for folder, files in folders.items():
        for name, data in files.items():
            put(bucket, f"{folder}/{name}", data)
    options = server.storage_options
    for folder in folders:
        url = f"s3://{bucket[1]}/{folder}"
        dataset = Dataset.from_path("far", url, storage_options=options)
        assert dataset.shard_counts.tolist() == [5, 3]
        found = reader.read({0: dataset}, ids((1, 2), (0, 4), (0, 0)))
        assert [record["at"] for record in found] == [[1, 2], [0, 4], [0, 0]]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(50)}), sink, row_group_size=7)
    put(bucket, "p/x.parquet", sink.getvalue().to_pybytes())
    dataset = Dataset.from_path("far", f"s3://{bucket[1]}/p/*.parquet", storage_options=options)
    assert reader.read({0: dataset}, ids((0, 44), (0, 3))) == [{"a": 44}, {"a": 3}]
    tokens = np.arange(10, dtype="<u2")
    head = b"MMIDIDX\0\0" + bytes([1, *[0] * 7, 8, 2, *[0] * 7, 1, *[0] * 7])
    lengths, starts = np.array([4, 6], "<i4"), np.array([0, 8], "<i8")
    put(bucket, "m/x.bin", tokens.tobytes())
    put(bucket, "m/x.idx", head + lengths.tobytes() + starts.tobytes() + bytes(8))
    dataset = Dataset.from_path("far", f"s3://{bucket[1]}/m", storage_options=options)
    assert dataset.shard_counts.tolist() == [2]
    assert [r.tolist() for r in reader.read({0: dataset}, ids((0, 1)))] == [[4, 5, 6, 7, 8, 9]]
    reader.close()


def test_counting_fetches_no_payload(server, bucket, stager, tmp_path):
    data = array_record(tmp_path, 5000)
    put(bucket, "a.array_record", data)
    server.faults.num_bytes = 0
    dataset = open_remote(server, bucket)
    assert dataset.num_samples == 5000
    assert server.faults.num_bytes < len(data) / 5
    server.faults.num_bytes = 0
    known = open_remote(server, bucket, counts=[5000])
    assert server.faults.num_bytes < 5000  # The listing.
    reader = Reader(stager=stager)
    records = reader.read({0: known}, ids((0, 4999), (0, 3), (0, 17)))
    assert [record.split()[0] for record in records] == [b"4999", b"3", b"17"]
    assert server.faults.num_bytes < 1.05 * len(data)
    reader.close()


@pytest.mark.parametrize("room", [1.1, 0.5])
def test_counting_lines_fetches_each_byte_once(server, bucket, tmp_path, monkeypatch, room):
    """Copies are kept where there is room for all of them; else nothing is written at all."""
    monkeypatch.setattr(fetch, "_PART_BYTES", 1000)
    data = [jsonl(700 + shard, shard) + b" \r\n\n" * shard for shard in range(5)]
    for shard, lines in enumerate(data):
        put(bucket, f"{shard}.jsonl", lines)
    total = sum(map(len, data))
    monkeypatch.setenv("ZEPHON_JAX_CACHE_BYTES", str(int(room * total)))
    server.faults.num_bytes = 0
    dataset = open_remote(server, bucket)
    assert dataset.shard_counts.tolist() == [700, 701, 702, 703, 704]
    listings = 5000
    assert total <= server.faults.num_bytes < total + listings
    copies = list((tmp_path / "cache").glob("copies/*"))
    assert sum(path.stat().st_size for path in copies) == (total if room > 1 else 0)
    if room > 1:  # Reading fetches nothing more.
        assert zx.read([dataset], [[0, 4, 703]]) == [{"at": [4, 703]}]
        assert server.faults.num_bytes < total + listings
        return
    (tmp_path / "0.jsonl").write_bytes(data[4])
    assert dataset.shard_digests[4] == Dataset.from_path("a", tmp_path / "0.jsonl").shard_digests[0]
    assert zx.read([dataset], [[0, 4, 703], [0, 1, 0]]) == [{"at": [4, 703]}, {"at": [1, 0]}]


def test_an_object_that_changes_while_its_lines_are_counted(server, bucket, monkeypatch):
    monkeypatch.setattr(fetch, "_PART_BYTES", 1000)
    monkeypatch.setenv("ZEPHON_JAX_CACHE_BYTES", "0")
    put(bucket, "0.jsonl", jsonl(500))
    read_part, calls = fetch._read_part, []

    def change(file, read, part):
        calls.append(part)
        if len(calls) == 3:
            put(bucket, "0.jsonl", jsonl(500, 7))
        return read_part(file, read, part)

    monkeypatch.setattr(fetch, "_read_part", change)
    with pytest.raises(ValueError, match=r"'far', shard 0 .*0.jsonl.*changed since"):
        open_remote(server, bucket)
    assert len(calls) > 3


def test_truncated_array_record(server, bucket, tmp_path):
    put(bucket, "a.array_record", array_record(tmp_path, 500)[:-70000])
    with pytest.raises(ValueError, match=r"'far', shard 0 .*a.array_record.*cut short"):
        open_remote(server, bucket)


@pytest.mark.parametrize("fault", ["errors", "cuts"])
def test_faults_that_pass(server, bucket, stager, fault):
    put(bucket, "0.jsonl", jsonl(1000))
    dataset = open_remote(server, bucket, counts=[1000])
    setattr(server.faults, f"{fault}_left", 2)
    reader = Reader(stager=stager)
    assert reader.read({0: dataset}, ids((0, 999)))[0]["at"] == [0, 999]
    assert getattr(server.faults, f"{fault}_left") == 0
    reader.close()


def test_network_cut_and_back(server, bucket, stager, monkeypatch):
    monkeypatch.setattr(fetch, "_PART_BYTES", 4000)
    put(bucket, "0.jsonl", jsonl(1000))
    put(bucket, "1.jsonl", jsonl(1000, 1))
    dataset = open_remote(server, bucket, counts=[1000, 1000])
    reader = Reader(stager=stager)
    assert reader.read({0: dataset}, ids((0, 1)))[0]["at"] == [0, 1]
    server.faults.down = True
    with pytest.raises(OSError, match=r"'far', shard 1 .*1.jsonl"):
        reader.read({0: dataset}, ids((1, 1), (0, 5)))
    assert reader.read({0: dataset}, ids((0, 5)))[0]["at"] == [0, 5]
    server.faults.down = False
    found = reader.read({0: dataset}, ids((1, 1), (0, 5)))
    assert [record["at"] for record in found] == [[1, 1], [0, 5]]
    reader.close()


def test_forbidden_and_missing(server, bucket, stager):
    put(bucket, "0.jsonl", jsonl(10))
    dataset = open_remote(server, bucket, counts=[10])
    reader = Reader(stager=stager)
    server.faults.forbidden = True
    with pytest.raises(PermissionError, match=r"'far', shard 0 .*0.jsonl"):
        reader.read({0: dataset}, ids((0, 1)))
    with pytest.raises(PermissionError, match="'far'"):
        open_remote(server, bucket)
    server.faults.forbidden = False
    bucket[0].rm(f"s3://{bucket[1]}/0.jsonl")
    with pytest.raises(FileNotFoundError, match=r"'far', shard 0 .*0.jsonl"):
        reader.read({0: dataset}, ids((0, 1)))
    with pytest.raises(FileNotFoundError, match=r"'far'.*nowhere"):
        Dataset.from_path("far", "s3://nowhere/x/", storage_options=server.storage_options)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_reader_of_ones_own_after_a_fork(server, bucket, tmp_path, stager):
    """A thread holds its locks and others fetch while the process forks; both go on."""
    for shard in range(6):
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(jsonl(50, shard)))
    datasets = {0: Dataset.from_path("near", tmp_path, counts=[50] * 6)}
    for shard in range(6):
        put(bucket, f"{shard}.jsonl", jsonl(1000, shard))
    datasets[1] = open_remote(server, bucket, counts=[1000] * 6)
    wanted = np.asarray([(d, shard, 7) for d in (0, 1) for shard in range(6)])
    server.faults.latency = 0.02
    reader = Reader(stager=stager)
    reader.plan(datasets, wanted)
    assert [record["at"] for record in reader.read(datasets, wanted[:1])] == [[0, 7]]
    held, go = threading.Event(), threading.Event()

    def hold():
        ahead = stager._ahead.get()
        with reader._files.get()._lock, ahead._turn, ahead._changed:
            held.set()
            assert go.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        reader.plan(datasets, wanted)
        found = [record["at"] for record in reader.read(datasets, wanted)]
        reader.plan(datasets, ())
        reader.close()
        os._exit(found != [[shard, 7] for _ in range(2) for shard in range(6)])
    go.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = [record["at"] for record in reader.read(datasets, wanted)]
    assert found == [[shard, 7] for _ in range(2) for shard in range(6)]
    reader.close()


@pytest.mark.parametrize("num_lines", [10, 5, 20])
def test_object_that_changed(server, bucket, stager, num_lines):
    put(bucket, "0.jsonl", jsonl(10))
    dataset = open_remote(server, bucket, counts=[10])
    put(bucket, "0.jsonl", jsonl(num_lines, 7))
    reader = Reader(stager=stager)
    with pytest.raises(ValueError, match=r"'far', shard 0 .*0.jsonl.*changed since"):
        reader.read({0: dataset}, ids((0, 1)))


def test_look_ahead(server, bucket, tmp_path):
    for shard in range(6):
        put(bucket, f"{shard}.jsonl", jsonl(1000, shard))
    dataset = open_remote(server, bucket, counts=[1000] * 6)
    size = dataset.shards[0].size
    stager = Stager(tmp_path / "small", max_bytes=3 * size)
    reader = Reader(stager=stager)
    datasets = {0: dataset}
    assert reader.needs_plan(datasets)
    order = [4, 1, 5, 0, 3, 2]
    server.faults.num_bytes = 0
    for step, shard in enumerate(order):
        reader.plan(datasets, [(0, later) for later in order[step:]])
        names = [stager.entries(dataset.shard(s))[0].name for s in order[step : step + 3]]
        wait_until(lambda names=names: all(stager.cache.has(name) for name in names))
        before = server.faults.num_requests
        assert reader.read(datasets, ids((shard, 7)))[0]["at"] == [shard, 7]
        assert server.faults.num_requests == before or step < 3
        assert stager.cache.num_bytes() <= 4 * size
    assert server.faults.num_bytes <= 1.05 * 6 * size
    reader.plan(datasets, [])
    reader.close()
    stager.close()


def test_look_ahead_survives_errors(server, bucket, stager):
    put(bucket, "0.jsonl", jsonl(10))
    dataset = open_remote(server, bucket, counts=[10])
    reader = Reader(stager=stager)
    server.faults.forbidden = True
    reader.plan({0: dataset}, [(0, 0)])
    time.sleep(0.3)
    server.faults.forbidden = False
    name = stager.entries(dataset.shard(0))[0].name
    wait_until(lambda: stager.cache.has(name))
    local = Dataset.from_counts("toy", [1])
    reader.plan({0: local}, [(0, 0)])  # Nothing to do.


def _read_slowly(url, options, folder):
    fetch._PART_BYTES = PAYLOAD
    dataset = Dataset.from_path("far", url, storage_options=options, counts=[10])
    Reader(stager=Stager(folder, 1 << 30)).read({0: dataset}, ids((0, 1)))


def test_fetch_is_resumed_after_kill(server, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "_PART_BYTES", PAYLOAD)
    line = json.dumps("x" * (PAYLOAD * 4)).encode() + b"\n"
    put(bucket, "0.jsonl", line * 10)
    server.faults.num_bytes = 0
    server.faults.latency = 0.15
    url, folder = f"s3://{bucket[1]}/0.jsonl", tmp_path / "cache"
    arguments = (url, server.storage_options, folder)
    process = multiprocessing.get_context("spawn").Process(target=_read_slowly, args=arguments)
    process.start()
    # A process that starts on a busy machine takes its time.
    wait_until(lambda: server.faults.num_bytes > 12 * PAYLOAD, seconds=120)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    server.faults.latency = 0
    (part,) = (folder / "copies").glob("*.part")
    assert part.stat().st_size == 10 * len(line)
    stager = Stager(folder, 1 << 30)
    dataset = Dataset.from_path("far", url, storage_options=server.storage_options, counts=[10])
    found = Reader(stager=stager).read({0: dataset}, ids(*((0, i) for i in range(10))))
    assert found == [json.loads(line)] * 10
    # What was on the wire is lost: eight parts at most, and perhaps as many that had just begun.
    assert server.faults.num_bytes <= 10 * len(line) + 16 * PAYLOAD + 5000
    stager.close()


def lane_of(dataset, **settings):
    source = zx.StaticMixtureWorkSource(
        [dataset], {"far": 1}, chunk_size=50, shuffle_shards=False, **settings
    )
    return iter(zx.LaneIterDataset(source))


@pytest.mark.parametrize("fault", ["down", "forbidden"])
def test_lane_goes_on_after_a_fault_in_look_ahead(server, bucket, fault):
    for shard in range(4):
        put(bucket, f"{shard}.jsonl", jsonl(100, shard))
    elements = lane_of(open_remote(server, bucket, counts=[100] * 4))
    found = [next(elements)["data"]["at"]]
    setattr(server.faults, fault, True)
    kind = PermissionError if fault == "forbidden" else OSError
    for _ in range(2):  # An error each time, not an end.
        with pytest.raises(kind, match=r"'far', shard \d .*[0-9].jsonl"):
            found.extend(element["data"]["at"] for element in elements)
    setattr(server.faults, fault, False)
    found += [element["data"]["at"] for element in elements]
    assert found == [[shard, place] for shard in range(4) for place in range(100)]


def test_lane_names_an_object_that_is_gone(server, bucket):
    for shard in range(2):
        put(bucket, f"{shard}.jsonl", jsonl(100, shard))
    dataset = open_remote(server, bucket, counts=[100] * 2)
    bucket[0].rm(f"s3://{bucket[1]}/1.jsonl")
    elements, found = lane_of(dataset), []
    with pytest.raises(FileNotFoundError, match=r"'far', shard 1 .*1.jsonl"):
        found.extend(element["data"]["at"] for element in elements)
    assert found == [[0, place] for place in range(100)]


def test_second_file_of_a_remote_pair(server, bucket, stager):
    put(bucket, "x.bin", np.arange(4, dtype="<u2").tobytes())
    one = [1, *[0] * 7]  # version, sequences and documents
    uint16, int32 = (
        b"MMIDIDX\0\0" + bytes([*one, code, *one, *one, n]) + bytes(11 + 8)
        for code, n in ((8, 4), (4, 2))
    )
    put(bucket, "x.idx", uint16)
    reader = Reader(stager=stager)
    old = open_remote(server, bucket)
    assert reader.read({0: old}, ids((0, 0)))[0].tolist() == [0, 1, 2, 3]
    put(bucket, "x.idx", int32)
    new = open_remote(server, bucket)
    assert reader.read({0: new}, ids((0, 0)))[0].tolist() == [1 << 16, (3 << 16) + 2]
    bucket[0].rm(f"s3://{bucket[1]}/x.idx")
    with pytest.raises(FileNotFoundError, match=r"'far', shard 0 .*x.idx does not exist"):
        open_remote(server, bucket)


def test_compressed_object_whose_name_does_not_say_so(server, bucket, stager):
    put(bucket, "0.jsonl", gzip.compress(jsonl(10)))
    with pytest.raises(ValueError, match=r"'far', shard 0 .*compressed.*End the name in .gz"):
        open_remote(server, bucket)
    known = open_remote(server, bucket, counts=[10])
    with pytest.raises(ValueError, match=r"'far', shard 0 .*compressed.*End the name in .gz"):
        Reader(stager=stager).read({0: known}, ids((0, 1)))


def test_dead_network_is_given_up_soon():
    options = {
        "key": "key",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"},  # Nobody listens there.
    }
    start = time.monotonic()
    with pytest.raises(OSError, match="'far'"):
        Dataset.from_path("far", "s3://bucket/x.jsonl", storage_options=options)
    assert time.monotonic() - start < 20


class OwnError(Exception):
    """What a store of its own kind raises."""


@pytest.mark.parametrize(
    ("error", "num_calls", "kind"),
    [
        (OwnError("slow down"), 4, ConnectionError),
        (TimeoutError("late"), 4, TimeoutError),
        (FileNotFoundError("gone"), 1, FileNotFoundError),
        (ValueError("bad"), 1, ValueError),
        (KeyboardInterrupt("now"), 1, KeyboardInterrupt),
    ],
)
def test_what_is_tried_again(monkeypatch, error, num_calls, kind):
    monkeypatch.setattr(fetch, "_FIRST_DELAY", 0.001)
    errors = [error] * 9

    def call():
        if errors:
            raise errors.pop()
        return 7

    seeded = random.getstate()
    with pytest.raises(kind, match=str(error)):
        fetch.with_retries(call)
    assert len(errors) == 9 - num_calls
    assert random.getstate() == seeded  # the program's numbers are not for pauses
    if num_calls > 1:
        del errors[3:]
        assert fetch.with_retries(call) == 7


def test_a_part_is_done_when_it_is_written(server, bucket, tmp_path, monkeypatch):
    """A write fails, as on a full disk or by a kill: the next fetch brings that part again."""
    monkeypatch.setattr(fetch, "_PART_BYTES", 1000)
    data = os.urandom(4500)
    put(bucket, "0.jsonl", data)
    (file,) = open_remote(server, bucket, counts=[1]).shards
    target, pool = tmp_path / "copy", DaemonThreads(2, "fetch")
    target.write_bytes(bytes(len(data)))
    write, failures = os.pwrite, [OSError(errno.ENOSPC, "full")]

    def fail_once(fd, part, offset):
        if offset == 2000 and failures:
            raise failures.pop()
        return write(fd, part, offset)

    monkeypatch.setattr(os, "pwrite", fail_once)
    with pytest.raises(OSError, match="full"):
        fetch.fetch_file(file, server.storage_options, str(target), pool)
    assert target.read_bytes() != data
    fetch.fetch_file(file, server.storage_options, str(target), pool)
    assert target.read_bytes() == data
    pool.close()
