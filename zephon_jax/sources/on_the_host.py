"""Says by name that a source draws on the host, where JAX traces its `next_chunk`."""

from __future__ import annotations

from typing import cast

import numpy as np

from zephon_jax._arrays import is_tracer

__all__ = ["check_untraced"]

_HOST = (np.ndarray, int, str, np.generic)


def check_untraced(source: object, state: object) -> None:
    """Refuses a state that JAX is tracing, whose numbers no source can see.

    Raises:
      TypeError: Naming the source and what to use.
    """
    if not isinstance(state, tuple):
        return
    for leaf in cast("tuple[object, ...]", state):
        if not isinstance(leaf, _HOST) and is_tracer(leaf):
            raise TypeError(
                f"{type(source).__name__}.next_chunk draws on the host and cannot be traced by jax."
                " zx.traced(source, num_chunks=...) gives the chunks of a mixture under jit, scan"
                " and vmap; other sources are drawn from outside, and their chunks' arrays given to"
                " jit."
            )
