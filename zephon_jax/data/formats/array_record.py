"""ArrayRecord shards: `bytes` records, random access through the file's own footer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.formats.base import (
    AddedColumns,
    FetchRange,
    OpenShard,
    ShardFormat,
    ShardIndex,
    file_with_tail,
)
from zephon_jax.data.formats.riegeli import data_bytes

__all__ = ["ARRAY_RECORD", "ArrayRecordFormat"]

# No read-ahead buffers and no threads of its own: both cost more than they bring to sorted
# batches of indices, and a reader without threads survives a fork.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
# The reader fetches this much around a record: large buffers halve the speed of sparse reads.
_BUFFER_BYTES = 1 << 12
_TAIL_BYTES = 1 << 18
_MAX_TAIL_BYTES = 1 << 30


def _open_reader(path: str) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    # The C++ reader reports a missing or unreadable file as an empty one.
    with open(path, "rb"):
        pass
    reader = ArrayRecordReader(path, options=_OPTIONS, file_reader_buffer_size=_BUFFER_BYTES)
    if not reader.ok():
        size = os.path.getsize(path)
        raise ValueError(
            f"not a complete ArrayRecord file: no valid footer in its {size} bytes. "
            "It was cut short or never closed by its writer; copy or write it again"
        )
    return reader


class ArrayRecordShard(OpenShard):
    """An open ArrayRecord file."""

    def __init__(self, path: str):
        self._path = path
        self._reader = _open_reader(path)
        self.num_samples: int = self._reader.num_records()

    def read(self, indices: np.ndarray) -> Sequence[object]:
        """Returns the records as `bytes`, with one call for all of them."""
        reader = self._reader
        try:
            return reader.read(indices.tolist())
        except Exception:
            self._reader = _open_reader(self._path)  # After an error it reads nothing any more.
            raise

    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[Any], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of the records, and of all by the headers of the file's chunks."""
        del indices, field
        sizes = np.asarray([len(record) for record in records], dtype=np.int64)
        return sizes, data_bytes(self._path)

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()


class ArrayRecordFormat(ShardFormat):
    """ArrayRecord files of any group size."""

    name = "array_record"
    suffixes = (".array_record", ".arrayrecord", ".arecord")
    magics = (bytes.fromhex("83af70d10d884a3f"),)

    def scan(self, path: str) -> ShardIndex:
        """Counts by the footer, which also tells an empty file from a cut one."""
        reader = _open_reader(path)
        num_samples = reader.num_records()
        reader.close()
        return ShardIndex(num_samples)

    def scan_remote(self, path: str, size: int, fetch: Callable[[str], FetchRange]) -> ShardIndex:
        """Counts by the end of the file, put into a sparse file of the same size."""
        read = fetch(path)
        tail = min(size, _TAIL_BYTES)
        while True:
            with file_with_tail(read(size - tail, size), size, ".array_record") as name:
                try:
                    return self.scan(name)
                except ValueError:
                    # The footer grows with the number of chunks, so it may begin further ahead.
                    if tail == size or tail >= _MAX_TAIL_BYTES:
                        raise
            tail = min(size, tail * 16)

    def open(
        self,
        path: str,
        index: ShardIndex,
        columns: tuple[str, ...] | None,
        added: AddedColumns = (),
    ) -> OpenShard:
        """Opens a file; columns do not apply."""
        del index, columns, added
        return ArrayRecordShard(path)


ARRAY_RECORD = ArrayRecordFormat()
