"""A keyed permutation of [0, size), computed position by position.

Nothing is materialized: place `i` of the shuffled order is `permute(i, size, key)`, whatever the
size, and `invert` goes the other way. An index is written as a cell (left, right) of a grid of
2^h columns, about the square root of the size, by as many rows as are needed. Rounds alternate
between xor of a hash of the row into the column and addition, modulo the rows, of a hash of the
column into the row: an unbalanced Feistel network whose second half is modular, so the grid
wastes less than one row. The few cells past the size are walked through until the
result is in range, and half of the keys exchange the first two results, since rounds alone give
only even orders at some sizes. Three pairs of rounds shuffle well above 64; below, where a few
rounds reach only some of the orders, there are twelve.

References:
  J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), for cycle walking;
  M. Bellare, T. Ristenpart, P. Rogaway and T. Stegers, "Format-Preserving Encryption" (2009),
  for Feistel networks over Z_a x Z_b.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX, Array, Namespace, as_int, has_x64, is_jax, namespace
from zephon_jax.kernels.keys import make_key, mix32

__all__ = [
    "MAX_SIZE",
    "PAIRS",
    "SMALL",
    "Grid",
    "Grids",
    "first_trip",
    "invert",
    "make_grids",
    "make_key",
    "permute",
    "permute_each",
    "permute_rows",
    "round_trip",
]

MAX_SIZE = MAX_INDEX
_MAX_SIZE_32 = 1 << 31  # up to here rows and columns stay within 16 bits
SMALL = 64
PAIRS, _PAIRS_SMALL = 3, 12
_STRETCH = 1 << 15  # elements whose words stay in the processor's cache
_GOLDEN = 0x9E3779B9


class Grid(NamedTuple):
    """One permutation, or a row of them: each field broadcasts against the index."""

    size: Array  # number of positions, in words as wide as the index
    shift: Array  # h, the bits of the column, in the same words
    mask: Array  # uint32, 2^h - 1
    rows: Array  # uint32, number of rows, 2^31 at most
    flip: Array  # 1 where the first two results change places, else 0, in the same words
    round_keys: tuple[Array, ...]  # uint32, two for each pair of rounds


def _bit_length(xp: Namespace, value: Array) -> Array:
    """Bits of unsigned integers, by halving: no float decides."""
    bits = xp.zeros_like(value)
    for step in (32, 16, 8, 4, 2, 1):
        if step < 8 * value.dtype.itemsize:
            big = (value >> value.dtype.type(step)) > 0
            bits = bits + xp.where(big, value.dtype.type(step), value.dtype.type(0))
            value = xp.where(big, value >> value.dtype.type(step), value)
    return bits + (value > 0)


def _make_grid(xp: Namespace, size: Array, key: Array, pairs: int) -> Grid:
    """Grids for unsigned sizes (T,) or () and keys (T, 2) or (2,)."""
    word = size.dtype.type
    shift = (_bit_length(xp, size - word(1)) >> word(1)).astype(size.dtype)
    mask = (xp.ones_like(size) << shift) - word(1)
    rows = (size + mask) >> shift
    first, second = xp.atleast_1d(key[..., 0]), xp.atleast_1d(key[..., 1])
    rounds = np.arange(1, 2 * pairs + 1, dtype=np.uint32)[:, None] * np.uint32(_GOLDEN)
    round_keys = mix32(mix32(first[None] + rounds) ^ second[None])
    # Rounds move whole rows and columns, so at some sizes all orders would be even ones.
    flip = (mix32(mix32(first) ^ second) & np.uint32(1)).astype(size.dtype) & (size > word(1))
    mask, rows = mask.astype(xp.uint32), rows.astype(xp.uint32)
    return Grid(size, shift, mask, rows, flip, tuple(round_keys))


def _scale(hashed: Array, rows: Array, wide: bool) -> Array:
    """Floor of hashed * rows / 2^32; rows above 2^16 need 64 bits on the way."""
    if wide:
        product = hashed.astype(np.uint64) * rows.astype(np.uint64)
        return (product >> np.uint64(32)).astype(np.uint32)
    half = np.uint32(16)
    low = ((hashed & np.uint32(0xFFFF)) * rows) >> half
    return ((hashed >> half) * rows + low) >> half


def round_trip(xp: Namespace, index: Array, grid: Grid, inverse: bool) -> Array:
    """One walk through all rounds, within the cells of the grid."""
    word, wide = index.dtype, index.dtype.itemsize == 8
    # Halves are 32-bit words whatever the index is: most of the work is on them.
    left, right = index.astype(xp.uint32) & grid.mask, (index >> grid.shift).astype(xp.uint32)
    pairs = range(len(grid.round_keys) // 2)
    for i in reversed(pairs) if inverse else pairs:
        row_key, column_key = grid.round_keys[2 * i], grid.round_keys[2 * i + 1]
        if not inverse:
            left = left ^ (mix32(right ^ row_key) & grid.mask)
        step = _scale(mix32(left ^ column_key), grid.rows, wide)
        # The smaller of the two is the one that did not wrap around zero.
        if inverse:
            right = xp.minimum(right - step, right - step + grid.rows)
            left = left ^ (mix32(right ^ row_key) & grid.mask)
        else:
            right = right + step
            right = xp.minimum(right, right - grid.rows)
    return (right.astype(word) << grid.shift) | left.astype(word)


def _take(grid: Grid, where: np.ndarray) -> Grid:
    """The grids of some elements: fields of one element serve all."""
    taken = [
        field if field.size == 1 else field.take(where) for field in (*grid[:-1], *grid.round_keys)
    ]
    return Grid(*taken[: len(grid) - 1], round_keys=tuple(taken[len(grid) - 1 :]))


def _map(xp: Namespace, index: Array, grid: Grid, inverse: bool) -> Array:
    """Rounds, and an exchange of the first two results that half of the keys make."""

    def exchange(value: Array) -> Array:
        return value ^ xp.where(value < value.dtype.type(2), grid.flip, value.dtype.type(0))

    if inverse:
        return _walk(xp, exchange(index), grid, inverse)
    return exchange(_walk(xp, index, grid, inverse))


def _walk(xp: Namespace, index: Array, grid: Grid, inverse: bool) -> Array:
    """Goes round until every element is below its size."""
    out = round_trip(xp, index, grid, inverse)
    if xp is not np:

        def outside_of(value: Array) -> Array:
            return xp.any(value >= grid.size)

        def again_outside(value: Array) -> Array:
            return xp.where(value >= grid.size, round_trip(xp, value, grid, inverse), value)

        return sys.modules["jax"].lax.while_loop(outside_of, again_outside, out)
    (outside,) = np.nonzero(out >= grid.size)
    while outside.size:
        part = _take(grid, outside)
        again = round_trip(xp, out[outside], part, inverse)
        out[outside] = again
        outside = outside[again >= part.size]
    return out


def _check(index: Array, size: int, key: Array) -> None:
    if index.size and index.dtype.kind not in "iu":
        raise TypeError(f"index must hold integers; got dtype {index.dtype}.")
    if is_jax(index) or is_jax(key):
        if size > _MAX_SIZE_32 and not has_x64():
            raise ValueError(
                f"permutations above 2^31 positions need 64-bit integers; got size = {size} and a"
                " JAX array without x64. Enable jax_enable_x64, or pass NumPy arrays."
            )
        return
    if index.size and (index.min() < 0 or index.max() >= size):
        bad = index.min() if index.min() < 0 else index.max()
        raise IndexError(f"index must be in [0, {size}); got {bad}.")


def _apply(index: Array, size: int, key: Array, inverse: bool) -> Array:
    size = as_int(size, "size", 1, MAX_SIZE)
    xp = namespace(index, key)
    index, key = xp.asarray(index), xp.asarray(key)
    _check(index, size, key)
    if index.dtype.kind not in "iu":
        index = index.astype(int)  # NumPy takes an empty list for floats
    if key.dtype != xp.uint32 or key.ndim < 1 or key.shape[-1] != 2:
        raise ValueError(f"key must be uint32 of shape (..., 2); got {key.dtype} {key.shape}.")
    word = xp.uint64 if size > _MAX_SIZE_32 else xp.uint32
    shape = xp.broadcast_shapes(index.shape, key.shape[:-1])
    flat = xp.broadcast_to(index, shape).reshape(-1).astype(word)
    keys = key if key.ndim == 1 else xp.broadcast_to(key, (*shape, 2)).reshape(-1, 2)
    sizes = xp.asarray([size], dtype=word)
    grid = _make_grid(xp, sizes, keys, _PAIRS_SMALL if size <= SMALL else PAIRS)
    out = _map(xp, flat, grid, inverse)
    fits = size - 1 <= xp.iinfo(index.dtype).max
    return out.reshape(shape).astype(index.dtype if fits else xp.int64)


def permute(index: Array, size: int, key: Array) -> Array:
    """Maps places of a shuffled order to what lies there.

    Args:
      index: Integers in [0, size), of any shape. JAX arrays are not range-checked.
      size: Number of positions, 1 to 2^62, a Python int (static under `jit`).
      key: uint32 (2,) from `make_key`, or (..., 2) with a key for each element.

    Returns:
      An array of the shape of `index` (broadcast with the keys) and of its dtype, or int64 where
      that dtype is too narrow. `permute(arange(size), size, key)` holds every position once.

    Raises:
      ValueError: If `size` is out of range, or above 2^31 for JAX arrays without x64.
      IndexError: If a NumPy index lies outside [0, size).

    Example:
      >>> import numpy as np
      >>> from zephon_jax import permutation
      >>> order = permutation.permute(np.arange(10), 10, permutation.make_key(0, "demo"))
      >>> sorted(order.tolist()) == list(range(10))
      True
    """
    return _apply(index, size, key, inverse=False)


def invert(index: Array, size: int, key: Array) -> Array:
    """Maps what lies in a shuffled order back to its place: the inverse of `permute`.

    Args, Returns and Raises are those of `permute`.

    Example:
      >>> import numpy as np
      >>> from zephon_jax import permutation
      >>> key = permutation.make_key(7, "demo")
      >>> there = permutation.permute(np.arange(100), 100, key)
      >>> np.array_equal(permutation.invert(there, 100, key), np.arange(100))
      True
    """
    return _apply(index, size, key, inverse=True)


def permute_each(index: Array, size: Array, key: Array, *, small: bool = True) -> Array:
    """`permute` in JAX with a size for each element, which may be traced.

    Rounds are a loop here: unrolled, all of a schedule's permutations take many seconds to compile.

    Args:
      index: Integers (n,), each in [0, its size).
      size: Integers (n,), 1 to 2^31.
      key: uint32 (n, 2).
      small: False where no size is 64 or less.

    Returns:
      uint32 JAX array (n,).
    """
    jax = sys.modules["jax"]
    xp = jax.numpy
    index, size = xp.asarray(index).astype(xp.uint32), xp.asarray(size).astype(xp.uint32)
    key = xp.asarray(key)
    grid, first, second = _make_grid(xp, size, key, 0), key[:, 0], key[:, 1]
    pairs = xp.where(size <= SMALL, np.uint32(_PAIRS_SMALL), np.uint32(PAIRS))

    def round_key(number: Array) -> Array:
        return mix32(mix32(first + number * np.uint32(_GOLDEN)) ^ second)

    def one_pair(number: Array, value: Array) -> Array:
        number = xp.asarray(number, dtype=xp.uint32)
        keys = round_key(2 * number + 1), round_key(2 * number + 2)
        moved = round_trip(xp, value, grid._replace(round_keys=keys), inverse=False)
        return xp.where(number < pairs, moved, value)

    def again(at: tuple[Array, Array]) -> tuple[Array, Array]:
        value, inside = at
        moved = jax.lax.fori_loop(0, _PAIRS_SMALL if small else PAIRS, one_pair, value)
        value = xp.where(inside, value, moved)
        return value, value < size

    def some_outside(at: tuple[Array, Array]) -> Array:
        return xp.any(~at[1])

    start = index, xp.zeros(index.shape, dtype=bool)
    value, _ = jax.lax.while_loop(some_outside, again, start)
    return value ^ xp.where(value < np.uint32(2), grid.flip, np.uint32(0))


class Grids(NamedTuple):
    """Many permutations ready to be applied, a row each. Made by `make_grids`."""

    small: np.ndarray | None  # bool (T,), rows of few positions; None where all are of one kind
    place: np.ndarray | None  # int64 (T,), the row's place among those of its kind
    kinds: tuple[Grid, ...]  # of all rows, or of the large and of the small ones


def make_grids(sizes: np.ndarray, keys: np.ndarray) -> Grids:
    """Prepares permutations for `permute_rows`, on the host.

    Args:
      sizes: int64 (T,), at least 1 each.
      keys: uint32 (T, 2).
    """
    small = sizes <= SMALL
    if small.any() and not small.all():
        place = np.where(small, np.cumsum(small), np.cumsum(~small)) - 1
        kinds = (make_grids(sizes[mine], keys[mine]).kinds[0] for mine in (~small, small))
        return Grids(small, place, tuple(kinds))
    word = np.uint64 if sizes.max(initial=1) > _MAX_SIZE_32 else np.uint32
    same = sizes[:1] if sizes.size and (sizes == sizes[0]).all() else sizes
    pairs = _PAIRS_SMALL if small.any() else PAIRS
    return Grids(None, None, (_make_grid(np, same.astype(word), keys, pairs),))


def first_trip(index: np.ndarray, rows: np.ndarray, grid: Grid) -> np.ndarray:
    """Takes each element once through the rounds of its row's permutation, in NumPy."""
    out = np.empty_like(index)
    for begin in range(0, index.size, _STRETCH):
        part = slice(begin, begin + _STRETCH)
        out[part] = round_trip(np, index[part], _take(grid, rows[part]), inverse=False)
    return out


