"""Training data order as a pure function, for JAX and Grain.

Schedules need NumPy alone: what rests on Grain is imported when it is first named.
"""

import importlib
from typing import TYPE_CHECKING, Any

from zephon_jax import lanes, lattice, permutation, quota, swrr, virtual_time
from zephon_jax.audit import Audit, audit
from zephon_jax.backend import use_backend
from zephon_jax.catalog import Dataset
from zephon_jax.chunk import SampleId, WorkChunk
from zephon_jax.codec import encode_state
from zephon_jax.config import load_config
from zephon_jax.diff import OrderDifference, diff
from zephon_jax.lane_shell import LaneShell
from zephon_jax.reading import MixtureReadConfig
from zephon_jax.relane import relane
from zephon_jax.simulate import simulate
from zephon_jax.simulation import Simulation
from zephon_jax.source import WorkSource, decode_state, restore
from zephon_jax.state import MixtureState
from zephon_jax.static_mixture import StaticMixtureWorkSource
from zephon_jax.token_estimation import TokenEstimation, count_shard_tokens
from zephon_jax.weights import MixtureSpec

if TYPE_CHECKING:
    from zephon_jax import plot
    from zephon_jax.checkpoint import restore_checkpoint, save_checkpoint
    from zephon_jax.elastic import ElasticIterDataset, LaneError
    from zephon_jax.ensure_mixture import EnsureMixture
    from zephon_jax.global_batch import GlobalBatches, in_step, to_global
    from zephon_jax.grain_datasets import LaneIterDataset
    from zephon_jax.lane_transforms import FlushIterDataset, stamp_exhausted
    from zephon_jax.map_dataset import MixtureMapDataset
    from zephon_jax.packing import component_tokens, pack

__all__ = [
    "Audit",
    "Dataset",
    "ElasticIterDataset",
    "EnsureMixture",
    "FlushIterDataset",
    "GlobalBatches",
    "LaneError",
    "LaneIterDataset",
    "LaneShell",
    "MixtureMapDataset",
    "MixtureReadConfig",
    "MixtureSpec",
    "MixtureState",
    "OrderDifference",
    "SampleId",
    "Simulation",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "WorkChunk",
    "WorkSource",
    "audit",
    "component_tokens",
    "count_shard_tokens",
    "decode_state",
    "diff",
    "encode_state",
    "in_step",
    "lanes",
    "lattice",
    "load_config",
    "pack",
    "permutation",
    "plot",
    "quota",
    "relane",
    "restore",
    "restore_checkpoint",
    "save_checkpoint",
    "simulate",
    "stamp_exhausted",
    "swrr",
    "to_global",
    "use_backend",
    "virtual_time",
]

__version__ = "0.1.0"

_ON_GRAIN = {  # name: the module that has it
    "ElasticIterDataset": "elastic",
    "EnsureMixture": "ensure_mixture",
    "FlushIterDataset": "lane_transforms",
    "GlobalBatches": "global_batch",
    "LaneError": "elastic",
    "LaneIterDataset": "grain_datasets",
    "MixtureMapDataset": "map_dataset",
    "component_tokens": "packing",
    "in_step": "global_batch",
    "pack": "packing",
    "restore_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "stamp_exhausted": "lane_transforms",
    "to_global": "global_batch",
}


def __getattr__(name: str) -> Any:
    if name in _ON_GRAIN:
        return getattr(importlib.import_module(f"zephon_jax.{_ON_GRAIN[name]}"), name)
    if name == "plot":
        return importlib.import_module("zephon_jax.plot")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_GRAIN, "plot"])
