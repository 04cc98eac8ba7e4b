"""Which files a path names, in an order that no directory listing decides."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from zephon_jax._text import short

__all__ = [
    "File",
    "PathLike",
    "file_system",
    "is_chain",
    "is_local",
    "list_files",
    "local_path",
    "local_stamp",
    "natural_key",
    "read_head",
    "stat_file",
]

PathLike = str | os.PathLike[str]

_MAGIC = re.compile(r"[*?\[]")
# What object stores call the version of an object, best first.
_STAMP_KEYS = (
    *("ETag", "etag", "md5Hash", "crc32c", "generation", "content_md5", "Content-MD5", "Digest"),
    *("checksum", "sha", "oid", "blob_id", "CRC"),
)
_TIME_KEYS = (
    *("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified", "created"),
    *("modify", "modificationTime", "last_write_time", "date_time"),
)
# Botocore would try again by itself, for minutes where a network is gone; `with_retries` does that.
_S3_CONFIG = {
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    "connect_timeout": 10,
    "read_timeout": 30,
}


# Of file systems that stand before another one.
_CHAINED = frozenset(
    ("zip", "tar", "libarchive", "simplecache", "filecache", "blockcache", "cached", "dir")
)


class File(NamedTuple):
    """A file as it was when it was listed."""

    __module__ = "zephon_jax"

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


def natural_key(path: str) -> tuple[object, ...]:
    """Sorts numbers inside names by value, so shard 10 comes after shard 9.

    Example:
      >>> sorted(["b10", "b9", "a"], key=natural_key)
      ['a', 'b9', 'b10']
    """
    parts = re.split(r"(\d+)", path)
    # Every other part is digits; "²" is none, whatever `str.isdigit` says of it.
    keys = ((int(part), part) if place % 2 else (-1, part) for place, part in enumerate(parts))
    return tuple(keys), path


def is_local(path: str) -> bool:
    """True for a path of this machine's file system, which may hold `::` where it is absolute."""
    return path.startswith("/") or ("://" not in path and "::" not in path)


def local_path(path: PathLike) -> str | None:
    """Returns the absolute path that a local path or `file://` URL names; None for other URLs."""
    path = os.fspath(path)
    if not is_local(path) and not path.startswith(("file://", "local://")):
        return None
    inner = path.removeprefix("file://").removeprefix("local://")
    return os.path.abspath(os.path.expanduser(inner))


def local_stamp(path: str) -> tuple[int, str]:
    """Returns size and stamp of a local file as `list_files` would."""
    status = os.stat(path)
    return status.st_size, repr(status.st_mtime)


def file_system(
    url: str, storage_options: Mapping[str, object] | None
) -> tuple[AbstractFileSystem, str]:
    """Returns the fsspec file system of a path or URL, and the path inside it."""
    options: dict[str, Any] = dict(storage_options or {})
    local = local_path(url)
    if local is not None:
        return fsspec.filesystem("file", **options), local
    if url.startswith(("s3://", "s3a://")):
        options["config_kwargs"] = {**_S3_CONFIG, **options.get("config_kwargs", {})}
    if "::" in url and not is_chain(url):
        fs = fsspec.filesystem(url.split("://", 1)[0], **options)
        return fs, fs._strip_protocol(url)
    return fsspec.core.url_to_fs(url, **options)


def is_chain(url: str) -> bool:
    """True for `zip://a.jsonl::s3://bucket/b.zip`, False where `::` is a part of a key.

    Example:
      >>> is_chain("simplecache::s3://bucket/a.jsonl"), is_chain("s3://bucket/a::b.jsonl")
      (True, False)
    """
    first, *rest = url.split("::")
    return bool(rest) and (
        first.split("://")[0] in _CHAINED or all("://" in one or one[:1] == "/" for one in rest)
    )


def read_head(
    path: str, storage_options: Mapping[str, object] | None, num_bytes: int = 64
) -> bytes:
    """Returns the first bytes of a file."""
    fs, inner = file_system(path, storage_options)
    return cast("bytes", fs.cat_file(inner, start=0, end=num_bytes))[:num_bytes]


def stat_file(path: str, storage_options: Mapping[str, object] | None = None) -> File:
    """Asks a file system what a file is now, past its listing cache."""
    local = local_path(path)
    if local is not None:
        return _local_file(local)
    fs, inner = file_system(path, storage_options)
    fs.invalidate_cache(fs._parent(inner))
    return _as_files(fs, [fs.info(inner)])[0]._replace(path=path)


def list_files(
    path: PathLike | Sequence[PathLike], storage_options: Mapping[str, object] | None = None
) -> tuple[list[File], set[str]]:
    """Lists what a file, folder, glob, URL or a list of these names, in natural order.

    What exists under a name is meant by it, even where it could be read as a glob. Links are
    followed. Hidden files and folders (names that start with `.` or `_`) inside a folder are left
    out.

    Args:
      path: One path or several. Folders, and those that a glob matches, are walked to the bottom.
      storage_options: Arguments for the fsspec file system.

    Returns:
      The files, and the paths of those that were found in a folder rather than named.

    Raises:
      TypeError: If a path is neither a string nor a path object.
      FileNotFoundError: If a path does not exist or a glob matches nothing.
      ValueError: If a file is named twice, or is no regular file.
    """
    paths = [path] if isinstance(path, (str, os.PathLike)) else _checked_paths(path)
    files: dict[str, File] = {}
    walked: set[str] = set()
    for entry in paths:
        local = local_path(entry)
        if local is not None:
            found, inside = _list_local(local)
        else:
            found, inside = _list_remote(os.fspath(entry), storage_options)
        for file in found:
            if file.path in files:
                raise ValueError(f"file {file.path!r} is named twice.")
            files[file.path] = file
        walked |= inside
    return sorted(files.values(), key=lambda file: natural_key(file.path)), walked


