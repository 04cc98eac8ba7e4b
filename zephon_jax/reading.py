"""Reading orders: which component each slot of a chunk belongs to.

The order of a chunk follows from its counts alone, and counts recur from chunk to chunk, so round
robin orders are remembered. In NumPy the round robin costs as much for thirty chunks as for
four, so a chunk that has to compute its own computes those of the lane's next chunks with it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zephon_jax import backend, lattice
from zephon_jax._xp import as_int
from zephon_jax.keys import make_key
from zephon_jax.permutation import permute

__all__ = ["MODES", "MixtureReadConfig", "Reading", "check_read_config", "read_order"]

MODES = ("smooth_weighted_round_robin", "weighted_random", "lattice")
_MAX_REMEMBERED = 1 << 20  # slots of round robin orders kept, 8 bytes each


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

    mode: str = "smooth_weighted_round_robin"
    seed: int | None = None
    shuffle_within_component: bool = False
    precompute: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}; got {self.mode!r}.")
        if self.seed is not None:
            as_int(self.seed, "seed")
        for name in ("shuffle_within_component", "precompute"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False; got {getattr(self, name)!r}.")


_DEFAULT = MixtureReadConfig()  # one object, which compares fast


class Reading(NamedTuple):
    """A chunk's slots in reading order."""

    component: np.ndarray  # int32 (C,), the component of each slot
    source: np.ndarray  # int64 (C,), where its sample lies among the chunk's grouped samples


class _Remembered:
    """Round robin readings by counts, the oldest dropped first. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: OrderedDict[bytes, Reading] = OrderedDict()
        self._slots = 0

    def get(self, counts: np.ndarray) -> Reading | None:
        with self._lock:
            name = counts.tobytes()
            if name in self._readings:
                self._readings.move_to_end(name)
            return self._readings.get(name)

    def put(self, counts: np.ndarray, reading: Reading) -> None:
        with self._lock:
            name = counts.tobytes()
            if name not in self._readings:
                self._readings[name] = reading
                self._slots += reading.component.size
            while self._slots > _MAX_REMEMBERED and len(self._readings) > 1:
                self._slots -= self._readings.popitem(last=False)[1].component.size


_remembered = _Remembered()


def _group(component: np.ndarray, k: int) -> np.ndarray:
    """Where each slot's sample lies when samples are grouped by component: int64 (C,)."""
    narrow = np.uint8 if k <= 1 << 8 else np.uint16 if k <= 1 << 16 else np.int32
    source = np.empty(component.size, dtype=np.int64)
    # A stable sort of narrow integers is a radix sort.
    source[np.argsort(component.astype(narrow), kind="stable")] = np.arange(component.size)
    return source


def _round_robin(
    counts: np.ndarray, size: int, upcoming: Callable[[], np.ndarray] | None
) -> Reading:
    reading = _remembered.get(counts)
    if reading is not None:
        return reading
    rows = counts[None]
    if upcoming is not None:
        ahead = [row for row in upcoming() if _remembered.get(row) is None]
        rows = np.unique(np.concatenate([rows, *(row[None] for row in ahead)]), axis=0)
    for row, slots in zip(rows, backend.swrr_orders(rows, size), strict=True):
        component = slots.astype(np.int32)
        component.setflags(write=False)
        one = Reading(component, _group(component, counts.size))
        _remembered.put(row, one)
        if np.array_equal(row, counts):
            reading = one
    assert reading is not None
    return reading


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
    return Reading(reading.component, moved[reading.source])


def check_read_config(config: MixtureReadConfig | None) -> MixtureReadConfig:
    """Returns a reading configuration, the default for None.

    Raises:
      TypeError: If it is something else.
    """
    if config is None:
        return _DEFAULT
    if not isinstance(config, MixtureReadConfig):
        raise TypeError(
            f"read_config must be a MixtureReadConfig; got {config!r}. For a mode alone, give"
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
    upcoming: Callable[[], np.ndarray] | None = None,
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
      upcoming: Gives counts (n, k) of chunks that will be read soon.

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
