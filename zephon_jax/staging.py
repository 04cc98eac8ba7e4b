"""Local copies of shards: which a shard needs, and making them before they are wanted.

A remote shard is copied whole, a compressed one is unpacked, a plain local one is read where it
is. The schedule says which shards come next, so a few threads make their copies ahead of need.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zephon_jax.cache import Entry, ShardCache, default_folder
from zephon_jax.formats import ShardFormat
from zephon_jax.formats.fetch import fetch_file
from zephon_jax.formats.files import File, is_local
from zephon_jax.per_process import DaemonThreads, PerProcess, from_environment

__all__ = ["Shard", "Stager", "default_stager"]

DEFAULT_CACHE_BYTES = 32 << 30

_NUM_FETCHES = 8  # Parts that are on the wire at the same time.
_NUM_LOOKAHEADS = 2  # Copies that are made ahead at the same time.
_WAIT_SECONDS = 0.2
_ERROR_SECONDS = 2.0  # Before a copy that failed is tried ahead of need again.
# Text shrinks about this much; it only sets how much room an unpacked copy asks for at first.
_UNPACKED_RATIO = 4


class Shard(NamedTuple):
    """A file with what it takes to read it."""

    file: File
    fmt: ShardFormat
    storage_options: Mapping[str, Any] | None = None


class _Plan:
    """An owner's copies that may have to be made, in order of use.

    Those that were found in the cache are passed over once, not at every look.
    """

    def __init__(self, entries: Sequence[Entry]):
        self._left = deque(enumerate(entries))

    def first(
        self, before: float, waits: Callable[[str], bool], has: Callable[[str], bool]
    ) -> tuple[int, Entry] | None:
        """The rank and copy of the first one that is missing, if its rank is below `before`."""
        waiting, found = [], None
        while found is None and self._left and self._left[0][0] < before:
            rank, entry = self._left.popleft()
            if waits(entry.name):
                waiting.append((rank, entry))
            elif not has(entry.name):
                waiting.append((rank, entry))
                found = rank, entry
        self._left.extendleft(reversed(waiting))
        return found


class Stager:
    """Makes copies in a cache folder, now or ahead of need. Safe to share between threads.

    Args:
      folder: The cache folder.
      max_bytes: Its budget.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = DEFAULT_CACHE_BYTES):
        self._folder, self._max_bytes = folder, max_bytes
        self._cache: ShardCache | None = None
        self._pool: DaemonThreads | None = None
        self._changed = threading.Condition()  # Its lock guards all below, and is reentrant.
        self._plans: dict[Hashable, _Plan] = {}
        self._busy: set[str] = set()
        self._full_until = 0.0  # No room before, unless plans change.
        self._retry_at: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._turn = threading.Lock()
        self._dropped: deque[Hashable] = deque()
        self._closed = False

    @property
    def cache(self) -> ShardCache:
        """The cache, whose folder is made when it is needed first."""
        with self._changed:
            if self._cache is None:
                self._cache = ShardCache(self._folder, self._max_bytes)
            return self._cache

    def entries(self, shard: Shard) -> list[Entry]:
        """Returns the copies that reading a shard takes, the shard itself first."""
        file, fmt, options = shard
        unpack = fmt.unpacker(file)
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
        self._forget_dropped()
        entries = [entry for shard in shards for entry in self.entries(shard)]
        if entries or owner in self._plans:
            self.cache.plan(owner, [entry.name for entry in entries])  # First: it protects them.
        with self._changed:
            self._plans.pop(owner, None)
            self._full_until = 0.0
            if entries:
                self._plans[owner] = _Plan(entries)
                self._start_threads()
            self._changed.notify_all()

    def forget(self, owner: Hashable) -> None:
        """Lets go of an owner's plan, soon.

        For owners that the garbage collector finds: it may run in any thread, while that one is
        inside a plan or holds a lock, so nothing is done here but to remember it.
        """
        self._dropped.append(owner)

    def _forget_dropped(self) -> None:
        while self._dropped:
            with contextlib.suppress(IndexError):  # Another thread took the last one.
                self.plan(self._dropped.popleft(), ())

    def close(self) -> None:
        """Stops making copies ahead."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._pool is not None:
            self._pool.close()

    def _unpacked(self, shard: Shard, unpack: Callable[[str, str], None]) -> Entry:
        file, _, options = shard

        def make(target: str) -> None:
            if is_local(file.path):
                unpack(file.path, target)
                return
            lease = self.cache.acquire(self._fetched(file, options, _name(file)))
            assert lease is not None
            with lease:
                unpack(lease.path, target)

        return Entry(_name(file, "plain"), _UNPACKED_RATIO * file.size, False, make)

    def _fetched(self, file: File, options: Mapping[str, Any] | None, name: str) -> Entry:
        def make(target: str) -> None:
            fetch_file(file, options, target, self._fetch_pool())

        return Entry(name, file.size, True, make)

    def _fetch_pool(self) -> DaemonThreads:
        with self._changed:
            if self._pool is None:
                self._pool = DaemonThreads(_NUM_FETCHES, "zephon-fetch")
            return self._pool

    def _start_threads(self) -> None:
        if self._threads or self._closed:
            return
        for _ in range(_NUM_LOOKAHEADS):
            thread = threading.Thread(target=self._look_ahead, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _look_ahead(self) -> None:
        """Makes planned copies, soonest use first, until the stager is closed."""
        while not self._closed:
            self._forget_dropped()
            # One at a time until its room is taken: a copy that is wanted later must not fill
            # the room of one that is wanted sooner and only slower to begin.
            with contextlib.ExitStack() as turn:
                turn.enter_context(self._turn)
                with self._changed:
                    picked = self._pick()
                    if picked is not None:
                        self._busy.add(picked.name)
                if picked is not None:
                    self._make_ahead(picked, turn.close)
                    continue
            with self._changed:
                if not self._closed:
                    self._changed.wait(_WAIT_SECONDS)

    def _pick(self) -> Entry | None:
        """Returns the planned copy with the nearest use that nobody is making."""
        now = time.monotonic()
        if now < self._full_until:
            return None

        def waits(name: str) -> bool:
            return name in self._busy or self._retry_at.get(name, 0) > now

        rank, picked = math.inf, None
        for plan in self._plans.values():
            found = plan.first(rank, waits, self.cache.has)
            if found is not None:
                rank, picked = found
        return picked

    def _make_ahead(self, entry: Entry, end_turn: Callable[[], None]) -> None:
        def make(target: str) -> None:
            end_turn()
            entry.make(target)

        full, failed = False, False
        try:
            lease = self.cache.acquire(entry._replace(make=make), ahead=True)
            full = lease is None
            if lease is not None:
                lease.close()
        except Exception:
            failed = True  # Whoever needs the shard tries again and gets the error, with its name.
        with self._changed:
            self._busy.discard(entry.name)
            now = time.monotonic()
            if full:
                self._full_until = now + _WAIT_SECONDS
            if failed:
                self._retry_at[entry.name] = now + _ERROR_SECONDS
            self._changed.notify_all()


@functools.lru_cache(1 << 16)  # A plan names all of its shards again with each chunk.
def _name(file: File, kind: str = "") -> str:
    """A name that only this version of this file has."""
    digest = hashlib.blake2b(
        repr((file.path, file.size, file.version, kind)).encode(), digest_size=16
    ).hexdigest()
    return digest + ("" if kind else os.path.splitext(file.path)[1].lower())


_default: PerProcess[Stager] = PerProcess(Stager)


def default_stager() -> Stager:
    """Returns the stager of this process, with the folder and budget that the environment sets.

    `$ZEPHON_JAX_CACHE` names the folder, `$ZEPHON_JAX_CACHE_BYTES` the budget (32 GiB).
    """
    return _default.get(default_folder(), from_environment("CACHE_BYTES", DEFAULT_CACHE_BYTES))
