"""A folder of local copies with a size budget, shared by the processes of a machine.

Copies are made under a lock for each, appear by renaming, and are resumed after a crash. What is
being read is held by a shared lock on the file, which the system lets go when a process dies.
When room is needed, the copy whose next use is farthest away goes first, by the plans that
readers have made known; copies that nobody has planned go before, oldest use first. What is held
is counted in a file, and listed where that count does not tell that there is room.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from zephon_jax._process import OwnFd
from zephon_jax.data.cache.locks import CacheLocks
from zephon_jax.data.cache.plans import Plans
from zephon_jax.data.cache.usage import PART, HeldCount

__all__ = ["FULL_DISK", "Entry", "Lease", "ShardCache", "default_folder"]

# What the system says of a full disk.
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
# Where copies have to go, this share of the budget goes with them if nobody has planned it, so
# that not each of many small copies takes a listing.
_SPARE_SHARE = 64
_DONE = ".done"  # Suffix, behind that of a part, of what a fetch has written down.
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
        self._locks = CacheLocks(self.folder)
        self._plans = Plans(os.path.join(self.folder, "plans"))
        self._count = HeldCount(os.path.join(self.folder, "held"), self._copies)
        # Bytes of copies that came out larger than was thought and were not kept.
        self._outgrown: dict[str, int] = {}
        self._make_folders()

    def _make_folders(self) -> None:
        os.makedirs(self._copies, exist_ok=True)
        self._locks.make_folder()

    def plan(self, owner: Hashable, names: Sequence[str]) -> None:
        """Makes known which copies an owner will use, in order of first use."""
        self._plans.set(owner, names)

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
          OSError: If the disk is full, or what making the copy raises.
        """
        if lease := self._open(entry.name):
            return lease
        try:
            self._make_folders()  # Who cleans up a cache may take them away.
            last_write = None if ahead else functools.partial(self._last_write, entry.name)
            with self._locks.maker(entry.name, last_write):
                if lease := self._open(entry.name):
                    return lease
                later_than = (used_by or entry.name) if ahead else None
                if not self._make_room(entry, later_than):
                    return None
                return self._make(entry, later_than)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            raise OSError(
                error.errno,
                f"the disk of the cache folder {self.folder} is full. Free some space, or set "
                "ZEPHON_JAX_CACHE to a folder on another disk",
            ) from error

    def _last_write(self, name: str) -> float:
        """When what the holder of a copy's lock may be making was last written.

        Whole copies tell nothing: each use leaves its time on them.
        """
        newest = 0.0
        with os.scandir(self._copies) as entries:
            for entry in entries:
                making = entry.name.removesuffix(_DONE).removesuffix(PART)
                if making != entry.name and self._locks.may_make(name, making):
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
            fd = OwnFd(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return None
        fcntl.flock(fd.fd, fcntl.LOCK_SH)
        if os.fstat(fd.fd).st_nlink == 0:  # Dropped while this call waited.
            fd.close()
            return None
        with contextlib.suppress(OSError):  # Somebody else's copy, or a disk that is read-only.
            os.utime(fd.fd)
        return Lease(path, fd)

    def _make(self, entry: Entry, later_than: str | None) -> Lease | None:
        part = os.path.join(self._copies, entry.name + PART)
        if not self._fill(entry, part, ahead=later_than is not None):
            return None
        if entry.exact and os.path.getsize(part) != entry.size:
            os.unlink(part)
            raise ValueError(f"the copy has not the {entry.size} bytes it should have")
        fd = OwnFd(os.open(part, os.O_RDONLY))
        try:
            os.fsync(fd.fd)  # A power loss must not leave a whole name with nothing behind it.
            fcntl.flock(fd.fd, fcntl.LOCK_SH)  # In use from its first moment.
            settled = self._settle(entry, os.fstat(fd.fd).st_size, later_than)
        except BaseException:
            fd.close()
            raise
        if not settled:
            fd.close()
            return None
        return Lease(os.path.join(self._copies, entry.name), fd)

    def _settle(self, entry: Entry, size: int, later_than: str | None) -> bool:
        """Gives a copy that is made its name; False if it was made ahead and does not fit."""
        path = os.path.join(self._copies, entry.name)
        with self._locks.room():
            # It may have come out larger than the room that was made for it.
            if not entry.exact and not self._count.fits(self.max_bytes):
                fits = self._drop_until(self.max_bytes - size, entry.name, later_than)
                if later_than is not None and not fits:
                    self._outgrown[entry.name] = size
                    _unlink(path + PART)
                    return False
            self._count.settle(entry.name, size)
            os.replace(path + PART, path)
            _unlink(path + PART + _DONE)
        return True

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
                _unlink(part + _DONE)
                return False
            with self._locks.room():
                self._drop_until(0, entry.name, None)
            time.sleep(pause or 0)
        return False

    def _make_room(self, entry: Entry, later_than: str | None) -> bool:
        size, ahead = max(entry.size, self._outgrown.get(entry.name, 0)), later_than is not None
        if ahead and size > self.max_bytes:
            return False
        part = os.path.join(self._copies, entry.name + PART)
        with self._locks.room():
            room = self.max_bytes - size
            fits = self._count.fits(room, without=entry.name)
            if not (fits or self._drop_until(room, entry.name, later_than)) and ahead:
                return False
            self._count.begin(entry.name)
            if not os.path.exists(part) or os.path.getsize(part) != entry.size:
                _unlink(part + _DONE)
                with open(part, "wb") as file:
                    file.truncate(entry.size)  # Its size is what counts against the budget.
        return True

    def _drop_until(self, max_bytes: int, keep: str, later_than: str | None) -> bool:
        """Drops copies until the others fit; False if that cannot be.

        Given `later_than`, only those whose next use comes after that of this copy may go, and
        none does unless that is enough.
        """
        self._clear_up()
        copies = sorted(self._list(), key=lambda copy: copy[2])  # Oldest use first.
        making = self._being_made([name for name, _, _ in copies], keep)
        others = {name: size for name, size, _ in copies if name.removesuffix(PART) != keep}
        excess = sum(others.values()) - max_bytes
        dropped = self._drop_some(others, excess, keep, later_than) if excess > 0 else set()
        growing = {name + PART for name in making}
        left = [size for name, size, _ in copies if name not in dropped and name not in growing]
        self._count.reset(left, making)
        return excess <= sum(others[name] for name in dropped)

    def _clear_up(self) -> None:
        """Removes what a fetch has written down of a part that is a copy now."""
        names = set(os.listdir(self._copies))
        for name in names:
            if name.endswith(_DONE) and name.removesuffix(_DONE) not in names:
                _unlink(os.path.join(self._copies, name))

    def _drop_some(
        self, sizes: Mapping[str, int], excess: int, keep: str, later_than: str | None
    ) -> set[str]:
        """Drops copies, given the one of oldest use first, and returns which."""
        ranks = self._plans.ranks()
        never = float("inf")
        limit = -1.0 if later_than is None else ranks.get(later_than, never)
        take = self._drop if later_than is None else self._is_free
        spare = self.max_bytes // _SPARE_SHARE
        dropped = set()
        by_use = [(ranks.get(name.removesuffix(PART), never), name) for name in sizes]
        for rank, name in sorted(by_use, key=lambda copy: -copy[0]):
            unwanted = rank == never and sizes[name] - excess < spare
            if rank <= limit or (excess <= 0 and not unwanted):
                break
            if take(name, keep):
                dropped.add(name)
                excess -= sizes[name]
        if later_than is not None:
            return {name for name in dropped if excess <= 0 and self._drop(name, keep)}
        return dropped

    def _being_made(self, held: Sequence[str], mine: str) -> list[str]:
        """Names of the copies that a thread or process is making now, and maybe some more."""
        parts = {name.removesuffix(PART) for name in held if name.endswith(PART)}
        making = []
        for name in sorted(parts.union(self._count.making())):
            with self._locks.abandoned(name, mine) as gone:
                if not gone:
                    making.append(name)
        return making

    def _is_free(self, name: str, mine: str) -> bool:
        """True if nobody uses a copy or makes it out of this part now."""
        with self._unused(name, mine) as free:
            return free

    def _drop(self, name: str, mine: str) -> bool:
        """Removes a copy or a part that nobody uses."""
        with self._unused(name, mine) as free:
            if free:
                _unlink(os.path.join(self._copies, name))
                if name.endswith(PART):
                    _unlink(os.path.join(self._copies, name + _DONE))
            return free

    @contextlib.contextmanager
    def _unused(self, name: str, mine: str) -> Iterator[bool]:
        """Keeps others from a copy or a part, and yields True, if none of them uses it now."""
        with contextlib.ExitStack() as stack:
            free = True
            if name.endswith(PART):
                making = self._locks.abandoned(name.removesuffix(PART), mine)
                free = stack.enter_context(making)
            else:
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(os.path.join(self._copies, name), os.O_RDONLY)
                    stack.callback(os.close, fd)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        free = False
            yield free

    def _list(self) -> list[tuple[str, int, float]]:
        """Name, bytes and time of last use of every copy and part."""
        found = []
        with os.scandir(self._copies) as entries:
            for entry in entries:
                if not entry.name.endswith(_DONE):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append((entry.name, status.st_size, status.st_mtime))
        return found


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
