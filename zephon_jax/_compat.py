"""Names of Grain and JAX that are private or experimental, in one place, each with a contract test.

Nothing else in the package looks behind their public interface.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import grain

__all__ = [
    "Batching",
    "Hosts",
    "batching_of",
    "distributed_hosts",
    "replace_parent",
    "set_next_index",
    "share_names",
]

# Datasets that join elements into batches, and those that hand out rows of their own again.
_BATCHES = ("BatchIterDataset", "BatchMapDataset", "RebatchIterDataset")
_ROWS = (
    "BestFitPackIterDataset", "ConcatThenSplitIterDataset", "FirstFitPackIterDataset",
    "FlatMapIterDataset", "FlatMapMapDataset", "PackIterDataset",
)  # fmt: skip


class Batching(NamedTuple):
    """How a pipeline batches."""

    size: int  # elements in a batch
    drops: bool  # True where a batch that is not full is left out


def batching_of(dataset: Any) -> Batching | None:
    """Finds out whether a Grain dataset yields batches: the last transformation that decides.

    Returns:
      The batches' size, or None where the elements are rows.
    """
    while True:
        name = type(dataset).__name__
        if name in _ROWS:
            return None
        if name in _BATCHES:
            return Batching(int(dataset._batch_size), bool(dataset._drop_remainder))
        parents = getattr(dataset, "parents", ())
        if len(parents) != 1:
            return None
        dataset = parents[0]


def set_next_index(iterator: Any, index: int) -> None:
    """Moves a Grain iterator to an element by its number.

    Raises:
      ValueError: If the pipeline cannot tell where that is: it filters, packs or batches unevenly.
    """
    try:
        grain.experimental.set_next_index(iterator, index)
    except (NotImplementedError, AttributeError) as error:
        raise ValueError(
            f"the pipeline cannot go to an element by its number: {error or type(error).__name__}."
            " Only pipelines with one element out for each one in can; restore a state instead."
        ) from None


class Hosts(NamedTuple):
    """What `jax.distributed` knows; asking does not initialize a backend."""

    client: Any  # its key-value store, None where it was not started
    process_index: int
    process_count: int


def distributed_hosts() -> Hosts:
    """The hosts of `jax.distributed`: one without a client where it was not started."""
    from jax._src import distributed

    state = distributed.global_state
    if state.client is None:
        return Hosts(None, 0, 1)
    return Hosts(state.client, int(state.process_id), int(state.num_processes or 1))


def replace_parent(iterator: grain.DatasetIterator, parent: grain.DatasetIterator) -> None:
    """Closes what a Grain iterator of one parent reads from, and gives it another to read from."""
    iterator._parents[0].close()
    iterator._parents = (parent,)
    trees = [parent]
    while trees:  # Options belong to all iterators of a pipeline together.
        current = trees.pop()
        current._ctx = iterator._ctx
        trees.extend(current._parents)


def share_names(dataset: Any, like: Any) -> None:
    """Gives a Grain dataset's transformations the names that those of one like it have.

    Grain finds a function's name and line in its source file, a third of a millisecond for each.
    """
    while type(dataset) is type(like):
        name = vars(like).get("_transform_name")
        pair = getattr(dataset, "_transform", None), getattr(like, "_transform", None)
        if name is not None and _same_code(*pair):
            vars(dataset)["_transform_name"] = name
        if len(dataset.parents) != 1 or len(like.parents) != 1:
            return
        dataset, like = dataset.parents[0], like.parents[0]


def _same_code(one: object, other: object) -> bool:
    code = getattr(one, "__code__", None)
    return one is other or (code is not None and code is getattr(other, "__code__", None))
