"""What a pipeline is made of, in words, by which the states of another are told."""

from __future__ import annotations

import grain

from zephon_jax import _compat
from zephon_jax._checked_json import digest_of
from zephon_jax.pipelines.packing import PackIterDataset

__all__ = ["pipeline_name"]

_LONGEST = 400  # characters; the rest as a digest
_SILENT = ("Lane", "MpContext", "Prefetch", "ThreadPrefetch", "WithOptions", "WithSeed")


def pipeline_name(dataset: grain.IterDataset | grain.MapDataset) -> str:
    """The transformations of a pipeline, the first first, with the settings that can be told.

    Functions play no part: their names change when code is tidied up.

    Example:
      >>> import grain, zephon_jax as zx
      >>> documents = grain.MapDataset.range(4).to_iter_dataset()
      >>> pipeline_name(documents.map(str).filter(bool).batch(2))
      'Map > Filter > Batch(2)'
    """
    found: list[str] = []
    while dataset.parents:
        name = type(dataset).__name__.strip("_").removesuffix("IterDataset")
        batching = _compat.batching_of(dataset)
        if isinstance(dataset, PackIterDataset):
            found.append(f"Pack{str(dataset.settings).removeprefix('PackSettings')}")
        elif name in ("Batch", "Rebatch") and batching is not None:
            found.append(f"{name}({batching.size})")
        elif name not in _SILENT:
            found.append(name)
        if len(dataset.parents) > 1:
            found.append(f"{len(dataset.parents)} datasets")
            break
        (dataset,) = dataset.parents
    text = " > ".join(reversed(found))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... {digest_of(text)}"
