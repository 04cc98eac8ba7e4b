"""Documents packed into rows of one length, as trainers take them.

Grain's packers do the packing. Here documents become what a trainer predicts, each token carries
the component it came from, and rows get the names that MaxText, torchtitan or Levanter use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grain
import numpy as np

from zephon_jax import _compat
from zephon_jax._arrays import Array, as_int, namespace

__all__ = ["IGNORED", "component_tokens", "pack"]

IGNORED = -100  # torchtitan's label of a place that is not predicted
_METHODS = ("first_fit", "best_fit", "concat_then_split")

Features = dict[str, np.ndarray]


def pack(
    dataset: grain.IterDataset,
    length: int,
    *,
    layout: str = "maxtext",
    method: str = "first_fit",
    num_bins: int = 16,
    tokens: str = "tokens",
    pad_id: int = 0,
) -> grain.IterDataset:
    """Packs documents into rows of `length` tokens.

    A document is a dict with its token ids, int (n,), and `component_id`, or one for each token in
    `component_ids`, int (n,). The token after the last of a document is never that of another:
    layouts with targets take the first n - 1 tokens as inputs and the last n - 1 as targets, so put
    a token that says "end" behind each document. One of a single token predicts nothing and is left
    out there. One that is longer than a row is cut. At the end of the data what the packer holds
    comes out in rows that are padded.

    Args:
      dataset: Documents, such as a lane after tokenizing.
      length: Places in a row.
      layout: Names of the columns, int32 (length,) each but for Levanter's weights:
        "maxtext": inputs, targets, inputs_segmentation, targets_segmentation (from 1, 0 where
        padded), inputs_position, targets_position;
        "torchtitan": input, positions, labels (-100 where padded);
        "levanter": tokens, loss_weight (float32), segment_ids (from 0, -1 where padded).
        Each has component_ids besides, -1 where padded: the component of the token that is
        predicted, or in Levanter's layout of the token itself.
      method: "first_fit" and "best_fit" keep documents whole in `num_bins` open rows, and pad;
        "concat_then_split" fills rows and cuts documents where a row ends.
      num_bins: Rows that are filled at the same time. A restore packs them anew.
      tokens: The entry with the token ids.
      pad_id: The token id of places that are padded.

    Returns:
      Rows, to be batched.

    Raises:
      TypeError, ValueError: If a setting is not allowed, or later a document.

    Example:
      >>> import grain
      >>> documents = [{"tokens": np.arange(n), "component_id": n % 2} for n in (4, 3)]
      >>> row = next(iter(pack(grain.MapDataset.source(documents).to_iter_dataset(), 6)))
      >>> row["inputs"].tolist(), row["targets"].tolist()
      ([0, 1, 2, 0, 1, 0], [1, 2, 3, 1, 2, 0])
      >>> row["inputs_segmentation"].tolist(), row["component_ids"].tolist()
      ([1, 1, 1, 2, 2, 0], [0, 0, 0, 1, 1, -1])
    """
    length, num_bins = as_int(length, "length", 1), as_int(num_bins, "num_bins", 1)
    if layout not in _LAYOUTS:
        raise ValueError(f"layout must be one of {tuple(_LAYOUTS)}; got {layout!r}.")
    if method not in _METHODS:
        raise ValueError(f"method must be one of {_METHODS}; got {method!r}.")
    if not isinstance(dataset, grain.IterDataset):
        raise TypeError(f"pack needs a grain.IterDataset; got {type(dataset).__name__}.")
    chosen, pad = _LAYOUTS[layout], as_int(pad_id, "pad_id", 0, (1 << 31) - 1)
    cut = None if method == "concat_then_split" else length

    def pieces(document: Any) -> list[Features]:
        return _pieces(_document(document, tokens, chosen), cut)

    def finish(row: Features) -> Features:
        return chosen.finish(row, pad)

    lengths = dict.fromkeys((*chosen.features, "component_ids"), length)
    documents = _compat.flat_mapped(dataset, pieces)
    return _compat.packed(documents, method, lengths, num_bins).map(finish)


class _Layout(NamedTuple):
    """How a trainer wants its rows."""

    # What is packed, but for the component ids.
    features: tuple[str, ...]
    # Makes that of the tokens of a document; the flag says whether a target has a place of its own.
    start: Callable[[np.ndarray], Features]
    shifted: bool
    # Makes a row of what the packer returned.
    finish: Callable[[Features, int], Features]


_MOST = (1 << 31) - 1


def _document(document: Any, tokens: str, layout: _Layout) -> Features:
    """What is packed of a document. Component ids from 1, for Grain pads with 0."""
    if not isinstance(document, Mapping) or tokens not in document:
        has = sorted(document) if isinstance(document, Mapping) else type(document).__name__
        raise ValueError(f"documents must be dicts with {tokens!r}; got {has}.")
    ids = np.asarray(document[tokens])
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(
            f"{tokens!r} must be token ids, integers (n,); got {ids.dtype} {ids.shape}."
        )
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > _MOST):
        raise ValueError(
            f"{tokens!r} must be in [0, 2^31), for rows are int32; got {ids.min()} to {ids.max()}."
        )
    if "component_ids" in document:
        components = np.asarray(document["component_ids"])
    elif "component_id" in document:
        components = np.full(len(ids), document["component_id"])
    else:
        raise ValueError(
            f"documents must keep 'component_id' (or 'component_ids'); got {sorted(document)}."
        )
    if components.shape != ids.shape:
        raise ValueError(f"'component_ids' must be {ids.shape}; got {components.shape}.")
    whole = not components.size or components.dtype.kind in "iu"
    if not whole or (
        components.size and not 0 <= int(components.min()) <= components.max() < _MOST
    ):
        raise ValueError(f"component ids must be integers in [0, 2^31 - 1); got {components[:8]}.")
    components = components.astype(np.int32)
    components = components[1:] if layout.shifted else components
    return {**layout.start(ids.astype(np.int32)), "component_ids": components + 1}


def _pieces(document: Features, cut: int | None) -> list[Features]:
    """Cuts a document for rows of one length; one without tokens gives nothing."""
    size = len(document["component_ids"])
    step = size if cut is None else cut
    return [
        {name: feature[start : start + step] for name, feature in document.items()}
        for start in range(0, size, max(1, step))
    ]


def _pairs(ids: np.ndarray) -> Features:
    return {"inputs": ids[:-1], "targets": ids[1:]}


def _singles(ids: np.ndarray) -> Features:
    weight = np.ones(len(ids), dtype=np.float32)
    weight[-1:] = 0
    return {"tokens": ids, "loss_weight": weight}


def _int32(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.int32)


def _padded(row: Features, name: str, pad: int) -> np.ndarray:
    return _int32(np.where(row[f"{name}_segment_ids"] > 0, row[name], pad))


def _maxtext(row: Features, pad: int) -> Features:
    out = {"component_ids": _int32(row["component_ids"]) - 1}
    for name in ("inputs", "targets"):
        out[name] = _padded(row, name, pad)
        out[f"{name}_segmentation"] = _int32(row[f"{name}_segment_ids"])
        out[f"{name}_position"] = _int32(row[f"{name}_positions"])
    return out


def _torchtitan(row: Features, pad: int) -> Features:
    return {
        "input": _padded(row, "inputs", pad),
        "positions": _int32(row["inputs_positions"]),
        "labels": _padded(row, "targets", IGNORED),
        "component_ids": _int32(row["component_ids"]) - 1,
    }


def _levanter(row: Features, pad: int) -> Features:
    weight = np.array(row["loss_weight"], dtype=np.float32)
    weight[-1] = 0  # what it would predict is in another row
    return {
        "tokens": _padded(row, "tokens", pad),
        "loss_weight": weight,
        "segment_ids": _int32(row["tokens_segment_ids"]) - 1,
        "component_ids": _int32(row["component_ids"]) - 1,
    }


_LAYOUTS = {
    "maxtext": _Layout(("inputs", "targets"), _pairs, True, _maxtext),
    "torchtitan": _Layout(("inputs", "targets"), _pairs, True, _torchtitan),
    "levanter": _Layout(("tokens", "loss_weight"), _singles, False, _levanter),
}


def component_tokens(batch: Any, num_components: int) -> Array:
    """Counts the tokens of each component in rows, for logs and for losses by component.

    Args:
      batch: Rows from `pack`, or their component ids: ints of any shape, -1 where padded. NumPy
        or JAX arrays.
      num_components: Number of components, static under `jit`.

    Returns:
      int32 (num_components,), by component id, NumPy or JAX as the batch is.

    Raises:
      ValueError: If an id is below -1 or not below `num_components`. JAX arrays are not looked
        into: such ids are not counted there.

    Example:
      >>> component_tokens(np.array([[0, 2, 2, -1]]), 3).tolist()
      [1, 0, 2]
    """
    ids = batch["component_ids"] if isinstance(batch, Mapping) else batch
    num_components = as_int(num_components, "num_components", 1)
    xp = namespace(ids)
    if xp is np and np.size(ids):
        low, high = int(np.min(ids)), int(np.max(ids))
        if low < -1 or high >= num_components:
            raise ValueError(
                f"component ids must be in [-1, num_components = {num_components}); got"
                f" {low if low < -1 else high}."
            )
    counts = xp.bincount(xp.ravel(ids) + 1, **_length_of(xp, num_components + 1))
    return counts[1 : num_components + 1].astype(xp.int32)


def _length_of(xp: Any, length: int) -> dict[str, int]:
    """JAX wants to know how long the result is, and ignores ids past it; NumPy gives at least."""
    return {"minlength": length} if xp is np else {"minlength": length, "length": length}
