"""Which shards a path names, and their one format."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from zephon_jax.formats import ShardFormat, format_of, get_format
from zephon_jax.formats.base import named_error
from zephon_jax.formats.fetch import with_retries
from zephon_jax.formats.files import (
    File,
    PathLike,
    is_local,
    list_files,
    read_head,
    stat_file,
)

__all__ = ["describe_shard", "find_shards", "location_of"]


def describe_shard(name: str, files: Sequence[File], shard_id: int) -> str:
    """Names a shard for an error."""
    path = f" ({files[shard_id].path})" if 0 <= shard_id < len(files) else ""
    return f"dataset {name!r}, shard {shard_id}{path}"


def location_of(path: PathLike | Sequence[PathLike]) -> str:
    """One string for one place, however it was written."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    places = [os.fspath(entry).removeprefix("file://").rstrip("/") for entry in paths]
    return ", ".join(sorted(os.path.realpath(p) if is_local(p) else p for p in places))


def find_shards(
    name: str,
    path: PathLike | Sequence[PathLike],
    format: str | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[list[File], ShardFormat]:
    """Lists the files that hold data and tells their one format."""
    wanted = None if format is None else get_format(format)
    try:
        files, from_folder = with_retries(lambda: list_files(path, storage_options))
    except Exception as error:
        raise named_error(error, f"dataset {name!r}") from error
    found: dict[str, list[File]] = {}
    for file in files:
        fmt = format_of(file.path, _head_reader(file, storage_options, wanted, from_folder))
        if fmt is None and wanted is not None and not from_folder:
            fmt = wanted
        if fmt is None and not from_folder:
            raise ValueError(
                f"dataset {name!r}: the format of {file.path} is neither in its name nor in its "
                "first bytes. Name it with format=."
            )
        if fmt is not None:
            found.setdefault(fmt.name, []).append(file)
    if wanted is not None and from_folder:
        found = {wanted.name: found.get(wanted.name, [])}
    shards, fmt = _one_format(name, path, found)
    return _with_companions(name, shards, fmt, files, storage_options), fmt


def _with_companions(
    name: str,
    shards: list[File],
    fmt: ShardFormat,
    listed: Sequence[File],
    storage_options: Mapping[str, Any] | None,
) -> list[File]:
    """Pairs each shard with the second file that its format asks for.

    Raises:
      FileNotFoundError: If one half of a pair is missing.
    """
    wanted = [fmt.companion(file.path) for file in shards]
    if all(path is None for path in wanted):
        return shards
    by_path = {file.path: file for file in listed}
    suffixes = {os.path.splitext(str(path))[1] for path in wanted}
    for file in listed:
        if os.path.splitext(file.path)[1] in suffixes and file.path not in wanted:
            raise FileNotFoundError(
                f"dataset {name!r}: {file.path} has no shard beside it. Put it back, or take "
                "this file away."
            )
    paired = []
    for shard_id, (file, path) in enumerate(zip(shards, wanted, strict=True)):
        try:
            other = by_path.get(str(path)) or with_retries(
                functools.partial(stat_file, str(path), storage_options)
            )
        except FileNotFoundError as error:
            missing = FileNotFoundError(
                f"{path} does not exist, and {fmt.name} shards are read with such a file. If "
                "this is no such shard, name the shards by a glob or a list, or give format="
            )
            raise named_error(missing, describe_shard(name, shards, shard_id)) from error
        except Exception as error:
            raise named_error(error, describe_shard(name, shards, shard_id)) from error
        paired.append(file._replace(companion=other))
    return paired


def _head_reader(
    file: File, storage_options: Any, wanted: ShardFormat | None, from_folder: bool
) -> Any:
    """How to look into a file whose name does not tell; None where that is not wanted."""
    plain = file.path.lower().removesuffix(".gz").removesuffix(".zst")
    told = os.path.splitext(plain)[1] in _NOT_DATA
    if file.size == 0 or (from_folder and told) or (wanted is not None and not from_folder):
        return None
    return lambda: read_head(file.path, storage_options)


# What lies beside data in a folder and is not data.
_NOT_DATA = {".json", ".md", ".txt", ".yaml", ".yml", ".html", ".py", ".lock", ".crc", ".idx"}


def _one_format(
    name: str, path: Any, found: Mapping[str, list[File]]
) -> tuple[list[File], ShardFormat]:
    found = {key: files for key, files in found.items() if files}
    if not found:
        raise ValueError(f"dataset {name!r}: there are no shards in {path!r}.")
    if len(found) > 1:
        examples = "; ".join(f"{key}: {files[0].path}" for key, files in sorted(found.items()))
        raise ValueError(
            f"dataset {name!r} mixes formats ({examples}). "
            "Keep one of them with format=, or declare two datasets."
        )
    ((key, files),) = found.items()
    return files, get_format(key)
