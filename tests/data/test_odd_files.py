"""Data as people keep it: odd names, links, globs, odd files, and sources that misbehave."""

import gc
import http.server
import itertools
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
import zipfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from zephon_jax.data.dataset import Dataset
from zephon_jax.data.files import natural_key
from zephon_jax.data.formats import jsonl
from zephon_jax.data.formats.parquet import ParquetShard
from zephon_jax.data.read_samples import read
from zephon_jax.data.reader import Reader


def write_lines(path, values, head=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"".join(b"%s\n" % json.dumps(value).encode() for value in values))
    return path


def read_all(dataset):
    ids = [(0, s, i) for s, count in enumerate(dataset.shard_counts) for i in range(count)]
    return read({0: dataset}, np.array(ids, dtype=np.int64).reshape(-1, 3))


def records_of(path, **settings):
    return read_all(Dataset.from_path("web", path, **settings))


NAMES = ["a b", "é", "[v2]", "a[1]", "x?*", "a::b", "#%20&=", "10²", "²", "a\nb", "-", "{}"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(tmp_path, name):
    path = write_lines(tmp_path / name / f"{name}.jsonl", [1, 2])
    for named in (tmp_path, tmp_path / name, path, [path], f"file://{path}"):
        assert records_of(named) == [1, 2]


def test_names_sort_by_their_numbers():
    assert sorted(["x10²", "x9²", "x²"], key=natural_key) == ["x9²", "x10²", "x²"]


def test_home_folder(tmp_path, monkeypatch):
    write_lines(tmp_path / "d" / "a.jsonl", [1])
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset = Dataset.from_path("web", "~/d")
    assert dataset.location == Dataset.from_path("web", tmp_path / "d").location
    assert read_all(dataset) == [1]


def test_globs(tmp_path):
    write_lines(tmp_path / "p0.jsonl", [1])
    write_lines(tmp_path / "p1" / "deep" / "a.jsonl", [2])
    write_lines(tmp_path / "p2" / "_b.jsonl", [9])
    write_lines(tmp_path / "._p0.jsonl", [9])
    assert records_of(f"{tmp_path}/p*") == [1, 2]
    assert records_of(f"{tmp_path}/**") == [1, 2, 9]  # As in a shell, which hides dots alone.
    assert records_of(f"{tmp_path}/p?/**/*.jsonl") == [2, 9]
    assert records_of(f"{tmp_path}/*.jsonl") == [1]
    assert records_of(f"{tmp_path}/._*.jsonl") == [9]


def test_links(tmp_path):
    write_lines(tmp_path / "real" / "b.jsonl", [2])
    folder = tmp_path / "d"
    write_lines(folder / "c.jsonl", [3])
    (folder / "a.jsonl").symlink_to(write_lines(tmp_path / "other.jsonl", [1]))
    (folder / "b").symlink_to(tmp_path / "real")
    assert records_of(folder) == [1, 2, 3]
    (folder / "loop").symlink_to(folder)
    with pytest.raises(ValueError, match=r"'web'.*loop.*twice"):
        Dataset.from_path("web", folder)
    (folder / "loop").unlink()
    (folder / "z.jsonl").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"'web'.*z\.jsonl"):
        Dataset.from_path("web", folder)


def test_pipes_are_refused_unopened(tmp_path):
    write_lines(tmp_path / "a.jsonl", [1])
    os.mkfifo(tmp_path / "b.jsonl")
    for path in (tmp_path, tmp_path / "b.jsonl"):
        with pytest.raises(ValueError, match=r"'web'.*b\.jsonl.*neither"):
            Dataset.from_path("web", path)


def test_what_is_named_is_never_passed_over(tmp_path):
    folder = write_lines(tmp_path / "d" / "a.jsonl", [1]).parent
    beside = write_lines(tmp_path / "e" / "b.json", [{"n": 2}])
    assert records_of([folder, beside]) == [1, {"n": 2}]
    unknown = write_lines(tmp_path / "e" / "c.dat", [3])
    with pytest.raises(ValueError, match=r"'web'.*c\.dat.*format="):
        Dataset.from_path("web", [folder, unknown])
    assert records_of([folder, unknown], format="jsonl") == [1, 3]
    other = write_lines(tmp_path / "e" / "d.bin", [4])  # The user knows better than its name.
    assert records_of([folder, other], format="jsonl") == [1, 4]
    with pytest.raises(ValueError, match=r"no shards.*b\.json.*list them"):
        Dataset.from_path("web", write_lines(tmp_path / "f" / "b.json", [{}]).parent)


