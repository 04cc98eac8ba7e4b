"""A folder of local copies with a size budget, shared by the processes of a machine.

A copy is made in a file whose name ends in `.part`, on which its maker holds an exclusive lock,
and appears by renaming. What is being read is held by a shared lock on the same file. The system
lets go of the locks of a process that dies: then its part is resumed, or dropped like any other
file that is not in use. When room is needed, the folder is listed, and the copy whose next use is
farthest away goes first, by the plans that readers have made known. Copies that nobody has planned
go before those, oldest use first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from filelock import FileLock

from zephon_jax._process import OwnFd
from zephon_jax.data.cache.plans import Plans

__all__ = ["FULL_DISK", "Entry", "Lease", "ShardCache", "default_folder"]

# What the system says of a full disk.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
# What it says of a folder that is not writable, or is none.
_NOT_WRITTEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_PART = ".part"  # Suffix of a copy that is being made.
_DONE = ".done"  # Suffix, behind that of a part, of what a fetch has written down.
_FULL_PAUSES = (0.0, 0.1, 0.2, 0.4)  # seconds
_POLL_SECONDS = 0.01
_LONGEST_SECONDS = 3600.0  # that a maker is waited for, whatever it writes


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
    # The same for a copy that is planned but not needed yet, where others are made for it.
    make_ahead: Callable[[str], None] | None = None


class Lease:
    """A copy in use: it stays until `close`, or as long as this process lives."""

    def __init__(self, path: str, fd: OwnFd):
        self.path = path
        self._fd = fd
        status = os.fstat(fd.fd)
        # Tells this copy from one that was made again.
        self.identity = (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Allows the copy to be dropped."""
        self._fd.close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Held(NamedTuple):
    """A file in the folder."""

    name: str
    num_bytes: int
    last_use: float

    @property
    def copy(self) -> str:
        """The name of the copy that it is, or is going to be."""
        return self.name.removesuffix(_PART)


