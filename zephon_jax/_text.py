"""Numbers, lists and values in sentences and tables."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence
from itertools import islice

__all__ = ["counted", "listed", "short", "some", "table", "visible"]

_LISTED = 8  # items in a sentence
_LONGEST = 200  # characters of a value in a message
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = _LONGEST


def counted(number: int, noun: str) -> str:
    """A number of things: "1 chunk", "1,200 chunks".

    Example:
      >>> counted(1, "chunk"), counted(0, "sample"), counted(1200, "lane")
      ('1 chunk', '0 samples', '1,200 lanes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(items: Collection[object]) -> str:
    """The first eight items, and how many more there are.

    Example:
      >>> some(range(3)), some(range(12))
      ('0, 1, 2', '0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(map(str, islice(items, _LISTED))) + more


def listed(noun: str, items: Collection[object]) -> str:
    """Things by name or number: "lane 3", "lanes 0, 2".

    Example:
      >>> listed("lane", [3]), listed("lane", [0, 2])
      ('lane 3', 'lanes 0, 2')
    """
    return f"{noun}{'' if len(items) == 1 else 's'} {some(items)}"


def short(value: object) -> str:
    """A value for a message: its `repr` in one line of at most 200 characters.

    Example:
      >>> short({"web": 3}), short(list(range(20_000)))
      ("{'web': 3}", '[0, 1, 2, 3, 4, 5, ...]')
    """
    try:
        text = " ".join(_REPR.repr(value).split())
    except Exception:  # an object that is half made, or an integer of too many digits to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def visible(name: str) -> str:
    r"""A name as it goes into a line: what would break the line, or not be seen, is escaped.

    Example:
      >>> print(visible("web"), visible("a\nb"))
      web a\nb
    """
    return name if name.isprintable() else repr(name)[1:-1]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns, the first aligned left and the others right.

    Example:
      >>> print(table([("name", "samples"), ("web", "1,200")]))
      name  samples
      web     1,200
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    )
