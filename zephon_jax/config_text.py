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


def _each(value: dict[str, Any]) -> dict[str, Any]:
    """One value for all datasets, or one for each."""
    return {"anyOf": [value, {"type": "object", "additionalProperties": value}]}


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file."""
    text, whole, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    counts = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    optional = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    paths = {"anyOf": [text, {"type": "array", "items": text}]}
    block = {"anyOf": [{"enum": ["auto", "global", None]}, {"type": "integer", "minimum": 1}]}
    repeats = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
    number = {"anyOf": [{"type": "number", "minimum": 0}, text]}
    dataset = {
        "path": paths, "format": {"enum": sorted(FORMATS)},
        "columns": {"type": "array", "items": text}, "storage_options": {"type": "object"},
        "counts": counts, "num_bytes": counts,
    }  # fmt: skip
    tokens = {
        "ratios": {"type": "object", "additionalProperties": number},
        "shard_totals": {"type": "object", "additionalProperties": counts},
        "tokenizer_name": text,
    }
    read = {"mode": {"enum": list(MODES)}, "seed": whole, "shuffle_within_component": flag}
    run = {"num_lanes": {"type": "integer", "minimum": 1}, "num_chunks": optional,
           "read": _closed(read)}  # fmt: skip
    top = {
        "datasets": {
            "type": "object",
            "additionalProperties": {"anyOf": [paths, _closed(dataset)]},
        },
        "mixture": {"type": "object", "additionalProperties": number},
        "chunk_size": {"type": "integer", "minimum": 1},
        "seed": whole,
        "shuffle_shards": _each(flag),
        "shuffle_within_shard": _each(flag),
        "shuffle_block_size": _each(block),
        "exhausted_policy": _each({"enum": list(POLICIES)}),
        "reshuffle_on_repeat": _each(flag),
        "max_repeats": _each(repeats),
        "stop_after_passes": optional,
        "lane_assignment": {"enum": list(ASSIGNMENTS)},
        "allocation": {"enum": list(ALLOCATIONS)},
        "token_estimation": _closed(tokens),
        "run": _closed(run),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of zephon_jax",
        **_closed(top),
        "required": ["datasets", "mixture"],
    }


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
