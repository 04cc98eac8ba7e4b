"""Broken data, files and disks: an error that names dataset and shard, and nothing lost."""

import contextlib
import gzip
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

import zephon_jax as zx
from zephon_jax.data.cache.stager import Stager
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.read_samples import read
from zephon_jax.data.reader import Reader
from zephon_jax.data.shard_index import IndexStore

NUM_RECORDS = 400


def write_array_record(folder):
    path = folder / "x.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for number in range(NUM_RECORDS):
        writer.write(b"%d" % number)
    writer.close()
    return path


def write_parquet(folder, checksums=True):
    path = folder / "x.parquet"
    table = pa.table({"n": range(NUM_RECORDS), "text": [f"{n:050d}" for n in range(NUM_RECORDS)]})
    pq.write_table(table, path, row_group_size=100, write_page_checksum=checksums)
    return path


def write_jsonl(folder):
    path = folder / "x.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(NUM_RECORDS)))
    return path


def pack(path, packing):
    packed = path.with_name(f"{path.name}.{packing}")
    zstd = zstandard.ZstdCompressor(write_checksum=True)  # As the command line tool does.
    compress = gzip.compress if packing == "gz" else zstd.compress
    packed.write_bytes(compress(path.read_bytes()))
    path.unlink()
    return packed


def write_megatron(folder):
    path = folder / "x.bin"
    tokens = np.arange(2 * NUM_RECORDS, dtype="<u2")
    path.write_bytes(tokens.tobytes())
    lengths = np.full(NUM_RECORDS, 2, "<i4")
    pointers = np.arange(NUM_RECORDS, dtype="<i8") * 4
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, NUM_RECORDS, 1)
    path.with_suffix(".idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + bytes(8))
    return path


WRITERS = {
    "array_record": write_array_record,
    "parquet": write_parquet,
    "jsonl": write_jsonl,
    "jsonl.gz": lambda folder: pack(write_jsonl(folder), "gz"),
    "jsonl.zst": lambda folder: pack(write_jsonl(folder), "zst"),
    "megatron": write_megatron,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))


def ids(*places):
    return np.array([(0, 0, place) for place in places])


def number(record):
    """The number that a record of any format was written with."""
    if isinstance(record, dict):
        return record["n"]
    return int(record[0]) // 2 if isinstance(record, np.ndarray) else int(record)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("change", ["append", "rewrite", "cut", "remove"])
def test_shard_that_changed_under_a_run(tmp_path, kind, change):
    path = WRITERS[kind](tmp_path)
    dataset, reader = {0: Dataset.from_path("far", path)}, Reader()
    assert [number(record) for record in reader.read(dataset, ids(7, 399))] == [7, 399]
    data = path.read_bytes()
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes({"append": data + b"1\n", "rewrite": data, "cut": data[:-3]}[change])
        os.utime(path, (1, 1))  # Clocks of some file systems are coarse.
    wanted = FileNotFoundError if change == "remove" else ValueError
    for _ in range(2):
        with pytest.raises(wanted, match=rf"'far', shard 0 .*{path.name}.*(since|gone)"):
            reader.read(dataset, ids(3))
    if change in ("append", "cut") and kind != "jsonl":
        return  # Such a file is no whole one any more, which the tests below are about.
    path.write_bytes(data)
    anew = {0: Dataset.from_path("far", path)}
    assert [number(record) for record in reader.read(anew, ids(3))] == [3]
    reader.close()


def test_second_file_of_a_pair_that_changed(tmp_path):
    path = write_megatron(tmp_path)
    dataset, reader = {0: Dataset.from_path("far", tmp_path)}, Reader()
    assert number(reader.read(dataset, ids(5))[0]) == 5
    other = path.with_suffix(".idx")
    os.utime(other, (1, 1))
    with pytest.raises(ValueError, match=r"'far', shard 0 .*x.bin.*x.idx.*written to since"):
        reader.read(dataset, ids(5))
    os.truncate(other, 50)
    with pytest.raises(ValueError, match=r"'far', shard 0 .*x.bin.*x.idx.*changed since"):
        reader.read(dataset, ids(5))
    other.unlink()
    with pytest.raises(FileNotFoundError, match=r"'far', shard 0 .*x.bin.*x.idx.*gone"):
        reader.read(dataset, ids(5))
    with pytest.raises(FileNotFoundError, match=r"'far', shard 0 .*x.idx does not exist.*glob"):
        Dataset.from_path("far", tmp_path)
    write_megatron(tmp_path)
    path.rename(tmp_path / "y.bin")
    (tmp_path / "y.idx").write_bytes(other.read_bytes())
    with pytest.raises(FileNotFoundError, match=r"'far': .*x.idx has no shard beside it"):
        Dataset.from_path("far", tmp_path)


