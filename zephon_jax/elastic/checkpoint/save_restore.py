"""Checkpoints of lanes: one small file for each writing host, and a manifest that makes them one.

A checkpoint exists when its manifest does, and that is written last, so it exists whole or not at
all. Which hosts wrote it plays no part in reading it.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec
from fsspec import AbstractFileSystem

from zephon_jax._arrays import as_int
from zephon_jax._checked_json import digest_of, unwrap
from zephon_jax._warn import warn
from zephon_jax.elastic.checkpoint.agreement import restore_together
from zephon_jax.elastic.checkpoint.checkpointable import Checkpointable, check_iterator
from zephon_jax.elastic.checkpoint.folder import (
    choose,
    folder_of,
    make_manifest,
    open_checkpoint,
    read_file,
    read_files,
    remove_mark,
    write_file,
    write_manifest,
)
from zephon_jax.elastic.checkpoint.lane_files import LANES, from_files, to_files
from zephon_jax.elastic.checkpoint.rendezvous import meet
from zephon_jax.elastic.checkpoint.retention import abandon, check_runs, later_than, prune

__all__ = [
    "from_files",
    "read_checkpoint",
    "restore_checkpoint",
    "save_checkpoint",
    "to_files",
]

Gather = Callable[[str, str, float], list[str]]


def save_checkpoint(
    directory: str | os.PathLike[str],
    iterator: Checkpointable,
    step: int | None = None,
    *,
    state: Mapping[str, object] | None = None,
    keep: int | None = None,
    timeout: float = 300.0,
    gather: Gather | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> str:
    """Saves where an elastic iterator stands. All hosts call it, with the same arguments.

    One save of a directory follows the other. A host that leaves one out costs that save alone.
    After a run went back to an earlier step, its next save marks later checkpoints as abandoned,
    with a warning: they stay, but are restored only where their step is asked for. What another run
    has saved at this step or a later one is never touched: the save is refused.

    Args:
      directory: Folder or URL (fsspec) that all hosts see; each step is a folder in it.
      iterator: An elastic iterator, or the `GlobalBatches` on top of one.
      step: Names the checkpoint; the iterator's own step by default.
      state: An earlier `get_state()` to save instead of the present one: a snapshot.
      keep: Remove all but so many of this run's newest whole checkpoints and the one saved now, but
        none of a later step. Only own files are removed, and nothing of another run.
      timeout: Seconds to wait for the other hosts.
      gather: Takes (tag, text, timeout) and returns the texts of all hosts, where hosts are not
        those of `jax.distributed`. Tags name the step and are the same on all hosts.
      storage_options: For the file system of the URL, as fsspec takes them.

    Returns:
      The checkpoint's folder.

    Raises:
      TypeError, ValueError: If an argument is not allowed.
      TimeoutError: If another host does not come, naming the processes.
      RuntimeError: If a host could not write, or is at another step, or lanes are of no host that
        came, or another run has saved this step or a later one.

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
    fs, root = fsspec.core.url_to_fs(os.fspath(directory), **(storage_options or {}))
    part = _write_part(fs, root, iterator, step, state)
    meeting = functools.partial(_meet, gather, str(directory), part.step, timeout=timeout)
    reports = [json.loads(text) for text in meeting(0, json.dumps(part.report))]
    _check_reports(reports, part.step, iterator.num_lanes)
    problem = ""
    if 0 in iterator.written_lanes:
        problem = _finish(fs, root, part, reports, keep)
    failed = [text for text in meeting(1, problem) if text]
    if failed:
        raise RuntimeError(failed[0])
    iterator.restored_from = None
    if part.later:
        steps = sorted(part.later.values())
        warn(
            f"the run went back: the checkpoints of steps {steps} in {directory} are abandoned"
            f" since step {part.step} was saved, and restored only where step= asks for one."
        )
    return part.folder


class HostPart(NamedTuple):
    """What one host has written of a checkpoint; it is whole with what all have."""

    step: int | None  # None where it could not be told
    folder: str
    state: Mapping[str, Any]
    later: Mapping[str, int]  # folders of checkpoints that this one abandons, and their steps
    taken_up: str | None  # folder of an abandoned one that this one goes on from
    report: dict[str, Any]  # what the other hosts are told


