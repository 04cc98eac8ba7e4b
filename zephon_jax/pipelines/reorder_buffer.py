"""Records of a stream that wait for their turn, and which of those since the oldest are gone."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from zephon_jax.pipelines.balance import Weights

__all__ = ["Held", "HeldRecords"]


class Held:
    """A record that waits, or waited while an older one still does."""

    __slots__ = ("index", "main", "parts", "record", "state", "waits")

    def __init__(self, index: int, state: Any, record: Any, parts: Weights, main: int | None):
        self.index, self.state, self.record, self.parts = index, state, record, parts
        self.main = main  # the component that it waits for, if for any
        self.waits = True


class HeldRecords:
    """Records in the order in which they came, numbered from the oldest that waits.

    A record of several components waits for the one of which it has most, as measured by their
    targets: a row that holds 30 % of a component that should have 10 % is one of its rows. One that
    is empty, or has components of weight 0 alone, waits for nobody.

    Args:
      weights: Target weights.
    """

    def __init__(self, weights: Sequence[int]):
        self._weights = weights
        self._since: deque[Held] = deque()  # from the oldest that waits
        # By the component that they wait for; none starts with a record that is gone.
        self._lines: dict[int | None, deque[Held]] = defaultdict(deque)
        self._first = self._gone = 0  # number of the oldest; a bit for each that is gone
        self.num_waiting = 0

    def __len__(self) -> int:
        """Records since the oldest that waits, gone or not."""
        return len(self._since)

    @property
    def oldest(self) -> Held:
        """The oldest record that waits."""
        return self._since[0]

    @property
    def newest(self) -> Held:
        """The record that was added last."""
        return self._since[-1]

    @property
    def gone(self) -> int:
        """A bit for each record since the oldest that waits, set where it is gone."""
        return self._gone

    def waiting_for(self, d: int | None) -> Held | None:
        """The oldest record that waits for a component; for None, for nobody."""
        line = self._lines.get(d)
        return line[0] if line else None

    def waited_for(self) -> list[bool]:
        """Whether any record waits for each component."""
        return [bool(self._lines.get(d)) for d in range(len(self._weights))]

    def add(self, state: Any, record: Any, parts: Weights) -> Held:
        """Takes a record in; `state` is the place to read it from again."""
        main = self._main(parts)
        held = Held(self._first + len(self._since), state, record, parts, main)
        self._since.append(held)
        self._lines[main].append(held)
        self.num_waiting += 1
        return held

    def take(self, held: Held) -> None:
        """Lets a record go."""
        held.waits, held.record, held.state = False, None, None
        line = self._lines[held.main]
        while line and not line[0].waits:
            line.popleft()
        self.num_waiting -= 1
        self._gone |= 1 << (held.index - self._first)
        while self._gone & 1:
            self._since.popleft()
            self._gone >>= 1
            self._first += 1

    def _main(self, parts: Weights) -> int | None:
        best, most = None, 0
        for d, weight in parts:
            target = self._weights[d]
            if target and (best is None or weight * self._weights[best] > most * target):
                best, most = d, weight
        return best
