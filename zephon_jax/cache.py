"""A folder of local copies with a size budget, shared by the processes of a machine.

Copies are made under a lock for each, appear by renaming, and are resumed after a crash. What is
being read is held by a shared lock on the file, which the system lets go when a process dies.
When room is needed, the copy whose next use is farthest away goes first, by the plans that
readers have made known; copies that nobody has planned go before, oldest use first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from filelock import FileLock, Timeout

__all__ = ["FULL_DISK", "Entry", "Lease", "ShardCache", "default_folder"]

_PART = ".part"
# What the system says of a full disk.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
# A copy that grows by nothing for twice this long is not being made any more.
_STUCK_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0
_FULL_PAUSES = (0.0, 0.1, 0.2, 0.4)  # seconds


def default_folder() -> str:
    """The folder for copies and indices: `$ZEPHON_JAX_CACHE`, else `~/.cache/zephon_jax`."""
    chosen = os.environ.get("ZEPHON_JAX_CACHE")
    return chosen or os.path.join(os.path.expanduser("~"), ".cache", "zephon_jax")


class Entry(NamedTuple):
    """A copy that can be made."""

    # File name in the cache: a digest of what is copied, and a suffix.
    name: str
    # Bytes of the copy, an estimate where `exact` is False.
    size: int
    exact: bool
    # Fills a file that exists; keeps what an earlier, interrupted call left in it.
    make: Callable[[str], None]


class Lease:
    """A copy in use: it stays until `close`."""

    def __init__(self, path: str, fd: int):
        self.path = path
        self._fd = fd
        status = os.fstat(fd)
        # Tells this copy from one that was made again.
        self.identity = (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Allows the copy to be dropped."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ShardCache:
    """Local copies within a budget.

    Args:
      folder: Where copies live. Processes that name the same folder share them.
      max_bytes: Budget. It is exceeded by what has to be read right now, if nothing can go.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int):
        if max_bytes < 0:
            raise ValueError(f"the cache's budget must be at least 0 bytes; got {max_bytes}.")
        self.folder = os.fspath(folder)
        self.max_bytes = max_bytes
        self._copies = os.path.join(self.folder, "copies")
        self._locks = os.path.join(self.folder, "locks")
        self._plans = _Plans(os.path.join(self.folder, "plans"))
        self._make_folders()

    def _make_folders(self) -> None:
        for path in (self._copies, self._locks):
            os.makedirs(path, exist_ok=True)

    def plan(self, owner: Hashable, names: Sequence[str]) -> None:
        """Makes known which copies an owner will use, in order of first use."""
        self._plans.set(owner, names)

    def acquire(self, entry: Entry, ahead: bool = False) -> Lease | None:
        """Returns a copy, making it if there is none.

        Args:
          entry: What to copy.
          ahead: True for a copy that is planned but not needed yet.

        Returns:
          The lease; None if the copy is made ahead and nothing that is needed later can go.

        Raises:
          OSError: If the disk is full, or what making the copy raises.
        """
        if lease := self._open(entry.name):
            return lease
        try:
            self._make_folders()  # Who cleans up a cache may take them away.
            with self._only_maker(entry.name):
                if lease := self._open(entry.name):
                    return lease
                if not self._make_room(entry, ahead):
                    return None
                lease = self._make(entry, ahead)
            if lease is not None and not entry.exact:
                # It may have come out larger than the room that was made for it.
                self._make_fit(entry.name)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise OSError(
                error.errno,
                f"the disk of the cache folder {self.folder} is full. Free some space, or set "
                "ZEPHON_JAX_CACHE to a folder on another disk",
            ) from error
        return lease

    @contextlib.contextmanager
    def _only_maker(self, name: str) -> Iterator[None]:
        """Waits while another thread or process makes a copy, as long as it gets on with it."""
        lock, start, before = FileLock(os.path.join(self._locks, name)), time.monotonic(), None
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_STUCK_SECONDS)
            except Timeout:
                now = self._newest()
                if now == before or time.monotonic() - start > _LONGEST_SECONDS:
                    raise TimeoutError(
                        f"the lock {lock.lock_file} is held by a process that has stopped making "
                        f"its copy. End that process, or name another folder with ZEPHON_JAX_CACHE"
                    ) from None
                before = now
        try:
            yield
        finally:
            lock.release()

    def _newest(self) -> float:
        """When anything in the cache was last written."""
        with os.scandir(self._copies) as entries:
            newest = 0.0
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest, entry.stat().st_mtime)
            return newest

    def has(self, name: str) -> bool:
        """True if the copy is there and whole."""
        return os.path.exists(os.path.join(self._copies, name))

    def num_bytes(self) -> int:
        """Bytes of all copies, parts included."""
        return sum(size for _, size, _ in self._list())

    def _open(self, name: str) -> Lease | None:
        path = os.path.join(self._copies, name)
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH)
        if os.fstat(fd).st_nlink == 0:  # Dropped while this call waited.
            os.close(fd)
            return None
        with contextlib.suppress(OSError):  # Somebody else's copy, or a disk that is read-only.
            os.utime(fd)
        return Lease(path, fd)

    def _make(self, entry: Entry, ahead: bool) -> Lease | None:
        part = os.path.join(self._copies, entry.name + _PART)
        if not self._fill(entry, part, ahead):
            return None
        if entry.exact and os.path.getsize(part) != entry.size:
            os.unlink(part)
            raise ValueError(f"the copy has not the {entry.size} bytes it should have")
        fd = os.open(part, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_SH)  # In use from its first moment.
        path = os.path.join(self._copies, entry.name)
        os.replace(part, path)
        _unlink(part + ".done")
        return Lease(path, fd)

    def _fill(self, entry: Entry, part: str, ahead: bool) -> bool:
        """Makes a copy; on a full disk, drops all that can go for one that is needed now.

        It tries more than once, because copies that others make ahead of need hold room too,
        until they meet the full disk themselves and go away.
        """
        for pause in (*_FULL_PAUSES, None):
            try:
                entry.make(part)
                return True
            except OSError as error:
                if error.errno not in FULL_DISK or (pause is None and not ahead):
                    raise
            if ahead:
                _unlink(part)
                _unlink(part + ".done")
                return False
            with FileLock(os.path.join(self.folder, "lock"), timeout=_STUCK_SECONDS):
                self._drop_until(0, keep=entry.name)
            time.sleep(pause or 0)
        return False

    def _make_fit(self, name: str) -> None:
        with FileLock(os.path.join(self.folder, "lock"), timeout=_STUCK_SECONDS):
            size = sum(size for found, size, _ in self._list() if found == name)
            self._drop_until(self.max_bytes - size, keep=name)

    def _make_room(self, entry: Entry, ahead: bool) -> bool:
        part = os.path.join(self._copies, entry.name + _PART)
        with FileLock(os.path.join(self.folder, "lock"), timeout=_STUCK_SECONDS):
            room = self.max_bytes - entry.size
            fits = self._drop_until(room, keep=entry.name, only_later=ahead)
            if not fits and ahead:
                return False
            if not os.path.exists(part) or os.path.getsize(part) != entry.size:
                _unlink(part + ".done")
                with open(part, "wb") as file:
                    file.truncate(entry.size)  # Its size is what counts against the budget.
        return True

    def _drop_until(self, max_bytes: int, keep: str, only_later: bool = False) -> bool:
        """Drops copies until the others fit; False if that cannot be.

        With `only_later`, only those whose next use comes after that of `keep` may go.
        """
        copies = sorted(self._list(), key=lambda copy: copy[2])  # Oldest use first.
        copies = [copy for copy in copies if copy[0].removesuffix(_PART) != keep]
        held = sum(size for _, size, _ in copies)
        if held <= max_bytes:
            return True
        ranks = self._plans.ranks()
        never = float("inf")
        limit = ranks.get(keep, never) if only_later else -1.0
        by_use = [(ranks.get(name.removesuffix(_PART), never), name, n) for name, n, _ in copies]
        for rank, name, size in sorted(by_use, key=lambda copy: -copy[0]):
            if rank <= limit:
                break
            if self._drop(name):
                held -= size
                if held <= max_bytes:
                    return True
        return False

    def _drop(self, name: str) -> bool:
        """Removes a copy or a part that nobody uses."""
        path = os.path.join(self._copies, name)
        if name.endswith(_PART):
            lock = FileLock(os.path.join(self._locks, name.removesuffix(_PART)), timeout=0)
            with contextlib.suppress(TimeoutError), lock:
                _unlink(path)
                _unlink(path + ".done")
                return True
            return False
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unlink(path)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def _list(self) -> list[tuple[str, int, float]]:
        """Name, bytes and time of last use of every copy and part."""
        found = []
        with os.scandir(self._copies) as entries:
            for entry in entries:
                if not entry.name.endswith(".done"):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append((entry.name, status.st_size, status.st_mtime))
        return found


