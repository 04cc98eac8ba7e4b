"""Hosts that restore the same checkpoint: they agree on it before any of them goes to it.

Each host looks by itself, and may see another newest checkpoint than the others: a save that
becomes visible in between, a store that lags, a file that one host alone cannot read. Without
agreement half of each batch would come from one step and half from another, and nothing would say
so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fsspec import AbstractFileSystem

from zephon_jax._warn import warn
from zephon_jax.elastic.checkpoint.checkpointable import Checkpointable
from zephon_jax.elastic.checkpoint.folder import (
    Checkpoint,
    checkpoint_id,
    choose,
    read_files,
)
from zephon_jax.elastic.checkpoint.lane_files import from_files

__all__ = ["Exchange", "restore_together"]

Exchange = Callable[[int, str], list[str]]  # (turn, text) -> the texts of all hosts


class _Read(NamedTuple):
    """A checkpoint that this host could read, and its lanes from it."""

    checkpoint: Checkpoint
    where: str  # its folder and the files of this host's lanes, for errors
    state: dict[str, Any]


def restore_together(
    fs: AbstractFileSystem,
    root: str,
    directory: str | os.PathLike[str],
    iterator: Checkpointable,
    step: int | None,
    exchange: Exchange,
) -> int:
    """Takes the newest checkpoint that every host can read, and goes to it on all of them.

    Args:
      fs: The file system.
      root: The directory in it.
      directory: The directory as the user named it, for errors.
      iterator: This host's.
      step: The checkpoint that is asked for; None for the newest.
      exchange: Takes a turn and a text and returns the texts of all hosts.

    Returns:
      The step.

    Raises:
      FileNotFoundError, ValueError: If this host finds none.
      RuntimeError: If another host finds none, or hosts are of different runs, or were asked for
        different steps, naming them. The iterators are then where they were.
    """
    most: int | None = None
    turn = 0
    while True:
        found, problem = _look(fs, root, directory, iterator, step, most)
        mine = iterator.get_state()
        said = {
            "asked": step, "error": _words(problem),
            **{name: mine.get(name) for name in ("run", "pipeline", "pipeline_id")},
            "step": None if found is None else found.checkpoint.step,
            "id": None if found is None else checkpoint_id(found.checkpoint),
        }  # fmt: skip
        reports = [json.loads(text) for text in exchange(turn, json.dumps(said))]
        turn += 1
        _check_alike(reports)
        if problem is not None:
            raise problem
        failed = {p: report["error"] for p, report in enumerate(reports) if report["error"]}
        if failed:
            raise RuntimeError(f"nothing was restored: {_by_process(failed)}")
        assert found is not None
        steps = [report["step"] for report in reports]
        if len(set(steps)) == 1:
            break
        most = min(steps)  # what a host sees, the others see soon; the other way round is not sure
        newest = {p: f"sees step {n}" for p, n in enumerate(steps)}
        warn(f"hosts see different checkpoints as the newest: {_by_process(newest)}")
    ids = {p: f"sees {report['id']}" for p, report in enumerate(reports)}
    if len({report["id"] for report in reports}) > 1:
        raise RuntimeError(
            f"nothing was restored: hosts see different checkpoints of step {steps[0]}:"
            f" {_by_process(ids)}. Give all hosts the same directory, or restore again."
        )
    _go_to(iterator, found, lambda text: exchange(turn, text))
    return found.checkpoint.step


def _look(
    fs: AbstractFileSystem,
    root: str,
    directory: str | os.PathLike[str],
    iterator: Checkpointable,
    step: int | None,
    most: int | None,
) -> tuple[_Read | None, Exception | None]:
    """The newest checkpoint that this host can read, up to a step, or what is wrong."""
    damaged: list[ValueError] = []
    while True:
        try:
            found = choose(fs, root, directory, step, most)
        except Exception as error:
            return None, damaged[0] if damaged else error
        try:
            files = read_files(fs, found, iterator.owned_lanes)
            state = from_files(files, iterator.owned_lanes)
        except ValueError as error:
            if step is not None:
                return None, error
            damaged.append(error)
            most = found.step - 1
            continue
        except Exception as error:  # a store that does not answer: an earlier step would not help
            return None, error
        for error in damaged:
            warn(f"step {found.step} is taken instead of a later one: {error}")
        where = f"{found.folder}, files {sorted(files)}"
        try:
            iterator.checked_state(state)
        except ValueError as error:
            return None, ValueError(f"{where}: {error}")
        return _Read(found, where, state), None


def _check_alike(reports: Sequence[Mapping[str, object]]) -> None:
    """Checks that all hosts want the same.

    Raises:
      RuntimeError: Naming what they want.
    """
    for field, said in (
        ("asked", "asks for step"), ("run", "is of run"), ("pipeline", "has the pipeline"),
        ("pipeline_id", "has pipeline_id"),
    ):  # fmt: skip
        if len({report[field] for report in reports}) > 1:
            found = {p: f"{said} {report[field]}" for p, report in enumerate(reports)}
            raise RuntimeError(f"nothing was restored: hosts differ: {_by_process(found)}.")


def _go_to(iterator: Checkpointable, found: _Read, exchange: Callable[[str], list[str]]) -> None:
    """Goes to a checkpoint, or nowhere where a host cannot."""
    before, restored_from = iterator.get_state(), iterator.restored_from
    problem: ValueError | None = None
    try:
        iterator.set_state(found.state)
        iterator.restored_from = found.checkpoint if found.checkpoint.abandoned else None
    except ValueError as error:
        problem = ValueError(f"{found.where}: {error}")
        problem.__cause__ = error
    failed = {p: words for p, words in enumerate(exchange(_words(problem))) if words}
    if failed and problem is None:
        iterator.set_state(before)
        iterator.restored_from = restored_from
        raise RuntimeError(f"nothing was restored: {_by_process(failed)}")
    if problem is not None:
        raise problem


def _words(problem: Exception | None) -> str:
    return "" if problem is None else f"{type(problem).__name__}: {problem}"


def _by_process(said: Mapping[int, object]) -> str:
    """What processes say, those with the same together: "processes [0, 2]: ...; ..."."""
    together: dict[str, list[int]] = {}
    for process, words in said.items():
        together.setdefault(str(words), []).append(process)
    return "; ".join(f"processes {processes}: {words}" for words, processes in together.items())
