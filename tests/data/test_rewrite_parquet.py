"""Row groups cut to a size: the same rows and settings, in pieces, whole or not at all."""

import datetime
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zx
from zephon_jax.data.rewrite_parquet import rewrite_parquet

ROWS = 3000


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    texts = ["".join(chr(97 + c) for c in rng.integers(0, 26, 60)) for _ in range(ROWS)]
    fields = [
        pa.field("text", pa.large_string(), metadata={b"of": b"the web"}),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
        pa.field("turns", pa.list_(pa.struct([("role", pa.string()), ("n", pa.int16())]))),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("tags", pa.map_(pa.string(), pa.int32())),
        pa.field("id", pa.uint32(), nullable=False),
    ]
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    arrays = [
        pa.array(texts, fields[0].type),
        pa.array([None if n % 5 == 0 else f"k{n % 3}" for n in range(ROWS)]).dictionary_encode(),
        pa.array([[{"role": "user", "n": k} for k in range(n % 4)] for n in range(ROWS)]),
        pa.array([start + datetime.timedelta(seconds=n) for n in range(ROWS)], fields[3].type),
        pa.array([[n, 1, 2, 3] for n in range(ROWS)], fields[4].type),
        pa.array([{"a": n} for n in range(ROWS)], fields[5].type),
        pa.array(range(ROWS), fields[6].type),
    ]
    arrays = [a.cast(f.type) for a, f in zip(arrays, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, {b"origin": b"a crawl"}))


def dataset_of(path):
    return zx.Dataset.from_path("rows", path)


def groups_of(path):
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def test_rows_types_codecs_and_metadata_stay(tmp_path, table):
    codecs = dict.fromkeys(table.schema.names, "zstd") | {"text": "gzip", "id": "none"}
    order = [pq.SortingColumn(6)]
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2000, compression=codecs,
                   use_dictionary=["kind"], sorting_columns=order)  # fmt: skip
    (found,) = rewrite_parquet(
        dataset_of(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), 20_000
    )
    old, new = pq.ParquetFile(tmp_path / "a.parquet"), pq.ParquetFile(tmp_path / "b.parquet")
    assert new.read().equals(table)
    assert new.schema_arrow.equals(old.schema_arrow, check_metadata=True)
    assert new.schema_arrow.metadata == {b"origin": b"a crawl"}
    assert new.schema_arrow.field("text").metadata[b"of"] == b"the web"
    for group in range(new.num_row_groups):
        assert new.metadata.row_group(group).sorting_columns == tuple(order)
        for c in range(new.metadata.num_columns):
            was, is_ = (f.metadata.row_group(g).column(c) for f, g in ((old, 0), (new, group)))
            assert (was.compression, was.path_in_schema) == (is_.compression, is_.path_in_schema)
            assert was.has_dictionary_page == is_.has_dictionary_page
    assert (found.num_rows, found.groups_before, found.groups) == (ROWS, 2, new.num_row_groups)
    assert found.largest < 30_000 < found.largest_before
    assert sorted(set(groups_of(tmp_path / "b.parquet")))[-1] < ROWS / 10


def test_groups_that_are_small_stay_and_empty_ones_go(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("n", pa.int64())])) as out:
        for start, stop in ((0, 10), (10, 10), (10, 5010), (5010, 5011)):
            out.write_table(pa.table({"n": pa.array(range(start, stop), pa.int64())}))
    rewrite_parquet(dataset_of(tmp_path / "a.parquet"), str(tmp_path / "out"), 25_000)
    new = tmp_path / "out" / "a.parquet"
    assert pq.read_table(new)["n"].to_pylist() == list(range(5011))
    sizes = groups_of(new)
    assert (sizes[0], sizes[-1]) == (10, 1)
    assert len(sizes) > 3
    assert max(sizes) - min(sizes[1:-1]) <= len(sizes)  # Pieces of a group are alike.
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    both = dataset_of([tmp_path / "none.parquet", tmp_path / "a.parquet"])
    rewrite_parquet(both, str(tmp_path / "two"), 1)
    assert dataset_of(tmp_path / "two").shard_counts.tolist() == [5011, 0]
    assert groups_of(tmp_path / "two" / "a.parquet") == [1] * 5011  # A row is never cut.


def test_folders_that_are_columns_stay(tmp_path):
    for year in (2023, 2024):
        folder = tmp_path / "in" / f"year={year}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": range(100)}), folder / "x.parquet")
    for name in ("in", "in/year=2024", "in/year=2024/x.parquet"):
        old = dataset_of(tmp_path / name)
        out = tmp_path / ("out " + "".join(filter(str.isalnum, name)))
        rewrite_parquet(old, str(out), 100)
        ids = [[0, shard, 99] for shard in range(old.num_shards)]
        assert zx.read([old], ids) == zx.read([dataset_of(out)], ids)
    with pytest.raises(ValueError, match=r"stand for columns \['year'\]"):
        rewrite_parquet(old, str(tmp_path / "c.parquet"), 100)
    assert not (tmp_path / "c.parquet").exists()


def test_nothing_is_overwritten(tmp_path, table):
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = dataset_of(tmp_path / "a.parquet")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("mine")
    before = (tmp_path / "a.parquet").read_bytes()
    for output in ("a.parquet", "full"):
        with pytest.raises(FileExistsError, match=f"{output} is there already"):
            rewrite_parquet(dataset, str(tmp_path / output), 1000)
    assert (tmp_path / "a.parquet").read_bytes() == before
    (tmp_path / "empty").mkdir()
    rewrite_parquet(dataset, str(tmp_path / "empty"), 1 << 30)
    assert groups_of(tmp_path / "empty" / "a.parquet") == [ROWS]


def test_all_of_it_or_nothing(tmp_path, table):
    (tmp_path / "in").mkdir()
    for name in ("0", "1"):
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet")
    dataset = dataset_of(tmp_path / "in")

    def touch(rows):
        os.utime(tmp_path / "in" / "1.parquet", (1, time.time() + 100))

    with pytest.raises(ValueError, match=r"'rows', shard 1 .*1.parquet.*written to since"):
        rewrite_parquet(dataset, str(tmp_path / "out"), 10_000, touch)
    assert sorted(os.listdir(tmp_path)) == ["in"]

    def stop(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite_parquet(dataset_of(tmp_path / "in"), str(tmp_path / "out"), 10_000, stop)
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_piece_of_a_group_is_in_memory(tmp_path):
    """Not all of it, decoded: 64 MB in one group, 32 MB compressed."""
    rng = np.random.default_rng(0)
    text = pa.array([rng.bytes(1000).hex() for _ in range(2000)] * 16)
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet", row_group_size=len(text),
                   compression="zstd", use_dictionary=False)  # fmt: skip
    del text
    dataset, held = dataset_of(tmp_path / "a.parquet"), []
    before = pa.total_allocated_bytes()
    rewrite_parquet(dataset, str(tmp_path / "out"), 1 << 20,
                    lambda rows: held.append(pa.total_allocated_bytes() - before))  # fmt: skip
    assert len(held) >= 60
    assert max(held) < 16_000_000


@pytest.mark.parametrize(
    ("size", "words"), [(0, "at least 1 byte; got 0"), (-5, "at least 1 byte; got -5")]
)
def test_sizes_are_checked(tmp_path, size, words):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=words):
        rewrite_parquet(dataset_of(tmp_path / "a.parquet"), str(tmp_path / "out"), size)


def test_other_data_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    with pytest.raises(ValueError, match="'rows' is jsonl: only Parquet files"):
        rewrite_parquet(dataset_of(tmp_path / "a.jsonl"), str(tmp_path / "out"), 100)
