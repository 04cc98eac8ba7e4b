"""The locks of a cache folder: one for what it holds, and some for who makes which copy.

The system lets go of them when their process dies. A lock file must not go while somebody may
wait for it, so there is a fixed number of them, which copies share by their names: the lock of a
copy may be held because another one is being made.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator

from filelock import FileLock

__all__ = ["CacheLocks"]

# So many that the few copies that are made at the same time seldom share one.
_NUM_FILES = 256
_POLL_SECONDS = 0.01
# A copy that grows by nothing for twice this long is not being made any more.
_STUCK_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0


class CacheLocks:
    """The locks of a cache folder, against threads as well as processes.

    Args:
      folder: The cache folder.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._makers = os.path.join(folder, "locks")

    def make_folder(self) -> None:
        """Makes the folder of the lock files, if it is not there."""
        os.makedirs(self._makers, exist_ok=True)

    def room(self) -> contextlib.AbstractContextManager[object]:
        """Holds the lock of the folder: room is taken, and copies appear and go, under it."""
        return _acquired(os.path.join(self._folder, "lock"), _STUCK_SECONDS)

    @contextlib.contextmanager
    def maker(self, name: str, last_write: Callable[[], float] | None) -> Iterator[None]:
        """Waits while another thread or process makes a copy, as long as it gets on with it.

        Args:
          name: The copy.
          last_write: When anything that the other may be making was written last; None to wait
            for nobody.

        Raises:
          BlockingIOError: If there is another, who is not waited for.
          TimeoutError: If nothing is written any more.
        """
        path, start, before = self._path(name), time.monotonic(), None
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(_acquired(path, _STUCK_SECONDS if last_write else 0))
                    break
                except TimeoutError:
                    if last_write is None:
                        raise BlockingIOError(f"the lock {path} is held") from None
                    now = last_write()
                    if now == before or time.monotonic() - start > _LONGEST_SECONDS:
                        raise TimeoutError(
                            f"the lock {path} is held by a process that has stopped making its "
                            "copy. End that process, or name another folder with ZEPHON_JAX_CACHE"
                        ) from None
                    before = now
            yield

    def may_make(self, name: str, other: str) -> bool:
        """True if who holds the lock of a copy may be making the other one."""
        below = _is_unpacked(name) and not _is_unpacked(other)
        return below or self._path(name) == self._path(other)

    @contextlib.contextmanager
    def abandoned(self, name: str, mine: str) -> Iterator[bool]:
        """Keeps others from making a copy, and yields True, if none of them is making it now.

        Args:
          name: The copy.
          mine: The copy that the caller is making.
        """
        if self._path(name) == self._path(mine):
            yield name != mine  # No one else can hold what the caller holds.
            return
        with contextlib.ExitStack() as stack:
            free = True
            try:
                stack.enter_context(_acquired(self._path(name), 0))
            except TimeoutError:
                free = False
            yield free

    def _path(self, name: str) -> str:
        kind = "unpacked" if _is_unpacked(name) else "copy"
        return os.path.join(self._makers, f"{kind}-{zlib.crc32(name.encode()) % _NUM_FILES}")


def _is_unpacked(name: str) -> bool:
    # A copy that is made out of another one, which it holds up, has no suffix, and that one has:
    # its lock is among the others, so nobody waits for a lock that waits for his own.
    return not os.path.splitext(name)[1]


def _acquired(path: str, timeout: float) -> contextlib.AbstractContextManager[object]:
    """Holds a lock. An object of its own each time: a forked process has no use for it."""
    return FileLock(path).acquire(timeout, poll_interval=_POLL_SECONDS)
