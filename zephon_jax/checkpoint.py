"""Checkpoints of lanes: one small file for each writing host, and a manifest that makes them one.

A checkpoint exists when its manifest does, and that is written last, so it exists whole or not at
all. Which hosts wrote it plays no part in reading it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fsspec

from zephon_jax import _compat
from zephon_jax._xp import as_int
from zephon_jax.elastic_run import PipelineChanged
from zephon_jax.lane_files import LANES, SHARED, check_alike, from_files, to_files, unwrap, wrap

__all__ = [
    "check_iterator",
    "from_files",
    "read_checkpoint",
    "restore_checkpoint",
    "save_checkpoint",
    "to_files",
]

_MANIFEST = "zephon_jax checkpoint"
_saves = itertools.count()
_read_by_all: list[str] = []  # this host's keys that may be deleted, but for the last


Gather = Callable[[str, str, float], list[str]]


def check_iterator(iterator: Any) -> None:
    """Checks that something is the iterator of an elastic dataset, or stands on one.

    Raises:
      TypeError: If it is not.
    """
    if not hasattr(getattr(iterator, "dataset", None), "owned_lanes"):
        raise TypeError(
            "checkpoints are of the iterator of an ElasticIterDataset, or of GlobalBatches; got"
            f" {type(iterator).__name__}."
        )


def _write(fs: Any, path: str, data: bytes) -> None:
    """Writes a file that exists whole or not at all."""
    if not getattr(fs, "local_file", False):
        fs.pipe_file(path, data)  # object stores make it visible at once
        return
    beside = f"{path}.{uuid.uuid4().hex}.partial"  # somebody else may be writing the same file
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _steps(fs: Any, root: str) -> dict[int, str]:
    """Directories by step, whether complete or not."""
    try:
        fs.invalidate_cache()
        entries = fs.ls(root, detail=False)
    except FileNotFoundError:
        return {}
    found = {}
    for entry in sorted(entries):
        name = re.fullmatch(r"step_(\d+)", entry.rstrip("/").rsplit("/", 1)[-1])
        if name and int(name[1]) in found:
            raise ValueError(f"two checkpoints of step {int(name[1])}: {found[int(name[1])]} and "
                             f"{entry}. Remove one.")  # fmt: skip
        if name:
            found[int(name[1])] = entry.rstrip("/")
    return found


def _manifests(fs: Any, folder: str) -> list[str]:
    try:
        names = [entry.rsplit("/", 1)[-1] for entry in fs.ls(folder, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(n for n in names if n.startswith("manifest") and n.endswith(".json"))


def _prune(fs: Any, root: str, keep: int, saved: int) -> None:
    """Removes all but the newest complete checkpoints, and what was left incomplete before them.

    The one that was just saved stays, also where a run went back and others are newer.
    """
    folders = _steps(fs, root)
    complete = sorted(step for step, folder in folders.items() if _manifests(fs, folder))
    kept = {*complete[-keep:], saved}
    for step, folder in folders.items():
        if step not in kept and step < max(kept):
            with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
                for name in _manifests(fs, folder):  # first: half removed must not look whole
                    fs.rm_file(f"{folder}/{name}")
                fs.rm(folder, recursive=True)


def _gather(tag: str, payload: str, timeout: float) -> list[str]:
    """A payload from every host, by the key-value store of `jax.distributed`."""
    hosts = _compat.distributed_hosts()
    if hosts.client is None or hosts.process_count == 1:
        return [payload]
    key = f"zephon_jax/{tag}"
    hosts.client.key_value_set(f"{key}/{hosts.process_index}", payload)
    found = []
    for process in range(hosts.process_count):
        try:
            value = hosts.client.blocking_key_value_get(f"{key}/{process}", int(timeout * 1000))
        except Exception as error:
            raise TimeoutError(
                f"process {process} did not come to {tag!r} within {timeout:g} s: {error}"
            ) from error
        found.append(value)
    # All hosts have come here, so all have read what was gathered before.
    _read_by_all.append(f"{key}/{hosts.process_index}")
    while len(_read_by_all) > 1:
        hosts.client.key_value_delete(_read_by_all.pop(0))
    return found


def save_checkpoint(
    directory: Any,
    iterator: Any,
    step: int | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    keep: int | None = None,
    timeout: float = 300.0,
    gather: Gather | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Saves where an elastic iterator stands. All hosts call it, with the same arguments.

    Args:
      directory: Folder or URL (fsspec) that all hosts see; each step is a folder in it.
      iterator: An elastic iterator, or the `GlobalBatches` on top of one.
      step: Names the checkpoint; the iterator's own step by default.
      state: An earlier `get_state()` to save instead of the present one: a snapshot.
      keep: Remove all but so many of the newest complete checkpoints and the one saved now.
      timeout: Seconds to wait for the other hosts.
      gather: Takes (tag, text, timeout) and returns the texts of all hosts, where hosts are not
        those of `jax.distributed`.
      storage_options: For the file system of the URL, as fsspec takes them.

    Returns:
      The checkpoint's folder.

    Raises:
      TypeError, ValueError: If an argument is not allowed.
      TimeoutError: If another host does not come.
      RuntimeError: If another host could not write, or is at another step, or lanes are of no
        host that came.

    Example:
      >>> import tempfile, zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(16)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
      >>> lanes = zx.ElasticIterDataset(
      ...     source, 4, lambda lane: lane, process_index=0, process_count=1)
      >>> iterator, again = iter(lanes), iter(lanes)
      >>> _ = next(iterator)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = zx.save_checkpoint(folder, iterator)
      ...     step = zx.restore_checkpoint(folder, again)
      >>> step, next(again)["data"].tolist() == next(iterator)["data"].tolist()
      (1, True)
    """
    check_iterator(iterator)
    step = None if step is None else as_int(step, "step", 0)
    keep = None if keep is None else as_int(keep, "keep", 1)
    gather = gather or _gather
    tag = f"save {next(_saves)}"  # before anything can fail: all hosts count alike
    fs, root = fsspec.core.url_to_fs(str(directory), **(storage_options or {}))
    report, folder, error = {}, "", ""
    try:
        state = dict(iterator.get_state() if state is None else state)
        step = int(state["step"]) if step is None else step
        folder = f"{root.rstrip('/')}/step_{step:010d}"
        report = _write_lanes(fs, folder, state, iterator.dataset.written_lanes)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    text = json.dumps({"files": report, "step": step, "error": error})
    reports = [json.loads(one) for one in gather(tag, text, timeout)]
    failed = [f"process {p}: {r['error']}" for p, r in enumerate(reports) if r["error"]]
    if failed:
        raise RuntimeError(f"step {step} was not saved: {'; '.join(failed)}")
    if any(report["step"] != step for report in reports):
        steps = [report["step"] for report in reports]
        raise RuntimeError(f"nothing was saved: processes 0, 1, ... are at steps {steps}.")
    assert state is not None
    assert step is not None
    _check_all_came(reports, iterator.dataset.num_lanes)
    done = ""
    if 0 in iterator.dataset.written_lanes:
        done = f"step {step} was not saved"
        try:
            _complete(fs, folder, state, reports)
            done = f"step {step} was saved, but older checkpoints could not be removed"
            if keep is not None:
                _prune(fs, root.rstrip("/"), keep, step)
            done = ""
        except Exception as problem:
            done += f": {type(problem).__name__}: {problem}"
    failed = [text for text in gather(f"{tag}, manifest", done, timeout) if text]
    if failed:
        raise RuntimeError(failed[0])
    return folder