def test_bin_files_that_are_something_else(tmp_path):
    (tmp_path / "weights.bin").write_bytes(os.urandom(100))
    with pytest.raises(FileNotFoundError, match=r"weights.idx does not exist.*format="):
        Dataset.from_path("far", tmp_path)
    write_jsonl(tmp_path)
    with pytest.raises(ValueError, match=r"'far' mixes formats.*weights.bin.*format="):
        Dataset.from_path("far", tmp_path)
    assert Dataset.from_path("far", tmp_path, format="jsonl").num_samples == NUM_RECORDS
    (tmp_path / "weights.idx").write_bytes(os.urandom(100))
    with pytest.raises(ValueError, match=r"'far', shard 0 .*weights.bin.*not a Megatron index"):
        Dataset.from_path("far", tmp_path / "weights.bin")


def test_megatron_index_with_wrong_places(tmp_path):
    path = write_megatron(tmp_path)
    other = path.with_suffix(".idx")
    data = bytearray(other.read_bytes())
    data[34 + 4 * NUM_RECORDS + 8 * 7 + 4] = 9  # Sequence 7 begins 38 GB into the file.
    data[34 + 4 * 9 + 3] = 200  # Sequence 9 has a length below 0.
    other.write_bytes(data)
    dataset = {0: Dataset.from_path("far", path)}
    for place in (7, 9):
        with pytest.raises(ValueError, match=rf"'far', shard 0 .*record {place}: .*corrupted"):
            read(dataset, ids(1, place))
    assert [number(record) for record in read(dataset, ids(6, 8, 399))] == [6, 8, 399]


@pytest.mark.parametrize("checksums", [True, False])
def test_corrupted_parquet(tmp_path, checksums):
    path = write_parquet(tmp_path, checksums)
    meta = pq.ParquetFile(path).metadata.row_group(1).column(1)
    data = bytearray(path.read_bytes())
    start = meta.dictionary_page_offset or meta.data_page_offset
    middle = start + meta.total_compressed_size // 2
    data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(data)
    dataset = {0: Dataset.from_path("far", path)}
    with pytest.raises(
        ValueError, match=r"'far', shard 0 .*x.parquet.*records 100 to 199 .*corrupted"
    ):
        read(dataset, ids(5, 150))
    assert [number(record) for record in read(dataset, ids(99, 200))] == [99, 200]


