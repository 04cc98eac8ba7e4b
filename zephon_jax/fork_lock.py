"""Locks that a forked process finds free.

A fork copies locks as they are, held ones too, but not the threads that would let go of them.
What these guard is memory of what was computed: its entries are whole or not there.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["ForkLock"]


class ForkLock:
    """A lock that one thread may take several times, and that is new in a forked process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in list(_locks):
        lock._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
