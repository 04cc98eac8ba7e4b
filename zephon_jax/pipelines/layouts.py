"""Columns of packed rows as trainers name them, filled for all rows of a window at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from zephon_jax.pipelines.packers import Window

__all__ = ["IGNORED", "LAYOUTS", "Layout", "fill", "padding_of_layout"]

IGNORED = -100  # torchtitan's label of a place that is not predicted

Content = Literal[
    "inputs", "targets", "segments", "target_segments", "positions", "components", "weights"
]


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
            Column("targets_segmentation", "target_segments"),
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
    order = np.concatenate([rows, every]).argsort(kind="stable")
    sizes = np.concatenate([sizes, room])[order]
    ends = num_runs.cumsum()
    segments = np.arange(1, len(order) + 1, dtype=np.int32)
    segments -= (ends - num_runs).astype(np.int32).repeat(num_runs)
    segments[ends - 1] = 0
    padding = begins[-1:].repeat(len(every))
    return _Runs(
        sizes=sizes,
        starts=sizes.cumsum() - sizes,
        sources=np.concatenate([begins[documents] + starts, padding])[order],
        segments=segments,
        documents=np.concatenate([documents, 0 * every])[order],
    )


class _Material(NamedTuple):
    """What the columns of a window are made of; places are counted over all rows."""

    runs: _Runs
    is_real: np.ndarray  # bool (runs,), False for padding
    tokens: np.ndarray  # int64 (places,), the token of each place among the window's
    inputs: np.ndarray  # int32 (places,)
    last: np.ndarray  # int64, the place of each piece's last token
    after_last: np.ndarray  # int32, the token that follows it in its document
    paddings: list[slice]  # the places of each row's padding
    unpredicted: np.ndarray | None  # bool (places,), True where the loss leaves out what follows
    components: np.ndarray  # int32 (documents,), or (tokens,) of what each token predicts
    by_document: bool


def _column(material: _Material, content: Content, padding: int) -> np.ndarray:
    """One column of all rows: int32 (places,), float32 for weights."""
    runs, unpredicted = material.runs, material.unpredicted
    if content == "inputs":
        return material.inputs
    if content in ("segments", "target_segments"):
        out = (runs.segments + np.int32(padding)).repeat(runs.sizes)
        if unpredicted is not None and content == "target_segments":
            out[unpredicted] = padding
        return out
    if content == "weights":
        out = material.is_real.astype(np.float32).repeat(runs.sizes)
        out[material.last] = 0  # what they would predict is not in their document, or in their row
        if unpredicted is not None:
            out[unpredicted] = 0
        return out
    if content == "components" and material.by_document:
        each = np.where(material.is_real, material.components[runs.documents], padding)
        return each.astype(np.int32).repeat(runs.sizes)
    if content == "targets":
        out = np.concatenate([material.inputs[1:], material.inputs[-1:]])
        out[material.last] = material.after_last
        if unpredicted is not None and padding == IGNORED:
            out[unpredicted] = IGNORED
    elif content == "positions":
        out = np.arange(len(material.tokens), dtype=np.int32)
        out -= runs.starts.astype(np.int32).repeat(runs.sizes)
    else:
        out = material.components.take(material.tokens, mode="clip")
    for places in material.paddings:
        out[places] = padding
    return out


def fill(
    window: Window,
    layout: Layout,
    length: int,
    pad_id: int,
    tokens: np.ndarray,
    lengths: Sequence[int],
    components: np.ndarray,
    loss_mask: np.ndarray | None = None,
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
      loss_mask: Which tokens are to be predicted, bool (n,); None for all of them.

    Returns:
      Arrays (rows, length) by name: int32, float32 for weights.
    """
    shift, num, size = int(layout.has_targets), len(tokens), window.num_rows * length
    flat = np.empty(num + length + shift, dtype=np.int32)
    flat[:num], flat[num:] = tokens, pad_id  # padding is read from behind
    runs = _runs(window, length, np.asarray([0, *lengths]).cumsum())
    is_real, ends = runs.segments > 0, runs.starts + runs.sizes
    # One index for all tokens: the places of a run follow each other in row and document.
    index = (runs.sources - runs.starts).repeat(runs.sizes)
    index += np.arange(size)
    unpredicted, by_document = None, len(components) == len(lengths)
    if loss_mask is not None:
        # What padding and last tokens read here is not kept.
        unpredicted = ~np.append(loss_mask[1:], True).take(index, mode="clip")
    material = _Material(
        runs=runs,
        is_real=is_real,
        tokens=index,
        inputs=flat.take(index),
        last=ends[is_real] - 1,
        after_last=flat[(runs.sources + runs.sizes)[is_real] - (1 - shift)],
        # A slice for each row's padding takes less than a mask of all places.
        paddings=list(map(slice, runs.starts[~is_real].tolist(), ends[~is_real].tolist())),
        unpredicted=unpredicted,
        components=components if by_document else components.astype(np.int32)[shift:],
        by_document=by_document,
    )
    made: dict[Content, np.ndarray] = {}
    columns: dict[str, np.ndarray] = {}
    for name, content, padding in layout.columns:
        if content == "target_segments" and unpredicted is None:
            content = "segments"
        if content in made:
            values = made[content].copy()
        else:
            values = made[content] = _column(
                material, content, pad_id if padding is None else padding
            )
        columns[name] = values.reshape(window.num_rows, length)
    return columns
