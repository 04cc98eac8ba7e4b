"""Datasets: constructors, what they find, and what they refuse."""

import json
import multiprocessing
import pickle

import cloudpickle
import numpy as np
import pytest

from zephon_jax import catalog, reader
from zephon_jax.catalog import Dataset
from zephon_jax.formats.files import natural_key


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


def test_counts_skip_counting(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    monkeypatch.setattr(catalog, "count_samples", None)
    assert Dataset.from_path("a", tmp_path, counts=[2]).num_samples == 2


def test_wrong_counts_are_found_when_read(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [1, 2])
    wrong = Dataset.from_path("a", tmp_path, counts=[3])
    with pytest.raises(ValueError, match=r"'a', shard 0.*holds 2 samples, not the 3"):
        reader.read({0: wrong}, [[0, 0, 1]])


def _read_first(dataset):
    assert not dataset.shard_counts.flags.writeable
    return reader.read({0: dataset}, np.array([[0, 0, 1], [0, 0, 0]]))


def test_pickles(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}])
    dataset = Dataset.from_path("a", tmp_path)
    for library in (pickle, cloudpickle):
        copy = library.loads(library.dumps(dataset))
        assert _read_first(copy) == [{"x": 2}, {"x": 1}]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_read_first, (dataset,)) == [{"x": 2}, {"x": 1}]
