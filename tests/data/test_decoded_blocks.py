"""Decoded row groups: how often each is decoded, against the best that a cache can do."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zx
from zephon_jax.data.cache.decoded import decoded_blocks

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
