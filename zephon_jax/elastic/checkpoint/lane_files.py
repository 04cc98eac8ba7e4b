"""Lanes as files: what a checkpoint is made of, wherever it lies.

One file holds the lanes of one writing host. Which hosts wrote them plays no part in reading.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from zephon_jax._checked_json import digest_of, unwrap, wrap
from zephon_jax._text import short

if TYPE_CHECKING:
    from zephon_jax.elastic.checkpoint.checkpointable import Checkpointable

__all__ = [
    "LANES",
    "LANES_NAME",
    "check_alike",
    "from_files",
    "lane_files",
    "load_files",
    "shared_fields",
    "to_files",
    "write_files",
]

LANES = "zephon_jax lanes"
LANES_NAME = re.compile(r"lanes-[0-9]{6,}-[0-9a-f]{16}\.json")  # as `to_files` names them
_SHARED = ("version", "run", "num_lanes", "step", "rows", "spec")  # the same in all files
# Of states of version 2 and later; "end" where lanes are run to a cut, "changes" where the mixture
# was changed in mid-run.
_SINCE_2 = ("pipeline", "pipeline_id", "end", "changes")


def shared_fields(state: Mapping[str, object]) -> dict[str, object]:
    """What a state has in common with those of other lanes.

    Raises:
      KeyError: If it lacks some of it.
    """
    found = {name: state[name] for name in _SHARED}
    return {**found, **{name: state[name] for name in _SINCE_2 if name in state}}


def to_files(state: Mapping[str, Any], lanes: Iterable[int] | None = None) -> dict[str, bytes]:
    """Writes a state of an elastic iterator as small files.

    Args:
      state: What `get_state` returned.
      lanes: The lanes to write, all of the state by default: `dataset.written_lanes`.

    Returns:
      File contents by name, one file, or none where there are no lanes to write.

    Raises:
      ValueError: If the state lacks some of the lanes.

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(16)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
      >>> lanes = zx.ElasticIterDataset(
      ...     source, 4, lambda lane: lane, process_index=0, process_count=1)
      >>> state = iter(lanes).get_state()
      >>> from_files(to_files(state, [0, 1]) | to_files(state, [2, 3])) == state
      True
    """
    chosen = sorted(map(int, state["lanes"])) if lanes is None else sorted(lanes)
    if not chosen:
        return {}
    missing = [lane for lane in chosen if str(lane) not in state["lanes"]]
    if missing:
        raise ValueError(f"the state lacks lanes {missing}: it is of other hosts.")
    body = shared_fields(state)
    body["lanes"] = {str(lane): state["lanes"][str(lane)] for lane in chosen}
    data = wrap(LANES, body)
    return {f"lanes-{chosen[0]:06d}-{digest_of(data.decode())}.json": data}


def from_files(files: Mapping[str, bytes], lanes: Iterable[int] | None = None) -> dict[str, Any]:
    """Reads what any hosts wrote with `to_files`.

    Args:
      files: File contents by name.
      lanes: The lanes that must be there; all of the run by default.

    Returns:
      A state for `set_state`, with the lanes that were asked for.

    Raises:
      ValueError: If a file is damaged, a lane is missing or differs between files, or the files are
        of different runs, steps or pipelines, naming lane and file.
    """
    if not files:
        raise ValueError("there are no files of lanes.")
    bodies = {name: unwrap(LANES, name, files[name]) for name in sorted(files)}
    origin, first = next(iter(bodies.items()))
    owner: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, body in bodies.items():
        check_alike(name, body, origin, first)
        for lane, state in body["lanes"].items():
            if lane in found and found[lane] != state:
                raise ValueError(f"lane {lane} differs between {owner[lane]} and {name}.")
            found[lane], owner[lane] = state, name
    wanted = range(first["num_lanes"]) if lanes is None else lanes
    missing = [lane for lane in wanted if str(lane) not in found]
    if missing:
        raise ValueError(f"lanes {missing} are in none of the files {sorted(files)}.")
    return {**shared_fields(first), "lanes": {str(lane): found[str(lane)] for lane in wanted}}


def check_alike(name: str, body: Mapping[str, Any], other: str, first: Mapping[str, Any]) -> None:
    """Checks that two files are of one run, step and pipeline.

    Raises:
      ValueError: If they are not, naming both and what differs.
    """
    said = {
        "version": "version", "run": "run", "num_lanes": "number of lanes", "step": "step",
        "rows": "number of rows", "spec": "kind of row", "pipeline": "pipeline",
        "pipeline_id": "pipeline_id", "end": "cut", "changes": "mixture",
    }  # fmt: skip
    for field in said:
        if body.get(field) != first.get(field):
            raise ValueError(
                f"lanes {sorted(map(int, body['lanes']))} in {name} are of another {said[field]}"
                f" ({short(body.get(field))}) than lanes {sorted(map(int, first['lanes']))} in"
                f" {other} ({short(first.get(field))})."
            )


def lane_files(directory: Any) -> dict[str, bytes]:
    """The files of lanes in a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("lanes-*.json"))}


async def write_files(directory: Any, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder that Orbax (v1) is still making."""
    folder = await directory.await_creation()
    for name, data in files.items():
        await asyncio.to_thread((folder / name).write_bytes, data)


async def load_files(directory: Any, iterator: Checkpointable) -> None:
    """Puts an iterator where the files of a folder say."""
    files = await asyncio.to_thread(lane_files, directory)
    iterator.set_state(from_files(files, iterator.owned_lanes))