def test_packings_that_are_not_read(tmp_path):
    write_lines(tmp_path / "a.jsonl", [1])
    (tmp_path / "b.jsonl.bz2").write_bytes(b"BZh9")
    with pytest.raises(ValueError, match=r"'web'.*b\.jsonl\.bz2.*Unpack it"):
        Dataset.from_path("web", tmp_path)


@pytest.mark.parametrize("path", [None, 5, b"x", [None], [b"x"]])
def test_paths_of_wrong_type(path):
    with pytest.raises(TypeError, match=r"'web': a path must be"):
        Dataset.from_path("web", path)


def test_file_system_that_is_not_installed():
    with pytest.raises(ValueError, match=r"'web'.*not known: nosuch"):
        Dataset.from_path("web", "nosuch://bucket/a.jsonl")


# Files


@pytest.mark.parametrize("ending", ["jsonl", "dat"])
def test_byte_order_mark(tmp_path, ending):
    mark = b"\xef\xbb\xbf"
    write_lines(tmp_path / f"a.{ending}", [{"n": 1}, 2], head=mark)
    write_lines(tmp_path / "b.jsonl", [3], head=mark + b"\r\n")
    (tmp_path / "c.jsonl").write_bytes(mark)
    dataset = Dataset.from_path("web", tmp_path)
    assert dataset.shard_counts.tolist() == [2, 1, 0]
    assert read_all(dataset) == [{"n": 1}, 2, 3]


BREAKS = [
    b"",
    b"\n",
    b"\r\n",
    b"\n\r\n",
    b"\r\r\n",
    b"\r",
    b"\r\r",
    b" ",
    b" \n",
    b"\r\n\r",
    b"\t  \n \n",
]


@pytest.mark.parametrize("scan_bytes", [1, 2, 5, 1 << 20])
@pytest.mark.parametrize("ending", [b'{"a": 1}\n', b'{"a": 1}', b""])
@pytest.mark.parametrize("begin", BREAKS)
def test_a_byte_order_mark_changes_no_lines(tmp_path, monkeypatch, begin, ending, scan_bytes):
    """A line is blank that holds no more than white space, with the mark and without."""
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", scan_bytes)
    path, body = tmp_path / "a.jsonl", begin + ending
    *ended, last = body.split(b"\n")
    lines = [line + b"\n" for line in ended if line.strip()] + [last] * bool(last.strip())
    for head in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(head + body)
        offsets = jsonl.line_offsets(str(path)).tolist()
        found = [(head + body)[start:stop] for start, stop in itertools.pairwise(offsets)]
        assert len(found) == len(lines)
        assert all(map(bytes.startswith, found, lines))
        assert offsets[-1] == len(head + body)


def test_lines_behind_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.jsonl"
    for blank, num_blank in ((b"\n", 1), (b"\r\n", 1), (b"\n\r\n", 2), (b"", 0)):
        path.write_bytes(b"\xef\xbb\xbf" + blank + b'{"a": 1}\nno\n')
        dataset = Dataset.from_path("web", path)
        assert Reader().read({0: dataset}, [[0, 0, 0]]) == [{"a": 1}]
        with pytest.raises(ValueError, match=rf"record 1 \(line {num_blank + 2}\)"):
            Reader().read({0: dataset}, [[0, 0, 1]])
    path.write_bytes(b'\xef\xbb\xbf\r\r{"a": 1}\n')  # CR is no line break, but JSON takes it.
    assert records_of(path) == [{"a": 1}]


def test_zstd_with_frames_to_skip_and_large_windows(tmp_path):
    skip = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    packed = skip + zstandard.compress(b"1\n2\n") + skip + zstandard.compress(b"3\n")
    (tmp_path / "a.jsonl.zst").write_bytes(packed)
    large = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    writer = zstandard.ZstdCompressor(compression_params=large).compressobj()
    (tmp_path / "b.jsonl.zst").write_bytes(writer.compress(b"4\n") + writer.flush())
    assert records_of(tmp_path) == [1, 2, 3, 4]


def test_parquet_columns_are_checked(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    for columns in ("text", [], [1]):
        with pytest.raises(ValueError, match="'web': columns must be a list of names"):
            Dataset.from_path("web", tmp_path, columns=columns)
    lines = write_lines(tmp_path / "d" / "a.jsonl", [1])
    with pytest.raises(ValueError, match="'web': jsonl shards have no columns"):
        Dataset.from_path("web", lines, columns=["text"])
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"shard 0.*several columns 'n'"):
        records_of(tmp_path / "a.parquet")


def test_readers_that_come_and_go_share_no_rows(tmp_path):
    for number in range(30):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number] * 4}), path)
        dataset = Dataset.from_path("web", path)
        assert Reader().read({0: dataset}, [[0, 0, 3]]) == [{"n": number}]


def num_open(kind):
    gc.collect()
    return sum(isinstance(one, kind) for one in gc.get_objects())


