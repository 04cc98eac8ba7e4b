"""How many samples of each dataset have been read how often."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from zephon_jax.sources.checks import first_states
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["times_seen"]


def times_seen(
    source: WorkSource,
    whole_chunks: int,
    front: Sequence[WorkChunk],
    front_ids: np.ndarray,
    *,
    most_walked: int = 1 << 24,
) -> dict[str, dict[int, int]]:
    """Counts samples by the number of times that they have been read.

    Args:
      source: Any source.
      whole_chunks: Chunks that have been read as a whole, the run's first.
      front: All chunks from there on, up to the last of which anything has been read.
      front_ids: The samples of the front that have been read, int64 (n, 3).
      most_walked: Samples up to which a source without closed forms is gone through.

    Returns:
      By component, the number of samples by the times read. A source that does not give its
      `datasets_by_id` counts only samples that have been read; nothing is returned where there are
      too many samples to go through.
    """
    drawn, sizes = source.drawn_before(whole_chunks), source.pass_sizes()
    if drawn is None or sizes is None:
        return _by_looking(source, whole_chunks, front, front_ids, most_walked)
    found, parts = {}, [chunk.components for chunk in front]
    for d, name in enumerate(source.component_ids()):
        ahead = np.concatenate([np.zeros((0, 3), np.int64), *(part[name] for part in parts)])
        read = front_ids[front_ids[:, 0] == d]
        found[name] = _of_dataset(int(drawn[d]), int(sizes[d]), ahead, read)
    return found


def _codes(ids: np.ndarray) -> np.ndarray:
    """Sample ids of one dataset as one word each, for comparing: void (n,)."""
    pairs = np.ascontiguousarray(ids[:, 1:])
    return pairs.view(np.dtype((np.void, 16))).reshape(-1)


def _of_dataset(drawn: int, total: int, ahead: np.ndarray, read: np.ndarray) -> dict[int, int]:
    """The samples of a dataset by the number of times read.

    The draws of one pass are different samples, so a sample that the rest of the present pass does
    not hold has been read in it.

    Args:
      drawn: Draws of the dataset in chunks that have been read as a whole.
      total: Samples in the dataset.
      ahead: The draws after them in the chunks at the front, int64 (n, 3).
      read: Those of `ahead` that have been read, int64 (m, 3).
    """
    if not total:
        return {}
    passes, position = divmod(drawn, total)
    seen = {passes: total - position, passes + 1: position}
    rest = _codes(ahead[: total - position])
    codes, times = np.unique(_codes(read), return_counts=True)
    before = passes + (~np.isin(codes, rest)).astype(np.int64)
    for start, more in zip(before.tolist(), times.tolist(), strict=True):
        seen[start] -= 1
        seen[start + more] = seen.get(start + more, 0) + 1
    return {n: count for n, count in sorted(seen.items()) if count}


def _by_looking(
    source: WorkSource,
    whole_chunks: int,
    front: Sequence[WorkChunk],
    front_ids: np.ndarray,
    most_walked: int,
) -> dict[str, dict[int, int]]:
    """The same for any source, whose samples are gone through."""
    chunks, parts, samples = list(front), [front_ids], len(front_ids)
    steps = walk(source, first_states(source, 1))
    for step in takewhile(lambda step: step.chunk_index < whole_chunks, steps):
        samples += len(step.chunk)
        if samples > most_walked:
            return {}
        chunks.append(step.chunk)
        parts += step.chunk.components.values()
    names = {
        dataset: name
        for chunk in chunks
        for name, ids in chunk.components.items()
        for dataset in np.unique(ids[:, 0]).tolist()
    }
    sizes = {d: int(np.sum(one.shard_counts)) for d, one in source.datasets_by_id.items()}
    names |= {d: one.name for d, one in source.datasets_by_id.items()}
    ids, times = np.unique(np.concatenate(parts), axis=0, return_counts=True)
    found: dict[str, dict[int, int]] = {}
    for dataset, name in sorted(names.items()):
        often = np.bincount(times[ids[:, 0] == dataset], minlength=1)
        often[0] = max(0, sizes.get(dataset, 0) - int(often.sum()))
        found[name] = {n: count for n, count in enumerate(often.tolist()) if count}
    return found
