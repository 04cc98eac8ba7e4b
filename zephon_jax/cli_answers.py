"""How commands answer: in words, in tables, as JSON, and without a traceback."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

__all__ = ["answer", "bar", "careful", "named", "size"]

_TROUBLE = 2  # the exit code of a command that could not do its work


def _plain(value: Any) -> Any:
    """What `json.dumps` takes."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def answer(as_json: bool, text: str, facts: Any) -> None:
    """Prints the text, or the facts as JSON."""
    click.echo(json.dumps(named(facts), default=_plain) if as_json else text)


def named(value: Any) -> Any:
    """Records by field name: `json` would make lists of named tuples."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict()  # type: ignore[attr-defined]
        return {name: named(one) for name, one in fields.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return named(_plain(value))
    if isinstance(value, dict):
        return {str(name): named(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [named(one) for one in value]
    return value


def careful(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turns what users can mend into one line, and warnings into lines of their own."""

    @functools.wraps(command)
    def carefully(*args: Any, **kwargs: Any) -> Any:
        def show(message: Any, *_: Any, **__: Any) -> None:
            click.echo(f"warning: {message}", err=True)

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show
            try:
                return command(*args, **kwargs)
            except (ValueError, TypeError, OSError, ImportError, NotImplementedError) as error:
                if os.environ.get("ZEPHON_JAX_TRACEBACK"):
                    raise
                click.echo(f"error: {error}", err=True)
                sys.exit(_TROUBLE)

    return carefully


def size(num_bytes: int | None) -> str:
    """Bytes for people; a dash where they are not known."""
    if num_bytes is None:
        return "-"
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def bar(total: int | None, what: str, quiet: bool) -> Any:
    """A bar on a terminal, when it takes longer than a second."""
    from tqdm import tqdm

    hidden = True if quiet else None  # None: only on a terminal
    return tqdm(total=total, desc=what, unit=" chunks", unit_scale=True, delay=1.0, leave=False,
                disable=hidden)  # fmt: skip
