"""Objects in memory as sequences of records: tables by row, memory-mapped arrays by their file."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["MappedFile", "TableRows", "as_records", "mapping_of"]

_TABLES = {"pandas": ("DataFrame",), "polars": ("DataFrame",), "pyarrow": ("Table", "RecordBatch")}
_COLUMNS = {
    "pandas": ("Series",), "polars": ("Series",), "pyarrow": ("Array", "ChunkedArray"),
}  # fmt: skip
_LAZY = {"polars": ("LazyFrame",)}


def as_records(name: str, source: Any) -> Any:
    """Returns what gives records by place: the object itself, or the rows of a table.

    Args:
      name: The dataset, for errors.
      source: Any object.

    Raises:
      TypeError: If it is a table that is not there yet.
      ValueError: If several columns of a table have one name.
    """
    if _is_one_of(source, _LAZY):
        raise TypeError(
            f"dataset {name!r}: a {type(source).__name__} has no rows yet; give source.collect()."
        )
    if _is_one_of(source, _TABLES):
        columns = [str(column) for column in _names(source)]
        twice = next((column for column in columns if columns.count(column) > 1), None)
        if twice is not None:
            raise ValueError(
                f"dataset {name!r}: the table has several columns {twice!r}, and a row can hold"
                " one. Rename the others."
            )
        return TableRows(source)
    return TableRows(source) if _is_one_of(source, _COLUMNS) else source


def _is_one_of(source: object, kinds: dict[str, tuple[str, ...]]) -> bool:
    """True for such a class, or one derived from it; no package is imported to find out."""
    return any(
        base.__module__.split(".")[0] in kinds
        and base.__name__ in kinds[base.__module__.split(".")[0]]
        for base in type(source).__mro__
    )


def _names(table: Any) -> Sequence[Any]:
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


class TableRows:
    """The rows of a table as dicts of Python values, or the values of one column.

    Args:
      table: A table or column of pandas, Polars or Arrow.
    """

    __module__ = "zephon_jax"

    def __init__(self, table: Any):
        self.table = table
        self._package = next(
            base.__module__.split(".")[0]
            for base in type(table).__mro__
            if base.__module__.split(".")[0] in _TABLES
        )
        self._is_table = _is_one_of(table, _TABLES)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, place: int) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        table = self.table
        if self._package == "pyarrow":
            return table.take(np.asarray(places, dtype=np.int64)).to_pylist()
        if self._package == "polars":
            found = table[list(places)]
            return found.to_dicts() if self._is_table else found.to_list()
        found = table.iloc[list(places)]
        return found.to_dict("records") if self._is_table else found.tolist()


class MappedFile(NamedTuple):
    """Where a memory-mapped array lies."""

    __module__ = "zephon_jax"

    file: str
    dtype: np.dtype
    offset: int  # bytes
    shape: tuple[int, ...]

    def open(self) -> np.memmap:
        """Maps the file again, to be read."""
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)


def mapping_of(array: object) -> MappedFile | None:
    """Where a memory-mapped array lies in its file; None for any other object.

    Arrays that are not contiguous, or whose changes stay in memory (mode "c"), are any other.
    """
    if type(array) is not np.memmap or array.mode == "c" or not array.size:
        return None
    if not array.flags.c_contiguous:
        return None
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    file = getattr(root, "filename", None)
    if file is None or not isinstance(root.base, mmap.mmap) or array.dtype.hasobject:
        return None
    first = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    if array.mode != "r":
        array.flush()
    return MappedFile(str(file), array.dtype, int(root.offset + first), array.shape)
