"""How commands answer: in words, in tables, as JSON, and without a traceback."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
import numpy as np

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["answer", "as_json_option", "bar", "careful", "plain", "size"]

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Answer as JSON, for programs."
)

_TROUBLE = 2  # the exit code of a command that could not do its work
_INTERRUPTED = 130  # of one that was stopped from the keyboard, as shells have it
_Command = TypeVar("_Command", bound=Callable[..., Any])
_OURS = (ValueError, TypeError, OSError, ImportError, NotImplementedError)


def plain(value: object) -> object:
    """What `json.dumps` takes: records by field name, arrays as lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


def answer(as_json: bool, text: str, facts: object) -> None:
    """Prints the text, or the facts as JSON."""
    _say(json.dumps(plain(facts)) if as_json else text)


def _say(text: str, *, err: bool = False) -> None:
    """Prints a text, for as long as anybody reads: the exit code is an answer too."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # What is left in the stream's buffer must have somewhere to go when the process ends.
        stream = sys.stderr if err else sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _in_a_line(error: Exception) -> str:
    """What an error says, and of which kind it is where that is not one of ours."""
    said = " ".join(str(error).splitlines())
    if isinstance(error, _OURS) and said:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def careful(command: _Command) -> _Command:
    """Turns what users can mend into one line, and warnings into lines of their own."""

    @functools.wraps(command)
    def carefully(*args: object, **kwargs: object) -> object:
        def show(message: object, *_: object, **__: object) -> None:
            _say(f"warning: {message}", err=True)

        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show
            try:
                return command(*args, **kwargs)
            except (click.ClickException, click.exceptions.Exit):
                raise
            except KeyboardInterrupt:
                _say("error: interrupted", err=True)
                sys.exit(_INTERRUPTED)
            except Exception as error:  # none may pass for an answer: Python would exit with 1
                if os.environ.get("ZEPHON_JAX_TRACEBACK"):
                    _say(traceback.format_exc().rstrip(), err=True)
                else:
                    _say(f"error: {_in_a_line(error)}", err=True)
                sys.exit(_TROUBLE)

    return cast(_Command, carefully)


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


def bar(total: int | None, what: str, quiet: bool, unit: str = "chunks") -> tqdm[NoReturn]:
    """A bar on a terminal, when it takes longer than a second."""
    from tqdm import tqdm

    hidden = True if quiet else None  # None: only on a terminal
    return tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, delay=1.0, leave=False,
                disable=hidden)  # fmt: skip
