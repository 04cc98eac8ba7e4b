"""The configuration file explained: a template for people, a schema for programs."""

from __future__ import annotations

from typing import Any

from zephon_jax.formats import FORMATS
from zephon_jax.knobs import ALLOCATIONS, POLICIES
from zephon_jax.lanes import ASSIGNMENTS
from zephon_jax.reading import MODES

__all__ = ["TEMPLATE", "schema"]

TEMPLATE = """\
# A run of zephon_jax. The same keys in TOML do as well. Only datasets and mixture must be there;
# a key that is not known is an error. Relative paths count from this file's folder.

datasets:                      # by name, in the order that breaks ties
  web: corpora/web             # a file, folder, glob or URL, or a list of these
  code:
    path: corpora/code/*.parquet
    format: parquet            # array_record, jsonl, megatron, parquet; told by the files if absent
    columns: [text]            # parquet only
    storage_options: {}        # for URLs: arguments of the fsspec file system
  toy:
    counts: [1000, 500]        # samples of each shard: to simulate without data
    # num_bytes: [4000000, 2000000]      # bytes of each shard, for mixtures in tokens

mixture:                       # weights; only ratios matter
  web: 3
  code: 1.5
  toy: 1/2                     # fractions are exact; 0 declares without drawing

chunk_size: 16384              # samples
seed: 42                       # any integer

# These take one value, or a mapping that names every dataset.
shuffle_shards: true
shuffle_within_shard: false
shuffle_block_size: null       # null, a number of samples, auto (8 x the largest shard) or global
reshuffle_on_repeat: true

# What happens at the end of a dataset: leave all three out to go through every dataset once.
# exhausted_policy: stop       # stop, repeat or redistribute; one value or by dataset
# max_repeats: 3               # caps repeat
# stop_after_passes: 2         # ends the run when every dataset has had so many passes

lane_assignment: permute       # permute or modulo
allocation: incremental        # incremental, fixed or virtual_time

# token_estimation:            # makes the weights shares of tokens; no tokenizer is run
#   ratios: {web: 0.25, code: 0.4, toy: 0.25}     # tokens per byte, or shard_totals by dataset

run:                           # what the source does not know of itself
  num_lanes: 64
  num_chunks: null             # chunks to look at; null for the whole run
  read: {mode: lattice}        # smooth_weighted_round_robin, weighted_random or lattice
"""


def _at_least(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _by_name(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [value, {"type": "null"}]}


def _each(value: dict[str, Any]) -> dict[str, Any]:
    """One value for all datasets, or one for each."""
    return {"anyOf": [value, _by_name(value)]}


_TEXT, _WHOLE, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_COUNTS = _list_of(_at_least(0))
_PATHS = {"anyOf": [_TEXT, _list_of(_TEXT)]}
_NUMBER = {"anyOf": [{"type": "number", "minimum": 0}, _TEXT]}
_DATASET = {
    "path": _PATHS, "format": {"enum": sorted(FORMATS)}, "columns": _list_of(_TEXT),
    "storage_options": {"type": "object"}, "counts": _COUNTS, "num_bytes": _COUNTS,
}  # fmt: skip
_TOKENS = {
    "ratios": _by_name(_NUMBER), "shard_totals": _by_name(_COUNTS), "tokenizer_name": _TEXT,
}  # fmt: skip
_READ = {"mode": {"enum": list(MODES)}, "seed": _WHOLE, "shuffle_within_component": _FLAG}
_RUN = {
    "num_lanes": _at_least(1), "num_chunks": _or_null(_at_least(0)), "read": _closed(_READ),
}  # fmt: skip


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file."""
    top = {
        "datasets": _by_name({"anyOf": [_PATHS, _closed(_DATASET)]}),
        "mixture": _by_name(_NUMBER),
        "chunk_size": _at_least(1),
        "seed": _WHOLE,
        "shuffle_shards": _each(_FLAG),
        "shuffle_within_shard": _each(_FLAG),
        "shuffle_block_size": _each({"anyOf": [{"enum": ["auto", "global", None]}, _at_least(1)]}),
        "exhausted_policy": _each({"enum": list(POLICIES)}),
        "reshuffle_on_repeat": _each(_FLAG),
        "max_repeats": _each(_or_null(_at_least(0))),
        "stop_after_passes": _or_null(_at_least(1)),
        "lane_assignment": {"enum": list(ASSIGNMENTS)},
        "allocation": {"enum": list(ALLOCATIONS)},
        "token_estimation": _closed(_TOKENS),
        "run": _closed(_RUN),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of zephon_jax",
        **_closed(top),
        "required": ["datasets", "mixture"],
    }
