"""Functions compiled for one CPU device, out of reach of the settings of the program around.

They are compiled ahead of time, in a thread of their own, for the first CPU device of this
process. What is compiled so takes no notice of a mesh, a default device or a trace around its
calls. Where there is no such device, or JAX refuses, NumPy does the work: the order is the same.
JAX is imported, and its CPU client made, when the first function is compiled and not before.
"""

# JAX does not say all of its types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from zephon_jax._warn import warn

if TYPE_CHECKING:
    import jax

__all__ = [
    "attempt",
    "compiled",
    "device",
    "finish_compiling",
    "forget",
    "like",
    "place",
    "start",
    "why_not",
]

Name: TypeAlias = tuple[Hashable, ...]  # what a function is for, and the sizes it takes
R = TypeVar("R")


class Kernel(Protocol):
    """A compiled function of arrays, of NumPy or put on the device by `place`."""

    def __call__(self, *args: np.ndarray | jax.Array) -> np.ndarray:
        """Its result, an array of NumPy."""
        ...


_compiled: dict[Name, Future[Kernel]] = {}
_forked = False
_failed = False


def forget() -> None:
    """Forgets what was compiled: whoever asks for it next has it compiled anew."""
    _compiled.clear()


def _after_fork() -> None:
    """JAX's threads are not there."""
    global _forked
    _forked = True
    forget()


os.register_at_fork(after_in_child=_after_fork)


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
def device() -> object:
    """The CPU device of this process that everything is compiled for."""
    import jax

    return jax.local_devices(backend="cpu")[0]


@functools.cache
def _compiler() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="zephon_jax compiler")


@contextlib.contextmanager
def _own_settings() -> Generator[None]:
    """Settings of the program around are for its own arrays."""
    import jax

    with (
        jax.disable_jit(False), jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):  # fmt: skip
        yield


def like(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array that stands for all of this shape and type, without memory of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _compile(function: Callable[..., jax.Array], args: Sequence[np.ndarray]) -> Kernel:
    import jax

    sharding = jax.sharding.SingleDeviceSharding(device())
    specs = [jax.ShapeDtypeStruct(arg.shape, arg.dtype, sharding=sharding) for arg in args]
    with _own_settings():
        ready = jax.jit(function).lower(*specs).compile()

    def call(*args: np.ndarray | jax.Array) -> np.ndarray:
        with _own_settings():
            return np.asarray(ready(*args))

    return call


def _started_by_python() -> bool:
    """False in a thread that runs a callback of a JAX program, or another library's call."""
    kind = type(threading.current_thread())
    return kind.__name__ != "_DummyThread" or kind.__module__ != "threading"


def attempt(
    name: Name,
    function: Callable[..., jax.Array],
    args: Sequence[np.ndarray],
    work: Callable[[Kernel], R],
    *,
    wait: bool = False,
) -> R | None:
    """Does some work with a compiled function.

    Args:
      name: What the function is for and the sizes it takes.
      function: Takes JAX arrays and returns one.
      args: Arrays of the shapes and types that it will be given.
      work: Gets the compiled function, which takes arrays and returns one of NumPy.
      wait: Wait for the compiler. Otherwise a thread compiles and nobody waits.

    Returns:
      What `work` returned, or None while the function is not compiled or where it cannot be.
    """
    # A thread that Python did not start runs a callback of a JAX program. The CPU's threads may
    # all be waiting for that, and a kernel would wait for one of them.
    if _forked or _failed or not _started_by_python():
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
        warn(
            "compiled kernels do not work here: schedules are computed with NumPy, in the same"
            f" order. {type(error).__name__}: {error}"
        )


def place(array: np.ndarray) -> jax.Array:
    """Puts an array on the device for many calls."""
    import jax

    with _own_settings(), jax.ensure_compile_time_eval():
        return jax.device_put(array, device())


def finish_compiling() -> None:
    """Waits until the functions that were asked for are compiled, as a benchmark wants it."""
    for future in list(_compiled.values()):
        future.exception()


def compiled() -> list[Name]:
    """The names of the functions that are ready."""
    return [name for name, future in list(_compiled.items()) if future.done()]
