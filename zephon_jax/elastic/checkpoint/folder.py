"""How checkpoints lie in a folder: a folder for each step, and in it files of lanes and a manifest.

A checkpoint exists when its manifest does, and that is written last. A store whose puts are not
atomic can leave a torn one, so a checkpoint is whole where its manifest fits its checksum and all
files that it names have the sizes that it says: every host sees that alike, without reading them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from fsspec import AbstractFileSystem

from zephon_jax._atomic_file import atomic_file
from zephon_jax._checked_json import digest_of, unwrap, wrap
from zephon_jax._warn import warn
from zephon_jax.elastic.checkpoint.lane_files import (
    LANES,
    LANES_NAME,
    check_alike,
    from_files,
    shared_fields,
)

__all__ = [
    "ABANDONED",
    "MANIFEST",
    "Checkpoint",
    "OtherVersion",
    "checkpoint_id",
    "choose",
    "entries_of",
    "folder_of",
    "is_ours",
    "make_manifest",
    "manifests_in",
    "open_checkpoint",
    "read_file",
    "read_files",
    "read_manifest",
    "remove_mark",
    "sizes_of",
    "write_file",
    "write_manifest",
]

MANIFEST = "zephon_jax checkpoint"
_VERSION = 2  # since 2 with the sizes of files
ABANDONED = "abandoned"
_BEGINS = wrap(MANIFEST, {})[:13]  # up to the checksum: torn ones begin so too, if with anything


class Checkpoint(NamedTuple):
    """A whole checkpoint."""

    step: int
    folder: str
    manifest: Mapping[str, Any]
    abandoned: bool = False  # True where the run had gone back and on since


class OtherVersion(ValueError):
    """A manifest is of a release that wrote them in another way."""


def folder_of(root: str, step: int) -> str:
    """Where the checkpoint of a step lies."""
    return f"{root.rstrip('/')}/step_{step:010d}"


def write_file(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    """Writes a file that exists whole or not at all, where the file system can do that."""
    if not getattr(fs, "local_file", False):
        fs.pipe_file(path, data)  # object stores make it visible at once
        return
    with atomic_file(path) as file:
        file.write(data)


def read_file(fs: AbstractFileSystem, path: str) -> bytes:
    """What is in a file."""
    return cast(bytes, fs.cat_file(path))


def entries_of(fs: AbstractFileSystem, root: str) -> list[tuple[int, str]]:
    """Steps and their folders, whether complete or not, and whoever made them."""
    try:
        fs.invalidate_cache()
        entries = fs.ls(root.rstrip("/"), detail=True)
    except FileNotFoundError:
        return []
    folders = sorted(one["name"].rstrip("/") for one in entries if one["type"] != "file")
    names = [re.fullmatch(r"step_([0-9]+)", folder.rsplit("/", 1)[-1]) for folder in folders]
    return [(int(n[1]), folder) for n, folder in zip(names, folders, strict=True) if n]


def sizes_of(fs: AbstractFileSystem, folder: str) -> dict[str, int | None]:
    """Files of a folder by name, with their sizes where the file system tells."""
    try:
        entries = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return {}
    return {entry["name"].rsplit("/", 1)[-1]: entry.get("size") for entry in entries}


def manifests_in(names: Iterable[str]) -> list[str]:
    """The manifests among names of files; there are several where folders were put together."""
    return sorted(n for n in names if n.startswith("manifest") and n.endswith(".json"))


def is_ours(fs: AbstractFileSystem, path: str) -> bool:
    """True for a manifest, torn or not; other programs write files of that name too."""
    data = read_file(fs, path)[: len(_BEGINS)]
    return data == _BEGINS[: len(data)]


def make_manifest(
    fs: AbstractFileSystem, folder: str, state: Mapping[str, object], lanes: Mapping[str, list[int]]
) -> bytes:
    """What makes a checkpoint of a folder, after a look at all files of lanes.

    Args:
      fs: File system of the folder.
      folder: The folder of a step.
      state: A state of any host.
      lanes: The lanes in each file.

    Raises:
      ValueError: If the files do not fit together, or lack lanes.
    """
    files = {name: read_file(fs, f"{folder}/{name}") for name in lanes}
    from_files(files)
    sizes = {name: len(data) for name, data in files.items()}
    shared = shared_fields(state)
    del shared["version"]
    return wrap(MANIFEST, {"version": _VERSION, "files": dict(lanes), "sizes": sizes, **shared})


def write_manifest(fs: AbstractFileSystem, folder: str, manifest: bytes) -> None:
    """Makes a checkpoint of a folder; takes away what only the one before it there named."""
    path = f"{folder}/manifest.json"
    before: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        before = set(unwrap(MANIFEST, path, read_file(fs, path))["files"])
    write_file(fs, path, manifest)
    remove_mark(fs, folder)  # the run came here again
    for name in sorted(before - set(unwrap(MANIFEST, path, manifest)["files"])):
        if LANES_NAME.fullmatch(name):  # nothing else is ours, whatever the manifest says
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{folder}/{name}")


def remove_mark(fs: AbstractFileSystem, folder: str) -> None:
    """Makes an abandoned checkpoint one of the run's own line again."""
    if fs.exists(f"{folder}/{ABANDONED}"):
        fs.rm_file(f"{folder}/{ABANDONED}")


def checkpoint_id(checkpoint: Checkpoint) -> str:
    """Names what is in a checkpoint, wherever it lies: names of files hold digests of lanes."""
    return digest_of(repr(sorted(checkpoint.manifest.items())))


