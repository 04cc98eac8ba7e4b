"""A run's history: the weights that its chunks are drawn by, and from which chunk on.

A mixture whose weights stay has one entry. Each further entry is a change: a stage of a schedule, a
step of its ramp, or weights that were changed while the run went on. Weights are integers in the
ratio of the exact shares; no float decides any. What a component is owed when weights change goes
on with it: see `carry_over`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels.weights import common_units

__all__ = [
    "FAR",
    "FINE_UNIT",
    "UNCAPPED",
    "Change",
    "Entry",
    "History",
    "Start",
    "Weighing",
    "carry_over",
    "changed_history",
    "constant",
    "split_carry",
]

FAR = MAX_INDEX  # more than anything counted here
UNCAPPED = -1
# After a change carries are in units of at most 1 / FINE_UNIT of a sample, so that rounding them at
# each of a thousand changes moves nobody by more than a hundred-thousandth of a sample.
FINE_UNIT = 1 << 27


class Entry(NamedTuple):
    """Weights that hold from a chunk on, until the next entry's."""

    first_chunk: int
    units: tuple[int, ...]  # one a component, without a common divisor; 0 for who is not drawn


History = tuple[Entry, ...]
"""Entries in ascending order of their first chunks; the first one's is 0."""


def constant(weights: Sequence[Fraction]) -> History:
    """The history of weights that stay."""
    return (Entry(0, tuple(common_units(weights))),)


class Change(NamedTuple):
    """A change of a mixture that was made while its run went on, in integers.

    Fields:
      first_chunk: The chunk from which on it holds.
      units: Weights of all datasets that there are from here on, in the ratio of the exact shares.
      num_shards: Shards of each dataset that there was before.
      drawn: Samples drawn of each dataset that there was before.
    """

    __module__ = "zephon_jax"

    first_chunk: int
    units: tuple[int, ...]
    num_shards: tuple[int, ...]
    drawn: tuple[int, ...]


def changed_history(history: History, changes: Sequence[Change], num_datasets: int) -> History:
    """The history of a run with all its datasets, from the planned one of the first datasets.

    Args:
      history: Planned, before any change.
      changes: In ascending order.
      num_datasets: Datasets that there are after all changes; one has weight 0 until it comes.
    """
    entries = list(history)
    for change in changes:  # what was planned from there on is not done
        entries = [entry for entry in entries if entry.first_chunk < change.first_chunk]
        entries.append(Entry(change.first_chunk, change.units))
    none = (0,) * num_datasets
    return tuple(
        Entry(entry.first_chunk, (*entry.units, *none)[:num_datasets]) for entry in entries
    )


class Weighing(NamedTuple):
    """An entry of the history with what the rules of exhaustion make of it. Arrays are (k,)."""

    first_chunk: int
    end: int  # the next entry's first chunk, FAR where there is none
    units: tuple[int, ...]
    weighted: np.ndarray  # bool, the weight is positive
    awaited: np.ndarray  # bool, it is positive here or in a later entry
    first_pass: np.ndarray  # int64, samples drawn at the end of a dataset's first pass
    caps: np.ndarray  # int64, samples after which the run ends, or UNCAPPED
    ends: np.ndarray  # int64, samples after which a dataset has had all passes that are asked for


class Start(NamedTuple):
    """What the components are owed where weights change, int32 (k,) each, in units of 1 / W.

    Their sum is a component's carry. Who is drawn shares in what the others are owed together:
    these wait, and hold it until they are drawn again.
    """

    carry: np.ndarray  # of this allocation: sums to zero, and is zero for who is not drawn
    held: np.ndarray  # stays as it is: sums to zero


def carry_over(carry: np.ndarray, unit: int, new_unit: int, active: np.ndarray) -> Start:
    """Takes carries over to other weights: the same fractions of a sample, in other units.

    Args:
      carry: int32 (k,), in units of 1 / unit, summing to zero.
      unit: W before.
      new_unit: W from here on.
      active: bool (k,), the components that are drawn from here on; at least one.
    """
    wide = carry.astype(np.int64) * new_unit  # below 2^31 * 2^29
    moved = wide // unit
    # Rounded by largest remainder, ties to the earlier: the sum stays zero.
    missing = -int(moved.sum())
    if missing:
        moved[np.argsort(moved * unit - wide, kind="stable")[:missing]] += 1
    # Only schedules made for it come to carries of two samples; they would not fit into 32 bits.
    start = split_carry(_within(moved, -2 * new_unit, 2 * new_unit), active)
    return start._replace(carry=_within(start.carry, -new_unit, new_unit + 1).astype(np.int32))


def split_carry(carry: np.ndarray, active: np.ndarray) -> Start:
    """Splits the carry of a run, as `carry_over` does.

    Args:
      carry: int (k,), summing to zero.
      active: bool (k,), the components that are drawn; at least one.
    """
    carry = carry.astype(np.int64)
    held, places = carry.copy(), np.flatnonzero(active)
    each, more = divmod(int(carry[places].sum()), places.size)
    held[places] = each + (np.arange(places.size) < more)
    return Start(carry=(carry - held).astype(np.int32), held=held.astype(np.int32))


def _within(carry: np.ndarray, low: int, high: int) -> np.ndarray:
    """Carries (k,) that sum to zero, made smaller in proportion where one is out of a range.

    Args:
      carry: int (k,).
      low: All come to lie above it; below 0.
      high: All come to lie below it; above 0.
    """
    carry = carry.astype(np.int64)
    least, most = int(carry.min()), int(carry.max())
    if least > low and most < high:
        return carry
    # The magnitudes are below 2^33, and a factor of n / 2^24 keeps to 64 bits.
    factor = min((1 << 24) * (-low - 1) // max(1, -least), (1 << 24) * (high - 1) // max(1, most))
    smaller = np.sign(carry) * (np.abs(carry) * factor >> 24)
    # Rounding towards zero leaves a rest of less than one unit each; the largest one gives it up.
    rest = int(smaller.sum())
    smaller[np.argmax(smaller * np.sign(rest))] -= rest
    return smaller
