"""What a cache folder holds, counted in a file, so that not every copy takes a listing.

Listing the folder for each copy makes opening n shards take n * n steps. The count is changed
under the lock of the folder, before what it counts: a process that dies in between leaves it too
high, and too high a count only makes somebody list. Copies that are being made may grow, so they
stand in it by name and are looked at. A count that is missing, damaged, of another folder or of
an earlier start of the machine (whose last writes may be lost) is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["PART", "HeldCount"]

PART = ".part"  # Suffix of a copy that is being made.
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST_BYTES = 1 << 20
# A count serves for this many copies at least, and for as many as were listed. So files that
# somebody else puts in are noticed, and the listings of n copies have together a few times n files.
_LEAST_COPIES = 64


class _Count(NamedTuple):
    """An upper bound of what is held."""

    # Bytes of all copies and parts but those of `making`.
    settled: int
    # Names of the copies that are being made.
    making: tuple[str, ...]
    # Copies that may be begun before the folder is listed again.
    num_left: int


class HeldCount:
    """The count of a folder, in a file. Used under the lock of the cache alone.

    Args:
      path: The file.
      folder: What is counted.
    """

    def __init__(self, path: str, folder: str):
        self._path, self._folder = path, folder

    def fits(self, max_bytes: int, without: str | None = None) -> bool:
        """True if no more is held for sure, leaving out a copy that is being made."""
        count = self._read()
        if count is None or count.num_left <= 0:
            return False
        held = count.settled
        for name in count.making:
            if name != without:
                with contextlib.suppress(FileNotFoundError):
                    held += os.path.getsize(os.path.join(self._folder, name + PART))
        return held <= max_bytes

    def making(self) -> tuple[str, ...]:
        """Names of the copies that are being made, and of some that are not any more."""
        count = self._read()
        return () if count is None else count.making

    def begin(self, name: str) -> None:
        """Adds a copy that is going to be made."""
        count = self._read()
        if count is not None:
            making = (*_without(count.making, name), name)
            self._write(_Count(count.settled, making, count.num_left - 1))

    def settle(self, name: str, size: int) -> None:
        """Takes a copy for made, with the bytes it came out at."""
        count = self._read()
        if count is not None:
            making = _without(count.making, name)
            self._write(_Count(count.settled + size, making, count.num_left))

    def reset(self, sizes: Sequence[int], making: Sequence[str]) -> None:
        """Begins anew after a listing, with the bytes of all but `making`."""
        num_left = max(_LEAST_COPIES, len(sizes) + len(making))
        self._write(_Count(sum(sizes), tuple(making), num_left))

    def _read(self) -> _Count | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            with open(self._path, "rb") as file:
                checksum, data = file.read(_MOST_BYTES).split(b" ", 1)
            if int(checksum, 16) == zlib.crc32(data):
                stamp, settled, making, num_left = json.loads(data)
                if stamp == self._stamp():
                    return _Count(settled, tuple(making), num_left)
        return None

    def _write(self, count: _Count) -> None:
        with contextlib.suppress(OSError):
            data = json.dumps([self._stamp(), *count]).encode()
            text = b"%08x %s" % (zlib.crc32(data), data)
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644), "wb", 0) as file:
                # What is cut short, or has an old end, has another checksum.
                if file.write(text) == len(text):
                    file.truncate()
                    return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # Better none than one that is too low.

    def _stamp(self) -> list[str | int]:
        """Tells this start of this machine, and this folder from a copy of it.

        Raises:
          OSError: Where the system does not tell; then there is no count.
        """
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
        status = os.stat(self._folder)
        return [boot, status.st_dev, status.st_ino]


def _without(names: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(one for one in names if one != name)
