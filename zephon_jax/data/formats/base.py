"""What a shard format has to offer, and the records it hands over.

A format is a module-level object with three jobs: count the samples of a file without reading
their payloads, open a file, and read many records of it in one call. It opens local files only;
remote shards are brought to a local cache first. A new format is a module with a `ShardFormat` and
an `OpenShard`, and one entry in `FORMATS`.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.data.cache.block_plan import BlockUse
from zephon_jax.data.files import File

__all__ = [
    "BYTE_ORDER_MARK",
    "GZIP_MAGIC",
    "ZSTD_MAGIC",
    "AddedColumns",
    "FetchRange",
    "OpenShard",
    "ShardFormat",
    "ShardIndex",
    "file_with_tail",
    "named_error",
]

# First bytes of compressed files.
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# What some editors put before UTF-8 text.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Returns bytes [start, stop) of a file.
FetchRange = Callable[[int, int], bytes]

AddedColumns = tuple[tuple[str, str | int | None], ...]
"""Columns that all records of a file get besides, by name: partitions are in folder names."""


def named_error(error: Exception, where: str) -> Exception:
    """Returns an error of a built-in kind that says where the other one happened.

    Errors of the operating system and of a network keep their kind, so that callers can tell a
    missing file from a forbidden one, and so does a lack of memory; everything else is bad data.
    """
    if isinstance(error, MemoryError):
        return MemoryError(": ".join(filter(None, [where, str(error)])))
    if not isinstance(error, OSError):
        kind = "" if type(error) is ValueError else type(error).__name__
        text = ": ".join(filter(None, [kind, str(error).removesuffix(".")]))
        return ValueError(f"{where}: {text}.")
    kinds = (FileNotFoundError, PermissionError, TimeoutError, ConnectionError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
    text = error.strerror or str(error) or type(error).__name__
    if error.filename is not None and str(error.filename) not in where:
        text += f" ({error.filename})"
    return kind(error.errno, f"{where}: {text}") if error.errno else kind(f"{where}: {text}")


@contextmanager
def file_with_tail(tail: bytes, size: int, suffix: str) -> Iterator[str]:
    """Makes a sparse local file of a remote one's size and end, to find a footer in."""
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.truncate(size)
        file.seek(size - len(tail))
        file.write(tail)
        file.flush()
        yield file.name


class ShardIndex(NamedTuple):
    """What one pass over a shard's structure found out."""

    # Samples in the shard.
    num_samples: int
    # Byte offsets, int64 (num_samples + 1,), for formats that carry none of their own.
    offsets: np.ndarray | None = None
    # What else the format wants to know of its shards without opening them, as plain JSON.
    facts: Mapping[str, Any] | None = None


class OpenShard(ABC):
    """A shard that is ready to be read. Calls may come from several threads."""

    # File descriptors that it holds.
    num_files = 1
    # Samples in the open file, as far as the file itself says.
    num_samples: int

    @abstractmethod
    def read(self, indices: np.ndarray) -> Sequence[object]:
        """Returns the records at `indices` (int64, sorted, repeats allowed) in that order."""

    @abstractmethod
    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[object], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of records that were read, and of all records of the file in the same measure.

        Args:
          indices: int64 (n,), as for `read`.
          records: What `read` returned for them.
          field: The entry of the records that is wanted, for formats that have entries.

        Returns:
          int64 (n,), and an int that may be an estimate.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives the file handle back. The shard is not read again."""

    def num_bytes(self, indices: np.ndarray) -> np.ndarray | None:
        """Bytes of each record, int64; None where they are not known before it is read."""
        del indices
        return None

    def block_uses(self, indices: np.ndarray) -> list[BlockUse]:
        """The decoded blocks that reading `indices` takes, in order; none for most formats."""
        del indices
        return []


class ShardFormat(ABC):
    """One file format. Implementations hold no state, so they pickle by name.

    A format says its name and suffixes, counts with `scan` and opens files; the rest has defaults
    for files that stand alone, are read as they are and have to be seen whole to be counted.
    """

    # The word that `format=` takes.
    name: str
    # File name endings, lower case.
    suffixes: tuple[str, ...]
    # First bytes of a file that tell the format, where it has any.
    magics: tuple[bytes, ...] = ()
    # True if opening a file takes offsets that a scan has found.
    keeps_offsets = False
    # True if records are decoded many at a time, so that it helps to know which come next.
    decodes_blocks = False

    @abstractmethod
    def scan(self, path: str) -> ShardIndex:
        """Counts the samples of a local, unpacked file.

        Raises:
          ValueError: If the file is cut short or is not of this format.
        """

    @abstractmethod
    def open(
        self,
        path: str,
        index: ShardIndex,
        columns: tuple[str, ...] | None,
        added: AddedColumns = (),
    ) -> OpenShard:
        """Opens a local, unpacked file whose index is known.

        Args:
          path: The file.
          index: What a scan of it found.
          columns: Columns to read, for formats that have columns; None for all.
          added: Columns that all records get besides, for formats that have columns.
        """

    def scan_remote(
        self, path: str, size: int, fetch: Callable[[str], FetchRange]
    ) -> ShardIndex | None:
        """Counts by a few byte ranges; None where the whole file has to be seen.

        Args:
          path: URL of the shard.
          size: Its bytes.
          fetch: Returns the range reader of a URL.
        """
        del path, size, fetch
        return None

    def scan_blocks(self, blocks: Iterable[bytes]) -> ShardIndex | None:
        """Counts a file that comes in blocks, in order; None where it has to be there as a file."""
        del blocks
        return None

    def companion(self, path: str) -> str | None:
        """Path of a second file without which the shard cannot be read."""
        del path
        return None

    def unpacker(self, file: File) -> Callable[[str, str], None] | None:
        """Returns what unpacks a source into an existing target, None for files read as is."""
        del file
        return None