def choose(
    fs: AbstractFileSystem,
    root: str,
    directory: str | os.PathLike[str],
    step: int | None,
    most: int | None = None,
) -> Checkpoint:
    """The checkpoint that is asked for, or the newest whole one that is not abandoned.

    Warns of newer ones that are not whole.

    Args:
      fs: The file system.
      root: The directory in it.
      directory: The directory as the user named it, for errors.
      step: The step that is asked for; None for the newest.
      most: The last step that is looked at; None for all.

    Raises:
      FileNotFoundError: If there is none.
      ValueError: If the one that is asked for is not whole or is there twice, or none is whole.
    """
    folders: dict[int, list[str]] = {}
    for n, folder in entries_of(fs, root):
        if most is None or n <= most:
            folders.setdefault(n, []).append(folder)
    torn: list[ValueError] = []
    for n in sorted(folders, reverse=True) if step is None else {step} & folders.keys():
        try:
            found = _only_one(fs, n, folders[n], abandoned=step is not None)
        except _TwoFound:
            raise
        except ValueError as error:
            if step is not None:
                raise
            torn.append(error)
            continue
        if found is not None:
            for error in torn:
                warn(f"step {n} is taken instead of a later one: {error}")
            return found
    if torn:
        raise torn[0]
    raise FileNotFoundError(_none_found(fs, folders, directory, step))


class _TwoFound(ValueError):
    """A step has two checkpoints, and nobody can tell which is meant."""


def _complete(fs: AbstractFileSystem, folders: Iterable[str]) -> dict[str, dict[str, int | None]]:
    """Those of some folders that have a manifest, and their files: others are not ours."""
    names = {folder: sizes_of(fs, folder) for folder in folders}
    return {folder: held for folder, held in names.items() if manifests_in(held)}


def _only_one(
    fs: AbstractFileSystem, step: int, folders: Iterable[str], *, abandoned: bool
) -> Checkpoint | None:
    """The checkpoint of a step, None where there is none, or only an abandoned one."""
    names = _complete(fs, folders)
    if not abandoned:
        names = {folder: held for folder, held in names.items() if ABANDONED not in held}
    if len(names) > 1:
        names = {
            folder: held for folder, held in names.items()
            if any(is_ours(fs, f"{folder}/{name}") for name in manifests_in(held))
        }  # fmt: skip
    if len(names) > 1:
        raise _TwoFound(f"two checkpoints of step {step}: {' and '.join(names)}. Remove one.")
    for folder, held in names.items():
        return Checkpoint(step, folder, read_manifest(fs, folder, held), ABANDONED in held)
    return None


def _none_found(
    fs: AbstractFileSystem,
    folders: Mapping[int, Iterable[str]],
    directory: str | os.PathLike[str],
    step: int | None,
) -> str:
    complete = {n: _complete(fs, folders[n]).values() for n in sorted(folders)}
    abandoned = [n for n, found in complete.items() if any(ABANDONED in one for one in found)]
    which = "" if step is None else f" of step {step}"
    more = f" Abandoned ones, which step= restores: {abandoned}." if abandoned else ""
    kept = [n for n, found in complete.items() if found and n not in abandoned]
    return f"no complete checkpoint{which} in {directory}; complete ones: {kept}.{more}"


def open_checkpoint(fs: AbstractFileSystem, folder: str) -> Checkpoint | None:
    """The checkpoint that a folder is, whatever its name; None where it has no manifest.

    Raises:
      ValueError: If it is not whole.
    """
    names = sizes_of(fs, folder)
    if not manifests_in(names):
        return None
    manifest = read_manifest(fs, folder, names)
    return Checkpoint(manifest["step"], folder, manifest)


def read_manifest(
    fs: AbstractFileSystem, folder: str, names: Mapping[str, int | None]
) -> dict[str, Any]:
    """Reads a manifest, and checks that what it names is there and has its size.

    Raises:
      ValueError: If not, naming the file and its lanes.
    """
    manifests = manifests_in(names)
    if len(manifests) > 1:
        raise ValueError(
            f"{folder} has two manifests, {manifests}: files of several checkpoints were put"
            " together."
        )
    path = f"{folder}/{manifests[0]}"
    manifest = unwrap(MANIFEST, path, read_file(fs, path))
    version = manifest.get("version")
    if type(version) is not int or not 1 <= version <= _VERSION:
        raise OtherVersion(f"{path} has version {version!r}; this reads up to version {_VERSION}.")
    for name, held in manifest["files"].items():
        if name not in names:
            raise ValueError(f"lanes {held} are missing: {folder}/{name} is gone.")
        size = manifest.get("sizes", {}).get(name)
        if None not in (size, names[name]) and size != names[name]:
            _read_lanes(fs, folder, manifest, name)  # says more, where it can
            raise ValueError(
                f"{folder}/{name} (lanes {held}) has {names[name]} bytes instead of {size}: it was"
                " changed."
            )
    return manifest


def _read_lanes(
    fs: AbstractFileSystem, folder: str, manifest: Mapping[str, Any], name: str
) -> bytes:
    """Reads a file that a manifest names, and checks that it belongs to it."""
    path = f"{folder}/{name}"
    data = read_file(fs, path)
    body = unwrap(LANES, f"{path} (lanes {manifest['files'][name]})", data)
    shared = {**manifest, "version": body["version"], "lanes": {}}
    check_alike(path, body, f"{folder}/manifest.json", shared)
    return data


def read_files(
    fs: AbstractFileSystem, found: Checkpoint, lanes: Iterable[int] | None
) -> dict[str, bytes]:
    """The files of a checkpoint that hold these lanes, or all of them.

    Raises:
      ValueError: If one is damaged or of another checkpoint, naming it and its lanes.
    """
    holders = {lane: name for name, held in found.manifest["files"].items() for lane in held}
    lanes = holders if lanes is None else lanes
    wanted = sorted({holders[lane] for lane in lanes if lane in holders})
    return {name: _read_lanes(fs, found.folder, found.manifest, name) for name in wanted}
