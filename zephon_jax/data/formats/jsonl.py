"""JSON Lines shards: one JSON value a line, found by the byte offsets of the lines."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.files import File, is_local
from zephon_jax.data.formats.base import (
    BYTE_ORDER_MARK,
    GZIP_MAGIC,
    ZSTD_MAGIC,
    AddedColumns,
    OpenShard,
    ShardFormat,
    ShardIndex,
)

__all__ = ["JSONL", "JsonlFormat", "line_offsets"]

_SCAN_BYTES = 1 << 20
_HEAD_BYTES = 4  # that tell a byte order mark or a compressed file
# Two wanted lines less than this far apart are fetched by one read.
_GAP_BYTES = 1 << 12
# A frame that carries no data; tools that compress in parallel put one first.
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
# One read never asks for more than this, which bounds the memory besides the records.
_RUN_BYTES = 1 << 23
# Lines that are read and parsed together: more would take new memory, fewer more calls.
_BATCH = 256
# Values of these types are in a record as they were in the line.
_EXACT_TYPES = frozenset({str, int, bool, type(None)})
# Makes one of all digits, and blanks of all else.
_DIGITS = bytes(ord("0" if chr(byte).isdecimal() else " ") for byte in range(256))
_WHITE = b" \t\r\n"
_IS_WHITE = np.isin(np.arange(256), list(_WHITE))
_LONG_NUMBER = b"0" * 19  # All of fewer digits fit 64 bits.


def _are_exact(records: Sequence[Any]) -> bool:
    """True if no value of some records can be an integer that became a float."""
    try:
        values = itertools.chain.from_iterable(map(dict.values, records))
        return _EXACT_TYPES.issuperset(map(type, values))
    except TypeError:  # Some are no objects.
        return False


def _has_long_number(line: bytes) -> bool:
    # Any 19 bytes hold two that are multiples of 9: most lines are told by few of their bytes.
    return b"00" in line[::9].translate(_DIGITS) and _LONG_NUMBER in line.translate(_DIGITS)


def line_offsets(path: str) -> np.ndarray:
    """Returns where each line that is not blank starts, and where the file ends.

    Args:
      path: A local, uncompressed file.

    Returns:
      int64 (number of lines + 1,). Lines of white space are blank. They belong to the line before
      them, and a byte order mark to no line.
    """
    with open(path, "rb", buffering=0) as file:
        return _offsets_in(_with_head(iter(lambda: file.read(_SCAN_BYTES), b"")))


def _offsets_in(blocks: Iterable[bytes]) -> np.ndarray:
    """The line offsets of a file that comes in blocks, none of which is looked at again."""
    starts, size = [], 0
    previous_end, begun = 0, False  # Where a line begins, and whether it is known not to be blank.
    for block in blocks:
        if not size and block.startswith(BYTE_ORDER_MARK):
            previous_end = len(BYTE_ORDER_MARK)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + 1
        if len(ends):
            begins = np.concatenate([[previous_end - size], ends[:-1]])
            starts.append(begins[_are_filled(begins, ends, block, begun)] + size)
            previous_end, begun = int(ends[-1]) + size, False
        begun = begun or bool(block[max(0, previous_end - size) :].strip(_WHITE))
        size += len(block)
    tail = [previous_end] if begun else []
    return np.concatenate([*starts, tail, [size]]).astype(np.int64)


def _with_head(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, of which the first block has enough to tell what the file is."""
    rest = iter(blocks)
    head = b""
    while len(head) < _HEAD_BYTES and (block := next(rest, b"")):
        head += block
    return itertools.chain([head] if head else [], rest)


def _are_filled(begins: np.ndarray, ends: np.ndarray, block: bytes, begun: bool) -> np.ndarray:
    """True for lines of a block that hold more than white space.

    Args:
      begins: int64 (n,), where they begin; the first less than 0 if it begins in an earlier block.
      ends: int64 (n,), behind their line breaks.
      block: The block.
      begun: Whether the first is known not to be blank.
    """
    codes, length = np.frombuffer(block, np.uint8), ends - begins
    # The first line may begin in an earlier block.
    white = _IS_WHITE[codes[np.maximum(begins, 0)]] | (begins < 0)
    filled = length > 1
    filled[white & (length == 2) & (begins >= 0)] = False  # CR LF
    for line in np.flatnonzero(white & filled).tolist():
        filled[line] = bool(block[max(0, begins[line]) : ends[line]].strip(_WHITE))
    filled[0] |= begun
    return filled


