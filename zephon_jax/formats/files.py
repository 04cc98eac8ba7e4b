"""Which files a path names, in an order that no directory listing decides."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec

__all__ = [
    "File",
    "PathLike",
    "file_system",
    "is_local",
    "list_files",
    "local_stamp",
    "natural_key",
    "read_head",
    "stat_file",
]

PathLike = str | os.PathLike[str]

_MAGIC = re.compile(r"[*?\[]")
# What object stores call the version of an object, best first.
_STAMP_KEYS = ("ETag", "etag", "md5Hash", "crc32c", "generation", "content_md5")
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
# Botocore would try again by itself, for minutes where a network is gone; `with_retries` does that.
_S3_CONFIG = {
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    "connect_timeout": 10,
    "read_timeout": 30,
}


class File(NamedTuple):
    """A file as it was when it was listed."""

    # Absolute local path, or URL with its protocol.
    path: str
    # Bytes.
    size: int
    # Changes whenever the content does: an etag, else the time of the last change.
    stamp: str
    # The file without which this one cannot be read, for formats that come in pairs.
    companion: File | None = None

    @property
    def version(self) -> str:
        """The stamp, with what tells the version of the companion."""
        other = self.companion
        return self.stamp if other is None else f"{self.stamp} {other.size} {other.stamp}"


def natural_key(path: str) -> tuple[Any, ...]:
    """Sorts numbers inside names by value, so shard 10 comes after shard 9.

    Example:
      >>> sorted(["b10", "b9", "a"], key=natural_key)
      ['a', 'b9', 'b10']
    """
    parts = re.split(r"(\d+)", path)
    return tuple((int(part), part) if part.isdigit() else (-1, part) for part in parts), path


def is_local(path: str) -> bool:
    """True for a path of this machine's file system."""
    return "://" not in path and "::" not in path


def local_stamp(path: str) -> tuple[int, str]:
    """Returns size and stamp of a local file as `list_files` would."""
    status = os.stat(path)
    return status.st_size, repr(status.st_mtime)


def file_system(url: str, storage_options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Returns the fsspec file system of a path or URL, and the path inside it."""
    options = dict(storage_options or {})
    if url.startswith(("s3://", "s3a://")):
        options["config_kwargs"] = {**_S3_CONFIG, **options.get("config_kwargs", {})}
    return fsspec.core.url_to_fs(url, **options)


def read_head(path: str, storage_options: Mapping[str, Any] | None, num_bytes: int = 64) -> bytes:
    """Returns the first bytes of a file."""
    fs, inner = file_system(path, storage_options)
    return fs.cat_file(inner, start=0, end=num_bytes)[:num_bytes]


def stat_file(path: str, storage_options: Mapping[str, Any] | None = None) -> File:
    """Asks a file system what a file is now, past its listing cache."""
    fs, inner = file_system(path, storage_options)
    fs.invalidate_cache(fs._parent(inner))
    return _as_files(fs, [fs.info(inner)])[0]


def list_files(
    path: PathLike | Sequence[PathLike], storage_options: Mapping[str, Any] | None = None
) -> tuple[list[File], bool]:
    """Lists what a file, folder, glob, URL or a list of these names, in natural order.

    Hidden files and folders (names that start with `.` or `_`) inside a folder are left out.

    Args:
      path: One path or several. Folders are walked to the bottom.
      storage_options: Arguments for the fsspec file system.

    Returns:
      The files, and whether any of them was found in a folder rather than named.

    Raises:
      FileNotFoundError: If a path does not exist or a glob matches nothing.
      ValueError: If a file is named twice.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not paths:
        raise ValueError("the list of paths is empty.")
    files: list[File] = []
    from_folder = False
    for entry in paths:
        found, walked = _list_one(os.fspath(entry), storage_options)
        files += found
        from_folder |= walked
    files.sort(key=lambda file: natural_key(file.path))
    for before, after in itertools.pairwise(files):
        if before.path == after.path:
            raise ValueError(f"file {after.path!r} is named twice.")
    return files, from_folder


def _list_one(path: str, options: Mapping[str, Any] | None) -> tuple[list[File], bool]:
    fs, root = file_system(path, options)
    if _MAGIC.search(root):
        found = fs.glob(root, detail=True)
        files = [info for info in found.values() if info["type"] == "file"]
        if not files:
            raise FileNotFoundError(f"no file matches {path!r}.")
        return _as_files(fs, files), False
    try:
        info = fs.info(root)
    except FileNotFoundError:
        if not fs.exists(root + ".bin"):  # Megatron's users name a pair by what both share.
            raise FileNotFoundError(f"{path!r} does not exist.") from None
        info = fs.info(root + ".bin")
    if info["type"] != "directory":
        return _as_files(fs, [info]), False
    found = fs.find(root, detail=True)
    visible = [info for name, info in found.items() if not _is_hidden(name, root)]
    return _as_files(fs, visible), True


def _is_hidden(name: str, root: str) -> bool:
    inner = name[len(root) :] if name.startswith(root) else name
    return any(part.startswith((".", "_")) for part in inner.split("/") if part)


def _as_files(fs: Any, infos: Iterable[Mapping[str, Any]]) -> list[File]:
    local = "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
    files = []
    for info in infos:
        name = info["name"] if local else fs.unstrip_protocol(info["name"])
        if local:
            files.append(File(name, *local_stamp(name)))
        else:
            files.append(File(name, int(info.get("size") or 0), _remote_stamp(info)))
    return files


def _remote_stamp(info: Mapping[str, Any]) -> str:
    for key in (*_STAMP_KEYS, *_TIME_KEYS):
        if info.get(key):
            return f"{info[key]}".strip('"')
    return ""
