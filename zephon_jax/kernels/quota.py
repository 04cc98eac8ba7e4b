"""How many samples each component gives to a chunk.

Weights seldom divide a chunk evenly, so each component carries a remainder from chunk to chunk,
an integer in units of 1 / W. A component is never more than two samples behind its exact share
nor one ahead, for ever, and quotas are never negative. The same rule serves NumPy and JAX, in
32 bits: what would not fit is split into whole and remaining parts on the host.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import Array, Namespace, Number, as_int, namespace
from zephon_jax._text import short
from zephon_jax.kernels.weights import (
    MAX_DENOMINATOR,
    MixtureSpec,
    exact_weight,
    integer_weights,
    largest_remainder,
    warn_if_moved,
)

__all__ = [
    "MAX_CHUNK_SIZE",
    "Shares",
    "drawn_after",
    "exact_weights",
    "finer",
    "fixed_shares",
    "fixed_shares_of",
    "init_carry",
    "is_closed_form",
    "period",
    "quotas_between",
    "rank",
    "shares",
    "shares_of",
    "steady_carry",
    "step",
]

MAX_CHUNK_SIZE = 1 << 28
_SMALL = 32  # up to here ranks come from comparing all pairs, which needs no sort


class Shares(NamedTuple):
    """A mixture's exact share of each chunk: component d gets whole[d] + rem[d] / unit samples."""

    whole: Array  # int32 (k,), samples
    rem: Array  # int32 (k,), in units of 1 / unit of a sample, 0 <= rem < unit
    unit: Array  # int32 (), the common denominator W
    chunk_size: Array  # int32 (), samples


def exact_weights(weights: Mapping[str, Number] | Sequence[Number]) -> list[Fraction]:
    """Exact weights of a mapping or a sequence, with a warning where rounding will show."""
    if isinstance(weights, Mapping):
        spec = MixtureSpec(weights)
        warn_if_moved(list(spec.values()), list(spec))
        return list(spec.values())
    if not isinstance(weights, (Sequence, np.ndarray)) or isinstance(weights, (str, bytes)):
        raise TypeError(
            f"weights must be a mapping or a sequence of numbers; got {short(weights)}."
        )
    exact = [exact_weight(weight, f"weights[{d}]") for d, weight in enumerate(weights)]
    if not any(exact):
        raise ValueError(f"weights must hold a positive number; got {list(weights)!r}.")
    warn_if_moved(exact, None)
    return exact


def _make_shares(whole: Sequence[int], rem: Sequence[int], unit: int, chunk_size: int) -> Shares:
    return Shares(
        whole=np.asarray(whole, dtype=np.int32),
        rem=np.asarray(rem, dtype=np.int32),
        unit=np.asarray(unit, dtype=np.int32),
        chunk_size=np.asarray(chunk_size, dtype=np.int32),
    )


def shares(weights: Mapping[str, Number] | Sequence[Number], chunk_size: int) -> Shares:
    """Returns the exact shares of incremental allocation, computed on the host.

    Args:
      weights: Numbers as in `MixtureSpec`, a mapping or a sequence; only ratios matter.
      chunk_size: Samples in a chunk, 1 to 2^28.

    Returns:
      Shares of NumPy arrays, a pytree that `step` takes in NumPy and under `jit`.

    Raises:
      TypeError, ValueError: If a weight or the chunk size is not allowed.

    Example:
      >>> from zephon_jax import quota
      >>> shares = quota.shares([0.7, 0.3], chunk_size=4)
      >>> quotas, carry = quota.step(shares, quota.init_carry(shares))
      >>> quotas.tolist(), carry.tolist()
      ([3, 1], [-2, 2])
    """
    chunk_size = as_int(chunk_size, "chunk_size", 1, MAX_CHUNK_SIZE)
    return shares_of(exact_weights(weights), chunk_size)


