"""From draws to samples under `jax.jit`: the rule of `sample_lookup`, in 32 bits, of fixed shapes.

What depends on sizes and settings is worked out once, on the host, and is constant in what is
compiled. What depends on the seed is keys, which are arguments: one compiled function serves any
seed. The shards of the passes that a chunk may touch are laid end to end in one table, which is
made for each chunk: its length is fixed, since a chunk of n samples touches few passes of a large
dataset and few shards of a small one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import Array
from zephon_jax.kernels.keys import fold
from zephon_jax.kernels.permutation import SMALL, permute_each
from zephon_jax.mixture.dataset_order import DatasetOrder

__all__ = ["LookupKeys", "TracedLookup", "keys_of"]


class LookupKeys(NamedTuple):
    """Root keys of each dataset's shuffles: what the seed decides."""

    __module__ = "zephon_jax"

    shards: Array  # uint32 (k, 2)
    within: Array  # uint32 (k, 2)
    tiles: Array  # uint32 (k, 2), of its blocks, or of the whole dataset


def keys_of(orders: Sequence[DatasetOrder]) -> LookupKeys:
    """The root keys of some datasets' orders."""
    return LookupKeys(
        shards=np.stack([order.keys["shards"] for order in orders]),
        within=np.stack([order.keys["within"] for order in orders]),
        tiles=np.stack([o.keys["global" if o.global_ else "blocks"] for o in orders]),
    )


class _Rows(NamedTuple):
    """The table of shards: a row for each shard of each pass that a chunk may touch."""

    dataset: np.ndarray  # int32 (R,)
    passes: np.ndarray  # int32 (R,), counted from the first that the chunk touches
    place: np.ndarray  # int32 (R,), place in the order of the shards
    first: np.ndarray  # int32 (k,), each dataset's first row


