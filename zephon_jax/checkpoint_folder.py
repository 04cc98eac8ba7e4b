"""How checkpoints lie in a folder: a folder for each step, and in it files of lanes and a manifest.

A checkpoint exists when its manifest does, and that is written last. A store whose puts are not
atomic can leave a torn one, so a checkpoint is whole where its manifest fits its checksum and all
files that it names have the sizes that it says: every host sees that alike, without reading them.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from zephon_jax.lane_files import LANES, SHARED, check_alike, from_files, unwrap, wrap

__all__ = [
    "Checkpoint",
    "abandon",
    "choose",
    "folder_of",
    "later_than",
    "open_checkpoint",
    "prune",
    "read_files",
    "write_file",
    "write_manifest",
]

_MANIFEST = "zephon_jax checkpoint"
_VERSION = 2  # since 2 with the sizes of files
_ABANDONED = "abandoned"


class Checkpoint(NamedTuple):
    """A whole checkpoint."""

    step: int
    folder: str
    manifest: Mapping[str, Any]


def folder_of(root: str, step: int) -> str:
    """Where the checkpoint of a step lies."""
    return f"{root.rstrip('/')}/step_{step:010d}"


def write_file(fs: Any, path: str, data: bytes) -> None:
    """Writes a file that exists whole or not at all, where the file system can do that."""
    if not getattr(fs, "local_file", False):
        fs.pipe_file(path, data)  # object stores make it visible at once
        return
    beside = f"{path}.{uuid.uuid4().hex}.partial"  # somebody else may be writing the same file
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _entries(fs: Any, root: str) -> list[tuple[int, str]]:
    """Steps and their folders, whether complete or not."""
    try:
        fs.invalidate_cache()
        entries = sorted(entry.rstrip("/") for entry in fs.ls(root.rstrip("/"), detail=False))
    except FileNotFoundError:
        return []
    names = [re.fullmatch(r"step_(\d+)", entry.rsplit("/", 1)[-1]) for entry in entries]
    return [(int(n[1]), entry) for n, entry in zip(names, entries, strict=True) if n]


def _folders(fs: Any, root: str) -> dict[int, str]:
    """Folders by step, whether complete or not.

    Raises:
      ValueError: If a step has two.
    """
    found: dict[int, str] = {}
    for step, folder in _entries(fs, root):
        if step in found:
            raise ValueError(
                f"two checkpoints of step {step}: {found[step]} and {folder}. Remove one."
            )
        found[step] = folder
    return found


def _sizes(fs: Any, folder: str) -> dict[str, int | None]:
    """Files of a folder by name, with their sizes where the file system tells."""
    try:
        entries = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return {}
    return {entry["name"].rsplit("/", 1)[-1]: entry.get("size") for entry in entries}


def _manifests(names: Iterable[str]) -> list[str]:
    return sorted(n for n in names if n.startswith("manifest") and n.endswith(".json"))


def write_manifest(
    fs: Any, folder: str, state: Mapping[str, Any], lanes: Mapping[str, list[int]]
) -> None:
    """Makes a checkpoint of a folder, after a look at all files of lanes.

    Args:
      fs: File system of the folder.
      folder: The folder of a step.
      state: A state of any host.
      lanes: The lanes in each file.

    Raises:
      ValueError: If the files do not fit together, or lack lanes.
    """
    files = {name: fs.cat_file(f"{folder}/{name}") for name in lanes}
    from_files(files)
    sizes = {name: len(data) for name, data in files.items()}
    shared = {name: state[name] for name in SHARED[1:]}
    body = {"version": _VERSION, "files": dict(lanes), "sizes": sizes, **shared}
    write_file(fs, f"{folder}/manifest.json", wrap(_MANIFEST, body))
    if fs.exists(f"{folder}/{_ABANDONED}"):  # the run came here again
        fs.rm_file(f"{folder}/{_ABANDONED}")


def later_than(fs: Any, root: str, step: int) -> dict[str, int]:
    """Steps, by folder, of the complete checkpoints after a step that are not abandoned yet."""
    found = {}
    for later, folder in _entries(fs, root):
        if later > step:
            names = _sizes(fs, folder)
            if _manifests(names) and _ABANDONED not in names:
                found[folder] = later
    return found


def abandon(fs: Any, folders: Iterable[str], step: int) -> None:
    """Marks checkpoints of steps that the run has not come to, since it went back.

    They stay, and are restored where their step is asked for.
    """
    text = f"the run went back and saved step {step}\n".encode()
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # somebody removed it
            write_file(fs, f"{folder}/{_ABANDONED}", text)


def prune(fs: Any, root: str, keep: int, saved: int) -> None:
    """Removes all but the newest complete checkpoints, and what was left incomplete before them.

    What is later than the one that was just saved stays, abandoned or not.
    """
    folders = {step: one for step, one in _folders(fs, root).items() if step <= saved}
    names = {step: _sizes(fs, folder) for step, folder in folders.items()}
    complete = [n for n in sorted(folders) if _manifests(names[n]) and _ABANDONED not in names[n]]
    kept = {*complete[-keep:], saved}
    for step in sorted(folders.keys() - kept):
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
            for name in _manifests(names[step]):  # first: half removed must not look whole
                fs.rm_file(f"{folders[step]}/{name}")
            fs.rm(folders[step], recursive=True)


def choose(fs: Any, root: str, directory: Any, step: int | None) -> Checkpoint:
    """The checkpoint that is asked for, or the newest whole one that is not abandoned.

    Warns of newer ones that are not whole.

    Raises:
      FileNotFoundError: If there is none.
      ValueError: If the one that is asked for is not whole, or none is.
    """
    folders = _folders(fs, root)
    torn: list[ValueError] = []
    for n in sorted(folders, reverse=True) if step is None else {step} & folders.keys():
        names = _sizes(fs, folders[n])
        if not _manifests(names) or (step is None and _ABANDONED in names):
            continue
        try:
            found = Checkpoint(n, folders[n], _read_manifest(fs, folders[n], names))
        except ValueError as error:
            if step is not None:
                raise
            torn.append(error)
            continue
        for error in torn:
            warnings.warn(f"step {n} is taken instead of a later one: {error}", stacklevel=3)
        return found
    if torn:
        raise torn[0]
    raise FileNotFoundError(_none_found(fs, folders, directory, step))


def _none_found(fs: Any, folders: Mapping[int, str], directory: Any, step: int | None) -> str:
    names = {n: _sizes(fs, folders[n]) for n in sorted(folders)}
    complete = [n for n in names if _manifests(names[n])]
    abandoned = [n for n in complete if _ABANDONED in names[n]]
    which = "" if step is None else f" of step {step}"
    more = f" Abandoned ones, which step= restores: {abandoned}." if abandoned else ""
    kept = [n for n in complete if n not in abandoned]
    return f"no complete checkpoint{which} in {directory}; complete ones: {kept}.{more}"


def open_checkpoint(fs: Any, folder: str) -> Checkpoint | None:
    """The checkpoint that a folder is, whatever its name; None where it has no manifest.

    Raises:
      ValueError: If it is not whole.
    """
    names = _sizes(fs, folder)
    if not _manifests(names):
        return None
    manifest = _read_manifest(fs, folder, names)
    return Checkpoint(manifest["step"], folder, manifest)


def _read_manifest(fs: Any, folder: str, names: Mapping[str, int | None]) -> dict[str, Any]:
    """Reads a manifest, and checks that what it names is there and has its size.

    Raises:
      ValueError: If not, naming the file and its lanes.
    """
    manifests = _manifests(names)
    if len(manifests) > 1:
        raise ValueError(
            f"{folder} has two manifests, {manifests}: files of several checkpoints were put"
            " together."
        )
    path = f"{folder}/{manifests[0]}"
    manifest = unwrap(_MANIFEST, path, fs.cat_file(path))
    if not 1 <= manifest["version"] <= _VERSION:
        raise ValueError(
            f"{path} has version {manifest['version']}; this reads up to version {_VERSION}."
        )
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


def _read_lanes(fs: Any, folder: str, manifest: Mapping[str, Any], name: str) -> bytes:
    """Reads a file that a manifest names, and checks that it belongs to it."""
    path = f"{folder}/{name}"
    data = fs.cat_file(path)
    body = unwrap(LANES, f"{path} (lanes {manifest['files'][name]})", data)
    shared = {**manifest, "version": body["version"], "lanes": {}}
    check_alike(path, body, f"{folder}/manifest.json", shared)
    return data


def read_files(fs: Any, found: Checkpoint, lanes: Iterable[int] | None) -> dict[str, bytes]:
    """The files of a checkpoint that hold these lanes, or all of them.

    Raises:
      ValueError: If one is damaged or of another checkpoint, naming it and its lanes.
    """
    holders = {lane: name for name, held in found.manifest["files"].items() for lane in held}
    lanes = holders if lanes is None else lanes
    wanted = sorted({holders[lane] for lane in lanes if lane in holders})
    return {name: _read_lanes(fs, found.folder, found.manifest, name) for name in wanted}
