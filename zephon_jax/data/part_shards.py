"""Datasets whose shards are parts of another dataset's shards: splits, and row groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zephon_jax.data.files import File
from zephon_jax.data.shard_store import ShardStore
from zephon_jax.data.split import SplitRule

if TYPE_CHECKING:
    from zephon_jax.data.dataset import Dataset

__all__ = ["PartShards", "by_row_groups"]


@dataclass(frozen=True, eq=False)
class PartShards(ShardStore):
    """Shards that are parts of another dataset's shards."""

    __module__ = "zephon_jax"

    whole: Dataset
    rule: SplitRule
    location: str | None = None
    files: tuple[File, ...] = ()
    format: str | None = None
    staged: bool = False
    # True if each shard is a row group, so that `whole` is the same data by files.
    row_groups: bool = False

    def num_bytes(self, shard_counts: np.ndarray) -> np.ndarray | None:
        """Those of the whole shards, in proportion to the samples."""
        del shard_counts
        whole = self.whole.shard_bytes
        return None if whole is None else self.rule.share_bytes(whole, self.whole.shard_counts)


def by_row_groups(dataset: Dataset, rows: Sequence[Sequence[int]]) -> PartShards | None:
    """The same samples, with each row group that has any as a shard; None where none has.

    Args:
      dataset: Files as shards.
      rows: Rows of each group of each file.
    """
    counts = np.asarray([num for group in rows for num in group], dtype=np.int64)
    if not counts.any():
        return None
    file = np.repeat(np.arange(len(rows)), [len(group) for group in rows])
    starts = np.concatenate([np.cumsum([0, *group])[:-1] for group in rows]).astype(np.int64)
    filled = counts > 0
    rule = SplitRule(file[filled], counts[filled], starts[filled], None)
    return PartShards(
        dataset,
        rule,
        location=dataset.location,
        files=tuple(dataset.shards[i] for i in rule.shard_ids),
        format=dataset.format,
        staged=dataset.store.staged,
        row_groups=True,
    )
