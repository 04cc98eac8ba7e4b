"""Exact mixture weights.

Weights arrive as numbers that people type and leave as integers over a common denominator. A
float means the decimal that was typed: 0.1 is one tenth, not the binary number next to it.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from zephon_jax._arrays import Number, exact_number
from zephon_jax._text import short
from zephon_jax._warn import warn

__all__ = [
    "MAX_DENOMINATOR",
    "MixtureSpec",
    "common_units",
    "exact_weight",
    "integer_weights",
    "largest_remainder",
    "warn_if_moved",
]

MAX_DENOMINATOR = 1 << 29  # quota arithmetic adds three of these in 32 bits


def exact_weight(value: Number, name: str) -> Fraction:
    """Returns the exact value of one weight.

    Args:
      value: int, float (read as its shortest decimal), `Fraction`, `Decimal` or a NumPy number.
      name: What the weight is called in the error, such as "mixture['web']".

    Raises:
      TypeError: For booleans, strings and anything else that is not a number.
      ValueError: For negative, infinite and NaN weights.

    Example:
      >>> exact_weight(0.1, "mixture['web']")
      Fraction(1, 10)
    """
    exact = exact_number(value, name)
    if exact < 0:
        raise ValueError(
            f"mixture weights must not be negative; got {name} = {value}.\n"
            "Leave it out of the mixture and of the datasets, or give it 0 to declare it without"
            " drawing from it."
        )
    return exact


def largest_remainder(shares: Sequence[Fraction], total: int) -> list[int]:
    """Rounds shares that sum to `total` to integers that do; ties go to the earlier one."""
    units = [math.floor(share) for share in shares]
    missing = total - sum(units)
    order = sorted(range(len(shares)), key=lambda d: (units[d] - shares[d], d))
    for d in order[:missing]:
        units[d] += 1
    return units


def _keep_one_each(units: list[int], positive: Sequence[bool]) -> None:
    """Raises positive weights to one unit, paid one at a time by the largest."""
    raised = [d for d, unit in enumerate(units) if positive[d] and unit == 0]
    for d in raised:
        units[d] = 1
    heap = [(-unit, d) for d, unit in enumerate(units)]
    heapq.heapify(heap)
    for _ in raised:
        unit, d = heap[0]
        heapq.heapreplace(heap, (unit + 1, d))
        units[d] -= 1


def integer_weights(weights: Sequence[Fraction | int]) -> tuple[list[int], int]:
    """Brings exact weights to a common denominator.

    Args:
      weights: Not negative, at least one positive.

    Returns:
      Integers w and their sum W: component d's share is w[d] / W. W is at most 2^29; where the
      exact one is larger, the shares are rounded to W = 2^29 units by largest remainder, each
      positive one keeping at least one unit. `warn_if_moved` says where that shows.

    Example:
      >>> integer_weights([Fraction(1, 2), Fraction(1, 3)])
      ([3, 2], 5)
    """
    units = common_units(weights)
    total = sum(units)
    if total <= MAX_DENOMINATOR:
        return units, total
    exact = [Fraction(unit * MAX_DENOMINATOR, total) for unit in units]
    rounded = largest_remainder(exact, MAX_DENOMINATOR)
    _keep_one_each(rounded, [unit > 0 for unit in units])
    return rounded, MAX_DENOMINATOR


def common_units(weights: Sequence[Fraction | int]) -> list[int]:
    """Exact integers in the ratio of the weights, without a common divisor."""
    # A scale common to all keeps this at integers: adding fractions one by one would be slow.
    scale = math.lcm(*(weight.denominator for weight in weights))
    units = [weight.numerator * (scale // weight.denominator) for weight in weights]
    common = math.gcd(*units)
    return [unit // common for unit in units]


def warn_if_moved(weights: Sequence[Fraction], names: Sequence[str] | None) -> None:
    """Warns of weights that `integer_weights` moves by more than a thousandth of themselves.

    Args:
      weights: As for `integer_weights`.
      names: Names for the warning; places in the sequence where there are none.
    """
    units, total = integer_weights(weights)
    if total < MAX_DENOMINATOR:
        return
    exact = common_units(weights)
    whole = sum(exact)
    # |unit / total - exact / whole| > exact / whole / 1000, in integers.
    moved = [
        d
        for d, (unit, one) in enumerate(zip(units, exact, strict=True))
        if abs(unit * whole - one * total) * 1000 > one * total
    ]
    if moved:
        labels = ", ".join(repr(names[d]) if names else f"weight {d}" for d in moved[:8])
        more = f" and {len(moved) - 8} more" if len(moved) > 8 else ""
        warn(
            f"mixture weights are held in units of 2^-29; {labels}{more} moved by more than a"
            " thousandth of itself. Use weights that lie less far apart."
        )


class MixtureSpec(Mapping[str, Fraction]):
    """Weights by component name: an immutable mapping to exact fractions, not normalized.

    Args:
      weights: A mapping of names to numbers. Only ratios matter. Weight 0 declares a component
        without drawing from it.

    Raises:
      TypeError: If a name is not a string or a weight not a number.
      ValueError: If it is empty, all zero, or a weight is negative, infinite or NaN.

    Example:
      >>> MixtureSpec({"web": 3, "toy": 1.0}).fractions()
      {'web': Fraction(3, 4), 'toy': Fraction(1, 4)}
    """

    __module__ = "zephon_jax"

    __slots__ = ("_weights",)

    def __init__(self, weights: Mapping[str, Number]):
        if not isinstance(weights, Mapping):
            raise TypeError(
                f"mixture must be a mapping of names to weights; got {type(weights).__name__}."
            )
        if not weights:
            raise ValueError("mixture must name at least one component; got an empty mapping.")
        for name in weights:
            if not isinstance(name, str):
                raise TypeError(f"mixture names must be strings; got {short(name)}.")
        exact = {n: exact_weight(w, f"mixture[{n!r}]") for n, w in weights.items()}
        if not any(exact.values()):
            raise ValueError(
                f"mixture must have a positive weight; got 0 for all of {list(exact)}."
            )
        self._weights = exact

    def __getitem__(self, name: str) -> Fraction:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __hash__(self) -> int:
        return hash(frozenset(self._weights.items()))

    def __repr__(self) -> str:
        return f"MixtureSpec({ {n: str(w) for n, w in self._weights.items()} })"

    def fractions(self) -> dict[str, Fraction]:
        """Shares that sum to one, by name."""
        total = sum(self._weights.values())
        return {name: weight / total for name, weight in self._weights.items()}
