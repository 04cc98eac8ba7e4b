"""Copies that are made before they are wanted: the schedule says which shards come next."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from zephon_jax._process import CLOSE_SECONDS, join_all
from zephon_jax.data.cache.store import Entry, ShardCache

__all__ = ["LookAhead"]

_NUM_THREADS = 2  # Copies that are made ahead at the same time.
_WAIT_SECONDS = 0.2
_ERROR_SECONDS = 2.0  # Before a copy that failed is tried ahead of need again.


class _Plan:
    """An owner's copies that may have to be made, in order of use.

    Those that were found in the cache are passed over once, not at every look.
    """

    def __init__(self, entries: Sequence[Entry]):
        self._left = deque(enumerate(entries))

    def first(
        self, before: float, waits: Callable[[Entry], bool], has: Callable[[str], bool]
    ) -> tuple[int, Entry] | None:
        """The rank and copy of the first one that is missing, if its rank is below `before`."""
        waiting, found = [], None
        while found is None and self._left and self._left[0][0] < before:
            rank, entry = self._left.popleft()
            if waits(entry):
                waiting.append((rank, entry))
            elif not has(entry.name):
                waiting.append((rank, entry))
                found = rank, entry
        self._left.extendleft(reversed(waiting))
        return found


class LookAhead:
    """A few threads that make planned copies, soonest use first.

    Args:
      cache: Returns the cache, whose folder is made when it is needed first.
    """

    def __init__(self, cache: Callable[[], ShardCache]):
        self._cache = cache
        self._changed = threading.Condition()  # Its lock guards all below, and is reentrant.
        self._plans: dict[Hashable, _Plan] = {}
        self._busy: set[str] = set()
        # There was no room for a copy of this size. No other so large is tried before that time,
        # unless plans change: what is wanted still later has a claim on less room.
        self._refused, self._refused_until = math.inf, 0.0
        self._retry_at: dict[str, float] = {}
        self._threads: list[threading.Thread] = []
        self._turn = threading.Lock()
        self._dropped: deque[Hashable] = deque()
        self._closed = False

    def plan(self, owner: Hashable, entries: Sequence[Entry]) -> None:
        """Replaces the plan of an owner: copies in order of use, none to forget it."""
        self._forget_dropped()
        if entries or owner in self._plans:
            # First: it protects them.
            self._cache().plan(owner, [entry.name for entry in entries])
        with self._changed:
            self._plans.pop(owner, None)
            self._refused = math.inf
            if entries:
                self._plans[owner] = _Plan(entries)
                self._start_threads()
            self._changed.notify_all()

    def forget(self, owner: Hashable) -> None:
        """Lets go of an owner's plan, soon.

        For owners that the garbage collector finds: it may run in any thread, while that one is
        inside a plan or holds a lock, so nothing is done here but to remember it.
        """
        self._dropped.append(owner)

    def _forget_dropped(self) -> None:
        while self._dropped:
            with contextlib.suppress(IndexError):  # Another thread took the last one.
                self.plan(self._dropped.popleft(), ())

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Begins no copy any more, and waits so long for those on their way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        join_all(self._threads, timeout)

    def _start_threads(self) -> None:
        if self._threads or self._closed:
            return
        for _ in range(_NUM_THREADS):
            thread = threading.Thread(target=self._make_planned, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _make_planned(self) -> None:
        """Makes planned copies, soonest use first, until it is closed."""
        while not self._closed:
            self._forget_dropped()
            self._cache().plans.renew()
            # One at a time until its room is taken: a copy that is wanted later must not fill
            # the room of one that is wanted sooner and only slower to begin.
            with contextlib.ExitStack() as turn:
                turn.enter_context(self._turn)
                with self._changed:
                    picked = self._pick()
                    if picked is not None:
                        self._busy.add(picked.name)
                if picked is not None:
                    self._make_ahead(picked, turn.close)
                    continue
            with self._changed:
                if not self._closed:
                    self._changed.wait(_WAIT_SECONDS)

    def _pick(self) -> Entry | None:
        """Returns the planned copy with the nearest use that nobody is making."""
        now = time.monotonic()
        if now >= self._refused_until:
            self._refused = math.inf
        if self._refused <= 0:
            return None
        limit = min(self._refused - 1, self._cache().max_bytes)

        def waits(entry: Entry) -> bool:
            busy = entry.name in self._busy or self._retry_at.get(entry.name, 0) > now
            return busy or entry.size > limit

        rank, picked = math.inf, None
        for plan in self._plans.values():
            found = plan.first(rank, waits, self._cache().has)
            if found is not None:
                rank, picked = found
        if picked is None and self._refused < math.inf:
            self._refused = 0  # None is small enough: no need to look before that time.
        return picked

    def _make_ahead(self, entry: Entry, end_turn: Callable[[], None]) -> None:
        def make(target: str) -> None:
            end_turn()
            (entry.make_ahead or entry.make)(target)

        refused, pause = False, 0.0
        try:
            lease = self._cache().acquire(entry._replace(make=make), ahead=True)
            refused = lease is None
            if lease is not None:
                lease.close()
        except BlockingIOError:
            pause = _WAIT_SECONDS  # Another makes it: the next one has this turn.
        except Exception:  # Whoever needs the shard tries again and gets the error, with its name.
            pause = _ERROR_SECONDS
        with self._changed:
            self._busy.discard(entry.name)
            now = time.monotonic()
            if refused:
                self._refused, self._refused_until = entry.size, now + _WAIT_SECONDS
            if pause:
                self._retry_at[entry.name] = now + pause
            self._changed.notify_all()
