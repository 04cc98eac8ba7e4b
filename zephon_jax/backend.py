"""The choice between NumPy and compiled kernels. It changes how long things take, nothing else.

Compiled kernels are the same routines under `jax.jit`, pinned to a CPU device: the accelerator
that trains is never queued on. JAX is imported, and its CPU client made, when the first kernel
runs and not before, so that `jax.distributed.initialize` is still possible until then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from zephon_jax import permutation, quota, swrr

__all__ = ["BACKENDS", "advance_carry", "rounds", "swrr_orders", "use_backend"]

BACKENDS = ("numpy", "jax")
_MAX_RARE = 64  # up to here following the rare components alone is faster than stepping all
_chosen = "numpy"


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
    _chosen = name


@functools.cache
def _cpu() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0]


def _run(kernel: Callable[..., Any], *args: Any) -> Any:
    import jax

    with jax.default_device(_cpu()):
        return kernel(*args)


@functools.lru_cache(maxsize=32)
def _swrr_kernel(size: int) -> Callable[..., Any]:
    import jax

    return jax.jit(functools.partial(swrr.order, size=size))


@functools.cache
def _advance_kernel() -> Callable[..., Any]:
    import jax

    def advance(shares: quota.Shares, carry: Any, num_chunks: Any) -> Any:
        return jax.lax.fori_loop(0, num_chunks, lambda _, c: quota.step(shares, c)[1], carry)

    return jax.jit(advance)


def rounds() -> Callable[..., np.ndarray]:
    """What takes many elements once through the rounds of their permutations."""
    return permutation.first_trip


def swrr_orders(counts: np.ndarray, size: int) -> np.ndarray:
    """Round robin orders of counts (B, k): int32 (B, size), -1 past a row's end."""
    if _chosen == "jax":
        return np.asarray(_run(_swrr_kernel(size), counts))
    return swrr.order(counts, size)


def advance_carry(shares: quota.Shares, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The carry after `stop` chunks, from the one after `start` of them: int32 (k,)."""
    if quota.rare_components(shares).size <= _MAX_RARE:
        return quota.forward(shares, carry, start, stop)
    if _chosen == "jax":
        return np.array(_run(_advance_kernel(), shares, carry, np.int32(stop - start)))
    for _ in range(stop - start):
        carry = quota.step(shares, carry)[1]
    return carry
