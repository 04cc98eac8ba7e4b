"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counted", "some"]

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
