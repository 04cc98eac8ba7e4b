"""Values that every process makes for itself: readers, caches and threads do not survive a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["PerProcess", "from_environment"]

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes a value when this process asks for it first, one for each set of arguments.

    A forked process starts without any: threads of the parent do not run in it, and a lock that
    one of them held would never be let go.

    Args:
      make: Returns a new value.

    Example:
      >>> lists = PerProcess(list)
      >>> lists.get() is lists.get()
      True
    """

    def __init__(self, make: Callable[..., T]):
        self._make = make
        self._forget()
        _all.add(self)

    def get(self, *arguments: Hashable) -> T:
        """Returns this process's value for these arguments."""
        with self._lock:
            if arguments not in self._values:
                self._values[arguments] = self._make(*arguments)
            return self._values[arguments]

    def _forget(self) -> None:
        self._lock = threading.RLock()  # A finalizer may ask while a value is being made.
        self._values: dict[tuple[Hashable, ...], T] = {}


_all: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for one in _all:
        one._forget()


os.register_at_fork(after_in_child=_after_fork)


def from_environment(name: str, default: int, least: int = 0) -> int:
    """Returns the whole number in `$ZEPHON_JAX_<name>`, the default where it is not set.

    Settings of a whole process live in the environment because every process that is started from
    this one, by whatever library, inherits them.

    Raises:
      ValueError: If it is not a whole number, or too small.
    """
    text = os.environ.get(f"ZEPHON_JAX_{name}", "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ValueError(
            f"ZEPHON_JAX_{name} must be a whole number of at least {least}; got {text!r}."
        )
    return int(text)
