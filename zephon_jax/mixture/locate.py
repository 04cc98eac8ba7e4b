"""When a mixture reads a sample, by turning its permutations around: nothing is replayed.

A sample's place in its shard, the shard's place among the shards and the place in the mosaic's
block are each the inverse of a permutation, for many passes at once. That gives the draws of the
dataset which are this sample; each draw's chunk is found by a search over positions, whose counts
of samples grow from chunk to chunk whatever the allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels.keys import fold
from zephon_jax.kernels.lanes import lane_of_chunk
from zephon_jax.kernels.permutation import invert, permute
from zephon_jax.mixture.dataset_order import DatasetOrder
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.generations import GrownOrder
from zephon_jax.mixture.positions import Position
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.sources.chunk import SampleId
from zephon_jax.sources.find_sample import Place
from zephon_jax.sources.read_order import MixtureReadConfig, read_order

__all__ = ["Dealing", "draws_between", "draws_of", "places_of", "times_drawn"]

_MOST = 1 << 22  # shard order entries made at once
_PASSES = 1 << 18  # passes looked at together
_CHUNKS = 1024  # chunks of an endless run that are looked at first
_TOGETHER = 32  # chunks whose reading orders are worked out together


def _keys(order: DatasetOrder, level: str, passes: np.ndarray) -> np.ndarray:
    return fold(order.keys[level], passes if order.reshuffle else np.zeros_like(passes))


def _starts(order: DatasetOrder, shard: int, passes: np.ndarray) -> np.ndarray:
    """Samples before a shard in the shard order of each pass: int64 (n,)."""
    if not order.shards:
        return np.full(passes.shape, order.starts[shard])
    num = order.counts.size
    distinct = passes if order.reshuffle else passes[:1]
    starts = np.empty(distinct.shape, dtype=np.int64)
    each = max(1, _MOST // num)
    for begin in range(0, len(distinct), each):
        part = distinct[begin : begin + each]
        keys = _keys(order, "shards", part)
        run = invert(np.full(part.shape, shard), num, keys)
        places = np.broadcast_to(np.arange(num), (len(part), num))
        shards = permute(places, num, keys[:, None, :])
        counts = np.where(np.arange(num) < run[:, None], order.counts[shards], 0)
        starts[begin : begin + each] = counts.sum(axis=1)
    return np.broadcast_to(starts, passes.shape)


def draws_of(
    order: DatasetOrder, shard_id: int, sample_index: int, passes: np.ndarray
) -> np.ndarray:
    """The draw in each of some passes that is a sample: int64 (n,), the inverse of the order.

    Args:
      order: The dataset's.
      shard_id: Place of the shard in the dataset's list.
      sample_index: Place of the sample in the shard.
      passes: int64 (n,).
    """
    shard = int(np.searchsorted(order.shard_ids, shard_id))
    offset = np.full(passes.shape, sample_index, dtype=np.int64)
    if order.within:
        keys = fold(_keys(order, "within", passes), np.full(passes.shape, shard_id))
        offset = invert(offset, int(order.counts[shard]), keys)
    position = _starts(order, shard, passes) + offset
    if order.block:
        position = _out_of_blocks(order, passes, position)
    return passes * order.total + position


def _out_of_blocks(order: DatasetOrder, passes: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """Positions whose sample the mosaic takes from these places of the flattened sequence."""
    block = flat // order.block
    first = block * order.block
    keys = fold(_keys(order, "global" if order.global_ else "blocks", passes), block)
    sizes = np.minimum(order.block, order.total - first)
    position = np.empty_like(flat)
    for size in np.unique(sizes).tolist():
        mine = sizes == size
        position[mine] = first[mine] + invert((flat - first)[mine], size, keys[mine])
    return position


def draws_between(
    order: DatasetOrder | GrownOrder, sample_id: SampleId, start: int, stop: int
) -> np.ndarray:
    """The draws from `start` up to `stop` that are a sample, one in each pass: int64 (n,)."""
    if isinstance(order, GrownOrder):
        return _of_grown(order, sample_id, start, stop)
    passes = np.arange(start // order.total, -(-stop // order.total))
    draws = draws_of(order, sample_id.shard_id, sample_id.sample_index, passes)
    return draws[(draws >= start) & (draws < stop)]


def _of_grown(order: GrownOrder, sample_id: SampleId, start: int, stop: int) -> np.ndarray:
    """The same for a dataset that grew: in each pass since the sample's generation came."""
    growth = order.growth
    number = int(np.searchsorted(growth.shards, sample_id.shard_id, side="right")) - 1
    part, shard = order.parts[number], sample_id.shard_id - int(growth.shards[number])
    found: list[np.ndarray] = []
    for n in range(number, len(order.parts)):
        first, begin, total = (
            int(one) for one in (growth.first_pass[n], growth.first_draw[n], growth.samples[n + 1])
        )
        last = n + 1 == len(order.parts)
        end = stop if last else min(stop, int(growth.first_draw[n + 1]))
        passes = np.arange(max(0, start - begin) // total, max(0, -(-(end - begin) // total)))
        inside = draws_of(part, shard, sample_id.sample_index, first + passes)
        inside -= (first + passes) * part.total
        draws = begin + passes * total + int(growth.samples[number]) + inside
        found.append(draws[(draws >= start) & (draws < end)])
    return np.concatenate(found)


def _passes_of(order: DatasetOrder | GrownOrder, draws: np.ndarray) -> np.ndarray:
    return order.growth.passes(draws)[0] if isinstance(order, GrownOrder) else draws // order.total


def times_drawn(order: DatasetOrder | GrownOrder, sample_id: SampleId, drawn: int) -> int:
    """How often a sample is among the first draws of its dataset."""
    if isinstance(order, GrownOrder):
        return len(_of_grown(order, sample_id, 0, drawn))
    passes = drawn // order.total
    return passes + len(draws_between(order, sample_id, passes * order.total, drawn))


class _Held(NamedTuple):
    """A chunk that holds a sample."""

    position: Position
    counts: np.ndarray  # int32 (k,), samples of each component
    draws: np.ndarray  # int64 (n,), its draws that are the sample


def _holding(
    eras: Eras, component: int, draws: np.ndarray, low: Position, high: Position
) -> Iterator[_Held]:
    """The chunks that hold draws of a component.

    Args:
      eras: Positions of the run.
      component: Whose draws.
      draws: int64 (n,), ascending, all of them between the two positions.
      low: A position before all of them.
      high: A position past all of them.
    """
    at = 0
    while at < len(draws):
        drawn = eras.steps.step(low)
        assert drawn is not None
        if draws[at] >= drawn[1].drawn[component]:  # not in the very next chunk
            low = _before(eras, component, int(draws[at]), drawn[1], high)
            drawn = eras.steps.step(low)
            assert drawn is not None
        counts, after = drawn
        end = int(np.searchsorted(draws, after.drawn[component]))
        yield _Held(low, counts.astype(np.int32), draws[at:end])
        at, low = end, after


def _before(eras: Eras, component: int, draw: int, low: Position, high: Position) -> Position:
    """The last position at which no more than `draw` samples of a component had been drawn.

    Looks where the draw would lie if the component came evenly; every other look halves what is
    left, since eras differ.
    """
    tries = 0
    while high.chunk_index - low.chunk_index > 1:
        at_low, at_high = int(low.drawn[component]), int(high.drawn[component])
        gap = high.chunk_index - low.chunk_index
        if tries % 3 == 2:
            step = gap // 2
        else:
            # A step to either side of the even place: most often both bounds close in on it.
            even = gap * (draw - at_low) // max(1, at_high - at_low)
            step = even + (1 if tries % 3 else 0)
        middle = eras.seek(low.chunk_index + min(max(step, 1), gap - 1))
        if int(middle.drawn[component]) <= draw:
            low = middle
        else:
            high = middle
        tries += 1
    return low


class Dealing(NamedTuple):
    """How chunks go to lanes, and are read there."""

    num_lanes: int
    origin: int  # the first chunk from which on there are so many lanes
    config: MixtureReadConfig


def places_of(
    settings: MixtureSettings,
    eras: Eras,
    order: DatasetOrder | GrownOrder,
    sample_id: SampleId,
    up_to_chunk: int | None,
    dealing: Dealing,
) -> Iterator[Place]:
    """Goes through the times that a mixture reads a sample, in the order of the run.

    Args:
      settings: The mixture's settings.
      eras: Its positions.
      order: The order of the sample's dataset.
      sample_id: A sample that there is.
      up_to_chunk: The first chunk that is not looked at; None for the whole run.
      dealing: Whose first chunk is the first that is looked at.
    """
    d = sample_id.dataset_id
    for low, high in _windows(eras, d, order, dealing.origin, up_to_chunk):
        draws = draws_between(order, sample_id, int(low.drawn[d]), int(high.drawn[d]))
        held = _holding(eras, d, draws, low, high)
        while part := list(islice(held, _TOGETHER)):
            yield from _places(settings, order, d, part, dealing)


def _places(
    settings: MixtureSettings,
    order: DatasetOrder | GrownOrder,
    component: int,
    held: Sequence[_Held],
    dealing: Dealing,
) -> Iterator[Place]:
    """The places of a sample in some chunks that hold it."""
    num_lanes, origin, _ = dealing
    chunks = np.asarray([one.position.chunk_index for one in held], dtype=np.int64)
    lanes = lane_of_chunk(chunks, num_lanes, settings.seed, settings.lane_assignment, origin=origin)
    steps = (chunks - origin) // num_lanes
    of_chunks = zip(chunks.tolist(), lanes.tolist(), steps.tolist(), strict=True)
    slots = _slots(settings, component, held, dealing)
    for one, where, slot in zip(held, of_chunks, slots, strict=True):
        # It may hold a small dataset's sample twice, and need not read the earlier pass first.
        ascending = np.argsort(slot)
        passes = _passes_of(order, one.draws[ascending])
        for row in zip(passes.tolist(), slot[ascending].tolist(), strict=True):
            yield Place(row[0], *where, row[1])


def _windows(
    eras: Eras, component: int, order: DatasetOrder | GrownOrder, first: int, stop: int | None
) -> Iterator[tuple[Position, Position]]:
    """Cuts a run into stretches that hold few passes of a dataset each, by their two ends.

    A run that ends is one stretch where it holds few passes as a whole. An endless run is cut into
    stretches that grow, for as long as the caller asks for places.
    """
    if stop is None and eras.endless:
        stop, size = MAX_INDEX // eras.steps.rules.chunk_size, _CHUNKS
    else:
        stop = _end(eras) if stop is None else stop
        size = max(1, stop - first)
    most = min(_PASSES, max(1, _MOST // order.num_shards))
    low = eras.seek(first)
    # A component that left the mixture, or has no weight any more, is never drawn from again.
    while low.chunk_index < stop and eras.steps.may_draw(low)[component]:
        high = eras.seek(min(low.chunk_index + size, stop))
        passes = int(high.drawn[component] - low.drawn[component]) // order.total
        if high.chunk_index == low.chunk_index:
            return  # the run has ended
        if passes > most and size > 1:
            size = max(1, size * most // passes)
            continue
        yield low, high
        low, size = high, 2 * size


def _end(eras: Eras) -> int:
    last = eras.spans()[-1]
    return last.start.chunk_index + last.num_chunks


def _slots(
    settings: MixtureSettings, component: int, held: Sequence[_Held], dealing: Dealing
) -> Iterator[np.ndarray]:
    """The slots of a sample in the reading order of each chunk: int64 (n,)."""
    counts = np.stack([one.counts for one in held])
    for one in held:
        chunk_index = one.position.chunk_index
        reading = read_order(
            one.counts,
            dealing.config,
            names=settings.names,
            seed=settings.seed,
            chunk_index=chunk_index,
            slot=(chunk_index - dealing.origin) % dealing.num_lanes,
            num_lanes=dealing.num_lanes,
            size=settings.chunk_size,
            upcoming=counts,
        )
        slot = np.empty(reading.grouped.size, dtype=np.int64)
        slot[reading.grouped] = np.arange(slot.size)
        before = int(one.counts[:component].sum()) - int(one.position.drawn[component])
        yield slot[one.draws + before]
