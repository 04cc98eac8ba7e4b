"""How often an order makes row groups be decoded, said before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.part_shards import PartShards

__all__ = ["warn_of_decoding"]

# Windows of one chunk that a lane looks ahead, at most: as in `data.cache.decoded`.
_WINDOWS_AHEAD = 64
# Decoding that is worth a word: each byte more than this many times.
_MUCH = 2.0


class _Spread(NamedTuple):
    """What one dataset's order reads from at a time."""

    dataset: Dataset
    num_bytes: float  # decoded, of all row groups that the order goes back and forth between
    sample_bytes: float
    group_bytes: float
    room: int  # samples of which half of the budget has room for


def _spread(dataset: Dataset, within: bool, block: int | str) -> _Spread | None:
    whole = dataset.whole
    groups = whole.store.num_row_groups
    if not groups or not whole.num_samples:
        return None
    sample_bytes = whole.store.decoded_bytes / whole.num_samples
    group_bytes = whole.store.decoded_bytes / groups
    shard = float(np.max(dataset.shard_counts)) * sample_bytes
    if block == "global":
        num_bytes = float(whole.store.decoded_bytes)
    elif block:
        stretch = max(int(block) * sample_bytes, group_bytes)
        num_bytes = -(-stretch // shard) * shard if within and shard else stretch
    else:
        num_bytes = shard if within else group_bytes
    room = max(1, int(decoded_blocks().max_bytes // sample_bytes // 2))
    num_bytes = min(num_bytes, float(whole.store.decoded_bytes))
    return _Spread(dataset, num_bytes, sample_bytes, group_bytes, room)


def warn_of_decoding(
    datasets: Sequence[object],
    within: Sequence[bool],
    blocks: Sequence[int | str],
    chunk_size: int,
) -> None:
    """Warns where an order goes back and forth between more row groups than memory may hold.

    Args:
      datasets: The datasets of a mixture.
      within: Whether each one's shards are shuffled within.
      blocks: Each one's block of a block shuffle in samples, 0 for none, or "global".
      chunk_size: Samples in a chunk.
    """
    found = [
        spread
        for dataset, inside, block in zip(datasets, within, blocks, strict=True)
        if isinstance(dataset, Dataset) and (spread := _spread(dataset, inside, block))
    ]
    budget = decoded_blocks().max_bytes
    total = sum(spread.num_bytes for spread in found)
    if total <= budget:
        return
    worst = max(found, key=lambda spread: spread.num_bytes)
    ahead = min(budget / 2, _WINDOWS_AHEAD * chunk_size * worst.sample_bytes)
    times = (total - budget / 2) / ahead
    if times <= _MUCH:
        return
    # Row groups as shards help where shards, and not the whole dataset, are gone back and forth in.
    helps = worst.num_bytes < worst.dataset.whole.store.decoded_bytes
    helps &= not isinstance(worst.dataset.store, PartShards)
    by_groups = ", row_groups='shards'," if helps else ""
    spread, each = _megabytes(worst.num_bytes), _megabytes(worst.group_bytes)
    warn(
        f"dataset {short(worst.dataset.name)}: its order goes back and forth between {spread} of"
        f" decoded row groups ({each} each), and decoded row groups may take"
        f" {_megabytes(budget)}: each will be decoded about {times:.0f} times. Take a"
        f" shuffle_block_size of at most {worst.room:,} samples{by_groups} or set"
        f" ZEPHON_JAX_DECODED_BYTES to {int(total * 1.2):,} if there is memory for it."
    )


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.{0 if num_bytes >= 1e7 else 2}f} MB"