class _Plans:
    """Who will use what next, for all processes that share a cache.

    Each process keeps one file with its names in order of use, and holds a lock on it for as
    long as it lives.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._owners: dict[Hashable, list[str]] = {}
        self._lock = threading.Lock()
        self._fd, self._pid = -1, os.getpid()
        self._path = ""

    def set(self, owner: Hashable, names: Sequence[str]) -> None:
        with self._lock:
            self._owners.pop(owner, None)
            if names:
                self._owners[owner] = list(names)
            merged = sorted(self._own_ranks().items(), key=lambda item: item[1])
            with contextlib.suppress(OSError):  # Others do without where the disk is full.
                self._publish(json.dumps(merged).encode())

    def ranks(self) -> dict[str, float]:
        """Steps until the next use of each planned copy, the least over all plans."""
        with self._lock:
            ranks = self._own_ranks()
        for theirs in self._others():
            for name, rank in theirs:
                ranks[name] = min(rank, ranks.get(name, rank))
        return ranks

    def _own_ranks(self) -> dict[str, float]:
        ranks: dict[str, float] = {}
        for names in self._owners.values():
            for rank, name in enumerate(names):
                ranks[name] = min(rank, ranks.get(name, rank))
        return ranks

    def _publish(self, data: bytes) -> None:
        if self._fd < 0:
            os.makedirs(self._folder, exist_ok=True)
            self._path = os.path.join(self._folder, f"{os.getpid()}-{uuid.uuid4().hex}")
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        # A reader that sees half of it ignores it and drops something else.
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def _others(self) -> Iterator[list[tuple[str, float]]]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                if path == self._path:
                    continue
                with contextlib.suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        yield json.loads(file.read())
                    else:
                        _unlink(path)  # Its process is gone.

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            if os.getpid() == self._pid:  # A forked process has only a copy of it.
                _unlink(self._path)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
