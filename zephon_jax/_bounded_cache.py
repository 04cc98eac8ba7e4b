"""A mapping that forgets: what was used last stays, within a total cost."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["BoundedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key; beyond its bound the least recently used value goes first.

    The value that was put last stays, however large. Safe to share between threads. A pickled copy
    starts empty, and so does the cache in a forked process: what another thread of the parent was
    putting at that moment, or the lock that it held, is not there to be found half done.

    Args:
      max_cost: Cost of all values together, at most.
      cost_of: Cost of a value, asked once when it is put; by default each value costs 1. A cache
        that is pickled needs a function of a module here.

    Example:
      >>> cache = BoundedCache(10, len)
      >>> cache.put("a", b"12345"), cache.put("b", b"12345"), cache.get("a"), cache.put("c", b"1")
      (None, None, b'12345', None)
      >>> cache.get("b") is None, cache.get_or_make("d", lambda: b"12"), len(cache)
      (True, b'12', 3)
    """

    def __init__(self, max_cost: int, cost_of: Callable[[V], int] | None = None):
        self.max_cost, self.cost_of = max_cost, cost_of
        self._begin()
        _caches.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._cost = 0

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.max_cost, self.cost_of)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def cost(self) -> int:
        """Cost of all values together."""
        return self._cost

    def get(self, key: K) -> V | None:
        """Returns the value of a key, which is now the most recently used; None if it is gone."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: K, value: V) -> None:
        """Keeps a value, in place of an earlier one, and forgets others beyond the bound."""
        cost = 1 if self.cost_of is None else self.cost_of(value)
        with self._lock:
            if key in self._values:
                self._drop(key)
            self._values[key] = (value, cost)
            self._cost += cost
            while self._cost > self.max_cost and len(self._values) > 1:
                self._drop(next(iter(self._values)))

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Returns the value of a key, made and kept where there is none.

        Two threads that miss at the same time both make it, since no lock is held meanwhile.
        """
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def forget(self, unwanted: Callable[[K], bool] | None = None) -> None:
        """Forgets the values whose keys are unwanted; None for all values."""
        with self._lock:
            for key in [key for key in self._values if unwanted is None or unwanted(key)]:
                self._drop(key)

    def _drop(self, key: K) -> None:
        self._cost -= self._values.pop(key)[1]


_caches: weakref.WeakSet[BoundedCache[Any, Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache._begin()


os.register_at_fork(after_in_child=_after_fork)
