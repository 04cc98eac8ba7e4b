"""Cutting a run into another number of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.words import from_words

__all__ = ["relane"]


def _boundary(states: Sequence[MixtureState], num_lanes: int) -> MixtureState:
    """The state that stands at the chunk which all lanes have come to."""
    chunks = [from_words(state.chunk) for state in states]
    if len(set(chunks)) == 1:
        return states[0]
    origin = from_words(states[0].origin)
    ended = _at_the_end(states, chunks, origin, num_lanes)
    if ended is not None:
        return ended
    blocks = {
        (chunk - origin) // num_lanes + int(state.lag)
        for chunk, state in zip(chunks, states, strict=True)
    }
    start = origin + min(blocks) * num_lanes
    if len(blocks) > 1 or start not in chunks:
        at = {int(s.lane): chunk for s, chunk in zip(states, chunks, strict=True)}
        raise ValueError(
            "lanes can only be cut anew where all have read the same number of chunks; got next"
            f" chunks by lane {at}. Step the lanes that lag behind until all are in one block of"
            f" {num_lanes} chunks."
        )
    return states[chunks.index(start)]


def _at_the_end(
    states: Sequence[MixtureState], chunks: Sequence[int], origin: int, num_lanes: int
) -> MixtureState | None:
    """A state at the end of the run, where all lanes have read all of it.

    The last block may have fewer chunks than lanes. Lanes that had one there lag behind the block's
    end and say so; once they are as many as it has chunks, the others have none: these stand at the
    end too, or where they were dealt anew, if they never had a chunk since.
    """
    read = [state for state in states if int(state.lag)]
    end = max(chunks)
    start = origin + (end - origin) // num_lanes * num_lanes
    whole = len(read) == end - start and all(from_words(state.chunk) == end for state in read)
    others = {chunk for chunk, state in zip(chunks, states, strict=True) if not int(state.lag)}
    return read[0] if read and whole and others <= {start, end} else None


def relane(states: Sequence[MixtureState], num_lanes: int) -> list[MixtureState]:
    """Cuts a run into another number of lanes, so that each chunk is still read exactly once.

    All lanes must stand at a common block boundary: each has read the same number of chunks.
    From there on chunks are dealt anew among the new lanes.

    Args:
      states: One state of each lane, in any order.
      num_lanes: The new number of lanes.

    Returns:
      The states of lanes 0 to num_lanes - 1.

    Raises:
      TypeError: If a state is not of a mixture.
      ValueError: If lanes are missing, doubled, of different runs or at different steps.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [100])
      >>> source = zx.StaticMixtureWorkSource(datasets=[toy], mixture={"toy": 1}, chunk_size=10)
      >>> two = [source.next_chunk(source.init(lane, 2))[1] for lane in range(2)]
      >>> five = zx.relane(two, 5)
      >>> sorted(source.next_chunk(state)[0].chunk_index for state in five)
      [2, 3, 4, 5, 6]
    """
    num_lanes = as_int(num_lanes, "num_lanes", 1, (1 << 31) - 1)
    states = list(states) if isinstance(states, Iterable) else [states]
    for state in states:
        if not isinstance(state, MixtureState):
            raise TypeError(
                f"states must be a list of states of a mixture; got {type(state).__name__}."
            )
    if not states:
        raise ValueError("states must be those of all lanes; got none.")
    before = int(states[0].num_lanes)
    found = sorted(int(state.lane) for state in states)
    if any(int(s.num_lanes) != before for s in states) or found != list(range(before)):
        kinds = sorted({int(state.num_lanes) for state in states})
        raise ValueError(
            f"relane needs one state of each lane; got lanes {found} of {kinds} lanes."
        )
    for state in states[1:]:
        same = np.array_equal(state.config, states[0].config)
        if not same or from_words(state.origin) != from_words(states[0].origin):
            raise ValueError(
                f"the states are of different runs: lane {int(state.lane)} differs from lane"
                f" {int(states[0].lane)} in its source's settings or in where lanes were cut."
            )
    at = _boundary(states, before)
    return [
        at._replace(
            lane=np.asarray(lane, dtype=np.int32),
            num_lanes=np.asarray(num_lanes, dtype=np.int32),
            lag=np.asarray(0, dtype=np.int32),
            origin=at.chunk,
        )
        for lane in range(num_lanes)
    ]
