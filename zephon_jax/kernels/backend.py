"""The choice between NumPy and compiled kernels. It changes how long things take, nothing else.

Compiled kernels are the same routines under `jax.jit`, pinned to a CPU device: the accelerator
that trains is never queued on. Where a kernel is not compiled yet, or cannot be, NumPy does the
work, so that nobody waits and nothing fails.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.kernels import compiled as kernels
from zephon_jax.kernels import permutation, swrr
from zephon_jax.kernels.compiled import compiled, finish_compiling

if TYPE_CHECKING:
    import jax

__all__ = [
    "BACKENDS",
    "compiled",
    "finish_compiling",
    "rounds",
    "swrr_orders",
    "use_backend",
]

BACKENDS = ("numpy", "jax")
_ROWS = 32  # chunks whose round robins are computed side by side
_LEAST = 2048  # elements for which calling a kernel pays
_MOST = 1 << 18  # permutations whose fields are put on the device
_MAX_GRIDS = 16
_chosen = "numpy"
_columns: dict[int, tuple[tuple[np.ndarray, ...], np.ndarray | jax.Array]] = {}


def use_backend(name: str) -> None:
    """Chooses what this process computes schedules with; the order is the same either way.

    JAX's CPU client is made when the first kernel is compiled, not here, so that
    `jax.distributed.initialize` is still possible until then. Settings of the program (a mesh, a
    default device, guards, flags) do not reach the kernels. Where nothing can be compiled, as
    where JAX_PLATFORMS leaves out the CPU, a warning says why and NumPy goes on.

    Args:
      name: "numpy" (the default) or "jax", which compiles kernels for a CPU device.

    Raises:
      ValueError: For another name.

    Example:
      >>> import zephon_jax as zx
      >>> zx.use_backend("numpy")
    """
    global _chosen
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(f"the backend's name must be one of {BACKENDS}; got {short(name)}.")
    if name == "jax":
        reason = kernels.start()
        if reason is not None:
            warn(f"{reason}. Schedules are computed with NumPy here, in the same order.")
            name = "numpy"
    _chosen = name


def _forget() -> None:
    """In a forked process: JAX's threads are not there, so NumPy does the work."""
    global _chosen, _columns
    _chosen = "numpy"
    _columns = {}


os.register_at_fork(after_in_child=_forget)


# Reading orders


def swrr_orders(counts: np.ndarray, size: int) -> list[np.ndarray]:
    """Round robin orders of counts (B, k), each of its row's own length, in any integer type."""
    num_rows, k = counts.shape
    lengths = counts.sum(axis=1).tolist()

    def side_by_side(kernel: kernels.Kernel) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for first in range(0, num_rows, _ROWS):
            block = np.zeros((k, _ROWS), dtype=np.int32)
            block[:, : min(_ROWS, num_rows - first)] = counts[first : first + _ROWS].T
            found += list(np.ascontiguousarray(kernel(block).T))
        return found

    orders = None
    if _chosen == "jax" and swrr.can_pack(k, size):
        order = functools.partial(swrr.order_packed, size=size)
        example = kernels.like((k, _ROWS), np.int32)
        orders = kernels.attempt(("swrr", k, size), order, (example,), side_by_side)
    if orders is None:
        orders = swrr.order(counts, size)
    return [row[:length] for row, length in zip(orders, lengths, strict=False)]


# Permutations


def rounds() -> Callable[..., np.ndarray]:
    """What takes many elements once through the rounds of their permutations."""
    return _compiled_trip if _chosen == "jax" else permutation.first_trip


def _trip(index: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """The rounds on JAX arrays: elements uint32 (n,), their rows int32 (n,), fields (9, T)."""
    import jax.numpy as jnp

    shift, mask, num_rows, *keys = (
        column.at[rows].get(mode="promise_in_bounds") for column in columns
    )
    grid = permutation.Grid(shift, shift, mask, num_rows, shift, tuple(keys))
    return permutation.round_trip(jnp, index, grid, inverse=False)


def _padded(number: int) -> int:
    """The next of four sizes an octave, so that few kernels serve all."""
    step = max(256, 1 << max(0, (number - 1).bit_length() - 2))
    return -(-number // step) * step


def _padded_rows(number: int) -> int:
    """The next power of four: what lies past the rows is never looked at."""
    return 1 << max(8, (number - 1).bit_length() + 1 & ~1)


def _columns_of(grid: permutation.Grid) -> np.ndarray | jax.Array:
    """A grid's fields, uint32 (9, T): on the CPU device from the second question on.

    Most grids serve one question only, and to put them there costs as much as a kernel.
    """
    global _columns
    name, num = id(grid.round_keys), grid.round_keys[0].size
    known = _columns.get(name)
    if known is None or known[0] is not grid.round_keys:
        columns = np.zeros((3 + len(grid.round_keys), _padded_rows(num)), dtype=np.uint32)
        for column, field in zip(columns, (*grid[1:4], *grid.round_keys), strict=True):
            column[:num] = field
    elif isinstance(known[1], np.ndarray):
        columns = kernels.place(known[1])
    else:
        return known[1]
    # One assignment: another thread sees the old ones or the new ones.
    kept = list(_columns.items())[1 - _MAX_GRIDS :]
    _columns = {**dict(kept), name: (grid.round_keys, columns)}
    return columns


def _compiled_trip(index: np.ndarray, rows: np.ndarray, grid: permutation.Grid) -> np.ndarray:
    num, size = grid.round_keys[0].size, _padded(index.size)
    usual = index.dtype == np.uint32 and len(grid.round_keys) == 2 * permutation.PAIRS
    if not usual or index.size < _LEAST or num > _MOST:
        return permutation.first_trip(index, rows, grid)

    num_rows = _padded_rows(num)
    words = kernels.like((size,), np.uint32)
    fields = kernels.like((3 + len(grid.round_keys), num_rows), np.uint32)
    example = words, words.view(np.int32), fields

    def once_round(kernel: kernels.Kernel) -> np.ndarray:
        padded = np.zeros((2, size), dtype=np.uint32)
        padded[0, : index.size], padded[1, : index.size] = index, rows
        out = kernel(padded[0], padded[1].view(np.int32), _columns_of(grid))
        return np.array(out[: index.size])

    out = kernels.attempt(("rounds", size, num_rows), _trip, example, once_round)
    return permutation.first_trip(index, rows, grid) if out is None else out
