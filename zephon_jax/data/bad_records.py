"""Records that cannot be read, and what a dataset does about them.

A bad record keeps its place in the order: what comes before and after it is the same whether it is
read, left out or replaced. Which records are bad follows from the data alone, so all hosts agree.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._process import PerProcess
from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.data.formats.base import named_error

if TYPE_CHECKING:
    from zephon_jax.data.dataset import Dataset
    from zephon_jax.data.id_groups import IdGroup

__all__ = [
    "BadRecord",
    "OnBadRecord",
    "Unreadable",
    "bad_records",
    "check_policy",
    "isolate",
    "note",
    "read_records",
    "settle",
    "with_names",
]

_MOST_LISTED = 10_000  # Bad records that a process remembers.


class BadRecord(NamedTuple):
    """A record that could not be read."""

    __module__ = "zephon_jax"

    # Name of the dataset.
    dataset: str
    # Place of its shard in the dataset.
    shard_id: int
    # Place in the shard.
    sample_index: int
    # The shard's file; None for sources in memory.
    path: str | None
    # What was wrong.
    reason: str


OnBadRecord = Literal["raise", "skip"] | Callable[[BadRecord], Any]
"""What a dataset does about records that cannot be read."""


class Unreadable(NamedTuple):
    """What stands in the place of a bad record after a read."""

    bad: BadRecord
    error: Exception


def check_policy(name: str, on_bad_record: object, max_bad_records: object) -> None:
    """Checks what a dataset is to do about bad records.

    Raises:
      TypeError, ValueError: If it is not one of the words and no function, or the bound is no
        count, or can have no effect.
    """
    if on_bad_record not in ("raise", "skip") and not callable(on_bad_record):
        raise ValueError(
            f"dataset {name!r}: on_bad_record must be 'raise', 'skip' or a function of a BadRecord;"
            f" got {short(on_bad_record)}."
        )
    if max_bad_records is not None:
        as_int(max_bad_records, f"dataset {name!r}: max_bad_records", 0)
        if on_bad_record == "raise":
            raise ValueError(
                f"dataset {name!r}: max_bad_records = {max_bad_records} has no effect while the"
                " first bad record raises. Give on_bad_record='skip', or leave it out."
            )


def isolate(
    read: Callable[[np.ndarray], Sequence[object]], indices: np.ndarray, error: Exception
) -> list[object]:
    """Reads again by halves what could not be read together.

    Args:
      read: Reads the records at some places of a shard.
      indices: int64 (n,), places that could not be read in one call.
      error: What that call raised.

    Returns:
      The records, with the error of each bad one in its place.

    Raises:
      OSError, MemoryError: If that has nothing to do with the records.
    """
    if len(indices) == 1:
        return [error]
    found: list[Any] = []
    for half in np.array_split(indices, 2):
        try:
            found += read(half)
        except (OSError, MemoryError):
            raise
        except Exception as one:
            found += isolate(read, half, one)
    return found


def read_records(
    read: Callable[[np.ndarray], Sequence[object]], indices: np.ndarray, marked: bool
) -> Sequence[object]:
    """The records at some places; where they are marked, with errors in the places of bad ones."""

    def read_all(places: np.ndarray) -> Sequence[object]:
        records = read(places)
        if len(records) != len(places):
            raise ValueError(
                f"{len(places)} records from {int(places[0])} to {int(places[-1])} were asked"
                f" for, and {len(records)} came"
            )
        return records

    try:
        return read_all(indices)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if not marked:
            raise
        return isolate(read_all, indices, error)


def with_names(dataset: Dataset, group: IdGroup, records: Sequence[object]) -> Sequence[object]:
    """Names the bad ones among records."""
    if not any(isinstance(record, Exception) for record in records):
        return records
    where = dataset.describe_shard(group.shard_id)
    path = dataset.shards[group.shard_id].path if dataset.shards else None
    named: list[Any] = []
    for index, record in zip(group.indices.tolist(), records, strict=True):
        if isinstance(record, Exception):
            bad = BadRecord(dataset.name, group.shard_id, index, path, str(record))
            record = Unreadable(bad, named_error(record, where))
        named.append(record)
    return named


class _Known:
    """The bad records that this process has come across."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listed: dict[BadRecord, None] = {}
        self.said: Counter[str] = Counter()  # by dataset


_known: PerProcess[_Known] = PerProcess(_Known)


def note(bad: BadRecord) -> None:
    """Remembers a bad record that was left out; warns of the first of each dataset."""
    known = _known.get()
    with known.lock:
        known.said[bad.dataset] += 1
        first = known.said[bad.dataset] == 1
        if len(known.listed) < _MOST_LISTED:
            known.listed[bad] = None
    if first:
        warn(
            f"dataset {bad.dataset!r}: a record of shard {bad.shard_id} cannot be read and is left"
            f" out, and so will be others: {bad.reason}. zx.bad_records() lists them."
        )


def bad_records(dataset: str | None = None) -> list[BadRecord]:
    """Lists the bad records that this process has left out or replaced, each once.

    Args:
      dataset: Name of the dataset; None for all.

    Returns:
      Up to 10,000 of them, by dataset, shard and place.

    Example:
      >>> bad_records("no such dataset")
      []
    """
    known = _known.get()
    with known.lock:
        found = [bad for bad in known.listed if dataset in (None, bad.dataset)]
    return sorted(found, key=lambda bad: bad[:3])


def settle(found: Unreadable, on_bad_record: OnBadRecord) -> list[object]:
    """What takes the place of a bad record: one record, or none.

    Raises:
      Exception: What reading it raised, if the dataset says so; what its function raises.
    """
    if on_bad_record == "raise":
        raise found.error
    if callable(on_bad_record):
        record = on_bad_record(found.bad)
        note(found.bad)
        return [] if record is None else [record]
    note(found.bad)
    return []
