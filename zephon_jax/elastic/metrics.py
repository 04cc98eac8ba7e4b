"""Numbers of a run for logs: how far it has come, by component, and what it waited for.

How far a lane has come is in the state of its pipeline; what that means in samples by component
is arithmetic, since chunks hold known counts. No data is read, and nothing is added to states.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.cache.stager import default_stager
from zephon_jax.elastic.lane_rows import LanePlan
from zephon_jax.elastic.plain_json import place_in
from zephon_jax.elastic.steps import StepPosition
from zephon_jax.pipelines.lane_lengths import seek_sample
from zephon_jax.pipelines.packing import component_tokens
from zephon_jax.sources.checks import LaneState, draw
from zephon_jax.sources.stateful_lane import state_from_dict

__all__ = ["RunMeter"]

_BLOCKS_KEPT = 8  # counts of blocks of lanes; lanes of a host are seldom further apart
_PAST_END = 1 << 40  # blocks, of a lane that has read its last chunk


class _LanePlace(NamedTuple):
    """Where a lane stands."""

    block: int  # chunks of the lane before the one that it reads
    slot: int  # samples that it has taken of that one
    size: int  # samples of that one


class RunMeter:
    """Counts what one iterator hands out, and works out how far its lanes have come.

    Args:
      plan: The lanes of the run.
      owned: The lanes of this host.
      one_to_one: True where lanes give one row for each sample, so that all stand alike.
    """

    def __init__(self, plan: LanePlan, owned: Sequence[int], *, one_to_one: bool):
        self._plan, self._owned, self._one_to_one = plan, tuple(owned), one_to_one
        self._ids = dict(plan.source.component_ids())
        self._chunks: dict[int, tuple[str, _LanePlace | None]] = {}  # by lane, with what was read
        self._chunk_from: tuple[int, _LanePlace | None] = (0, None)  # with its first row
        self._drawn_before = functools.lru_cache(_BLOCKS_KEPT)(self._count_before)
        self._tokens: np.ndarray | None = None
        self.seconds_waited = 0.0

    def see(self, batch: object) -> None:
        """Counts the tokens of a batch that is handed out, where it says their components."""
        ids = batch.get("component_ids") if isinstance(batch, Mapping) else None
        if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
            return
        if self._tokens is None:
            self._tokens = np.zeros(max(self._ids.values()) + 1, dtype=np.int64)
        self._tokens += component_tokens(ids, len(self._tokens))

    def metrics(self, place: StepPosition) -> dict[str, int | float]:
        """What `ElasticIterator.metrics` says of a place, which is after a batch handed out."""
        found: dict[str, int | float] = {
            "step": place.step,
            "rows": place.rows * self._plan.num_lanes,
            **self._progress(place),
        }
        if self._tokens is not None:
            found |= {f"tokens/{name}": int(self._tokens[i]) for name, i in self._ids.items()}
        return {
            **found,
            "seconds_waited": self.seconds_waited,
            **default_stager().counts._asdict(),
            "blocks_decoded": decoded_blocks().num_decoded,
        }

    def _progress(self, place: StepPosition) -> dict[str, int | float]:
        """Samples and passes so far by component, and how far lanes are apart, where known."""
        lanes = self._lane_places(place)
        if lanes is None:
            return {}
        blocks = [lane.block for lane in lanes if lane.size]
        found: dict[str, int | float] = {
            "lane_lag_chunks": max(blocks, default=0) - min(blocks, default=0)
        }
        samples = self._samples(lanes)
        if samples is None:
            return found
        found |= dict(zip((f"samples/{name}" for name in self._ids), samples.tolist(), strict=True))
        sizes = self._plan.source.pass_sizes()
        if sizes is not None:
            passes = samples / np.maximum(sizes, 1)
            names = (f"passes/{name}" for name in self._ids)
            found |= dict(zip(names, passes.tolist(), strict=True))
        return found

    def _samples(self, lanes: Sequence[_LanePlace]) -> np.ndarray | None:
        """Samples of each component in the run: the mean of what each lane's place stands for."""
        total: np.ndarray | None = None
        for (block, size), slots in _by_chunk(lanes).items():
            before, after = self._drawn_before(block), self._drawn_before(block + 1)
            if before is None or after is None:
                return None
            part = before * len(slots) + (after - before) * sum(slots) // max(size, 1)
            total = part if total is None else total + part
        return None if total is None else total // len(lanes)

    def _count_before(self, block: int) -> np.ndarray | None:
        source = self._plan.source
        return source.drawn_before(source.begin + block * self._plan.num_lanes)

    def _lane_places(self, place: StepPosition) -> list[_LanePlace] | None:
        """Where the lanes stand, of which one tells for all where they are alike."""
        source, num_lanes = self._plan.source, self._plan.num_lanes
        if self._one_to_one:
            return _known([self._chunk_of_row(place.rows)])
        found = []
        for lane, state in zip(self._owned, place.states, strict=True):
            its = place_in(state)
            if its is None:
                return None
            kept, chunk = self._chunks.get(lane, ("", None))
            if kept != its["state"]:
                decoded = state_from_dict(source, its, (lane, num_lanes))
                chunk = self._chunk_at(decoded, 0)
                self._chunks[lane] = its["state"], chunk
            found.append(None if chunk is None else chunk._replace(slot=int(its["slot"])))
        return _known(found)

    def _chunk_of_row(self, row: int) -> _LanePlace | None:
        """Where a lane of single rows stands; lane 0 tells it to all hosts."""
        first, chunk = self._chunk_from
        if chunk is None or not first <= row < first + chunk.size:
            chunk = self._chunk_at(*seek_sample(self._plan.source, 0, self._plan.num_lanes, row))
            if chunk is None:
                return None
            first = row - chunk.slot
            self._chunk_from = first, chunk
        return chunk._replace(slot=row - first)

    def _chunk_at(self, state: LaneState, slot: int) -> _LanePlace | None:
        """A place in the chunk after a state; None where chunks have no numbers."""
        source, num_lanes = self._plan.source, self._plan.num_lanes
        chunk, _ = draw(source, state)
        if chunk is None:
            return _LanePlace(block=_PAST_END, slot=0, size=0)
        if chunk.chunk_index is None:
            return None
        block = (chunk.chunk_index - source.begin) // num_lanes
        return _LanePlace(block=block, slot=slot, size=len(chunk))


def _by_chunk(lanes: Sequence[_LanePlace]) -> dict[tuple[int, int], list[int]]:
    """Slots of lanes by block and size of their chunks."""
    found: dict[tuple[int, int], list[int]] = {}
    for lane in lanes:
        found.setdefault((lane.block, lane.size), []).append(lane.slot)
    return found


def _known(places: list[_LanePlace | None]) -> list[_LanePlace] | None:
    known = [place for place in places if place is not None]
    return known if len(known) == len(places) else None
