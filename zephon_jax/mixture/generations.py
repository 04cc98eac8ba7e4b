"""Datasets that grew while a run went on: passes of several generations of shards.

Shards that came at one change are a generation: an order of its own, by keys of its own. A pass
goes through the generations in turn, the first one as if there were no other. So a pass that was
begun before a change goes on with the new shards when it has come through the old ones, and what
was drawn before stays as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.mixture.dataset_order import DatasetOrder, starts_of
from zephon_jax.mixture.history import Change
from zephon_jax.mixture.sample_lookup import SampleLookup

__all__ = ["GrownLookup", "GrownOrder", "Growth", "growths_of"]


class Growth(NamedTuple):
    """How one dataset grew: G generations, and as many stretches of passes of one length."""

    shards: np.ndarray  # int64 (G + 1,), shards before each generation, and all of them
    samples: np.ndarray  # int64 (G + 1,), samples before each generation in a pass
    first_pass: np.ndarray  # int64 (G,), the first pass that goes through so many generations
    first_draw: np.ndarray  # int64 (G,), the draw that it begins with
    first_chunk: tuple[int, ...]  # G, where each generation came

    def draws_at(self, number: int, num_passes: int) -> int:
        """Draws up to the end of a pass, as far as is known with some generations.

        Args:
          number: Generations that there are.
          num_passes: Passes, at least one.
        """
        # The stretch that holds the last of the passes.
        place = int(np.searchsorted(self.first_pass[:number], num_passes - 1, side="right")) - 1
        more = num_passes - int(self.first_pass[place])
        return int(self.first_draw[place]) + more * int(self.samples[place + 1])

    def passes(self, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pass of each draw, and its position there: int64 (n,) each."""
        place = np.searchsorted(self.first_draw, draws, side="right") - 1
        since, position = np.divmod(draws - self.first_draw[place], self.samples[place + 1])
        return self.first_pass[place] + since, position


def growths_of(changes: Sequence[Change], counts: Sequence[np.ndarray]) -> dict[int, Growth]:
    """The datasets that grew, by dataset id.

    Args:
      changes: In ascending order.
      counts: Samples of each shard of each dataset after all changes, int64 (num_shards,) each.
    """
    found: dict[int, Growth] = {}
    for d, own in enumerate(counts):
        steps = [change for change in changes if d < len(change.num_shards)]
        ends = [*(change.num_shards[d] for change in steps), len(own)]
        shards, starts = [0, ends[0]], starts_of(own)
        first_pass, first_draw, first_chunk = [0], [0], [0]
        for change, end in zip(steps, ends[1:], strict=True):
            if end == shards[-1]:
                continue
            # The pass that the last draw was of goes on with the new shards.
            total, begun = int(starts[shards[-1]]), max(0, change.drawn[d] - first_draw[-1] - 1)
            passes = begun // total if total else 0
            first_pass.append(first_pass[-1] + passes)
            first_draw.append(first_draw[-1] + passes * total)
            first_chunk.append(change.first_chunk)
            shards.append(end)
        if len(shards) > 2:
            found[d] = Growth(
                shards=np.asarray(shards),
                samples=starts[shards],
                first_pass=np.asarray(first_pass),
                first_draw=np.asarray(first_draw),
                first_chunk=tuple(first_chunk),
            )
    return found


class GrownOrder(NamedTuple):
    """The order of a dataset that grew."""

    growth: Growth
    parts: tuple[DatasetOrder, ...]  # of each generation

    @property
    def total(self) -> int:
        """Samples in a pass through all generations."""
        return int(self.growth.samples[-1])

    @property
    def num_shards(self) -> int:
        """Shards that hold samples, of all generations."""
        return sum(part.counts.size for part in self.parts)


class GrownLookup:
    """Finds the samples that draws of datasets stand for, of which some grew.

    Args:
      orders: The first generation's order of each dataset, by dataset id.
      later: The orders of the later generations, by dataset id.
      growths: How these datasets grew.
    """

    def __init__(
        self,
        orders: Sequence[DatasetOrder],
        later: Mapping[int, Sequence[DatasetOrder]],
        growths: Mapping[int, Growth],
    ):
        self._growths = growths
        parts, owner, shift = list(orders), list(range(len(orders))), [0] * len(orders)
        self._places: dict[int, np.ndarray] = {}  # of a dataset's generations among the parts
        self.orders: list[DatasetOrder | GrownOrder] = list(orders)
        for d, more in later.items():
            self._places[d] = np.asarray([d, *range(len(parts), len(parts) + len(more))])
            self.orders[d] = GrownOrder(growths[d], (orders[d], *more))
            parts += more
            owner += [d] * len(more)
            shift += growths[d].shards[1:-1].tolist()
        self._parts = SampleLookup(parts)
        self._owner, self._shift = np.asarray(owner), np.asarray(shift)
        self._grown = np.zeros(len(orders), dtype=bool)
        self._grown[list(later)] = True

    def of_ranges(self, dataset: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
        """Samples of consecutive draws, as `SampleLookup.of_ranges`: int64 (n, 3)."""
        if not self._grown[dataset].any():
            return self._parts.of_ranges(dataset, first, count)
        pieces: list[tuple[int, int, int]] = []
        for d, begin, num in zip(dataset.tolist(), first.tolist(), count.tolist(), strict=True):
            pieces += self._pieces(d, begin, num) if self._grown[d] else [(d, begin, num)]
        part, begins, nums = np.asarray(pieces, dtype=np.int64).reshape(-1, 3).T
        return self._of_parts(self._parts.of_ranges(part, begins, nums))

    def _pieces(self, d: int, begin: int, num: int) -> list[tuple[int, int, int]]:
        """A range of draws as ranges of draws of single generations."""
        growth, found = self._growths[d], []
        while num:
            part, draw, left = (int(one[0]) for one in self._of_draws(growth, np.asarray([begin])))
            taken = min(num, left)
            found.append((int(self._places[d][part]), draw, taken))
            begin, num = begin + taken, num - taken
        return found

    def _of_draws(self, growth: Growth, draws: np.ndarray) -> tuple[np.ndarray, ...]:
        """The generation of each draw, its draw there, and the draws left in it: int64 (n,)."""
        passes, position = growth.passes(draws)
        part = np.searchsorted(growth.samples, position, side="right") - 1
        sizes = np.diff(growth.samples)
        inside = position - growth.samples[part]
        return part, passes * sizes[part] + inside, sizes[part] - inside

    def of_draws(self, dataset: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Samples of any draws, as `SampleLookup.of_draws`: int64 (n, 3)."""
        grown = [d for d in self._growths if (dataset == d).any()]
        if not grown:
            return self._parts.of_draws(dataset, draw)
        part, draw = dataset.copy(), draw.copy()
        for d in grown:
            mine = np.flatnonzero(dataset == d)
            place, draw[mine], _ = self._of_draws(self._growths[d], draw[mine])
            part[mine] = self._places[d][place]
        return self._of_parts(self._parts.of_draws(part, draw))

    def _of_parts(self, ids: np.ndarray) -> np.ndarray:
        """Ids with datasets and shards in the place of parts."""
        part = ids[:, 0]
        ids[:, 1] += self._shift[part]
        ids[:, 0] = self._owner[part]
        return ids
