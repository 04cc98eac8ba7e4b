"""From draws to samples: where position p of pass e of a dataset lies.

Draw number i of a dataset is position `i % total` of pass `i // total`. Three keyed permutations
say which sample lies there: the order of the shards, the places within each shard, and a mosaic
that cuts the resulting sequence into blocks and permutes each on its own. "global" permutes the
whole dataset at once instead. Each is a function of (key, pass, position), so any draw is found
without the ones before it, and memory is a few numbers a shard whatever the shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.keys import digest_words, fold
from zephon_jax.permutation import permute_rows

__all__ = ["Cursor", "Draws", "make_cursor", "sample_ids", "shard_order"]

_LEVELS = ("shards", "within", "blocks", "global")
_KEPT_PASSES = 2  # shard orders kept for each dataset: this pass and the next
_MAX_TABLE = 1 << 22  # shard order entries built at once for far-apart draws


class _ShardOrder(NamedTuple):
    """The shards of some passes in the order in which each pass goes through them."""

    first_pass: int
    shard: np.ndarray  # int64 (passes * S,), place among the shards that hold samples
    start: np.ndarray  # int64 (passes * S + 1,), samples before each


class Cursor:
    """One dataset's order: counts, shuffle settings and keys. Immutable but for a small cache.

    Fields:
      total: Samples in a pass.
      block: Samples in a block of the mosaic; 0 for none. Equal to `total` with "global".
    """

    __slots__ = (
        "block", "counts", "global_", "keys", "orders", "reshuffle", "shard_ids", "shards",
        "starts", "total", "within",
    )  # fmt: skip

    counts: np.ndarray  # int64 (S,), samples of each shard that holds any
    shard_ids: np.ndarray  # int64 (S,), their places in the dataset's list
    starts: np.ndarray  # int64 (S + 1,), samples before each
    keys: dict[str, np.ndarray]  # one root key for each level
    orders: dict[int, _ShardOrder]


Draws = tuple[Cursor, int, np.ndarray | range]
"""A dataset's cursor, its id, and the draw numbers wanted from it."""


def block_size(setting: int | str | None, counts: np.ndarray) -> int:
    """Samples in a block of the mosaic: 0 for no blocks, the whole dataset for "global"."""
    total = int(counts.sum())
    if setting is None:
        return 0
    if setting == "global":
        return total
    size = 8 * int(counts.max(initial=0)) if setting == "auto" else int(setting)
    return 0 if size == 1 else min(size, total)


def make_cursor(
    name: str,
    counts: np.ndarray,
    *,
    seed: int,
    epoch: int,
    shuffle_shards: bool,
    shuffle_within_shard: bool,
    shuffle_block_size: int | str | None,
    reshuffle_on_repeat: bool,
) -> Cursor:
    """Prepares a dataset's cursor. Time and memory grow with the number of shards only.

    Args:
      name: The dataset's name, which its keys come from: other datasets do not matter.
      counts: int64 (num_shards,), samples of each shard.
      seed: The source's seed.
      epoch: Times the whole source has been gone through, folded into the keys.
      shuffle_shards: Permute the order of the shards.
      shuffle_within_shard: Permute the places within each shard.
      shuffle_block_size: Samples in a block of the mosaic, None, "auto" or "global".
      reshuffle_on_repeat: Give each pass an order of its own.
    """
    cursor = Cursor()
    cursor.shard_ids = np.flatnonzero(counts)
    cursor.counts = counts[cursor.shard_ids]
    cursor.starts = np.concatenate([[0], np.cumsum(cursor.counts)])
    cursor.total = int(cursor.starts[-1])
    cursor.block = block_size(shuffle_block_size, cursor.counts)
    cursor.global_ = shuffle_block_size == "global"
    # One shard has one order; many small datasets are of that kind.
    cursor.shards = shuffle_shards and not cursor.global_ and cursor.counts.size > 1
    cursor.within = shuffle_within_shard and not cursor.global_
    cursor.reshuffle = reshuffle_on_repeat
    words = digest_words(2 * len(_LEVELS), seed, "dataset", name, epoch).reshape(-1, 2)
    cursor.keys = dict(zip(_LEVELS, words, strict=True))
    cursor.orders = {}
    return cursor


def _pass_key(cursor: Cursor, level: str, passes: np.ndarray) -> np.ndarray:
    """Keys (n, 2) of a level for passes (n,): all pass 0's where repeats are not reshuffled."""
    return fold(cursor.keys[level], passes if cursor.reshuffle else np.zeros_like(passes))


class _Split(NamedTuple):
    """Draws as passes and positions."""

    passes: np.ndarray  # int64 (n,)
    position: np.ndarray  # int64 (n,)
    ascending: bool  # True where the first and the last bound all others


