"""Data behind URLs: folders that lie in hidden ones, and servers that know no ranges."""

import functools
import http.server
import json
import threading

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_jax.data import fetch
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.formats import parquet
from zephon_jax.data.read_samples import read


def read_all(dataset):
    ids = [(0, s, i) for s, count in enumerate(dataset.shard_counts) for i in range(count)]
    return read({0: dataset}, np.array(ids, dtype=np.int64).reshape(-1, 3))


@pytest.mark.parametrize("root", ["/.cache/corpus", "/_old/corpus", "/a/.b/_c", "/plain"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_hidden_is_what_is_hidden_inside_the_folder(root, slash, tmp_path, monkeypatch):
    """Whoever names a folder means what is in it, wherever it lies."""
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    seen = {"a.jsonl": b"1\n", "x/b.jsonl": b"2\n"}
    hidden = {".c.jsonl": b"9\n", "_d.jsonl": b"9\n", "x/.y/e.jsonl": b"9\n", "_z/f.jsonl": b"9\n"}
    memory.pipe({f"{root}/{name}": data for name, data in (seen | hidden).items()})
    try:
        assert read_all(Dataset.from_path("web", f"memory:/{root}{slash}")) == [1, 2]
    finally:
        memory.rm("/" + root.split("/")[1], recursive=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that sends a whole one whatever part of it is asked for."""

    def log_message(self, *args):
        """Silent."""


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_server_without_ranges_gives_the_parts_that_are_asked_for(served, monkeypatch):
    """Lines that are fetched in several parts, and a footer at the end of a file."""
    folder, url = served
    monkeypatch.setattr(fetch, "_PART_BYTES", 1000)
    monkeypatch.setattr(parquet, "_TAIL_BYTES", 512)
    values = [{"n": n, "text": "x" * (n % 90)} for n in range(100)]
    (folder / "a.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    pq.write_table(pa.Table.from_pylist(values), folder / "b.parquet", compression="none")
    assert min(path.stat().st_size for path in folder.iterdir()) > 4000
    for name in ("a.jsonl", "b.parquet"):
        assert read_all(Dataset.from_path("web", f"{url}/{name}")) == values
