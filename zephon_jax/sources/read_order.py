"""Reading orders: which component each slot of a chunk belongs to.

The order of a chunk follows from its counts alone, and counts recur from chunk to chunk, so round
robin orders are remembered. In NumPy the round robin costs as much for thirty chunks as for
four, so a chunk that has to compute its own computes those of the lane's next chunks with it.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._bounded_cache import BoundedCache
from zephon_jax._text import short
from zephon_jax.kernels import backend, lattice
from zephon_jax.kernels.keys import make_key
from zephon_jax.kernels.lattice_windows import LatticeWindow
from zephon_jax.kernels.permutation import permute

__all__ = [
    "MODES",
    "MixtureReadConfig",
    "Reading",
    "ReadingWindow",
    "ReadingWindows",
    "WholeReading",
    "check_read_config",
    "read_order",
]

MODES = ("smooth_weighted_round_robin", "weighted_random", "lattice")
_MODES_ELSEWHERE = {"weighted_round_robin": "smooth_weighted_round_robin"}  # Zephon's name
_MAX_REMEMBERED = 1 << 22  # slots of round robin orders kept, 5 bytes each
_MOST_AHEAD = 63  # chunks whose orders are computed with one,
_MOST_SLOTS = 1 << 21  # up to so many slots in all


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureReadConfig:
    """How the samples of a chunk are put in line.

    Fields:
      mode: "smooth_weighted_round_robin" holds every prefix of a chunk to its mixture;
        "weighted_random" deals the slots at random, counts exact, another order in each chunk;
        "lattice" also holds every batch of one row a lane to the mixture, within 1.5 rows where
        `chunk_size` is at least 64 times the number of lanes.
      seed: For "weighted_random" and `shuffle_within_component`; the source's seed by default.
      shuffle_within_component: Deal the samples of each component in a random order instead of
        their stored one.
      precompute: Keep the chunk's order once it is computed, 28 bytes a sample, instead of
        computing it anew in each call of `order`.

    Example:
      >>> MixtureReadConfig(mode="lattice").mode
      'lattice'
    """

    __module__ = "zephon_jax"

    mode: str = "smooth_weighted_round_robin"
    seed: int | None = None
    shuffle_within_component: bool = False
    precompute: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            mine = _MODES_ELSEWHERE.get(getattr(self.mode, "value", self.mode))
            hint = f" What you mean is mode={mine!r} here." if mine else ""
            raise ValueError(f"mode must be one of {MODES}; got {short(self.mode)}.{hint}")
        if self.seed is not None:
            as_int(self.seed, "seed")
        for name in ("shuffle_within_component", "precompute"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False; got {short(getattr(self, name))}.")


_DEFAULT = MixtureReadConfig()  # one object, which compares fast


class Reading(NamedTuple):
    """A chunk's slots in reading order."""

    component: np.ndarray  # int32 (C,), the component of each slot
    grouped: np.ndarray  # int64 (C,), where its sample lies among the chunk's grouped samples


class ReadingWindow(NamedTuple):
    """Some consecutive slots of a chunk in reading order."""

    component: np.ndarray  # int32 (n,), the component of each slot
    number: np.ndarray  # int64 (n,), which of its component's samples in the chunk it takes


class ReadingWindows(Protocol):
    """A chunk's reading order, of which parts are asked for."""

    def window(self, start: int, stop: int) -> ReadingWindow | LatticeWindow:
        """Slots start to stop."""
        ...


class WholeReading:
    """Parts of an order that is known as a whole.

    Args:
      reading: The order.
      counts: int32 (k,), samples of each component.
    """

    def __init__(self, reading: Reading, counts: np.ndarray):
        self._reading, self._begins = reading, np.cumsum(counts) - counts

    def window(self, start: int, stop: int) -> ReadingWindow:
        """Slots start to stop."""
        component = self._reading.component[start:stop]
        return ReadingWindow(component, self._reading.grouped[start:stop] - self._begins[component])


# Round robin readings by counts, in narrow words.
remembered: BoundedCache[bytes, Reading] = BoundedCache(
    _MAX_REMEMBERED, lambda reading: reading.component.size
)


def _narrow(k: int) -> type[np.integer[Any]]:
    return np.uint8 if k <= 1 << 8 else np.uint16 if k <= 1 << 16 else np.int32


