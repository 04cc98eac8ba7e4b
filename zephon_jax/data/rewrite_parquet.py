"""Writes Parquet files anew with smaller row groups, a piece of one group in memory at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zephon_jax.data.dataset import Dataset
from zephon_jax.data.files import is_local
from zephon_jax.data.formats.base import named_error
from zephon_jax.data.formats.parquet_footer import decoded_bytes, hive_columns
from zephon_jax.data.shard_index import check_unchanged

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["RewrittenFile", "rewrite_parquet"]

_HIVE_FOLDER = re.compile(r"[^=/]+=[^/]*")
_BUFFER_BYTES = 1 << 20  # for each column
_SUFFIXES = (".parquet", ".pq")  # of an output that is a file and no folder


class RewrittenFile(NamedTuple):
    """A file that was written anew."""

    path: str
    num_rows: int
    # Row groups of the old and of the new file.
    groups_before: int
    groups: int
    # Decoded bytes of the largest row group of each.
    largest_before: int
    largest: int


def rewrite_parquet(
    dataset: Dataset,
    output: str,
    group_bytes: int,
    progress: Callable[[int], object] = lambda rows: None,
) -> list[RewrittenFile]:
    """Cuts row groups to a size; rows, their order, columns, codecs and metadata stay.

    Row groups that are not larger are written as they are: none are put together. The output
    appears by one renaming when all of it is written.

    Args:
      dataset: Parquet files of this machine, each a shard.
      output: A folder that is not there or is empty, which gets files of the same names; for one
        file also the name of a file.
      group_bytes: About how many decoded bytes a row group may have. A row is never cut.
      progress: Called with the rows of each piece that is written.

    Returns:
      What was written, file by file.

    Raises:
      FileExistsError: If the output is there.
      ValueError: If the data is not Parquet of this machine, a file changes while it is read, or
        the folders of the output stand for other columns.
      OSError: If the output cannot be written.
    """
    if group_bytes < 1:
        raise ValueError(f"row groups must have at least 1 byte; got {group_bytes}.")
    where = f"dataset {dataset.name!r}"
    if dataset.format != "parquet":
        raise ValueError(f"{where} is {dataset.format}: only Parquet files have row groups to cut.")
    far = [file.path for file in dataset.shards if not is_local(file.path)]
    if far:
        raise ValueError(f"{where}: {far[0]} is on another machine. Copy the files here first.")
    output, given = os.path.abspath(output), output.rstrip("/")
    sources = [file.path for file in dataset.shards]
    names = _names(sources, output)
    _check_output(output, sources, names)
    temporary = os.path.join(
        os.path.dirname(output), f".{os.path.basename(output)}.{uuid.uuid4().hex}"
    )
    found = []
    try:
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        for shard_id, name in enumerate(names):
            try:
                found.append(_rewrite(sources[shard_id], temporary + name, group_bytes, progress))
                check_unchanged(dataset.shards[shard_id])
            except Exception as error:
                raise named_error(error, dataset.describe_shard(shard_id)) from error
        if os.path.lexists(output) and not _is_empty_folder(output):
            raise FileExistsError(f"{output} was written by another program meanwhile.")
        os.rename(temporary, output)
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return [one._replace(path=given + name) for one, name in zip(found, names, strict=True)]


def _names(sources: Sequence[str], output: str) -> list[str]:
    """What stands behind the output in the path of each file; nothing if the output is a file."""
    if len(sources) == 1 and output.lower().endswith(_SUFFIXES):
        return [""]
    root = os.path.commonpath([os.path.dirname(path) for path in sources])
    while _HIVE_FOLDER.fullmatch(os.path.basename(root)):  # These are columns.
        root = os.path.dirname(root)
    return [os.sep + os.path.relpath(path, root) for path in sources]


def _check_output(output: str, sources: Sequence[str], names: Sequence[str]) -> None:
    if os.path.lexists(output) and not _is_empty_folder(output):
        raise FileExistsError(
            f"the output {output} is there already. Name another, or take it away"
        )
    if hive_columns(sources) != hive_columns([output + name for name in names]):
        raise ValueError(
            f"folders above {sources[0]} stand for columns {list(hive_columns(sources)[0])}, which"
            f" {output} would not have. Name a folder without such a name for the output"
        )


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def _rewrite(
    source: str, target: str, group_bytes: int, progress: Callable[[int], object]
) -> RewrittenFile:
    """Writes one file, and looks at what was written."""
    import pyarrow.parquet as pq

    os.makedirs(os.path.dirname(target), exist_ok=True)
    # So that not even the compressed bytes of a group are in memory at once.
    small = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
    with pq.ParquetFile(source, **small) as file:
        before, schema = file.metadata, file.schema_arrow
        with pq.ParquetWriter(target, schema, **_settings(before)) as out:
            for group in range(before.num_row_groups):
                for table in _pieces(file, group, group_bytes):
                    out.write_table(table, row_group_size=table.num_rows)
                    progress(table.num_rows)
    with open(target, "rb") as written:
        os.fsync(written.fileno())
    after = pq.read_metadata(target)
    if after.num_rows != before.num_rows:
        raise ValueError(f"{after.num_rows} rows came out of a footer's {before.num_rows}")
    return RewrittenFile(
        target, after.num_rows, before.num_row_groups, after.num_row_groups,
        _largest(before), _largest(after),
    )  # fmt: skip


def _largest(metadata: pq.FileMetaData) -> int:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return max((decoded_bytes(group).total() for group in groups), default=0)


def _pieces(file: pq.ParquetFile, group: int, group_bytes: int) -> Iterator[pa.Table]:
    """The rows of a row group, so many at a time that each piece is about of the size."""
    import pyarrow as pa

    known = file.metadata.row_group(group)
    if not known.num_rows:
        return
    num_pieces = max(1, -(-decoded_bytes(known).total() // group_bytes))
    rows = max(1, -(-known.num_rows // num_pieces))
    batches, held = list[pa.RecordBatch](), 0
    for batch in file.iter_batches(rows, row_groups=[group]):
        while batch.num_rows:  # A reader may give fewer rows at a time than were asked for.
            part = batch.slice(0, rows - held)
            batches.append(part)
            batch, held = batch.slice(part.num_rows), held + part.num_rows
            if held == rows:
                yield pa.Table.from_batches(batches, file.schema_arrow)
                batches, held = [], 0
    if held:
        yield pa.Table.from_batches(batches, file.schema_arrow)


def _settings(metadata: pq.FileMetaData) -> Mapping[str, Any]:
    """Codecs, dictionaries and the order of rows, as the first row group has them."""
    if not metadata.num_row_groups:
        return {}
    group = metadata.row_group(0)
    columns = [group.column(c) for c in range(group.num_columns)]
    codecs = {
        column.path_in_schema: "NONE"
        if column.compression == "UNCOMPRESSED"
        else column.compression
        for column in columns
    }
    dictionaries = [
        column.path_in_schema
        for column in columns
        if any("DICTIONARY" in encoding for encoding in column.encodings)
    ]
    settings: dict[str, Any] = {"compression": codecs, "use_dictionary": dictionaries or False}
    if group.sorting_columns:
        settings["sorting_columns"] = group.sorting_columns
    return settings
