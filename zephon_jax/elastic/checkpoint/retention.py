"""What a save does to the other steps of its directory: never anything to those of others.

A directory may hold what other runs and other programs saved. A folder is of a run where files in
it say so, and in it only files that carry our names are marked or removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fsspec import AbstractFileSystem

from zephon_jax._checked_json import unwrap
from zephon_jax.elastic.checkpoint.folder import (
    ABANDONED,
    MANIFEST,
    OtherVersion,
    entries_of,
    folder_of,
    is_ours,
    manifests_in,
    read_file,
    read_manifest,
    sizes_of,
    write_file,
)
from zephon_jax.elastic.checkpoint.lane_files import LANES, LANES_NAME

__all__ = ["abandon", "check_runs", "later_than", "prune"]

_OURS = re.compile(
    rf"(manifest\.json|{ABANDONED}|{LANES_NAME.pattern})(\.[0-9a-f]{{32}}\.partial)?"
)


def _runs_of(fs: AbstractFileSystem, folder: str, names: Iterable[str]) -> set[str]:
    """The runs that files of a folder say to be of: by its manifests, else by its lanes."""
    lanes = sorted(name for name in names if LANES_NAME.fullmatch(name))
    for kind, chosen in ((MANIFEST, manifests_in(names)), (LANES, lanes)):
        found = set()
        for name in chosen:
            with contextlib.suppress(FileNotFoundError, ValueError):  # removed, torn, or not ours
                body = unwrap(kind, name, read_file(fs, f"{folder}/{name}"))
                found.add(str(body.get("run")))
        if found:
            return found
    return set()


def check_runs(
    fs: AbstractFileSystem, root: str, step: int, run: str, *, later: bool = True
) -> None:
    """Checks that a save of a step would neither write over nor abandon what another run saved.

    Args:
      fs: File system of the directory.
      root: The directory.
      step: The step that is to be saved.
      run: The run that saves.
      later: Whether to look at later steps too: one host does.

    Raises:
      ValueError: If it would, naming the steps and both runs.
    """
    others: dict[str, list[int]] = {}
    for n, folder in entries_of(fs, root):
        if n < step or (n > step and not later) or not manifests_in(names := sizes_of(fs, folder)):
            continue
        runs = _runs_of(fs, folder, names)
        if not runs and folder.endswith(folder_of("", step)):
            _check_ours(fs, folder, names)
        for other in runs - {run}:
            others.setdefault(other, []).append(n)
    for other, steps in sorted(others.items()):
        raise ValueError(
            f"{root} holds steps {sorted(steps)} of another run ({other}), and this is run {run}:"
            f" saving step {step} would write over them or abandon them. Save to another directory,"
            f" or later steps than {max(steps)} by step= where this run goes on after that one (cut"
            " anew), or remove them."
        )


def _check_ours(fs: AbstractFileSystem, folder: str, names: Mapping[str, object]) -> None:
    if "manifest.json" in names and not is_ours(fs, f"{folder}/manifest.json"):
        raise ValueError(
            f"{folder}/manifest.json is not a manifest of a checkpoint, and saving would write over"
            " it. Save to another directory, or remove it."
        )


def later_than(fs: AbstractFileSystem, root: str, step: int, run: str) -> dict[str, int]:
    """Steps, by folder, of a run's complete checkpoints after a step that are not abandoned yet."""
    found = {}
    for later, folder in entries_of(fs, root):
        if later > step:
            names = sizes_of(fs, folder)
            open_yet = bool(manifests_in(names)) and ABANDONED not in names
            if open_yet and _runs_of(fs, folder, names) == {run}:
                found[folder] = later
    return found


def abandon(fs: AbstractFileSystem, folders: Iterable[str], step: int) -> None:
    """Marks checkpoints of steps that the run has not come to, since it went back.

    They stay, and are restored where their step is asked for.
    """
    text = f"the run went back and saved step {step}\n".encode()
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # somebody removed it
            write_file(fs, f"{folder}/{ABANDONED}", text)


def prune(fs: AbstractFileSystem, root: str, keep: int, saved: int, run: str) -> None:
    """Removes all but a run's newest whole checkpoints, and what it left incomplete before them.

    What is later than the one that was just saved stays, abandoned or not, and what a later release
    wrote, of which this one cannot tell whether it is whole.
    """
    kept = 0
    for step, folder in sorted(entries_of(fs, root), reverse=True):
        if step > saved or not folder.endswith(folder_of("", step)):  # as a copy is named
            continue
        names = sizes_of(fs, folder)
        if _runs_of(fs, folder, names) != {run}:
            continue
        try:
            whole = ABANDONED not in names and _is_whole(fs, folder, names)
        except OtherVersion:
            continue
        kept += whole
        if step != saved and not (whole and kept <= keep):
            _remove(fs, folder, names)


def _is_whole(fs: AbstractFileSystem, folder: str, names: Mapping[str, Any]) -> bool:
    try:
        return bool(manifests_in(names)) and bool(read_manifest(fs, folder, names))
    except OtherVersion:
        raise
    except (ValueError, FileNotFoundError):
        return False


def _remove(fs: AbstractFileSystem, folder: str, names: Iterable[str]) -> None:
    """Removes our files from a folder, and the folder where nothing else is in it.

    The manifest goes first, for half a checkpoint must not look whole, and lanes go last: they say
    whose the rest is.
    """
    ours = {name for name in names if _OURS.fullmatch(name)}
    lanes = {name for name in ours if LANES_NAME.fullmatch(name)}
    for name in [*sorted(ours - lanes, key=lambda n: n != "manifest.json"), *sorted(lanes)]:
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
            fs.rm_file(f"{folder}/{name}")
    if not set(names) - ours:
        with contextlib.suppress(OSError):  # somebody put something into it
            fs.rmdir(folder)
