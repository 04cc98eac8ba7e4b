"""What the parts of a combined source are called: components and datasets, each with one id."""

# Parts may be sources of any kind, whose mistakes are named.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.sources.checks import ShardedDataset
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["PartNames"]


class PartNames:
    """Ids of the components and datasets of several sources together.

    Components of one name are one component. One dataset in several sources is one dataset. The
    first source keeps its ids; what a later one adds keeps its own id where that is free, and
    gets the next one above all others where it is not.

    Args:
      sources: The sources.

    Raises:
      ValueError: If two sources have different datasets of one name.
    """

    def __init__(self, sources: Sequence[WorkSource[Any]]):
        self.component_ids: dict[str, int] = {}
        self.datasets: dict[int, ShardedDataset] = {}
        self._others: list[frozenset[str]] = []  # by source, components that another one has too
        self._moved: list[dict[int, int]] = []  # by source, new dataset ids by old
        self._classes = [type(source).__name__ for source in sources]
        for place, source in enumerate(sources):
            for name, number in source.component_ids().items():
                if name not in self.component_ids:
                    self.component_ids[name] = _free(int(number), self.component_ids.values())
            self._moved.append(self._take_datasets(place, source.datasets_by_id))
        named = [frozenset(source.component_ids()) for source in sources]
        for place, mine in enumerate(named):
            rest = named[:place] + named[place + 1 :]
            self._others.append(mine.intersection(*[frozenset[str]().union(*rest)]))

    def _take_datasets(self, place: int, datasets: Mapping[int, ShardedDataset]) -> dict[int, int]:
        moved: dict[int, int] = {}
        known = {dataset.name: number for number, dataset in self.datasets.items()}
        for number, dataset in datasets.items():
            if dataset.name in known:
                new = known[dataset.name]
                if not _same(self.datasets[new], dataset):
                    raise ValueError(
                        f"sources[{place}] has a dataset named {dataset.name!r} that is not the one"
                        " of an earlier source. Give one of them another name; where they are the"
                        " same, give both sources the same Dataset object."
                    )
            else:
                new = _free(int(number), self.datasets)
                self.datasets[new] = dataset
            moved[int(number)] = new
        return moved

    def moved_ids(self, place: int, chunk: WorkChunk, ids: np.ndarray) -> np.ndarray:
        """A part's sample ids (n, 3) with the dataset ids of the whole.

        Raises:
          ValueError: If the part's chunk names a dataset that the part does not declare.
        """
        moved = self._moved[place]
        if not self.datasets or not len(ids):  # nobody says what the ids mean
            return ids
        used, where = np.unique(ids[:, 0], return_inverse=True)
        unknown = [number for number in used.tolist() if number not in moved]
        if unknown:
            raise ValueError(
                f"sources[{place}] ({self._classes[place]}) gave {chunk!r} with samples of dataset"
                f" ids {unknown[:8]}, and its datasets_by_id names {list(moved)[:8]}. Give every"
                " source of a combination its datasets_by_id."
            )
        ids = ids.copy()
        ids[:, 0] = np.asarray([moved[number] for number in used.tolist()])[where]
        return ids

    def used_up(self, place: int, names: Sequence[str]) -> tuple[str, ...]:
        """Of a part's components that are used up, those that no other part has."""
        return tuple(name for name in names if name not in self._others[place])


def _free(number: int, taken: Collection[int]) -> int:
    """A number itself where it is not taken, else the next one above all that are."""
    return number if number not in taken else max(taken) + 1


def _same(one: ShardedDataset, other: ShardedDataset) -> bool:
    """True for one dataset, or two that hold the same data as far as they can tell."""
    if one is other:
        return True
    places = [getattr(dataset, "location", None) for dataset in (one, other)]
    readable = [getattr(dataset, "readable", True) for dataset in (one, other)]
    return (
        places[0] == places[1]
        and (places[0] is not None or not any(readable))
        and np.array_equal(one.shard_counts, other.shard_counts)
    )
