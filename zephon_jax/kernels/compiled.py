"""Functions compiled for one CPU device, out of reach of the settings of the program around.

They are compiled ahead of time, in a thread of their own, for the first CPU device of this
process. What is compiled so takes no notice of a mesh, a default device or a trace around its
calls. Where there is no such device, or JAX refuses, NumPy does the work: the order is the same.
JAX is imported, and its CPU client made, when the first function is compiled and not before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

__all__ = ["attempt", "compiled", "finish_compiling", "like", "place", "start", "why_not"]

_compiled: dict[tuple[Any, ...], Future[Callable[..., Any]]] = {}
_forked = False
_failed = False


def _forget() -> None:
    """In a forked process: JAX's threads are not there."""
    global _forked
    _forked = True
    _compiled.clear()


os.register_at_fork(after_in_child=_forget)


def why_not() -> str | None:
    """Why nothing can be compiled in this process, as far as that is known without trying."""
    if _forked:
        return "JAX does not work in a forked process. Start processes by spawn to compile in them"
    import jax  # here, not in the compiler's thread, where it could be seen half done

    platforms = getattr(jax.config, "jax_platforms", None)
    if platforms and "cpu" not in platforms.split(","):
        return f"JAX_PLATFORMS = {platforms!r} leaves out the CPU. Add it: '{platforms},cpu'"
    return None


def start() -> str | None:
    """Tries anew after a failure; returns why nothing can be compiled here."""
    global _failed
    _failed = False
    return why_not()


@functools.cache
def _device() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0]


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="zephon_jax compiler")


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Settings of the program around are for its own arrays."""
    import jax

    with (
        jax.disable_jit(False), jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):  # fmt: skip
        yield


def like(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that stands for all of this shape and type, without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _compile(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    import jax

    sharding = jax.sharding.SingleDeviceSharding(_device())
    specs = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), args
    )
    with _own_settings():
        ready = jax.jit(function).lower(*specs).compile()

    def call(*args: Any) -> Any:
        with _own_settings():
            return jax.tree.map(np.asarray, ready(*args))

    return call


def attempt(
    name: tuple[Any, ...],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    work: Callable[[Callable[..., Any]], Any],
    *,
    wait: bool = False,
) -> Any:
    """Does some work with a compiled function.

    Args:
      name: What the function is for and the sizes it takes.
      function: Takes and returns pytrees of JAX arrays.
      args: Pytrees of arrays of the shapes and types that it will be given.
      work: Gets the compiled function, which takes pytrees of arrays and returns NumPy arrays.
      wait: Wait for the compiler. Otherwise a thread compiles and nobody waits.

    Returns:
      What `work` returned, or None while the function is not compiled or where it cannot be.
    """
    # A thread that Python did not start runs a callback of a JAX program. The CPU's threads may
    # all be waiting for that, and a kernel would wait for one of them.
    if _forked or _failed or isinstance(threading.current_thread(), threading._DummyThread):
        return None
    try:
        future = _compiled.get(name)
        if future is None:
            reason = why_not()
            if reason is not None:
                raise RuntimeError(reason)
            future = _compiled[name] = _compiler().submit(_compile, function, args)
        if not (wait or future.done()):
            return None
        return work(future.result())
    except Exception as error:
        _give_up(error)
        return None


def _give_up(error: Exception) -> None:
    global _failed
    if not _failed:
        _failed = True
        _compiled.clear()
        warnings.warn(
            "compiled kernels do not work here: schedules are computed with NumPy, in the same"
            f" order. {type(error).__name__}: {error}",
            stacklevel=4,
        )


def place(array: np.ndarray) -> Any:
    """Puts an array on the device for many calls."""
    import jax

    with _own_settings(), jax.ensure_compile_time_eval():
        return jax.device_put(array, _device())


def finish_compiling() -> None:
    """Waits until the functions that were asked for are compiled, as a benchmark wants it."""
    for future in list(_compiled.values()):
        future.exception()


def compiled() -> list[tuple[Any, ...]]:
    """The names of the functions that are ready."""
    return [name for name, future in list(_compiled.items()) if future.done()]