def test_corrupted_parquet_footer(tmp_path):
    path = write_parquet(tmp_path)
    data = bytearray(path.read_bytes())
    data[-100:-20] = b"\xff" * 80
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"'far', shard 0 .*x.parquet.*not a complete Parquet"):
        Dataset.from_path("far", path)


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("damage", ["cut", "flip", "junk"])
def test_damaged_compressed_file(tmp_path, packing, damage):
    path = pack(write_jsonl(tmp_path), packing)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flip":
        data[len(data) // 2] ^= 255
    else:
        data += b"junk"
    path.write_bytes(data)
    for counts in (None, [NUM_RECORDS]):
        with pytest.raises(ValueError, match=rf"'far', shard 0 .*{path.name}.*(cut|corrupted)"):
            read({0: Dataset.from_path("far", path, counts=counts)}, ids(1))
    assert not list((tmp_path / "cache" / "copies").glob("*plain"))


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_compression_is_told_by_content(tmp_path, packing):
    other = {"gz": "zst", "zst": "gz"}[packing]
    packed = pack(write_jsonl(tmp_path), packing).rename(tmp_path / f"a.jsonl.{other}")
    packed.with_name("b.jsonl").write_bytes(packed.read_bytes())
    write_jsonl(tmp_path).rename(tmp_path / "c.jsonl.gz")
    dataset = Dataset.from_path("far", tmp_path)
    assert dataset.shard_counts.tolist() == [NUM_RECORDS] * 3
    assert read({0: dataset}, [[0, shard, 399] for shard in range(3)]) == [399] * 3
    named = tmp_path / "named"
    lines = b"".join(b'{"n": %d}\n' % n for n in range(3))
    named.write_bytes(gzip.compress(lines) if packing == "gz" else zstandard.compress(lines))
    assert read({0: Dataset.from_path("far", named)}, ids(2)) == [{"n": 2}]


@contextlib.contextmanager
def as_nobody():
    """Root may read everything, so be somebody else for a while."""
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if as_root:
            os.seteuid(0)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("counts", [None, [NUM_RECORDS]])
def test_permission_denied(kind, counts, monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        monkeypatch.setenv("ZEPHON_JAX_CACHE", os.path.join(folder, "cache"))
        path = WRITERS[kind](pathlib.Path(folder))
        with as_nobody():
            assert number(read({0: Dataset.from_path("far", path)}, ids(5))[0]) == 5
        path.chmod(0)
        os.utime(path, (1, 1))
        with as_nobody(), pytest.raises(PermissionError, match=rf"'far', shard 0 .*{path.name}"):
            read({0: Dataset.from_path("far", path, counts=counts)}, ids(5))
        path.chmod(0o644)
        with as_nobody():
            assert number(read({0: Dataset.from_path("far", path)}, ids(5))[0]) == 5


def test_folder_that_cannot_be_listed_is_not_passed_over():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        shut = pathlib.Path(folder) / "shut"
        shut.mkdir()
        write_jsonl(pathlib.Path(folder))
        shut.chmod(0)
        with as_nobody(), pytest.raises(PermissionError, match=r"'far'.*shut"):
            Dataset.from_path("far", folder)


def test_cache_folder_that_cannot_be_written(tmp_path, monkeypatch):
    path = pack(write_jsonl(tmp_path), "gz")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "file" / "cache"))
    dataset = {0: Dataset.from_path("far", path, counts=[NUM_RECORDS])}
    with pytest.raises(
        OSError,
        match=r"'far', shard 0 .*x.jsonl.gz.*file/cache cannot be written.*ZEPHON_JAX_CACHE",
    ):
        read(dataset, ids(1))


# A name space of its own in which a disk may be mounted: as root, or as anybody where that may be.
NAMESPACES = [["unshare", "-m"], ["unshare", "-Urm"]]


def on_small_disk(scenario, tmp_path):
    """Runs a function with a folder and a disk of 256 KiB, in a process that has such a disk."""
    disk = tmp_path / "disk"
    (tmp_path / "data").mkdir()
    disk.mkdir()
    mount = ["sh", "-c", 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"', str(disk)]
    probe = [*mount, sys.executable, "-c", ""]
    allowed = [n for n in NAMESPACES if not subprocess.run([*n, *probe]).returncode]
    if not allowed:
        pytest.skip("neither root nor a user name space may mount a small disk here")
    name, paths = scenario.__name__, (str(tmp_path / "data"), str(disk))
    code = f"import pathlib, {__name__} as t; t.{name}(*map(pathlib.Path, {paths!r}))"
    command = [*allowed[0], *mount, sys.executable, "-c", code]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=os.path.dirname(__file__)
    )
    assert ran.returncode == 0, ran.stderr


