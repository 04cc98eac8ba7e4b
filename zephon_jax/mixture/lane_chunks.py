"""Which chunks a lane gets: one of each block of as many chunks as there are lanes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from zephon_jax.kernels import lanes

__all__ = ["Lane"]

_PAGE = 64  # blocks looked up together: the call costs as much for one block


class Lane(NamedTuple):
    """A lane of a run, with what decides its chunks."""

    lane: int
    num_lanes: int
    origin: int  # the chunk from which on there are `num_lanes` lanes
    seed: int
    assignment: str

    def chunk_from(self, chunk_index: int) -> int:
        """The lane's first chunk at or after this one."""
        if self.num_lanes == 1:
            return chunk_index
        block = (chunk_index - self.origin) // self.num_lanes
        for step in (block, block + 1):
            page, place = divmod(step, _PAGE)
            chunks = _page(page, self)
            if chunks[place] >= chunk_index:
                return chunks[place]
        raise AssertionError("a lane has one chunk in each block")

    def lag(self, chunk_index: int) -> int:
        """Blocks from the one that holds a chunk to that of the lane's next chunk: 0 or 1.

        A run may end inside a block. The lane's state then stands at the end of the run, whether
        the lane has read its chunk of that block or would have read it later: the lag tells.
        """
        if self.num_lanes == 1:
            return 0
        after = self.chunk_from(chunk_index) - self.origin
        return after // self.num_lanes - (chunk_index - self.origin) // self.num_lanes


@functools.lru_cache(maxsize=1024)
def _page(page: int, lane: Lane) -> list[int]:
    """The lane's chunks in _PAGE consecutive blocks."""
    steps = np.arange(page * _PAGE, (page + 1) * _PAGE)
    return lanes.chunk_of_lane(
        steps, lane.lane, lane.num_lanes, lane.seed, lane.assignment, origin=lane.origin
    ).tolist()
