"""Datasets: constructors, what they find, and what they refuse."""

import json
import multiprocessing
import os
import pickle
import time

import cloudpickle
import numpy as np
import pytest
from filelock import FileLock

from zephon_jax.data.cache.stager import Stager
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.files import natural_key
from zephon_jax.data.read_samples import read
from zephon_jax.data.shard_index import IndexStore


def write_jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_from_counts():
    toy = Dataset.from_counts("toy", [3, 0, 2])
    assert (toy.num_shards, toy.num_samples, toy.readable, toy.location) == (3, 5, False, None)
    assert toy.shard_counts.dtype == np.int64
    assert not toy.shard_counts.flags.writeable
    assert Dataset.from_counts("a", (np.int32(4),)).num_samples == 4
    assert Dataset.from_counts("a", np.full(10**6, 6442450944, np.uint64)).num_shards == 10**6


def test_from_counts_copies():
    counts = np.array([1, 2])
    toy = Dataset.from_counts("toy", counts)
    counts[0] = 9
    assert toy.shard_counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "counts", "kind", "word"),
    [
        (3, [1], TypeError, "3"),
        ("", [1], ValueError, "empty"),
        ("a", [True], TypeError, "True"),
        ("a", ["7"], TypeError, "'7'"),
        ("a", [1.0], TypeError, "1.0"),
        ("a", [5, -2], ValueError, "-2 for shard 1"),
        ("a", np.array([5, -2]), ValueError, "-2 for shard 1"),
        ("a", np.array([True]), TypeError, "bool"),
        ("a", np.array([1.5]), TypeError, "float64"),
        ("a", np.array([[1]]), ValueError, r"\(1, 1\)"),
        ("a", [], ValueError, "no shards"),
        ("a", "12", TypeError, "'12'"),
        ("a", 12, TypeError, "12"),
        ("a", [1 << 63], ValueError, "2\\^62"),
        ("a", [1 << 61] * 4, ValueError, "2\\^62"),
    ],
)
def test_from_counts_refuses(name, counts, kind, word):
    with pytest.raises(kind, match=word):
        Dataset.from_counts(name, counts)


def test_natural_order_whatever_the_listing(tmp_path, monkeypatch):
    for number in (10, 2, 1, 33):
        write_jsonl(tmp_path / f"sub{number % 2}" / f"part-{number}.jsonl", [number] * number)
    (tmp_path / "README.md").write_text("{}")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden.jsonl").write_text("1\n")
    folder = Dataset.from_path("a", tmp_path)
    assert folder.shard_counts.tolist() == [2, 10, 1, 33]
    globbed = Dataset.from_path("a", f"{tmp_path}/*/*.jsonl")
    listed = Dataset.from_path("a", [shard.path for shard in reversed(folder.shards)])
    assert folder.shards == globbed.shards == listed.shards
    assert sorted(["x2", "x10", "x1"], key=natural_key) == ["x1", "x2", "x10"]
    one = Dataset.from_path("a", tmp_path / "sub1" / "part-1.jsonl")
    assert one.shard_counts.tolist() == [1]


def test_location_is_the_same_for_the_same_place(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "d" / "a.jsonl", [1])
    monkeypatch.chdir(tmp_path)
    paths = ["d", "d/", tmp_path / "d", f"file://{tmp_path}/d"]
    assert len({Dataset.from_path("a", path).location for path in paths}) == 1


def test_format_by_content(tmp_path):
    write_jsonl(tmp_path / "data", [{"a": 1}])
    assert Dataset.from_path("a", tmp_path / "data").format == "jsonl"
    write_jsonl(tmp_path / "numbers", [1, 2])
    with pytest.raises(ValueError, match=r"'a'.*numbers.*format="):
        Dataset.from_path("a", tmp_path / "numbers")
    assert Dataset.from_path("a", tmp_path / "numbers", format="jsonl").num_samples == 2


