"""A chunk: the samples of a stretch of the run, grouped by component, without their payload."""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.kernels.lattice_windows import LatticeWindow, LatticeWindows
from zephon_jax.sources.read_order import (
    MixtureReadConfig,
    Reading,
    ReadingWindows,
    WholeReading,
    check_read_config,
    read_order,
)

__all__ = ["MixtureReadConfig", "RangeLookup", "SampleFinder", "SampleId", "WorkChunk"]

_NO_SLOTS, _NO_IDS = np.zeros(0, dtype=np.int32), np.zeros((0, 3), dtype=np.int64)
for _array in (_NO_SLOTS, _NO_IDS):
    _array.setflags(write=False)


class RangeLookup(Protocol):
    """Where the samples of a source's datasets lie."""

    def of_ranges(self, dataset: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Samples of consecutive draws, one range after the other: int64 (n, 3)."""
        ...


class SampleFinder(Protocol):
    """Finds samples of a chunk by component and number among the component's in the chunk."""

    @property
    def lookup(self) -> RangeLookup:
        """What finds them; chunks with the same one are looked up together."""
        ...

    @property
    def drawn(self) -> np.ndarray:
        """Samples of each component drawn before the chunk: int64 (k,)."""
        ...

    def of_ranges(self, component: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Consecutive samples of components, one range after the other: int64 (n, 3)."""
        ...

    def of_numbers(self, component: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Samples in any order: int64 (n, 3)."""
        ...


class SampleId(NamedTuple):
    """Names one sample."""

    __module__ = "zephon_jax"

    dataset_id: int  # place of the dataset in the source's list
    shard_id: int  # place of the shard in the dataset's list
    sample_index: int  # place of the sample in the shard


def _as_ids(name: str, ids: object) -> np.ndarray:
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise ValueError(f"components[{name!r}] must hold triples of integers: {error}") from None
    if array.size == 0:
        return np.zeros((0, 3), dtype=np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != 3:
        raise ValueError(
            f"components[{name!r}] must hold sample ids as integers of shape (n, 3); got"
            f" {array.dtype} {array.shape}."
        )
    if array.min() < 0:
        raise ValueError(f"components[{name!r}] holds a negative sample id: {array.min()}.")
    if array.max() >= 1 << 62:
        raise ValueError(f"components[{name!r}] holds a sample id above 2^62: {array.max()}.")
    return array.astype(np.int64)


class WorkChunk:
    """Sample ids grouped by component, and how to read them in order.

    Args:
      components: Sample ids by component name: int (n, 3) arrays or sequences of `SampleId`.
        Insertion order breaks ties in reading orders, and `order` indexes it.
      seed: Seed for reading modes that are random.
      target_mixture: The shares the chunk stands for, by component, where they are not those of
        its counts (a short chunk keeps its target).
      source_exhausted: Components whose last sample is in this chunk or an earlier one.
      chunk_index: Global index of the chunk, or None where the source does not number them.
      slot: The chunk's slot in its block of lanes, 0 <= slot < num_lanes.
      num_lanes: Lanes among which chunks are dealt.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> chunk = WorkChunk({"web": [(0, 0, 0), (0, 0, 1), (0, 0, 2)], "toy": [(1, 0, 0)]})
      >>> [name for _, name in chunk]
      ['web', 'toy', 'web', 'web']
      >>> len(chunk), chunk.mixture["web"]
      (4, 0.75)
    """

    __module__ = "zephon_jax"

    __slots__ = (
        "_finder", "_ids", "_kept", "_names", "_target", "_upcoming", "_whole",
        "chunk_index", "counts", "num_lanes", "opened", "seed", "slot", "source_exhausted",
    )  # fmt: skip

    counts: np.ndarray
    """int32 (k,): samples of each component, in component order."""
    opened: dict[MixtureReadConfig, ReadingWindows]  # what windows were found with so far

    def __init__(
        self,
        components: Mapping[str, object],
        seed: int | None = None,
        target_mixture: Mapping[str, float] | None = None,
        source_exhausted: Sequence[str] = (),
        *,
        chunk_index: int | None = None,
        slot: int = 0,
        num_lanes: int = 1,
    ):
        if not isinstance(components, Mapping):
            raise TypeError(f"components must be a mapping; got {type(components).__name__}.")
        parts = {name: _as_ids(name, ids) for name, ids in components.items()}
        _check_names("source_exhausted", source_exhausted, Sequence)
        if target_mixture is not None:
            _check_names("target_mixture", target_mixture, Mapping)
        for name, share in (target_mixture or {}).items():
            if not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise ValueError(
                    f"target_mixture[{name!r}] must be a share between 0 and 1; got {short(share)}."
                )
        _check_names("components", parts, Mapping)
        num_lanes = as_int(num_lanes, "num_lanes", 1)
        self._fill(
            names=tuple(parts),
            counts=np.asarray([len(ids) for ids in parts.values()], dtype=np.int32),
            ids=np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts.values()]),
            seed=None if seed is None else as_int(seed, "seed"),
            target=None if target_mixture is None else dict(target_mixture),
            source_exhausted=tuple(source_exhausted),
            chunk_index=None if chunk_index is None else as_int(chunk_index, "chunk_index", 0),
            slot=as_int(slot, "slot", 0, num_lanes - 1),
            num_lanes=num_lanes,
        )

    def _fill(
        self,
        *,
        names: tuple[str, ...],
        counts: np.ndarray,
        ids: np.ndarray | None,
        seed: int | None,
        target: dict[str, float] | None,
        source_exhausted: tuple[str, ...],
        chunk_index: int | None,
        slot: int,
        num_lanes: int,
        whole: int | None = None,
        upcoming: np.ndarray | None = None,
        finder: SampleFinder | None = None,
    ) -> None:
        if ids is not None:
            ids.setflags(write=False)
        counts.setflags(write=False)
        self._names, self.counts, self._ids, self._finder = names, counts, ids, finder
        self.opened = {}
        self._target, self._whole, self._upcoming = target, whole, upcoming
        self._kept: dict[MixtureReadConfig, tuple[np.ndarray, np.ndarray]] = {}
        self.seed, self.source_exhausted = seed, source_exhausted
        self.chunk_index, self.slot, self.num_lanes = chunk_index, slot, num_lanes

    @classmethod
    def from_arrays(cls, **fields: Any) -> WorkChunk:
        """Builds a chunk from arrays that are known to be right, for sources in this package."""
        chunk = cls.__new__(cls)
        chunk._fill(**fields)
        return chunk

    def __getstate__(self) -> dict[str, Any]:
        # What only saves time (orders kept, counts of chunks to come) stays behind.
        return {
            "names": self._names, "counts": self.counts, "ids": self._all_ids(),
            "seed": self.seed,
            "target": self._target,
            "source_exhausted": self.source_exhausted, "chunk_index": self.chunk_index,
            "slot": self.slot, "num_lanes": self.num_lanes, "whole": self._whole,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fill(**state)

    def _all_ids(self) -> np.ndarray:
        """The samples grouped by component, int64 (n, 3); they are found when they are needed."""
        if self._ids is None:
            assert self._finder is not None
            (place,) = self.counts.nonzero()
            ids = self._finder.of_ranges(place, np.zeros_like(place), self.counts[place])
            ids.setflags(write=False)
            self._ids = ids
        return self._ids

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __repr__(self) -> str:
        shown = {n: int(c) for n, c in zip(self._names[:8], self.counts, strict=False)}
        more = "" if len(self._names) <= 8 else f", {len(self._names) - 8} more components"
        return f"WorkChunk(chunk_index={self.chunk_index}, samples={len(self)}, {shown}{more})"

    def __iter__(self) -> Iterator[tuple[SampleId, str]]:
        """Goes through (sample id, component name) in reading order, by default settings."""
        component, ids = self.order()
        for d, row in zip(component.tolist(), ids.tolist(), strict=True):
            yield SampleId(*row), self._names[d]

    @property
    def names(self) -> tuple[str, ...]:
        """Component names in component order."""
        return self._names

    @property
    def components(self) -> Mapping[str, np.ndarray]:
        """Sample ids by component, int64 (n, 3) each, read-only, in component order."""
        ids = self._all_ids()
        if ids.base is not None:  # who keeps a part must not keep the chunks found with it
            ids = ids.copy()
            ids.setflags(write=False)
            self._ids = ids
        ends = np.cumsum(self.counts)
        parts = zip(self._names, (ends - self.counts).tolist(), ends.tolist(), strict=True)
        return MappingProxyType({name: ids[begin:end] for name, begin, end in parts})

    @property
    def mixture(self) -> Mapping[str, float]:
        """Share of each component in this chunk's samples."""
        total = max(1, len(self))
        shares = zip(self._names, self.counts.tolist(), strict=True)
        return MappingProxyType({name: count / total for name, count in shares})

    @property
    def target_mixture(self) -> Mapping[str, float]:
        """The shares the chunk stands for: its own, where no target was set."""
        return self.mixture if self._target is None else MappingProxyType(self._target)

    def order(self, config: MixtureReadConfig | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Puts the samples in reading order.

        Args:
          config: How to read; smooth weighted round robin by default.

        Returns:
          Component indices, int32 (n,), places in the order of `components`, and sample ids,
          int64 (n, 3). Read-only where others may share them.

        Raises:
          ValueError: If the mode needs a seed and there is none.
        """
        config = check_read_config(config)
        if config in self._kept:
            return self._kept[config]
        reading = self._reading(config)
        result = reading.component, self._all_ids().take(reading.grouped, axis=0)
        if config.precompute:
            for array in result:
                array.setflags(write=False)
            self._kept[config] = result
        return result

    @property
    def finder(self) -> SampleFinder | None:
        """What finds samples of the chunk, where the source gave the counts alone."""
        return self._finder

    @property
    def by_window(self) -> bool:
        """True where nothing is known yet but counts: `window` takes less than `order` then."""
        return self._ids is None

    def window(
        self, start: int, stop: int, config: MixtureReadConfig | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Puts a part of the samples in reading order: slots start to stop of `order`.

        By "lattice" it takes as long as the part, whatever the chunk; other modes, and
        `shuffle_within_component`, work out the components of all slots once. Samples are found for
        the part alone.

        Args:
          start: The first slot, 0 <= start.
          stop: The one after the last, start <= stop <= len(chunk).
          config: How to read; smooth weighted round robin by default.

        Returns:
          Component indices, int32 (stop - start,), and sample ids, int64 (stop - start, 3).

        Raises:
          TypeError, ValueError: If the slots are not in the chunk, or the mode needs a seed and
            there is none.

        Example:
          >>> chunk = WorkChunk({"web": [(0, 0, 0), (0, 0, 1), (0, 0, 2)], "toy": [(1, 0, 0)]})
          >>> component, sample_ids = chunk.window(1, 3)
          >>> component.tolist(), sample_ids.tolist()
          ([1, 0], [[1, 0, 0], [0, 0, 1]])
        """
        stop = as_int(stop, "stop", 0, len(self))
        start = as_int(start, "start", 0, stop)
        config = check_read_config(config)
        finder = self._finder
        if config in self._kept or finder is None or start == stop:
            component, ids = self.order(config) if start < stop else (_NO_SLOTS, _NO_IDS)
            return component[start:stop], ids[start:stop]
        if config not in self.opened:
            self.opened[config] = self._windows(config)
        found = self.opened[config].window(start, stop)
        if isinstance(found, LatticeWindow):
            (place,) = found.counts.nonzero()
            ids = finder.of_ranges(place, found.first[place], found.counts[place])
            begins = np.cumsum(found.counts) - found.counts - found.first
            return found.component, ids.take(found.number + begins[found.component], axis=0)
        return found.component, finder.of_numbers(found.component, found.number)

    def _windows(self, config: MixtureReadConfig) -> ReadingWindows:
        if config.mode == "lattice" and not config.shuffle_within_component:
            return LatticeWindows(self.counts, self.slot, self.num_lanes)
        return WholeReading(self._reading(config), self.counts)

    def _reading(self, config: MixtureReadConfig) -> Reading:
        chunk_index = self.chunk_index or 0
        whole = len(self) if self._whole is None else self._whole
        return read_order(
            self.counts, config, names=self._names, seed=self.seed, chunk_index=chunk_index,
            slot=self.slot, num_lanes=self.num_lanes, size=whole, upcoming=self._upcoming,
        )  # fmt: skip


def _check_names(argument: str, names: Any, kind: type) -> None:
    if isinstance(names, str) or not isinstance(names, kind):
        what = "a mapping by component name" if kind is Mapping else "a sequence of names"
        raise TypeError(f"{argument} must be {what}; got {short(names)}.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must name components by strings; got {short(name)}.")