class TracedLookup:
    """Finds the samples of a chunk's draws.

    Args:
      orders: The datasets' orders.
      most: int64 (k,), samples of each that a chunk draws at most.
    """

    def __init__(self, orders: Sequence[DatasetOrder], most: np.ndarray):
        def column(values: Sequence[int]) -> np.ndarray:
            return np.asarray(values, dtype=np.int32)

        self._total = column([max(1, order.total) for order in orders])
        self._block = column([order.block or max(1, order.total) for order in orders])
        self._mosaic = np.asarray([order.block > 0 for order in orders])
        self._within = np.asarray([order.within for order in orders])
        self._reshuffle = np.asarray([order.reshuffle for order in orders])
        self._shuffled = np.asarray([order.shards for order in orders])
        self._by_pass = self._shuffled & self._reshuffle
        self._shards = column([order.counts.size for order in orders])
        self._counts = np.concatenate([order.counts for order in orders]).astype(np.int32)
        self._ids = np.concatenate([order.shard_ids for order in orders]).astype(np.int32)
        self._offset = column(np.cumsum(self._shards).tolist()) - self._shards
        touched = np.where(self._by_pass, (most + self._total - 2) // self._total + 1, 1)
        self._rows = self._make_rows(touched)
        self._steps = int(self._shards.max()).bit_length()
        tiles = np.concatenate([self._block, self._total % self._block])[np.tile(self._mosaic, 2)]
        inside = [o.counts for o in orders if o.within] or [np.zeros(0, dtype=np.int64)]
        self._small_tiles = _small(tiles[tiles > 0])
        self._small_orders = _small(self._shards[self._shuffled])
        self._small_shards = _small(np.concatenate(inside))

    @property
    def num_rows(self) -> int:
        """Rows of the table of shards."""
        return self._rows.dataset.size

    def _make_rows(self, touched: np.ndarray) -> _Rows:
        many = touched * self._shards
        dataset = np.repeat(np.arange(many.size), many)
        first = np.cumsum(many) - many
        place = np.arange(dataset.size) - first[dataset]
        passes, place = np.divmod(place, self._shards[dataset])
        return _Rows(*(field.astype(np.int32) for field in (dataset, passes, place, first)))

    def __call__(self, component: Array, draw: Array, drawn: Array, keys: LookupKeys) -> Array:
        """The samples of some draws.

        Args:
          component: int32 (n,), the dataset of each.
          draw: int32 (n,), its number among the draws of its dataset.
          drawn: int32 (k,), draws of each dataset before the chunk, at most `most` below these.
          keys: Of the seed.

        Returns:
          int32 (n, 3): dataset, shard, place in the shard.
        """
        import jax.numpy as jnp

        pick = functools.partial(_pick, jnp, component)
        total = pick(self._total)
        passes = draw // total
        position = draw - passes * total
        key_pass = jnp.where(pick(self._reshuffle), passes, 0)
        position = self._in_tiles(component, position, key_pass, keys)
        shard_row, count, before = self._table(drawn, keys)
        first = jnp.asarray(drawn) // self._total
        skipped = jnp.where(pick(self._by_pass), passes - first[component], 0)
        begin = pick(self._rows.first) + skipped * pick(self._shards)
        row = self._search(begin, begin + pick(self._shards), before, position)
        offset = position - (before[row] - before[begin]).astype(jnp.int32)
        shard = jnp.asarray(self._ids)[pick(self._offset) + shard_row[row]]
        if self._within.any():
            roots = fold(jnp.asarray(keys.within)[component], key_pass)
            mine = pick(self._within)
            moved = permute_each(
                jnp.where(mine, offset, 0), jnp.where(mine, count[row], 1), fold(roots, shard),
                small=self._small_shards,
            ).astype(jnp.int32)  # fmt: skip
            offset = jnp.where(mine, moved, offset)
        return jnp.stack([component, shard, offset], axis=-1).astype(jnp.int32)

    def _in_tiles(
        self, component: Array, position: Array, key_pass: Array, keys: LookupKeys
    ) -> Array:
        """Places in the pass after the mosaic: int32 (n,)."""
        import jax.numpy as jnp

        if not self._mosaic.any():
            return position
        pick = functools.partial(_pick, jnp, component)
        block, mine = pick(self._block), pick(self._mosaic)
        number = position // block
        start = number * block
        size = jnp.minimum(block, pick(self._total) - start)
        key = fold(fold(jnp.asarray(keys.tiles)[component], key_pass), number)
        moved = permute_each(
            jnp.where(mine, position - start, 0), jnp.where(mine, size, 1), key,
            small=self._small_tiles,
        )  # fmt: skip
        return jnp.where(mine, start + moved.astype(jnp.int32), position)

    def _table(self, drawn: Array, keys: LookupKeys) -> tuple[Array, Array, Array]:
        """Of each row its shard (int32), the shard's samples (int32), and samples before (uint32).

        Samples before count from the table's first row, modulo 2^32: differences within a pass are
        right.
        """
        import jax.numpy as jnp

        rows, shard = self._rows, jnp.asarray(self._rows.place)
        mine = np.flatnonzero(self._shuffled[rows.dataset])
        if mine.size:
            dataset = rows.dataset[mine]
            passes = (jnp.asarray(drawn) // self._total)[dataset] + rows.passes[mine]
            passes = jnp.where(self._by_pass[dataset], passes, 0)
            key = fold(jnp.asarray(keys.shards)[dataset], passes)
            moved = permute_each(
                rows.place[mine], self._shards[dataset], key, small=self._small_orders
            )
            shard = shard.at[mine].set(moved.astype(jnp.int32))
        count = jnp.asarray(self._counts)[self._offset[rows.dataset] + shard]
        wide = count.astype(jnp.uint32)
        return shard, count, jnp.cumsum(wide, dtype=jnp.uint32) - wide

    def _search(self, low: Array, high: Array, before: Array, position: Array) -> Array:
        """The last row of [low, high) before which no more than a position's samples lie."""
        import jax
        import jax.numpy as jnp

        begin, position = before[low], position.astype(jnp.uint32)

        def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) // 2
            fits = before[middle] - begin <= position
            inside = high - low > 1
            return (
                jnp.where(inside & fits, middle, low),
                jnp.where(inside & ~fits, middle, high),
            )

        # A loop: unrolled, its steps are computed over and over where they are fused.
        return jax.lax.fori_loop(0, self._steps, halve, (low, high))[0]


def _pick(xp: object, component: Array, column: np.ndarray) -> Array:
    """The value of each element's dataset."""
    return xp.asarray(column)[component]  # type: ignore[attr-defined]


def _small(sizes: np.ndarray) -> bool:
    """True where some of the permutations of these sizes need more rounds."""
    return bool((sizes <= SMALL).any())
