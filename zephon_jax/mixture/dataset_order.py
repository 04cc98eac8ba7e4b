"""One dataset's order: its shards, its shuffle settings, its keys and the order of its shards.

Draw number i of a dataset is position `i % total` of pass `i // total`. Three keyed permutations
say which sample lies there: the order of the shards, the places within each shard, and a mosaic
that cuts the resulting sequence into blocks and permutes each on its own. "global" permutes the
whole dataset at once instead. `sample_lookup` goes from draws to samples; here is what it needs to
know of each dataset. Memory is a few numbers a shard whatever the shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.kernels.keys import digest_words, fold
from zephon_jax.kernels.permutation import make_grids, permute_rows

__all__ = [
    "DatasetOrder",
    "Table",
    "block_size",
    "make_dataset_order",
    "make_tables",
    "shard_order",
    "starts_of",
]

_LEVELS = ("shards", "within", "blocks", "global")
_KEPT_PASSES = 2  # shard orders kept for each dataset: this pass and the next
# Of datasets whose shards have one order only: there may be tens of thousands.
_NO_ORDERS: BoundedCache[int, np.ndarray] = BoundedCache(1)


class DatasetOrder:
    """A dataset as the order sees it. Immutable but for a few shard orders that it keeps.

    Fields:
      total: Samples in a pass.
      block: Samples in a block of the mosaic; 0 for none. Equal to `total` with "global".
      by_pass: True where another pass has another order of the shards or within them.
    """

    __slots__ = (
        "block", "by_pass", "counts", "filled", "global_", "keys", "reshuffle", "shard_orders",
        "shards", "starts", "total", "within",
    )  # fmt: skip

    total: int
    block: int
    global_: bool  # all samples are shuffled as one block
    shards: bool  # the order of the shards is shuffled
    within: bool  # places within each shard are shuffled
    reshuffle: bool  # each pass has its own order
    by_pass: bool
    counts: np.ndarray  # int64 (S,), samples of each shard that holds any
    filled: np.ndarray | None  # int64 (S,), their places in the dataset's list; None for all
    starts: np.ndarray  # int64 (S + 1,), samples before each
    keys: dict[str, np.ndarray]  # one root key for each level
    shard_orders: BoundedCache[int, np.ndarray]  # shards (S,) in their order, by pass

    @property
    def num_shards(self) -> int:
        """Shards that hold samples."""
        return self.counts.size

    @property
    def shard_ids(self) -> np.ndarray:
        """Places of the shards that hold samples in the dataset's list: int64 (S,)."""
        return np.arange(self.counts.size) if self.filled is None else self.filled


def block_size(setting: int | str | None, counts: np.ndarray) -> int:
    """Samples in a block of the mosaic: 0 for no blocks, the whole dataset for "global"."""
    total = int(counts.sum())
    if setting is None:
        return 0
    if setting == "global":
        return total
    size = 8 * int(counts.max(initial=0)) if setting == "auto" else int(setting)
    return 0 if size == 1 else min(size, total)


def make_dataset_order(
    name: str,
    counts: np.ndarray,
    *,
    seed: int,
    epoch: int,
    shuffle_shards: bool,
    shuffle_within_shard: bool,
    shuffle_block_size: int | str | None,
    reshuffle_on_repeat: bool,
    generation: int = 0,
) -> DatasetOrder:
    """Prepares a dataset's order. Time and memory grow with the number of shards only.

    Args:
      name: The dataset's name, which its keys come from: other datasets do not matter.
      counts: int64 (num_shards,), samples of each shard.
      seed: The source's seed.
      epoch: Times the whole source has been gone through, folded into the keys.
      shuffle_shards: Permute the order of the shards.
      shuffle_within_shard: Permute the places within each shard.
      shuffle_block_size: Samples in a block of the mosaic, None, "auto" or "global".
      reshuffle_on_repeat: Give each pass an order of its own.
      generation: Number of the generation of shards, above 0 for those that came in mid-run.
    """
    order = DatasetOrder()
    filled = counts > 0
    order.filled = None if filled.all() else np.flatnonzero(filled)
    order.counts = counts if order.filled is None else counts[order.filled]
    order.starts = starts_of(order.counts)
    order.total = int(order.starts[-1])
    order.block = block_size(shuffle_block_size, order.counts)
    order.global_ = shuffle_block_size == "global"
    # One shard has one order; many small datasets are of that kind.
    order.shards = shuffle_shards and not order.global_ and order.counts.size > 1
    order.within = shuffle_within_shard and not order.global_
    order.reshuffle = reshuffle_on_repeat
    order.by_pass = (order.shards or order.within) and reshuffle_on_repeat
    later = ("generation", generation) if generation else ()
    words = digest_words(2 * len(_LEVELS), seed, "dataset", name, epoch, *later).reshape(-1, 2)
    order.keys = dict(zip(_LEVELS, words, strict=True))
    order.shard_orders = BoundedCache(_KEPT_PASSES) if order.shards else _NO_ORDERS
    return order


