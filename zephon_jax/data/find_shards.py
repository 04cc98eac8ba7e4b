"""Which shards a path names, and their one format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence

from zephon_jax.data.fetch import with_retries
from zephon_jax.data.files import (
    File,
    PathLike,
    list_files,
    local_path,
    read_head,
    stat_file,
)
from zephon_jax.data.formats import ShardFormat, format_of, get_format
from zephon_jax.data.formats.base import named_error

__all__ = ["NoShardsError", "describe_shard", "find_shards", "location_of"]

# What lies beside data in a folder and is not data.
_NOT_DATA = {".json", ".md", ".txt", ".yaml", ".yml", ".html", ".py", ".lock", ".crc", ".idx"}
_UNREAD_PACKINGS = {".bz2", ".xz", ".lzma", ".lz4", ".br", ".z", ".zip", ".7z", ".snappy", ".sz"}

# What to install for the file systems of URLs.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
    "hf": "hf",
}


class NoShardsError(ValueError):
    """A place holds nothing that is data."""


def describe_shard(name: str, files: Sequence[File], shard_id: int) -> str:
    """Names a shard for an error."""
    path = f" ({files[shard_id].path})" if 0 <= shard_id < len(files) else ""
    return f"dataset {name!r}, shard {shard_id}{path}"


def location_of(path: PathLike | Sequence[PathLike]) -> str:
    """One string for one place, however it was written."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    places = [(local_path(entry), os.fspath(entry).rstrip("/")) for entry in paths]
    return ", ".join(sorted(url if p is None else os.path.realpath(p) for p, url in places))


def find_shards(
    name: str,
    path: PathLike | Sequence[PathLike],
    format: str | None,
    storage_options: Mapping[str, object] | None,
) -> tuple[list[File], ShardFormat]:
    """Lists the files that hold data and tells their one format."""
    wanted = None if format is None else get_format(format)
    try:
        files, walked = with_retries(lambda: list_files(path, storage_options))
    except TypeError as error:
        given = "" if not storage_options else (
            f" storage_options = {sorted(map(str, storage_options))} may not be those of this file"
            " system: they are passed on to fsspec"
        )  # fmt: skip
        raise TypeError(f"dataset {name!r}: {error}.{given}") from None
    except ImportError as error:
        raise ImportError(f"dataset {name!r}: {error}{_extra_of(path)}") from None
    except Exception as error:
        raise named_error(error, f"dataset {name!r}") from error
    found: dict[str, list[File]] = {}
    seconds = _companions_of(files)
    others = []
    for file in files:
        inside = file.path in walked
        fmt = None if file.path in seconds else wanted
        if wanted is None or inside:  # A name that was given is taken at its word.
            try:
                fmt = format_of(file.path, _head_reader(file, storage_options, inside))
            except Exception as error:
                raise named_error(error, f"dataset {name!r}: {file.path}") from error
        if fmt is None and file.path not in seconds:
            _check_passed_over(name, file, inside)
            others.append(file.path)
        if fmt is not None and (wanted is None or fmt is wanted):
            found.setdefault(fmt.name, []).append(file)
    shards, fmt = _one_format(name, path, found, others)
    return _with_companions(name, shards, fmt, files, storage_options), fmt


def _extra_of(path: PathLike | Sequence[PathLike]) -> str:
    """How to install what the file system of some paths needs."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    protocols = {link.split("://")[0] for one in paths for link in os.fspath(one).split("::")}
    extras = sorted({_EXTRAS[protocol] for protocol in protocols & _EXTRAS.keys()})
    return f' Install it with: pip install "zephon-jax[{",".join(extras)}]"' if extras else ""


def _companions_of(files: Sequence[File]) -> set[str | None]:
    """Paths of the second files of those whose names tell a format that comes in pairs."""
    known = [(format_of(file.path), file.path) for file in files]
    return {fmt.companion(path) for fmt, path in known if fmt is not None}


def _check_passed_over(name: str, file: File, inside: bool) -> None:
    """Refuses to leave out a file that was named, or data that is packed in an unknown way."""
    if not inside:
        raise ValueError(
            f"dataset {name!r}: the format of {file.path} is neither in its name nor in its "
            "first bytes. Name it with format=."
        )
    inner, packing = os.path.splitext(file.path)
    if packing.lower() in _UNREAD_PACKINGS and format_of(inner) is not None:
        raise ValueError(
            f"dataset {name!r}: {file.path} is packed as {packing}, which is not read. Unpack it, "
            "pack it with gzip or zstd, or take it out of the folder."
        )


def _with_companions(
    name: str,
    shards: list[File],
    fmt: ShardFormat,
    listed: Sequence[File],
    storage_options: Mapping[str, object] | None,
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
    file: File, storage_options: Mapping[str, object] | None, inside: bool
) -> Callable[[], bytes] | None:
    """How to look into a file whose name does not tell; None where that is not wanted."""
    plain = file.path.lower().removesuffix(".gz").removesuffix(".zst")
    if file.size == 0 or (inside and os.path.splitext(plain)[1] in _NOT_DATA):
        return None
    return lambda: with_retries(lambda: read_head(file.path, storage_options))


def _one_format(
    name: str,
    path: PathLike | Sequence[PathLike],
    found: Mapping[str, list[File]],
    others: Sequence[str],
) -> tuple[list[File], ShardFormat]:
    if not found:
        beside = "".join(
            f" Files like {other} are not taken for data; list them and give format=."
            for other in others[:1]
        )
        raise NoShardsError(f"dataset {name!r}: there are no shards in {path!r}.{beside}")
    if len(found) > 1:
        examples = "; ".join(f"{key}: {files[0].path}" for key, files in sorted(found.items()))
        raise ValueError(
            f"dataset {name!r} mixes formats ({examples}). "
            "Keep one of them with format=, or declare two datasets."
        )
    ((key, files),) = found.items()
    return files, get_format(key)