def _check_all_came(reports: Sequence[Mapping[str, Any]], num_lanes: int) -> None:
    """Checks on every host that the hosts which came have written all lanes."""
    written = {lane for report in reports for held in report["files"].values() for lane in held}
    missing = sorted(set(range(num_lanes)) - written)
    if missing:
        raise RuntimeError(
            f"nothing was saved: {len(reports)} processes came to the save, and lanes"
            f" {missing[:8]} are of none of them. Start jax.distributed on all hosts, or pass"
            " gather=."
        )


def _write_lanes(
    fs: Any, folder: str, state: Mapping[str, Any], lanes: Iterable[int]
) -> dict[str, list[int]]:
    """Writes this host's file; returns the lanes in it by its name."""
    fs.makedirs(folder, exist_ok=True)
    written = {}
    for name, data in to_files(state, lanes).items():
        _write(fs, f"{folder}/{name}", data)
        written[name] = list(lanes)
    return written


def _complete(
    fs: Any, folder: str, state: Mapping[str, Any], reports: Iterable[Mapping[str, Any]]
) -> None:
    """Writes the manifest, after a look at all that it names."""
    files = {name: lanes for report in reports for name, lanes in report["files"].items()}
    from_files({name: fs.cat_file(f"{folder}/{name}") for name in files})
    body = {"version": 1, "files": files, **{name: state[name] for name in SHARED[1:]}}
    _write(fs, f"{folder}/manifest.json", wrap(_MANIFEST, body))