def shares_of(weights: Sequence[Fraction | int], chunk_size: int) -> Shares:
    """The same from exact weights and a size that have been checked, without a warning."""
    units, total = integer_weights(weights)
    return _make_shares(
        [unit * chunk_size // total for unit in units],
        [unit * chunk_size % total for unit in units],
        total,
        chunk_size,
    )


def fixed_shares(weights: Mapping[str, Number] | Sequence[Number], chunk_size: int) -> Shares:
    """Returns shares whose quotas are the same in every chunk.

    One slot for each active component, the others by largest remainder of its weight.

    Raises:
      ValueError: If there are more active components than slots.

    Example:
      >>> from zephon_jax import quota
      >>> quota.fixed_shares([0.9, 0.1, 0], chunk_size=4).whole.tolist()
      [3, 1, 0]
    """
    chunk_size = as_int(chunk_size, "chunk_size", 1, MAX_CHUNK_SIZE)
    return fixed_shares_of(exact_weights(weights), chunk_size)


def fixed_shares_of(weights: Sequence[Fraction | int], chunk_size: int) -> Shares:
    """The same from exact weights and a size that have been checked, without a warning.

    Raises:
      ValueError: If there are more active components than slots.
    """
    units, total = integer_weights(weights)
    active = sum(unit > 0 for unit in units)
    if active > chunk_size:
        raise ValueError(
            f"allocation='fixed' needs a slot for each active component; got {active} components"
            f" and chunk_size = {chunk_size}. Raise chunk_size, or use allocation='incremental'."
        )
    spare = chunk_size - active
    rest = largest_remainder([Fraction(unit * spare, total) for unit in units], spare)
    quotas = [(unit > 0) + more for unit, more in zip(units, rest, strict=True)]
    return _make_shares(quotas, [0] * len(units), 1, chunk_size)


def init_carry(shares: Shares) -> np.ndarray:
    """The carry before the first chunk: int32 zeros (k,)."""
    shape: tuple[int, ...] = shares.rem.shape
    return np.zeros(shape, dtype=np.int32)


def rank(xp: Namespace, value: Array) -> Array:
    """Place of each element in ascending order, ties to the earlier: int32, along the last axis."""
    k: int = value.shape[-1]
    if xp is np and value.ndim == 2 and k <= _SMALL:  # many at once, one component after another
        columns, ranks = np.ascontiguousarray(value.T), np.empty(value.shape, dtype=np.int32)
        for d in range(k):
            before, after = columns[:d] <= columns[d], columns[d + 1 :] < columns[d]
            ranks[:, d] = before.sum(axis=0, dtype=np.int8) + after.sum(axis=0, dtype=np.int8)
        return ranks
    if k <= _SMALL:
        one, other = value[..., :, None], value[..., None, :]
        place = np.arange(k, dtype=np.int32)
        earlier = place[:, None] > place[None, :]
        return xp.sum((other < one) | ((other == one) & earlier), axis=-1, dtype=xp.int32)
    order = xp.argsort(value, axis=-1, stable=True)
    if xp is np:
        ranks = np.empty(value.shape, dtype=np.int32)
        places = np.broadcast_to(np.arange(k, dtype=np.int32), value.shape)
        np.put_along_axis(ranks, order, places, axis=-1)
        return ranks
    return xp.argsort(order, axis=-1, stable=True).astype(xp.int32)


def _least(xp: Namespace, value: Array, number: Array) -> Array:
    """The so many smallest elements of (k,), ties to the earlier: bool (k,). At least one."""
    if xp is not np or value.size <= _SMALL:
        return rank(xp, value) < number
    last = int(number) - 1
    highest = np.partition(value, last)[last]  # a third of the time of a sort
    chosen = value < highest
    ties = np.flatnonzero(value == highest)
    chosen[ties[: last + 1 - np.count_nonzero(chosen)]] = True
    return chosen


def step(shares: Shares, carry: Array) -> tuple[Array, Array]:
    """Allocates one chunk.

    Args:
      shares: From `shares` or `fixed_shares`.
      carry: int32 (k,), in units of 1 / W: zero at first, then what the last step returned.

    Returns:
      Quotas, int32 (k,), which sum to the chunk size, and the next carry, int32 (k,).

    Example:
      >>> import jax
      >>> from zephon_jax import quota
      >>> shares = quota.shares({"web": 3, "toy": 1}, chunk_size=8)
      >>> jax.jit(quota.step)(shares, quota.init_carry(shares))[0].tolist()
      [6, 2]
    """
    xp = namespace(carry, shares.whole)
    carry, unit = xp.asarray(carry, dtype=xp.int32), xp.asarray(shares.unit)
    total = carry + shares.rem
    # A component without a whole sample that is ahead of its share waits; only then is it clipped.
    floor = xp.where((total < 0) & (shares.whole == 0), 0, xp.floor_divide(total, unit))
    quotas = shares.whole + floor
    carry = total - floor * unit
    missing = shares.chunk_size - xp.sum(quotas, axis=-1, dtype=xp.int32)
    if xp is not np or missing > 0:
        gets = _least(xp, -carry, missing).astype(xp.int32)
        quotas, carry = quotas + gets, carry - gets * unit
    if xp is not np or missing < 0:
        # The carry stays below 2^31 - 1, so components that have nothing to give rank last.
        key = xp.where(quotas > 0, carry, xp.iinfo(xp.int32).max)
        pays = _least(xp, key, -missing).astype(xp.int32)
        quotas, carry = quotas - pays, carry + pays * unit
    return quotas, carry


def period(shares: Shares) -> int:
    """Chunks after which all carries are zero again (a multiple of the smallest such number)."""
    return int(shares.unit) // math.gcd(int(shares.unit), *(int(r) for r in shares.rem))


def is_closed_form(shares: Shares) -> bool:
    """True when `steady_carry` holds: each active component has a whole sample in each chunk."""
    return bool(np.all((shares.whole > 0) | (shares.rem == 0)))


def steady_carry(
    shares: Shares, num_chunks: int | np.ndarray, start: np.ndarray | None = None
) -> np.ndarray:
    """The carry after `num_chunks` steps, in closed form.

    With a whole sample a chunk, no component is clipped, so before the missing slots are given
    out each carry is the residue of what the component is owed: the history does not matter.
    Valid where `is_closed_form`; the tests compare it with stepping.

    Args:
      shares: From `shares` or `fixed_shares`.
      num_chunks: Chunks since the carry was `start`, an int or int64 (n,).
      start: int32 (k,), a carry above -W and at most W that sums to zero, and is zero where the
        share is; zero everywhere by default.

    Returns:
      int32 (k,) or (n, k), equal to the carry that stepping reaches.
    """
    unit = int(shares.unit)
    # Both factors are below 2^29, so their product fits into 64 bits.
    rounds = np.asarray(num_chunks % unit, dtype=np.int64)[..., None]
    owed = rounds * shares.rem.astype(np.int64)
    if start is not None:
        owed += start
    # NumPy divides by a scalar faster than it takes rests.
    residue: Array = owed - owed // unit * unit
    missing = residue.sum(axis=-1, keepdims=True) // unit
    gets = rank(np, -residue) < missing
    carry: np.ndarray = (residue - unit * gets).astype(np.int32)
    if start is not None:  # it may be any carry; those after it are what is left of a sample
        carry[np.asarray(num_chunks) == 0] = start
    return carry


def finer(shares: Shares, factor: int) -> Shares:
    """The same shares with carries in smaller units, so many to one: W times the factor."""
    unit = int(shares.unit) * factor
    assert unit <= MAX_DENOMINATOR
    return shares._replace(rem=shares.rem * np.int32(factor), unit=np.asarray(unit, dtype=np.int32))


def quotas_between(shares: Shares, carry: np.ndarray, next_carry: np.ndarray) -> np.ndarray:
    """The quotas of chunks (..., k) from the carries before and after each of them: int32."""
    moved = (carry.astype(np.int64) - next_carry + shares.rem) // int(shares.unit)
    return (shares.whole + moved).astype(np.int32)


def drawn_after(
    shares: Shares,
    num_chunks: int | np.ndarray,
    carry: np.ndarray,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Samples drawn in `num_chunks` steps (or each of (n,)) between two carries: int64.

    Args:
      shares: From `shares` or `fixed_shares`.
      num_chunks: Steps, an int or int64 (n,).
      carry: int32 (k,) or (n, k), after them.
      start: int32 (k,), before them; zero by default.
    """
    unit = int(shares.unit)
    steps = np.asarray(num_chunks, dtype=np.int64)[..., None]
    rounds, rest = np.divmod(steps, unit)
    rem = shares.rem.astype(np.int64)
    owed = rest * rem - carry.astype(np.int64)  # below 2^59: rest and rem are below 2^29
    if start is not None:
        owed += start
    return steps * shares.whole.astype(np.int64) + rounds * rem + owed // unit
