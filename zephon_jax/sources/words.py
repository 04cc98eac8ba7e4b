"""Counts in states: pairs of 32-bit words.

JAX without x64 cuts 64-bit integers in silence, or refuses them. In words a state that went through
`jit`, `device_put` or a checkpoint of model arrays comes back the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["from_words", "to_words"]


def to_words(value: object) -> np.ndarray:
    """Splits integers in [0, 2^63) into low and high words: uint32 (..., 2), read-only."""
    value = np.array(value, dtype="<i8")
    words = value.reshape(*value.shape, 1).view("<u4").astype(np.uint32, copy=False)
    words.setflags(write=False)
    return words


def from_words(words: ArrayLike) -> Any:
    """Joins low and high words: an int for shape (2,), else int64 (...)."""
    if type(words) is np.ndarray and words.shape == (2,) and words.dtype == np.uint32:
        low, high = words.tolist()  # nearly all, and faster than the calls below
        return low | high << 32 if high < 1 << 31 else (low | high << 32) - (1 << 64)
    words = np.ascontiguousarray(words, dtype="<u4")
    value = words.view("<i8")[..., 0]
    return int(value) if words.ndim == 1 else value.astype(np.int64)
