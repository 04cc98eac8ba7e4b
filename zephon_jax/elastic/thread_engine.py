"""Lanes in threads of this process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon_jax._process import DaemonThreads
from zephon_jax.elastic.lane_rows import LaneRows, RowBlock, join_blocks, take_block

__all__ = ["ThreadEngine"]


class ThreadEngine:
    """Lanes in threads of this process, each with a contiguous share of them.

    The threads are daemons: a pipeline that hangs in one does not keep the program from ending.
    """

    ahead = 0

    def __init__(self, lanes: Sequence[LaneRows], num_threads: int):
        self._lanes = list(lanes)
        bounds = np.linspace(0, len(lanes), max(1, min(num_threads, len(lanes))) + 1).astype(int)
        self._groups = [self._lanes[a:b] for a, b in itertools.pairwise(bounds)]
        self._pool: DaemonThreads | None = None

    def go_to(self, states: Sequence[Any]) -> None:
        """Puts each lane at a state."""
        for lane, state in zip(self._lanes, states, strict=True):
            lane.set_state(state)

    def take(self, num_rows_each: int, following: Sequence[int] = ()) -> RowBlock:
        """Takes rows from each lane; one share of them on the calling thread."""
        del following
        if len(self._groups) == 1:
            return take_block(self._groups[0], num_rows_each)
        if self._pool is None:
            self._pool = DaemonThreads(len(self._groups) - 1, "zephon_jax lanes")
        take = functools.partial(take_block, num_rows_each=num_rows_each)
        others = [self._pool.submit(take, group) for group in self._groups[1:]]
        try:
            first = take_block(self._groups[0], num_rows_each)
        finally:
            # Lanes must not be touched while a thread is still at them.
            errors = [future.exception() for future in others]
        for error in errors:
            if error is not None:
                raise error
        return join_blocks([first, *(future.result() for future in others)])

    def kill(self) -> bool:
        """Nothing: threads cannot be ended."""
        return False

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