def _checked_paths(paths: object) -> list[PathLike]:
    listed = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, bytes) else None
    if listed is None or not all(isinstance(entry, (str, os.PathLike)) for entry in listed):
        raise TypeError(
            f"a path must be a string, a path object or a list of these; got {short(paths)}"
        )
    if not listed:
        raise ValueError("the list of paths is empty.")
    return listed


def _list_local(path: str) -> tuple[list[File], set[str]]:
    """Lists what a local path names, and which of it lies in a folder."""
    if os.path.lexists(path):
        named = [path]
    elif _MAGIC.search(path):
        named = glob.glob(path, recursive=True)
        if not named:
            raise FileNotFoundError(f"no file matches {path!r}.")
    elif os.path.exists(path + ".bin"):  # Megatron's users name a pair by what both share.
        named = [path + ".bin"]
    else:
        raise FileNotFoundError(f"{path!r} does not exist.")
    files: dict[str, File] = {}
    inside: set[str] = set()
    seen: dict[str, str] = {}
    for entry in named:
        if not os.path.isdir(entry):
            files[entry] = _local_file(entry)
    for entry in named:
        # A glob with `**` matches a folder and those inside it.
        if os.path.isdir(entry) and os.path.realpath(entry) not in seen:
            found = [file for file in _walk(entry.rstrip("/") or "/", seen) if file not in files]
            files.update((file, _local_file(file)) for file in found)
            inside.update(found)
    return list(files.values()), inside


def _walk(folder: str, seen: dict[str, str]) -> Iterator[str]:
    """Yields the files of a folder that are not hidden; a folder that is unreadable is an error.

    Raises:
      ValueError: If a link leads to a folder that was `seen`, whose files would count twice.
    """
    real = os.path.realpath(folder)
    if real in seen:
        raise ValueError(
            f"folders {seen[real]!r} and {folder!r} are the same, so their files would be read "
            "twice. Take away the link, or list the files"
        )
    seen[real] = folder
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith((".", "_"))]
    for entry in visible:
        if entry.is_dir():
            yield from _walk(entry.path, seen)
        else:
            yield entry.path


def _local_file(path: str) -> File:
    """Refuses pipes and the like, which block whoever opens them and cannot be read by place."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path!r} is neither a file nor a folder. Write the data into a file")
    return File(path, status.st_size, repr(status.st_mtime))


def _list_remote(path: str, options: Mapping[str, object] | None) -> tuple[list[File], set[str]]:
    """Lists what a URL names, and which of it lies in a folder."""
    fs, root = file_system(path, options)
    try:
        named = [fs.info(root)]
    except FileNotFoundError:
        if _MAGIC.search(root):
            named = _match(fs, root)
        elif fs.exists(root + ".bin"):
            named = [fs.info(root + ".bin")]
        else:
            named = []
        if not named:
            what = "no file matches {!r}." if _MAGIC.search(root) else "{!r} does not exist."
            raise FileNotFoundError(what.format(path)) from None
    # What comes after `::` belongs to the name of each file inside, `zip://a.jsonl::b.zip`.
    first, *rest = path.split("::", 1)
    outer = f"::{rest[0]}" if rest and "://" in first and is_chain(path) else ""
    files = {f.path: f for f in _as_files(fs, named, outer)}
    inside: set[str] = set()
    for folder in named:
        if folder["type"] == "directory":
            for file in _as_files(fs, _find(fs, folder["name"]), outer):
                if file.path not in files:
                    files[file.path] = file
                    inside.add(file.path)
    return list(files.values()), inside


def _match(fs: AbstractFileSystem, pattern: str) -> list[Mapping[str, Any]]:
    """What a glob matches; as in a shell, a hidden file only where the pattern says its dot."""
    dot = pattern.rsplit("/", 1)[-1].startswith(".")
    found = cast("Mapping[str, Mapping[str, Any]]", fs.glob(pattern, detail=True))
    return [
        info
        for info in found.values()
        if dot or not info["name"].rsplit("/", 1)[-1].startswith(".")
    ]


def _find(fs: AbstractFileSystem, root: str) -> list[Mapping[str, Any]]:
    """The files of a remote folder that are not hidden."""
    plain = (AbstractFileSystem.find, AsyncFileSystem._find)
    # These two leave out what they cannot list, unless they are told otherwise.
    lenient = getattr(type(fs), "_find", type(fs).find) in plain
    options: dict[str, Any] = {"on_error": "raise"} if lenient else {}
    found = cast("Mapping[str, Mapping[str, Any]]", fs.find(root, detail=True, **options))
    return [info for name, info in found.items() if not _is_hidden(name, root)]


def _is_hidden(name: str, root: str) -> bool:
    inner = name[len(root) :] if name.startswith(root) else name
    return any(part.startswith((".", "_")) for part in inner.split("/") if part)


def _as_files(
    fs: AbstractFileSystem, infos: Iterable[Mapping[str, Any]], outer: str = ""
) -> list[File]:
    files = []
    for info in infos:
        if info["type"] == "directory":
            continue
        name = fs.unstrip_protocol(info["name"]) + outer
        if info.get("size") is None:
            raise ValueError(f"the size of {name} is not known to its server. Copy it here first")
        files.append(File(name, int(info["size"]), _remote_stamp(info)))
    return files


def _remote_stamp(info: Mapping[str, Any]) -> str:
    for key in (*_STAMP_KEYS, *_TIME_KEYS):
        value = info.get(key)
        if value:  # One file system gives a date as a number here and as an object there.
            return f"{value.timestamp() if hasattr(value, 'timestamp') else value}".strip('"')
    return ""