def _write_part(
    fs: AbstractFileSystem,
    root: str,
    iterator: Checkpointable,
    step: int | None,
    snapshot: Mapping[str, object] | None,
) -> HostPart:
    """Writes this host's file. What goes wrong is for all hosts to hear, and so is not raised."""
    lanes = sorted(iterator.written_lanes)
    report: dict[str, Any] = {"files": {}, "step": step, "error": ""}
    state: dict[str, Any] = {}
    folder, later = "", {}
    try:
        state = iterator.get_state() if snapshot is None else iterator.checked_state(snapshot)
        named: int = state["step"] if step is None else step
        step = report["step"] = named
        folder = folder_of(root, named)
        check_runs(fs, root, named, state["run"], later=0 in lanes)
        if 0 in lanes:  # before any lane is written: what others save from now on is not meant
            later = later_than(fs, root, named, state["run"])
        fs.makedirs(folder, exist_ok=True)
        for name, data in to_files(state, lanes).items():
            write_file(fs, f"{folder}/{name}", data)
            report["files"][name] = lanes
    except Exception as error:
        report["error"] = f"{type(error).__name__}: {error}"
    return HostPart(step, folder, state, later, _taken_up(root, iterator, step), report)


def _taken_up(root: str, iterator: Checkpointable, step: int | None) -> str | None:
    """The abandoned checkpoint that the run went on from to this step, None where there is none."""
    before = iterator.restored_from
    if before is None or step is None or before.step >= step:
        return None
    return before.folder if before.folder.rsplit("/", 1)[0] == root.rstrip("/") else None


def _meet(
    gather: Gather | None, directory: str, step: int | None, turn: int, text: str, *, timeout: float
) -> list[str]:
    """A text from every host, once all have come to the same turn of saving a step."""
    what = f"the {('lanes', 'manifest')[turn]} of step {step} in {directory}"
    if gather is not None:
        return gather(what, text, timeout)
    return meet(
        f"save/{digest_of(directory)}", None if step is None else (step, turn), what, text, timeout
    )


def _check_reports(reports: Sequence[Mapping[str, Any]], step: int | None, num_lanes: int) -> None:
    """Checks on every host that all could write, are at this step, and have written all lanes."""
    failed = [f"process {p}: {r['error']}" for p, r in enumerate(reports) if r["error"]]
    if failed:
        what = "nothing was saved" if step is None else f"step {step} was not saved"
        raise RuntimeError(f"{what}: {'; '.join(failed)}")
    if any(report["step"] != step for report in reports):
        steps = [report["step"] for report in reports]
        raise RuntimeError(f"nothing was saved: processes 0, 1, ... are at steps {steps}.")
    written = {lane for report in reports for held in report["files"].values() for lane in held}
    missing = sorted(set(range(num_lanes)) - written)
    if missing:
        raise RuntimeError(
            f"nothing was saved: {len(reports)} processes came to the save, and lanes"
            f" {missing[:8]} are of none of them. Start jax.distributed on all hosts, or pass"
            " gather=."
        )


def _finish(
    fs: AbstractFileSystem,
    root: str,
    part: HostPart,
    reports: Iterable[Mapping[str, Any]],
    keep: int | None,
) -> str:
    """Makes the checkpoint of the parts; returns what went wrong, for all hosts to hear."""
    assert part.step is not None
    done = f"step {part.step} was not saved"
    try:
        lanes = {name: held for report in reports for name, held in report["files"].items()}
        manifest = make_manifest(fs, part.folder, part.state, lanes)
        abandon(fs, part.later, part.step)  # before it: else they would be the newest
        write_manifest(fs, part.folder, manifest)
        if part.taken_up is not None:
            remove_mark(fs, part.taken_up)
        done = f"step {part.step} was saved, but older checkpoints could not be removed"
        if keep is not None:
            prune(fs, root, keep, part.step, part.state["run"])
    except Exception as problem:
        return f"{done}: {type(problem).__name__}: {problem}"
    return ""


