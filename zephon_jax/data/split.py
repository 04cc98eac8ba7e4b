"""Parts of a dataset with fixed membership, for training and held-out data.

A part is a rule, not a list: which samples belong to it follows from a keyed permutation of each
shard, so it takes memory for the shards only and is the same on every host and in every pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import exact_number
from zephon_jax.kernels.keys import fold, make_key
from zephon_jax.kernels.permutation import permute

__all__ = ["SplitRule", "split_samples", "split_shards"]

_GOLDEN = 0x9E3779B97F4A7C15
_ONE = 1 << 30  # Fractions are rounded to this many units.


class SplitRule(NamedTuple):
    """Which samples of a dataset a part of it has."""

    __module__ = "zephon_jax"

    # Shard of the whole for each shard of the part, int64 (n,).
    shard_ids: np.ndarray
    # Samples in each shard of the part, int64 (n,).
    counts: np.ndarray
    # First place of the part in each shard's order, permuted or not, int64 (n,).
    starts: np.ndarray
    # Key of the permutations, uint32 (2,); None for stretches of shards as they are.
    key: np.ndarray | None

    def resolve(
        self, shard_id: int, indices: np.ndarray, whole_counts: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Returns shard and places in the whole of places in the part."""
        whole_id = int(self.shard_ids[shard_id])
        places = indices + self.starts[shard_id]
        if self.key is None:
            return whole_id, places
        count = int(whole_counts[whole_id])
        return whole_id, permute(places, count, fold(self.key, whole_id)).astype(np.int64)

    def share_bytes(self, whole_bytes: np.ndarray, whole_counts: np.ndarray) -> np.ndarray:
        """Bytes of the part's shards, of those of the whole in proportion to the samples."""
        num_bytes, counts = whole_bytes[self.shard_ids], whole_counts[self.shard_ids]
        if np.array_equal(counts, self.counts):
            return num_bytes
        exact = num_bytes.astype(object) * self.counts // np.maximum(counts, 1)
        return exact.astype(np.int64)


def _bounds(fractions: Mapping[str, float | Fraction]) -> np.ndarray:
    """Cumulative fractions in units of 1 / _ONE, int64 (parts + 1,).

    Raises:
      ValueError: If there are none, one is not above 0, or they sum to more than 1.
    """
    if not fractions:
        raise ValueError("split needs at least one part, as name=fraction.")
    exact = [
        exact_number(value, f"the fraction of part {name!r}", above=0)
        for name, value in fractions.items()
    ]
    total = sum(exact)
    if total > 1:
        raise ValueError(f"the fractions must not sum to more than 1; got {float(total)}.")
    if total > 1 - Fraction(1, 10**9):  # Three times 0.333... is meant to be all.
        exact[-1] += 1 - total
    ends = itertools.accumulate(exact, initial=Fraction(0))
    return np.array([round(end * _ONE) for end in ends], dtype=np.int64)


def split_samples(
    counts: np.ndarray, fractions: Mapping[str, float | Fraction], seed: int
) -> dict[str, SplitRule]:
    """Gives each part its fraction of every shard's samples, chosen by keyed permutation."""
    bounds = _bounds(fractions)
    key = make_key(seed, "split", "samples")
    shard_ids = np.arange(len(counts))
    # Cuts are rounded up or down by another offset in each shard, so that small shards do not
    # all round the same way. High words first: count * bound may not fit 64 bits.
    offset = ((shard_ids.astype(np.uint64) * np.uint64(_GOLDEN)) >> np.uint64(34)).astype(np.int64)
    high, low = np.divmod(counts, _ONE)
    cuts = [high * bound + (low * bound + offset) // _ONE for bound in bounds]
    return {
        name: SplitRule(shard_ids, stop - start, start, key)
        for name, start, stop in zip(fractions, cuts[:-1], cuts[1:], strict=True)
    }


def split_shards(
    counts: np.ndarray, fractions: Mapping[str, float | Fraction], seed: int
) -> dict[str, SplitRule]:
    """Gives each part whole shards, about its fraction of the samples.

    Raises:
      ValueError: If a part would get no shard.
    """
    bounds = _bounds(fractions)
    num_shards = len(counts)
    order = permute(np.arange(num_shards), num_shards, make_key(seed, "split", "shards"))
    ends = np.cumsum(counts[order], dtype=np.int64)
    middles = ends - counts[order] / 2
    total = max(1, int(ends[-1]))
    owner = np.searchsorted(bounds / _ONE * total, middles, side="right") - 1
    parts = {}
    for place, name in enumerate(fractions):
        mine = np.sort(order[owner == place])
        if not len(mine):
            raise ValueError(
                f"part {name!r} gets none of the {num_shards} shards. Split by='sample', or give "
                "it a larger fraction."
            )
        parts[name] = SplitRule(mine, counts[mine], np.zeros(len(mine), np.int64), None)
    return parts
