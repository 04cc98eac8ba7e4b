"""What is added up while a simulated run is gone through: rows of chunks, lanes and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zephon_jax.analysis.chunk_counts import DealtChunks

__all__ = ["Rows", "SimulationSums"]


class Rows(NamedTuple):
    """Rows of one chunk each, or of several: rows with the same number are put together."""

    number: np.ndarray  # int64 (n,), ascending
    chunk: np.ndarray
    chunks: np.ndarray
    draws: np.ndarray
    tokens: np.ndarray  # (n, 0) where weights are shares of samples
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _merged(rows: Rows) -> Rows:
    """Puts rows of the same number together."""
    starts = np.flatnonzero(np.diff(rows.number, prepend=-1))
    if len(starts) == len(rows.number):
        return rows
    ends = np.append(starts[1:], len(rows.number)) - 1
    return Rows(
        number=rows.number[starts],
        chunk=rows.chunk[starts],
        chunks=np.add.reduceat(rows.chunks, starts),
        draws=np.add.reduceat(rows.draws, starts),
        tokens=np.add.reduceat(rows.tokens, starts),
        deviation=rows.deviation[ends],
        low=np.minimum.reduceat(rows.low, starts),
        high=np.maximum.reduceat(rows.high, starts),
    )


def _joined(pieces: Sequence[Rows]) -> Rows:
    made: dict[tuple[int, ...], np.ndarray] = {}
    columns = []
    for parts in zip(*pieces, strict=True):
        # Where a row is a chunk, the least, the most and the last deviation are one array.
        name = tuple(map(id, parts))
        if name not in made:
            made[name] = np.concatenate(parts)
        columns.append(made[name])
    return _merged(Rows(*columns))


@dataclass(slots=True, kw_only=True)
class SimulationSums:
    """Everything that is added up while a run is gone through.

    A row is `stride` chunks: `given_stride`, or 1, doubled as often as it takes for the rows to
    stay within `most_numbers` of each kind.
    """

    num_components: int
    num_lanes: int
    given_stride: int | None = None
    most_numbers: int = 1 << 23  # rows x components: 64 MB for each kind of number
    pieces: list[Rows] = field(default_factory=list)
    lanes: list[np.ndarray] = field(default_factory=list)
    num_rows: int = 0
    num_chunks: int = 0
    ended: bool = False
    shortest: int | None = None  # samples of the shortest chunk
    bound: tuple[float, float] | None = None
    target_chunk: list[int] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)
    exhausted: list[tuple[str, int]] = field(default_factory=list)
    seeds: dict[int | None, int] = field(default_factory=dict)
    stride: int = field(init=False)  # chunks in a row
    owed: np.ndarray = field(init=False)  # float64 (k,), target units up to the target's change
    since: float = 0  # units since then
    given: np.ndarray = field(init=False)  # units of each component so far
    first: np.ndarray = field(init=False)
    last: np.ndarray = field(init=False)
    lane_chunks: np.ndarray = field(init=False)
    lane_draws: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        k, num_lanes = self.num_components, self.num_lanes
        self.stride = self.given_stride or 1
        self.given, self.owed = np.zeros(k, dtype=np.int64), np.zeros(k)
        self.first = np.full(k, -1, dtype=np.int64)
        self.last = np.full(k, -1, dtype=np.int64)
        self.lane_chunks = np.zeros(num_lanes, dtype=np.int64)
        self.lane_draws = np.zeros((num_lanes, k), dtype=np.int64)

    def add(self, dealt: DealtChunks) -> None:
        """Adds consecutive chunks."""
        part, counts = dealt.chunks, dealt.chunks.counts
        if len(counts):
            chunk = np.arange(part.first_chunk, part.first_chunk + len(counts))
            shortest = int(counts.sum(axis=1).min())
            self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
            self.bound = part.bound
            self._add_rows(chunk, dealt)
            self._add_lanes(dealt.lane, counts)
            held = counts > 0
            some = held.any(axis=0)
            self.first = np.where(some & (self.first < 0), chunk[held.argmax(axis=0)], self.first)
            self.last = np.where(some, chunk[-1 - held[::-1].argmax(axis=0)], self.last)
        self.ended = self.ended or part.ended
        last = part.first_chunk + len(counts) - 1
        self.exhausted += [(name, last) for name in part.exhausted]
        if dealt.seed is not None:
            self.seeds[dealt.seed] = self.seeds.get(dealt.seed, 0) + 1

    def _add_rows(self, chunk: np.ndarray, dealt: DealtChunks) -> None:
        part, counts = dealt.chunks, dealt.chunks.counts
        if not self.targets or not np.array_equal(self.targets[-1], part.target):
            if self.targets:
                self.owed = self.owed + self.since * self.targets[-1]
            self.since = 0
            self.targets.append(part.target)
            self.target_chunk.append(part.first_chunk)
        amounts = counts if part.tokens is None else part.tokens
        units = self.since + np.cumsum(amounts.sum(axis=1))
        given = self.given + np.cumsum(amounts, axis=0)
        ahead = given - (self.owed + units[:, None] * part.target)
        self.given, self.since = given[-1], units[-1]
        number = (self.num_chunks + np.arange(len(chunk))) // self.stride
        tokens = np.zeros((len(chunk), 0)) if part.tokens is None else part.tokens
        rows = Rows(number, chunk, np.ones_like(chunk), counts, tokens, ahead, ahead, ahead)
        self.pieces.append(_merged(rows))
        if self.stride == 1:
            self.lanes.append(dealt.lane)
        self.num_chunks += len(chunk)
        self.num_rows = int(number[-1]) + 1
        while self.given_stride is None and self.num_rows * self.num_components > self.most_numbers:
            self.stride *= 2
            self.lanes = []
            whole = _joined(self.pieces)
            self.pieces = [_merged(whole._replace(number=whole.number // 2))]
            self.num_rows = -(-self.num_rows // 2)

    def _add_lanes(self, lane: np.ndarray, counts: np.ndarray) -> None:
        self.lane_chunks += np.bincount(lane, minlength=self.num_lanes)
        if self.num_lanes == 1:
            self.lane_draws[0] += counts.sum(axis=0)
        elif len(lane) == 1:
            self.lane_draws[lane[0]] += counts[0]
        else:
            order = np.argsort(lane, kind="stable")
            present, starts = np.unique(lane[order], return_index=True)
            self.lane_draws[present] += np.add.reduceat(counts[order], starts)

    def rows(self) -> Rows:
        """All rows so far."""
        if self.pieces:
            return _joined(self.pieces)
        none, wide = np.zeros(0, dtype=np.int64), np.zeros((0, self.num_components))
        return Rows(none, none, none, wide.astype(np.int64), wide, wide, wide, wide)
