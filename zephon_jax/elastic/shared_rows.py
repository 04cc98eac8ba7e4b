"""Rows of a step in memory that processes share, laid out as the batch that they become.

Workers write rows where they belong and the batch is a view: nothing is copied after that. Blocks
are used again when nobody looks at their batch any more, so pages are touched and mapped once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.elastic.columns import Columns

__all__ = ["Block", "Blocks", "Layout", "OpenBlocks"]

_ALIGN = 64  # bytes: JAX takes arrays that are aligned so without a copy
_IN_MEMORY = "/dev/shm"
Memory = ctypes.Array[ctypes.c_char]


class Layout(NamedTuple):
    """How the leaves of rows lie in a block, one behind the other."""

    tree: Any  # the structure of one element
    rows: tuple[tuple[np.dtype, tuple[int, ...]] | None, ...]  # of each leaf; None for objects

    @classmethod
    def of(cls, columns: Columns) -> Layout:
        """The layout of rows like these."""
        return cls(columns.tree, tuple(
            None if leaf.dtype.hasobject else (leaf.dtype, leaf.shape[1:])
            for leaf in columns.leaves
        ))  # fmt: skip

    def size(self, num_rows: int) -> int:
        """Bytes of a block."""
        return sum(_padded(kind, num_rows) for kind in self.rows)

    def views(self, memory: Any, num_rows: int) -> list[np.ndarray | None]:
        """Arrays (num_rows, ...) over a block; None for leaves that hold objects."""
        found: list[np.ndarray | None] = []
        offset = 0
        for kind in self.rows:
            if kind is None:
                found.append(None)
                continue
            dtype, shape = kind
            found.append(np.ndarray((num_rows, *shape), dtype, memory, offset))
            offset += _padded(kind, num_rows)
        return found


def _padded(kind: tuple[np.dtype, tuple[int, ...]] | None, num_rows: int) -> int:
    if kind is None:
        return 0
    size = num_rows * kind[0].itemsize * int(np.prod(kind[1], dtype=np.int64))
    return -(-size // _ALIGN) * _ALIGN


class Block:
    """A file in memory that this process has mapped, until nobody needs it."""

    def __init__(self, size: int, number: int | None):
        self.size, self.number = size, number
        fd, self.path = _allocated(size)
        try:
            self.memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._unlink = weakref.finalize(self, _unlink, self.path)

    def unlink(self) -> None:
        """Takes its name away: for when all workers have opened it."""
        self._unlink()


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _allocated(size: int) -> tuple[int, str]:
    """A file of a size, in memory where there is room: one that only seems to be there kills."""
    for folder in (_IN_MEMORY, tempfile.gettempdir()):
        if not os.path.isdir(folder):
            continue
        fd, path = tempfile.mkstemp(prefix="zephon_jax-", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, size)
            else:
                os.ftruncate(fd, size)
            return fd, path
        except OSError:
            os.close(fd)
            _unlink(path)
            if folder != _IN_MEMORY:
                raise
    raise FileNotFoundError("there is no folder for temporary files.")


class Blocks:
    """Blocks that are lent to steps and come back when no array looks into them any more.

    Args:
      most: Blocks to keep. Where more batches are held than that, each has a block of its own.
    """

    def __init__(self, most: int):
        self._most, self._made = most, 0
        self._free: deque[Block] = deque()

    def lend(self, size: int) -> tuple[Block, Memory]:
        """A block of at least this size, and its memory: it is lent as long as that is alive."""
        number = None
        if self._free:
            block = self._free.popleft()
            if block.size >= size:
                return block, self._lent(block)
            number = block.number
        elif self._made < self._most:
            number = self._made
            self._made += 1
        block = Block(size, number)
        return block, self._lent(block)

    def _lent(self, block: Block) -> Memory:
        # Arrays keep this object alive; of a memoryview they would keep what is behind it alone.
        memory = (ctypes.c_char * block.size).from_buffer(block.memory)
        if block.number is not None:
            weakref.finalize(memory, self._free.append, block).atexit = False
        return memory


class OpenBlocks:
    """Blocks as a worker has opened them: those that come again stay open."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, mmap.mmap]] = {}

    def open(self, path: str, size: int, number: int | None) -> mmap.mmap:
        """The memory of a block."""
        if number is not None and number in self._kept and self._kept[number][0] == path:
            return self._kept[number][1]
        fd = os.open(path, os.O_RDWR)
        try:
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        if number is not None:
            self._kept[number] = path, memory
        return memory
