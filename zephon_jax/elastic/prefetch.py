"""Steps made ahead of need, on a thread of their own, and no wait for them without a limit."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  before our own end, which then comes before its
import queue
import threading
import weakref
from typing import Any

from zephon_jax.elastic.columns import Columns
from zephon_jax.elastic.steps import Engine, Step, StepPosition, StepRules, make_step

__all__ = ["StepPrefetcher"]


class StepPrefetcher:
    """Makes steps from a place on, a few ahead; what it hands out is a step, None, or an error.

    Whoever waits for a step waits for `limit` seconds at most. A run that is dropped stops.
    """

    def __init__(
        self, engine: Engine, rules: StepRules, place: StepPosition, ahead: int,
        like: list[Columns], limit: float,
    ):  # fmt: skip
        self._queue: queue.Queue[Step | Exception | None] = queue.Queue(maxsize=ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_produce, args=(engine, rules, place, like, self._queue, self._stop),
            name="zephon_jax elastic", daemon=True,
        )  # fmt: skip
        self._peeked: list[Step | Exception | None] = []
        self._rules, self._limit = rules, limit
        weakref.finalize(self, self._stop.set)
        _running.add(self)
        self._thread.start()

    def _next(self) -> Step | Exception | None:
        try:
            return self._queue.get(timeout=self._limit)
        except queue.Empty:
            raise TimeoutError(_slow(self._rules, self._limit)) from None

    def peek(self) -> Step | Exception | None:
        """The next step, without handing it out.

        Raises:
          TimeoutError: If it is not made in time.
        """
        if not self._peeked:
            self._peeked.append(self._next())
        return self._peeked[0]

    def take(self) -> Step | Exception | None:
        """The next step.

        Raises:
          TimeoutError: If it is not made in time.
        """
        return self._peeked.pop() if self._peeked else self._next()

    @property
    def stopped(self) -> bool:
        """True where no further step is made."""
        return self._stop.is_set()

    def stop(self, seconds: float) -> bool:
        """Stops and waits; returns whether no lane is touched any more."""
        self._stop.set()
        # An iterator that is dropped as the program ends has no `threading` any more.
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stops and waits until no lane is touched any more.

        Raises:
          TimeoutError: If a pipeline does not come back.
        """
        if not self.stop(self._limit):
            raise TimeoutError(_slow(self._rules, self._limit))


def _slow(rules: StepRules, limit: float) -> str:
    return (
        f"lanes {rules.owned[0]} to {rules.owned[-1]} have not made a step within {limit:g} s: a"
        " pipeline hangs, or filters nearly everything, or needs a longer timeout=."
    )


_SECONDS_AT_EXIT = 5.0
_running: weakref.WeakSet[StepPrefetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends what still runs while threads can be waited for; one that hangs is left behind."""
    for run in list(_running):
        run.stop(_SECONDS_AT_EXIT)


def _produce(
    engine: Engine, rules: StepRules, place: StepPosition, like: list[Columns], out: Any,
    stop: threading.Event,
) -> None:  # fmt: skip
    import jax

    going = True
    while going and not stop.is_set():
        try:
            with jax.profiler.TraceAnnotation("zephon_jax.transform"):
                item: Step | Exception | None = make_step(engine, rules, place, like)
        except Exception as error:
            item = error
        except BaseException as error:  # `sys.exit()` in a transform: nobody else would hear of it
            item = RuntimeError(f"a pipeline raised {type(error).__name__}: {error}")
            item.__cause__ = error
        if isinstance(item, Step):
            place = item.place
        else:
            going = False
        while not stop.is_set():
            try:
                out.put(item, timeout=0.05)
                break
            except queue.Full:
                continue
