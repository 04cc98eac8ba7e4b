"""Which array library a value belongs to, and checks of numbers made on the host.

Every integer routine of the schedule is written once, against the functions that NumPy and
`jax.numpy` share. Looking up the namespace never imports JAX: a value can only be a JAX array if
JAX has been imported already.
"""

from __future__ import annotations

import operator
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from zephon_jax._text import short

__all__ = [
    "GOLDEN",
    "MAX_INDEX",
    "Array",
    "Namespace",
    "Number",
    "as_int",
    "exact_number",
    "has_x64",
    "is_jax",
    "is_tracer",
    "namespace",
]

Array: TypeAlias = Any  # a NumPy or a JAX array; JAX is not imported to say so
Namespace: TypeAlias = Any  # the module `numpy` or `jax.numpy`
Number: TypeAlias = "int | float | Fraction | Decimal | np.integer[Any] | np.floating[Any]"

MAX_INDEX = 1 << 62  # indices and counts stay below, so that sums of two fit into 64 bits
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, made odd: multiples of it spread evenly


def _of_jax(name: str) -> Any:
    """A part of JAX; None where it is not imported, or another thread is importing it just now."""
    return getattr(sys.modules.get("jax"), name, None)


def is_jax(value: object) -> bool:
    """True for a JAX array or tracer, without importing JAX."""
    array = _of_jax("Array")
    return array is not None and isinstance(value, array)


def is_tracer(value: object) -> bool:
    """True for a value that JAX is tracing, whose numbers the host cannot see."""
    tracer = getattr(_of_jax("core"), "Tracer", None)
    return tracer is not None and isinstance(value, tracer)


def namespace(*values: object) -> Namespace:
    """Returns `jax.numpy` when one of the values is a JAX array, else `numpy`."""
    array = _of_jax("Array")
    if array is not None:
        for value in values:
            if isinstance(value, array):
                return sys.modules["jax"].numpy
    return np


def has_x64() -> bool:
    """True when JAX is set to 64-bit integers. Reads a flag and initializes no backend."""
    return bool(getattr(_of_jax("config"), "jax_enable_x64", False))


def as_int(value: Any, name: str, low: int | None = None, high: int | None = None) -> int:
    """Returns `value` as a Python int after checking its type and range.

    Args:
      value: A Python or NumPy integer. Booleans, floats and strings are refused.
      name: What the value is called in the error.
      low: Smallest value allowed.
      high: Largest value allowed.

    Raises:
      TypeError: If it is not an integer.
      ValueError: If it is out of range.
    """
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer; got {short(value)}, a boolean.")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer; got {short(value)} of type {type(value).__name__}."
        ) from None
    if low is not None and number < low:
        raise ValueError(f"{name} must be at least {low}; got {number}.")
    if high is not None and number > high:
        raise ValueError(f"{name} must be at most {high}; got {number}.")
    return number


def exact_number(
    value: Number, name: str, *, above: int | None = None, high: int | None = None
) -> Fraction:
    """Returns the exact value of a number; a float means the decimal that was typed.

    Args:
      value: int, float (read as its shortest decimal), `Fraction`, `Decimal` or a NumPy number.
      name: What the number is called in the error.
      above: The number must be larger than this.
      high: Largest number allowed.

    Raises:
      TypeError: For booleans, strings and anything else that is not a number.
      ValueError: If it is infinite, NaN or out of range.

    Example:
      >>> exact_number(0.1, "mixture['web']")
      Fraction(1, 10)
    """
    numbers = (int, float, Fraction, Decimal, np.integer, np.floating)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers):
        raise TypeError(
            f"{name} must be a number; got {short(value)} of type {type(value).__name__}."
        )
    # A Decimal, or a long double, may be finite and yet larger than any float.
    if isinstance(value, Decimal):
        finite = value.is_finite()
    else:
        finite = not isinstance(value, (float, np.floating)) or bool(np.isfinite(value))
    if not finite:
        raise ValueError(f"{name} must be finite; got {value}.")
    if isinstance(value, float):  # np.float64 included, whose repr is not a plain number
        exact = Fraction(float.__repr__(value))
    elif isinstance(value, np.floating):
        exact = Fraction(str(value))
    else:
        exact = Fraction(int(value)) if isinstance(value, np.integer) else Fraction(value)
    if above is not None and exact <= above:
        raise ValueError(f"{name} must be above {above}; got {value}.")
    if high is not None and exact > high:
        raise ValueError(f"{name} must be at most {high}; got {value}.")
    return exact
