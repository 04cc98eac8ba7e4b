"""Which array library a value belongs to, and range checks made on the host.

Every integer routine of the schedule is written once, against the functions that NumPy and
`jax.numpy` share. Looking up the namespace never imports JAX: a value can only be a JAX array if
JAX has been imported already.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np

__all__ = ["Array", "as_int", "has_x64", "is_jax", "is_tracer", "namespace"]

# A NumPy or a JAX array. JAX is not imported to say so.
Array = Any


def _of_jax(name: str) -> Any:
    """A part of JAX; None where it is not imported, or another thread is importing it just now."""
    return getattr(sys.modules.get("jax"), name, None)


def is_jax(value: Any) -> bool:
    """True for a JAX array or tracer, without importing JAX."""
    array = _of_jax("Array")
    return array is not None and isinstance(value, array)


def is_tracer(value: Any) -> bool:
    """True for a value that JAX is tracing, whose numbers the host cannot see."""
    tracer = getattr(_of_jax("core"), "Tracer", None)
    return tracer is not None and isinstance(value, tracer)


def namespace(*values: Any) -> Any:
    """Returns `jax.numpy` when one of the values is a JAX array, else `numpy`."""
    if any(is_jax(value) for value in values):
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
        raise TypeError(f"{name} must be an integer; got {value!r}, a boolean.")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer; got {value!r} of type {type(value).__name__}."
        ) from None
    if low is not None and number < low:
        raise ValueError(f"{name} must be at least {low}; got {number}.")
    if high is not None and number > high:
        raise ValueError(f"{name} must be at most {high}; got {number}.")
    return number
