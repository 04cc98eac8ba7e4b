"""The command of `zephon-jax` that cuts large row groups of Parquet files."""

from __future__ import annotations

import re
from fractions import Fraction

import click

from zephon_jax._text import table
from zephon_jax.cli.output import answer, as_json_option, bar, careful, size
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.rewrite_parquet import rewrite_parquet

__all__ = ["parse_size", "rewrite"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Bytes of a size: "1MiB" has 1,048,576, "1MB" 1,000,000.

    Raises:
      ValueError: If it is no size of at least a byte.

    Example:
      >>> parse_size("1.5 MiB"), parse_size("10MB"), parse_size("4096")
      (1572864, 10000000, 4096)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None:
        number, unit, binary = match.groups()
        found = int(Fraction(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
        if found and (unit or not binary):
            return found
    raise ValueError(
        f"--row-group-size {text!r} is no size: write bytes, or a number and a unit like 1MiB or"
        " 10MB."
    )


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.argument("output", type=click.Path())
@click.option("--row-group-size", required=True,
              help="Decoded bytes of a row group at most, about: 1MiB, 10MB.")  # fmt: skip
@as_json_option
@careful
def rewrite(data: tuple[str, ...], output: str, row_group_size: str, as_json: bool) -> None:
    """Writes Parquet files anew with large row groups cut to a size.

    DATA are files, folders or globs; OUTPUT is a folder that is not there or is empty, or for one
    file the name of a new file. Rows, their order, columns, codecs and metadata stay.
    """
    group_bytes = parse_size(row_group_size)
    dataset = Dataset.from_path(", ".join(data), list(data))
    with bar(dataset.num_samples, "rewriting", as_json, "rows") as progress:
        found = rewrite_parquet(dataset, output, group_bytes, progress.update)
    rows = [("file", "rows", "row groups", "largest")]
    for one in found:
        rows.append((
            one.path, f"{one.num_rows:,}", f"{one.groups_before:,} to {one.groups:,}",
            f"{size(one.largest_before)} to {size(one.largest)}",
        ))  # fmt: skip
    answer(as_json, table(rows), found)
