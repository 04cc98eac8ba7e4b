"""Brings a remote file to this machine: by ranges, in parallel, again after errors.

What has arrived is written down beside the target, so a fetch that was killed goes on where it
stopped.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

from zephon_jax._process import DaemonThreads
from zephon_jax.data.files import File, file_system, stat_file
from zephon_jax.data.formats.base import FetchRange

__all__ = ["fetch_file", "range_reader", "read_blocks", "with_retries"]

T = TypeVar("T")

_NUM_ATTEMPTS = 4
_LASTING = (
    *(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(ValueError, NotImplementedError, ImportError, TypeError),
)
# Of our own: threads that fetch must not draw from the numbers that the program has seeded.
_pauses = random.Random()
_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
# No further attempt after this long: a file system that tries again by itself may take as long.
_MAX_SECONDS = 20.0
_PART_BYTES = 8 << 20


def with_retries(call: Callable[[], T]) -> T:
    """Calls again after an error that may pass, with growing pauses.

    A missing or forbidden file, bad data, a package that is not installed and a value of the wrong
    type do not pass. Everything else that a file system raises does: object stores report
    throttling and broken connections in many ways.

    Raises:
      ConnectionError: For what is not of a built-in kind and has not passed.
    """
    import tenacity  # It imports the networking frameworks that it can work with.

    growing = tenacity.wait_exponential(_FIRST_DELAY, _MAX_DELAY)
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        stop=tenacity.stop_after_attempt(_NUM_ATTEMPTS) | tenacity.stop_after_delay(_MAX_SECONDS),
        wait=lambda state: growing(state) + _pauses.uniform(0, _FIRST_DELAY),
        reraise=True,
    )
    try:
        return again(call)
    except (OSError, *_LASTING):
        raise
    except Exception as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, _LASTING)


def range_reader(url: str, storage_options: Mapping[str, object] | None) -> FetchRange:
    """Returns a function that reads bytes [start, stop) of a remote file."""
    fs, path = file_system(url, storage_options)

    def read(start: int, stop: int) -> bytes:
        data = with_retries(lambda: cast("bytes", fs.cat_file(path, start=start, end=stop)))
        # Servers that know no ranges send everything.
        return data[start:stop] if len(data) > stop - start else data

    return read


def fetch_file(
    file: File,
    storage_options: Mapping[str, object] | None,
    target: str,
    pool: DaemonThreads,
) -> None:
    """Writes a remote file into `target`, which has the full size already.

    Args:
      file: The remote file as it was listed.
      storage_options: Arguments for its fsspec file system.
      target: A local file of `file.size` bytes; `target + ".done"` remembers the parts in it.
      pool: Threads that fetch parts.

    Raises:
      FileNotFoundError: If the file is gone.
      PermissionError: If it must not be read.
      ValueError: If it is not the file that was listed.
      OSError: If the network failed too often, or the disk is full.
    """
    done_path = f"{target}.done"
    done = _read_done(done_path)
    parts = [part for part in range(-(-file.size // _PART_BYTES)) if part not in done]
    read = range_reader(file.path, storage_options)

    def fetch(part: int) -> None:
        start, data = part * _PART_BYTES, _read_part(file, read, part)
        with open(target, "r+b", buffering=0) as out:
            _write_all(out.fileno(), data, start)
            os.fsync(out.fileno())  # What is written down as done must outlast a power loss.
        with open(done_path, "ab", buffering=0) as out:
            out.write(part.to_bytes(4, "little"))  # Appends of 4 bytes are atomic.

    _run_all(pool, fetch, parts)
    _check_version(file, storage_options)


def read_blocks(file: File, storage_options: Mapping[str, object] | None) -> Iterator[bytes]:
    """Reads a remote file from its beginning to its end, a part in memory at a time.

    Raises:
      ValueError, OSError: As `fetch_file`.
    """
    read = range_reader(file.path, storage_options)
    for part in range(-(-file.size // _PART_BYTES)):
        yield _read_part(file, read, part)
    _check_version(file, storage_options)


def _read_part(file: File, read: FetchRange, part: int) -> bytes:
    start = part * _PART_BYTES
    stop = min(start + _PART_BYTES, file.size)
    data = read(start, stop)
    if len(data) != stop - start:
        raise ValueError(_changed(file, f"it now ends at byte {start + len(data)}"))
    return data


def _run_all(pool: DaemonThreads, call: Callable[[int], None], parts: list[int]) -> None:
    """Runs all calls and raises the first error, after none is running any more."""
    futures = [pool.submit(call, part) for part in parts]
    first: BaseException | None = None
    for future in futures:
        if first is not None and future.cancel():
            continue
        error = future.exception()
        first = first or error
    if first is not None:
        raise first


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _read_done(path: str) -> set[int]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return set()
    whole = len(data) // 4 * 4
    return {int.from_bytes(data[i : i + 4], "little") for i in range(0, whole, 4)}


def _check_version(file: File, storage_options: Mapping[str, object] | None) -> None:
    """Refuses parts that may come from two versions of an object."""
    now = with_retries(lambda: stat_file(file.path, storage_options))
    if now.size != file.size:
        raise ValueError(_changed(file, f"it now has {now.size} bytes"))
    if now.stamp != file.stamp:
        raise ValueError(_changed(file, f"its stamp is {now.stamp}, not {file.stamp}"))


def _changed(file: File, how: str) -> str:
    return (
        f"the remote file changed since it was indexed with {file.size} bytes: {how}. "
        "Build the dataset anew"
    )
