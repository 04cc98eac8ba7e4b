"""Checks of what a dataset is built with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from zephon_jax._text import short
from zephon_jax.data.files import File
from zephon_jax.data.formats.base import AddedColumns, named_error
from zephon_jax.data.formats.parquet_footer import check_same_columns, hive_columns

__all__ = [
    "DataChanged",
    "RowGroups",
    "check_alike",
    "check_data_changed",
    "checked_columns",
    "checked_counts",
    "checked_name",
    "checked_row_groups",
    "frozen_counts",
    "hive_of",
    "known_of",
]

DataChanged = Literal["raise", "warn"]
RowGroups = Literal["files", "shards"]

_MAX_SAMPLES = 1 << 62


def checked_name(name: object) -> str:
    """Returns the name of a dataset.

    Raises:
      TypeError: If it is not a string.
      ValueError: If it is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"a dataset's name must be a string; got {short(name)}.")
    if not name:
        raise ValueError("a dataset's name must not be empty; got ''.")
    return name


def check_data_changed(name: str, data_changed: object) -> None:
    """Checks what is to be done where a state was saved with other data.

    Raises:
      ValueError: If it is no choice.
    """
    if data_changed not in get_args(DataChanged):
        raise ValueError(
            f"dataset {name!r}: data_changed must be 'raise' or 'warn'; got {short(data_changed)}."
        )


def checked_columns(name: str, columns: Any, format_name: str) -> tuple[str, ...]:
    """Returns the columns to read.

    Raises:
      ValueError: If they are no list of names, or shards of this format have no columns.
    """
    listed = isinstance(columns, Sequence) and not isinstance(columns, (str, bytes))
    if not listed or not columns or not all(isinstance(column, str) for column in columns):
        raise ValueError(
            f"dataset {name!r}: columns must be a list of names; got {short(columns)}."
        )
    if format_name != "parquet":
        raise ValueError(
            f"dataset {name!r}: {format_name} shards have no columns to choose; got columns = "
            f"{list(columns)}. Leave it out."
        )
    return tuple(columns)


def checked_row_groups(name: str, row_groups: object, format_name: str, counted: bool) -> bool:
    """Returns True if each row group is to be a shard.

    Raises:
      ValueError: If it is no such word, or shards of this format have no row groups, or the counts
        that were given are those of files.
    """
    if row_groups not in get_args(RowGroups):
        raise ValueError(
            f"dataset {name!r}: row_groups must be 'files' or 'shards'; got {short(row_groups)}."
        )
    if row_groups == "shards" and format_name != "parquet":
        raise ValueError(
            f"dataset {name!r}: {format_name} shards have no row groups; got row_groups = 'shards'."
            " Leave it out."
        )
    if row_groups == "shards" and counted:
        raise ValueError(
            f"dataset {name!r}: counts are those of files, and row_groups = 'shards' counts row"
            " groups. Leave one of them out."
        )
    return row_groups == "shards"


def check_alike(
    name: str,
    files: Sequence[File],
    facts: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | None,
) -> None:
    """Refuses Parquet files with different columns.

    Raises:
      ValueError: Naming a column and two files.
    """
    try:
        check_same_columns([f.path for f in files], [f["columns"] for f in facts], columns)
    except ValueError as error:
        raise named_error(error, f"dataset {name!r}") from None


def hive_of(
    name: str, files: Sequence[File], columns: Sequence[str] | None
) -> tuple[AddedColumns, ...] | None:
    """The columns that are read of those that the files' folders stand for; None for none.

    Raises:
      ValueError: If some files lie in other kinds of folders than the rest.
    """
    try:
        found = hive_columns([file.path for file in files])
    except ValueError as error:
        raise named_error(error, f"dataset {name!r}") from None
    chosen = tuple(
        tuple((key, value) for key, value in one.items() if columns is None or key in columns)
        for one in found
    )
    return chosen if any(chosen) else None


def checked_counts(name: str, counts: Any, what: str = "counts") -> np.ndarray:
    """Returns counts as int64 after checking each, without a Python loop over an array."""
    listed = isinstance(counts, (Sequence, np.ndarray)) and not isinstance(counts, (str, bytes))
    if not listed:
        raise TypeError(
            f"dataset {name!r}: {what} must be a list of integers; got {short(counts)}."
        )
    if not isinstance(counts, np.ndarray) or counts.dtype == object:
        for kind in set(map(type, counts)):
            if kind is bool or not issubclass(kind, (int, np.integer)):
                shard, bad = next((i, c) for i, c in enumerate(counts) if type(c) is kind)
                raise TypeError(
                    f"dataset {name!r}: {what} must be integers; got {short(bad)} "
                    f"of type {kind.__name__} for shard {shard}."
                )
        listed_counts: list[Any] = list(counts)
        kind = object if _is_huge(listed_counts) else np.int64
        counts = np.asarray(listed_counts, dtype=kind)
    if counts.ndim != 1:
        raise ValueError(f"dataset {name!r}: {what} must be flat; got shape {counts.shape}.")
    if counts.size == 0:
        raise ValueError(f"dataset {name!r} has no shards; give at least one count.")
    if counts.dtype.kind not in "iuO":
        raise TypeError(f"dataset {name!r}: {what} must be integers; got dtype {counts.dtype}.")
    shard = int(np.argmin(counts))
    if counts[shard] < 0:
        raise ValueError(
            f"dataset {name!r}: {what} must not be negative; got {counts[shard]} for shard {shard}."
        )
    # Floats are exact enough to see a total that int64 could not hold.
    if float(np.sum(counts, dtype=float)) > _MAX_SAMPLES:
        raise ValueError(f"dataset {name!r} has {what} of more than 2^62 in all.")
    return counts.astype(np.int64)


def _is_huge(counts: Sequence[int]) -> bool:
    return bool(counts) and max(map(abs, counts)) > _MAX_SAMPLES


def frozen_counts(name: str, counts: np.ndarray) -> np.ndarray:
    """Returns a checked copy that cannot be written to."""
    counts = np.array(checked_counts(name, counts), dtype=np.int64)
    counts.flags.writeable = False
    return counts


def known_of(facts: Sequence[Mapping[str, Any]], columns: Sequence[str] | None) -> dict[str, Any]:
    """What a store keeps of what the index knows of its files."""
    digests = [one.get("digest") for one in facts]
    sizes = [item for one in facts for item in one.get("bytes", {}).items()]
    return {
        "digests": None if None in digests or not digests else tuple(digests),
        "num_row_groups": sum(len(one.get("rows", ())) for one in facts),
        "decoded_bytes": sum(size for name, size in sizes if not columns or name in columns),
    }
