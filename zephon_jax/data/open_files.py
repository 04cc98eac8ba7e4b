"""Shards that stay open between reads, a bounded number of them for a whole process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager

from zephon_jax.data.cache.stager import Shard, Stager, default_stager
from zephon_jax.data.cache.store import FULL_DISK
from zephon_jax.data.formats import OpenShard, ShardIndex
from zephon_jax.data.shard_index import check_unchanged, default_index_store

__all__ = ["OpenFiles"]


class _Handle:
    """An open shard and how many calls read it now."""

    def __init__(self, shard: OpenShard, path: str, identity: Hashable):
        self.shard = shard
        self.path = path
        # Tells the copy that was opened from one that was made again; None for no copy.
        self.identity = identity
        self.num_users = 0


class OpenFiles:
    """Opens shards and closes the least recently used ones. Safe to share between threads.

    Args:
      max_open_files: Files that stay open between calls.
    """

    def __init__(self, max_open_files: int):
        self.max_open_files = max_open_files
        self._handles: OrderedDict[Hashable, _Handle] = OrderedDict()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the files that nobody is reading."""
        with self._lock:
            for key, handle in list(self._handles.items()):
                if not handle.num_users:
                    self._handles.pop(key).shard.close()

    @contextmanager
    def opened(self, shard: Shard, stager: Stager | None = None) -> Iterator[OpenShard]:
        """Holds an open shard, and the local copy behind it if there is one.

        Args:
          shard: The shard.
          stager: What makes a local copy; None for the one that this process shares.
        """
        key = (shard.file, shard.fmt.name, shard.columns, shard.added)
        if shard.file.path.startswith("/"):
            check_unchanged(shard.file)
        with ExitStack() as held:
            path, identity = shard.file.path, None
            if shard.needs_copy:  # A copy is held while it is read, and may go then.
                path, identity = self._stage(held, shard, stager or default_stager())
            index = ShardIndex(0)
            if shard.fmt.keeps_offsets and key not in self._handles:  # May take a scan.
                index = default_index_store().index_of(shard, shard.location, stager)
            with self._lock:
                handle = self._handles.pop(key, None)
                if handle is not None and handle.identity != identity:
                    if not handle.num_users:  # Else its last user closes it.
                        handle.shard.close()
                    handle = None
                if handle is None:
                    self._close_some()
                    handle = _Handle(_open(shard, path, index), path, identity)
                self._handles[key] = handle  # Last is the most recently used.
                handle.num_users += 1
            try:
                yield handle.shard
            finally:
                with self._lock:
                    handle.num_users -= 1
                    if not handle.num_users and self._handles.get(key) is not handle:
                        handle.shard.close()

    def _stage(self, held: ExitStack, shard: Shard, stager: Stager) -> tuple[str, Hashable]:
        try:
            return held.enter_context(stager.staged(shard))
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            self.close()  # A copy that was dropped keeps its room for as long as it is open.
            return held.enter_context(stager.staged(shard))

    def _close_some(self) -> None:
        """Makes room for one more file, and closes files whose copy is gone from the cache."""
        num_files = sum(handle.shard.num_files for handle in self._handles.values())
        for key, handle in list(self._handles.items()):
            if handle.num_users:
                continue
            gone = handle.identity is not None and not os.path.exists(handle.path)
            if num_files >= self.max_open_files or gone:
                num_files -= handle.shard.num_files
                self._handles.pop(key).shard.close()


def _open(shard: Shard, path: str, index: ShardIndex) -> OpenShard:
    added = {"added": shard.added} if shard.added else {}
    opened = shard.fmt.open(path, index, shard.columns, **added)
    if shard.num_samples not in (None, opened.num_samples):
        opened.close()
        raise ValueError(
            f"the shard holds {opened.num_samples} samples, not the {shard.num_samples} it was "
            "declared with. Correct counts=, or build the dataset anew"
        )
    return opened
