"""What a shard format has to offer, and the records it hands over.

A format is a module-level object with three jobs: count the samples of a file without reading
their payloads, open a file, and read many records of it in one call. It sees local files only;
remote shards are brought to a local cache first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["OpenShard", "ShardFormat", "ShardIndex"]


class ShardIndex(NamedTuple):
    """What one pass over a shard's structure found out."""

    # Samples in the shard.
    num_samples: int
    # Byte offsets, int64 (num_samples + 1,), for formats that carry none of their own.
    offsets: np.ndarray | None = None


class OpenShard(Protocol):
    """A shard that is ready to be read. Calls may come from several threads."""

    @property
    def num_samples(self) -> int:
        """Samples in the open file, as far as the file itself says."""
        ...

    def read(self, indices: np.ndarray) -> Sequence[Any]:
        """Returns the records at `indices` (int64, sorted, repeats allowed) in that order."""
        ...

    def close(self) -> None:
        """Gives the file handle back. The shard is not read again."""
        ...


class ShardFormat(Protocol):
    """One file format. Implementations hold no state, so they pickle by name."""

    @property
    def name(self) -> str:
        """The word that `format=` takes."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """File name endings, lower case."""
        ...

    @property
    def magics(self) -> tuple[bytes, ...]:
        """First bytes of a file that tell the format, where it has any."""
        ...

    def scan(self, path: str) -> ShardIndex:
        """Counts the samples of a local file.

        Raises:
          ValueError: If the file is cut short or is not of this format.
        """
        ...

    def open(self, path: str, index: ShardIndex, columns: tuple[str, ...] | None) -> OpenShard:
        """Opens a local file whose index is known."""
        ...
