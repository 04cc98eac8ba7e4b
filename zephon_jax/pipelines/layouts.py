"""Columns of packed rows as trainers name them, filled for all rows of a window at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from zephon_jax.pipelines.packers import Window

__all__ = ["IGNORED", "LAYOUTS", "Layout", "fill", "padding_of_layout"]

IGNORED = -100  # torchtitan's label of a place that is not predicted

Content = Literal["inputs", "targets", "segments", "positions", "components", "weights"]


class Column(NamedTuple):
    """One array of a row."""

    name: str
    content: Content
    padding: int | None = 0  # in places without a token; None for `pad_id`


class Layout(NamedTuple):
    """How a trainer wants its rows."""

    # True where a target has a place of its own: a document of n tokens fills n - 1 places.
    has_targets: bool
    columns: tuple[Column, ...]


LAYOUTS = {
    "maxtext": Layout(
        True,
        (
            Column("inputs", "inputs", None),
            Column("inputs_segmentation", "segments"),
            Column("inputs_position", "positions"),
            Column("targets", "targets", None),
            Column("targets_segmentation", "segments"),
            Column("targets_position", "positions"),
            Column("component_ids", "components", -1),
        ),
    ),
    "torchtitan": Layout(
        True,
        (
            Column("input", "inputs", None),
            Column("positions", "positions"),
            Column("labels", "targets", IGNORED),
            Column("component_ids", "components", -1),
        ),
    ),
    "levanter": Layout(
        False,
        (
            Column("tokens", "inputs", None),
            Column("loss_weight", "weights"),
            Column("segment_ids", "segments", -1),
            Column("component_ids", "components", -1),
        ),
    ),
}


def padding_of_layout(layout: Layout, pad_id: int) -> dict[str, int]:
    """Returns what each column holds in places without a token."""
    return {c.name: pad_id if c.padding is None else c.padding for c in layout.columns}


class _Runs(NamedTuple):
    """Pieces and the padding behind them, one after the other over all rows: (n,) each."""

    sizes: np.ndarray  # int64, places
    starts: np.ndarray  # int64, first place, counted over all rows
    sources: np.ndarray  # int64, first token among the window's
    segments: np.ndarray  # int32, from 1 in each row, 0 for padding
    documents: np.ndarray  # int64, 0 for padding


def _runs(window: Window, length: int, begins: np.ndarray) -> _Runs:
    """Runs of a window whose documents begin at `begins` of its tokens; padding is behind them."""
    pieces = np.fromiter(itertools.chain.from_iterable(window.pieces), dtype=np.int64)
    rows, documents, starts, sizes = pieces.reshape(-1, 4).T
    every = np.arange(window.num_rows)
    num_runs = np.bincount(rows) + 1
    room = length - np.bincount(rows, sizes).astype(np.int64)
    # A run of padding, maybe empty, goes behind the pieces of each row.
    order = np.argsort(np.concatenate([rows, every]), kind="stable")
    sizes = np.concatenate([sizes, room])[order]
    ends = np.cumsum(num_runs)
    segments = np.arange(1, len(order) + 1, dtype=np.int32)
    segments -= np.repeat((ends - num_runs).astype(np.int32), num_runs)
    segments[ends - 1] = 0
    padding = np.full(len(every), begins[-1])
    return _Runs(
        sizes=sizes,
        starts=np.cumsum(sizes) - sizes,
        sources=np.concatenate([begins[documents] + starts, padding])[order],
        segments=segments,
        documents=np.concatenate([documents, 0 * every])[order],
    )


def fill(
    window: Window,
    layout: Layout,
    length: int,
    pad_id: int,
    tokens: np.ndarray,
    lengths: Sequence[int],
    components: np.ndarray,
) -> dict[str, np.ndarray]:
    """Makes the columns of a window.

    Args:
      window: Where the pieces of documents go; at least one.
      layout: The columns.
      length: Places in a row.
      pad_id: The token of places that are padded.
      tokens: Tokens of the window's documents, one behind the other, ints (n,): of the first from
        where the window begins, of the last up to what the window uses, and with targets one more.
      lengths: How many are of each document, (num_documents,).
      components: Component of each document, ints (num_documents,), or of each token, ints (n,).

    Returns:
      Arrays (rows, length) by name: int32, float32 for weights.
    """
    shift, num = int(layout.has_targets), len(tokens)
    flat = np.full(num + length + shift, pad_id, dtype=np.int32)  # padding is read from behind
    flat[:num] = tokens
    runs = _runs(window, length, np.cumsum([0, *lengths]))
    size, is_real = window.num_rows * length, runs.segments > 0
    # One index for all tokens: the places of a run follow each other in row and document.
    index = np.repeat(runs.sources - runs.starts, runs.sizes)
    index += np.arange(size)

    def make(content: Content, padding: int) -> np.ndarray:
        if content in ("inputs", "targets"):
            return (flat if content == "inputs" else flat[shift:]).take(index)
        if content == "segments":
            return np.repeat(runs.segments + np.int32(padding), runs.sizes)
        if content == "positions":
            starts = np.repeat(runs.starts.astype(np.int32), runs.sizes)
            return np.subtract(np.arange(size, dtype=np.int32), starts, out=starts)
        if content == "weights":
            out = np.repeat(is_real.astype(np.float32), runs.sizes)
            # What the last token of a piece would predict is not in its document, or in its row.
            out[(runs.starts + runs.sizes - 1)[is_real]] = 0
            return out
        if len(components) == len(lengths):
            each = np.where(is_real, components[runs.documents], padding)
            return np.repeat(each.astype(np.int32), runs.sizes)
        return components.astype(np.int32)[shift:].take(index, mode="clip")

    is_padding = np.repeat(~is_real, runs.sizes)
    made: dict[Content, np.ndarray] = {}
    rows: dict[str, np.ndarray] = {}
    for name, content, padding in layout.columns:
        values = made[content].copy() if content in made else make(content, padding or 0)
        if content not in made and padding is not None:
            values[is_padding] = padding
        made[content] = values
        rows[name] = values.reshape(window.num_rows, length)
    return rows
