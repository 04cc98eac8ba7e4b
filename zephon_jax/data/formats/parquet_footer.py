"""What a Parquet footer says beyond the number of rows: row groups, and what records look like."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["check_same_columns", "decoded_bytes", "footer_facts", "hive_columns"]

# What Hive writes where a partition's value is missing.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_FOLDER = re.compile(r"([^=/]+)=([^/]*)")
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")

# A column's kind: a word, or a word and the kinds inside.
Kind = str | list[Any]
PartitionValue = str | int | None


def decoded_bytes(group: pq.RowGroupMetaData) -> Counter[str]:
    """Bytes of each column of a row group before compression."""
    found: Counter[str] = Counter()
    for c in range(group.num_columns):
        column = group.column(c)
        found[column.path_in_schema.split(".", 1)[0]] += column.total_uncompressed_size
    return found


def footer_facts(path: str, metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, object]:
    """What an index keeps of a footer, as plain JSON.

    Returns:
      "rows" of each row group; "columns", the kind of each, and "bytes", those of each in all
      groups, decoded; "digest" of the footer, which has the places, sizes and statistics of all
      column chunks.
    """
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    names = schema.names
    return {
        "rows": [group.num_rows for group in groups],
        "bytes": dict(sum(map(decoded_bytes, groups), Counter())),
        "columns": {name: _kind(schema.field(i).type) for i, name in enumerate(names)},
        "digest": _digest(path),
    }


def _digest(path: str) -> int:
    """Of the footer's bytes in the file: other versions of Arrow would write others."""
    with open(path, "rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return zlib.crc32(file.read(length))


def _kind(type_: pa.DataType) -> Kind:
    """What values of a column are in a record: widths and encodings do not matter."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(type_):
        return _kind(type_.value_type)
    if types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return ["struct", *sorted([field.name, _kind(field.type)] for field in fields)]
    if types.is_map(type_):
        return ["map", _kind(type_.key_type), _kind(type_.item_type)]
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return ["list", _kind(type_.value_type)]
    words: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (types.is_null, "null"), (types.is_boolean, "bool"), (types.is_integer, "int"),
        (types.is_floating, "float"), (types.is_decimal, "decimal"), (types.is_string, "str"),
        (types.is_large_string, "str"), (types.is_binary, "bytes"),
        (types.is_large_binary, "bytes"), (types.is_fixed_size_binary, "bytes"),
        (types.is_date, "date"), (types.is_time, "time"), (types.is_duration, "duration"),
    ]  # fmt: skip
    if types.is_timestamp(type_):
        return _of_time(type_)
    return next((word for is_one, word in words if is_one(type_)), str(type_))


def _of_time(type_: pa.DataType) -> str:
    """Units make no difference to a record, a zone does."""
    return "timestamp" if getattr(type_, "tz", None) is None else "timestamp of a zone"


def _agree(one: Kind, other: Kind) -> bool:
    """True if values of two kinds can be in one column: a column of nulls goes with any."""
    if "null" in (one, other) or one == other:
        return True
    if isinstance(one, str) or isinstance(other, str):
        return False
    same = len(one) == len(other) and one[0] == other[0]
    return same and all(
        _agree(a, b) if one[0] != "struct" else a[0] == b[0] and _agree(a[1], b[1])
        for a, b in zip(one[1:], other[1:], strict=True)
    )


def check_same_columns(
    paths: Sequence[str],
    found: Sequence[Mapping[str, Kind]],
    columns: Sequence[str] | None,
) -> None:
    """Refuses files whose records would not be alike.

    Args:
      paths: The files.
      found: The columns of each, by name.
      columns: The columns that are read; None for all.

    Raises:
      ValueError: Naming a column and two files.
    """
    known: dict[str, tuple[Kind, str]] = {}
    for path, kinds in zip(paths, found, strict=True):
        if columns is not None:
            kinds = {name: kind for name, kind in kinds.items() if name in columns}
        for name in sorted(kinds.keys() ^ known.keys()) if path != paths[0] else ():
            holds, lacks = (path, paths[0]) if name in kinds else (paths[0], path)
            raise ValueError(
                f"column {name!r} is in {holds} and not in {lacks}. Declare two datasets, or"
                " choose with columns= what all files have"
            )
        for name, kind in kinds.items():
            before, where = known.get(name, (kind, path))
            if not _agree(before, kind):
                raise ValueError(
                    f"column {name!r} holds {_text(before)} in {where} and {_text(kind)} in"
                    f" {path}. Write one of them anew, or leave the column out with columns="
                )
            if name not in known or before == "null":
                known[name] = kind, path


def _text(kind: Kind) -> str:
    return kind if isinstance(kind, str) else str(kind).replace("'", "")


def hive_columns(paths: Sequence[str]) -> list[dict[str, PartitionValue]]:
    """The columns that folders like `year=2024` right above each file stand for.

    Returns:
      For each file its values by column: integers where all files have one, else text; None where
      Hive wrote that there is none.

    Raises:
      ValueError: If some files have other folders above them than the rest.

    Example:
      >>> hive_columns(["d/year=2024/lang=en/0.parquet", "d/year=2023/lang=de/0.parquet"])
      [{'year': 2024, 'lang': 'en'}, {'year': 2023, 'lang': 'de'}]
    """
    texts: list[dict[str, str | None]] = []
    for path in paths:
        found: dict[str, str | None] = {}
        for folder in reversed(path.split("::")[0].split("/")[:-1]):
            match = _HIVE_FOLDER.fullmatch(folder)
            if match is None:
                break
            name, value = map(unquote, match.groups())
            found = {name: None if value == _HIVE_NULL else value, **found}
        texts.append(found)
        if list(found) != list(texts[0]):
            raise ValueError(
                f"{path} lies in folders of columns {list(found)}, and {paths[0]} in folders of"
                f" {list(texts[0])}. Declare two datasets"
            )
    whole = {
        name
        for name in texts[0]
        if all(one[name] is None or _INTEGER.fullmatch(str(one[name])) for one in texts)
    }
    return [
        {name: int(value) if value is not None and name in whole else value
         for name, value in found.items()}
        for found in texts
    ]  # fmt: skip
