"""The records of sample ids, for a loop of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike

from zephon_jax._text import short
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.reader import default_reader

__all__ = ["HasDatasets", "datasets_of", "read"]


class HasDatasets(Protocol):
    """What draws from datasets and knows them by id, as every source does."""

    @property
    def datasets_by_id(self) -> Mapping[int, object]:
        """Dataset of each dataset id."""
        ...


def read(
    source: HasDatasets | Sequence[Dataset] | Mapping[int, Dataset], sample_ids: ArrayLike
) -> list[Any]:
    """Reads the records of sample ids, in the order of the ids.

    Ids are grouped by shard and read in the order of their places in it, on the threads and through
    the cache that Grain datasets of this package use in the same process. All records are held in
    memory together: read a long chunk in pieces.

    Args:
      source: Any source; or datasets by id; or a list of datasets, whose ids are their places.
      sample_ids: ints (n, 3): dataset id, shard id and place in the shard, such as
        `chunk.order()[1]` or a part of it. Any order; repeats are allowed.

    Returns:
      n records, as the format of their dataset has them.

    Raises:
      TypeError: If `source` is neither, or the ids are not integers.
      ValueError: If ids are not (n, 3), name an unknown dataset, or one of counts only, or a place
        out of range, or a shard is damaged or has changed; the message names dataset and shard.
      OSError: If a shard cannot be had.

    Example:
      >>> import zephon_jax as zx
      >>> letters = zx.Dataset.from_source("letters", ["a", "b", "c", "d"])
      >>> source = zx.StaticMixtureWorkSource([letters], {"letters": 1}, chunk_size=4)
      >>> chunk, state = source.next_chunk(source.init())
      >>> component, sample_ids = chunk.order()
      >>> zx.read(source, sample_ids)
      ['a', 'b', 'c', 'd']
      >>> zx.read([letters], [(0, 0, 2), (0, 0, 0)])
      ['c', 'a']
    """
    return default_reader().read(_by_id(source), _checked_ids(sample_ids))


def datasets_of(source: HasDatasets) -> Mapping[int, Dataset]:
    """The datasets of a source whose records are read: those of any other kind cannot be."""
    return cast("Mapping[int, Dataset]", source.datasets_by_id)


def _by_id(source: object) -> Mapping[int, Dataset]:
    by_id = getattr(source, "datasets_by_id", None)
    if isinstance(source, Mapping):
        by_id = source
    elif by_id is None and isinstance(source, Sequence) and not isinstance(source, str):
        by_id = dict(enumerate(source))
    if by_id is None or not all(isinstance(dataset, Dataset) for dataset in by_id.values()):
        raise TypeError(f"source must be a source or a list of zx.Dataset; got {short(source)}.")
    return by_id


def _checked_ids(sample_ids: object) -> np.ndarray:
    ids = np.asarray(sample_ids)
    if ids.size == 0:
        return np.zeros((0, 3), dtype=np.int64)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"sample_ids must be integers (n, 3); got {ids.dtype} {ids.shape}.")
    if ids.ndim != 2 or ids.shape[1] != 3:
        raise ValueError(
            f"sample_ids must be (n, 3), as chunk.order()[1] gives them; got {ids.shape}. Put a"
            " single id into a list."
        )
    return ids.astype(np.int64)
