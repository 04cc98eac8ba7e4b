"""The sample ids of a lane's chunks: those of its next ones are found together with its own.

Finding a few thousand samples costs little more than finding one, so a lane that goes through its
chunks in turn has several found at once. What is found ahead is only used where the chunk turns
out to draw just that; a wrong guess costs time and nothing else.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from zephon_jax._process import PerProcess
from zephon_jax.mixture.positions import Position
from zephon_jax.mixture.sample_lookup import Draws

__all__ = ["TOGETHER", "ChunkIds", "samples_of_chunks"]

TOGETHER = 1 << 16  # samples found at once,
_TOGETHER_APART = 1 << 18  # where other lanes' chunks lie between: each time needs other tables
_QUOTAS = 1 << 15  # quotas worked out together: they too cost something, by the component
_MOST_CHUNKS = 64  # chunks found at once
_MAX_KEPT = 1 << 20  # samples found ahead, 24 bytes each, of all lanes of a process
_MAX_LANES = 1 << 12  # lanes whose next chunk is remembered


class _Found(NamedTuple):
    """A chunk found ahead."""

    drawn: np.ndarray  # int64 (k,), what was drawn before it
    quotas: np.ndarray  # int64 (k,)
    ids: np.ndarray  # int64 (n, 3)


def samples_of_chunks(draws: Draws, drawn: np.ndarray, quotas: np.ndarray) -> list[np.ndarray]:
    """The samples of chunks, grouped by component: int64 (n, 3) for each chunk, in one memory.

    Args:
      draws: Where the datasets' samples lie.
      drawn: int64 (c, k), what was drawn before each chunk.
      quotas: int64 (c, k), what each chunk draws.
    """
    chunk, dataset = np.nonzero(quotas)
    ids = draws.of_ranges(dataset, drawn[chunk, dataset], quotas[chunk, dataset])
    return np.split(ids, np.cumsum(quotas.sum(axis=1))[:-1])


class ChunkIds:
    """Finds the samples of chunks. Immutable but for what it finds ahead; threads may share it.

    Args:
      draws: Where the datasets' samples lie.
      chunk_size: Samples in a chunk.
    """

    def __init__(self, draws: Draws, chunk_size: int):
        self._draws, self._chunk_size = draws, chunk_size
        self._lock = PerProcess(threading.RLock)
        self._found: OrderedDict[int, _Found] = OrderedDict()
        self._following: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def of(
        self,
        position: Position,
        quotas: np.ndarray,
        lane: tuple[int, int, int],
        next_chunk: Callable[[int], int],
    ) -> np.ndarray:
        """The samples of a chunk, grouped by component: int64 (n, 3).

        Args:
          position: Of the chunk.
          quotas: int64 (k,), what it draws.
          lane: The lane, the number of lanes and their origin.
          next_chunk: The lane's chunk after another.
        """
        here = position.chunk_index
        with self._lock.get():
            found = self._found.pop(here, None)
            goes_on = self._following.pop(lane, None) == here
            num_here = len(self._following) + 1
        if (
            found is not None
            and np.array_equal(found.drawn, position.drawn)
            and np.array_equal(found.quotas, quotas)
        ):
            self._follow(lane, next_chunk(here), {})
            return found.ids
        num = self._num_together(quotas.size, lane[1], num_here)
        allocation = position.era.allocation
        if not goes_on or num < 2 or allocation is None or not allocation.closed:
            self._follow(lane, next_chunk(here), {})
            return samples_of_chunks(self._draws, position.drawn[None], quotas[None])[0]
        chunks = [here]
        for _ in range(num - 1):
            chunks.append(next_chunk(chunks[-1]))
        since = np.asarray(chunks) - position.era.first_chunk
        drawn = position.era.base + allocation.drawn_before(since)
        asked = allocation.quotas_of(since).astype(np.int64)
        drawn[0], asked[0] = position.drawn, quotas
        parts = samples_of_chunks(self._draws, drawn, asked)
        rows = zip(chunks[1:], drawn[1:], asked[1:], parts[1:], strict=True)
        ahead = {chunk: _Found(*row) for chunk, *row in rows}
        self._follow(lane, chunks[1], ahead)
        return parts[0]

    def _num_together(self, num_components: int, num_lanes: int, num_here: int) -> int:
        """Chunks to find at once for a lane of so many, of which so many are in this process."""
        return min(
            _MOST_CHUNKS,
            (TOGETHER if num_lanes == 1 else _TOGETHER_APART) // self._chunk_size,
            _MAX_KEPT // (num_here * self._chunk_size),
            _QUOTAS // num_components,
        )

    def _follow(
        self, lane: tuple[int, int, int], next_chunk: int, ahead: dict[int, _Found]
    ) -> None:
        """Remembers where a lane goes on, and what was found for it."""
        with self._lock.get():
            self._following[lane] = next_chunk
            if len(self._following) > _MAX_LANES:
                self._following.popitem(last=False)
            self._found.update(ahead)
            most = max(1, _MAX_KEPT // self._chunk_size)
            while len(self._found) > most:
                self._found.popitem(last=False)