def test_from_path_refuses(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'a'.*none"):
        Dataset.from_path("a", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="'a'"):
        Dataset.from_path("a", f"{tmp_path}/*.jsonl")
    with pytest.raises(ValueError, match=r"'a'.*no shards"):
        Dataset.from_path("a", tmp_path)
    with pytest.raises(ValueError, match=r"'a'.*empty"):
        Dataset.from_path("a", [])
    path = write_jsonl(tmp_path / "a.jsonl", [1])
    with pytest.raises(ValueError, match="twice"):
        Dataset.from_path("a", [path, path])
    with pytest.raises(ValueError, match="known formats"):
        Dataset.from_path("a", path, format="csv")
    with pytest.raises(ValueError, match="2 entries for 1 shard"):
        Dataset.from_path("a", path, counts=[1, 2])
    (tmp_path / "b.array_record").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'a' mixes formats.*b.array_record.*a.jsonl"):
        Dataset.from_path("a", tmp_path)
    assert Dataset.from_path("a", tmp_path, format="jsonl").num_shards == 1


def test_counts_skip_counting(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"")  # Who opens it sees that it is none.
    assert Dataset.from_path("a", tmp_path, counts=[2]).num_samples == 2


def test_wrong_counts_are_found_when_read(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    wrong = Dataset.from_path("a", tmp_path, counts=[3])
    with pytest.raises(ValueError, match=r"'a', shard 0.*holds 2 samples, not the 3"):
        read({0: wrong}, [[0, 0, 1]])


def _read_first(dataset):
    assert not dataset.shard_counts.flags.writeable
    return read({0: dataset}, np.array([[0, 0, 1], [0, 0, 0]]))


def test_pickles(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}])
    dataset = Dataset.from_path("a", tmp_path)
    for library in (pickle, cloudpickle):
        copy = library.loads(library.dumps(dataset))
        assert _read_first(copy) == [{"x": 2}, {"x": 1}]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read_first, (dataset,)) == [{"x": 2}, {"x": 1}]


class Source:
    """A random-access source that counts its calls."""

    def __init__(self, size):
        self.size, self.calls = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        if place == 13:
            raise RuntimeError("no such luck")
        self.calls.append(place)
        return {"n": place}


class BatchedSource(Source):
    def __getitems__(self, places):
        self.calls.append(list(places))
        return [{"n": place} for place in places]


def test_from_source():
    ids = np.array([[0, 2, 1], [0, 0, 3], [0, 1, 0]])
    for source in (Source(9), BatchedSource(9), [{"n": i} for i in range(9)]):
        dataset = Dataset.from_source("s", source, shard_size=4)
        assert dataset.shard_counts.tolist() == [4, 4, 1]
        assert dataset.readable
        with pytest.raises(ValueError, match=r"'s', shard 2 has 1 samples; got index 1"):
            read({0: dataset}, ids)
        ids[0, 2] = 0
        assert [record["n"] for record in read({0: dataset}, ids)] == [8, 3, 4]
        ids[0, 2] = 1
    assert Dataset.from_source("s", []).shard_counts.tolist() == [0]
    batched = BatchedSource(9)
    read({0: Dataset.from_source("s", batched)}, np.array([[0, 0, 5], [0, 0, 2]]))
    assert batched.calls == [[2, 5]]


def test_from_source_refuses():
    with pytest.raises(TypeError, match=r"'s'.*__len__"):
        Dataset.from_source("s", iter([1]))
    with pytest.raises(ValueError, match="shard_size"):
        Dataset.from_source("s", [1], shard_size=0)
    failing = Dataset.from_source("s", Source(20))
    with pytest.raises(ValueError, match=r"'s', shard 0.*record 13: RuntimeError: no such luck"):
        read({0: failing}, np.array([[0, 0, 13]]))
    grown = Source(20)
    dataset = Dataset.from_source("s", grown)
    grown.size = 21
    with pytest.raises(ValueError, match="21 samples now, not 20"):
        read({0: dataset}, np.array([[0, 0, 1]]))


def members(part):
    ids = [(0, s, i) for s, count in enumerate(part.shard_counts) for i in range(count)]
    return [tuple(record) for record in read({0: part}, np.array(ids))]


@pytest.fixture
def numbered(tmp_path):
    for shard, count in enumerate([100, 0, 7, 300, 1, 1, 1, 1]):
        write_jsonl(tmp_path / f"{shard}.jsonl", [[shard, index] for index in range(count)])
    return Dataset.from_path("web", tmp_path)


