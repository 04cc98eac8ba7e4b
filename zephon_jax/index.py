"""Counts and line offsets of shards, found once.

Construction of a dataset needs the number of samples of every shard; reading JSON Lines needs
where each line begins. Both come from one scan of the shard's structure, run in parallel.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from zephon_jax.formats import ShardFormat, ShardIndex
from zephon_jax.formats.files import File, local_stamp

__all__ = ["check_unchanged", "count_samples", "index_of"]

_NUM_THREADS = min(16, 4 * (os.cpu_count() or 1))
_memo: dict[File, ShardIndex] = {}
_memo_lock = threading.Lock()


def index_of(file: File, fmt: ShardFormat) -> ShardIndex:
    """Returns the index of a local shard, scanning it if this process has not yet done so."""
    with _memo_lock:
        found = _memo.get(file)
    if found is None:
        found = fmt.scan(file.path)
        with _memo_lock:
            _memo[file] = found
    return found


def count_samples(
    files: Sequence[File], fmt: ShardFormat, describe: Callable[[int], str]
) -> np.ndarray:
    """Counts the samples of each file, in parallel.

    Args:
      files: Shards in their final order.
      fmt: Their format.
      describe: Names a shard in an error, given its number.

    Returns:
      int64 (len(files),).

    Raises:
      ValueError: For a shard that is cut short or of another format, naming it.
      OSError: For a shard that cannot be opened, naming it.
    """

    def scan(shard_id: int) -> int:
        try:
            return index_of(files[shard_id], fmt).num_samples
        except OSError as error:
            raise type(error)(f"{describe(shard_id)}: {error}") from error
        except Exception as error:
            raise ValueError(f"{describe(shard_id)}: {error}.") from error

    with ThreadPoolExecutor(min(_NUM_THREADS, len(files))) as pool:
        counts = list(pool.map(scan, range(len(files))))
    return np.asarray(counts, dtype=np.int64)


def check_unchanged(file: File) -> None:
    """Refuses a local shard that is not the file that was listed.

    Raises:
      FileNotFoundError: If it is gone.
      ValueError: If its size or the time of its last change differs.
    """
    try:
        size, stamp = local_stamp(file.path)
    except FileNotFoundError:
        raise FileNotFoundError(
            "the file is gone. Put it back, or build the dataset anew"
        ) from None
    if size != file.size:
        raise ValueError(
            f"the file changed since it was indexed: it had {file.size} bytes and has {size}. "
            "Build the dataset anew"
        )
    if stamp != file.stamp:
        raise ValueError(
            f"the file was written to since it was indexed (still {size} bytes). "
            "Build the dataset anew"
        )
