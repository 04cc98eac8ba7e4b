"""Where a run holds a sample: the record, and the search that works for any source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import counted, short
from zephon_jax.sources.checks import ShardedDataset, State, Stepped
from zephon_jax.sources.chunk import SampleId
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.walk import walk

__all__ = ["Place", "as_list", "check_sample_id", "search"]

_MOST_LISTED = 1 << 22  # places in a list, 250 bytes each


class Place(NamedTuple):
    """One time that a run holds a sample."""

    pass_number: int  # the pass of its dataset; elsewhere how often the run has held it before
    chunk: int  # global chunk index
    lane: int
    lane_step: int  # chunks that the lane had before
    slot: int  # place in the chunk's reading order


def check_sample_id(sample_id: Sequence[int], datasets: Mapping[int, ShardedDataset]) -> SampleId:
    """Returns a sample id that names a sample of one of the datasets, where they are known.

    Raises:
      TypeError: If it is not three integers.
      ValueError: If there is no such dataset, shard or sample.
    """
    try:
        dataset_id, shard_id, sample_index = sample_id
    except (TypeError, ValueError):
        raise TypeError(
            f"a sample id is (dataset_id, shard_id, sample_index); got {short(sample_id)}."
        ) from None
    found = SampleId(
        as_int(dataset_id, "dataset_id", 0),
        as_int(shard_id, "shard_id", 0),
        as_int(sample_index, "sample_index", 0),
    )
    if not datasets:
        return found
    if found.dataset_id not in datasets:
        raise ValueError(f"dataset_id must be one of {list(datasets)}; got {found.dataset_id}.")
    dataset = datasets[found.dataset_id]
    counts = np.asarray(dataset.shard_counts)
    if found.shard_id >= len(counts):
        raise ValueError(
            f"dataset {dataset.name!r} has {counted(len(counts), 'shard')}; got shard_id ="
            f" {found.shard_id}."
        )
    if found.sample_index >= counts[found.shard_id]:
        raise ValueError(
            f"dataset {dataset.name!r} has {counted(int(counts[found.shard_id]), 'sample')} in"
            f" shard {found.shard_id}; got sample_index = {found.sample_index}."
        )
    return found


def as_list(places: Iterator[Place], advice: str) -> list[Place]:
    """All places of a sample, unless they are too many for a list.

    Raises:
      ValueError: If there are more than 2^22, saying what else to do.
    """
    found = list(islice(places, _MOST_LISTED + 1))
    if len(found) > _MOST_LISTED:
        raise ValueError(
            f"the run holds the sample more than {_MOST_LISTED:,} times, up to chunk"
            f" {found[-1].chunk:,}: too often for a list. {advice}"
        )
    return found


def search(
    source: Stepped[State],
    states: Sequence[State],
    sample_id: SampleId,
    up_to_chunk: int | None,
    config: MixtureReadConfig,
) -> Iterator[Place]:
    """Goes through all chunks of all lanes, in the order of the run, and looks for a sample.

    Args:
      source: Any source.
      states: The first state of each lane.
      sample_id: What to look for.
      up_to_chunk: The first chunk that is not looked at; None for the whole run.
      config: How chunks are read.
    """
    number = count()
    for step in walk(source, states):
        if up_to_chunk is not None and step.chunk_index >= up_to_chunk:
            return
        slots = np.flatnonzero((step.chunk.order(config)[1] == sample_id).all(axis=1))
        for slot in slots.tolist():
            yield Place(next(number), step.chunk_index, step.lane, step.lane_step, slot)
