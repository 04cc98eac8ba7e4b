"""Who will use what next, for all processes that share a cache.

Each process keeps one file with its names in order of use, and holds a lock on it for as long as
it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import uuid
from collections.abc import Hashable, Iterator, Sequence

from zephon_jax._process import OwnFd

__all__ = ["Plans"]


class Plans:
    """The plans of all processes, as one order.

    Args:
      folder: Where each process keeps the file of its plans.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._owners: dict[Hashable, list[str]] = {}
        self._lock = threading.Lock()
        self._file, self._path = OwnFd(-1), ""

    def set(self, owner: Hashable, names: Sequence[str]) -> None:
        """Replaces the plan of an owner: names in order of use, none to forget it."""
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
        while not self._is_visible():
            self._file.close()
            os.makedirs(self._folder, exist_ok=True)
            self._path = os.path.join(self._folder, f"{os.getpid()}-{uuid.uuid4().hex}")
            self._file = OwnFd(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644))
            # Who looks before it is locked takes it for one that was left behind.
            fcntl.flock(self._file.fd, fcntl.LOCK_EX)
        # A reader that sees half of it ignores it and drops something else.
        os.pwrite(self._file.fd, data, 0)
        os.ftruncate(self._file.fd, len(data))

    def _is_visible(self) -> bool:
        """True if others find this process's file by its name."""
        if self._file.fd < 0:
            return False
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fd))
        except FileNotFoundError:  # The folder may have been taken away.
            return False

    def _others(self) -> Iterator[list[tuple[str, float]]]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                path = os.path.join(self._folder, name)
                if self._file.fd >= 0 and path == self._path:
                    continue
                with contextlib.suppress(FileNotFoundError, ValueError), open(path, "rb") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        yield json.loads(file.read())
                    else:
                        os.unlink(path)  # Its process is gone.

    def __del__(self) -> None:
        if self._file.fd >= 0:  # Else it is a forked process's copy of it, or was never there.
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
