"""What a shard format has to offer, and the records it hands over.

A format is a module-level object with three jobs: count the samples of a file without reading
their payloads, open a file, and read many records of it in one call. It opens local files only;
remote shards are brought to a local cache first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon_jax._process import PerProcess
from zephon_jax.data.files import File

__all__ = [
    "BLOCKS",
    "BYTE_ORDER_MARK",
    "GZIP_MAGIC",
    "ZSTD_MAGIC",
    "BlockCache",
    "FetchRange",
    "OpenShard",
    "ShardFormat",
    "ShardIndex",
    "named_error",
]

# First bytes of compressed files.
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# What some editors put before UTF-8 text.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Returns bytes [start, stop) of a file.
FetchRange = Callable[[int, int], bytes]


def named_error(error: Exception, where: str) -> Exception:
    """Returns an error of a built-in kind that says where the other one happened.

    Errors of the operating system and of a network keep their kind, so that callers can tell a
    missing file from a forbidden one; everything else is bad data.
    """
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


class ShardIndex(NamedTuple):
    """What one pass over a shard's structure found out."""

    # Samples in the shard.
    num_samples: int
    # Byte offsets, int64 (num_samples + 1,), for formats that carry none of their own.
    offsets: np.ndarray | None = None


class OpenShard(Protocol):
    """A shard that is ready to be read. Calls may come from several threads."""

    @property
    def num_files(self) -> int:
        """File descriptors that it holds."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples in the open file, as far as the file itself says."""
        ...

    def read(self, indices: np.ndarray) -> Sequence[Any]:
        """Returns the records at `indices` (int64, sorted, repeats allowed) in that order."""
        ...

    def num_bytes(self, indices: np.ndarray) -> np.ndarray | None:
        """Bytes of each record, int64, or None where only their mean is known."""
        ...

    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[Any], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of records that were read, and of all records of the file in the same measure.

        Args:
          indices: int64 (n,), as for `read`.
          records: What `read` returned for them.
          field: The entry of the records that is wanted, for formats that have entries.

        Returns:
          int64 (n,), and an int that may be an estimate.
        """
        ...

    def close(self) -> None:
        """Gives the file handle back. The shard is not read again."""
        ...


class ShardFormat(Protocol):
    """One file format. Implementations hold no state, so they pickle by name."""

    @property
    def name(self) -> str:
        """The word that `format=` takes."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name endings, lower case."""
        ...

    @property
    def magics(self) -> tuple[bytes, ...]:
        """First bytes of a file that tell the format, where it has any."""
        ...

    @property
    def keeps_offsets(self) -> bool:
        """True if opening a file takes offsets that a scan has found."""
        ...

    def scan(self, path: str) -> ShardIndex:
        """Counts the samples of a local, unpacked file.

        Raises:
          ValueError: If the file is cut short or is not of this format.
        """
        ...

    def count_remote(self, path: str, size: int, fetch: Callable[[str], FetchRange]) -> int | None:
        """Counts by a few byte ranges; None where the whole file has to be seen.

        Args:
          path: URL of the shard.
          size: Its bytes.
          fetch: Returns the range reader of a URL.
        """
        ...

    def companion(self, path: str) -> str | None:
        """Path of a second file without which the shard cannot be read."""
        ...

    def unpacker(self, file: File) -> Callable[[str, str], None] | None:
        """Returns what unpacks a source into an existing target, None for files read as is."""
        ...

    def open(self, path: str, index: ShardIndex, columns: tuple[str, ...] | None) -> OpenShard:
        """Opens a local, unpacked file whose index is known."""
        ...


class BlockCache:
    """Decoded blocks of open shards, bounded in bytes for the whole process.

    A block (a Parquet row group) holds more samples than one call asks for. Without a cache it
    would be decoded again for each call; with one per file, memory would have no bound. The block
    that was put last stays, however large.
    """

    def __init__(self, max_bytes: int = 1 << 24):
        self.max_bytes = max_bytes
        self._blocks: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any | None:
        """Returns the block, None if it is not held."""
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return self._blocks[key][0]

    def put(self, key: Any, block: Any, num_bytes: int) -> None:
        """Holds a block and drops the least recently used ones beyond the bound."""
        with self._lock:
            self._drop(key)
            self._blocks[key] = (block, num_bytes)
            self._held += num_bytes
            while self._held > self.max_bytes and len(self._blocks) > 1:
                self._drop(next(iter(self._blocks)))

    def forget(self, owner: Any) -> None:
        """Drops all blocks whose key starts with `owner`."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] is owner]:
                self._drop(key)

    def _drop(self, key: Any) -> None:
        _, num_bytes = self._blocks.pop(key, (None, 0))
        self._held -= num_bytes


BLOCKS = PerProcess(BlockCache)