def write_large_lines(folder):
    """Five compressed shards of 100 KB of text each."""
    for shard in range(5):
        text = "".join(json.dumps([shard, n, "x" * 990]) + "\n" for n in range(100))
        (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return Dataset.from_path("far", folder, counts=[100] * 5)


def make_room_or_say_so(folder, small_disk):
    dataset = {0: write_large_lines(folder)}
    stager = Stager(small_disk, max_bytes=1 << 30)  # The budget does not know how small it is.
    reader = Reader(stager=stager)
    for shard in (0, 1, 2, 3, 4, 0):
        found = reader.read(dataset, [[0, shard, 99], [0, shard, 0]])
        assert [record[:2] for record in found] == [[shard, 99], [shard, 0]]
    with pytest.raises(OSError, match="No space"):
        (small_disk / "more").write_bytes(bytes(256 << 10))
    reader.close()
    for copy in (small_disk / "copies").iterdir():
        copy.rename(small_disk / copy.name)  # Room that the cache may not have back.
    for _ in range(2):
        with pytest.raises(
            OSError, match=r"'far', shard 1 .*1.jsonl.gz.*is full.*ZEPHON_JAX_CACHE"
        ):
            reader.read(dataset, [[0, 1, 5]])
    for path in small_disk.iterdir():
        if path.is_file() and path.name != "lock":
            path.unlink()
    assert reader.read(dataset, [[0, 1, 5]])[0][:2] == [1, 5]
    reader.close()


def lane_goes_on(folder, small_disk):
    dataset = write_large_lines(folder)
    os.environ["ZEPHON_JAX_CACHE"] = str(small_disk / "cache")
    source = zx.StaticMixtureWorkSource([dataset], {"far": 1}, chunk_size=50, shuffle_shards=False)
    elements, found = iter(zx.LaneIterDataset(source)), []
    (small_disk / "others").write_bytes(bytes(200 << 10))
    with pytest.raises(OSError, match=r"'far', shard 0 .*is full"):
        next(elements)
    (small_disk / "others").unlink()
    found += [element["data"][:2] for element in elements]
    assert found == [[shard, n] for shard in range(5) for n in range(100)]


def index_does_without(folder, small_disk):
    os.environ["ZEPHON_JAX_CACHE"] = str(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "others").write_bytes(bytes(300 << 10))
    dataset = Dataset.from_path("far", write_jsonl(folder))
    assert read({0: dataset}, ids(399)) == [399]
    store = IndexStore(str(small_disk / "index"), min_bytes=0)
    assert store.count_samples([dataset.shard(0)], "far", str).tolist() == [400]
    assert not [name for name in os.listdir(small_disk / "index") if "lock" not in name]


@pytest.mark.parametrize("scenario", [make_room_or_say_so, lane_goes_on, index_does_without])
def test_full_disk(tmp_path, scenario):
    on_small_disk(scenario, tmp_path)


@pytest.fixture
def largest_file():
    """Files may not grow beyond 64 KiB, for anybody: the system refuses to write more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_copy_that_cannot_be_written(tmp_path, monkeypatch, largest_file):
    """It is named, costs no other copy, and the lane goes on where it stood."""
    (tmp_path / "data").mkdir()
    write_large_lines(tmp_path / "data")
    small = "".join(json.dumps([5, n]) + "\n" for n in range(100))
    (tmp_path / "data" / "5.jsonl.gz").write_bytes(gzip.compress(small.encode()))
    dataset = Dataset.from_path("far", tmp_path / "data", counts=[100] * 6)
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    assert read({0: dataset}, [[0, 5, 99]]) == [[5, 99]]
    source = zx.StaticMixtureWorkSource([dataset], {"far": 1}, chunk_size=50, shuffle_shards=False)
    elements = iter(zx.LaneIterDataset(source))
    for _ in range(2):
        with pytest.raises(OSError, match=r"'far', shard 0 .*0.jsonl.gz.*File too large"):
            next(elements)
    kept = [path for path in (tmp_path / "cache" / "copies").iterdir() if path.suffix != ".part"]
    assert [path.read_text() for path in kept] == [small]
    largest_file()
    found = [element["data"][:2] for element in elements]
    assert found == [[shard, n] for shard in range(6) for n in range(100)]


def test_index_that_cannot_be_written(tmp_path, monkeypatch, largest_file):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.jsonl").write_text("7\n" * 20_000)  # 160 KB of offsets
    dataset = Dataset.from_path("many", tmp_path / "data")
    assert read({0: dataset}, ids(19_999)) == [7]
    shards, found = [dataset.shard(0)], []
    for _ in range(2):
        store = IndexStore(str(tmp_path / "index"), min_bytes=0)
        assert store.count_samples(shards, "many", str).tolist() == [20_000]
        assert store.index_of(shards[0], "many").num_samples == 20_000
        found.append([name for name in os.listdir(tmp_path / "index") if "lock" not in name])
        largest_file()
    assert list(map(len, found)) == [0, 1]
