"""Megatron's pretokenized pairs: `.bin` holds token ids, `.idx` says where each sequence lies.

Both files are memory-mapped; a record is one sequence, copied out as a NumPy array.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence

import numpy as np

from zephon_jax._warn import warn
from zephon_jax.data.formats.base import (
    AddedColumns,
    FetchRange,
    OpenShard,
    ShardFormat,
    ShardIndex,
)

__all__ = ["MEGATRON", "MegatronFormat"]

_MAGIC = b"MMIDIDX\x00\x00"
# Magic, version, dtype code, sequences, documents.
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}


def _index_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _parse_header(head: bytes, index_size: int | None) -> tuple[np.dtype, int]:
    """Returns the token dtype and the number of sequences, after checking the sizes."""
    if len(head) < _HEADER.size:
        raise ValueError(f"the .idx file is cut short: {len(head)} bytes")
    magic, version, code, num_sequences, num_documents = _HEADER.unpack(head)
    if magic != _MAGIC or version != 1 or code not in _DTYPES:
        raise ValueError("the .idx file is not a Megatron index of version 1")
    least = _HEADER.size + 12 * num_sequences + 8 * num_documents
    if index_size is not None and index_size < least:
        raise ValueError(f"the .idx file is cut short: {index_size} of at least {least} bytes")
    return _DTYPES[code], num_sequences


def _read_header(path: str) -> tuple[np.dtype, int]:
    index_path = _index_path(path)
    try:
        with open(index_path, "rb") as file:
            return _parse_header(file.read(_HEADER.size), os.path.getsize(index_path))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{index_path} does not exist; a .bin shard needs its .idx file beside it"
        ) from None


def _warn_of_modes(path: str, num_sequences: int) -> None:
    """Says that a multimodal corpus has more than its token ids: a byte behind all for each."""
    with open(_index_path(path), "rb") as file:
        num_documents = _HEADER.unpack(file.read(_HEADER.size))[-1]
        size = os.fstat(file.fileno()).st_size
    if num_sequences and size == (
        _HEADER.size + 12 * num_sequences + 8 * num_documents + num_sequences
    ):
        warn(
            f"{_index_path(path)} holds a mode for each of its {num_sequences} sequences, as"
            " multimodal corpora do. Modes are not read: records are the token ids alone."
        )


def _map_file(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class MegatronShard(OpenShard):
    """An open pair of files."""

    num_files = 2

    def __init__(self, path: str):
        self._dtype, self.num_samples = _read_header(path)
        _warn_of_modes(path, self.num_samples)
        self._lengths, self._pointers = self._map_index(_index_path(path))
        size = os.path.getsize(path)
        self._check_size(size)
        self._map = _map_file(path) if size else b""
        self._data = np.frombuffer(self._map, np.uint8)
        self._files = {path: size, _index_path(path): os.path.getsize(_index_path(path))}
        self._size = size

    def _check_size(self, size: int) -> None:
        """Refuses a `.bin` file that is not as long as its index says.

        Token ids of another width would be read as others, without an error.
        """
        if not self.num_samples:
            return
        end = int(self._pointers[-1]) + int(self._lengths[-1]) * self._dtype.itemsize
        if end > size:
            raise ValueError(f"the .bin file is cut short: {size} of {end} bytes")
        if end < size:  # Or the last sequence is not that at the end of the file.
            lengths = self._lengths.astype(np.int64) * self._dtype.itemsize
            end = int((self._pointers + lengths).max())
        if end < size:
            raise ValueError(
                f"the .idx file describes {end} bytes of {self._dtype} tokens, and the .bin file"
                f" has {size}: they do not belong together, or .idx names another dtype"
            )

    def _map_index(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        count = self.num_samples
        if not count:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        data = np.memmap(path, np.uint8, "r")
        middle, end = _HEADER.size + 4 * count, _HEADER.size + 12 * count
        # The pointers need not begin at a multiple of 8, which a view does not mind.
        return data[_HEADER.size : middle].view("<i4"), data[middle:end].view("<i8")

    def read(self, indices: np.ndarray) -> Sequence[object]:
        """Returns the token ids of each sequence, a copy."""
        first, last = self._spans(indices)
        data, dtype = self._data, self._dtype
        pieces = zip(first.tolist(), last.tolist(), strict=True)
        records = [np.array(data[start:stop].view(dtype)) for start, stop in pieces]
        if isinstance(self._map, mmap.mmap):
            # What was touched would count as this process's memory for as long as it is mapped.
            self._map.madvise(mmap.MADV_DONTNEED)
        return records

    def _spans(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First byte of each sequence, and the one after it."""
        length = self.num_bytes(indices)
        first = self._pointers[indices]
        bad = np.flatnonzero((length < 0) | (first < 0) | (first > self._size - length))
        if len(bad):
            place = bad[0]
            raise ValueError(
                f"record {indices[place]}: the .idx file is corrupted: it gives {length[place]} "
                f"bytes at byte {first[place]} of the {self._size} in the .bin file"
            )
        return first, first + length

    def _check_sizes(self) -> None:
        """Touching a page past the end of a mapped file would kill the process."""
        for path, size in self._files.items():
            if os.path.getsize(path) < size:
                raise ValueError(f"{path} was cut to less than its {size} bytes")

    def num_bytes(self, indices: np.ndarray) -> np.ndarray:
        """Bytes of each sequence."""
        self._check_sizes()
        return self._lengths[indices].astype(np.int64) * self._dtype.itemsize

    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[object], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of the sequences, and of the `.bin` file, which holds nothing else."""
        del records, field
        return self.num_bytes(indices), self._size

    def close(self) -> None:
        """Lets go of the mappings; they end with the last array that looks at them."""
        self._data = self._lengths = self._pointers = np.empty(0, np.uint8)
        self._map = b""


class MegatronFormat(ShardFormat):
    """Pairs of `.bin` and `.idx` files, named by the `.bin` file."""

    name = "megatron"
    suffixes = (".bin",)

    def scan(self, path: str) -> ShardIndex:
        """Reads the number of sequences from the head of the `.idx` file."""
        _, num_samples = _read_header(path)
        MegatronShard(path).close()  # Checks that both files are whole.
        return ShardIndex(num_samples)

    def scan_remote(self, path: str, size: int, fetch: Callable[[str], FetchRange]) -> ShardIndex:
        """Reads the head of the `.idx` file."""
        return ShardIndex(_parse_header(fetch(_index_path(path))(0, _HEADER.size), None)[1])

    def companion(self, path: str) -> str:
        """The `.idx` file."""
        return _index_path(path)

    def open(
        self,
        path: str,
        index: ShardIndex,
        columns: tuple[str, ...] | None,
        added: AddedColumns = (),
    ) -> OpenShard:
        """Opens both files; columns do not apply."""
        del index, columns, added
        return MegatronShard(path)


MEGATRON = MegatronFormat()