def _runs(first: np.ndarray, last: np.ndarray) -> list[tuple[int, int]]:
    """Cuts sorted byte ranges into groups that one read each should fetch."""
    cuts = np.flatnonzero(first[1:] - last[:-1] > _GAP_BYTES) + 1
    bounds = [0, *cuts.tolist(), len(first)]
    groups = []
    span = last[np.array(bounds[1:]) - 1] - first[bounds[:-1]]
    if span.max() <= _RUN_BYTES:
        return list(itertools.pairwise(bounds))
    for begin, end in itertools.pairwise(bounds):
        while begin < end:
            limit = int(first[begin]) + _RUN_BYTES
            stop = begin + int(np.searchsorted(last[begin:end], limit, side="right"))
            stop = max(stop, begin + 1)
            groups.append((begin, stop))
            begin = stop
    return groups


class JsonlShard(OpenShard):
    """An open JSON Lines file."""

    def __init__(self, path: str, offsets: np.ndarray):
        import orjson

        self._path, self._fd = path, -1
        self._fd = os.open(path, os.O_RDONLY)
        self._offsets = offsets
        self._loads = orjson.loads
        self.num_samples = len(offsets) - 1

    def read(self, indices: np.ndarray) -> Sequence[object]:
        """Returns the parsed lines, reading neighbors with one system call.

        The parser makes floats of integers beyond 64 bits, without a word. Lines that may have
        such ones are parsed again by the one of the standard library, which keeps them.

        Raises:
          ValueError: If one is not JSON, which has no NaN and no infinities, has a number that is
            too large for a float or half a surrogate pair, or is nested too deeply.
        """
        records: list[Any] = []
        for begin in range(0, len(indices), _BATCH):
            records += self._read_batch(indices[begin : begin + _BATCH])
        return records

    def _read_batch(self, indices: np.ndarray) -> list[object]:
        lines, loads = self._lines(indices), self._loads
        records: list[Any] = []
        try:
            for line in lines:
                records.append(loads(line))
        except ValueError as error:
            place = len(records)
            raise self._error(indices[place], lines[place], error) from error
        if not _are_exact(records):
            for place, line in enumerate(map(bytes, lines)):
                if _has_long_number(line):
                    try:
                        records[place] = json.loads(line)
                    except RecursionError as error:
                        raise self._error(indices[place], line, error) from error
        return records

    def _error(self, index: int, line: bytes | memoryview, error: Exception) -> ValueError:
        return ValueError(
            f"record {index} (line {self._line_number(index)}) is not valid JSON "
            f"({error}): it starts with {bytes(line[:60])!r}"
        )

    def _lines(self, indices: np.ndarray) -> list[bytes | memoryview]:
        first, last = self._offsets[indices], self._offsets[indices + 1]
        starts, stops = first.tolist(), last.tolist()
        lines: list[bytes | memoryview] = []
        for begin, end in _runs(first, last):
            base = starts[begin]
            data = self._fetch(base, stops[end - 1] - base)
            if end - begin == 1:
                lines.append(data)
                continue
            view = memoryview(data)
            for start, stop in zip(starts[begin:end], stops[begin:end], strict=True):
                lines.append(view[start - base : stop - base])
        return lines

    def _fetch(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:  # No call of the system returns 2 GiB.
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                raise ValueError(f"the file ends at byte {offset + len(data)}, inside known lines")
            data += more
        return data

    def _line_number(self, index: int) -> int:
        """Counts line breaks, because blank lines are not records."""
        lines, left = 1, int(self._offsets[index])
        with open(self._path, "rb") as file:
            while left and (block := file.read(min(left, _SCAN_BYTES))):
                lines += block.count(b"\n")
                left -= len(block)
        return lines

    def num_bytes(self, indices: np.ndarray) -> np.ndarray:
        """Bytes of each line."""
        return self._offsets[indices + 1] - self._offsets[indices]

    def measure_bytes(
        self, indices: np.ndarray, records: Sequence[object], field: str | None
    ) -> tuple[np.ndarray, int]:
        """Bytes of the lines, and of all of them."""
        del records, field
        return self.num_bytes(indices), int(self._offsets[-1] - self._offsets[0])

    def close(self) -> None:
        """Closes the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:  # When the interpreter ends, `os` may be gone by now.
            close(self._fd)


def _gunzip(source: str, target: str) -> None:
    import gzip

    with open(source, "rb") as packed, gzip.open(packed) as plain, open(target, "r+b") as out:
        try:
            shutil.copyfileobj(plain, out, _RUN_BYTES)
            out.truncate()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"the gzip data is cut short or corrupted ({error})") from error


def _unzstd(source: str, target: str) -> None:
    import zstandard

    # Frame by frame, because the library's stream reader takes a cut file for a whole one. Some
    # corpora are packed with the largest window that there is.
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame, fresh = unpacker.decompressobj(), True
    with open(source, "rb") as packed, open(target, "r+b") as out:
        try:
            while block := packed.read(_RUN_BYTES >> 3):
                while block:
                    out.write(frame.decompress(block))
                    block, fresh = frame.unused_data if frame.eof else b"", frame.eof
                    if frame.eof:
                        frame = unpacker.decompressobj()
            out.truncate()
        except zstandard.ZstdError as error:
            raise ValueError(f"the zstd data is corrupted ({error})") from error
    if not fresh:
        raise ValueError("the zstd data is cut short")


def _unpack(source: str, target: str) -> None:
    """Unpacks by what the file is, whatever it is called; a plain one is copied."""
    with open(source, "rb") as file:
        head = file.read(4)
    if head.startswith(GZIP_MAGIC):
        _gunzip(source, target)
    elif head.startswith(ZSTD_MAGIC) or _ZSTD_SKIPPABLE.match(head):
        _unzstd(source, target)
    else:
        with open(source, "rb") as plain, open(target, "r+b") as out:
            shutil.copyfileobj(plain, out, _RUN_BYTES)
            out.truncate()


@functools.lru_cache(1 << 16)
def _is_packed(file: File) -> bool:
    with open(file.path, "rb") as opened:
        return opened.read(4).startswith((GZIP_MAGIC, ZSTD_MAGIC))


class JsonlFormat(ShardFormat):
    """JSON Lines files, plain or compressed with gzip or zstd.

    A compressed file cannot be entered in its middle, so it is unpacked into the local cache. Its
    first bytes tell how it is compressed; a remote file says by its name that it is.
    """

    name = "jsonl"
    suffixes = tuple(
        kind + packing for kind in (".jsonl", ".ndjson") for packing in ("", ".gz", ".zst")
    )
    magics = (b"{",)
    keeps_offsets = True

    def scan(self, path: str) -> ShardIndex:
        """Finds the lines. The file is read once, and nothing is parsed."""
        with open(path, "rb", buffering=0) as file:
            return self.scan_blocks(iter(lambda: file.read(_SCAN_BYTES), b""))

    def scan_blocks(self, blocks: Iterable[bytes]) -> ShardIndex:
        """Finds the lines of a file that comes in blocks."""
        whole = _with_head(blocks)
        head = next(whole, b"")
        if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            raise ValueError(
                "the file is compressed, but its name does not say so. End the name in .gz or .zst"
            )
        offsets = _offsets_in(itertools.chain([head] if head else [], whole))
        # Lines in another order have other lengths at most places.
        digest = zlib.crc32(np.ascontiguousarray(offsets, "<i8").data)
        return ShardIndex(len(offsets) - 1, offsets, {"digest": digest})

    def unpacker(self, file: File) -> Callable[[str, str], None] | None:
        """Tells by the suffix, else by the first bytes of a local file, if it is compressed."""
        if file.path.lower().endswith((".gz", ".zst")):
            return _unpack
        with contextlib.suppress(OSError):  # Whoever opens the file gets the error.
            return _unpack if is_local(file.path) and _is_packed(file) else None
        return None

    def open(
        self,
        path: str,
        index: ShardIndex,
        columns: tuple[str, ...] | None,
        added: AddedColumns = (),
    ) -> OpenShard:
        """Opens a file, finding its lines again where the index does not hold them."""
        del columns, added
        offsets = self.scan(path).offsets if index.offsets is None else index.offsets
        assert offsets is not None
        return JsonlShard(path, offsets)


JSONL = JsonlFormat()
