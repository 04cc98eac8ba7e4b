"""Documents packed into rows of one length, as trainers take them.

Documents are taken a window at a time: one buffer of tokens, all rows that come of it, and one
array for each column. The place in the stream is the parent's at a document shortly before the
window, how much is passed over from there, and the number of the row in the window: a restore packs
the window again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

import grain
import numpy as np

from zephon_jax._arrays import Array, as_int, namespace
from zephon_jax._text import short
from zephon_jax.pipelines.layouts import IGNORED, LAYOUTS, padding_of_layout
from zephon_jax.pipelines.pack_iterator import PackIterator, PackSettings
from zephon_jax.pipelines.packers import PACKERS
from zephon_jax.pipelines.token_arrays import MOST_TOKEN

__all__ = ["IGNORED", "PackIterDataset", "component_tokens", "pack"]

LayoutName = Literal["maxtext", "torchtitan", "levanter"]
MethodName = Literal["first_fit", "best_fit", "concat_then_split"]


def pack(
    dataset: grain.IterDataset,
    length: int,
    *,
    layout: LayoutName = "maxtext",
    method: MethodName = "first_fit",
    num_bins: int = 16,
    max_segments: int | None = None,
    tokens: str = "tokens",
    pad_id: int = 0,
) -> PackIterDataset:
    """Packs documents into rows of `length` tokens.

    A document is a dict with its token ids, int (n,), and `component_id`, or one for each token in
    `component_ids`, int (n,). The token after the last of a document is never that of another:
    layouts with targets take the first n - 1 tokens as inputs and the last n - 1 as targets, so put
    a token that says "end" behind each document. One of a single token predicts nothing and is left
    out there. One that is longer than a row is cut. At the end of the data what the packer holds
    comes out in rows that are padded.

    A document may say which of its tokens are to be predicted, such as the turns of an assistant:
    `loss_mask`, bool (n,). What predicts another token has loss weight 0 in Levanter's layout,
    label -100 in torchtitan's, and target segment 0 in MaxText's, whose loss leaves it out; inputs,
    segments for attention, and positions do not change. `component_ids` still names its component.

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
      method: "first_fit" and "best_fit" keep documents whole, and pad: the first puts each into the
        first of `num_bins` rows with room, the second packs the longest first and pads least;
        "concat_then_split" fills rows and cuts documents where a row ends.
      num_bins: Rows that are packed together, from the documents of one window. A restore packs
        them anew.
      max_segments: Documents, or parts of one, in a row at most; None for no bound. Transformer
        Engine needs one.
      tokens: The entry with the token ids.
      pad_id: The token id of places that are padded.

    Returns:
      Rows, to be batched.

    Raises:
      TypeError, ValueError: If a setting is not allowed, or later a document; the next call then
        meets the same document again.

    Example:
      >>> import grain
      >>> documents = [{"tokens": np.arange(n), "component_id": n % 2} for n in (4, 3)]
      >>> row = next(iter(pack(grain.MapDataset.source(documents).to_iter_dataset(), 6)))
      >>> row["inputs"].tolist(), row["targets"].tolist()
      ([0, 1, 2, 0, 1, 0], [1, 2, 3, 1, 2, 0])
      >>> row["inputs_segmentation"].tolist(), row["component_ids"].tolist()
      ([1, 1, 1, 2, 2, 0], [0, 0, 0, 1, 1, -1])
    """
    if not isinstance(dataset, grain.IterDataset):
        raise TypeError(f"dataset must be a grain.IterDataset; got {type(dataset).__name__}.")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {tuple(LAYOUTS)}; got {short(layout)}.")
    if not isinstance(method, str) or method not in PACKERS:
        raise ValueError(f"method must be one of {tuple(PACKERS)}; got {short(method)}.")
    most = sys.maxsize if max_segments is None else as_int(max_segments, "max_segments", 1)
    settings = PackSettings(
        length=as_int(length, "length", 1),
        layout=layout,
        method=method,
        num_bins=as_int(num_bins, "num_bins", 1),
        max_segments=most,
        tokens=tokens,
        pad_id=as_int(pad_id, "pad_id", 0, MOST_TOKEN),
    )
    return PackIterDataset(dataset, settings)


class PackIterDataset(grain.IterDataset):
    """Rows of packed documents; made by `pack`."""

    def __init__(self, dataset: grain.IterDataset, settings: PackSettings):
        super().__init__(dataset)
        self.documents, self.settings = dataset, settings

    @property
    def padding(self) -> Mapping[str, int]:
        """What each column holds in places without a token, as in all of a row that is masked."""
        return padding_of_layout(LAYOUTS[self.settings.layout], self.settings.pad_id)

    def __iter__(self) -> PackIterator:
        return PackIterator(iter(self.documents), self.settings)

    def __str__(self) -> str:
        return f"PackIterDataset({self.settings.method}, {self.settings.layout})"


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


def _length_of(xp: object, length: int) -> dict[str, int]:
    """JAX wants to know how long the result is, and ignores ids past it; NumPy gives at least."""
    return {"minlength": length} if xp is np else {"minlength": length, "length": length}
