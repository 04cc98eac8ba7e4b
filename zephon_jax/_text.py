"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "some", "table", "visible"]

_LISTED = 8  # items in a sentence


def counted(number: int, noun: str) -> str:
    """A number of things: "1 chunk", "1,200 chunks".

    Example:
      >>> counted(1, "chunk"), counted(0, "sample"), counted(1200, "lane")
      ('1 chunk', '0 samples', '1,200 lanes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(items: Sequence[object]) -> str:
    """The first of some things, and how many more there are.

    Example:
      >>> some(range(3)), some(range(12))
      ('0, 1, 2', '0, 1, 2, 3, 4, 5, 6, 7 and 4 more')
    """
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(map(str, items[:_LISTED])) + more


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
