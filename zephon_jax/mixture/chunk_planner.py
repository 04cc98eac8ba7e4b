"""A lane's next chunks: their positions, quotas and samples, several worked out together.

Quotas and samples of thirty chunks cost little more than those of one, and so do round robin
orders (20 components: 3 to 5 times less time a chunk; see benchmarks/schedule.py). So a lane that
goes through its chunks in turn has a page of them planned at once. What is planned ahead is what
each chunk would find by itself; whoever asks for chunks in another order only takes longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.mixture.allocation import Rows
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.generations import GrownLookup
from zephon_jax.mixture.lane_chunks import Lane
from zephon_jax.mixture.positions import Era, Position
from zephon_jax.mixture.sample_lookup import SampleLookup

__all__ = ["TOGETHER", "ChunkPlan", "ChunkPlanner", "ChunkSamples", "samples_of_chunks"]

# Measured with benchmarks/schedule.py and lanes.py: from here on time a chunk falls no further.
TOGETHER = 1 << 16  # samples found at once
_TOGETHER_APART = 1 << 18  # where other lanes' chunks lie between: each time needs other tables
_ROWS = 32  # chunks planned at once,
_COMPONENTS = 1 << 15  # up to so many components in all of them
_ORDERED = 1 << 22  # slots of all lanes' chunks whose reading orders are worth computing ahead
_MAX_WORDS = 1 << 22  # 64-bit words kept in pages, over all lanes of a process


class ChunkPlan(NamedTuple):
    """A chunk of a lane, and where the lane goes on."""

    position: Position
    quotas: np.ndarray  # int32 (k,)
    ids: np.ndarray | None  # int64 (n, 3), samples grouped by component; None to find them late
    finder: ChunkSamples
    exhausted: np.ndarray  # bool (k,), components that give nothing from the chunk's end on
    upcoming: np.ndarray  # int32 (n, k), quotas of the lane's next chunks as far as they are known
    after: Position  # of the lane's next chunk, or the run's end where that comes first


class ChunkSamples(NamedTuple):
    """Finds the samples of one chunk."""

    lookup: SampleLookup | GrownLookup
    drawn: np.ndarray  # int64 (k,), samples drawn before the chunk

    def of_ranges(self, component: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Consecutive samples of components, one range after the other: int64 (n, 3)."""
        return self.lookup.of_ranges(
            component, self.drawn[component] + first, count.astype(np.int64)
        )

    def of_numbers(self, component: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Samples in any order: int64 (n, 3)."""
        component = component.astype(np.int64)
        return self.lookup.of_draws(component, self.drawn[component] + number)


class _Page(NamedTuple):
    """Consecutive chunks of a lane, planned together; without any, where the lane has come to."""

    positions: list[Position]  # n + 1: of the chunks, and of the lane's chunk after them
    rows: dict[int, int]  # place in `positions` by chunk index
    quotas: np.ndarray  # int32 (n, k)
    exhausted: np.ndarray  # bool (n, k)
    ids: dict[int, np.ndarray]  # samples by place, of chunks that have not been asked for yet
    together: int  # chunks whose samples are found at once
    ahead: int  # chunks whose reading orders are worth computing with one

    @property
    def words(self) -> int:
        """64-bit words that it holds at most."""
        num, k = self.quotas.shape
        samples = int(self.quotas[0].sum()) if num else 0
        return (num + 1) * 3 * k + 3 * self.together * samples


def samples_of_chunks(
    lookup: SampleLookup | GrownLookup, drawn: np.ndarray, quotas: np.ndarray
) -> list[np.ndarray]:
    """The samples of chunks, grouped by component: int64 (n, 3) for each chunk, in one memory.

    Args:
      lookup: Where the datasets' samples lie.
      drawn: int64 (c, k), samples drawn before each chunk.
      quotas: int (c, k), samples that each chunk draws.
    """
    quotas = quotas.astype(np.int64)
    chunk, dataset = np.nonzero(quotas)
    ids = lookup.of_ranges(dataset, drawn[chunk, dataset], quotas[chunk, dataset])
    return np.split(ids, np.cumsum(quotas.sum(axis=1))[:-1])


class ChunkPlanner:
    """Plans the chunks of lanes. Immutable but for the pages it keeps; threads may share it.

    Args:
      eras: Positions of the run.
      lookup: Where the datasets' samples lie.
      chunk_size: Samples in a chunk.
      max_words: 64-bit words kept in pages at most.
    """

    def __init__(
        self,
        eras: Eras,
        lookup: SampleLookup | GrownLookup,
        chunk_size: int,
        max_words: int = _MAX_WORDS,
    ):
        self._eras, self._steps, self._lookup = eras, eras.steps, lookup
        self._chunk_size, self._max_words = chunk_size, max_words
        self._pages: BoundedCache[Lane, _Page] = BoundedCache(max_words, lambda page: page.words)

    @property
    def words(self) -> int:
        """64-bit words that are kept."""
        return self._pages.cost

    def next(self, position: Position, lane: Lane) -> ChunkPlan | None:
        """The lane's first chunk at or after a position; None where the run ends before it."""
        page = self._pages.get(lane)
        row = None if page is None else page.rows.get(position.chunk_index)
        # Who comes with the very position that was handed out goes through the lane in turn.
        if page is None or row is None or page.positions[row] is not position:
            return self._alone(position, lane)
        if row == len(page.quotas):
            page, row = self._make_page(position, lane), 0
            if page is None:
                return self._alone(position, lane)
        return self._planned(page, row)

    def next_of_lanes(
        self, positions: Sequence[Position], lanes: Sequence[Lane]
    ) -> list[ChunkPlan | None]:
        """`next` of many lanes at once, with samples to be found late.

        Args:
          positions: Where each lane stands.
          lanes: The lanes.
        """
        found: dict[int, ChunkPlan] = {}
        by_era: dict[tuple[int | bytes, ...], list[int]] = defaultdict(list)
        for place, position in enumerate(positions):
            by_era[_name(position.era)].append(place)
        for places in by_era.values():
            num = max(1, _COMPONENTS // positions[places[0]].drawn.size)
            for n in range(0, len(places), num):
                part = places[n : n + num]
                found.update(self._in_one_era({at: (positions[at], lanes[at]) for at in part}))
        return [
            found[place] if place in found else self.next(position, lane)
            for place, (position, lane) in enumerate(zip(positions, lanes, strict=True))
        ]

    def _in_one_era(self, standing: dict[int, tuple[Position, Lane]]) -> dict[int, ChunkPlan]:
        """Plans of lanes that stand in one era, as many as it holds both chunks of."""
        era = next(iter(standing.values()))[0].era
        if len(standing) < 2 or era.allocation is None or not era.allocation.closed:
            return {}
        here = [position.chunk_index for position, _ in standing.values()]
        after = [
            lane.chunk_from(chunk + 1)
            for chunk, (_, lane) in zip(here, standing.values(), strict=True)
        ]
        rows = self._steps.plain_rows(era, np.unique([*here, *after]))
        row_of = {chunk: row for row, chunk in enumerate(rows.chunks.tolist())}
        exhausted = self._steps.exhausted_rows(era, rows.drawn + rows.quotas)
        none = np.zeros((0, rows.quotas.shape[1]), dtype=np.int32)
        found: dict[int, ChunkPlan] = {}
        for chunk, later, (at, (position, lane)) in zip(here, after, standing.items(), strict=True):
            if later in row_of and lane.chunk_from(chunk) == chunk:
                row, end = row_of[chunk], row_of[later]
                found[at] = ChunkPlan(
                    position=position,
                    quotas=rows.quotas[row].copy(),
                    ids=None,
                    finder=ChunkSamples(self._lookup, position.drawn),
                    exhausted=exhausted[row],
                    upcoming=none,
                    after=Position(later, era, rows.carry[end].copy(), rows.drawn[end].copy()),
                )
        return found

    def rows(self, position: Position, lane: Lane, num_chunks: int) -> Rows:
        """A lane's chunks from a position on, fewer where its closed era or the run ends."""
        chunks = [lane.chunk_from(position.chunk_index)]
        most = MAX_INDEX // self._chunk_size  # later chunks are past any count
        while len(chunks) < num_chunks and chunks[-1] < most:
            chunks.append(lane.chunk_from(chunks[-1] + 1))
        return self._steps.plain_rows(position.era, np.asarray(chunks))

    def _finds_late(self) -> bool:
        """True where whole chunks take long, or much memory with as many lanes as there are."""
        share = self._max_words // max(1, len(self._pages))
        return self._chunk_size > min(TOGETHER, share // 6)

    def _planned(self, page: _Page, row: int) -> ChunkPlan:
        ids = page.ids.pop(row, None)
        if ids is None and not self._finds_late():
            part = slice(row, min(row + page.together, len(page.quotas)))
            drawn = np.stack([one.drawn for one in page.positions[part]])
            ids, *ahead = samples_of_chunks(self._lookup, drawn, page.quotas[part])
            page.ids.update(enumerate(ahead, row + 1))
        return ChunkPlan(
            position=page.positions[row],
            quotas=page.quotas[row],
            ids=ids,
            finder=ChunkSamples(self._lookup, page.positions[row].drawn),
            exhausted=page.exhausted[row],
            upcoming=page.quotas[row + 1 : row + 1 + page.ahead],
            after=page.positions[row + 1],
        )

    def _alone(self, position: Position, lane: Lane) -> ChunkPlan | None:
        """The plan of a chunk whose next ones nobody may ask for."""
        here = lane.chunk_from(position.chunk_index)
        position = self._eras.advance(position, here)
        drawn = self._steps.step(position) if position.chunk_index == here else None
        if drawn is None:
            return None
        quotas, end = drawn
        after = self._eras.advance(end, lane.chunk_from(here + 1))
        none = np.zeros((0, quotas.size), dtype=np.int32)
        page = _Page([after], {after.chunk_index: 0}, none, none != 0, {}, 0, 0)
        self._pages.put(lane, page)
        return ChunkPlan(
            position=position,
            quotas=quotas.astype(np.int32),
            ids=None
            if self._finds_late()
            else samples_of_chunks(self._lookup, position.drawn[None], quotas[None])[0],
            finder=ChunkSamples(self._lookup, position.drawn),
            exhausted=self._steps.exhausted(end),
            upcoming=none,
            after=after,
        )

    def _make_page(self, position: Position, lane: Lane) -> _Page | None:
        """Plans a lane's next chunks; None where that is no faster, or the era ends with them."""
        era, k = position.era, position.drawn.size
        share = self._max_words // max(1, len(self._pages))  # of each lane in this process
        num = min(_ROWS, _COMPONENTS // k, share // (6 * k))
        if era.allocation is None or not era.allocation.closed or num < 2:
            return None
        planned = self.rows(position, lane, num + 1)
        if len(planned.chunks) < 2 or planned.chunks[0] != position.chunk_index:
            return None
        drawn, quotas = planned.drawn, planned.quotas[:-1]
        positions = [
            Position(chunk, era, carry.copy(), before.copy())
            for chunk, carry, before in zip(
                planned.chunks.tolist(), planned.carry, drawn, strict=True
            )
        ]
        positions[0] = position
        at_once = TOGETHER if lane.num_lanes == 1 else _TOGETHER_APART
        together = min(at_once, share // 6) // self._chunk_size
        page = _Page(
            positions,
            {one.chunk_index: row for row, one in enumerate(positions)},
            quotas,
            self._steps.exhausted_rows(era, drawn[:-1] + quotas),
            {},
            max(1, min(together, len(quotas))),
            _ORDERED // (self._chunk_size * max(1, len(self._pages))),
        )
        self._pages.put(lane, page)
        return page


def _name(era: Era) -> tuple[int | bytes, ...]:
    """Tells eras apart: restored states have one of their own each, which may be the same."""
    return era.first_chunk, era.anchor, id(era.allocation), era.base.tobytes()
