"""The commands of `zephon-jax` that look at data before a run: describe, check, index."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from zephon_jax._text import counted, table, visible
from zephon_jax.cli.output import answer, as_json_option, bar, careful, size
from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.check_data import ShardCheck, check_datasets
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.shard_index import default_index_store
from zephon_jax.mixture.config import SUFFIXES, read_config_file

__all__ = ["check", "describe", "facts_of", "index"]

_DATA = click.argument("data", nargs=-1, required=True)
_FORMAT = click.option("--format", help="Format of the shards, where their names do not tell it.")


def _datasets(data: Sequence[str], format: str | None) -> list[Dataset]:
    """Datasets of paths; a configuration file stands for all of its own."""
    found = []
    for path in data:
        if path.lower().endswith(SUFFIXES) and os.path.isfile(path):
            if format is not None:
                raise ValueError(f"--format is for paths; {path} says which formats it has.")
            found += read_config_file(path).source().datasets_by_id.values()
        else:
            found.append(Dataset.from_path(path, path, format=format))
    return found


def facts_of(dataset: Dataset) -> dict[str, Any]:
    """What is said of a dataset, as JSON."""
    counts, sizes = dataset.shard_counts, dataset.shard_bytes
    return {
        "name": dataset.name,
        "location": dataset.location,
        "format": dataset.format,
        "shards": dataset.num_shards,
        "samples": dataset.num_samples,
        "bytes": int(sizes.sum()) if dataset.shards and sizes is not None else None,
        "smallest_shard": int(counts.min()),
        "largest_shard": int(counts.max()),
        "empty_shards": int((counts == 0).sum()),
        **_row_groups(dataset),
    }


def _row_groups(dataset: Dataset) -> dict[str, int]:
    """What decoding costs, of shards that are decoded in row groups."""
    store = dataset.whole.store
    if not store.num_row_groups:
        return {}
    return {
        "row_groups": store.num_row_groups,
        "row_group_bytes": store.decoded_bytes // store.num_row_groups,
        "decoded_budget": decoded_blocks().max_bytes,
    }


@click.command()
@_DATA
@_FORMAT
@as_json_option
@careful
def describe(data: tuple[str, ...], format: str | None, as_json: bool) -> None:
    """Lists datasets: format, shards, samples and bytes.

    DATA are files, folders, globs or URLs, one dataset each, or configuration files.
    """
    facts = [facts_of(dataset) for dataset in _datasets(data, format)]
    rows = [("dataset", "format", "shards", "samples", "bytes", "samples a shard")]
    for one in facts:
        low, high = one["smallest_shard"], one["largest_shard"]
        spread = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows.append((
            one["name"], one["format"] or "-", f"{one['shards']:,}", f"{one['samples']:,}",
            size(one["bytes"]), spread,
        ))  # fmt: skip
    empty = [f"! {visible(one['name'])} has {counted(one['empty_shards'], 'shard')} without samples"
             for one in facts if one["empty_shards"]]  # fmt: skip
    groups = [f"{visible(one['name'])}: {counted(one['row_groups'], 'row group')} of about"
              f" {size(one['row_group_bytes'])} decoded; ZEPHON_JAX_DECODED_BYTES lets each process"
              f" hold {size(one['decoded_budget'])}"
              for one in facts if "row_groups" in one]  # fmt: skip
    answer(as_json, "\n".join([table(rows), *groups, *empty]), facts)


@click.command()
@_DATA
@_FORMAT
@click.option("--processes", type=click.IntRange(0),
              help="Processes that read; by default as many as the data is worth.")  # fmt: skip
@as_json_option
@careful
def check(data: tuple[str, ...], format: str | None, processes: int | None, as_json: bool) -> None:
    """Reads all records once and lists those that cannot be read. Exits with 1 if there are any."""
    datasets = _datasets(data, format)
    for dataset in datasets:
        if not dataset.readable:
            raise ValueError(f"dataset {dataset.name!r} has no data to read: only its counts.")
    found: list[ShardCheck] = []
    total = sum(dataset.num_samples for dataset in datasets)
    with bar(total, "reading", as_json, "samples") as progress:
        for one in check_datasets(datasets, processes):
            found.append(one)
            progress.update(one.num_samples)
    broken = [one for one in found if one.num_bad or one.error]
    lines = [
        f"{counted(sum(one.num_samples for one in found), 'sample')} in"
        f" {counted(len(found), 'shard')}: {counted(sum(one.num_bad for one in found), 'record')}"
        f" cannot be read, {counted(sum(one.error is not None for one in found), 'shard')} not to"
        " its end"
    ]
    for one in broken:
        where = f"dataset {visible(one.dataset)!r}, shard {one.shard_id} ({one.path})"
        lines += [f"! {where}: {visible(bad.reason)}" for bad in one.bad]
        if one.num_bad > len(one.bad):
            lines.append(f"! {where}: and {one.num_bad - len(one.bad):,} more")
        if one.error is not None:
            lines.append(f"! {visible(one.error)}")
    answer(as_json, "\n".join(lines), broken)
    if broken:
        sys.exit(1)


@click.command()
@_DATA
@_FORMAT
@as_json_option
@careful
def index(data: tuple[str, ...], format: str | None, as_json: bool) -> None:
    """Counts the samples of datasets and keeps what was found, so that runs start at once."""
    facts = []
    for dataset in _datasets(data, format):
        if not dataset.shards:
            raise ValueError(f"dataset {dataset.name!r} has no files to index.")
        shards = [dataset.shard(shard_id) for shard_id in range(dataset.num_shards)]
        path = default_index_store().keep(shards, dataset.location, dataset.describe_shard)
        facts.append({**facts_of(dataset), "index": path})
    lines = [
        f"{visible(one['name'])}: {counted(one['samples'], 'sample')} in"
        f" {counted(one['shards'], 'shard')}; kept in {one['index']}"
        for one in facts
    ]
    answer(as_json, "\n".join(lines), facts)