def restore_checkpoint(
    directory: str | os.PathLike[str],
    iterator: Checkpointable,
    step: int | None = None,
    *,
    timeout: float = 300.0,
    gather: Gather | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> int:
    """Goes to where a checkpoint was taken, on any number of hosts. All hosts call it.

    The hosts of `jax.distributed` agree on the checkpoint before any of them goes to it, so that
    none reads from another step or another run than the rest: the newest that all of them can read.
    Reads no data: that the pipeline yields other rows than the one that was saved is an error of
    the first step.

    Args:
      directory: The folder or URL that was saved to.
      iterator: An elastic iterator, or the `GlobalBatches` on top of one.
      step: Which checkpoint. By default the newest whole one of the run's own line: later ones that
        it abandoned are passed over, and those that are torn or damaged on any host too, with a
        warning.
      timeout: Seconds to wait for the other hosts.
      gather: Takes (tag, text, timeout) and returns the texts of all hosts, where hosts are not
        those of `jax.distributed`.
      storage_options: For the file system of the URL, as fsspec takes them.

    Returns:
      The checkpoint's step.

    Raises:
      FileNotFoundError: If there is no complete checkpoint (of this step).
      ValueError: If it is damaged, or does not belong to this run and pipeline, naming lane and
        file. The iterator is then where it was.
      RuntimeError: If another host could not restore it, or hosts are of different runs, or ask for
        different steps, naming the processes.
      TimeoutError: If another host does not come, naming the processes.
    """
    check_iterator(iterator)
    step = None if step is None else as_int(step, "step", 0)
    fs, root = fsspec.core.url_to_fs(os.fspath(directory), **(storage_options or {}))
    what = f"the restore of {'the newest step' if step is None else f'step {step}'}"

    def exchange(turn: int, text: str) -> list[str]:
        tag = f"turn {turn} of {what} in {directory}"
        if gather is not None:
            return gather(tag, text, timeout)
        return meet("restore", (turn,), tag, text, timeout)

    return restore_together(fs, root, directory, iterator, step, exchange)


def read_checkpoint(
    directory: str | os.PathLike[str],
    step: int | None = None,
    *,
    storage_options: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Reads a checkpoint without an iterator, to look into it.

    Args:
      directory: The folder or URL that was saved to, one step's folder in it, or a folder with
        files of lanes from elsewhere, such as Orbax's.
      step: Which checkpoint; by default the one that `restore_checkpoint` takes.
      storage_options: Arguments for the fsspec file system.

    Returns:
      What the iterators' `get_state` returned, of all lanes that are in the files.

    Raises:
      FileNotFoundError: If there is no complete checkpoint (of this step).
      ValueError: If it is damaged, naming lane and file.

    Example:
      >>> import tempfile, zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(64)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
      >>> lanes = zx.ElasticIterDataset(
      ...     source, 2, lambda lane: lane.map(lambda e: e["data"]), process_index=0,
      ...     process_count=1)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = zx.save_checkpoint(folder, iter(lanes), step=3)
      ...     zx.read_checkpoint(folder)["num_lanes"]
      2
    """
    fs, root = fsspec.core.url_to_fs(os.fspath(directory), **(storage_options or {}))
    folder = root.rstrip("/")
    fs.invalidate_cache()
    names = [entry.rsplit("/", 1)[-1] for entry in fs.ls(folder, detail=False)]
    lanes = sorted(n for n in names if n.startswith("lanes-") and n.endswith(".json"))
    found = open_checkpoint(fs, folder)
    if step is not None and (found or lanes):
        raise FileNotFoundError(f"{directory} is one checkpoint: it has no steps to choose from.")
    if found is None and lanes:
        files = {name: read_file(fs, f"{folder}/{name}") for name in lanes}
    else:
        files = read_files(fs, found or choose(fs, root, directory, step), None)
    held = [lane for n, data in files.items() for lane in unwrap(LANES, n, data)["lanes"]]
    return from_files(files, sorted(set(map(int, held))))