def _split(cursor: Cursor, draws: np.ndarray | range) -> _Split:
    """Divides draws by the pass. A range within one pass needs no division."""
    if not isinstance(draws, range):
        return _Split(*np.divmod(draws, cursor.total), ascending=False)
    first, start = divmod(draws.start, cursor.total)
    if start + len(draws) <= cursor.total:
        passes = np.broadcast_to(np.asarray(first), (len(draws),))
        return _Split(passes, np.arange(start, start + len(draws)), ascending=True)
    return _Split(*np.divmod(np.arange(draws.start, draws.stop), cursor.total), ascending=True)


class _Rows(NamedTuple):
    """A permutation to apply to some elements: rows of parameters, and each element's row."""

    places: np.ndarray  # int64 (n,)
    rows: np.ndarray | None  # int64 (n,), None where element i has row i
    sizes: np.ndarray  # int64 (T,)
    keys: np.ndarray  # uint32 (T, 2)


def _table(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The distinct ids to make parameters for, and each element's row among them.

    A range that is not much longer than the elements stands for the distinct ids; else each
    element gets its own row.
    """
    low, high = int(ids.min()), int(ids.max())
    if high - low >= ids.size:
        return ids, None
    return np.arange(low, high + 1), ids - low


def _mosaic(cursor: Cursor, split: _Split) -> tuple[np.ndarray, _Rows]:
    """Block starts of positions (n,), and the permutation of the places within the blocks."""
    passes, position, ascending = split
    total, size = cursor.total, cursor.block
    num_blocks = -(-total // size)
    if ascending and passes[0] == passes[-1] and position[0] // size == position[-1] // size:
        tile = np.asarray([passes[0] * num_blocks + position[0] // size])
        rows = np.zeros(position.size, dtype=np.int64)
        start = np.asarray(position[0] // size * size)
    else:
        block = position // size
        start = block * size
        tile, rows = _table(passes * num_blocks + block)
    tile_pass, tile_block = np.divmod(tile, num_blocks)
    level = "global" if cursor.global_ else "blocks"
    keys = fold(_pass_key(cursor, level, tile_pass), tile_block)
    sizes = np.where(tile_block == num_blocks - 1, total - (num_blocks - 1) * size, size)
    return start, _Rows(position - start, rows, sizes, keys)


def _permute_all(parts: Sequence[_Rows | None]) -> list[np.ndarray | None]:
    """Permutes the elements of many datasets in one go: calls, not elements, are what is dear."""
    chosen = [part for part in parts if part is not None]
    if not chosen:
        return [None] * len(parts)
    offsets = np.cumsum([0, *(part.sizes.size for part in chosen)])
    rows = [
        (np.arange(part.places.size) if part.rows is None else part.rows) + offset
        for part, offset in zip(chosen, offsets, strict=False)
    ]
    moved = permute_rows(
        np.concatenate([part.places for part in chosen]),
        np.concatenate(rows),
        np.concatenate([part.sizes for part in chosen]),
        np.concatenate([part.keys for part in chosen]),
    )
    ends = np.cumsum([part.places.size for part in chosen])[:-1]
    pieces = iter(np.split(moved, ends))
    return [None if part is None else next(pieces) for part in parts]


def _order_key(cursor: Cursor, first: int) -> int:
    """What a pass's shard order is kept under: one order serves all where none is shuffled."""
    return first if cursor.shards and cursor.reshuffle else 0


def _order_rows(cursor: Cursor, first: int, last: int) -> _Rows:
    """The permutations that make the shard orders of passes first .. last."""
    passes, num = np.arange(first, last + 1), cursor.counts.size
    return _Rows(
        places=np.tile(np.arange(num), passes.size),
        rows=np.repeat(np.arange(passes.size), num),
        sizes=np.full(passes.size, num),
        keys=_pass_key(cursor, "shards", passes),
    )


def _make_order(cursor: Cursor, first: int, last: int, shard: np.ndarray) -> _ShardOrder:
    start = np.concatenate([[0], np.cumsum(cursor.counts[shard])])
    order = _ShardOrder(first, shard, start)
    if first == last:
        # One assignment, so that another thread sees the old cache or the new one.
        kept = list(cursor.orders.items())[1 - _KEPT_PASSES :]
        cursor.orders = {**dict(kept), _order_key(cursor, first): order}
    return order


def _shard_order(cursor: Cursor, first: int, last: int) -> _ShardOrder:
    """The shard orders of passes first .. last, laid end to end."""
    known = cursor.orders.get(_order_key(cursor, first)) if first == last else None
    if known is not None:
        return known._replace(first_pass=first)
    if not cursor.shards:
        shard = np.tile(np.arange(cursor.counts.size), last - first + 1)
        return _make_order(cursor, first, last, shard)
    shard = permute_rows(*_order_rows(cursor, first, last))
    return _make_order(cursor, first, last, shard)


def shard_order(cursor: Cursor, pass_index: int) -> tuple[np.ndarray, np.ndarray]:
    """The shards of a pass in its order, and the samples before each.

    Returns:
      int64 (S,), places among the shards that hold samples, and int64 (S + 1,).
    """
    order = _shard_order(cursor, pass_index, pass_index)
    return order.shard, order.start


def _prepare_orders(cursors: Sequence[Cursor], splits: Sequence[_Split]) -> None:
    """Makes the shard orders that are missing for many datasets in one go."""
    missing = [
        (cursor, int(split.passes[0]))
        for cursor, split in zip(cursors, splits, strict=True)
        if cursor.shards and split.ascending and split.passes[0] == split.passes[-1]
        and _order_key(cursor, int(split.passes[0])) not in cursor.orders
    ]  # fmt: skip
    if len(missing) < 2:
        return
    made = _permute_all([_order_rows(cursor, first, first) for cursor, first in missing])
    for (cursor, first), shard in zip(missing, made, strict=True):
        assert shard is not None
        _make_order(cursor, first, first, shard)


class _Place(NamedTuple):
    """Where elements lie after the shard order and the mosaic."""

    shard: np.ndarray  # int64 (n,), place among the shards that hold samples
    offset: np.ndarray  # int64 (n,), place within it before its own shuffle
    run: np.ndarray  # int64 (n,), place in the shard orders of all passes


def _find_shards(cursor: Cursor, passes: np.ndarray, position: np.ndarray) -> _Place:
    first, last = int(passes.min()), int(passes.max())
    if (last - first + 1) * cursor.counts.size > _MAX_TABLE + 4 * position.size:
        return _find_far_shards(cursor, passes, position)
    order = _shard_order(cursor, first, last)
    flat = position if first == last else position + (passes - first) * cursor.total
    run = np.searchsorted(order.start, flat, side="right") - 1
    return _Place(order.shard[run], flat - order.start[run], run + first * cursor.counts.size)


def _find_far_shards(cursor: Cursor, passes: np.ndarray, position: np.ndarray) -> _Place:
    """The same for draws of passes so far apart that a table of all of them would be too large."""
    place = _Place(*(np.empty_like(position) for _ in _Place._fields))
    for one in np.unique(passes):
        mine = passes == one
        for field, part in zip(
            place, _find_shards(cursor, passes[mine], position[mine]), strict=True
        ):
            field[mine] = part
    return place


def _within(cursor: Cursor, place: _Place) -> _Rows:
    """The permutation of the places within each shard, one for each pass and shard."""
    num = cursor.counts.size
    runs, rows = _table(place.run)
    passes = runs // num
    if rows is None:
        shard = place.shard
    else:
        order = _shard_order(cursor, int(passes[0]), int(passes[-1]))
        shard = order.shard[runs - order.first_pass * num]
    keys = fold(_pass_key(cursor, "within", passes), cursor.shard_ids[shard])
    return _Rows(place.offset, rows, cursor.counts[shard], keys)


def sample_ids(wanted: Sequence[Draws]) -> np.ndarray:
    """Finds the samples that draws of several datasets stand for.

    Args:
      wanted: Cursors, dataset ids and draw numbers (int64 arrays or ranges, none empty).

    Returns:
      int64 (n, 3): dataset id, shard id and sample index, in the order of `wanted`.
    """
    split = [_split(cursor, draws) for cursor, _, draws in wanted]
    cursors = [cursor for cursor, _, _ in wanted]
    _prepare_orders(cursors, split)
    mosaics = [
        _mosaic(cursor, parts) if cursor.block else None
        for cursor, parts in zip(cursors, split, strict=True)
    ]
    moved = _permute_all([mosaic and mosaic[1] for mosaic in mosaics])
    places = []
    for cursor, (passes, position, _), mosaic, inside in zip(
        cursors, split, mosaics, moved, strict=True
    ):
        if mosaic is not None and inside is not None:
            position = mosaic[0] + inside
        places.append(_find_shards(cursor, passes, position))
    offsets = _permute_all(
        [_within(c, place) if c.within else None for c, place in zip(cursors, places, strict=True)]
    )
    out = np.empty((sum(place.shard.size for place in places), 3), dtype=np.int64)
    end = 0
    for (cursor, dataset_id, _), place, offset in zip(wanted, places, offsets, strict=True):
        begin, end = end, end + place.shard.size
        out[begin:end, 0] = dataset_id
        out[begin:end, 1] = cursor.shard_ids[place.shard]
        out[begin:end, 2] = place.offset if offset is None else offset
    return out
