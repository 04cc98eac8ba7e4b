"""The keys of a configuration file: a template for people, tables of keys, and their JSON schema.

`config` checks a file's keys against the same tables, so a key is added here alone.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, get_args

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.data.dataset_arguments import RowGroups
from zephon_jax.data.formats import FORMATS
from zephon_jax.kernels.lanes import ASSIGNMENTS
from zephon_jax.kernels.quota import MAX_CHUNK_SIZE
from zephon_jax.mixture.schedule import RAMPS
from zephon_jax.mixture.settings import ALLOCATIONS, MAX_COUNT, MAX_PASSES, POLICIES
from zephon_jax.sources.read_order import MODES

__all__ = [
    "DATASET", "NUMBER", "READ", "RUN", "STAGE", "TEMPLATE", "TOKENS", "TOP", "UNTIL", "Schema",
    "schema",
]  # fmt: skip

TEMPLATE = files("zephon_jax.mixture").joinpath("config_template.yaml").read_text(encoding="utf-8")
"""A configuration with every key explained."""

Schema = dict[str, Any]
"""A JSON schema, or a table of them by key."""


def _at_least(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _by_name(value: Schema) -> Schema:
    return {
        "type": "object", "additionalProperties": value, "minProperties": 1,
        "propertyNames": {"minLength": 1},
    }  # fmt: skip


def _closed(properties: Schema, *required: str) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def _or_null(value: Schema) -> Schema:
    """Null is as good as leaving a key out, where that means None in Python."""
    return {"anyOf": [value, {"type": "null"}]}


def _each(value: Schema) -> Schema:
    """One value for all datasets, or one for each."""
    return {"anyOf": [value, _by_name(value)]}


NUMBER = (
    r"^\s*[+]?([0-9]+/0*[1-9][0-9]*"
    r"|([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?0*(300|[12]?[0-9]{1,2}))?)\s*$"
)
"""Text that is a number: digits, a fraction, or an exponent of at most 300."""


def _number(**low: int) -> Schema:
    return {"anyOf": [{"type": "number", **low}, {"type": "string", "pattern": NUMBER}]}


_TEXT, _WHOLE, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_NAME = {"type": "string", "minLength": 1}
_COUNTS = _list_of(_at_least(0))
_PATHS = {"anyOf": [_NAME, _list_of(_NAME)]}
_DATA = {
    "path": _PATHS, "format": _or_null({"enum": sorted(FORMATS)}),
    "columns": _or_null(_list_of(_TEXT)), "storage_options": _or_null({"type": "object"}),
    "counts": _or_null(_COUNTS), "row_groups": {"enum": list(get_args(RowGroups))},
    "on_bad_record": {"enum": ["raise", "skip"]}, "max_bad_records": _or_null(_at_least(0)),
    "data_changed": {"enum": ["raise", "warn"]},
}  # fmt: skip
_COUNTED = {"counts": _COUNTS, "num_bytes": _or_null(_COUNTS)}
_KINDS = {"ratios": _number(exclusiveMinimum=0), "shard_totals": _COUNTS}

DATASET = _DATA | _COUNTED
"""Keys of a dataset."""

TOKENS = {**_KINDS, "tokenizer_name": _or_null(_TEXT)}
"""Keys of `token_estimation`."""

READ = {
    "mode": {"enum": list(MODES)}, "seed": _or_null(_WHOLE), "shuffle_within_component": _FLAG,
}  # fmt: skip
"""Keys of `run.read`."""

_MIXTURE = _by_name(_number(minimum=0))

UNTIL = {"samples": _at_least(0, MAX_INDEX), "tokens": _at_least(0, MAX_INDEX)}
"""Keys of a stage's `until` that is no number of chunks."""

_ONE: Schema = {"minProperties": 1, "maxProperties": 1}

STAGE = {
    "mixture": _MIXTURE, "ramp": _or_null({"enum": list(RAMPS)}),
    "until": _or_null({"anyOf": [_at_least(0), _closed(UNTIL) | _ONE]}),
}  # fmt: skip
"""Keys of a stage."""

RUN = {
    "num_lanes": _at_least(1), "num_chunks": _or_null(_at_least(0)),
    "read": _or_null(_closed(READ)),
}  # fmt: skip
"""Keys of `run`."""

TOP = {
    "datasets": _by_name(
        {"anyOf": [_PATHS, _closed(_DATA, "path"), _closed(_COUNTED, "counts")]}
    ),
    "mixture": _MIXTURE,
    "stages": _list_of(_closed(STAGE, "mixture")),
    "ramp": {"enum": list(RAMPS)},
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
    "token_estimation": _or_null({"oneOf": [
        _closed({kind: _by_name(value), "tokenizer_name": TOKENS["tokenizer_name"]}, kind)
        for kind, value in _KINDS.items()
    ]}),
    "run": _closed(RUN),
}  # fmt: skip
"""Keys of the file."""


def schema() -> Schema:
    """The JSON schema of a configuration file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A run of zephon_jax",
        **_closed(TOP, "datasets"),
        "oneOf": [{"required": ["mixture"]}, {"required": ["stages"]}],
        "dependentRequired": {"ramp": ["stages"]},
    }
