"""Parquet shards: rows as dicts, row groups decoded once while the order needs them."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_jax.data.cache.block_plan import BlockUse
from zephon_jax.data.cache.decoded import decoded_blocks, take_rows
from zephon_jax.data.formats.base import (
    AddedColumns,
    FetchRange,
    OpenShard,
    ShardFormat,
    ShardIndex,
    file_with_tail,
)
from zephon_jax.data.formats.parquet_footer import decoded_bytes, footer_facts

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["PARQUET", "ParquetFormat"]

_TAIL_BYTES = 1 << 16  # Most footers are shorter.
# Rows of a piece of a row group that is too large for one: at most so many, and so many bytes of
# what is in the file. Where that becomes more than 2 GiB when decoded, pieces are made smaller.
_PIECE_ROWS, _PIECE_BYTES, _SMALLER = 1 << 12, 1 << 28, 16


def _open_file(path: str, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Opens a file by its path.

    Arrow's own threads may still hold what it was given when the interpreter ends. They let go of
    a file of their own at any time; for an object of Python's, that aborts the program.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        if _is_of_system(error) or isinstance(error, MemoryError):
            raise
        raise ValueError(f"not a complete Parquet file ({error})") from error


def _is_of_system(error: Exception) -> bool:
    """False for what the decoder says of the data, which pyarrow raises as OSError too."""
    return isinstance(error, OSError) and error.errno is not None


class ParquetShard(OpenShard):
    """What a Parquet file's footer says.

    The file is open only while a row group is decoded: a `ParquetFile` holds on to the buffers of
    the last one for as long as it lives.
    """

    num_files = 1  # It is not open, but the footers of many files take as much as open ones.

    def __init__(
        self,
        path: str,
        columns: tuple[str, ...] | None,
        added: Mapping[str, str | int | None] | None = None,
    ):
        self._path = path
        # Tells this version of the file, however often it is opened.
        status = os.stat(path)
        version = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        with _open_file(path) as file:
            meta = self._metadata = file.metadata
            known = file.schema_arrow.names
        self._added = {name: value for name, value in (added or {}).items() if name not in known}
        _check_columns(known, columns, self._added)
        self._columns = None if columns is None else [c for c in columns if c not in self._added]
        self._key = path, version, columns
        groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
        rows = [group.num_rows for group in groups]
        self._bounds = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
        sizes = np.array([_bytes_of(group, columns) for group in groups], dtype=np.int64)
        self._group_bytes = sizes
        self._stored = np.array([_stored_bytes(group) for group in groups], dtype=np.int64)
        self._row_bytes = sizes // np.maximum(rows, 1)
        self._broken: dict[int, Exception] = {}  # by group
        self.num_samples = int(meta.num_rows)

    def read(self, indices: np.ndarray) -> Sequence[object]:
        """Returns rows as dicts of Python values."""
        if self._columns == []:  # Of a table without columns nobody knows the rows.
            return [dict(self._added) for _ in indices]
        rows: list[Any] = []
        blocks = decoded_blocks()
        for use in self.block_uses(indices):
            rows += _rows(*blocks.rows(use))
        for row in rows if self._added else ():
            row.update(self._added)
        return rows

    def block_uses(self, indices: np.ndarray) -> list[BlockUse]:
        """The row groups of some rows."""
        if not len(indices):
            return []
        groups = np.searchsorted(self._bounds, indices, side="right") - 1
        cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        firsts = groups[[0, *cuts.tolist()]].tolist()
        parts = np.split(indices, cuts)
        return [
            self._use(group, part - self._bounds[group])
            for group, part in zip(firsts, parts, strict=True)
        ]

    def _use(self, group: int, places: np.ndarray) -> BlockUse:
        return BlockUse(
            key=(self._key, group),
            places=places,
            num_bytes=int(self._group_bytes[group]),
            decode=functools.partial(self._decode, group),
        )

    def _row_group(self, group: int) -> pa.Table:
        return decoded_blocks().whole(self._use(group, np.zeros(0, np.int64)))

    def _decode(self, group: int) -> pa.Table:
        if group in self._broken:  # It would be decoded again for each of its rows.
            raise self._broken[group]
        try:
            return self._decode_columns(group)
        except ValueError as error:
            self._broken[group] = error
            raise

    def _decode_columns(self, group: int) -> pa.Table:
        import pyarrow as pa

        # Arrow's threads would each hold buffers of their own until their next task.
        settings = {"columns": self._columns, "use_threads": False}
        try:
            with _open_file(self._path, self._metadata) as file:
                try:
                    return file.read_row_group(group, **settings)
                except pa.ArrowNotImplementedError:  # Nested text above 2 GiB, in one piece.
                    return self._decode_pieces(file, group, settings)
        except (pa.ArrowException, OSError) as error:
            if _is_of_system(error) or isinstance(error, MemoryError):
                raise
            unknown = isinstance(error, pa.ArrowNotImplementedError)
            what = "cannot be read by this pyarrow" if unknown else "are corrupted"
            first, last = self._bounds[group], self._bounds[group + 1] - 1
            raise ValueError(
                f"records {first} to {last} (row group {group}) {what} ({error})"
            ) from error

    def _decode_pieces(
        self, file: pq.ParquetFile, group: int, settings: dict[str, Any]
    ) -> pa.Table:
        import pyarrow as pa

        rows = min(_PIECE_ROWS, max(1, _PIECE_BYTES // max(1, int(self._row_bytes[group]))))
        while True:
            try:
                batches = file.iter_batches(rows, row_groups=[group], **settings)
                return pa.Table.from_batches(batches)
            except pa.ArrowNotImplementedError:
                if rows == 1:
                    raise
                rows = max(1, rows // _SMALLER)

    def num_bytes(self, indices: np.ndarray) -> np.ndarray:
        """Mean bytes of the rows in each row's group, all columns counted."""
        return self._row_bytes[np.searchsorted(self._bounds, indices, side="right") - 1]

    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[object], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of a column's values, or of all columns', by the row groups that are touched."""
        del records
        groups = np.searchsorted(self._bounds, indices, side="right") - 1
        sizes = np.empty(len(indices), dtype=np.int64)
        found = 0
        touched = np.unique(groups)
        for group in touched.tolist():
            table = self._row_group(group)
            if field in table.column_names:
                table = table.select([field])
            columns = [_value_bytes(column) for column in table.columns]
            values = np.asarray(columns, dtype=np.int64).sum(axis=0)
            mine = groups == group
            sizes[mine] = values[indices[mine] - self._bounds[group]]
            found += int(values.sum())
        stored = int(self._stored[touched].sum())
        return sizes, found * int(self._stored.sum()) // max(1, stored)

    def close(self) -> None:
        """Nothing is open. Decoded row groups stay as long as their budget allows."""


def _check_columns(
    known: Sequence[str], wanted: Sequence[str] | None, added: Mapping[str, object]
) -> None:
    twice = next((name for name, times in Counter(known).items() if times > 1), None)
    if twice is not None:
        raise ValueError(
            f"there are several columns {twice!r}, and a row can hold one. Rename the others"
        )
    for column in wanted or ():
        if column not in known and column not in added:
            raise ValueError(f"there is no column {column!r}; columns are {[*known, *added]}")


def _bytes_of(group: pq.RowGroupMetaData, columns: Sequence[str] | None) -> int:
    """Decoded bytes of some or all columns of a row group."""
    sizes = decoded_bytes(group)
    return sum(sizes[column] for column in (sizes if columns is None else columns))


def _stored_bytes(group: pq.RowGroupMetaData) -> int:
    """Bytes that a row group takes in the file."""
    return sum(group.column(c).total_compressed_size for c in range(group.num_columns))


def _value_bytes(column: pa.ChunkedArray) -> np.ndarray:
    """Bytes of each value of a column, int64; the mean where values are not text or lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, column = column.type, column.combine_chunks()
    if pa.types.is_large_string(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        sizes = pc.call_function("binary_length", [column])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        each = len(column.flatten())
        lengths = (
            pc.call_function("list_value_length", [column])
            .fill_null(0)
            .to_numpy(zero_copy_only=False)
        )
        return lengths.astype(np.int64) * (column.nbytes // max(1, each))
    else:
        return np.full(len(column), column.nbytes // max(1, len(column)), dtype=np.int64)
    return sizes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _rows(table: pa.Table, places: np.ndarray) -> list[dict[str, object]]:
    first, last = int(places[0]), int(places[-1])
    if last - first == len(places) - 1 and np.all(np.diff(places) == 1):
        return table.slice(first, len(places)).to_pylist()
    return take_rows(table, places).to_pylist()


class ParquetFormat(ShardFormat):
    """Parquet files."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    magics = (b"PAR1",)
    decodes_blocks = True

    def scan(self, path: str) -> ShardIndex:
        """Counts by the footer, and keeps what that says of row groups and columns."""
        with _open_file(path) as file:
            facts = footer_facts(path, file.metadata, file.schema_arrow)
            return ShardIndex(int(file.metadata.num_rows), facts=facts)

    def scan_remote(self, path: str, size: int, fetch: Callable[[str], FetchRange]) -> ShardIndex:
        """Counts by the footer, whose length is in the last 8 bytes but 4."""
        read = fetch(path)
        tail = read(max(0, size - _TAIL_BYTES), size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if len(tail) < length <= size:
            tail = read(size - length, size)
        with file_with_tail(tail, size, ".parquet") as name:
            return self.scan(name)

    def open(
        self,
        path: str,
        index: ShardIndex,
        columns: tuple[str, ...] | None,
        added: AddedColumns = (),
    ) -> OpenShard:
        """Opens a file to read some or all columns; a column of the file goes before an added."""
        del index
        return ParquetShard(path, columns, dict(added))


PARQUET = ParquetFormat()
