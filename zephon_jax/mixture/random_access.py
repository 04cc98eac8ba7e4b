"""Samples of a run by their index, without going through the chunks before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX, as_int
from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.kernels.keys import digest_words
from zephon_jax.mixture.chunk_planner import TOGETHER, samples_of_chunks
from zephon_jax.mixture.dataset_order import DatasetOrder, make_dataset_order
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.generations import GrownLookup, GrownOrder, growths_of
from zephon_jax.mixture.positions import Position
from zephon_jax.mixture.sample_lookup import SampleLookup
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.sources.read_order import MixtureReadConfig, Reading, read_order

__all__ = ["DatasetOrders", "RandomAccess"]

_AHEAD = 64  # chunks of a question whose reading orders are computed together
_KEPT_EPOCHS = 2
_KEPT_CHUNKS = 4


class DatasetOrders:
    """The datasets' orders by epoch, made when they are first asked for.

    Args:
      settings: The settings of the source.
      counts: Shard counts of each dataset, int64 (num_shards,) each.
    """

    def __init__(self, settings: MixtureSettings, counts: list[np.ndarray]):
        self._settings, self._counts = settings, counts
        self.growths = growths_of(settings.changes, counts)
        self._lookups: BoundedCache[int, SampleLookup | GrownLookup] = BoundedCache(_KEPT_EPOCHS)

    def of_epoch(self, epoch: int) -> Sequence[DatasetOrder]:
        """The datasets' orders in an epoch, in component order; of datasets that did not grow."""
        lookup = self.lookup(epoch)
        assert isinstance(lookup, SampleLookup)
        return lookup.orders

    def of_dataset(self, dataset_id: int) -> DatasetOrder | GrownOrder:
        """The order of one dataset in epoch 0."""
        return self.lookup(0).orders[dataset_id]

    def lookup(self, epoch: int) -> SampleLookup | GrownLookup:
        """What finds the samples of draws in an epoch."""
        known = self._lookups.get(epoch)
        if known is None:
            ends = {d: int(growth.shards[1]) for d, growth in self.growths.items()}
            orders = [
                self._order(epoch, d, own[: ends.get(d)]) for d, own in enumerate(self._counts)
            ]
            known = SampleLookup(orders) if not ends else self._grown(epoch, orders)
            self._lookups.put(epoch, known)
        return known

    def _grown(self, epoch: int, orders: list[DatasetOrder]) -> GrownLookup:
        """The same where datasets grew."""
        later: dict[int, list[DatasetOrder]] = {}
        for d, growth in self.growths.items():
            bounds = growth.shards.tolist()
            later[d] = [
                self._order(epoch, d, self._counts[d][bounds[n] : bounds[n + 1]], n)
                for n in range(1, len(bounds) - 1)
            ]
        return GrownLookup(orders, later, self.growths)

    def _order(self, epoch: int, d: int, counts: np.ndarray, generation: int = 0) -> DatasetOrder:
        settings = self._settings
        return make_dataset_order(
            settings.names[d],
            counts,
            seed=settings.seed,
            epoch=epoch,
            shuffle_shards=settings.shuffle_shards[d],
            shuffle_within_shard=settings.shuffle_within_shard[d],
            shuffle_block_size=settings.shuffle_block_size[d],
            reshuffle_on_repeat=settings.reshuffle_on_repeat[d],
            generation=generation,
        )


class _Decoded(NamedTuple):
    """A chunk in reading order."""

    name: tuple[int, MixtureReadConfig, int]  # epoch, how it is read, chunk index
    first: int  # index of its first sample in the run
    ids: np.ndarray  # int64 (n, 3)


class _Asked(NamedTuple):
    """A question for samples of chunks, chunk after chunk."""

    slots: np.ndarray  # int64 (n,)
    bounds: list[int]  # where the slots of each chunk begin and end, c + 1
    counts: np.ndarray  # int32 (c, k), what each chunk draws
    drawn: np.ndarray  # int64 (c, k), what was drawn before


