"""Lattice reading: an order that keeps the mixture right across lanes as well as along them.

Lanes that read in lockstep by round robin all hold the same component at the same slot. Here the
slots of a chunk are laid out by a golden-ratio sequence over the components' cumulative counts,
and each lane starts at another place of the same lattice, so that one row from each lane is a
sample of the mixture too. Counts come out exact, and no step depends on the one before.

References:
  Steinhaus's three-gap theorem (Vera Sos, 1958), on why multiples of the golden ratio are evenly
  spread; Donald Knuth, "The Art of Computer Programming" vol. 3 (1973), section 6.4.
"""

from __future__ import annotations

import functools

import numpy as np

from zephon_jax._arrays import GOLDEN, Array, Namespace, as_int, is_tracer, namespace
from zephon_jax.kernels.swrr import check_counts

__all__ = ["order"]

_MAX_LANES_TRACED = 1 << 15


@functools.lru_cache(maxsize=8)
def _sorted_slots(size: int) -> np.ndarray:
    """Slots 0 .. size - 1 in ascending order of slot * golden mod 2^64: int32 (size,)."""
    keys = np.arange(size, dtype=np.uint64) * np.uint64(GOLDEN)
    slots = np.argsort(keys, kind="stable").astype(np.int32)
    slots.setflags(write=False)
    return slots


@functools.lru_cache(maxsize=8)
def _ranks(size: int) -> np.ndarray:
    """The inverse of `_sorted_slots`: int32 (size,)."""
    ranks = np.empty(size, dtype=np.int32)
    ranks[_sorted_slots(size)] = np.arange(size, dtype=np.int32)
    ranks.setflags(write=False)
    return ranks


def _shift(xp: Namespace, total: Array, slot: Array | int, num_lanes: int) -> Array:
    """Slot * total // num_lanes for slot < num_lanes; in 32 bits where a value is traced."""
    if not (is_tracer(total) or is_tracer(slot)):
        return int(slot) * int(total) // num_lanes
    if num_lanes > _MAX_LANES_TRACED:
        raise ValueError(
            f"under jit the lattice needs num_lanes <= {_MAX_LANES_TRACED}; got {num_lanes}."
            " Call it outside jit, where the host's integers do not wrap."
        )
    lanes = xp.int32(num_lanes)
    slot = xp.asarray(slot, dtype=xp.int32)
    return slot * (total // lanes) + slot * (total % lanes) // lanes


def _order_jax(xp: Namespace, counts: Array, slot: Array | int, num_lanes: int, size: int) -> Array:
    total = xp.sum(counts, axis=-1, dtype=xp.int32)
    slots = _sorted_slots(size)
    # Among the chunk's own slots, which may be fewer than `size`, ranks count the smaller keys.
    inside = xp.asarray(slots) < total
    rank = xp.zeros(size, dtype=xp.int32).at[slots].set(xp.cumsum(inside, dtype=xp.int32) - 1)
    place = (rank + _shift(xp, total, slot, num_lanes)) % xp.maximum(total, 1)
    ends = xp.cumsum(counts, dtype=xp.int32)
    component = xp.searchsorted(ends, place, side="right").astype(xp.int32)
    return xp.where(xp.arange(size, dtype=xp.int32) < total, component, xp.int32(-1))


def order(counts: Array, slot: Array | int, num_lanes: int, size: int | None = None) -> Array:
    """Returns the component of each slot.

    Slot j takes the component whose interval of cumulative counts holds
    (rank(j) + slot * C // num_lanes) mod C, where rank(j) is the rank of
    j * 0x9E3779B97F4A7C15 mod 2^64 among the chunk's C slots.

    Args:
      counts: Integers (k,), samples of each component, not negative, C in all.
      slot: The chunk's slot in its block of lanes, 0 to num_lanes - 1. May be traced, as the
        counts may, where there are at most 2^15 lanes.
      num_lanes: Lanes that read in lockstep, a Python int.
      size: Slots to give out, C by default. Slots past C hold -1. Under `jit` it is static and at
        least C, which cannot be checked there.

    Returns:
      int32 (size,), NumPy or JAX as the counts (or the slot) are.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> from zephon_jax import lattice
      >>> import numpy as np
      >>> lattice.order(np.array([6, 2]), slot=0, num_lanes=2).tolist()
      [0, 0, 0, 1, 0, 0, 1, 0]
      >>> lattice.order(np.array([6, 2]), slot=1, num_lanes=2).tolist()
      [0, 0, 1, 0, 0, 0, 0, 1]
    """
    num_lanes = as_int(num_lanes, "num_lanes", 1, (1 << 31) - 1)
    counts, size = check_counts(counts, size)
    if counts.ndim != 1:
        raise ValueError(f"counts must have shape (k,); got {counts.shape}. Use jax.vmap for more.")
    if not is_tracer(slot):
        slot = as_int(slot, "slot", 0, num_lanes - 1)
    xp = namespace(counts, slot)
    if xp is not np and not is_tracer(counts):
        # Ranks are among all of the chunk's slots, so a part of an order is cut from the whole.
        whole = max(size, int(counts.sum()))
        return _order_jax(xp, xp.asarray(counts), slot, num_lanes, whole)[:size]
    if xp is not np:
        return _order_jax(xp, xp.asarray(counts), slot, num_lanes, size)
    total = int(counts.sum())
    shift = slot * total // num_lanes
    component = np.repeat(np.arange(counts.shape[0], dtype=np.int32), counts)
    out = np.full(size, -1, dtype=np.int32)
    length = min(size, total)
    out[:length] = np.roll(component, -shift)[_ranks(total)[:length]]
    return out