@pytest.mark.parametrize("by", ["sample", "shard"])
def test_split(numbered, by):
    parts = numbered.split(seed=1, by=by, train=0.6, valid=0.3, test=0.1)
    found = {name: members(part) for name, part in parts.items()}
    assert sorted(record for part in found.values() for record in part) == members(numbered)
    assert [parts[name].name for name in parts] == ["train", "valid", "test"]
    assert parts["train"].location != parts["valid"].location
    again = pickle.loads(pickle.dumps(numbered)).split(seed=1, by=by, train=0.6, rest=0.4)
    if by == "sample":
        assert [len(v) for v in found.values()] == pytest.approx([247, 123, 41], abs=4)
        assert members(again["train"]) == found["train"]  # The parts after it do not matter.
        assert members(numbered.split(seed=2, train=0.6)["train"]) != found["train"]
        # A part of a part.
        inner = parts["train"].split(seed=5, a=0.5, b=0.5)
        assert sorted(members(inner["a"]) + members(inner["b"])) == sorted(found["train"])


@pytest.mark.parametrize("by", ["sample", "shard"])
def test_which_record_an_id_of_a_part_gives_does_not_depend_on_what_is_read_with_it(numbered, by):
    part = numbered.split(seed=1, by=by, train=0.7)["train"]
    inner = part.split(seed=2, a=0.5)["a"]
    for datasets in ({3: part}, {3: inner}):
        counts = datasets[3].shard_counts.tolist()
        ids = np.array([(3, s, i) for s, count in enumerate(counts) for i in range(count)])
        np.random.default_rng(0).shuffle(ids)
        alone = [read(datasets, [sample_id])[0] for sample_id in ids]
        assert read(datasets, ids) == alone
        assert read(datasets, ids[::2]) == alone[::2]


def test_split_of_counts_alone():
    parts = Dataset.from_counts("toy", [1 << 40] * 3).split(seed=0, a=1 / 3, b=1 / 3, c=1 / 3)
    assert sum(part.num_samples for part in parts.values()) == 3 << 40
    assert not parts["a"].readable
    assert parts["a"].location is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "at least one part"),
        ({"a": 0.0}, "'a' must be above 0"),
        ({"a": -1}, "'a' must be above 0"),
        ({"a": "x"}, "'a' must be a number"),
        ({"a": 0.7, "b": 0.4}, "more than 1"),
        ({"a": 0.5, "by": "line"}, "'line'"),
        ({"a": 0.99, "b": 0.01, "by": "shard"}, "'b' gets none of the 1 shards"),
    ],
)
def test_split_refuses(arguments, word):
    with pytest.raises(ValueError, match=f"'toy'.*{word}"):
        Dataset.from_counts("toy", [10]).split(seed=0, **arguments)


class CountingStager(Stager):
    """Notes which local shards are opened to be scanned."""

    def __init__(self, folder):
        super().__init__(folder)
        self.scanned = []

    def staged(self, shard):
        self.scanned.append(os.path.basename(shard.file.path))
        return super().staged(shard)


@pytest.fixture
def stager(tmp_path):
    return CountingStager(tmp_path / ".cache")


def shards_of(folder):
    listed = Dataset.from_path("a", folder, counts=[0] * len(list(folder.glob("*.jsonl"))))
    return [listed.shard(shard_id) for shard_id in range(listed.num_shards)]


def new_store(tmp_path, **limits):
    """The indexes of another process, which keeps those of small data too."""
    return IndexStore(str(tmp_path / ".cache" / "index"), **{"min_bytes": 0, **limits})


def count_and_read(tmp_path, stager):
    """Counts in a new process, and all values as it reads them by its index; then what it scanned.

    The values are read as lines from the offsets in the index.
    """
    store, shards = new_store(tmp_path), shards_of(tmp_path)
    counts = store.count_samples(shards, "here", str, stager).tolist()
    values = []
    for shard in shards:
        index = store.index_of(shard, "here", stager)
        opened = shard.fmt.open(shard.file.path, index, None)
        values.append(list(opened.read(np.arange(index.num_samples))))
        opened.close()
    assert list(map(len, values)) == counts
    scanned, stager.scanned = sorted(stager.scanned), []
    return values, scanned


def test_index_is_kept_and_checked(tmp_path, stager):
    for shard in range(3):
        write_jsonl(tmp_path / f"{shard}.jsonl", [shard] * (shard + 1))
    values = [[0], [1, 1], [2, 2, 2]]
    assert count_and_read(tmp_path, stager) == (values, ["0.jsonl", "1.jsonl", "2.jsonl"])
    assert count_and_read(tmp_path, stager) == (values, [])
    write_jsonl(tmp_path / "1.jsonl", [1] * 32)
    write_jsonl(tmp_path / "3.jsonl", [3])
    values = [[0], [1] * 32, [2] * 3, [3]]
    assert count_and_read(tmp_path, stager) == (values, ["1.jsonl", "3.jsonl"])
    assert count_and_read(tmp_path, stager) == (values, [])
    kept = {path.suffix for path in (tmp_path / ".cache" / "index").iterdir()}
    assert kept == {".index", ".lock"}


