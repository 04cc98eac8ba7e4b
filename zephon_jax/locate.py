"""When a mixture reads a sample, by turning its permutations around: nothing is replayed.

A sample's place in its shard, the shard's place among the shards and the place in the mosaic's
block are each the inverse of a permutation, for many passes at once. That gives the draws of the
dataset which are this sample; each draw's chunk is found by a search over positions, whose counts
of samples grow from chunk to chunk whatever the allocation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zephon_jax.chunk import SampleId
from zephon_jax.cursor import Cursor, make_cursor
from zephon_jax.eras import Eras, Position
from zephon_jax.keys import fold
from zephon_jax.knobs import Knobs
from zephon_jax.permutation import invert, permute
from zephon_jax.places import Place
from zephon_jax.reading import MixtureReadConfig, read_order

__all__ = ["draws_of", "locate", "positions_of_draws"]

_MOST = 1 << 22  # shard order entries made at once
_TOGETHER = 32  # chunks whose reading orders are worked out together


def _keys(cursor: Cursor, level: str, passes: np.ndarray) -> np.ndarray:
    return fold(cursor.keys[level], passes if cursor.reshuffle else np.zeros_like(passes))


def _starts(cursor: Cursor, shard: int, passes: np.ndarray) -> np.ndarray:
    """Samples before a shard in the shard order of each pass: int64 (n,)."""
    if not cursor.shards:
        return np.full(passes.shape, cursor.starts[shard])
    num = cursor.counts.size
    distinct = passes if cursor.reshuffle else passes[:1]
    starts = np.empty(distinct.shape, dtype=np.int64)
    each = max(1, _MOST // num)
    for begin in range(0, len(distinct), each):
        part = distinct[begin : begin + each]
        keys = _keys(cursor, "shards", part)
        run = invert(np.full(part.shape, shard), num, keys)
        order = permute(np.broadcast_to(np.arange(num), (len(part), num)), num, keys[:, None, :])
        counts = np.where(np.arange(num) < run[:, None], cursor.counts[order], 0)
        starts[begin : begin + each] = counts.sum(axis=1)
    return np.broadcast_to(starts, passes.shape)


def draws_of(cursor: Cursor, shard_id: int, sample_index: int, passes: np.ndarray) -> np.ndarray:
    """The draw in each of some passes that is a sample: int64 (n,), the inverse of the cursor.

    Args:
      cursor: The dataset's.
      shard_id: Place of the shard in the dataset's list.
      sample_index: Place of the sample in the shard.
      passes: int64 (n,).
    """
    shard = shard_id
    if cursor.shard_ids is not None:
        shard = int(np.searchsorted(cursor.shard_ids, shard_id))
    offset = np.full(passes.shape, sample_index, dtype=np.int64)
    if cursor.within:
        keys = fold(_keys(cursor, "within", passes), np.full(passes.shape, shard_id))
        offset = invert(offset, int(cursor.counts[shard]), keys)
    position = _starts(cursor, shard, passes) + offset
    if cursor.block:
        position = _out_of_blocks(cursor, passes, position)
    return passes * cursor.total + position


def _out_of_blocks(cursor: Cursor, passes: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """Positions whose sample the mosaic takes from these places of the flattened sequence."""
    block = flat // cursor.block
    first = block * cursor.block
    keys = fold(_keys(cursor, "global" if cursor.global_ else "blocks", passes), block)
    sizes = np.minimum(cursor.block, cursor.total - first)
    position = np.empty_like(flat)
    for size in np.unique(sizes).tolist():
        mine = sizes == size
        position[mine] = first[mine] + invert((flat - first)[mine], size, keys[mine])
    return position


def positions_of_draws(eras: Eras, component: int, draws: np.ndarray, stop: Position) -> list[Any]:
    """The positions of the chunks that hold draws of a component.

    Args:
      eras: Positions of the run.
      component: Whose draws.
      draws: int64 (n,), ascending, all before `stop`.
      stop: A position past all of them.
    """
    found: list[Position] = []
    low, last = eras.start(), stop
    for draw in draws.tolist():
        if not found or draw >= int(low.drawn[component]):
            low = _before(eras, component, draw, low, last)
        found.append(low)
    return found


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


def locate(
    knobs: Knobs,
    eras: Eras,
    counts: np.ndarray,
    lanes_of: Any,
    sample_id: SampleId,
    num_lanes: int,
    up_to_chunk: int | None,
    config: MixtureReadConfig,
) -> list[Place]:
    """Every time a mixture reads a sample, in the order of the run.

    Args:
      knobs: The mixture's settings.
      eras: Its positions.
      counts: int64 (num_shards,), the samples of the dataset's shards.
      lanes_of: Its `lanes_of_chunks`.
      sample_id: A sample that there is.
      num_lanes: Lanes of the run.
      up_to_chunk: The first chunk that is not looked at; None for the whole run, which must end.
      config: How chunks are read.
    """
    d = sample_id.dataset_id
    cursor = make_cursor(
        knobs.names[d],
        counts,
        seed=knobs.seed,
        epoch=0,
        shuffle_shards=knobs.shuffle_shards[d],
        shuffle_within_shard=knobs.shuffle_within_shard[d],
        shuffle_block_size=knobs.shuffle_block_size[d],
        reshuffle_on_repeat=knobs.reshuffle_on_repeat[d],
    )
    stop = eras.seek(_end(eras) if up_to_chunk is None else up_to_chunk)
    drawn = int(stop.drawn[d])
    passes = np.arange(-(-drawn // cursor.total))
    if not passes.size:
        return []
    draws = draws_of(cursor, sample_id.shard_id, sample_id.sample_index, passes)
    draws = draws[draws < drawn]  # one in each pass, so they ascend
    positions = positions_of_draws(eras, d, draws, stop)
    chunks = np.asarray([position.chunk_index for position in positions], dtype=np.int64)
    lanes = lanes_of(chunks, num_lanes).tolist()
    slots = _slots(knobs, eras, d, draws, positions, num_lanes, config)
    steps = (chunks // num_lanes).tolist()
    rows = zip(chunks.tolist(), lanes, steps, slots, strict=True)
    # A chunk may hold a small dataset's sample twice, and need not read the earlier pass first.
    return sorted((Place(n, *row) for n, row in enumerate(rows)), key=lambda place: place[1:])


def _end(eras: Eras) -> int:
    last = eras.spans()[-1]
    return last.start.chunk_index + last.num_chunks


def _slots(
    knobs: Knobs,
    eras: Eras,
    component: int,
    draws: np.ndarray,
    positions: list[Position],
    num_lanes: int,
    config: MixtureReadConfig,
) -> list[int]:
    """Places of draws in the reading orders of their chunks."""
    slots: list[int] = []
    for begin in range(0, len(draws), _TOGETHER):
        part = positions[begin : begin + _TOGETHER]
        steps = [eras.step(position) for position in part]
        counts = np.stack([step[0].astype(np.int32) for step in steps if step is not None])
        for n, (position, draw) in enumerate(zip(part, draws[begin:].tolist(), strict=False)):
            reading = read_order(
                counts[n],
                config,
                names=knobs.names,
                seed=knobs.seed,
                chunk_index=position.chunk_index,
                slot=position.chunk_index % num_lanes,
                num_lanes=num_lanes,
                size=knobs.chunk_size,
                upcoming=(lambda rows=counts: rows) if len(counts) > 1 else None,
            )
            stored = int(counts[n, :component].sum()) + draw - int(position.drawn[component])
            slots.append(int(np.flatnonzero(reading.source == stored)[0]))
    return slots
