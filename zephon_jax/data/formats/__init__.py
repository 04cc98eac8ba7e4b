"""Shard formats: what they are, and which one a file has."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Callable, Sequence

from zephon_jax._text import short
from zephon_jax.data.files import is_chain, is_local
from zephon_jax.data.formats.array_record import ARRAY_RECORD
from zephon_jax.data.formats.base import (
    BYTE_ORDER_MARK,
    GZIP_MAGIC,
    ZSTD_MAGIC,
    OpenShard,
    ShardFormat,
    ShardIndex,
)
from zephon_jax.data.formats.jsonl import JSONL
from zephon_jax.data.formats.megatron import MEGATRON
from zephon_jax.data.formats.parquet import PARQUET

__all__ = ["FORMATS", "OpenShard", "ShardFormat", "ShardIndex", "format_of", "get_format"]

# Each format by the word that `format=` takes.
FORMATS: dict[str, ShardFormat] = {
    fmt.name: fmt for fmt in (ARRAY_RECORD, JSONL, MEGATRON, PARQUET)
}

# `data.array_record-00001-of-00010`: the shard number may follow the suffix.
_SHARD_NUMBER = re.compile(r"-\d+-of-\d+$")


def get_format(name: str) -> ShardFormat:
    """Returns the format called `name`.

    Raises:
      ValueError: If there is none, listing those there are.
    """
    if name not in FORMATS:
        raise ValueError(f"unknown format {short(name)}; known formats are {sorted(FORMATS)}.")
    return FORMATS[name]


def format_of(path: str, read_head: Callable[[], bytes] | None = None) -> ShardFormat | None:
    """Returns the format of a file by its suffix, else by its first bytes.

    Args:
      path: A file name or URL.
      read_head: Returns the first bytes of the file; None to go by the suffix only.

    Returns:
      The format, or None where neither tells.

    Example:
      >>> format_of("corpus/web-00.JSONL").name
      'jsonl'
      >>> format_of("README.md") is None
      True
    """
    if not is_local(path) and is_chain(
        path
    ):  # `zip://a.jsonl::b.zip`, or `simplecache::s3://bucket/a.jsonl`
        path = next((link for link in path.split("::") if "://" in link), path)
    name = _SHARD_NUMBER.sub("", path.lower())
    for fmt in FORMATS.values():
        if name.endswith(fmt.suffixes):
            return fmt
    head = _unpacked(read_head()) if read_head is not None else b""
    head = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    for fmt in FORMATS.values():
        if head and _starts_with(head, fmt.magics):
            return fmt
    return None


def _unpacked(head: bytes) -> bytes:
    """What a compressed file holds, as far as its first bytes tell."""
    with contextlib.suppress(Exception):  # Then they tell nothing.
        if head.startswith(GZIP_MAGIC):
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head)
        if head.startswith(ZSTD_MAGIC):
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(head)
    return head


def _starts_with(head: bytes, magics: Sequence[bytes]) -> bool:
    return any(head.startswith(magic) for magic in magics)