def test_parquet_footers_are_bounded(tmp_path):
    for number in range(12):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"{number}.parquet")
    dataset, reader = Dataset.from_path("web", tmp_path), Reader(max_open_files=4)
    before = num_open(ParquetShard)
    ids = [[0, shard, 0] for shard in range(12)]
    assert reader.read({0: dataset}, ids) == [{"n": number} for number in range(12)]
    assert 0 < num_open(ParquetShard) - before <= 4


# Sources


class Source:
    """Numbers, read many at once by a function of their places."""

    def __init__(self, read_many):
        self.read_many = read_many

    def __len__(self):
        return 6

    def __getitem__(self, place):
        return place

    def __getitems__(self, places):
        return self.read_many(places)


def fail(error):
    def raise_error(places):
        raise error

    return raise_error


def test_source_that_gives_an_iterator():
    assert read_all(Dataset.from_source("web", Source(iter), 4)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("read_many", "words"),
    [
        (lambda places: {"a": places, "b": places}, "returns columns"),
        (lambda places: places[1:], "4 records from 0 to 3 were asked for, and 3 came"),
        # The sum over both shards is right.
        (lambda places: [0] * (5 if 0 in places else 1), "and 5 came"),
        (lambda places: None, "TypeError.*not iterable"),
        (fail(KeyError("text")), "KeyError: 'text'"),
        (fail(StopIteration()), "StopIteration"),
        (fail(AssertionError()), "4 records from 0 to 3: AssertionError"),
    ],
)
def test_sources_that_misbehave(read_many, words):
    with pytest.raises(ValueError, match=f"dataset 'web', shard 0: .*{words}"):
        read_all(Dataset.from_source("web", Source(read_many), 4))


def test_errors_of_the_system_keep_their_kind():
    dataset = Dataset.from_source("web", Source(fail(ConnectionResetError("gone"))), 4)
    with pytest.raises(ConnectionError, match="shard 1: 1 records from 5 to 5: gone"):
        read({0: dataset}, [[0, 1, 1]])


@pytest.mark.parametrize("source", ["/data/web", b"abc", {"train": [1], "test": [2]}])
def test_what_is_no_source(source):
    with pytest.raises(TypeError, match=r"'web': a source .*(from_path|Choose one)"):
        Dataset.from_source("web", source)


# URLs


