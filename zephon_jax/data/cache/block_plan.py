"""Which decoded blocks the next reads of a lane take, as the schedule says."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from zephon_jax.data.cache.decoded import DecodedBlocks

__all__ = ["BlockPlan", "BlockUse"]

# How far a lane looks ahead: the further, the fewer times a block is decoded for scattered rows.
# Sixty-four chunks of 512 samples are planned in a few milliseconds each and take 1 MB.
_MAX_WINDOWS = 64
_MAX_IDS = 1 << 16
_LEAST_WINDOWS = 1


class BlockUse(NamedTuple):
    """One read's use of a block."""

    key: Hashable
    # Rows of the block that are read, int64 (n,), sorted.
    places: np.ndarray
    # Bytes of the decoded block, about.
    num_bytes: int
    # Decodes it.
    decode: Callable[[], pa.Table]


class BlockPlan:
    """The blocks that one lane's reads take, in order: windows are added, then begun in turn.

    Args:
      blocks: What decodes them.
    """

    def __init__(self, blocks: DecodedBlocks):
        self._blocks = blocks
        self._windows: deque[tuple[int, list[BlockUse]]] = deque()  # ids and uses, not yet begun
        self._current: deque[BlockUse] = deque()  # of the window that is read
        self.number = 0  # of the first use in `_current`
        self.taken = 0  # uses below this number have been decoded ahead
        self.closed = False
        self._begun = self._added = 0  # uses of the windows that have begun, and of all
        # Number and rows of each block's uses to come.
        self._uses: dict[Hashable, deque[tuple[int, np.ndarray]]] = {}

    def wants_more(self) -> bool:
        """True if it is worth looking further ahead."""
        num_windows = len(self._windows)
        if num_windows < _LEAST_WINDOWS:
            return True
        return num_windows < _MAX_WINDOWS and sum(ids for ids, _ in self._windows) < _MAX_IDS

    def add(self, num_ids: int, uses: Sequence[BlockUse]) -> None:
        """Adds the window after the last one, with the uses in the order of its read."""
        with self._blocks.lock:
            self._windows.append((num_ids, list(uses)))
            for use in uses:
                self._uses.setdefault(use.key, deque()).append((self._added, use.places))
                self._added += 1

    def begin(self) -> None:
        """Begins with the next window; what was planned of the one before it is over."""
        with self._blocks.lock:
            while self._current:
                self._strike_first()
            if self._windows:
                self._current.extend(self._windows.popleft()[1])
                self._begun = self.number + len(self._current)
        self._blocks.start_ahead()

    def _strike_first(self) -> None:
        use = self._current.popleft()
        numbers = self._uses[use.key]
        numbers.popleft()
        if not numbers:
            del self._uses[use.key]
        self.number += 1

    def strike(self, key: Hashable) -> bool:
        """Strikes off the window's use of a block, and those before it; False if it has none."""
        numbers = self._uses.get(key)
        if not numbers or numbers[0][0] >= self._begun:
            return False
        for _ in range(numbers[0][0] - self.number + 1):
            self._strike_first()
        return True

    def distance(self, key: Hashable) -> float:
        """Uses before the next one of a block; inf where there is none."""
        numbers = self._uses.get(key)
        return numbers[0][0] - self.number if numbers else math.inf

    def places_of(self, key: Hashable, num_rows: float) -> list[np.ndarray]:
        """The rows of a block that are planned to be read.

        Args:
          key: The block.
          num_rows: How many rows of all blocks there is room for, so that what is read last is not
            kept in place of what other blocks need sooner.
        """
        uses = self._uses.get(key)
        if not uses:
            return []
        last = uses[0][0] + num_rows / max(1, len(uses[0][1]))
        return [places for number, places in uses if number <= last]

    def upcoming(self) -> Iterator[BlockUse]:
        """Uses in order."""
        later = itertools.chain.from_iterable(uses for _, uses in self._windows)
        return itertools.chain(self._current, later)

    def close(self) -> None:
        """Ends the plan, soon. A finalizer may call it: it waits for no lock."""
        self.closed = True
