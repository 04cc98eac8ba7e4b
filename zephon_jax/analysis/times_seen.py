"""How many samples of each dataset have been read how often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["seen_by"]

_MOST_WALKED = 1 << 24  # samples of a run that is gone through from its start


def seen_by(
    source: WorkSource, whole: int, front: Sequence[WorkChunk], front_ids: np.ndarray
) -> dict[str, dict[int, int]]:
    """Counts samples by the number of times that they have been read.

    Args:
      source: Any source.
      whole: Chunks that have been read as a whole, the first ones.
      front: All chunks from there on, up to the last of which anything has been read.
      front_ids: The samples of these that have been read, int64 (n, 3).

    Returns:
      By component, the number of samples by the times read. Of sources of one's own only samples
      that have been read are counted, and nothing where there are too many to look at.
    """
    if not isinstance(source, StaticMixtureWorkSource):
        return _by_looking(source, whole, front, front_ids)
    drawn, totals = source.eras.seek(whole).drawn, source.eras.steps.rules.totals
    found, parts = {}, [chunk.components for chunk in front]
    for d, name in enumerate(source.component_ids()):
        ahead = np.concatenate([np.zeros((0, 3), np.int64), *(part[name] for part in parts)])
        read = front_ids[front_ids[:, 0] == d]
        found[name] = _of_dataset(int(drawn[d]), int(totals[d]), ahead, read)
    return found


def _codes(ids: np.ndarray) -> np.ndarray:
    """Sample ids of one dataset as one word each, for comparing: void (n,)."""
    pairs = np.ascontiguousarray(ids[:, 1:])
    return pairs.view(np.dtype((np.void, 16))).reshape(-1)


def _of_dataset(drawn: int, total: int, ahead: np.ndarray, read: np.ndarray) -> dict[int, int]:
    """The same for a dataset of which so many draws are read as a whole, and some after them.

    The draws of a pass are different samples. So a sample that the rest of the present pass does
    not hold has been read in it.
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
    source: WorkSource, whole: int, front: Sequence[WorkChunk], front_ids: np.ndarray
) -> dict[str, dict[int, int]]:
    state, parts, chunks, samples = source.init(), [front_ids], list(front), len(front_ids)
    for _ in range(whole):
        chunk, state = source.next_chunk(state)
        if chunk is None:
            break
        samples += len(chunk)
        if samples > _MOST_WALKED:
            return {}
        chunks.append(chunk)
        parts += chunk.components.values()
    names = {
        dataset: name
        for chunk in chunks
        for name, ids in chunk.components.items()
        for dataset in np.unique(ids[:, 0]).tolist()
    }
    ids, times = np.unique(np.concatenate(parts), axis=0, return_counts=True)
    found: dict[str, dict[int, int]] = {}
    for dataset in np.unique(ids[:, 0]).tolist():
        often = np.bincount(times[ids[:, 0] == dataset])
        found[names[dataset]] = {n: count for n, count in enumerate(often.tolist()) if count}
    return found
