"""Local copies of shards: which a shard needs, and making them before they are wanted.

A remote shard is copied whole, a compressed one is unpacked, a plain local one is read where it
is. A forked process makes copies with a cache and threads of its own.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zephon_jax._process import DaemonThreads, PerProcess, from_environment
from zephon_jax.data.cache.prefetch import LookAhead
from zephon_jax.data.cache.store import Entry, ShardCache, default_folder
from zephon_jax.data.fetch import fetch_file
from zephon_jax.data.files import File, is_local
from zephon_jax.data.formats import ShardFormat
from zephon_jax.data.formats.base import AddedColumns

__all__ = ["CacheCounts", "Shard", "Stager", "default_stager"]

DEFAULT_CACHE_BYTES = 32 << 30

_NUM_FETCHES = 8  # Parts that are on the wire at the same time.
# Text shrinks about this much; it only sets how much room an unpacked copy asks for at first.
_UNPACKED_RATIO = 4


class Shard(NamedTuple):
    """A file with what it takes to read it."""

    file: File
    fmt: ShardFormat
    storage_options: Mapping[str, Any] | None = None
    # Columns to read, for formats that have columns; None for all.
    columns: tuple[str, ...] | None = None
    # The place of the data, which names the index file.
    location: str | None = None
    # Samples that it was declared or counted with; None before they are counted.
    num_samples: int | None = None
    # False if it is local and not compressed, so that it is read where it is.
    needs_copy: bool = True
    # Values that each record gets besides its own, by name.
    added: AddedColumns = ()


class CacheCounts(NamedTuple):
    """How often a read found the copy of its shard, or had to wait until it was made."""

    cache_hits: int
    cache_misses: int


class Stager:
    """Makes copies in a cache folder, now or ahead of need. Safe to share between threads.

    Args:
      folder: The cache folder.
      max_bytes: Its budget.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = DEFAULT_CACHE_BYTES):
        self.max_bytes = max_bytes
        self._cache = PerProcess(functools.partial(ShardCache, folder, max_bytes))
        self._ahead = PerProcess(functools.partial(LookAhead, self._cache.get))
        self._pool = PerProcess(functools.partial(DaemonThreads, _NUM_FETCHES, "zephon-fetch"))
        self._lock, self._counts = threading.Lock(), CacheCounts(0, 0)

    @property
    def counts(self) -> CacheCounts:
        """How often a copy was wanted in this process."""
        return self._counts

    def _count(self, found: bool) -> None:
        with self._lock:
            hits, misses = self._counts
            self._counts = CacheCounts(hits + found, misses + (not found))

    @property
    def cache(self) -> ShardCache:
        """The cache, whose folder is made when it is needed first."""
        return self._cache.get()

    def entries(self, shard: Shard) -> list[Entry]:
        """Returns the copies that reading a shard takes, the shard itself first."""
        file, options = shard.file, shard.storage_options
        unpack = shard.fmt.unpacker(file)
        if unpack is not None:
            return [self._unpacked(shard, unpack)]
        if is_local(file.path):
            return []
        found = [self._fetched(file, options, _name(file))]
        if file.companion is not None:
            name = os.path.splitext(found[0].name)[0] + os.path.splitext(file.companion.path)[1]
            found.append(self._fetched(file.companion, options, name))
        return found

    @contextlib.contextmanager
    def staged(self, shard: Shard) -> Iterator[tuple[str, Hashable]]:
        """Holds a shard's local file: yields its path, and what tells this copy from others."""
        with contextlib.ExitStack() as leases:
            held = []
            for entry in self.entries(shard):
                self._count(self.cache.has(entry.name))
                lease = self.cache.acquire(entry)
                assert lease is not None  # Only a copy ahead of need can be refused.
                held.append(leases.enter_context(lease))
            if held:
                yield held[0].path, held[0].identity
            else:
                yield shard.file.path, None

    def any_missing(self, shards: Sequence[Shard]) -> bool:
        """True if a copy that one of the shards needs is not there."""
        names = [entry.name for shard in shards for entry in self.entries(shard)]
        return not all(self.cache.has(name) for name in names)

    def plan(self, owner: Hashable, shards: Sequence[Shard]) -> None:
        """Starts to make the copies that will be wanted next.

        Args:
          owner: Whose plan this is; it replaces the owner's last one.
          shards: In order of first use, those in use now first. Empty to forget the owner.
        """
        self._ahead.get().plan(owner, [e for shard in shards for e in self.entries(shard)])

    def forget(self, owner: Hashable) -> None:
        """Lets go of an owner's plan, soon. A finalizer may call it: it waits for no work."""
        self._ahead.get().forget(owner)

    def close(self) -> None:
        """Stops making copies ahead. What is stuck is waited for some seconds only."""
        self._ahead.get().close()
        self._pool.get().close()

    def _unpacked(self, shard: Shard, unpack: Callable[[str, str], None]) -> Entry:
        file, options = shard.file, shard.storage_options
        name = _name(file, "plain")

        def make(target: str, ahead: bool = False) -> None:
            if is_local(file.path):
                unpack(file.path, target)
                return
            packed = self._fetched(file, options, _name(file))
            lease = self.cache.acquire(packed, ahead, used_by=name)
            if lease is None:
                raise OSError(errno.ENOSPC, "there is no room for the packed copy")
            with lease:
                unpack(lease.path, target)

        make_ahead = functools.partial(make, ahead=True)
        return Entry(name, _UNPACKED_RATIO * file.size, False, make, make_ahead)

    def _fetched(self, file: File, options: Mapping[str, object] | None, name: str) -> Entry:
        def make(target: str) -> None:
            fetch_file(file, options, target, self._pool.get())

        return Entry(name, file.size, True, make)


@functools.lru_cache(1 << 16)  # A plan names all of its shards again with each chunk.
def _name(file: File, kind: str = "") -> str:
    """A name that only this version of this file has."""
    digest = hashlib.blake2b(
        repr((file.path, file.size, file.version, kind)).encode(), digest_size=16
    ).hexdigest()
    # A pair of files is told by its suffixes.
    return digest + ("" if kind else os.path.splitext(file.path)[1].lower())


_default: PerProcess[Stager] = PerProcess(Stager)


def default_stager() -> Stager:
    """Returns the stager of this process, with the folder and budget that the environment sets.

    `$ZEPHON_JAX_CACHE` names the folder, `$ZEPHON_JAX_CACHE_BYTES` the budget (32 GiB).
    """
    return _default.get(default_folder(), from_environment("CACHE_BYTES", DEFAULT_CACHE_BYTES))