def test_index_of_other_lines_in_as_many_bytes_is_not_used(tmp_path, stager):
    path = write_jsonl(tmp_path / "a.jsonl", [1111, 22])
    assert count_and_read(tmp_path, stager) == ([[1111, 22]], ["a.jsonl"])
    size = path.stat().st_size
    write_jsonl(path, [11, 22, 3])  # By the old index: two lines, the first of them no JSON.
    assert path.stat().st_size == size
    os.utime(path, (9, 9))
    assert count_and_read(tmp_path, stager) == ([[11, 22, 3]], ["a.jsonl"])


def test_any_byte_of_an_index_that_is_damaged_makes_for_a_scan(tmp_path, stager):
    write_jsonl(tmp_path / "a.jsonl", [11, 22, 33])
    write_jsonl(tmp_path / "b.jsonl", [44])
    values = [[11, 22, 33], [44]]
    assert count_and_read(tmp_path, stager) == (values, ["a.jsonl", "b.jsonl"])
    (path,) = (tmp_path / ".cache" / "index").glob("*.index")
    data = path.read_bytes()
    damaged = [data[:-5], b"", b"x" * 999, data[8:]]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        damaged.append(flipped)
    for number, content in enumerate(damaged):
        path.write_bytes(content)
        found, scanned = count_and_read(tmp_path, stager)
        assert found == values
        assert scanned, number
        found, _ = count_and_read(tmp_path, stager)
        assert (found, count_and_read(tmp_path, stager)) == (values, (values, []))  # Rebuilt.


def test_index_is_kept_where_it_is_worth_a_file(tmp_path, stager):
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    limits = [{"min_shards": 1}, {"min_bytes": 4}, {"min_seconds": 0.0}]
    for number, limit in enumerate([{}, *limits]):
        store = IndexStore(str(tmp_path / ".cache" / f"{number}"), **limit)
        store.count_samples(shards_of(tmp_path), "here", str, stager)
        assert os.path.exists(store.path("here", "jsonl")) == bool(limit)
    store = IndexStore(str(tmp_path / ".cache" / "asked"))
    assert store.keep(shards_of(tmp_path), "here", str) == store.path("here", "jsonl")
    assert os.path.exists(store.path("here", "jsonl"))


def test_index_beside_the_data(tmp_path):
    write_jsonl(tmp_path / "d" / "a.jsonl", [1, 2])
    (tmp_path / "d" / ".zephon_jax").mkdir()
    place = Dataset.from_path("a", tmp_path / "d").location
    written = new_store(tmp_path).keep(shards_of(tmp_path / "d"), place, str)
    assert written == str(tmp_path / "d" / ".zephon_jax" / "jsonl.index")
    assert os.path.exists(written)
    assert Dataset.from_path("a", tmp_path / "d").num_samples == 2


def test_index_where_nothing_can_be_written(tmp_path, stager):
    (tmp_path / "file").write_text("")
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    store = IndexStore(str(tmp_path / "file" / "below"), min_bytes=0)
    (shard,) = shards_of(tmp_path)
    assert store.count_samples([shard], "here", str).tolist() == [2]
    assert store.index_of(shard, "here").num_samples == 2


def _count(folder):
    return Dataset.from_path("a", folder).num_samples


def test_index_by_several_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / ".cache"))
    for shard in range(80):
        write_jsonl(tmp_path / f"{shard}.jsonl", [shard] * 5)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_count, [tmp_path] * 6, chunksize=1) == [400] * 6


def test_ten_thousand_shards_open_in_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / ".cache"))
    for shard in range(10_000):
        (tmp_path / f"{shard}.jsonl").write_text("1\n2\n")
    start = time.monotonic()
    assert Dataset.from_path("a", tmp_path).num_samples == 20_000
    assert Dataset.from_path("a", tmp_path).num_samples == 20_000
    assert time.monotonic() - start < 20


def test_index_lock_that_is_never_let_go(tmp_path, stager):
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    store = new_store(tmp_path, lock_seconds=0.1)
    os.makedirs(tmp_path / ".cache" / "index")
    with FileLock(store.path("here", "jsonl") + ".lock"):
        assert store.count_samples(shards_of(tmp_path), "here", str, stager).tolist() == [2]
