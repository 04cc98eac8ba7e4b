"""Where the shards of a dataset are: in files, in an object in memory, or nowhere.

A `Dataset` names its samples and counts them; what it takes to read them is said by its store.
The fourth kind, a part of another dataset, is beside `Dataset`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from zephon_jax.data.files import File
from zephon_jax.data.formats.base import AddedColumns, named_error
from zephon_jax.data.memory_sources import MappedFile, mapping_of

__all__ = ["CountedShards", "FileShards", "RandomAccess", "ShardStore", "SourceShards"]


class RandomAccess(Protocol):
    """A sequence of records in memory or behind somebody else's reader.

    Where it has `__getitems__` or `_getitems`, one call reads many records.
    """

    def __len__(self) -> int:
        """Number of records."""
        ...

    def __getitem__(self, place: object, /) -> Any:
        """The record at a place."""
        ...


class ShardStore:
    """What is true of the shards of a dataset where nothing else is said."""

    # The word for the shards' format.
    format: str | None = None
    # Columns to read, for formats that have columns; None for all.
    columns: tuple[str, ...] | None = None
    # The files in shard order.
    files: tuple[File, ...] = ()
    # Where the data comes from, None where only the counts are known. Equal for equal data.
    location: str | None = None
    # False where only the counts are known, so that reading would fail.
    readable: bool = True
    # True if some shards are remote or compressed, so that they are read from local copies.
    staged: bool = False
    # A digest of what is in each shard, where counting found one; None where it did not.
    digests: tuple[int, ...] | None = None
    # Row groups of all files, and the bytes that their columns take when decoded, where known.
    num_row_groups: int = 0
    decoded_bytes: int = 0

    def num_bytes(self, shard_counts: np.ndarray) -> np.ndarray | None:
        """Bytes of each shard as it is stored, int64 (num_shards,); None where not known."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class CountedShards(ShardStore):
    """Shards of which the counts alone are known, to simulate a schedule."""

    __module__ = "zephon_jax"

    # Bytes of each shard, int64 (num_shards,); None where not known.
    declared_bytes: np.ndarray | None = None
    readable = False

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if self.declared_bytes is not None:
            self.declared_bytes.flags.writeable = False  # Pickle forgets it.

    def num_bytes(self, shard_counts: np.ndarray) -> np.ndarray | None:
        """What was declared."""
        del shard_counts
        return self.declared_bytes


@dataclass(frozen=True, eq=False, kw_only=True)
class FileShards(ShardStore):
    """Shards that are files."""

    __module__ = "zephon_jax"

    files: tuple[File, ...]
    format: str | None
    location: str | None
    staged: bool
    columns: tuple[str, ...] | None = None
    # Arguments for the fsspec file system of remote shards.
    storage_options: Mapping[str, Any] | None = None
    # Columns that each file's folders stand for, by name; None where there are none.
    added_columns: tuple[AddedColumns, ...] | None = None
    digests: tuple[int, ...] | None = None
    num_row_groups: int = 0
    decoded_bytes: int = 0

    def num_bytes(self, shard_counts: np.ndarray) -> np.ndarray:
        """Sizes of the files."""
        del shard_counts
        return np.asarray([file.size for file in self.files], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SourceShards(ShardStore):
    """Stretches of an object with random access."""

    __module__ = "zephon_jax"

    source: RandomAccess
    location: str | None

    def __getstate__(self) -> dict[str, object]:
        # A worker process maps the same file; the array's content may be huge.
        mapping = mapping_of(self.source)
        return vars(self) if mapping is None else {**vars(self), "source": mapping}

    def __setstate__(self, state: dict[str, object]) -> None:
        source = state["source"]
        opened = source.open() if isinstance(source, MappedFile) else source
        self.__dict__.update({**state, "source": opened})

    def num_bytes(self, shard_counts: np.ndarray) -> np.ndarray:
        """Nobody knows the bytes of a source in memory: each sample counts as one."""
        return shard_counts

    def read(self, places: list[int], num_samples: int) -> Sequence[object]:
        """Returns the records at some places of the source.

        Args:
          places: Places in the whole source.
          num_samples: Samples that it had when its dataset was built.

        Raises:
          ValueError: If the source has another size now, raises an error of its own or returns
            columns.
        """
        source = self.source
        if len(source) != num_samples:
            raise ValueError(
                f"the source has {len(source)} samples now, not {num_samples}. "
                "Build the dataset anew"
            )
        for method in ("__getitems__", "_getitems"):
            read_many = getattr(source, method, None)
            if read_many is not None:
                try:
                    found = read_many(places)
                except Exception as error:
                    where = f"{len(places)} records from {places[0]} to {places[-1]}"
                    raise named_error(error, where) from error
                if isinstance(found, Mapping):
                    raise ValueError(
                        f"the source's {method} returns columns; it must return records"
                    )
                return list(found)
        records = []
        for place in places:
            try:
                records.append(source[place])
            except Exception as error:
                raise named_error(error, f"record {place}") from error
        return records
