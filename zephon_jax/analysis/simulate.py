"""What a run will draw, worked out without reading any data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.analysis.chunk_counts import Stretch, stretches
from zephon_jax.analysis.shard_reads import ShardReads, check_reads, shard_reads
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.analysis.simulation_advice import warnings_of
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.checks import check_lane
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["simulate"]

_MOST_NUMBERS = 1 << 23  # rows x components kept, before rows are put together
_MOST_LANES = 1 << 26  # lanes x components
_MOST_CHUNKS = (1 << 63) - 1  # what 64 bits hold


class _Rows(NamedTuple):
    """Rows that are being put together; those with the same number become one."""

    number: np.ndarray  # int64 (n,), ascending
    chunk: np.ndarray
    chunks: np.ndarray
    draws: np.ndarray
    tokens: np.ndarray  # (n, 0) where weights are shares of samples
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _merged(rows: _Rows) -> _Rows:
    """Puts rows of the same number together."""
    starts = np.flatnonzero(np.diff(rows.number, prepend=-1))
    if len(starts) == len(rows.number):
        return rows
    ends = np.append(starts[1:], len(rows.number)) - 1
    return _Rows(
        number=rows.number[starts],
        chunk=rows.chunk[starts],
        chunks=np.add.reduceat(rows.chunks, starts),
        draws=np.add.reduceat(rows.draws, starts),
        tokens=np.add.reduceat(rows.tokens, starts),
        deviation=rows.deviation[ends],
        low=np.minimum.reduceat(rows.low, starts),
        high=np.maximum.reduceat(rows.high, starts),
    )


def _joined(pieces: Sequence[_Rows]) -> _Rows:
    made: dict[tuple[int, ...], np.ndarray] = {}
    columns = []
    for parts in zip(*pieces, strict=True):
        # Where a row is a chunk, the least, the most and the last deviation are one array.
        name = tuple(map(id, parts))
        if name not in made:
            made[name] = np.concatenate(parts)
        columns.append(made[name])
    return _merged(_Rows(*columns))


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Everything that is added up while a run is gone through."""

    num_components: int
    num_lanes: int
    stride: int
    fixed_stride: bool
    pieces: list[_Rows] = field(default_factory=list)
    lanes: list[np.ndarray] = field(default_factory=list)
    num_rows: int = 0
    num_chunks: int = 0
    ended: bool = False
    fewest: int | None = None  # samples of the shortest chunk
    target_chunk: list[int] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)
    exhausted: list[tuple[str, int]] = field(default_factory=list)
    seeds: dict[int | None, int] = field(default_factory=dict)
    owed: np.ndarray = field(init=False)  # float64 (k,), target units up to the target's change
    since: float = 0  # units since then
    given: np.ndarray = field(init=False)  # units of each component so far
    first: np.ndarray = field(init=False)
    last: np.ndarray = field(init=False)
    lane_chunks: np.ndarray = field(init=False)
    lane_draws: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        k, num_lanes = self.num_components, self.num_lanes
        self.given, self.owed = np.zeros(k, dtype=np.int64), np.zeros(k)
        self.first = np.full(k, -1, dtype=np.int64)
        self.last = np.full(k, -1, dtype=np.int64)
        self.lane_chunks = np.zeros(num_lanes, dtype=np.int64)
        self.lane_draws = np.zeros((num_lanes, k), dtype=np.int64)

    def add(self, stretch: Stretch) -> None:
        """Adds consecutive chunks."""
        counts = stretch.counts
        chunk = np.arange(stretch.first_chunk, stretch.first_chunk + len(counts))
        if len(counts):
            fewest = int(counts.sum(axis=1).min())
            self.fewest = fewest if self.fewest is None else min(self.fewest, fewest)
            self._add_rows(chunk, counts, stretch)
            self._add_lanes(stretch.lane, counts)
            held = counts > 0
            some = held.any(axis=0)
            self.first = np.where(some & (self.first < 0), chunk[held.argmax(axis=0)], self.first)
            self.last = np.where(some, chunk[-1 - held[::-1].argmax(axis=0)], self.last)
        self.ended = self.ended or stretch.ended
        self.exhausted += [(n, stretch.first_chunk + len(counts) - 1) for n in stretch.gone]
        if stretch.seed is not None:
            self.seeds[stretch.seed] = self.seeds.get(stretch.seed, 0) + 1

    def _add_rows(self, chunk: np.ndarray, counts: np.ndarray, stretch: Stretch) -> None:
        if not self.targets or not np.array_equal(self.targets[-1], stretch.target):
            if self.targets:
                self.owed = self.owed + self.since * self.targets[-1]
            self.since = 0
            self.targets.append(stretch.target)
            self.target_chunk.append(stretch.first_chunk)
        amounts = counts if stretch.tokens is None else stretch.tokens
        units = self.since + np.cumsum(amounts.sum(axis=1))
        given = self.given + np.cumsum(amounts, axis=0)
        ahead = given - (self.owed + units[:, None] * stretch.target)
        self.given, self.since = given[-1], units[-1]
        number = (self.num_chunks + np.arange(len(chunk))) // self.stride
        tokens = np.zeros((len(chunk), 0)) if stretch.tokens is None else stretch.tokens
        rows = _Rows(number, chunk, np.ones_like(chunk), counts, tokens, ahead, ahead, ahead)
        self.pieces.append(_merged(rows))
        if self.stride == 1:
            self.lanes.append(stretch.lane)
        self.num_chunks += len(chunk)
        self.num_rows = int(number[-1]) + 1
        while not self.fixed_stride and self.num_rows * self.num_components > _MOST_NUMBERS:
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

    def rows(self) -> _Rows:
        """All rows so far."""
        if self.pieces:
            return _joined(self.pieces)
        none, wide = np.zeros(0, dtype=np.int64), np.zeros((0, self.num_components))
        return _Rows(none, none, none, wide.astype(np.int64), wide, wide, wide, wide)


