"""A lock on a file that may take its file with it.

The system lets go of it when its process dies. A lock file for each name there ever was would
fill a folder, so its last holder may remove it: whoever waits with the removed file open finds
that its name stands for another file, or none, and begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

__all__ = ["locked"]

_FIRST_PAUSE = 0.001  # seconds
_LONGEST_PAUSE = 0.05


@contextlib.contextmanager
def locked(path: str, timeout: float, discard: bool = False) -> Iterator[None]:
    """Holds the lock of a file, against threads as well as processes.

    Args:
      path: The file, which is made if it is missing.
      timeout: Seconds to wait; 0 to try once.
      discard: Removes the file at the end.

    Raises:
      TimeoutError: If it is held for longer than that.
    """
    fd = _acquire(path, timeout)
    try:
        yield
    finally:
        if discard and _stands_for(path, fd):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # Before it is let go: nobody's lock may lose its name.
        fcntl.flock(fd, fcntl.LOCK_UN)  # A forked process may hold it open.
        os.close(fd)


def _acquire(path: str, timeout: float) -> int:
    end, pause = time.monotonic() + timeout, _FIRST_PAUSE
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        except BaseException:
            os.close(fd)
            raise
        else:
            if _stands_for(path, fd):
                return fd
            os.close(fd)
            continue
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the lock {path} is held by another thread or process")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _stands_for(path: str, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False
