"""How a sharding cuts the rows of a batch, whatever it does with the other axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = ["RowSharding", "owners_of_lanes", "row_sharding"]


class RowSharding(NamedTuple):
    """The first axis of a batch on a mesh."""

    sharding: NamedSharding  # NamedSharding of that axis alone
    names: tuple[str, ...]  # axes of the mesh that cut it
    num_parts: int  # parts that they cut it into


def row_sharding(sharding: NamedSharding) -> RowSharding:
    """The part of a `jax.sharding.NamedSharding` that is about the first axis.

    Example:
      >>> import jax
      >>> auto = jax.sharding.AxisType.Auto
      >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(auto, auto))
      >>> spec = jax.sharding.PartitionSpec(("data", "model"), None)
      >>> row_sharding(jax.sharding.NamedSharding(mesh, spec)).names
      ('data', 'model')
    """
    from jax.sharding import NamedSharding, PartitionSpec

    first = sharding.spec[0] if len(sharding.spec) else None
    names = () if first is None else (first,) if isinstance(first, str) else tuple(first)
    parts = int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))
    return RowSharding(NamedSharding(sharding.mesh, PartitionSpec(first)), names, parts)


def owners_of_lanes(sharding: NamedSharding, num_lanes: int) -> list[set[int]]:
    """The processes whose devices hold each lane's rows."""
    from jax.sharding import NamedSharding

    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding must be a NamedSharding; got {type(sharding).__name__}.")
    by_rows, names, num_parts = row_sharding(sharding)
    if num_lanes % num_parts:
        raise ValueError(
            f"num_lanes must be a multiple of the {num_parts} parts that {names} cut the batch"
            f" into; got {num_lanes}."
        )
    owners: list[set[int]] = [set() for _ in range(num_lanes)]
    for device, (rows,) in by_rows.devices_indices_map((num_lanes,)).items():
        for lane in range(*rows.indices(num_lanes)):
            owners[lane].add(device.process_index)
    return owners