def simulate(
    source: WorkSource,
    num_chunks: int | None = None,
    num_lanes: int = 1,
    *,
    stride: int | None = None,
    window: int | None = None,
    cache_bytes: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Simulation:
    """Works out what a run draws, without reading data or making sample ids.

    A mixture is worked out thousands of chunks at a time; any other source is stepped through.

    Args:
      source: Any source.
      num_chunks: Chunks to look at, of all lanes together; None for the whole run.
      num_lanes: Lanes that the chunks are dealt to.
      stride: Chunks in a row of the record. By default 1, doubled as often as it takes for the
        rows to stay within 2^23 numbers of each kind, so that memory stays bounded.
      window: Also go through the samples of the first chunks, 2^25 samples at most, and count the
        shards that each window of so many chunks touches.
      cache_bytes: With `window`: what a cache of whole shards may hold, to see what would have to
        be fetched. None for all shards.
      progress: Called with the number of chunks that were gone through since the last call.

    Returns:
      A record of arrays; `print` shows its summary.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or the whole of an endless run is asked
        for.

    Example:
      >>> import zephon_jax as zx
      >>> web, toy = zx.Dataset.from_counts("web", [600, 400]), zx.Dataset.from_counts("toy", [50])
      >>> source = zx.StaticMixtureWorkSource([web, toy], {"web": 3, "toy": 1}, chunk_size=100)
      >>> run = zx.simulate(source)
      >>> run.num_chunks, run.draws[0].tolist(), run.passes[-1].tolist()
      (14, [75, 25], [1.05, 7.0])
    """
    check_source(source)
    if num_chunks is not None:
        num_chunks = as_int(num_chunks, "num_chunks", 0, _MOST_CHUNKS)
    names = tuple(source.component_ids())
    num_lanes = _check_lanes(num_lanes, len(names))
    sums = _Sums(
        num_components=len(names),
        num_lanes=num_lanes,
        stride=1 if stride is None else as_int(stride, "stride", 1, _MOST_CHUNKS),
        fixed_stride=stride is not None,
    )
    check_reads(source, window, cache_bytes)
    for stretch in stretches(source, num_chunks, num_lanes):
        sums.add(stretch)
        if progress is not None:
            progress(len(stretch.counts))
    reads = None
    if window is not None:
        reads = shard_reads(source, sums.num_chunks, window, cache_bytes)
    return _record(source, names, sums, reads)


def _check_lanes(num_lanes: Any, num_components: int) -> int:
    num_lanes = check_lane(0, num_lanes)[1]
    if num_lanes * max(1, num_components) > _MOST_LANES:
        raise ValueError(
            f"the record holds the samples of each component in each lane, at most {_MOST_LANES:,}"
            f" numbers; got num_lanes = {num_lanes} and {num_components} components. Simulate"
            " fewer lanes."
        )
    return num_lanes


def _record(
    source: WorkSource, names: tuple[str, ...], sums: _Sums, reads: ShardReads | None
) -> Simulation:
    rows = sums.rows()
    lane = np.concatenate(sums.lanes) if sums.lanes else np.full(len(rows.chunk), -1)
    arrays: dict[str, Any] = {
        "chunk": rows.chunk, "chunks": rows.chunks, "lane": lane, "draws": rows.draws,
        "tokens": rows.tokens,
        "deviation": rows.deviation, "deviation_low": rows.low, "deviation_high": rows.high,
        "target_chunk": np.asarray(sums.target_chunk, dtype=np.int64),
        "targets": np.asarray(sums.targets, dtype=np.float64).reshape(-1, len(names)),
        "lane_chunks": sums.lane_chunks, "lane_draws": sums.lane_draws,
        "first_draw": sums.first, "last_draw": sums.last, "totals": _totals(source, names),
    }  # fmt: skip
    for array in arrays.values():
        array.setflags(write=False)
    plain: dict[str, Any] = {
        "names": names, "num_lanes": sums.num_lanes, "num_chunks": sums.num_chunks,
        "ended": sums.ended, "stride": sums.stride, "exhausted": tuple(sums.exhausted),
        "bound": _bound(source, sums), "unit": _unit(source), "reads": reads,
    }  # fmt: skip
    said = warnings_of(Simulation(**plain, **arrays, warnings=()), source, sums.seeds)
    return Simulation(**plain, **arrays, warnings=tuple(said))


def _totals(source: WorkSource, names: tuple[str, ...]) -> np.ndarray:
    """Samples in a pass of the dataset of each component's name: int64 (k,), 0 where none has."""
    sizes = {
        dataset.name: int(np.asarray(dataset.shard_counts, dtype=np.int64).sum())
        for dataset in source.datasets_by_id.values()
    }
    return np.asarray([sizes.get(name, 0) for name in names], dtype=np.int64)


def _unit(source: WorkSource) -> str:
    """What weights are shares of."""
    tokens = isinstance(source, StaticMixtureWorkSource) and source.token_estimation is not None
    return "tokens" if tokens else "samples"


def _bound(source: WorkSource, sums: _Sums) -> tuple[float, float] | None:
    """How far a component can be from its target, where the way of allocation bounds it."""
    if not isinstance(source, StaticMixtureWorkSource) or len(sums.targets) != 1:
        return None
    # A chunk that is cut short by who leaves in it does not hold to the weights.
    if sums.fewest is not None and sums.fewest < source.settings.chunk_size:
        return None
    return (-2.0, 1.0) if source.settings.allocation == "incremental" else None
