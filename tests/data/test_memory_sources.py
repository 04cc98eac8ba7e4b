"""Tables and arrays in memory as datasets: records are rows, and memory maps travel by name."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

import zephon_jax as zx
from zephon_jax.data.read_samples import read

ROWS = [{"n": n, "text": f"t{n}", "tags": [n, n + 1]} for n in range(20)]
IDS = [(0, 0, place) for place in (3, 19, 0, 3)]


def column(name):
    return [row[name] for row in ROWS]


def tables():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pa.Table.from_pylist(ROWS)
    shuffled = pd.DataFrame(ROWS, index=[n * 7 % 20 for n in range(20)])  # Not by label.
    return {
        "pandas": pd.DataFrame(ROWS),
        "pandas with labels": shuffled,
        "polars": pl.DataFrame(ROWS),
        "arrow": arrow,
        "arrow in pieces": pa.concat_tables([arrow.slice(0, 7), arrow.slice(7)]),
        "arrow batch": arrow.to_batches()[0],
    }


@pytest.mark.parametrize(
    "kind",
    ["pandas", "pandas with labels", "polars", "arrow", "arrow in pieces", "arrow batch"],
)
def test_tables_are_read_by_row(kind):
    table = tables()[kind]
    dataset = zx.Dataset.from_source("rows", table, shard_size=20)
    assert read({0: dataset}, IDS) == [ROWS[place] for _, _, place in IDS]
    record = read({0: dataset}, IDS)[0]
    assert [type(value) for value in record.values()] == [int, str, list]
    copy = pickle.loads(pickle.dumps(dataset))
    assert read({0: copy}, IDS) == [ROWS[place] for _, _, place in IDS]
    assert kind.split()[0] in (dataset.location or "") or "pyarrow" in (dataset.location or "")


def test_a_frame_whose_columns_are_numbers():
    """Indexed by a number it gives a column, not a row."""
    pd = pytest.importorskip("pandas")
    dataset = zx.Dataset.from_source("rows", pd.DataFrame([[1, 2], [3, 4], [5, 6]]))
    assert read({0: dataset}, [(0, 0, 2), (0, 0, 1)]) == [{0: 5, 1: 6}, {0: 3, 1: 4}]


def test_columns_are_read_by_value():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    labeled = pd.Series(column("text"), index=range(19, -1, -1))
    for values in (labeled, pl.Series(column("text")), pa.chunked_array([column("text")])):
        dataset = zx.Dataset.from_source("texts", values)
        assert read({0: dataset}, IDS) == ["t3", "t19", "t0", "t3"]


def test_tables_that_are_refused():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(ValueError, match=r"'rows': the table has several columns 'a'"):
        zx.Dataset.from_source("rows", twice)
    with pytest.raises(TypeError, match=r"'rows': a LazyFrame has no rows yet.*collect\(\)"):
        zx.Dataset.from_source("rows", pl.DataFrame(ROWS).lazy())


def mapped(tmp_path, mode="r"):
    path = tmp_path / "tokens.bin"
    if not path.exists():
        np.arange(1_000_000, dtype=np.int32).tofile(path)
    return np.memmap(path, np.int32, mode, offset=400, shape=(999_900,))


def views(tmp_path):
    array = mapped(tmp_path)
    return {
        "whole": array,
        "slice": array[5_000:900_000],
        "rows": array[:999_000].reshape(-1, 1000),
        "slice of rows": array[1_000:].reshape(-1, 100)[7:500],
        "written to": mapped(tmp_path, "r+"),
    }


@pytest.mark.parametrize("kind", ["whole", "slice", "rows", "slice of rows", "written to"])
def test_memory_maps_are_pickled_by_their_file(tmp_path, kind):
    array = views(tmp_path)[kind]
    if kind == "written to":
        array[3] = -7
    dataset = zx.Dataset.from_source("tokens", array)
    data = pickle.dumps(dataset)
    assert len(data) < 2_000
    copy = pickle.loads(data)
    ids = [(0, 0, place) for place in (0, len(array) // 2, len(array) - 1, 3)]
    for one, other in zip(read({0: copy}, ids), read({0: dataset}, ids), strict=True):
        assert np.array_equal(one, other)
    assert copy.num_samples == len(array)


def test_what_is_no_plain_view_is_pickled_by_content(tmp_path):
    array = mapped(tmp_path)
    changed = mapped(tmp_path, "c")
    changed[0] = -1  # In memory alone.
    for one in (array[:2000:2], changed[:100], array[:0], np.asarray(array[:50])):
        copy = pickle.loads(pickle.dumps(zx.Dataset.from_source("tokens", one)))
        ids = [(0, 0, place) for place in range(len(one))]
        assert read({0: copy}, ids) == one.tolist()


def test_a_file_that_is_gone(tmp_path):
    data = pickle.dumps(zx.Dataset.from_source("tokens", mapped(tmp_path)))
    (tmp_path / "tokens.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokens.bin"):
        pickle.loads(data)
