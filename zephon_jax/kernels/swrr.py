"""Smooth weighted round robin: a reading order that spreads each component evenly.

With n_d samples of component d in a chunk of C, the next slot goes to the component that is
furthest behind its share of the slots given out so far. Every prefix holds each component within
about two samples of its share, so the mixture is right long before the chunk ends.
"""

from __future__ import annotations

import sys

import numpy as np

from zephon_jax._arrays import Array, Namespace, as_int, is_tracer, namespace
from zephon_jax.kernels.quota import MAX_CHUNK_SIZE

__all__ = ["can_pack", "check_counts", "order", "order_packed"]

_LOW = -(1 << 31)


def check_counts(counts: Array, size: int | None) -> tuple[Array, int]:
    """Checks a reading order's arguments and returns int32 counts and the number of slots.

    Raises:
      TypeError: If the counts are not integers.
      ValueError: If NumPy counts are negative or too many, or `size` is missing under `jit`.
    """
    xp = namespace(counts)
    counts = xp.asarray(counts)
    if counts.dtype.kind not in "iu" or counts.ndim < 1:
        raise TypeError(f"counts must be integers of shape (..., k); got {counts.dtype}.")
    if is_tracer(counts):
        if size is None:
            raise ValueError("size must be given under jit, where the counts are not known.")
    else:
        host = np.asarray(counts)
        total = int(host.sum(axis=-1, dtype=np.int64).max(initial=0))
        if host.min(initial=0) < 0 or total > MAX_CHUNK_SIZE:
            raise ValueError(
                f"counts must not be negative and sum to at most {MAX_CHUNK_SIZE}; got {host}."
            )
        size = total if size is None else size
    return counts.astype(xp.int32), as_int(size, "size", 0, MAX_CHUNK_SIZE)


def _start(xp: Namespace, counts: Array) -> Array:
    """Deficits at slot 0, components first: n_d; those without samples can never win."""
    return xp.where(counts > 0, counts, _LOW).astype(xp.int32)


# The deficit n_d * max(1, t) - E_d * C is kept up by adding n_d a slot, from the second on, and
# taking C from the component chosen: it stays within a few times C, where the products would not
# fit into 32 bits. A component that is used up needs no mask: its deficit is negative until the
# chunk ends, and all deficits sum to zero, so another one is ahead of it.


def _order_host(counts: np.ndarray, size: int) -> np.ndarray:
    """Rows of counts (B, k) -> (B, size), all rows of a slot in one step."""
    total = counts.sum(axis=1, dtype=np.int32)
    deficit = np.ascontiguousarray(_start(np, counts))  # `flat` below must be a view
    chosen = np.empty((size, counts.shape[0]), dtype=np.int32)
    if counts.shape[0] == 1:  # plain scalars index faster than arrays of one
        deficit, row, taken = deficit[0], counts[0], chosen[:, 0]
        for slot in range(size):
            if slot > 1:
                deficit += row
            first = deficit.argmax()
            taken[slot] = first
            deficit[first] -= total[0]
        return chosen.T
    flat = deficit.reshape(-1)
    base = np.arange(counts.shape[0], dtype=np.int64) * counts.shape[1]
    for slot in range(size):
        if slot > 1:
            deficit += counts
        best = deficit.argmax(axis=1)
        chosen[slot] = best
        best += base
        flat[best] -= total
    return chosen.T


def _order_jax(counts: Array, size: int) -> Array:
    """The same as a scan, components first: counts (k, ...) -> (size, ...)."""
    jax = sys.modules["jax"]
    xp = jax.numpy
    total = xp.sum(counts, axis=0, dtype=xp.int32)
    places = xp.arange(counts.shape[0], dtype=xp.int32).reshape((-1,) + (1,) * (counts.ndim - 1))

    def body(deficit: Array, slot: Array) -> tuple[Array, Array]:
        deficit = deficit + xp.where(slot > 1, counts, 0)
        best = xp.argmax(deficit, axis=0).astype(xp.int32)  # the first of equals
        return deficit - xp.where(places == best, total, 0), best

    slots = xp.arange(size, dtype=xp.int32)
    return jax.lax.scan(body, _start(xp, counts), slots, unroll=4)[1]


def can_pack(num_components: int, size: int) -> bool:
    """True where `order_packed` holds deficits and component numbers in 32 bits together."""
    # A deficit stays within three times the chunk; eight leaves room for one more addition.
    return 8 * size << (num_components - 1).bit_length() < 1 << 31


def order_packed(counts: Array, size: int) -> Array:
    """The same orders by a scan that vectorizes: one maximum a slot, for many chunks side by side.

    The component's number lies in the low bits of its deficit, the earlier one larger, so that
    the maximum is the winner and says who it is.

    Args:
      counts: int32 JAX array (k, B), components first, each column of at most `size` samples;
        `can_pack(k, size)` holds.
      size: Slots to give out.

    Returns:
      uint8 (size, B), or int32 above 256 components. What lies past a column's end has no meaning.
    """
    jax = sys.modules["jax"]
    xp = jax.numpy
    bits = xp.int32((counts.shape[0] - 1).bit_length())
    low = (xp.int32(1) << bits) - 1
    places = low - xp.arange(counts.shape[0], dtype=xp.int32)[:, None]
    total = xp.sum(counts, axis=0, dtype=xp.int32) << bits
    start = xp.where(counts > 0, (counts << bits) + places, _LOW).astype(xp.int32)
    narrow = xp.uint8 if counts.shape[0] <= 256 else xp.int32

    def body(carry: tuple[Array, Array], slot: Array) -> tuple[tuple[Array, Array], Array]:
        deficit, best = carry
        deficit = xp.where(deficit == best[None], deficit - total[None], deficit)
        deficit = deficit + xp.where(slot > 1, counts << bits, 0)
        best = xp.max(deficit, axis=0)
        return (deficit, best), (low - (best & low)).astype(narrow)

    none = xp.full(counts.shape[1], _LOW + 1, dtype=xp.int32)
    return jax.lax.scan(body, (start, none), xp.arange(size, dtype=xp.int32))[1]


def order(counts: Array, size: int | None = None) -> Array:
    """Returns the component of each slot.

    Slot t (t slots given out, E_d of them to component d) goes to the component with the largest
    n_d * max(1, t) - E_d * C among those with samples left; ties go to the earlier component.

    Args:
      counts: Integers (..., k), samples of each component, not negative.
      size: Slots to give out, static under `jit`; by default all of them. Slots past a row's own
        total hold -1.

    Returns:
      int32 (..., size), NumPy or JAX as the counts are.

    Raises:
      TypeError, ValueError: If the counts or the size are not allowed.

    Example:
      >>> from zephon_jax import swrr
      >>> import numpy as np
      >>> swrr.order(np.array([3, 1])).tolist()
      [0, 1, 0, 0]

    References:
      Smooth weighted round robin balancing as in nginx (Maxim Dounin, 2012); Robert Tijdeman,
      "The Chairman Assignment Problem" (1980), for bounds of such orders.
    """
    counts, size = check_counts(counts, size)
    xp = namespace(counts)
    if xp is np:
        rows = counts.reshape(-1, counts.shape[-1])
        chosen = _order_host(rows, size).reshape(*counts.shape[:-1], size)
    else:
        chosen = xp.moveaxis(_order_jax(xp.moveaxis(counts, -1, 0), size), 0, -1)
    total = xp.sum(counts, axis=-1, keepdims=True, dtype=xp.int32)
    return xp.where(xp.arange(size, dtype=xp.int32) < total, chosen, xp.int32(-1))
