"""The choice between NumPy and compiled kernels. It changes how long things take, nothing else.

Compiled kernels are the same routines under `jax.jit`, pinned to a CPU device: the accelerator
that trains is never queued on. JAX is imported, and its CPU client made, when the first kernel
runs and not before, so that `jax.distributed.initialize` is still possible until then.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from zephon_jax import permutation, quota, swrr

__all__ = [
    "BACKENDS",
    "advance_carry",
    "compiled",
    "finish_compiling",
    "quota_rows",
    "rounds",
    "swrr_orders",
    "use_backend",
]

BACKENDS = ("numpy", "jax")
_MAX_RARE = 64  # up to here following the rare components alone is faster than stepping all
_ROWS = 32  # chunks whose round robins are computed side by side
_WALKED = 2048  # chunks; up to here stepping takes less time than to start a compiler
_SCAN = 8192  # chunks of one compiled scan
_LEAST = 2048  # elements for which calling a kernel pays
_MOST = 1 << 18  # permutations whose fields are put on the device
_MAX_GRIDS = 16
_chosen = "numpy"
_kernels: dict[tuple[Any, ...], Future[Callable[..., Any]]] = {}
_columns: dict[int, tuple[Any, Any]] = {}
_forked = False


def use_backend(name: str) -> None:
    """Chooses what this process computes schedules with; the order is the same either way.

    Args:
      name: "numpy" (the default) or "jax", which compiles kernels for a CPU device.

    Raises:
      ValueError: For another name.

    Example:
      >>> import zephon_jax as zx
      >>> zx.use_backend("numpy")
    """
    global _chosen
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {BACKENDS}; got {name!r}.")
    if name == "jax" and _forked:
        warnings.warn(
            "JAX does not work in a forked process: schedules are computed with NumPy here, in the"
            " same order. Start processes by spawn to compile in them.",
            stacklevel=2,
        )
        name = "numpy"
    if name == "jax":
        import jax  # noqa: F401  # here, not in the compiler's thread, where it could be seen half done
    _chosen = name


def _forget() -> None:
    """In a forked process: JAX's threads are not there, so NumPy does the work."""
    global _chosen, _forked, _columns
    _chosen, _forked = "numpy", True
    _kernels.clear()
    _columns = {}


os.register_at_fork(after_in_child=_forget)


@functools.cache
def _cpu() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0]


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="zephon_jax compiler")


def _run(kernel: Callable[..., Any], *args: Any) -> Any:
    import jax

    # Settings of the program around are for its own arrays.
    with (
        jax.default_device(_cpu()), jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow")
    ):  # fmt: skip
        return kernel(*args)


def _compile(function: Callable[..., Any], *args: np.ndarray) -> Callable[..., Any]:
    import jax

    kernel = jax.jit(function)
    jax.block_until_ready(_run(kernel, *args))
    return kernel


def _kernel(
    name: tuple[Any, ...], function: Callable[..., Any], example: Callable[[], tuple[Any, ...]],
    *, wait: bool = False,
) -> Callable[..., Any] | None:  # fmt: skip
    """A compiled function, or None while a thread still compiles it: nothing waits for that."""
    if name not in _kernels:
        _kernels[name] = _compiler().submit(_compile, function, *example())
    return _kernels[name].result() if wait or _kernels[name].done() else None


def finish_compiling() -> None:
    """Waits until the kernels that were asked for are compiled, as a benchmark wants it."""
    for future in list(_kernels.values()):
        future.result()


def compiled() -> list[tuple[Any, ...]]:
    """The names of the kernels that are ready: what they are for and the sizes they take."""
    return [name for name, future in list(_kernels.items()) if future.done()]


# Reading orders


def swrr_orders(counts: np.ndarray, size: int) -> list[np.ndarray]:
    """Round robin orders of counts (B, k), each of its row's own length, in any integer type."""
    num_rows, k = counts.shape
    lengths = counts.sum(axis=1).tolist()
    kernel = None
    if _chosen == "jax" and swrr.can_pack(k, size):
        order = functools.partial(swrr.order_packed, size=size)
        kernel = _kernel(("swrr", k, size), order, lambda: (np.zeros((k, _ROWS), dtype=np.int32),))
    if kernel is None:
        orders = swrr.order(counts, size)
        return [row[:length] for row, length in zip(orders, lengths, strict=True)]
    found = []
    for first in range(0, num_rows, _ROWS):
        block = np.zeros((k, _ROWS), dtype=np.int32)
        block[:, : min(_ROWS, num_rows - first)] = counts[first : first + _ROWS].T
        columns = np.ascontiguousarray(np.asarray(_run(kernel, block)).T)
        rows = zip(columns, lengths[first : first + _ROWS], strict=False)
        found += [row[:length] for row, length in rows]
    return found


