"""What a run will draw, worked out without reading any data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.analysis.chunk_counts import count_chunks
from zephon_jax.analysis.shard_reads import ShardReads, check_reads, shard_reads
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.analysis.simulation_advice import warnings_of
from zephon_jax.analysis.simulation_sums import SimulationSums
from zephon_jax.sources.checks import check_lane
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["simulate"]

_MOST_LANES = 1 << 26  # lanes x components
_MOST_CHUNKS = (1 << 63) - 1  # what 64 bits hold


def simulate(
    source: WorkSource,
    num_chunks: int | None = None,
    num_lanes: int = 1,
    *,
    stride: int | None = None,
    window: int | None = None,
    cache_bytes: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Simulation:
    """Works out what a run draws, without reading data or making sample ids.

    A source that counts its chunks, as mixtures do, is asked for thousands at a time; any other is
    stepped through.

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
    if stride is not None:
        stride = as_int(stride, "stride", 1, _MOST_CHUNKS)
    sums = SimulationSums(num_components=len(names), num_lanes=num_lanes, given_stride=stride)
    check_reads(source, window, cache_bytes)
    for dealt in count_chunks(source, num_chunks, num_lanes):
        sums.add(dealt)
        if progress is not None:
            progress(len(dealt.lane))
    reads = None
    if window is not None:
        reads = shard_reads(source, sums.num_chunks, window, cache_bytes)
    return _record(source, names, sums, reads)


def _check_lanes(num_lanes: int, num_components: int) -> int:
    num_lanes = check_lane(0, num_lanes)[1]
    if num_lanes * max(1, num_components) > _MOST_LANES:
        raise ValueError(
            f"the record holds the samples of each component in each lane, at most {_MOST_LANES:,}"
            f" numbers; got num_lanes = {num_lanes} and {num_components} components. Simulate"
            " fewer lanes."
        )
    return num_lanes


def _record(
    source: WorkSource, names: tuple[str, ...], sums: SimulationSums, reads: ShardReads | None
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
        "bound": _bound(source, sums), "unit": source.unit, "reads": reads,
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


def _bound(source: WorkSource, sums: SimulationSums) -> tuple[float, float] | None:
    """Bounds on the samples of a component beyond its target, where the source gives them.

    They hold for one target, and for whole chunks: a chunk that is cut short, because a dataset
    ends in it, does not keep to the weights.
    """
    whole = source.chunk_size_hint()
    short = whole is None or (sums.shortest is not None and sums.shortest < whole)
    return None if short or len(sums.targets) != 1 else sums.bound
