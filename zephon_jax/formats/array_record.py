"""ArrayRecord shards: `bytes` records, random access through the file's own footer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon_jax.formats.base import ShardIndex

__all__ = ["ARRAY_RECORD", "ArrayRecordFormat"]

# No read-ahead buffers and no threads of its own: both cost more than they bring to sorted
# batches of indices, and a reader without threads survives a fork.
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_BUFFER_BYTES = 1 << 16


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


class ArrayRecordShard:
    """An open ArrayRecord file."""

    def __init__(self, path: str):
        self._reader = _open_reader(path)
        self.num_samples: int = self._reader.num_records()

    def read(self, indices: np.ndarray) -> Sequence[Any]:
        """Returns the records as `bytes`, with one call for all of them."""
        return self._reader.read(indices.tolist())

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()


class ArrayRecordFormat:
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

    def open(self, path: str, index: ShardIndex, columns: tuple[str, ...] | None) -> Any:
        """Opens a file; `columns` does not apply."""
        del index, columns
        return ArrayRecordShard(path)


ARRAY_RECORD = ArrayRecordFormat()
