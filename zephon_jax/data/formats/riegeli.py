"""Bytes of the records in an ArrayRecord file, found without decoding them.

Such a file is a sequence of Riegeli chunks. The header of each says how many bytes its records
have once they are unpacked, and the last 64 KiB where the records end and the footer begins.

References:
  The Riegeli/records file format, https://github.com/google/riegeli/blob/master/doc
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["data_bytes"]

_BLOCK = 1 << 16
_BLOCK_HEADER = struct.Struct("<QQQ")  # hash, bytes back to the chunk's begin, bytes to its end
_CHUNK_HEADER = struct.Struct("<QQQQQ")  # hash, stored, hash, type and records, unpacked
_RECORDS = b"rt"  # chunk types that hold records
# What ends an ArrayRecord file: field 2 of its postscript, behind the place of the footer.
_MAGIC = bytes.fromhex("10dec0ebfe84cec3c971")
_NUM_WINDOWS = 16
_WINDOW = 4 * _BLOCK


def data_bytes(path: str) -> int:
    """Returns the bytes of all records of a file.

    Exact below 4 MiB; beyond, the chunks of 16 windows tell the ratio for the whole.

    Raises:
      ValueError: If it is not an ArrayRecord file.
    """
    with open(path, "rb") as file:
        end = _footer_offset(file)
        if end <= _NUM_WINDOWS * _WINDOW:
            return sum(unpacked for _, unpacked in _chunks(file, 0, end, end))
        stored = records = 0
        num_blocks = end // _BLOCK
        for window in range(_NUM_WINDOWS):
            block = window * num_blocks // _NUM_WINDOWS * _BLOCK
            begin = _first_chunk(file, block)
            for size, unpacked in _chunks(file, begin, block + _WINDOW, end):
                stored += size
                records += unpacked
        return records * end // max(1, stored)


def _footer_offset(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _BLOCK))
    tail = file.read(_BLOCK)
    stop = tail.find(_MAGIC)
    start = tail.rfind(b"\x08", 0, max(0, stop - 1))  # the field's tag, before a varint
    if stop < 0 or start < 0:
        raise ValueError("not a complete ArrayRecord file: no valid footer")
    offset = sum((byte & 0x7F) << (7 * n) for n, byte in enumerate(tail[start + 1 : stop]))
    if offset > size:
        raise ValueError("not a complete ArrayRecord file: its footer lies past its end")
    return offset


def _first_chunk(file: BinaryIO, block: int) -> int:
    """Where the first chunk begins that begins in a block or behind it."""
    if block == 0:
        return 0
    file.seek(block)
    _, back, forth = _BLOCK_HEADER.unpack(file.read(_BLOCK_HEADER.size))
    return block + forth if back else block


def _chunks(file: BinaryIO, begin: int, stop: int, end: int) -> Iterator[tuple[int, int]]:
    """Bytes that each chunk takes in the file, and of its records, for those that begin in a range.

    At least one, and none at or past `end`.
    """
    position, first = begin, True
    while position < end and (first or position < stop):
        data, after = _read(file, position, _CHUNK_HEADER.size)
        if len(data) < _CHUNK_HEADER.size:
            raise ValueError(f"the file ends at byte {position + len(data)}, inside a chunk")
        _, size, _, kind, unpacked = _CHUNK_HEADER.unpack(data)
        after = _skip(after, size)
        # A chunk takes a byte for each of its records, at least.
        yield after - position, unpacked if kind & 0xFF in _RECORDS else 0
        position, first = after, False


def _skip(position: int, size: int) -> int:
    """Goes over bytes of a chunk and the block headers among them."""
    if not size:
        return position
    if position % _BLOCK == 0:
        position += _BLOCK_HEADER.size
    left = _BLOCK - position % _BLOCK
    if size <= left:
        return position + size
    whole, rest = divmod(size - left - 1, _BLOCK - _BLOCK_HEADER.size)
    return position + left + whole * _BLOCK + _BLOCK_HEADER.size + rest + 1


def _read(file: BinaryIO, position: int, size: int) -> tuple[bytes, int]:
    """Reads bytes of a chunk, without the block headers among them."""
    data = b""
    while size:
        if position % _BLOCK == 0:
            position += _BLOCK_HEADER.size
        file.seek(position)
        piece = file.read(min(size, _BLOCK - position % _BLOCK))
        if not piece:
            break
        data, position, size = data + piece, position + len(piece), size - len(piece)
    return data, position