# Permutations


def rounds() -> Callable[..., np.ndarray]:
    """What takes many elements once through the rounds of their permutations."""
    return _compiled_trip if _chosen == "jax" else permutation.first_trip


def _trip(index: Any, rows: Any, columns: Any) -> Any:
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


def _columns_of(grid: permutation.Grid) -> Any:
    """A grid's fields on the CPU device, kept for the next chunk: uint32 (9, T)."""
    global _columns
    name = id(grid.round_keys)
    known = _columns.get(name)
    if known is not None and known[0] is grid.round_keys:
        return known[1]
    import jax

    num = grid.round_keys[0].size
    columns = np.zeros((3 + len(grid.round_keys), _padded_rows(num)), dtype=np.uint32)
    for column, field in zip(columns, (*grid[1:4], *grid.round_keys), strict=True):
        column[:num] = field
    placed = jax.device_put(columns, _cpu())
    # One assignment: another thread sees the old ones or the new ones.
    kept = list(_columns.items())[1 - _MAX_GRIDS :]
    _columns = {**dict(kept), name: (grid.round_keys, placed)}
    return placed


def _compiled_trip(index: np.ndarray, rows: np.ndarray, grid: permutation.Grid) -> np.ndarray:
    num, size = grid.round_keys[0].size, _padded(index.size)
    usual = index.dtype == np.uint32 and len(grid.round_keys) == 2 * permutation.PAIRS
    if not usual or index.size < _LEAST or num > _MOST:
        return permutation.first_trip(index, rows, grid)

    def example() -> tuple[np.ndarray, ...]:
        none = np.zeros(size, dtype=np.uint32)
        return none, none.view(np.int32), _columns_of(grid)

    kernel = _kernel(("rounds", size, _padded_rows(num)), _trip, example)
    if kernel is None:
        return permutation.first_trip(index, rows, grid)
    padded = np.zeros((2, size), dtype=np.uint32)
    padded[0, : index.size], padded[1, : index.size] = index, rows
    out = _run(kernel, padded[0], padded[1].view(np.int32), _columns_of(grid))
    return np.array(out)[: index.size]


# Quotas


def _advance(shares: quota.Shares, carry: Any, num_chunks: Any) -> Any:
    import jax

    return jax.lax.fori_loop(0, num_chunks, lambda _, c: quota.step(shares, c)[1], carry)


def advance_carry(shares: quota.Shares, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The carry after `stop` chunks, from the one after `start` of them: int32 (k,)."""
    if quota.rare_components(shares).size <= _MAX_RARE:
        return quota.forward(shares, carry, start, stop)
    num_chunks = np.asarray(stop - start, dtype=np.int32)
    if _chosen == "jax":
        kernel = _kernel(
            ("advance", carry.size), _advance, lambda: (shares, carry, num_chunks),
            wait=stop - start > _WALKED,
        )  # fmt: skip
        if kernel is not None:
            return np.array(_run(kernel, shares, carry, num_chunks))
    for _ in range(stop - start):
        carry = quota.step(shares, carry)[1]
    return carry


def _scan_quotas(shares: quota.Shares, carry: Any) -> Any:
    import jax

    def step(carry: Any, _: Any) -> Any:
        quotas, carry = quota.step(shares, carry)
        return carry, (quotas, carry)

    return jax.lax.scan(step, carry, length=_SCAN)[1]


def quota_rows(
    shares: quota.Shares, carry: np.ndarray, num_chunks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Quotas of consecutive chunks and the carry after each: int32 (n, k) both.

    Long stretches are scanned by a compiled kernel whatever the choice: it takes a fiftieth of the
    time.
    """
    if _forked or (num_chunks <= _WALKED and _chosen != "jax"):
        rows = np.empty((2, num_chunks, carry.size), dtype=np.int32)
        for n in range(num_chunks):
            rows[0, n], carry = quota.step(shares, carry)
            rows[1, n] = carry
        return rows[0], rows[1]
    name = ("quotas", carry.size)
    kernel = _kernel(name, _scan_quotas, lambda: (shares, carry), wait=True)
    assert kernel is not None
    parts = []
    for begin in range(0, num_chunks, _SCAN):
        quotas, carries = (np.asarray(part) for part in _run(kernel, shares, carry))
        parts.append((quotas[: num_chunks - begin], carries[: num_chunks - begin]))
        carry = carries[-1]
    return np.concatenate([q for q, _ in parts]), np.concatenate([c for _, c in parts])
