"""Which shards a run touches, and what a cache of whole shards would have to fetch."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import counted
from zephon_jax.sources.work_source import WorkSource

__all__ = ["ShardReads", "check_reads", "shard_reads"]


class ShardReads(NamedTuple):
    """Shards by windows of chunks, all lanes together."""

    window: int  # chunks
    num_chunks: int  # chunks that were looked at, of the run's first
    chunk: np.ndarray  # int64 (n,), first chunk of each window
    shards: np.ndarray  # int64 (n, k), different shards of each component's samples in it
    fetched_shards: np.ndarray  # int64 (n,), shards that were not in the cache when touched
    fetched: np.ndarray  # int64 (n,), their bytes, or samples where the bytes are not known
    unit: str  # "bytes" or "samples"

    def summary(self) -> str:
        """The reads in words."""
        if not len(self.chunk):
            return "no chunk to read"
        most, fetched = int(self.shards.sum(axis=1).max()), int(self.fetched_shards.sum())
        return (
            f"reads of the first {counted(self.num_chunks, 'chunk')}, by windows of"
            f" {self.window:,}: up to {counted(most, 'shard')} in a window;"
            f" {counted(fetched, 'shard')} fetched,"
            f" {counted(int(self.fetched.sum()), self.unit.removesuffix('s'))}"
        )


def _sizes(source: WorkSource) -> tuple[dict[int, np.ndarray], str]:
    """The size of each shard by dataset: bytes, or samples unless all bytes are known."""
    found: dict[int, np.ndarray] = {}
    for dataset_id, dataset in source.datasets_by_id.items():
        # Of a source in memory nobody knows the bytes: `shard_bytes` has its samples.
        in_memory = getattr(dataset, "readable", False) and not getattr(dataset, "shards", ())
        sizes = getattr(dataset, "shard_bytes", None)
        if sizes is not None and not in_memory:
            found[dataset_id] = sizes
    if len(found) == len(source.datasets_by_id):
        return found, "bytes"
    counts = {
        dataset_id: np.asarray(dataset.shard_counts, dtype=np.int64)
        for dataset_id, dataset in source.datasets_by_id.items()
    }
    return counts, "samples"


class _Cache:
    """Whole shards, the one that was touched longest ago dropped first."""

    def __init__(self, most: int | None, sizes: dict[int, np.ndarray]):
        self._most, self._sizes = most, sizes
        self._held: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._total = 0

    def touch(self, dataset_id: int, shard_id: int) -> int | None:
        """The size of a shard that has to be fetched, or None where it is held."""
        name = dataset_id, shard_id
        if name in self._held:
            self._held.move_to_end(name)
            return None
        size = int(self._sizes[dataset_id][shard_id])
        self._held[name] = size
        self._total += size
        while self._most is not None and self._total > self._most and len(self._held) > 1:
            self._total -= self._held.popitem(last=False)[1]
        return size


def _shards_of(ids: np.ndarray) -> list[tuple[int, int]]:
    """The different (dataset id, shard id) of some samples, in the order of first use."""
    found = []
    for dataset in np.unique(ids[:, 0]).tolist():
        places = np.flatnonzero(ids[:, 0] == dataset)
        shards, first = np.unique(ids[places, 1], return_index=True)
        pairs = zip(places[first].tolist(), shards.tolist(), strict=True)
        found += [(place, (dataset, shard)) for place, shard in pairs]
    return [pair for _, pair in sorted(found)]


def check_reads(source: WorkSource, window: int | None, cache_bytes: int | None) -> None:
    """Checks what `shard_reads` is asked for, before anything is worked out.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or the datasets are not known.
    """
    if cache_bytes is not None:
        as_int(cache_bytes, "cache_bytes", 0)
        if window is None:
            raise ValueError(
                "cache_bytes says nothing without window, the chunks in a window of reads."
            )
    if window is None:
        return
    as_int(window, "window", 1)
    if not source.datasets_by_id:
        raise ValueError(f"{type(source).__name__} gives no datasets_by_id: shards are not known.")


def shard_reads(
    source: WorkSource,
    num_chunks: int,
    window: int,
    cache_bytes: int | None,
    *,
    most_samples: int = 1 << 25,
) -> ShardReads:
    """Goes through the first chunks of a run and counts the shards that they touch.

    Args:
      source: Any source whose datasets are known.
      num_chunks: Chunks to look at; fewer where they hold more than `most_samples`.
      window: Chunks in a window.
      cache_bytes: What a cache of whole shards may hold, the one longest unused dropped first;
        None for all of them. In samples where the bytes of a dataset are not known.
      most_samples: Samples after which no further chunk is looked at.
    """
    place = {name: d for d, name in enumerate(source.component_ids())}
    sizes, unit = _sizes(source)
    cache = _Cache(cache_bytes, sizes)
    state, samples, looked = source.init(), 0, 0
    starts, shards, fetched = [], [], []
    touched: list[set[tuple[int, int]]] = []
    while looked < num_chunks and samples < most_samples:
        chunk, state = source.next_chunk(state)
        if chunk is None:
            break
        if looked % window == 0:
            starts.append(looked)
            shards.append([0] * len(place))
            fetched.append([0, 0])
            touched = [set() for _ in place]
        for name, ids in chunk.components.items():
            pairs = _shards_of(ids)
            touched[place[name]].update(pairs)
            missed = [size for pair in pairs if (size := cache.touch(*pair)) is not None]
            fetched[-1] = [fetched[-1][0] + len(missed), fetched[-1][1] + sum(missed)]
        shards[-1] = [len(one) for one in touched]
        looked, samples = looked + 1, samples + len(chunk)
    both = np.asarray(fetched, dtype=np.int64).reshape(-1, 2)
    return ShardReads(
        window=window,
        num_chunks=looked,
        chunk=np.asarray(starts, dtype=np.int64),
        shards=np.asarray(shards, dtype=np.int64).reshape(-1, len(place)),
        fetched_shards=both[:, 0],
        fetched=both[:, 1],
        unit=unit,
    )
