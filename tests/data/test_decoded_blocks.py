"""Decoded row groups: how often each is decoded, against the best that a cache can do."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zx
from zephon_jax.data.cache.block_plan import BlockUse
from zephon_jax.data.cache.decoded import DecodedBlocks, decoded_blocks
from zephon_jax.data.read_samples import read

ROW = 200  # bytes of text
ROWS = 500  # in a row group


def write_groups(folder, num_files, groups_each):
    """Files of row groups of 100 KB."""
    folder.mkdir(exist_ok=True)
    for file in range(num_files):
        first = file * groups_each * ROWS
        rows = range(first, first + groups_each * ROWS)
        table = pa.table({"id": list(rows), "text": [f"{row:0{ROW}d}" for row in rows]})
        options = {"row_group_size": ROWS, "use_dictionary": False}
        pq.write_table(table, folder / f"{file}.parquet", **options)


def best(windows, num_blocks, budget):
    """Blocks decoded by a cache of whole blocks that knows all, and may pass one through.

    Belady's rule, written as a search through the whole sequence of uses.
    """
    uses = [block for window in windows for block in sorted(set(window))]
    held, decoded = set(), 0
    for place, block in enumerate(uses):
        if block in held:
            continue
        decoded += 1
        held.add(block)
        if len(held) > budget:
            later = uses[place + 1 :]
            held.remove(max(held, key=lambda b: later.index(b) if b in later else math.inf))
    return decoded


@pytest.fixture
def counted(monkeypatch):
    """A budget in blocks; returns the cache, which is a new one for each budget."""

    def with_budget(num_blocks):
        # Each row has 8 bytes of id, the text and 4 bytes of its offset.
        monkeypatch.setenv("ZEPHON_JAX_DECODED_BYTES", str(int(num_blocks * ROWS * (ROW + 12.2))))
        blocks = decoded_blocks()
        blocks.forget()
        blocks.num_decoded = blocks.bytes_decoded = 0
        return blocks

    return with_budget


def ids_by_chunk(source):
    state, found = source.init(), []
    while True:
        chunk, state = source.next_chunk(state)
        if chunk is None:
            return found
        found.append(chunk.order()[1])


@pytest.mark.filterwarnings("ignore:dataset 'rows'. its order goes back and forth")
@pytest.mark.parametrize("block", ["global", 4 * ROWS, None])
def test_each_group_is_decoded_as_seldom_as_can_be(tmp_path, counted, block):
    write_groups(tmp_path / "data", 4, 5)
    blocks = counted(6)
    dataset = zx.Dataset.from_path("rows", tmp_path / "data")
    source = zx.StaticMixtureWorkSource(
        [dataset], {"rows": 1}, chunk_size=50, shuffle_block_size=block
    )
    found = [element["data"]["id"] for element in zx.LaneIterDataset(source)]
    ids = ids_by_chunk(source)
    assert found == [int(row[1]) * 5 * ROWS + int(row[2]) for chunk in ids for row in chunk]
    windows = [(chunk[:, 1] * 5 + chunk[:, 2] // ROWS).tolist() for chunk in ids]
    assert blocks.num_decoded <= 1.2 * best(windows, 20, 6)
    assert blocks.num_bytes <= blocks.max_bytes
    if block != "global":
        assert blocks.num_decoded <= 2 * 20


def uses_of(blocks, decoded):
    """Uses of blocks of 10 rows that note what is decoded."""

    def use(key, *places):
        def decode():
            decoded.append(key)
            return pa.table({"n": [10 * key + n for n in range(10)]})

        return BlockUse(key, np.array(places, np.int64), 80, decode)

    def values(one):
        table, where = blocks.rows(one)
        return table.take(where)["n"].to_pylist()

    return use, values


def test_rows_that_plans_know_outlive_their_block():
    blocks, decoded = DecodedBlocks(200), []
    use, values = uses_of(blocks, decoded)
    plan = blocks.plan()
    windows = [[use(key, key % 10, 9)] for key in (0, 1, 2, 3, 0, 1, 2, 3)]
    for window in windows:
        plan.add(2, window)
    for window in windows:
        plan.begin()
        key = window[0].key
        assert values(window[0]) == [10 * key + key, 10 * key + 9]
        assert blocks.num_bytes <= 200
    assert sorted(set(decoded)) == [0, 1, 2, 3]
    assert len(decoded) <= 6  # Two blocks fit; of the others two rows are left behind.


def test_a_closed_plan_asks_for_nothing():
    blocks, decoded = DecodedBlocks(100), []
    use, values = uses_of(blocks, decoded)
    plan = blocks.plan()
    plan.add(1, [use(7, 1)])
    plan.close()
    for key in (1, 2, 3):
        assert values(use(key, 0)) == [10 * key]
    assert decoded == [1, 2, 3]


def test_threads_that_want_one_block_decode_it_once():
    blocks, num_decoded, ready = DecodedBlocks(1000), itertools.count(), threading.Barrier(4)

    def decode():
        next(num_decoded)
        threading.Event().wait(0.1)
        return pa.table({"n": list(range(10))})

    found = []

    def read():
        ready.wait()
        table, where = blocks.rows(BlockUse("a", np.array([3]), 80, decode))
        found.append(table.take(where)["n"].to_pylist())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[3]] * 4
    assert next(num_decoded) == 1


def test_an_error_of_a_block_ahead_is_raised_where_it_is_read(tmp_path):
    """And the reads before it are not disturbed."""
    write_groups(tmp_path / "data", 1, 4)
    path = tmp_path / "data" / "0.parquet"
    last = pq.read_metadata(path).row_group(3).column(1)
    data = bytearray(path.read_bytes())
    middle = last.data_page_offset + last.total_compressed_size // 2
    data[middle : middle + 100] = bytes(range(100))
    path.write_bytes(data)
    dataset = zx.Dataset.from_path("rows", path)
    source = zx.StaticMixtureWorkSource([dataset], {"rows": 1}, chunk_size=100)
    elements = iter(zx.LaneIterDataset(source))
    found = [next(elements)["data"]["id"] for _ in range(3 * ROWS)]
    assert found == list(range(3 * ROWS))
    with pytest.raises(ValueError, match=r"'rows', shard 0 .*row group 3"):
        next(elements)


def test_row_groups_as_shards(tmp_path):
    folder = tmp_path / "data"
    write_groups(folder, 2, 3)
    pq.write_table(pa.table({"id": [0], "text": ["a"]}).slice(0, 0), folder / "2.parquet")
    dataset = zx.Dataset.from_path("rows", folder, row_groups="shards")
    assert dataset.shard_counts.tolist() == [ROWS] * 6
    by_file = zx.Dataset.from_path("rows", folder)
    assert dataset.num_samples == by_file.num_samples
    assert abs(int(dataset.shard_bytes.sum()) - int(by_file.shard_bytes[:2].sum())) <= 6
    source = zx.StaticMixtureWorkSource(
        [dataset], {"rows": 1}, chunk_size=100, shuffle_within_shard=True
    )
    found = [element["data"]["id"] for element in zx.LaneIterDataset(source)]
    assert sorted(found) == list(range(6 * ROWS))
    for start in range(0, len(found), ROWS):  # A group is gone through before the next begins.
        assert len({number // ROWS for number in found[start : start + ROWS]}) == 1
    parts = dataset.split(seed=0, a=0.5, b=0.5)
    ids = [(0, shard, place) for shard in range(6) for place in range(ROWS // 2)]
    halves = [read({0: part}, ids) for part in parts.values()]
    assert sorted(row["id"] for half in halves for row in half) == list(range(6 * ROWS))


def test_row_groups_are_checked(tmp_path):
    write_groups(tmp_path / "data", 1, 1)
    with pytest.raises(ValueError, match=r"'a': row_groups must be 'files' or 'shards'; got 'x'"):
        zx.Dataset.from_path("a", tmp_path / "data", row_groups="x")
    with pytest.raises(ValueError, match="counts are those of files"):
        zx.Dataset.from_path("a", tmp_path / "data", row_groups="shards", counts=[500])
    (tmp_path / "a.jsonl").write_text("1\n")
    with pytest.raises(ValueError, match="jsonl shards have no row groups"):
        zx.Dataset.from_path("a", tmp_path / "a.jsonl", row_groups="shards")


def test_thrashing_is_said_at_construction(tmp_path, counted):
    write_groups(tmp_path / "data", 2, 10)
    counted(4)
    files = zx.Dataset.from_path("rows", tmp_path / "data")
    groups = zx.Dataset.from_path("rows", tmp_path / "data", row_groups="shards")

    def source(dataset, **settings):
        return zx.StaticMixtureWorkSource([dataset], {"rows": 1}, chunk_size=50, **settings)

    with pytest.warns(UserWarning, match=r"'rows'.* 2.13 MB .*about 9 times.* at most 9\d\d samp"):
        source(files, shuffle_block_size="global")
    with pytest.warns(UserWarning, match=r"row_groups='shards', or set ZEPHON_JAX_DECODED_BYTES"):
        source(files, shuffle_within_shard=True)
    source(files)
    source(files, shuffle_block_size=2 * ROWS)
    source(groups, shuffle_within_shard=True)


def test_columns_of_folders(tmp_path):
    for year, language in ((2023, "en"), (2024, "de"), (2024, "a b")):
        folder = tmp_path / f"year={year}" / f"lang={language.replace(' ', '%20')}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": [year]}), folder / "0.parquet")
    null = tmp_path / "year=__HIVE_DEFAULT_PARTITION__" / "lang=7"
    null.mkdir(parents=True)
    pq.write_table(pa.table({"n": [None], "lang": ["own"]}), null / "0.parquet")
    ids = [(0, shard, 0) for shard in range(4)]
    with pytest.raises(ValueError, match=r"'rows': column 'lang' is in .*year=__HIVE"):
        zx.Dataset.from_path("rows", tmp_path)
    pq.write_table(pa.table({"n": [None]}), null / "0.parquet")
    rows = read({0: zx.Dataset.from_path("rows", tmp_path)}, ids)
    assert sorted(rows, key=str) == sorted(
        [
            {"n": 2023, "year": 2023, "lang": "en"},
            {"n": 2024, "year": 2024, "lang": "de"},
            {"n": 2024, "year": 2024, "lang": "a b"},
            {"n": None, "year": None, "lang": "7"},
        ],
        key=str,
    )
    some = zx.Dataset.from_path("rows", tmp_path, columns=["year"])
    assert sorted(str(row) for row in read({0: some}, ids)) == [
        "{'year': 2023}", "{'year': 2024}", "{'year': 2024}", "{'year': None}",
    ]  # fmt: skip
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "other" / "0.parquet")
    with pytest.raises(ValueError, match=r"'rows': .*other/0.parquet in folders of \[\]"):
        zx.Dataset.from_path("rows", tmp_path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"a": [1]}, r"column 'b' is in .*0.parquet and not in .*1.parquet"),
        ({"a": [1], "b": ["x"], "c": [1]}, "column 'c' is in .*1.parquet and not in .*0.parquet"),
        ({"a": ["1"], "b": ["x"]}, r"column 'a' holds int in .*0.parquet and str in .*1.parquet"),
        ({"a": [1.5], "b": ["x"]}, "column 'a' holds int in .* and float in"),
        ({"a": [[1]], "b": ["x"]}, r"column 'a' holds int in .* and \[list, int\] in"),
    ],
)
def test_two_schemas_are_refused(tmp_path, other, words):
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table(other), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match="'rows': " + words):
        zx.Dataset.from_path("rows", tmp_path)


def test_schemas_that_give_like_records(tmp_path):
    text = ["x", "y"]
    tables = [
        pa.table({"a": [1, 2], "b": text}),
        pa.table({"b": pa.array(text).dictionary_encode(), "a": pa.array([1, 2], pa.int16())}),
        pa.table({"a": pa.nulls(2), "b": pa.array(text, pa.large_string())}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    dataset = zx.Dataset.from_path("rows", tmp_path)
    rows = read({0: dataset}, [(0, shard, 1) for shard in range(3)])
    assert rows == [{"a": 2, "b": "y"}, {"a": 2, "b": "y"}, {"a": None, "b": "y"}]
