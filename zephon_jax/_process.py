"""Values that every process makes for itself: readers, caches and threads do not survive a fork."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from zephon_jax._text import short

__all__ = [
    "CLOSE_SECONDS",
    "DaemonThreads",
    "OwnFd",
    "PerProcess",
    "from_environment",
    "join_all",
]

T = TypeVar("T")

# So long is waited for threads that are told to end. A read that hangs keeps one for much longer.
CLOSE_SECONDS = 10.0


class DaemonThreads:
    """Runs calls on a few threads that do not keep the interpreter from ending.

    They work on while it waits for threads that are no daemons, those of executors among them, and
    while functions of `atexit` run: whoever waits for a call then gets its result.

    Args:
      num_threads: Threads at most. One is started where all are busy: memory that a thread gave
        back stays with it for its next call, and is not there for another's.
      name: What their names begin with.

    Example:
      >>> threads = DaemonThreads(2, "example")
      >>> threads.submit(sum, [1, 2]).result()
      3
      >>> threads.close()
    """

    def __init__(self, num_threads: int, name: str):
        self._num_threads, self._name = num_threads, name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], Any] | None]
        self._calls, self._lock = queue.SimpleQueue(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[Any], T], argument: Any) -> Future[T]:
        """Returns the future of `call(argument)`."""
        future: Future[T] = Future()
        with self._lock:
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._num_threads:
                self._start_one()
            num_threads = len(self._threads)
        if num_threads:
            self._calls.put((future, call, argument))
        else:
            _run(future, call, argument, lambda: None)
        return future

    def _start_one(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(self._idle,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # None can be started, by newer Pythons when they end.
            return
        self._threads.append(thread)

    def _work(self, idle: threading.Semaphore) -> None:
        while (item := self._calls.get()) is not None:
            _run(*item, idle.release)
            del item  # While it waits, it holds on to nothing.

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Ends the threads after the calls that were submitted, and waits so long for them."""
        with self._lock:
            threads, self._threads = self._threads, []
            self._idle = threading.Semaphore(0)
        for _ in threads:
            self._calls.put(None)
        join_all(threads, timeout)


def _run(
    future: Future[Any], call: Callable[..., object], argument: object, done: Callable[[], None]
) -> None:
    """Makes a call. Before others hear of its result, it is done."""
    if not future.set_running_or_notify_cancel():
        done()
        return
    try:
        result = call(argument)
    except BaseException as error:
        done()
        future.set_exception(error)
    else:
        done()
        future.set_result(result)


def join_all(threads: Iterable[threading.Thread], timeout: float) -> None:
    """Waits for all of some threads, so many seconds together at most."""
    end = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


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


class OwnFd:
    """A file descriptor of this process alone: a forked one closes what it inherits of it.

    A lock on it ends with this process, however long those live that were forked from it.

    Args:
      fd: The descriptor.
    """

    def __init__(self, fd: int):
        self.fd = fd
        _fds.add(self)

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Closes it, once."""
        fd, self.fd = self.fd, -1
        if fd >= 0:  # When the interpreter ends, `os` may be gone by now.
            close(fd)

    __del__ = close


_all: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()
_fds: weakref.WeakSet[OwnFd] = weakref.WeakSet()


def _after_fork() -> None:
    for fd in list(_fds):
        fd.close()
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
            f"ZEPHON_JAX_{name} must be a whole number of at least {least}; got {short(text)}."
        )
    return int(text)
