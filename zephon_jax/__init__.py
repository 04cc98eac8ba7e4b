"""Training data order as a pure function, for JAX and Grain.

Schedules need NumPy alone: what rests on Grain is imported when it is first named.
"""

import importlib
from typing import TYPE_CHECKING, Any

from zephon_jax.analysis.audit import Audit, audit
from zephon_jax.analysis.diff import OrderDifference, diff
from zephon_jax.analysis.simulate import simulate
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.data.bad_records import BadRecord, bad_records
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.measure_tokens import TokenEstimation, count_shard_tokens
from zephon_jax.data.read_samples import read
from zephon_jax.kernels import lanes, lattice, permutation, quota, swrr, virtual_time
from zephon_jax.kernels.backend import use_backend
from zephon_jax.kernels.weights import MixtureSpec
from zephon_jax.mixture.config import load_config
from zephon_jax.mixture.relane import relane
from zephon_jax.mixture.schedule import Stage, samples, tokens
from zephon_jax.mixture.scheduled import ScheduledMixtureWorkSource
from zephon_jax.mixture.shard_manifest import ShardManifest
from zephon_jax.mixture.state import MixtureState
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.mixture.traced import TracedMixture, traced
from zephon_jax.sources.chunk import SampleId, WorkChunk
from zephon_jax.sources.codec import encode_state
from zephon_jax.sources.combine import concatenate, interleave, skip, take
from zephon_jax.sources.from_stateful import from_stateful
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.restore import decode_state, restore
from zephon_jax.sources.stateful_lane import StatefulLane
from zephon_jax.sources.work_source import WorkSource

if TYPE_CHECKING:
    from zephon_jax.analysis import plot
    from zephon_jax.elastic.checkpoint import orbax
    from zephon_jax.elastic.checkpoint.save_restore import (
        read_checkpoint,
        restore_checkpoint,
        save_checkpoint,
    )
    from zephon_jax.elastic.dataset import ElasticIterDataset, LaneError
    from zephon_jax.elastic.global_batch import GlobalBatches, synchronized, to_global
    from zephon_jax.elastic.row_samples import RowSamples
    from zephon_jax.pipelines.ensure_mixture import EnsureMixtureIterDataset, ensure_mixture
    from zephon_jax.pipelines.flush import FlushIterDataset
    from zephon_jax.pipelines.lane_dataset import LaneIterDataset
    from zephon_jax.pipelines.map_batch import map_batch
    from zephon_jax.pipelines.map_dataset import MixtureMapDataset
    from zephon_jax.pipelines.mark_exhausted import mark_exhausted
    from zephon_jax.pipelines.packing import component_tokens, pack
    from zephon_jax.pipelines.skipped_records import skipped_records
    from zephon_jax.pipelines.tokenize import tokenize
    from zephon_jax.sources import testing

__all__ = [
    "Audit",
    "BadRecord",
    "Dataset",
    "ElasticIterDataset",
    "EnsureMixtureIterDataset",
    "FlushIterDataset",
    "GlobalBatches",
    "LaneError",
    "LaneIterDataset",
    "MixtureMapDataset",
    "MixtureReadConfig",
    "MixtureSpec",
    "MixtureState",
    "OrderDifference",
    "RowSamples",
    "SampleId",
    "ScheduledMixtureWorkSource",
    "ShardManifest",
    "Simulation",
    "Stage",
    "StatefulLane",
    "StaticMixtureWorkSource",
    "TokenEstimation",
    "TracedMixture",
    "WorkChunk",
    "WorkSource",
    "audit",
    "bad_records",
    "component_tokens",
    "concatenate",
    "count_shard_tokens",
    "decode_state",
    "diff",
    "encode_state",
    "ensure_mixture",
    "from_stateful",
    "interleave",
    "lanes",
    "lattice",
    "load_config",
    "map_batch",
    "mark_exhausted",
    "orbax",
    "pack",
    "permutation",
    "plot",
    "quota",
    "read",
    "read_checkpoint",
    "relane",
    "restore",
    "restore_checkpoint",
    "samples",
    "save_checkpoint",
    "simulate",
    "skip",
    "skipped_records",
    "swrr",
    "synchronized",
    "take",
    "testing",
    "to_global",
    "tokenize",
    "tokens",
    "traced",
    "use_backend",
    "virtual_time",
]

__version__ = "0.1.0"

_ON_GRAIN = {  # name: the module that has it
    "ElasticIterDataset": "elastic.dataset",
    "EnsureMixtureIterDataset": "pipelines.ensure_mixture",
    "ensure_mixture": "pipelines.ensure_mixture",
    "FlushIterDataset": "pipelines.flush",
    "GlobalBatches": "elastic.global_batch",
    "LaneError": "elastic.dataset",
    "LaneIterDataset": "pipelines.lane_dataset",
    "MixtureMapDataset": "pipelines.map_dataset",
    "RowSamples": "elastic.row_samples",
    "component_tokens": "pipelines.packing",
    "synchronized": "elastic.global_batch",
    "pack": "pipelines.packing",
    "read_checkpoint": "elastic.checkpoint.save_restore",
    "restore_checkpoint": "elastic.checkpoint.save_restore",
    "save_checkpoint": "elastic.checkpoint.save_restore",
    "map_batch": "pipelines.map_batch",
    "mark_exhausted": "pipelines.mark_exhausted",
    "to_global": "elastic.global_batch",
    "skipped_records": "pipelines.skipped_records",
    "tokenize": "pipelines.tokenize",
}
_MODULES = {
    "orbax": "elastic.checkpoint.orbax",
    "plot": "analysis.plot",
    "testing": "sources.testing",
}
# What public objects hold when they are pickled. Pickles name `zephon_jax` alone, so that they do
# not depend on how the package is laid out: their classes say __module__ = "zephon_jax".
_IN_PICKLES = {
    "Amount": "mixture.schedule",
    "Change": "mixture.history",
    "CombinedSource": "sources.combined",
    "CombinedState": "sources.combined",
    "CountedShards": "data.shard_store",
    "File": "data.files",
    "FileShards": "data.shard_store",
    "LanePlan": "elastic.lane_rows",
    "LaneProgress": "analysis.lane_progress",
    "MappedFile": "data.memory_sources",
    "MixtureRules": "pipelines.ensure_mixture_state",
    "PartShards": "data.part_shards",
    "RecordWeights": "pipelines.record_weights",
    "SampleName": "analysis.diff",
    "SourceShards": "data.shard_store",
    "StatefulSource": "sources.from_stateful",
    "StatefulState": "sources.from_stateful",
    "LookupKeys": "mixture.traced_lookup",
    "TracedState": "mixture.traced",
    "Weighings": "mixture.traced",
    "SplitRule": "data.split",
    "TableRows": "data.memory_sources",
    "_Ahead": "pipelines.map_dataset",
    "constant_rows": "elastic.steps",
}


def __getattr__(name: str) -> Any:
    module = _ON_GRAIN.get(name) or _IN_PICKLES.get(name)
    if module is not None:
        return getattr(importlib.import_module(f"zephon_jax.{module}"), name)
    if name in _MODULES:
        return importlib.import_module(f"zephon_jax.{_MODULES[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
