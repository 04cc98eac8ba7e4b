"""The threads that read ahead, for all lanes of a process together."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from zephon_jax._process import DaemonThreads, PerProcess

__all__ = ["submit"]

_THREADS = 4
_SECONDS_AT_EXIT = 5.0
Argument = TypeVar("Argument")
Result = TypeVar("Result")


def _make_pool() -> DaemonThreads:
    return DaemonThreads(_THREADS, "zephon_jax")


_pool: PerProcess[DaemonThreads] = PerProcess(_make_pool)
_under_way: PerProcess[weakref.WeakSet[Future[Any]]] = PerProcess(weakref.WeakSet)


@atexit.register
def _wait_for_reads() -> None:
    """No reader is at work as the interpreter goes, but one that hangs does not hold it up."""
    wait([read for read in list(_under_way.get()) if not read.cancel()], _SECONDS_AT_EXIT)


def submit(read: Callable[[Argument], Result], argument: Argument) -> Future[Result]:
    """Calls a function on one of the threads."""
    future = _pool.get().submit(read, argument)
    _under_way.get().add(future)
    return future