def _group(component: np.ndarray, k: int) -> np.ndarray:
    """Where each slot's sample lies when samples are grouped by component: int64 (C,)."""
    source = np.empty(component.size, dtype=np.int64)
    # A stable sort of narrow integers is a radix sort.
    order = np.argsort(component.astype(_narrow(k)), kind="stable")
    source[order] = np.arange(component.size)
    return source


def _round_robin(counts: np.ndarray, size: int, upcoming: np.ndarray | None) -> Reading:
    kept = remembered.get(counts.tobytes())
    if kept is not None:
        return Reading(kept.component.astype(np.int32), kept.grouped.astype(np.int64))
    rows = counts[None]
    if upcoming is not None and len(upcoming):
        most = min(_MOST_AHEAD, _MOST_SLOTS // max(1, size))
        ahead = [row for row in upcoming[:most] if remembered.get(row.tobytes()) is None]
        rows = np.unique(np.concatenate([rows, *(row[None] for row in ahead)]), axis=0)
    found, narrow = None, _narrow(counts.size)
    for row, slots in zip(rows, backend.swrr_orders(rows, size), strict=True):
        component = slots.astype(np.int32)
        reading = Reading(component, _group(component, counts.size))
        kept = Reading(component.astype(narrow), reading.grouped.astype(np.int32))
        remembered.put(row.tobytes(), kept)
        if np.array_equal(row, counts):
            found = reading
    assert found is not None
    return found


def _weighted_random(counts: np.ndarray, key: np.ndarray) -> Reading:
    total = int(counts.sum())
    place = permute(np.arange(total), total, key)
    component = np.repeat(np.arange(counts.size, dtype=np.int32), counts)[place]
    return Reading(component, _group(component, counts.size))


def _shuffle_each(
    reading: Reading, counts: np.ndarray, names: Sequence[str], seed: int, chunk_index: int
) -> Reading:
    """Permutes the samples of each component among the slots that it has."""
    ends = np.cumsum(counts)
    moved = np.empty(int(ends[-1]), dtype=np.int64)
    for d in np.flatnonzero(counts).tolist():
        begin, end = int(ends[d] - counts[d]), int(ends[d])
        key = make_key(seed, "read", "within", chunk_index, names[d])
        moved[begin:end] = begin + permute(np.arange(end - begin), end - begin, key)
    return Reading(reading.component, moved[reading.grouped])


def check_read_config(config: MixtureReadConfig | None) -> MixtureReadConfig:
    """Returns a reading configuration, the default for None.

    Raises:
      TypeError: If it is something else.
    """
    if config is None:
        return _DEFAULT
    if not isinstance(config, MixtureReadConfig):
        raise TypeError(
            f"read_config must be a MixtureReadConfig; got {short(config)}. For a mode alone, give"
            " MixtureReadConfig(mode=...)."
        )
    return config


def read_order(
    counts: np.ndarray,
    config: MixtureReadConfig,
    *,
    names: Sequence[str],
    seed: int | None,
    chunk_index: int,
    slot: int,
    num_lanes: int,
    size: int,
    upcoming: np.ndarray | None = None,
) -> Reading:
    """Returns a chunk's reading order.

    Args:
      counts: int32 (k,), samples of each component.
      config: How to read.
      names: Component names, folded into what is random.
      seed: The source's seed, which the configuration's own overrides.
      chunk_index: Global chunk index, folded into what is random.
      slot: The chunk's slot in its block of lanes, for the lattice.
      num_lanes: Lanes, for the lattice.
      size: The size of a whole chunk, so that short ones need no kernel of their own.
      upcoming: int32 (n, k), counts of chunks that will be read soon.

    Raises:
      ValueError: If the mode needs a seed and there is none.
    """
    random = config.mode == "weighted_random" or config.shuffle_within_component
    seed = config.seed if config.seed is not None else seed
    if random and seed is None:
        raise ValueError(
            f"mode={config.mode!r} with shuffle_within_component="
            f"{config.shuffle_within_component} needs a seed, and neither the chunk nor the"
            " MixtureReadConfig has one. Give MixtureReadConfig(seed=...)."
        )
    if not counts.any():
        return Reading(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
    if config.mode == "lattice":
        component = lattice.order(counts, slot, num_lanes)
        reading = Reading(component, _group(component, counts.size))
    elif config.mode == "weighted_random":
        assert seed is not None
        reading = _weighted_random(counts, make_key(seed, "read", "slots", chunk_index))
    else:
        reading = _round_robin(counts, size, upcoming)
    if config.shuffle_within_component:
        assert seed is not None
        reading = _shuffle_each(reading, counts, names, seed, chunk_index)
    return reading
