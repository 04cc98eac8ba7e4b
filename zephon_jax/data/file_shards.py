"""Files that were found as the shards of a dataset: counted, and with what is known of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.cache.stager import Shard
from zephon_jax.data.dataset_arguments import (
    check_alike,
    checked_columns,
    checked_counts,
    hive_of,
    known_of,
)
from zephon_jax.data.files import File, is_local
from zephon_jax.data.find_shards import describe_shard
from zephon_jax.data.formats import ShardFormat
from zephon_jax.data.shard_index import default_index_store
from zephon_jax.data.shard_store import FileShards

__all__ = ["file_shards"]


def file_shards(
    name: str,
    files: Sequence[File],
    fmt: ShardFormat,
    location: str,
    storage_options: Mapping[str, object] | None = None,
    columns: Sequence[str] | None = None,
    counts: Sequence[int] | np.ndarray | None = None,
) -> tuple[np.ndarray, FileShards, Sequence[Mapping[str, Any]]]:
    """Counts the samples of files, in their order.

    Args:
      name: The dataset's name, for errors.
      files: As `find_shards` lists them, or some of them.
      fmt: Their format.
      location: The place of all of them, under which their counts are kept.
      storage_options: Arguments for the fsspec file system.
      columns: Columns to read, for Parquet.
      counts: Samples in each file, where they are known: then none is opened.

    Returns:
      The counts, int64 (n,), the store, and what the index knows of each file, if it was asked.

    Raises:
      ValueError: If a file is broken, or is not like the others, naming it.
    """
    chosen = None if columns is None else checked_columns(name, columns, fmt.name)
    added = hive_of(name, files, chosen) if fmt.name == "parquet" else None
    facts: Sequence[Mapping[str, Any]] = ()
    if counts is None:
        shards = [Shard(file, fmt, storage_options) for file in files]
        describe = functools.partial(describe_shard, name, files)
        index = default_index_store()
        counts = index.count_samples(shards, location, describe)
        facts = index.facts(shards, location, describe)
        if fmt.name == "parquet":
            check_alike(name, files, facts, chosen)
    checked = checked_counts(name, counts)
    if len(checked) != len(files):
        raise ValueError(
            f"dataset {name!r}: counts has {len(checked)} entries for {len(files)} shards. "
            "Give one count for each shard, in natural order of the paths."
        )
    store = FileShards(
        files=tuple(files),
        format=fmt.name,
        location=location,
        staged=any(not is_local(f.path) or fmt.unpacker(f) is not None for f in files),
        columns=chosen,
        storage_options=None if storage_options is None else dict(storage_options),
        added_columns=added,
        **known_of(facts, chosen),
    )
    return checked, store, facts
