"""Which copies will be used next, and in which order, by all processes that share a cache.

Each process keeps its plan in a file that it writes anew now and then. A plan that nobody has
written for a while is that of a process that was killed, and does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Hashable, Iterator, Sequence

__all__ = ["Plans"]


class Plans:
    """The plans of all processes, as one order.

    Args:
      folder: Where each process keeps the file of its plan.
      keep_seconds: How long a plan counts that is not written anew.
    """

    def __init__(self, folder: str, keep_seconds: float = 600.0):
        self._folder, self._keep_seconds = folder, keep_seconds
        self._owners: dict[Hashable, list[str]] = {}
        self._lock = threading.Lock()
        self._path = os.path.join(folder, f"{os.getpid()}-{uuid.uuid4().hex}")
        self._written = -keep_seconds
        weakref.finalize(self, _remove, self._path, os.getpid())

    def set(self, owner: Hashable, names: Sequence[str]) -> None:
        """Replaces the plan of an owner: names of copies in order of use, none to forget it."""
        with self._lock:
            self._owners.pop(owner, None)
            if names:
                self._owners[owner] = list(names)
            self._write()

    def renew(self) -> None:
        """Lets this process's plan count on; to be called more often than plans are kept."""
        with self._lock:
            if self._owners and time.monotonic() - self._written > self._keep_seconds / 10:
                self._write()

    def ranks(self) -> dict[str, int]:
        """Steps until the next use of each planned copy, the least over all plans."""
        with self._lock:
            ranks = self._own_ranks()
        for theirs in self._others():
            for name, rank in theirs.items():
                ranks[name] = min(rank, ranks.get(name, rank))
        return ranks

    def _own_ranks(self) -> dict[str, int]:
        ranks: dict[str, int] = {}
        for names in self._owners.values():
            for rank, name in enumerate(names):
                ranks[name] = min(rank, ranks.get(name, rank))
        return ranks

    def _write(self) -> None:
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # Others do without where the disk is full.
            if not self._owners:
                _remove(self._path, os.getpid())
                return
            os.makedirs(self._folder, exist_ok=True)
            # A reader that sees half of it ignores it and drops something else.
            with open(self._path, "w") as file:
                json.dump(self._own_ranks(), file)

    def _others(self) -> Iterator[dict[str, int]]:
        oldest = time.time() - self._keep_seconds
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, ValueError):
                    if entry.path == self._path:
                        continue
                    if entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)
                    else:
                        with open(entry.path) as file:
                            yield json.load(file)


def _remove(path: str, process: int) -> None:
    """Removes the plan of this process; a forked one leaves that of its parent alone."""
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            os.unlink(path)
