"""Windows of many chunks at once, for a process that goes through many lanes in lockstep.

A NumPy call costs more than the few slots of one lane. The lattice orders of chunks of one size are
found by the same calls, and so are the samples of all windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from zephon_jax.kernels.lattice_windows import LatticeWindow, LatticeWindows
from zephon_jax.sources.chunk import SampleFinder, WorkChunk
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config

__all__ = ["ChunkWindow", "windows_of"]

_TOGETHER = 1 << 17  # slots looked up at once, whose arrays take some ten megabytes


class ChunkWindow(NamedTuple):
    """Consecutive slots of a chunk."""

    chunk: WorkChunk
    start: int
    stop: int


def windows_of(
    windows: Sequence[ChunkWindow], config: MixtureReadConfig | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns what `chunk.window` gives for each of many windows, found together.

    Args:
      windows: At most one of each chunk, or some of one chunk.
      config: How chunks are read; smooth weighted round robin by default.

    Returns:
      Component indices, int32 (n,), and sample ids, int64 (n, 3), of each window.

    Raises:
      TypeError, ValueError: As `chunk.window`.
    """
    config = check_read_config(config)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for places in _batches(windows, config):
        part = [windows[place] for place in places]
        orders = _orders(part, config)
        found.update(zip(places, _samples(part, orders), strict=True))
    for place, (chunk, start, stop) in enumerate(windows):
        if place not in found:
            found[place] = chunk.window(start, stop, config)
    return [found[place] for place in range(len(windows))]


def _batches(windows: Sequence[ChunkWindow], config: MixtureReadConfig) -> list[list[int]]:
    """Places of windows that are found by the same calls: of one start, size and kind of chunk."""
    if config.mode != "lattice" or config.shuffle_within_component:
        return []
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, (chunk, start, stop) in enumerate(windows):
        if chunk.by_window and chunk.finder is not None and start < stop <= len(chunk):
            lookup, k = id(chunk.finder.lookup), chunk.counts.size
            alike[lookup, k, len(chunk), chunk.num_lanes, start, stop].append(place)
    batches: list[list[int]] = []
    for (_, k, _, _, start, stop), places in alike.items():
        num = max(1, _TOGETHER // (stop - start + k))
        batches += [places[n : n + num] for n in range(0, len(places), num)]
    return batches


def _orders(windows: list[ChunkWindow], config: MixtureReadConfig) -> list[LatticeWindow]:
    chunks = [window.chunk for window in windows]
    new = [chunk for chunk in chunks if config not in chunk.opened]
    counts = np.asarray([chunk.counts for chunk in new])
    slots = np.asarray([chunk.slot for chunk in new])
    if new:
        opened = LatticeWindows.of_chunks(counts, slots, new[0].num_lanes)
        for chunk, one in zip(new, opened, strict=True):
            chunk.opened[config] = one
    orders = [cast("LatticeWindows", chunk.opened[config]) for chunk in chunks]
    return LatticeWindows.windows_of(orders, windows[0].start, windows[0].stop)


def _samples(
    windows: list[ChunkWindow], orders: list[LatticeWindow]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Components and samples of windows, whose samples are looked up by one call."""
    finders = [cast("SampleFinder", window.chunk.finder) for window in windows]
    counts = np.asarray([order.counts for order in orders])
    window, component = counts.nonzero()
    many = counts[window, component]
    first = np.asarray([order.first for order in orders])
    drawn = np.asarray([finder.drawn for finder in finders])
    before = (drawn + first)[window, component]
    ids = finders[0].lookup.of_ranges(component, before, many)
    begins = np.zeros(counts.shape, dtype=np.int64)
    begins[window, component] = np.cumsum(many) - many
    begins -= first
    return [
        (order.component, ids.take(order.number + begin[order.component], axis=0))
        for order, begin in zip(orders, begins, strict=True)
    ]
