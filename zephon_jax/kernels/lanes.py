"""Which lane a chunk belongs to, and back.

Chunks are dealt in blocks of as many as there are lanes, so that lanes never drift apart by more
than one. "permute" deals each block by a keyed permutation of its own: a component that comes
every P chunks then reaches every lane. "modulo" deals in turn, and a period that shares a divisor
with the number of lanes starves some of them.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import numpy as np

from zephon_jax._arrays import MAX_INDEX, Array, Namespace, as_int, namespace
from zephon_jax._text import short
from zephon_jax.kernels.keys import fold, make_key
from zephon_jax.kernels.permutation import invert, permute

__all__ = ["ASSIGNMENTS", "chunk_of_lane", "lane_of_chunk"]

ASSIGNMENTS = ("permute", "modulo")
_MAX_LANES = 1 << 31
_MAX_CHUNK = MAX_INDEX - 1


def _check(num_lanes: int, assignment: str) -> int:
    if not isinstance(assignment, str) or assignment not in ASSIGNMENTS:
        raise ValueError(f"lane_assignment must be one of {ASSIGNMENTS}; got {short(assignment)}.")
    return as_int(num_lanes, "num_lanes", 1, _MAX_LANES)


def _widen(array: Array) -> Array:
    """Small NumPy integers as int64, so that sums and products do not wrap."""
    return array.astype(np.int64) if namespace(array) is np else array


def _narrow(array: Array, like: Array) -> Array:
    """Back to the dtype that was given, where it holds the values."""
    if namespace(array) is not np or not array.size or array.max() > np.iinfo(like.dtype).max:
        return array
    return array.astype(like.dtype)


def _checked_index(value: Array, name: str, high: int | None = None) -> tuple[Namespace, Array]:
    """The array namespace and the value as an array, range-checked where it is on the host."""
    xp = namespace(value)
    array = xp.asarray(value)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integers; got dtype {array.dtype}.")
    if xp is np and array.size:
        as_int(array.min(), name, 0)
        as_int(array.max(), name, 0, high)
    return xp, array


def _block_keys(block: Array, num_lanes: int, seed: int, origin: int) -> Array:
    return fold(make_key(seed, "lanes", num_lanes, origin), block)


def lane_of_chunk(
    chunk_index: Array, num_lanes: int, seed: int, assignment: str = "permute", *, origin: int = 0
) -> Array:
    """Returns the lane that a chunk belongs to.

    Args:
      chunk_index: Global chunk indices, integers not below `origin`, any shape.
      num_lanes: Number of lanes.
      seed: The source's seed.
      assignment: "permute" or "modulo".
      origin: First chunk dealt in this way, where lanes were cut anew in mid-run.

    Returns:
      Integers in [0, num_lanes) of the shape of `chunk_index`, and of its dtype or, where that is
      too narrow, int64.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> from zephon_jax import lanes
      >>> import numpy as np
      >>> sorted(lanes.lane_of_chunk(np.arange(4, 8), 4, seed=0).tolist())
      [0, 1, 2, 3]
    """
    num_lanes, seed = _check(num_lanes, assignment), as_int(seed, "seed")
    xp, given = _checked_index(chunk_index, "chunk_index", _MAX_CHUNK)
    chunk = _widen(given)
    since = chunk - origin
    if xp is np and since.size and since.min() < 0:
        raise ValueError(f"chunk_index must be at least origin = {origin}; got {chunk.min()}.")
    slot = since % num_lanes
    if assignment == "permute" and num_lanes > 1:
        keys = _block_keys(since // num_lanes, num_lanes, seed, origin)
        slot = permute(slot, num_lanes, keys).reshape(slot.shape)
    return _narrow(slot, given)


def chunk_of_lane(
    lane_step: Array,
    lane: Array,
    num_lanes: int,
    seed: int,
    assignment: str = "permute",
    *,
    origin: int = 0,
) -> Array:
    """Returns the global chunk index of a lane's n-th chunk: the inverse of `lane_of_chunk`.

    Args:
      lane_step: How many chunks the lane has had before, integers of any shape.
      lane: The lane, an int or integers that broadcast with `lane_step`.
      num_lanes: Number of lanes.
      seed: The source's seed.
      assignment: "permute" or "modulo".
      origin: First chunk dealt in this way.

    Returns:
      Integers of the broadcast shape and of the dtype of `lane_step`.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> from zephon_jax import lanes
      >>> import numpy as np
      >>> chunks = lanes.chunk_of_lane(np.arange(5), 2, 4, seed=0)
      >>> lanes.lane_of_chunk(chunks, 4, seed=0).tolist()
      [2, 2, 2, 2, 2]
    """
    num_lanes, seed = _check(num_lanes, assignment), as_int(seed, "seed")
    _, given = _checked_index(lane_step, "lane_step", _MAX_CHUNK // num_lanes)
    step = _widen(given)
    xp, place = _checked_index(lane, "lane", num_lanes - 1)
    xp = namespace(step, place)
    place = xp.broadcast_to(
        xp.asarray(place, dtype=step.dtype), xp.broadcast_shapes(step.shape, place.shape)
    )
    if assignment == "permute" and num_lanes > 1:
        keys = _block_keys(step, num_lanes, seed, origin)
        place = invert(place, num_lanes, keys).reshape(place.shape)
    return _narrow(origin + step * num_lanes + place, given)
