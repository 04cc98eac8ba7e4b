"""Going through the chunks of any source, of one lane or of many, in the order of the run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Generic, NamedTuple

from zephon_jax.sources.checks import State, Stepped, draw, lane_of
from zephon_jax.sources.chunk import WorkChunk

__all__ = ["Step", "walk"]


class Step(NamedTuple, Generic[State]):
    """A chunk that a walk has come to."""

    chunk_index: int  # its own number, or that of a chunk dealt in turn where it has none
    lane: int
    lane_step: int  # chunks of the lane before it in this walk
    chunk: WorkChunk
    before: State  # the lane's state before the chunk
    after: State  # the lane's state after the chunk


def walk(source: Stepped[State], states: Sequence[State], first: int = 0) -> Iterator[Step[State]]:
    """Goes through the chunks of some lanes up to the end of the run, in ascending order.

    A lane's chunks are drawn as they are asked for, one ahead where lanes are merged. A chunk
    without a `chunk_index` counts as dealt in turn: a lane's n-th chunk is number
    n * num_lanes + lane.

    Args:
      source: Any source.
      states: A state of each lane.
      first: Where chunks have no number, the global index at or after which these states stand.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [60])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> [step.chunk_index for step in walk(source, [source.init(0, 2), source.init(1, 2)])]
      [0, 1, 2, 3, 4, 5]
    """
    lanes = [_walk_lane(source, state, first) for state in states]
    if len(lanes) == 1:
        return lanes[0]
    # A lane's chunks ascend, so that the run's come in order where the lanes are merged.
    return heapq.merge(*lanes, key=lambda step: (step.chunk_index, step.lane))


def _walk_lane(source: Stepped[State], state: State, first: int) -> Iterator[Step[State]]:
    lane, num_lanes = lane_of(state)
    dealt = first + (lane - first) % num_lanes
    for lane_step in count():
        chunk, after = draw(source, state)
        if chunk is None:
            return
        index = dealt if chunk.chunk_index is None else chunk.chunk_index
        yield Step(index, lane, lane_step, chunk, state, after)
        state, dealt = after, dealt + num_lanes
