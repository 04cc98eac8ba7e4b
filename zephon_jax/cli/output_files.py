"""Files that `zephon-jax simulate` writes: looked at before the run is worked out."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from zephon_jax.analysis.simulation import Simulation

__all__ = ["PICTURES", "check_apart", "check_file", "check_picture", "draw"]

PICTURES = ("mixture", "passes", "deviation", "lanes")


def check_apart(files: Mapping[str, str | None]) -> None:
    """Checks that no file is written over another that a command reads or writes.

    Args:
      files: Paths by option; None for options that were not given.

    Raises:
      ValueError: Naming two options of one file.
    """
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in seen:
            raise ValueError(f"{seen[place]} and {option} are one file, {path}: name two.")
        seen[place] = option


def check_file(path: str, option: str) -> None:
    """Checks that a file can be written.

    Raises:
      OSError, ValueError: If it cannot, saying why.
    """
    if not path:
        raise ValueError(f"{option} needs the name of a file; got ''.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{option} {path}: there is no folder {folder}.")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{option} {path} is a folder; name a file in it.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise PermissionError(f"{option} {path}: it must not be written by you.")


def check_picture(
    path: str | None, picture: str | None, component: str | None, names: Collection[str]
) -> None:
    """Checks what `draw` will be asked for.

    Args:
      path: Where the picture goes; None for no picture.
      picture: One of `PICTURES`; None for the first.
      component: Whose samples to show, for the picture of lanes.
      names: Components of the run.

    Raises:
      ImportError: If matplotlib is not installed.
      OSError, ValueError: If the picture cannot be drawn or written, or an option does nothing.
    """
    if picture != "lanes" and component is not None:
        raise ValueError(f"--component {component} does nothing without --picture lanes.")
    if path is None:
        if picture is not None:
            raise ValueError(
                f"--picture {picture} does nothing without --plot, the file to draw to."
            )
        return
    from zephon_jax.analysis import plot

    check_file(path, "--plot")
    kinds = plot.Picture().canvas.get_supported_filetypes()
    if os.path.splitext(path)[1][1:].lower() not in kinds:
        raise ValueError(
            f"the picture {path} cannot be written: its name must end in one of"
            f" {', '.join('.' + kind for kind in kinds)}."
        )
    if picture == "lanes" and component is None:
        raise ValueError("--picture lanes needs --component, the name of one component.")
    if component is not None and component not in names:
        raise ValueError(f"there is no component {component!r} in the run; it has {list(names)}.")


def draw(run: Simulation, path: str, picture: str | None, component: str | None) -> None:
    """Draws a picture that `check_picture` has nothing against."""
    from zephon_jax.analysis import plot

    arguments: tuple[Any, ...] = (run,) if component is None else (run, component)
    make = plot.lane_map if picture == "lanes" else getattr(plot, picture or PICTURES[0])
    make(*arguments).savefig(path, dpi=150)