def starts_of(counts: np.ndarray) -> np.ndarray:
    """What lies before each of some parts, and before the end: int64 (n + 1,)."""
    starts = np.zeros(counts.size + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


class Table(NamedTuple):
    """The shards of consecutive passes in their order, laid end to end."""

    first: int  # the first pass; 0 where one order serves all
    last: int
    shard: np.ndarray | None  # int64 (R,), place among the shards that hold samples; None: natural
    start: np.ndarray  # int64 (R + 1,), samples before each run


def make_tables(wanted: Sequence[tuple[DatasetOrder, int, int]]) -> list[Table]:
    """Makes the tables of datasets for passes first .. last, all missing shard orders in one go.

    Args:
      wanted: DatasetOrders, first and last passes; both 0 where one order serves all.
    """
    shuffled = [n for n, (order, _, _) in enumerate(wanted) if order.shards]
    # By dataset and pass. Read once: another thread may drop an order meanwhile.
    parts: list[dict[int, np.ndarray]] = []
    missing: list[list[int]] = []
    for n in shuffled:
        order, first, last = wanted[n]
        passes = range(first, last + 1)
        found = [(one, order.shard_orders.get(one)) for one in passes]
        parts.append({one: shards for one, shards in found if shards is not None})
        missing.append([one for one in passes if one not in parts[-1]])
    shards: dict[int, np.ndarray] = {}
    made = _shuffle_shards([wanted[n][0] for n in shuffled], missing)
    for n, part, passes, new in zip(shuffled, parts, missing, made, strict=True):
        order = wanted[n][0]
        part.update(zip(passes, new.reshape(len(passes), order.counts.size), strict=True))
        for one in passes[-_KEPT_PASSES:]:
            # A copy: the orders of other passes and datasets lie in the same memory.
            order.shard_orders.put(one, part[one].copy())
        every = [part[one] for one in sorted(part)]
        shards[n] = every[0] if len(every) == 1 else np.concatenate(every)
    return [_make_table(*want, shards.get(n)) for n, want in enumerate(wanted)]


def _shuffle_shards(
    orders: Sequence[DatasetOrder], passes: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Shard orders of some passes of each dataset, laid end to end."""
    many = np.asarray([len(some) for some in passes], dtype=np.int64)
    if not many.any():
        return [np.zeros(0, dtype=np.int64)] * len(orders)
    shards = np.asarray([order.counts.size for order in orders])
    sizes = np.repeat(shards, many)
    roots = np.repeat(np.stack([order.keys["shards"] for order in orders]), many, axis=0)
    flat = np.asarray([one for some in passes for one in some])
    grids = make_grids(sizes, fold(roots, flat))
    ends = np.cumsum(sizes)
    rows = np.repeat(np.arange(sizes.size), sizes)
    places = np.arange(ends[-1]) - np.repeat(ends - sizes, sizes)
    return np.split(permute_rows(places, rows, grids), np.cumsum(shards * many)[:-1])


def _make_table(order: DatasetOrder, first: int, last: int, shard: np.ndarray | None) -> Table:
    if shard is None:
        if first == last:
            return Table(first, last, None, order.starts)
        shard = np.tile(np.arange(order.counts.size), last - first + 1)
    return Table(first, last, shard, starts_of(order.counts[shard]))


def shard_order(order: DatasetOrder, pass_index: int) -> tuple[np.ndarray, np.ndarray]:
    """The shards of a pass in its order, and the samples before each.

    Returns:
      int64 (S,), places among the shards that hold samples, and int64 (S + 1,).
    """
    (table,) = make_tables([(order, pass_index, pass_index)])
    shard = np.arange(order.counts.size) if table.shard is None else table.shard
    return shard, table.start
