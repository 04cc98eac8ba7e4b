"""Counting tokens with somebody's tokenizer, and saying which sample it failed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from zephon_jax._text import short
from zephon_jax.data.dataset import Dataset

__all__ = ["MAX_TOKENS", "count_records", "count_tokens"]

MAX_TOKENS = 1 << 40  # of one record


def count_records(
    tokenizer: Callable[[Any], object],
    field: str | None,
    dataset: Dataset,
    sample_ids: np.ndarray,
    records: Sequence[object],
) -> np.ndarray:
    """Counts the tokens of records.

    Args:
      tokenizer: Returns a number of tokens or a sequence of token ids.
      field: The entry of the records that it takes; None for the record.
      dataset: Where they come from, for errors.
      sample_ids: int64 (n, 3), for errors.
      records: n of them.

    Returns:
      int64 (n,).

    Raises:
      ValueError: If the tokenizer raises, returns nothing or something that is no count and no
        sequence, or a record has not the field. Names dataset and sample.
    """
    counts = np.empty(len(records), dtype=np.int64)
    for n, record in enumerate(records):
        try:
            counts[n] = count_tokens(tokenizer(_entry(record, field)), "the tokenizer returned")
        except Exception as error:
            place = tuple(sample_ids[n].tolist())
            kind = "" if isinstance(error, _Refused) else f"{type(error).__name__}: "
            raise ValueError(
                f"the tokens of sample {place} of dataset {dataset.name!r} cannot be counted:"
                f" {kind}{error}"
            ) from error
    return counts


class _Refused(ValueError):
    """What a record or a tokenizer gave is of no use."""


def _entry(record: object, field: str | None) -> object:
    if field is None:
        return record
    if not isinstance(record, Mapping):
        raise _Refused(
            f"field={short(field)} needs records that are dicts; got {type(record).__name__}"
        )
    if field not in record:
        raise _Refused(f"there is no field {short(field)}; fields are {sorted(record)}")
    return record[field]


def count_tokens(result: Any, gave: str) -> int:
    """A number of tokens, as it is or of a sequence of token ids.

    Args:
      result: A number, or a sequence.
      gave: Where it comes from, for errors: "the tokenizer returned".

    Raises:
      ValueError: If it is neither.
    """
    if getattr(result, "shape", None) == () and np.issubdtype(result.dtype, np.integer):
        result = int(result)  # an array of no dimensions, as batches that were cut leave them
    if isinstance(result, (int, np.integer)) and not isinstance(result, bool):
        if not 0 <= result <= MAX_TOKENS:
            raise _Refused(f"{gave} {result} tokens")
        return int(result)
    shape = getattr(result, "shape", None)
    flat = not isinstance(result, (str, bytes, Mapping)) if shape is None else len(shape) == 1
    if flat and isinstance(result, Sized):
        if shape is None and isinstance(result, Sequence) and result:
            flat = not isinstance(result[0], (list, tuple, np.ndarray))
        if flat:
            return len(result)
    kind = "nothing" if result is None else type(result).__name__
    if shape is not None:
        kind += f" of shape {tuple(shape)}"
    elif isinstance(result, Sequence) and not isinstance(result, (str, bytes)):
        kind += f" of {type(result[0]).__name__}"
    elif isinstance(result, Mapping):
        kind += f" with {sorted(map(str, result))}"
    raise _Refused(f"a number of tokens or one sequence of token ids is needed; {gave} {kind}")
