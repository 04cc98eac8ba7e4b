"""Which chunks a lane gets: one of each block of as many chunks as there are lanes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels import lanes

__all__ = ["Lane"]

# Looked up together: a call costs little more for all of them than for one, half a millisecond, and
# lanes of a process go through the same blocks. 4,096 lanes keep half a megabyte of them.
_BLOCKS, _LANES = 16, 64
_LAST_CHUNK = MAX_INDEX - 1


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
            found = self._chunk_of_block(step)
            if found >= chunk_index:
                return found
        raise AssertionError("a lane has one chunk in each block")

    def _chunk_of_block(self, block: int) -> int:
        page, row = divmod(block, _BLOCKS)
        lanes_page, column = divmod(self.lane, _LANES)
        like = self if self.lane == lanes_page * _LANES else self._replace(lane=self.lane - column)
        return _page(page, like).item(row, column)

    def lag(self, chunk_index: int) -> int:
        """Blocks from the one that holds a chunk to that of the lane's next chunk: 0 or 1.

        A run may end inside a block. The lane's state then stands at the end of the run, whether
        the lane has read its chunk of that block or would have read it later: the lag tells.
        """
        if self.num_lanes == 1:
            return 0
        after = self.chunk_from(chunk_index) - self.origin
        return after // self.num_lanes - (chunk_index - self.origin) // self.num_lanes


@functools.lru_cache(maxsize=2048)
def _page(page: int, first: Lane) -> np.ndarray:
    """The chunks of a lane and of those after it in consecutive blocks: int64 (_BLOCKS, n)."""
    blocks = np.arange(page * _BLOCKS, (page + 1) * _BLOCKS)
    blocks = np.minimum(blocks, _LAST_CHUNK // first.num_lanes)  # later ones are past any count
    columns = np.arange(first.lane, min(first.lane + _LANES, first.num_lanes))
    step, lane = (side.ravel() for side in np.broadcast_arrays(blocks[:, None], columns))
    found = lanes.chunk_of_lane(
        step, lane, first.num_lanes, first.seed, first.assignment, origin=first.origin
    )
    return found.reshape(blocks.size, columns.size)