def permute_rows(
    index: np.ndarray,
    rows: np.ndarray,
    grids: Grids,
    trip: Callable[[np.ndarray, np.ndarray, Grid], np.ndarray] = first_trip,
) -> np.ndarray:
    """Permutes elements that belong to many permutations at once, on the host.

    Args:
      index: Integers (n,), each below the size of its permutation.
      rows: int64 (n,), the permutation of each element.
      grids: From `make_grids`.
      trip: What goes through the rounds once; a compiled kernel can take its place.

    Returns:
      int64 (n,): the bits of `permute(index[i], sizes[rows[i]], keys[rows[i]])`.
    """
    if grids.small is not None and grids.place is not None:
        out = np.empty(index.shape, dtype=np.int64)
        small = grids.small.take(rows)
        for grid, mine in zip(grids.kinds, (np.flatnonzero(~small), np.flatnonzero(small)),
                              strict=True):  # fmt: skip
            part = grids.place.take(rows.take(mine))
            out[mine] = permute_rows(index[mine], part, Grids(None, None, (grid,)), trip)
        return out
    (grid,) = grids.kinds
    out = trip(index.astype(grid.size.dtype), rows, grid)
    size = grid.size if grid.size.size == 1 else grid.size.take(rows)
    outside = np.flatnonzero(out >= size)
    while outside.size:
        part = _take(grid, rows.take(outside))
        again = round_trip(np, out.take(outside), part, inverse=False)
        out[outside] = again
        outside = outside[again >= part.size]
    flipped = np.flatnonzero(out < 2)
    if flipped.size:
        out[flipped] ^= _take(grid, rows.take(flipped)).flip
    return out.astype(np.int64)