def test_memory_and_archives(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/odd/a b[1].jsonl": b"1\n", "/odd/x/b.jsonl": b"2", "/odd/.c.jsonl": b"9\n"})
    try:
        for path in ("memory://odd", "memory://odd/**", "memory://odd/*"):
            assert records_of(path) == [1, 2]
        assert records_of("memory://odd/a b[1].jsonl") == [1]
    finally:
        memory.rm("/odd", recursive=True)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.jsonl", "1\n")
        archive.writestr("b.jsonl", "2\n")
    zipped = Dataset.from_path("web", f"zip://*.jsonl::{tmp_path}/a.zip")
    assert read_all(zipped) == [1, 2]
    assert all(file.stamp for file in zipped.shards)


class Pages(http.server.BaseHTTPRequestHandler):
    """A server without entity tags, which may keep the length to itself."""

    body, stamp, tells_length = b"", "", True
    go_on = threading.Event()  # What a request for data waits for.
    asked = threading.Event()  # That there was one.

    def do_HEAD(self):  # The name is http.server's.
        self.send_response(200)
        self.send_header("Last-Modified", self.stamp)
        if self.tells_length:
            self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()

    def do_GET(self):
        self.asked.set()
        self.go_on.wait(60)
        self.do_HEAD()
        self.wfile.write(self.body)

    def log_message(self, *args):
        """Silent."""


@pytest.fixture
def pages():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Pages.go_on.set()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        Pages.go_on.set()
        server.shutdown()
        thread.join()


def test_plain_web_server(pages, monkeypatch):
    url = f"{pages}/a.jsonl?version=[1]"  # What exists is no glob.
    monkeypatch.setattr(Pages, "body", b"1\n2\n")
    monkeypatch.setattr(Pages, "stamp", "Mon, 01 Jan 2024 00:00:00 GMT")
    before = Dataset.from_path("web", url, format="jsonl")
    assert read_all(before) == [1, 2]
    monkeypatch.setattr(Pages, "body", b"3\n4\n")  # The same size.
    monkeypatch.setattr(Pages, "stamp", "Mon, 01 Jan 2024 00:00:01 GMT")
    assert records_of(url, format="jsonl") == [3, 4]
    monkeypatch.setattr(Pages, "tells_length", False)
    with pytest.raises(ValueError, match=r"'web'.*the size of http.*is not known"):
        Dataset.from_path("web", url, format="jsonl")


LEAVE = """
import sys
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import Reader
here = Dataset.from_path("here", sys.argv[1])
far = Dataset.from_path("far", sys.argv[2] + "/a.jsonl", counts=[2])
reader = Reader()
assert reader.read({0: here}, [[0, 0, 0]]) == [1]
reader.plan({1: far}, [[1, 0]])
sys.stdin.readline()
"""


def test_program_ends_while_a_shard_is_on_its_way(tmp_path, pages, monkeypatch):
    monkeypatch.setattr(Pages, "body", b"1\n2\n")
    path = write_lines(tmp_path / "a.jsonl", [1])
    Pages.go_on.clear()
    Pages.asked.clear()
    command = [sys.executable, "-c", LEAVE, str(path), pages]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as program:
        assert Pages.asked.wait(30)
        assert program.communicate("go on\n", timeout=30)[1] == ""
    assert program.returncode == 0


READ_ON = """
import atexit, concurrent.futures, sys, threading
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import Reader
kind, url = sys.argv[1:]
far, reader = Dataset.from_path("far", url + "/a.jsonl", counts=[2]), Reader()
def read():
    print("got", reader.read({0: far}, [[0, 0, 0], [0, 0, 1]]), flush=True)
if kind == "thread":
    threading.Thread(target=read).start()
elif kind == "executor":
    concurrent.futures.ThreadPoolExecutor(1).submit(read)
else:
    atexit.register(read)
print("ending", flush=True)
"""


@pytest.mark.parametrize("kind", ["thread", "executor", "atexit"])
def test_whom_python_waits_for_reads_on_when_the_program_ends(pages, monkeypatch, kind):
    monkeypatch.setattr(Pages, "body", b"1\n2\n")
    Pages.go_on.clear()
    command = [sys.executable, "-c", READ_ON, kind, pages]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as program:
        assert program.stdout.readline() == "ending\n"
        time.sleep(0.7)  # So long it may take to be noticed.
        Pages.go_on.set()
        out, errors = program.communicate(timeout=30)
    assert (program.returncode, out, errors) == (0, "got [1, 2]\n", "")


def test_megatron_by_glob(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(np.array([5, 6], "<u2").tobytes())
    head = b"MMIDIDX\0\0" + bytes([1, 0, 0, 0, 0, 0, 0, 0, 8])
    sizes = np.array([1, 1], "<u8").tobytes() + np.array([2], "<i4").tobytes()
    path.with_suffix(".idx").write_bytes(head + sizes + bytes(16))
    for settings in ({}, {"format": "megatron"}):
        (tokens,) = records_of(f"{tmp_path}/*", **settings)
        assert tokens.tolist() == [5, 6]


# Other file systems


@pytest.fixture
def memory(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    fs = fsspec.filesystem("memory")
    fs.pipe({"/keys/a::b.jsonl": b"1\n2\n", "/keys/c.jsonl": b"3\n", "/keys/d::zip": b"[4]\n"})
    yield fs
    fs.rm("/keys", recursive=True)


def test_keys_with_two_colons(memory):
    """They chain file systems where each link is one."""
    assert records_of("memory:///keys/a::b.jsonl") == [1, 2]
    dataset = Dataset.from_path("web", "memory://keys", format="jsonl")
    assert read_all(dataset) == [1, 2, 3]
    assert records_of("memory:///keys/*::b.jsonl") == [1, 2]


@pytest.mark.parametrize("cache", ["filecache", "simplecache"])
def test_caches_of_fsspec(memory, cache, tmp_path):
    options = {cache: {"cache_storage": str(tmp_path / "theirs")}}
    assert records_of(f"{cache}::memory://keys/c.jsonl", storage_options=options) == [3]
    assert records_of(f"{cache}::memory://keys/c.jsonl") == [3]


def test_storage_options_that_do_not_suit():
    with pytest.raises(TypeError, match=r"'web': .*storage_options = \['nope'\] may not be those"):
        Dataset.from_path("web", "s3://bucket/a.jsonl", storage_options={"nope": "secret"})


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3://b/a.jsonl", "s3"), ("gs://b/a.jsonl", "gcs"), ("simplecache::gs://b/a.jsonl", "gcs"),
     ("abfs://b/a.jsonl", "azure"), ("hf://datasets/a/b", "hf")],
)  # fmt: skip
def test_missing_packages_are_named_by_their_extra(url, extra, monkeypatch):
    def missing(*args, **kwargs):
        raise ImportError("Please install something")

    monkeypatch.setattr("zephon_jax.data.files.fsspec.core.url_to_fs", missing)
    with pytest.raises(ImportError, match=rf"'web': .*pip install \"zephon-jax\[{extra}\]\""):
        Dataset.from_path("web", url)