def _take_chunks(
    draws: SampleLookup | GrownLookup,
    asked: _Asked,
    chosen: np.ndarray,
    read: Callable[[int], Reading],
    out: np.ndarray,
    together: int,
) -> None:
    """Fills in the samples of some chunks by finding them whole, several chunks at once."""
    group = np.cumsum(asked.counts[chosen].sum(axis=1)) // together
    for one in np.unique(group):
        mine = chosen[group == one]
        found = samples_of_chunks(draws, asked.drawn[mine], asked.counts[mine])
        for n, ids in zip(mine.tolist(), found, strict=True):
            part = slice(asked.bounds[n], asked.bounds[n + 1])
            stored = read(n).grouped.take(asked.slots[part])
            ids.take(stored, axis=0, out=out[part], mode="clip")  # all are in range


def _take_draws(
    draws: SampleLookup | GrownLookup,
    asked: _Asked,
    chosen: np.ndarray,
    read: Callable[[int], Reading],
    out: np.ndarray,
) -> None:
    """Fills in the samples of some chunks draw by draw, all at once."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for n in chosen.tolist():
        reading, slots = read(n), asked.slots[asked.bounds[n] : asked.bounds[n + 1]]
        component, counts = reading.component.take(slots), asked.counts[n]
        first = asked.drawn[n] - (np.cumsum(counts) - counts)
        parts.append((component, first.take(component) + reading.grouped.take(slots)))
    if parts:
        component, draw = map(np.concatenate, zip(*parts, strict=True))
        mine = np.concatenate([np.arange(*asked.bounds[n : n + 2]) for n in chosen.tolist()])
        out[mine] = draws.of_draws(component, draw)


class RandomAccess:
    """Finds samples by index. Immutable but for a few decoded chunks that it keeps.

    Args:
      eras: Positions of the run.
      settings: The settings of the source.
      orders: Where the datasets' samples lie.
      together: Samples found at once.
    """

    def __init__(
        self,
        eras: Eras,
        settings: MixtureSettings,
        orders: DatasetOrders,
        together: int = TOGETHER,
    ):
        self._eras, self._settings, self._orders = eras, settings, orders
        self._together = together
        self._decoded: tuple[_Decoded, ...] = ()
        self._asked: Any = None

    def _checked_indices(self, indices: object) -> np.ndarray:
        array = np.asarray(indices)
        if array.size == 0:
            return np.zeros(0, dtype=np.int64)
        if array.ndim != 1:
            raise ValueError(f"indices must have shape (n,); got {array.shape}.")
        if array.dtype == object:  # Python ints that no NumPy type holds
            for index in array.tolist():
                as_int(index, "an index")
        elif array.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers; got dtype {array.dtype}.")
        low, high = int(array.min()), int(array.max())
        if max(abs(low), abs(high)) >= MAX_INDEX:
            raise IndexError(f"sample indices must be below 2^62; got {high}.")
        array = array.astype(np.int64, copy=False)
        if low < 0:
            if self._eras.endless:
                raise IndexError(f"negative indices need an end to count from; got {low}.")
            array = np.where(array < 0, array + self._eras.num_samples(), array)
            low, high = int(array.min()), int(array.max())
        if low < 0 or self._eras.span_of_sample(high) is None:
            bad = int(np.asarray(indices).min()) if low < 0 else high
            raise IndexError(
                f"sample index {bad} is out of range for {self._eras.num_samples()} samples."
            )
        return array

    def sample_ids(self, indices: object, epoch: int, config: MixtureReadConfig) -> np.ndarray:
        """Returns the samples at places of the run: int64 (n, 3), in the order asked for.

        Args:
          indices: Integers of shape (n,); negative ones count from the end.
          epoch: Which epoch's order.
          config: How chunks are read.

        Raises:
          TypeError: If the indices are not integers.
          IndexError: If one is out of range.
        """
        wanted = self._checked_indices(indices)
        if not wanted.size:
            return np.zeros((0, 3), dtype=np.int64)
        chunks, slots = self._chunks_of(wanted)
        if not (chunks == chunks[0]).all():
            return self._gather(chunks, slots, epoch, config)
        name = (epoch, config, int(chunks[0]))
        for known in self._decoded:
            if known.name == name:
                return known.ids.take(slots, axis=0)
        if self._asked != name:
            self._asked = name
            return self._gather(chunks, slots, epoch, config)
        # The second question about one chunk: decode it all, for those that will follow.
        whole = np.arange(self._samples_in(name[2]))
        decoded = self._gather(np.full(whole.size, name[2]), whole, epoch, config, ahead=True)
        decoded.setflags(write=False)
        first = int(wanted[0] - slots[0])
        # One assignment: other threads see the old chunks or the new ones.
        self._decoded = (_Decoded(name, first, decoded), *self._decoded[: _KEPT_CHUNKS - 1])
        return decoded.take(slots, axis=0)

    def kept(self, index: int, epoch: int, config: MixtureReadConfig) -> list[int] | None:
        """One sample of a chunk that is kept, for loops that ask for one index after another."""
        for known in self._decoded:
            if 0 <= index - known.first < len(known.ids) and known.name[:2] == (epoch, config):
                return known.ids[index - known.first].tolist()
        return None

    def _chunks_of(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Chunk index and slot of samples: int64 (n,) each."""
        chunks, slots = np.empty_like(wanted), np.empty_like(wanted)
        todo: Any = slice(None)
        while True:
            # The last one first: a part of an era up to it holds the earlier ones too.
            span = self._eras.span_of_sample(int(wanted[todo].max()))
            assert span is not None  # the indices were checked
            inside = wanted[todo] - span.first_sample
            step = inside // self._settings.chunk_size  # faster than divmod
            chunks[todo] = span.start.chunk_index + step
            slots[todo] = inside - step * self._settings.chunk_size
            todo = np.flatnonzero(wanted < span.first_sample)  # these once more
            if not todo.size:
                return chunks, slots

    def _samples_in(self, chunk_index: int) -> int:
        drawn = self._eras.steps.step(self._eras.seek(chunk_index))
        assert drawn is not None
        return int(drawn[0].sum())

    def _gather(
        self,
        chunks: np.ndarray,
        slots: np.ndarray,
        epoch: int,
        config: MixtureReadConfig,
        ahead: bool = False,
    ) -> np.ndarray:
        """Sample ids at slots of chunks: whole chunks as such, single draws all at once.

        With `ahead`, reading orders of the chunks after the last one are computed too.
        """
        if (chunks[1:] < chunks[:-1]).any():
            order = np.argsort(chunks, kind="stable")
            out = np.empty((chunks.size, 3), dtype=np.int64)
            out[order] = self._gather(chunks[order], slots[order], epoch, config)
            return out
        bounds = np.concatenate([[0], np.flatnonzero(np.diff(chunks)) + 1, [chunks.size]])
        positions = [self._eras.seek(g) for g in chunks[bounds[:-1]].tolist()]
        steps = [self._eras.steps.step(position) for position in positions]
        counts = np.stack([step[0].astype(np.int32) for step in steps if step is not None])
        upcoming = np.concatenate([counts, self._counts_after(positions[-1])]) if ahead else counts
        drawn = np.stack([position.drawn for position in positions])
        draws = self._orders.lookup(epoch)

        def read(n: int) -> Reading:
            return self._reading(n, upcoming, positions[n].chunk_index, epoch, config)

        asked = _Asked(slots, bounds.tolist(), counts, drawn)
        out = np.empty((chunks.size, 3), dtype=np.int64)
        dense = 2 * np.diff(bounds) >= counts.sum(axis=1)
        _take_chunks(draws, asked, np.flatnonzero(dense), read, out, self._together)
        _take_draws(draws, asked, np.flatnonzero(~dense), read, out)
        return out

    def _counts_after(self, position: Position) -> np.ndarray:
        """Counts of the chunks after a position's, where they are known at once: int32 (n, k)."""
        allocation = position.era.allocation
        if allocation is None or not allocation.closed:
            return np.zeros((0, len(self._settings.names)), dtype=np.int32)
        since = position.chunk_index + 1 - position.era.first_chunk
        return allocation.quotas_of(since + np.arange(_AHEAD - 1))

    def _reading(
        self, n: int, counts: np.ndarray, chunk_index: int, epoch: int, config: MixtureReadConfig
    ) -> Reading:
        seed = config.seed if config.seed is not None else self._settings.seed
        if epoch:
            low, high = digest_words(2, "epoch", seed, epoch).tolist()
            seed = low | high << 32
        return read_order(
            counts[n],
            MixtureReadConfig(
                mode=config.mode, shuffle_within_component=config.shuffle_within_component
            ),
            names=self._settings.names,
            seed=seed,
            chunk_index=chunk_index,
            slot=0,
            num_lanes=1,
            size=self._settings.chunk_size,
            upcoming=counts[n + 1 : n + _AHEAD],
        )
