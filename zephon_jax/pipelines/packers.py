"""Where documents go in rows of one length: first fit, best fit, and joined end to end.

A packer is a function of the sizes of documents that wait, in their order. It fills a window of a
few rows from the first documents and says how far it came, so that the next window starts there.
What it decides rests on these sizes alone: the same documents make the same rows at any time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["PACKERS", "Packer", "Piece", "Window"]


class Piece(NamedTuple):
    """A document, or a part of it, in a row; a row's pieces follow each other as they came."""

    row: int
    document: int  # among the documents that waited
    start: int  # first token of the document that is in the piece
    size: int  # tokens


class Window(NamedTuple):
    """Rows that are packed together."""

    pieces: list[Piece]  # in the order of the documents
    num_rows: int
    num_documents: int  # documents from the first on that are used up
    num_tokens: int  # tokens that are used of the document after them


# (sizes, length, num_rows, max_segments) -> Window
Packer = Callable[[Sequence[int], int, int, int], Window]


def concat_then_split(
    sizes: Sequence[int], length: int, num_rows: int, max_segments: int
) -> Window:
    """Lays documents end to end and cuts them where a row is full, or has all its segments.

    Example:
      >>> window = concat_then_split([3, 4], 5, 1, 9)
      >>> [(piece.document, piece.start, piece.size) for piece in window.pieces]
      [(0, 0, 3), (1, 0, 2)]
      >>> window.num_documents, window.num_tokens
      (1, 2)
    """
    pieces: list[Piece] = []
    row = filled = segments = 0
    for document, size in enumerate(sizes):
        start = 0
        while start < size:
            taken = min(size - start, length - filled)
            pieces.append(Piece(row, document, start, taken))
            start, filled, segments = start + taken, filled + taken, segments + 1
            if filled == length or segments == max_segments:
                row, filled, segments = row + 1, 0, 0
                if row == num_rows:
                    ended = start == size
                    return Window(pieces, row, document + ended, 0 if ended else start)
    return Window(pieces, row + (filled > 0), len(sizes), 0)


def _cut(sizes: Sequence[int], length: int) -> Iterator[tuple[int, int, int]]:
    """Documents as (document, start, size): whole, or cut into rows if they are longer than one."""
    for document, size in enumerate(sizes):
        for start in range(0, size, length):
            yield document, start, min(length, size - start)


def first_fit(sizes: Sequence[int], length: int, num_rows: int, max_segments: int) -> Window:
    """Puts each document into the first row with room; the first without any ends the window.

    Example:
      >>> [piece.row for piece in first_fit([3, 4, 2, 4], 5, 2, 9).pieces]
      [0, 1, 0]
    """
    room, segments = [length] * num_rows, [0] * num_rows
    pieces: list[Piece] = []
    end, first = (len(sizes), 0), 0  # rows before `first` take no more
    for document, start, size in _cut(sizes, length):
        for row in range(first, num_rows):
            if size <= room[row] and segments[row] < max_segments:
                break
        else:
            end = document, start
            break
        pieces.append(Piece(row, document, start, size))
        room[row] -= size
        segments[row] += 1
        while first < num_rows and not (room[first] and segments[first] < max_segments):
            first += 1
    return Window(pieces, sum(map(bool, segments)), *end)


def best_fit(sizes: Sequence[int], length: int, num_rows: int, max_segments: int) -> Window:
    """Puts the longest documents first, each into the row in which it leaves the least room.

    The window takes as many documents as fill its rows, and where they do not fit, leaves out as
    many tokens at their end as found no room. Rows come in the order of their first documents.

    References:
      D. S. Johnson, "Near-optimal bin packing algorithms", 1973 (best fit decreasing).

    Example:
      >>> [piece.row for piece in best_fit([3, 4, 2, 1], 5, 2, 9).pieces]
      [0, 1, 0, 1]
    """
    parts: list[tuple[int, int, int]] = []
    end, room = (len(sizes), 0), length * num_rows
    for part in _cut(sizes, length):
        if part[2] > room or len(parts) == num_rows * max_segments:
            end = part[:2]
            break
        parts.append(part)
        room -= part[2]
    while True:
        row_of = _decreasing([size for _, _, size in parts], length, max_segments)
        surplus = sum(part[2] for part, row in zip(parts, row_of, strict=True) if row >= num_rows)
        if not surplus:
            break
        while surplus > 0:
            *end, size = parts.pop()
            surplus -= size
    numbers: dict[int, int] = {}
    pieces = [
        Piece(numbers.setdefault(row, len(numbers)), *part)
        for part, row in zip(parts, row_of, strict=True)
    ]
    return Window(pieces, len(numbers), *end)


def _decreasing(sizes: Sequence[int], length: int, max_segments: int) -> list[int]:
    """The row of each piece, by best fit decreasing in as many rows as it takes."""
    row_of = [0] * len(sizes)
    segments: list[int] = []
    open_rows: list[tuple[int, int]] = []  # (room, row), sorted
    for n in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[n]
        at = bisect_left(open_rows, (size, -1))
        if at < len(open_rows):
            room, row = open_rows.pop(at)
        else:
            room, row = length, len(segments)
            segments.append(0)
        row_of[n] = row
        segments[row] += 1
        if room > size and segments[row] < max_segments:
            insort(open_rows, (room - size, row))
    return row_of


PACKERS: dict[str, Packer] = {
    "first_fit": first_fit,
    "best_fit": best_fit,
    "concat_then_split": concat_then_split,
}