def restore_checkpoint(
    directory: Any,
    iterator: Any,
    step: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Goes to where a checkpoint was taken, on any number of hosts. Each host calls it.

    Args:
      directory: The folder or URL that was saved to.
      iterator: An elastic iterator, or the `GlobalBatches` on top of one.
      step: Which checkpoint; the newest complete one by default.
      storage_options: For the file system of the URL, as fsspec takes them.

    Returns:
      The checkpoint's step.

    Raises:
      FileNotFoundError: If there is no complete checkpoint (of this step).
      ValueError: If it is damaged, or does not belong to this run and pipeline, naming lane and
        file. The iterator is then where it was.
    """
    check_iterator(iterator)
    step = None if step is None else as_int(step, "step", 0)
    fs, root = fsspec.core.url_to_fs(str(directory), **(storage_options or {}))
    chosen, folder = _choose(fs, root, directory, step)
    files = _read_files(fs, folder, iterator.dataset.owned_lanes)
    state = from_files(files, iterator.dataset.owned_lanes)
    before = iterator.get_state()
    try:
        iterator.set_state(state)
        if state["spec"] and isinstance(error := iterator.peek_error(), PipelineChanged):
            raise error
    except ValueError as error:
        iterator.set_state(before)
        raise ValueError(f"{folder}, files {sorted(files)}: {error}") from error
    return chosen


def _choose(fs: Any, root: str, directory: Any, step: int | None) -> tuple[int, str]:
    """The step and the folder of a checkpoint: the one asked for or the newest complete one."""
    folders = _steps(fs, root.rstrip("/"))
    complete = [n for n in sorted(folders) if _manifests(fs, folders[n])]
    if not complete or (step is not None and step not in complete):
        which = "" if step is None else f" of step {step}"
        raise FileNotFoundError(
            f"no complete checkpoint{which} in {directory}; complete ones: {complete}."
        )
    chosen = complete[-1] if step is None else step
    return chosen, folders[chosen]


def read_checkpoint(
    directory: Any, step: int | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Reads a checkpoint without an iterator, to look into it.

    Args:
      directory: The folder or URL that was saved to, one step's folder in it, or a folder with
        files of lanes from elsewhere, such as Orbax's.
      step: Which checkpoint; the newest complete one by default.
      storage_options: Arguments for the fsspec file system.

    Returns:
      What the iterators' `get_state` returned, of all lanes that are in the files.

    Raises:
      FileNotFoundError: If there is no complete checkpoint (of this step).
      ValueError: If it is damaged, naming lane and file.
    """
    fs, root = fsspec.core.url_to_fs(str(directory), **(storage_options or {}))
    folder = root.rstrip("/")
    fs.invalidate_cache()
    names = [entry.rsplit("/", 1)[-1] for entry in fs.ls(folder, detail=False)]
    lanes = sorted(n for n in names if n.startswith("lanes-") and n.endswith(".json"))
    if not _manifests(fs, folder) and not lanes:
        folder = _choose(fs, root, directory, step)[1]
    elif step is not None:
        raise FileNotFoundError(f"{directory} is one checkpoint: it has no steps to choose from.")
    if _manifests(fs, folder):
        files = _read_files(fs, folder, None)
    else:
        files = {name: fs.cat_file(f"{folder}/{name}") for name in lanes}
    held = [lane for n, data in files.items() for lane in unwrap(LANES, n, data)["lanes"]]
    return from_files(files, sorted(set(map(int, held))))


def _read_files(fs: Any, folder: str, lanes: Iterable[int] | None) -> dict[str, bytes]:
    """The files of a checkpoint that hold these lanes, or all of them."""
    names = _manifests(fs, folder)
    if len(names) > 1:
        raise ValueError(
            f"{folder} has two manifests, {names}: files of several checkpoints were put together."
        )
    path = f"{folder}/{names[0]}"
    manifest = unwrap(_MANIFEST, path, fs.cat_file(path))
    holders = {lane: name for name, held in manifest["files"].items() for lane in held}
    lanes = holders if lanes is None else lanes
    wanted = sorted({holders[lane] for lane in lanes if lane in holders})
    files = {}
    for name in wanted:
        held = manifest["files"][name]
        try:
            files[name] = fs.cat_file(f"{folder}/{name}")
        except FileNotFoundError:
            raise ValueError(f"lanes {held} are missing: {folder}/{name} is gone.") from None
        body = unwrap(LANES, f"{folder}/{name} (lanes {held})", files[name])
        check_alike(f"{folder}/{name}", body, path, {**manifest, "version": body["version"],
                                                     "lanes": {}})  # fmt: skip
    return files
