"""What padded places hold in the rows of a pipeline, so that masked rows can be padding too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import grain

__all__ = ["Padded", "padding_of"]


@runtime_checkable
class Padded(Protocol):
    """A dataset that knows what its columns hold in places without a token."""

    @property
    def padding(self) -> Mapping[str, int]:
        """Values by column."""
        ...


def padding_of(dataset: grain.IterDataset | grain.MapDataset) -> Mapping[str, int]:
    """Finds out what the columns of a pipeline's rows hold where they are padded.

    Args:
      dataset: The pipeline. The last transformation that says so decides; columns that a later one
        renames are not known.

    Returns:
      Values by column; empty where no transformation says so.

    Example:
      >>> import zephon_jax as zx
      >>> documents = grain.MapDataset.source([]).to_iter_dataset()
      >>> padding_of(zx.pack(documents, 8, layout="torchtitan", pad_id=3).batch(2))
      {'input': 3, 'positions': 0, 'labels': -100, 'component_ids': -1}
    """
    while not isinstance(dataset, Padded):
        if len(dataset.parents) != 1:
            return {}
        (dataset,) = dataset.parents
    return dataset.padding
