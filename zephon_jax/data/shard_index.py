"""Counts and line offsets of shards, found once and kept.

Construction of a dataset needs the number of samples of every shard; reading JSON Lines needs
where each line begins. Both come from one parallel scan. What took a while to find is kept in
one file for each place of data: line offsets first, a table of shards, then a footer. A row of the
table counts only while the shard has the size and stamp that it was scanned with. The footer has
a checksum of the table, and each row one of the shard's offsets, which are many: those are checked
when a shard is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from filelock import FileLock

from zephon_jax._atomic_file import atomic_file
from zephon_jax._process import PerProcess
from zephon_jax.data.cache.stager import Shard, Stager, default_stager
from zephon_jax.data.cache.store import default_folder
from zephon_jax.data.fetch import range_reader, read_blocks
from zephon_jax.data.files import File, is_local, local_stamp
from zephon_jax.data.formats import ShardIndex
from zephon_jax.data.formats.base import named_error

__all__ = ["IndexStore", "check_unchanged", "default_index_store"]

T = TypeVar("T")

_NUM_THREADS = min(32, 8 * (os.cpu_count() or 1))
_MAGIC = b"ZXINDEX3"
_FOOTER = struct.Struct("<QI8s")  # Bytes and checksum of the table, magic.
_FOLDER_BESIDE = ".zephon_jax"


class _Row(NamedTuple):
    """What is known about one shard."""

    size: int
    version: str
    num_samples: int
    # Where its offsets begin among all offsets; -1 for formats without.
    first_offset: int
    # Of its offsets.
    checksum: int
    # What else the format knows of it.
    facts: Mapping[str, Any] | None


class _Table(NamedTuple):
    """A loaded index file."""

    rows: dict[str, _Row]
    offsets: np.ndarray
    # Paths whose offsets have been checked.
    checked: set[str]

    def row_of(self, file: File) -> _Row | None:
        """The row of a file that is as it was when it was scanned."""
        row = self.rows.get(file.path)
        return row if row and (row.size, row.version) == (file.size, file.version) else None

    def find(self, file: File) -> ShardIndex | None:
        """The index of such a file.

        Raises:
          ValueError: If its offsets are not what was written.
        """
        row = self.row_of(file)
        if row is None or row.first_offset < 0:
            return None if row is None else ShardIndex(row.num_samples, facts=row.facts)
        offsets = self.offsets[row.first_offset : row.first_offset + row.num_samples + 1]
        if file.path not in self.checked and zlib.crc32(offsets.data) != row.checksum:
            raise ValueError("the offsets in the index file are damaged")
        self.checked.add(file.path)
        return ShardIndex(row.num_samples, offsets, row.facts)


_EMPTY = _Table({}, np.empty(0, np.int64), set())


class IndexStore:
    """The indexes that one process knows, and their files. Safe to share between threads.

    A scan of fewer shards and bytes than the limits, which took less time, is remembered in this
    process and not worth a file.

    Args:
      folder: The folder of the files, for data that has none beside it.
      min_shards: Least number of shards whose index is kept in a file.
      min_bytes: Least bytes of these.
      min_seconds: Least time of a scan whose results are kept in a file.
      lock_seconds: How long to wait for another process that scans the same data.
    """

    def __init__(
        self,
        folder: str,
        *,
        min_shards: int = 64,
        min_bytes: int = 1 << 26,
        min_seconds: float = 0.3,
        lock_seconds: float = 600.0,
    ):
        self._folder, self._lock_seconds = folder, lock_seconds
        self._min_shards, self._min_bytes, self._min_seconds = min_shards, min_bytes, min_seconds
        # Index files that were loaded, by their path, and scans that are in no file. Threads only
        # ever look up, put or take away one entry, so they need no lock.
        self._tables: dict[str, _Table] = {}
        self._scanned: dict[tuple[str, File], ShardIndex] = {}

    def index_of(
        self, shard: Shard, location: str | None, stager: Stager | None = None
    ) -> ShardIndex:
        """Returns the index of a shard: from memory, from its file, or by scanning it."""
        key, path = (shard.fmt.name, shard.file), self.path(location, shard.fmt.name)
        found = self._scanned.get(key)
        try:
            found = found or self._tables.get(path, _EMPTY).find(shard.file)
            found = found or self._load(path).find(shard.file)
        except ValueError:  # The next dataset of this place scans it all again.
            self._tables.pop(path, None)
            with contextlib.suppress(OSError):
                os.unlink(path)
        if found is None:
            found = self._scanned[key] = _scan(shard, stager or default_stager())
        return found

    def count_samples(
        self,
        shards: Sequence[Shard],
        location: str | None,
        describe: Callable[[int], str],
        stager: Stager | None = None,
    ) -> np.ndarray:
        """Counts the samples of each shard, in parallel, scanning only what is new or changed.

        Args:
          shards: Shards of one format, in their final order.
          location: The place of the data, which names the index file.
          describe: Names a shard in an error, given its number.
          stager: What makes local copies of remote shards.

        Returns:
          int64 (len(shards),).

        Raises:
          ValueError: For a shard that is cut short or of another format, naming it.
          OSError: For a shard that cannot be opened, naming it.
        """
        path = self.path(location, shards[0].fmt.name)
        counts = self._known_counts(shards, self._load(path))
        missing = np.flatnonzero(counts < 0).tolist()
        if missing:
            num_bytes = sum(shards[shard_id].file.size for shard_id in missing)
            large = len(missing) >= self._min_shards or num_bytes >= self._min_bytes
            with self._locked(path) if large else contextlib.nullcontext():
                counts = self._known_counts(
                    shards, self._load(path)
                )  # Another may have been faster.
                missing = np.flatnonzero(counts < 0).tolist()
                start = time.monotonic()
                for shard_id, index in _scan_all(shards, missing, describe, stager):
                    self._scanned[shards[shard_id].fmt.name, shards[shard_id].file] = index
                    counts[shard_id] = index.num_samples
                if large or time.monotonic() - start >= self._min_seconds:
                    self._keep(path, shards, location, stager)
        return counts

    def facts(
        self, shards: Sequence[Shard], location: str | None, describe: Callable[[int], str]
    ) -> list[Mapping[str, Any]]:
        """What the format knows of some shards, without looking at their offsets.

        Args and Raises are those of `count_samples`.
        """
        self.count_samples(shards, location, describe)
        table = self._tables.get(self.path(location, shards[0].fmt.name), _EMPTY)
        found: list[Mapping[str, Any]] = []
        for shard in shards:
            known = self._scanned.get((shard.fmt.name, shard.file)) or table.row_of(shard.file)
            found.append((known and known.facts) or {})
        return found

    def keep(
        self, shards: Sequence[Shard], location: str | None, describe: Callable[[int], str]
    ) -> str:
        """Writes the index of some shards to its file, however small it is, and returns its path.

        Args and Raises are those of `count_samples`; OSError too where the file cannot be written.
        """
        self.count_samples(shards, location, describe)
        path = self.path(location, shards[0].fmt.name)
        with self._locked(path):
            table = self._load(path)
            if any(table.row_of(shard.file) is None for shard in shards):
                self._write(path, shards, [self.index_of(shard, location) for shard in shards])
        return path

    def path(self, location: str | None, format_name: str) -> str:
        """The index file of a place: beside the data where a folder for it exists there."""
        if location and is_local(location):
            beside = os.path.join(location, _FOLDER_BESIDE)
            if os.path.isdir(beside):
                return os.path.join(beside, f"{format_name}.index")
        name = hashlib.blake2b(f"{location} {format_name}".encode(), digest_size=16).hexdigest()
        return os.path.join(self._folder, f"{name}.index")

    def _known_counts(self, shards: Sequence[Shard], table: _Table) -> np.ndarray:
        """Samples of each shard, int64, -1 where it has to be scanned."""
        counts = np.full(len(shards), -1, dtype=np.int64)
        for shard_id, shard in enumerate(shards):
            known = self._scanned.get((shard.fmt.name, shard.file)) or table.row_of(shard.file)
            if known is not None:
                counts[shard_id] = known.num_samples
        return counts

    def _keep(
        self, path: str, shards: Sequence[Shard], location: str | None, stager: Stager | None
    ) -> None:
        """Writes an index file if it can be written, and forgets what is in it now."""
        with contextlib.suppress(OSError):
            self._write(path, shards, [self.index_of(shard, location, stager) for shard in shards])
            if self._load(path) is not _EMPTY:
                for shard in shards:
                    self._scanned.pop((shard.fmt.name, shard.file), None)

    def _write(self, path: str, shards: Sequence[Shard], found: Sequence[ShardIndex]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        rows, num_offsets = [], 0
        with atomic_file(path) as file:
            for shard, index in zip(shards, found, strict=True):
                first, checksum = -1, 0
                if index.offsets is not None:
                    offsets = np.ascontiguousarray(index.offsets, "<i8")
                    first, checksum = num_offsets, zlib.crc32(offsets.data)
                    file.write(offsets.data)
                    num_offsets += len(offsets)
                known = shard.file.size, shard.file.version, index.num_samples
                rows.append([shard.file.path, *_Row(*known, first, checksum, index.facts)])
            data = json.dumps(rows).encode()
            data += b" " * (-len(data) % 8)
            file.write(data)
            file.write(_FOOTER.pack(len(data), zlib.crc32(data), _MAGIC))

    def _load(self, path: str) -> _Table:
        """Reads an index file; one that is missing or damaged is as good as empty."""
        table = _EMPTY
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            table = _read_table(path)
        self._tables[path] = table
        return table

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        """Holds the lock of an index file; goes on without where nothing can be written."""
        with contextlib.ExitStack() as stack:
            # Also where somebody holds it for ever, or the file system knows no locks.
            with contextlib.suppress(OSError, NotImplementedError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                stack.enter_context(FileLock(path + ".lock", timeout=self._lock_seconds))
            yield


def _read_table(path: str) -> _Table:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _FOOTER.size))
        length, checksum, magic = _FOOTER.unpack(file.read(_FOOTER.size))
        begin = size - _FOOTER.size - length
        if magic != _MAGIC or begin < 0 or begin % 8:
            return _EMPTY
        file.seek(begin)
        data = file.read(length)
        if zlib.crc32(data) != checksum:
            return _EMPTY
        rows = {path: _Row(*row) for path, *row in json.loads(data)}
        # The open file, not its name, which may be another version by now.
        offsets = np.memmap(file, "<i8", "r", 0, (begin // 8,)) if begin else _EMPTY.offsets
    return _Table(rows, offsets, set())


_default: PerProcess[IndexStore] = PerProcess(IndexStore)


def default_index_store() -> IndexStore:
    """Returns the indexes of this process, with files in the cache folder of the environment."""
    return _default.get(os.path.join(default_folder(), "index"))


def check_unchanged(file: File) -> None:
    """Refuses a local shard that is not the file, or the pair of files, that was listed.

    Raises:
      FileNotFoundError: If it is gone.
      ValueError: If its size or the time of its last change differs.
    """
    try:
        size, stamp = local_stamp(file.path)
    except FileNotFoundError:
        raise FileNotFoundError("the file is gone; put it back or build the dataset anew") from None
    if size != file.size:
        raise ValueError(
            f"the file changed since it was indexed: it had {file.size} bytes and has {size}. "
            "Build the dataset anew"
        )
    if stamp != file.stamp:
        raise ValueError(
            f"the file was written to since it was indexed (still {size} bytes). "
            "Build the dataset anew"
        )
    if file.companion is not None:
        try:
            check_unchanged(file.companion)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{file.companion.path}: {error}") from None


def _scan(shard: Shard, stager: Stager, keep: bool = True) -> ShardIndex:
    """Scans a shard; a remote one by a few ranges, if that can be.

    Args:
      shard: The shard.
      stager: What makes the local copy of a remote shard that has to be seen whole.
      keep: False if no copy is worth being made: it would be gone before the shard is read.
    """
    file, fmt, options = shard[:3]
    if not is_local(file.path) and fmt.unpacker(file) is None:
        found = fmt.scan_remote(file.path, file.size, lambda url: range_reader(url, options))
        if found is None and not keep and stager.any_missing([shard]):
            found = fmt.scan_blocks(read_blocks(file, options))
        if found is not None:
            return found
    with stager.staged(shard) as (path, _):
        return fmt.scan(path)


def _scan_all(
    shards: Sequence[Shard],
    missing: Sequence[int],
    describe: Callable[[int], str],
    stager: Stager | None,
) -> Iterator[tuple[int, ShardIndex]]:
    copies = stager or default_stager()
    # Else the first copies would make room for the last: all would be fetched and written twice.
    keep = sum(shards[shard_id].file.size for shard_id in missing) <= copies.max_bytes

    def scan(shard_id: int) -> ShardIndex:
        try:
            return _scan(shards[shard_id], copies, keep)
        except Exception as error:
            raise named_error(error, describe(shard_id)) from error

    with ThreadPoolExecutor(min(_NUM_THREADS, max(1, len(missing)))) as pool:
        try:
            results = _progress(pool.map(scan, missing), len(missing))
            yield from zip(missing, results, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _progress(results: Iterable[T], total: int) -> Iterable[T]:
    """Shows a bar on a terminal when it takes longer than two seconds."""
    try:
        from tqdm import tqdm
    except ImportError:
        return results
    return tqdm(results, "indexing", total, unit=" shards", delay=2.0, leave=False, disable=None)
