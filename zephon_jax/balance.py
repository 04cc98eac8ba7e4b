"""What was given out of each component of a mixture, and who is furthest behind.

The rule of `swrr`, for records that weigh more than one and come when they like.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

__all__ = ["Balance", "Weights"]

Weights = list[tuple[int, int]]  # (component index, weight) of one record; no weight is 0


class Balance:
    """Counts in integers what was given out of the components that are in the mixture.

    Args:
      weights: Target weights; components with 0 are never in turn.
    """

    def __init__(self, weights: Sequence[int]):
        self.weights = weights
        self.largest = 0  # weight of a record
        self.set([0] * len(weights), [weight > 0 for weight in weights])

    def set(self, emitted: list[int], active: list[bool]) -> None:
        """Goes to a point: what was given out of each, and who is in the mixture still."""
        self.emitted, self.active = emitted, active
        self.total = sum(emitted)
        self.whole = sum(w for w, is_in in zip(self.weights, active, strict=True) if is_in)
        # How far each is behind, but for the start: n_d * t - E_d * C.
        pairs = zip(self.weights, emitted, strict=True)
        self._behind = [n * self.total - e * self.whole for n, e in pairs]

    def furthest(self, among: Sequence[Any]) -> int | None:
        """The component that goes next of those that may; ties go to the earlier one."""
        behind = self._behind if self.total else self.weights
        best = None
        for d, may in enumerate(among):
            if may and self.active[d] and (best is None or behind[d] > behind[best]):
                best = d
        return best

    def add(self, parts: Weights) -> None:
        """Counts a record that was given out, without what it has of components left out."""
        behind, sum_ = self._behind, 0
        for d, weight in parts:
            if self.active[d]:
                self.emitted[d] += weight
                behind[d] -= weight * self.whole
                sum_ += weight
        for d, n in enumerate(self.weights):
            behind[d] += n * sum_
        self.total += sum_
        self.largest = max(self.largest, sum_)

    def retire(self, d: int) -> None:
        """Leaves a component out, and starts to count anew: the others share by their weights."""
        self._with(d, False)

    def enlist(self, d: int) -> None:
        """Takes a component in again, and starts to count anew."""
        self._with(d, True)

    def _with(self, d: int, is_in: bool) -> None:
        active = [is_in if other == d else was for other, was in enumerate(self.active)]
        self.set([0] * len(active), active)

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
