"""Lanes next to the model's state in an Orbax checkpoint, saved and restored by any hosts.

Orbax moves a checkpoint into place when all hosts have written, so it needs no manifest of ours;
before that, all lanes are looked at. With Orbax's v1 interface nothing of this is needed: an
elastic iterator saves and loads itself.
"""

from __future__ import annotations

import dataclasses

import orbax.checkpoint as ocp
from etils import epath

from zephon_jax.elastic.checkpoint.checkpointable import Checkpointable, check_iterator
from zephon_jax.elastic.checkpoint.lane_files import from_files, lane_files, to_files

__all__ = ["ElasticHandler", "ElasticRestore", "ElasticSave"]


class ElasticHandler(ocp.CheckpointHandler):
    """An Orbax handler (v0) for elastic iterators and `GlobalBatches`.

    Example:
      >>> import tempfile, orbax.checkpoint as ocp, zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(16)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
      >>> lanes = zx.ElasticIterDataset(
      ...     source, 4, lambda lane: lane, process_index=0, process_count=1)
      >>> iterator, again = iter(lanes), iter(lanes)
      >>> _ = next(iterator)
      >>> with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
      ...     _ = manager.save(1, args=ocp.args.Composite(data=zx.orbax.ElasticSave(iterator)))
      ...     manager.wait_until_finished()
      ...     _ = manager.restore(1, args=ocp.args.Composite(data=zx.orbax.ElasticRestore(again)))
      >>> again.get_state()["step"]
      1
    """

    def save(self, directory: epath.Path, *args: object, **kwargs: object) -> None:
        """Writes this host's lanes."""
        iterator = _iterator_of(args, kwargs)
        state = iterator.get_state()
        for name, data in to_files(state, iterator.written_lanes).items():
            (directory / name).write_bytes(data)

    def restore(self, directory: epath.Path, *args: object, **kwargs: object) -> object:
        """Puts the iterator where it was saved, on any number of hosts, and returns it."""
        iterator = _iterator_of(args, kwargs)
        iterator.set_state(from_files(lane_files(directory), iterator.owned_lanes))
        return iterator

    def finalize(self, directory: epath.Path) -> None:
        """Checks on one host that all lanes are there."""
        from_files(lane_files(directory))


def _iterator_of(args: tuple[object, ...], kwargs: dict[str, object]) -> Checkpointable:
    given = kwargs.get("args", args[0] if args else kwargs.get("item"))
    iterator = getattr(given, "item", given)
    return check_iterator(iterator)


@ocp.args.register_with_handler(ElasticHandler, for_save=True)
@dataclasses.dataclass
class ElasticSave(ocp.args.CheckpointArgs):
    """Saves `item`, an elastic iterator."""

    item: Checkpointable


@ocp.args.register_with_handler(ElasticHandler, for_restore=True)
@dataclasses.dataclass
class ElasticRestore(ocp.args.CheckpointArgs):
    """Restores into `item`, an elastic iterator."""

    item: Checkpointable
