"""Files that have their names only when they are whole."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["atomic_file"]


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of another when it is whole and on the disk.

    Where writing fails, nothing is left of it.

    Args:
      path: A local path, whose folder exists.
    """
    beside = f"{path}.{uuid.uuid4().hex}.partial"  # somebody else may be writing the same file
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
