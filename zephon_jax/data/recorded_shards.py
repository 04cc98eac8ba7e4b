"""Shards of a place that grows: those that were recorded, in the order in which they were.

A listing says what is there now. A run needs what was there when it was asked for, on every host
and after every restart, whatever has come since: each shard is kept with its path, its samples and
its bytes, and is refused where it is no longer the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zephon_jax._warn import warn
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.file_shards import file_shards
from zephon_jax.data.files import File, PathLike, file_system, local_path, stat_file
from zephon_jax.data.find_shards import NoShardsError, find_shards, location_of
from zephon_jax.data.formats import ShardFormat

__all__ = ["GrowingPlace", "RecordedShard"]

_UP_TO_GLOB = re.compile(r"[^*?\[]*/")


class RecordedShard(NamedTuple):
    """A shard as it was when it was taken."""

    path: str  # below the place's folder, so that the data may be moved
    num_samples: int
    num_bytes: int


class GrowingPlace:
    """Where the shards of one dataset appear.

    Args:
      name: The dataset's name.
      path: A folder, a glob or a URL of either.
      settings: Further arguments of `Dataset.from_path`, but for those that fix the shards.
    """

    def __init__(self, name: str, path: PathLike, settings: Mapping[str, Any]):
        self.name, self.path = name, path
        own = dict(settings)
        self._options = own.pop("storage_options", None)
        self._format, self._columns = own.pop("format", None), own.pop("columns", None)
        self._policy = own
        text = local_path(path) or os.fspath(path)
        found = _UP_TO_GLOB.match(text) if re.search(r"[*?\[]", text) else None
        self._folder = (found[0] if found else text).rstrip("/") + "/"
        if local_path(path) is None:  # as listings write it
            fs, inner = file_system(self._folder, self._options)
            self._folder = fs.unstrip_protocol(inner).rstrip("/") + "/"

    def _listed(self) -> tuple[dict[str, File], ShardFormat | None]:
        """What is there now, by path below the folder, and its format; None where it is empty."""
        try:
            files, fmt = find_shards(self.name, self.path, self._format, self._options)
        except (FileNotFoundError, NoShardsError):
            return {}, None
        return {file.path.removeprefix(self._folder): file for file in files}, fmt

    def dataset(self, recorded: Sequence[RecordedShard]) -> Dataset:
        """The dataset of the shards that were recorded, and of no others.

        Raises:
          ValueError: If one is gone or is not what it was, naming it.
        """
        listed, fmt = self._listed()
        for number, shard in enumerate(recorded):
            where = f"dataset {self.name!r}, shard {number} ({self._folder}{shard.path})"
            file = listed.get(shard.path)
            if file is None:
                raise ValueError(
                    f"{where} was recorded, and is gone. A run goes on with the shards that it has"
                    " read: put it back."
                )
            if file.size != shard.num_bytes:
                raise ValueError(
                    f"{where} was recorded with {shard.num_bytes} bytes and has {file.size}: it was"
                    " changed. Put the old one back; new data goes into new shards."
                )
        assert fmt is not None  # for there are shards
        files = [listed[shard.path] for shard in recorded]
        counts, store, _ = file_shards(
            self.name, files, fmt, location_of(self.path), self._options, self._columns
        )
        for number, (shard, count) in enumerate(zip(recorded, counts.tolist(), strict=True)):
            if count != shard.num_samples:
                raise ValueError(
                    f"dataset {self.name!r}, shard {number} ({self._folder}{shard.path}) was"
                    f" recorded with {shard.num_samples} samples and has {count}: it was changed."
                )
        return Dataset(self.name, counts, store, **self._policy)

    def new_shards(
        self, recorded: Sequence[RecordedShard], settle_seconds: float
    ) -> list[RecordedShard]:
        """What is there and was not recorded yet, in natural order of the paths.

        A shard that changes while it is counted, or cannot be read to its end, is still being
        written: it is left for the next time, with a warning.
        """
        listed, fmt = self._listed()
        known = {shard.path for shard in recorded}
        candidates = {path: file for path, file in listed.items() if path not in known}
        if not candidates or fmt is None:
            return []
        time.sleep(settle_seconds)
        counts = self._counts_of(recorded, listed, candidates, fmt)
        found: list[RecordedShard] = []
        for path, file in candidates.items():
            count = counts.get(path)
            now = stat_file(file.path, self._options)
            if count is None:
                continue
            if (now.size, now.stamp) != (file.size, file.stamp):
                warn(f"{file.path} is left for the next time, for it is still being written.")
                continue
            found.append(RecordedShard(path, count, file.size))
        return found

    def _counts_of(
        self,
        recorded: Sequence[RecordedShard],
        listed: Mapping[str, File],
        candidates: Mapping[str, File],
        fmt: ShardFormat,
    ) -> dict[str, int]:
        """Samples of shards that can be read to their end, by path; of others with a warning."""
        before = [listed[shard.path] for shard in recorded if shard.path in listed]
        with contextlib.suppress(ValueError, OSError):  # most often all are whole
            counts = self._count([*before, *candidates.values()], fmt, location_of(self.path))
            return dict(zip(candidates, counts[len(before) :], strict=True))
        found: dict[str, int] = {}
        for path, file in candidates.items():
            try:
                (found[path],) = self._count([file], fmt, file.path)
            except (ValueError, OSError) as error:
                warn(f"{file.path} is left for the next time, for it cannot be read yet: {error}")
        return found

    def _count(self, files: Sequence[File], fmt: ShardFormat, location: str) -> list[int]:
        counts, _, _ = file_shards(self.name, files, fmt, location, self._options, self._columns)
        return counts.tolist()
