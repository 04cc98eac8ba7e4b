"""The configuration file explained: a template for people, a schema for programs."""

from __future__ import annotations

from typing import Any

from zephon_jax.data.formats import FORMATS
from zephon_jax.kernels.lanes import ASSIGNMENTS
from zephon_jax.kernels.quota import MAX_CHUNK_SIZE
from zephon_jax.mixture.settings import ALLOCATIONS, MAX_COUNT, MAX_PASSES, POLICIES
from zephon_jax.sources.read_order import MODES

__all__ = ["NUMBER", "TEMPLATE", "schema"]

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


def _at_least(least: int, most: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


def _by_name(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "additionalProperties": value, "minProperties": 1,
        "propertyNames": {"minLength": 1},
    }  # fmt: skip


def _closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    """Null is as good as leaving a key out, where that means None in Python."""
    return {"anyOf": [value, {"type": "null"}]}


def _each(value: dict[str, Any]) -> dict[str, Any]:
    """One value for all datasets, or one for each."""
    return {"anyOf": [value, _by_name(value)]}


NUMBER = (
    r"^\s*[+]?([0-9]+/0*[1-9][0-9]*"
    r"|([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?0*(300|[12]?[0-9]{1,2}))?)\s*$"
)
"""Text that is a number: digits, a fraction, or an exponent of at most 300."""

_TEXT, _WHOLE, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_NAME = {"type": "string", "minLength": 1}
_COUNTS = _list_of(_at_least(0))
_PATHS = {"anyOf": [_NAME, _list_of(_NAME)]}
_NUMBER = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": NUMBER}]}
_RATIO = {"anyOf": [
    {"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": NUMBER},
]}  # fmt: skip
_DATA = {
    "path": _PATHS, "format": _or_null({"enum": sorted(FORMATS)}),
    "columns": _or_null(_list_of(_TEXT)), "storage_options": _or_null({"type": "object"}),
    "counts": _or_null(_COUNTS),
}  # fmt: skip
_COUNTED = {"counts": _COUNTS, "num_bytes": _or_null(_COUNTS)}
_DATASET = {"anyOf": [_PATHS, _closed(_DATA, "path"), _closed(_COUNTED, "counts")]}
_TOKENS = {
    "oneOf": [
        _closed({kind: _by_name(value), "tokenizer_name": _or_null(_TEXT)}, kind)
        for kind, value in (("ratios", _RATIO), ("shard_totals", _COUNTS))
    ]
}
_READ = {
    "mode": {"enum": list(MODES)}, "seed": _or_null(_WHOLE), "shuffle_within_component": _FLAG,
}  # fmt: skip
_RUN = {
    "num_lanes": _at_least(1), "num_chunks": _or_null(_at_least(0)),
    "read": _or_null(_closed(_READ)),
}  # fmt: skip


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file."""
    top = {
        "datasets": _by_name(_DATASET),
        "mixture": _by_name(_NUMBER),
        "chunk_size": _at_least(1, MAX_CHUNK_SIZE),
        "seed": _WHOLE,
        "shuffle_shards": _each(_FLAG),
        "shuffle_within_shard": _each(_FLAG),
        "shuffle_block_size": _each(
            {"anyOf": [{"enum": ["auto", "global", None]}, _at_least(1, MAX_COUNT)]}
        ),
        "exhausted_policy": _or_null(_each({"enum": list(POLICIES)})),
        "reshuffle_on_repeat": _each(_FLAG),
        "max_repeats": _each(_or_null(_at_least(0, MAX_COUNT))),
        "stop_after_passes": _or_null(_at_least(1, MAX_PASSES)),
        "lane_assignment": {"enum": list(ASSIGNMENTS)},
        "allocation": {"enum": list(ALLOCATIONS)},
        "token_estimation": _or_null(_TOKENS),
        "run": _closed(_RUN),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of zephon_jax",
        **_closed(top, "datasets", "mixture"),
    }
