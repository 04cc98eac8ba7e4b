"""What was given out of each component of a mixture, and who is furthest behind.

The rule of `swrr`, for records that weigh more than one and come when they like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

__all__ = ["Balance", "Weights"]

Weights = list[tuple[int, int]]  # (component index, weight) of one record; no weight is 0


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