class ShardCache:
    """Local copies within a budget.

    Args:
      folder: Where copies live. Processes that name the same folder share them.
      max_bytes: Budget. It is exceeded by what has to be read right now, if nothing can go.
      stuck_seconds: A copy that grows by nothing for twice this long is not being made any more.
      plan_seconds: How long the plan of a process counts that was killed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int,
        *,
        stuck_seconds: float = 60.0,
        plan_seconds: float = 600.0,
    ):
        if max_bytes < 0:
            raise ValueError(f"the cache's budget must be at least 0 bytes; got {max_bytes}.")
        self.folder = os.fspath(folder)
        self.max_bytes = max_bytes
        self._stuck_seconds = stuck_seconds
        self._copies = os.path.join(self.folder, "copies")
        self.plans = Plans(os.path.join(self.folder, "plans"), plan_seconds)
        # Bytes of copies that came out larger than was thought and were not kept.
        self._outgrown: dict[str, int] = {}
        try:
            os.makedirs(self._copies, exist_ok=True)
        except OSError as error:
            self._check_writable(error)
            raise

    def plan(self, owner: Hashable, names: Sequence[str]) -> None:
        """Makes known which copies an owner will use, in order of first use."""
        self.plans.set(owner, names)

    def acquire(
        self, entry: Entry, ahead: bool = False, used_by: str | None = None
    ) -> Lease | None:
        """Returns a copy, making it if there is none.

        Args:
          entry: What to copy.
          ahead: True for a copy that is planned but not needed yet.
          used_by: The planned copy that this one is made for, if it is not planned itself.

        Returns:
          The lease; None if the copy is made ahead and does not fit, whatever of what is needed
          later would go. Then nothing has gone.

        Raises:
          BlockingIOError: If the copy is made ahead, and another thread or process is making it.
          TimeoutError: If another one that makes it has stopped.
          OSError: If the disk is full, or what making the copy raises.
        """
        later_than = (used_by or entry.name) if ahead else None
        try:
            while True:
                if lease := self._open(entry.name):
                    return lease
                os.makedirs(self._copies, exist_ok=True)  # Who cleans up may take it away.
                part = self._claim(entry.name, wait=not ahead)
                if part is not None:
                    return self._make(entry, part, later_than)
        except OSError as error:
            if error.errno not in FULL_DISK:
                self._check_writable(error)
                raise
            raise OSError(
                error.errno,
                f"the disk of the cache folder {self.folder} is full. Free some space, or set "
                "ZEPHON_JAX_CACHE to a folder on another disk",
            ) from error

    def _check_writable(self, error: OSError) -> None:
        """Raises an error that says what to do where the folder cannot be written."""
        where = str(error.filename or "")
        if (
            error.errno in _NOT_WRITTEN
            and where
            and (where.startswith(self.folder) or self.folder.startswith(where))
        ):
            raise type(error)(
                error.errno,
                f"the cache folder {self.folder} cannot be written ({error.strerror}). Set"
                " ZEPHON_JAX_CACHE to a folder that can",
            ) from error

    def has(self, name: str) -> bool:
        """True if the copy is there and whole."""
        return os.path.exists(self._path(name))

    def held(self) -> list[str]:
        """Names of all copies, and of the parts of those that are being made, sorted."""
        return sorted(held.name for held in self._list())

    def num_bytes(self) -> int:
        """Bytes of all copies, parts included."""
        return sum(held.num_bytes for held in self._list())

    def _path(self, name: str) -> str:
        return os.path.join(self._copies, name)

    def _room(self) -> contextlib.AbstractContextManager[object]:
        """Holds the lock of the folder: room is taken, and copies appear and go, under it."""
        lock = FileLock(os.path.join(self.folder, "lock"))  # A forked process has no use for it.
        return lock.acquire(self._stuck_seconds, poll_interval=_POLL_SECONDS)

    def _open(self, name: str) -> Lease | None:
        try:
            fd = OwnFd(os.open(self._path(name), os.O_RDONLY))
        except FileNotFoundError:
            return None
        fcntl.flock(fd.fd, fcntl.LOCK_SH)
        if os.fstat(fd.fd).st_nlink == 0:  # Dropped while this call waited.
            fd.close()
            return None
        with contextlib.suppress(OSError):  # Somebody else's copy, or a disk that is read-only.
            os.utime(fd.fd)
        return Lease(self._path(name), fd)

    def _claim(self, name: str, wait: bool) -> OwnFd | None:
        """Locks the part of a copy for its one maker; None if there may be a copy by now."""
        path = self._path(name + _PART)
        fd = OwnFd(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
        try:
            if not _try_lock(fd.fd):
                if not wait:
                    raise BlockingIOError(f"another thread or process is making {path}")
                self._wait(fd, path)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(fd.fd)):
                    if not self.has(name):
                        return fd
                    _unlink(path)  # It was begun after the copy had got its name.
        except BaseException:
            fd.close()
            raise
        fd.close()
        return None

    def _wait(self, fd: OwnFd, path: str) -> None:
        """Waits while another one makes a copy, as long as something is written."""
        start, before = time.monotonic(), None
        while True:
            until = time.monotonic() + self._stuck_seconds
            while time.monotonic() < until:
                if _try_lock(fd.fd) or not os.path.exists(path):
                    return
                time.sleep(_POLL_SECONDS)
            # Of any part: a copy that is unpacked waits for the one that it is unpacked from.
            now = max((held.last_use for held in self._list() if held.copy != held.name), default=0)
            if now == before or time.monotonic() - start > _LONGEST_SECONDS:
                raise TimeoutError(
                    f"{path} is locked by a process that has stopped making this copy. End that "
                    "process, or name another folder with ZEPHON_JAX_CACHE"
                )
            before = now

    def _make(self, entry: Entry, fd: OwnFd, later_than: str | None) -> Lease | None:
        made = False
        try:
            if not self._make_room(entry, later_than):
                if os.fstat(fd.fd).st_size == 0:  # Else a killed process has begun it.
                    self._remove(entry.name + _PART)
                return None
            if not self._fill(entry, later_than is not None):
                return None
            size = os.fstat(fd.fd).st_size
            if entry.exact and size != entry.size:
                self._remove(entry.name + _PART)
                raise ValueError(f"the copy has not the {entry.size} bytes it should have")
            os.fsync(fd.fd)  # A power loss must not leave a whole name with nothing behind it.
            made = self._settle(entry, fd, size, later_than)
            return Lease(self._path(entry.name), fd) if made else None
        finally:
            if not made:
                fd.close()

    def _make_room(self, entry: Entry, later_than: str | None) -> bool:
        size, part = max(entry.size, self._outgrown.get(entry.name, 0)), entry.name + _PART
        if later_than is not None and size > self.max_bytes:
            return False
        with self._room():
            fits = self._drop_until(self.max_bytes - size, entry.name, later_than)
            if not fits and later_than is not None:
                return False
            if os.path.getsize(self._path(part)) != entry.size:
                _unlink(self._path(part + _DONE))
                os.truncate(self._path(part), 0)
                # Its size is what counts against the budget.
                os.truncate(self._path(part), entry.size)
        return True

    def _fill(self, entry: Entry, ahead: bool) -> bool:
        """Makes a copy; on a full disk, drops all that can go for one that is needed now.

        It tries more than once, because copies that others make ahead of need hold room too,
        until they meet the full disk themselves and go away.
        """
        for pause in (*_FULL_PAUSES, None):
            try:
                entry.make(self._path(entry.name + _PART))
                return True
            except OSError as error:
                if error.errno not in FULL_DISK or (pause is None and not ahead):
                    raise
            if ahead:
                self._remove(entry.name + _PART)
                return False
            with self._room():
                self._drop_until(0, entry.name, None)
            time.sleep(pause or 0)
        return False

    def _settle(self, entry: Entry, fd: OwnFd, size: int, later_than: str | None) -> bool:
        """Gives a copy that is made its name; False if it was made ahead and does not fit."""
        with self._room():
            # It may have come out larger than the room that was made for it.
            fits = entry.exact or self._drop_until(self.max_bytes - size, entry.name, later_than)
            if not fits and later_than is not None:
                self._outgrown[entry.name] = size
                self._remove(entry.name + _PART)
                return False
            _unlink(self._path(entry.name + _PART + _DONE))
            os.replace(self._path(entry.name + _PART), self._path(entry.name))
            fcntl.flock(fd.fd, fcntl.LOCK_SH)  # In use from its first moment.
        return True

    def _drop_until(self, max_bytes: int, keep: str, later_than: str | None) -> bool:
        """Drops copies until the others fit; False if that cannot be.

        Given `later_than`, only those whose next use comes after that of this copy may go, and
        none does unless that is enough.
        """
        others = [held for held in self._list() if held.copy != keep]
        excess = sum(held.num_bytes for held in others) - max_bytes
        if excess <= 0:
            return True
        ranks, never = self.plans.ranks(), float("inf")
        limit = -1 if later_than is None else ranks.get(later_than, never)
        others.sort(key=lambda held: (-ranks.get(held.copy, never), held.last_use))
        unused = []
        for held in others:
            if excess <= 0 or ranks.get(held.copy, never) <= limit:
                break
            if self._is_unused(held.name, remove=later_than is None):
                unused.append(held.name)
                excess -= held.num_bytes
        if later_than is None or excess > 0:
            return excess <= 0
        return all(self._is_unused(name, remove=True) for name in unused)

    def _is_unused(self, name: str, remove: bool) -> bool:
        """True if nobody reads a copy, or makes it out of this part; such a one can be removed."""
        try:
            fd = os.open(self._path(name), os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            unused = _try_lock(fd)
            if unused and remove:
                self._remove(name)
            return unused
        finally:
            os.close(fd)

    def _remove(self, name: str) -> None:
        _unlink(self._path(name + _DONE))  # First: it speaks of what is in the part.
        _unlink(self._path(name))

    def _list(self) -> list[_Held]:
        """Every copy and part."""
        found = []
        with os.scandir(self._copies) as entries:
            for entry in entries:
                if not entry.name.endswith(_DONE):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append(_Held(entry.name, status.st_size, status.st_mtime))
        return found


def _try_lock(fd: int) -> bool:
    """Takes the one exclusive lock on a file, if nobody holds any."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
