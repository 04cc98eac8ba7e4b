"""Counts and line offsets of shards, found once and kept.

Construction of a dataset needs the number of samples of every shard; reading JSON Lines needs
where each line begins. Both come from one parallel scan. What took a while to find is kept in
one file for each place of data: line offsets first, a table of shards, then a footer. A row of the
table counts only while the shard has the size and stamp that it was scanned with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock

from zephon_jax.data.cache.stager import Shard, Stager, default_stager
from zephon_jax.data.cache.store import default_folder
from zephon_jax.data.fetch import range_reader
from zephon_jax.data.files import File, is_local, local_stamp
from zephon_jax.data.formats import ShardIndex
from zephon_jax.data.formats.base import named_error

__all__ = ["check_unchanged", "count_samples", "index_of", "keep_index"]

_NUM_THREADS = min(32, 8 * (os.cpu_count() or 1))
_MAGIC = b"ZXINDEX1"
_FOOTER = struct.Struct("<QI8s")  # Bytes and checksum of the table, magic.
# A scan of fewer shards and bytes than these, that took less than these seconds, is not worth a
# file.
_MANY_SHARDS = 64
_MANY_BYTES = 1 << 26
_MANY_SECONDS = 0.3
_LOCK_SECONDS = 600.0
_FOLDER_BESIDE = ".zephon_jax"


class _Row(NamedTuple):
    """What is known about one shard."""

    size: int
    version: str
    num_samples: int
    # Where its offsets begin among all offsets; -1 for formats without.
    first_offset: int


class _Table(NamedTuple):
    """A loaded index file."""

    rows: dict[str, _Row]
    offsets: np.ndarray

    def find(self, file: File) -> ShardIndex | None:
        row = self.rows.get(file.path)
        if row is None or (row.size, row.version) != (file.size, file.version):
            return None
        if row.first_offset < 0:
            return ShardIndex(row.num_samples)
        stop = row.first_offset + row.num_samples + 1
        return ShardIndex(row.num_samples, self.offsets[row.first_offset : stop])


_EMPTY = _Table({}, np.empty(0, np.int64))
# Index files that this process has loaded, by their path, and scans that are in no file. Threads
# only ever look up or put one entry, so they need no lock.
_tables: dict[str, _Table] = {}
_scanned: dict[tuple[str, File], ShardIndex] = {}


def index_of(shard: Shard, location: str | None, stager: Stager | None = None) -> ShardIndex:
    """Returns the index of a shard: from memory, from its file, or by scanning it."""
    file = shard.file
    path = _index_path(location, shard.fmt.name)
    found = _scanned.get((shard.fmt.name, file)) or _tables.get(path, _EMPTY).find(file)
    if found is None:
        found = _load(path).find(file)
    if found is None:
        found = _scan(shard, stager or default_stager(), whole=True)
        _scanned[shard.fmt.name, file] = found
    return found


def count_samples(
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
    stager = stager or default_stager()
    path = _index_path(location, shards[0].fmt.name)
    found = _find_all(shards, _load(path))
    missing = [shard_id for shard_id, index in enumerate(found) if index is None]
    if missing:
        num_bytes = sum(shards[shard_id].file.size for shard_id in missing)
        large = len(missing) >= _MANY_SHARDS or num_bytes >= _MANY_BYTES
        with _locked(path) if large else contextlib.nullcontext():
            found = _find_all(shards, _load(path))  # Another process may have been faster.
            missing = [shard_id for shard_id, index in enumerate(found) if index is None]
            start = time.monotonic()
            for shard_id, index in _scan_all(shards, missing, describe, stager):
                found[shard_id] = index
            large |= time.monotonic() - start >= _MANY_SECONDS
            _keep(path, shards, found, large)
    return np.asarray([index.num_samples for index in found if index], dtype=np.int64)


def keep_index(
    shards: Sequence[Shard], location: str | None, describe: Callable[[int], str]
) -> str:
    """Writes the index of some shards to its file, however small it is, and returns its path.

    Args and Raises are those of `count_samples`.
    """
    count_samples(shards, location, describe)
    path = _index_path(location, shards[0].fmt.name)
    with _locked(path):
        table = _load(path)
        if any(table.find(shard.file) is None for shard in shards):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write(path, shards, [index_of(shard, location) for shard in shards])
            _load(path)
    return path


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


def _find_all(shards: Sequence[Shard], table: _Table) -> list[ShardIndex | None]:
    return [
        _scanned.get((shard.fmt.name, shard.file)) or table.find(shard.file) for shard in shards
    ]


def _scan(shard: Shard, stager: Stager, whole: bool = False) -> ShardIndex:
    """Scans a shard; a remote one by a few ranges, if that can be and offsets are not wanted."""
    file, fmt, options = shard
    if not is_local(file.path) and fmt.unpacker(file) is None:
        count = fmt.count_remote(file.path, file.size, lambda url: range_reader(url, options))
        if count is not None:
            return ShardIndex(count)
    with stager.staged(shard) as (path, _):
        return fmt.scan(path)


def _scan_all(
    shards: Sequence[Shard], missing: Sequence[int], describe: Callable[[int], str], stager: Stager
) -> Iterator[tuple[int, ShardIndex]]:
    def scan(shard_id: int) -> ShardIndex:
        try:
            return _scan(shards[shard_id], stager)
        except Exception as error:
            raise named_error(error, describe(shard_id)) from error

    with ThreadPoolExecutor(min(_NUM_THREADS, max(1, len(missing)))) as pool:
        try:
            results = _progress(pool.map(scan, missing), len(missing))
            yield from zip(missing, results, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _progress(results: Any, total: int) -> Any:
    """Shows a bar on a terminal when it takes longer than two seconds."""
    try:
        from tqdm import tqdm
    except ImportError:
        return results
    return tqdm(results, "indexing", total, unit=" shards", delay=2.0, leave=False, disable=None)


def _index_path(location: str | None, format_name: str) -> str:
    """Beside the data where a folder for it exists there, else in the cache folder."""
    if location and is_local(location):
        beside = os.path.join(location, _FOLDER_BESIDE)
        if os.path.isdir(beside):
            return os.path.join(beside, f"{format_name}.index")
    name = hashlib.blake2b(f"{location} {format_name}".encode(), digest_size=16).hexdigest()
    return os.path.join(default_folder(), "index", f"{name}.index")


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Holds the lock of an index file; goes on without where nothing can be written."""
    with contextlib.ExitStack() as stack:
        # Also where somebody holds it for ever, or the file system knows no locks.
        with contextlib.suppress(OSError, NotImplementedError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            stack.enter_context(FileLock(path + ".lock", timeout=_LOCK_SECONDS))
        yield


def _load(path: str) -> _Table:
    """Reads an index file; one that is missing or damaged is as good as empty."""
    table = _EMPTY
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _FOOTER.size))
            length, checksum, magic = _FOOTER.unpack(file.read(_FOOTER.size).ljust(_FOOTER.size))
            begin = size - _FOOTER.size - length
            if magic != _MAGIC or begin < 0 or begin % 8:
                return _EMPTY
            file.seek(begin)
            data = file.read(length)
            if zlib.crc32(data) != checksum:
                return _EMPTY
            rows = {row[0]: _Row(*row[1:]) for row in json.loads(data)}
            # The open file, not its name, which may be another version by now.
            offsets = np.memmap(file, "<i8", "r", 0, (begin // 8,)) if begin else _EMPTY.offsets
        table = _Table(rows, offsets)
    _tables[path] = table
    return table


def _keep(
    path: str, shards: Sequence[Shard], found: Sequence[ShardIndex | None], on_disk: bool
) -> None:
    """Writes the index file if that is worth it, else remembers it in this process."""
    if on_disk:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write(path, shards, found)
            if _load(path) is not _EMPTY:
                return
    for shard, index in zip(shards, found, strict=True):
        if index is not None:
            _scanned[shard.fmt.name, shard.file] = index


def _write(path: str, shards: Sequence[Shard], found: Sequence[ShardIndex | None]) -> None:
    temporary = f"{path}.{uuid.uuid4().hex}"
    rows, num_offsets = [], 0
    try:
        with open(temporary, "wb") as file:
            for shard, index in zip(shards, found, strict=True):
                assert index is not None
                first = -1
                if index.offsets is not None:
                    file.write(np.ascontiguousarray(index.offsets, "<i8").data)
                    first, num_offsets = num_offsets, num_offsets + len(index.offsets)
                size, version = shard.file.size, shard.file.version
                rows.append([shard.file.path, size, version, index.num_samples, first])
            data = json.dumps(rows).encode()
            data += b" " * (-len(data) % 8)
            file.write(data)
            file.write(_FOOTER.pack(len(data), zlib.crc32(data), _MAGIC))
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
