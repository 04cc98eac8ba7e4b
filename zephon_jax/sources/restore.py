"""Bytes back to a state, checked by the source that it is for, which may not be primed yet."""

from __future__ import annotations

from zephon_jax.sources.checks import State
from zephon_jax.sources.codec import decode, open_fields
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["decode_state", "restore"]


def decode_state(source: WorkSource[State], data: bytes) -> State:
    """Decodes a state and checks that it belongs to this source.

    Args:
      source: The source that the state is for.
      data: What `encode_state` returned.

    Returns:
      A state equal to the one that was encoded.

    Raises:
      TypeError: If `data` is not bytes.
      ValueError: If the bytes are cut, changed or foreign, or the state belongs to a source with
        other data or settings, naming what differs.
    """
    check_source(source)
    return decode(source, data)


def restore(source: WorkSource[State], data: bytes) -> tuple[WorkSource[State], State]:
    """Decodes a state, for a source that may not have been primed yet.

    An unprimed source takes the measured ratios that were saved with the state: nothing is
    measured again, and the order goes on as it was.

    Args:
      source: The source that the state is for, primed or not.
      data: What `encode_state` returned.

    Returns:
      The source to go on with, and the state.

    Raises:
      TypeError: If `data` is not bytes.
      ValueError: If the state does not belong to the source, naming what differs, or holds no
        ratios that it could take.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_source("toy", ["a", "b c", "d e f"] * 50)
      >>> tokens = zx.TokenEstimation(str.split)
      >>> fresh = zx.StaticMixtureWorkSource([toy], {"toy": 1}, 10, token_estimation=tokens)
      >>> data = zx.encode_state(fresh.prime().seek(3))
      >>> source, state = zx.restore(fresh, data)
      >>> source.next_chunk(state)[0].chunk_index
      3
    """
    check_source(source)
    if source.requires_token_priming:
        source = source.primed_for(open_fields(data)[1])
    return source, decode_state(source, data)
