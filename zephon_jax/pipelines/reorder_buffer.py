"""Records of a stream that wait for their turn, and which component's turn it is.

`HeldRecords` knows which records since the oldest that waits are gone; `Balance` counts what was
given out of each component, and finds the one that is furthest behind: the rule of `swrr`, for
records that weigh more than one and come when they like.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from fractions import Fraction

__all__ = ["Balance", "Held", "HeldRecords", "Weights"]

Weights = list[tuple[int, int]]  # (component index, weight) of one record; no weight is 0


class Held:
    """A record that waits, or waited while an older one still does."""

    __slots__ = ("index", "main", "parts", "record", "state", "waits")

    def __init__(self, index: int, state: object, record: object, parts: Weights, main: int | None):
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

    def add(self, state: object, record: object, parts: Weights) -> Held:
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


class Balance:
    """Counts in integers what was given out, and compares those that are in the mixture.

    Args:
      weights: Target weights; components with 0 are never in turn.
    """

    def __init__(self, weights: Sequence[int]):
        self.weights = weights
        self.largest = 0  # weight of a record
        self.set([0] * len(weights), [weight > 0 for weight in weights])

    def set(self, emitted: list[int], active: list[bool]) -> None:
        """Goes to a point: what was given out of each, and who is in the mixture."""
        self.emitted, self.active = emitted, active
        # Of those that are in: what was given out, their weights, and how far each is behind, but
        # for the start: n_d * t - E_d * C.
        self.total, self.whole, self._behind = self._among(active)

    def _among(self, those: Sequence[bool]) -> tuple[int, int, list[int]]:
        total = sum(e for e, is_in in zip(self.emitted, those, strict=True) if is_in)
        whole = sum(w for w, is_in in zip(self.weights, those, strict=True) if is_in)
        pairs = zip(self.weights, self.emitted, strict=True)
        return total, whole, [n * total - e * whole for n, e in pairs]

    def furthest(self) -> int | None:
        """The component that goes next; None where nobody is in the mixture."""
        return _largest(self._behind if self.total else self.weights, self.active)

    def furthest_among(self, those: Sequence[bool]) -> int | None:
        """Who goes next where only those can: they share by their weights what they were given."""
        those = [is_in and may for is_in, may in zip(self.active, those, strict=True)]
        total, _, behind = self._among(those)
        return _largest(behind if total else self.weights, those)

    def add(self, parts: Weights) -> None:
        """Counts a record that was given out."""
        behind, sum_ = self._behind, 0
        for d, weight in parts:
            self.emitted[d] += weight
            behind[d] -= weight * self.whole
            sum_ += weight * self.active[d]
        for d, n in enumerate(self.weights):
            behind[d] += n * sum_
        self.total += sum_
        self.largest = max(self.largest, sum_)

    def leave(self, those: Iterable[int]) -> None:
        """Takes components out of the mixture: the others share by their weights."""
        gone = set(those)
        self.set(self.emitted, [was and d not in gone for d, was in enumerate(self.active)])

    def enter(self, d: int) -> None:
        """Takes a component in again."""
        self.set(self.emitted, [was or other == d for other, was in enumerate(self.active)])

    def drift(self, tolerance: Fraction) -> int | None:
        """A component whose share is off by more than the tolerance and one record, if any is."""
        part, units = tolerance.numerator * self.total, tolerance.denominator
        limit = self.whole * (part + units * self.largest)
        for d, behind in enumerate(self._behind):
            if self.active[d] and abs(behind) * units > limit:
                return d
        return None

    def shares(self, d: int) -> tuple[float, float]:
        """The share that a component has, and the one it should have."""
        return self.emitted[d] / max(1, self.total), self.weights[d] / self.whole


def _largest(values: Sequence[int], those: Sequence[bool]) -> int | None:
    """Ties go to the earlier one."""
    best = None
    for d, may in enumerate(those):
        if may and (best is None or values[d] > values[best]):
            best = d
    return best
