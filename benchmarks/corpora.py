"""Writes the shards that the benchmarks of reading read."""

from __future__ import annotations

import json
import struct

import numpy as np


def write_array_record(path, records):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_jsonl(path, count, size):
    words = "lorem ipsum dolor sit amet consectetur "
    text = (words * (size // len(words) + 1))[:size]
    with open(path, "w") as file:
        for index in range(count):
            file.write(json.dumps({"id": index, "text": text}) + "\n")


def write_parquet(path, rows, text, group, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": range(rows), "text": [text(row) for row in range(rows)]})
    pq.write_table(table, path, row_group_size=group, **options)


def write_megatron(folder, shards, per_shard, tokens):
    """Sparse shards: token ids are zeros that take no room."""
    for shard in range(shards):
        lengths = np.full(per_shard, tokens, "<i4")
        pointers = np.arange(per_shard, dtype="<i8") * tokens * 2
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, per_shard, 1)
        (folder / f"{shard}.idx").write_bytes(
            head + lengths.tobytes() + pointers.tobytes() + bytes(8)
        )
        with open(folder / f"{shard}.bin", "wb") as file:
            file.truncate(per_shard * tokens * 2)
