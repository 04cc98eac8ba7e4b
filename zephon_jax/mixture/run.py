"""A mixture's run: from states to chunks, once everything that decides the order is known."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.data.token_estimation import TokenEstimation, shard_costs
from zephon_jax.mixture.changed_data import ChangedData
from zephon_jax.mixture.chunk_counts import ChunkCounter
from zephon_jax.mixture.chunk_planner import ChunkPlan, ChunkPlanner
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.fingerprint import fingerprint
from zephon_jax.mixture.history import UNCAPPED
from zephon_jax.mixture.lane_chunks import Lane
from zephon_jax.mixture.lane_states import LaneStates, Standing
from zephon_jax.mixture.positions import Position, Steps
from zephon_jax.mixture.random_access import DatasetOrders, RandomAccess
from zephon_jax.mixture.rules import make_rules
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.mixture.state import MAX_LISTED, MixtureState
from zephon_jax.mixture.token_costs import RunningCost, UnitCost
from zephon_jax.mixture.token_ends import chunks_of_points
from zephon_jax.sources.checks import ShardedDataset
from zephon_jax.sources.chunk import WorkChunk

__all__ = ["MixtureRun"]

_KEPT_TARGETS = 16  # eras whose shares are remembered


class MixtureRun:
    """Everything that a run's chunks follow from. Immutable but for what it remembers.

    Args:
      datasets: The datasets of the mixture.
      settings: Checked settings.
      counts: Samples of each shard of each dataset, int64 (num_shards,) each.
      tokens: What is known of the tokens in the data, where weights are shares of tokens.

    Fields:
      eras: Positions of the run.
      orders: Where the datasets' samples lie.
      states: Positions as states of lanes.
      samples: Samples by index.
      config: The fingerprint of the source, uint32 (c, 3).
    """

    def __init__(
        self,
        datasets: Sequence[ShardedDataset],
        settings: MixtureSettings,
        counts: list[np.ndarray],
        tokens: TokenEstimation | None,
    ):
        self._settings, self._weighs_tokens = settings, tokens is not None
        self._targets: BoundedCache[tuple[int, bytes], dict[str, float]] = BoundedCache(
            _KEPT_TARGETS
        )
        self.orders = DatasetOrders(settings, counts)
        shards, costs, ratios = [], None, np.zeros(0, dtype=np.int64)
        if tokens is not None:
            self._check_ungrown(settings)
            shards, costs = _token_costs(datasets, self.orders, settings.names, tokens)
            if tokens.ratios is not None and len(settings.names) <= MAX_LISTED:
                ratios = np.asarray(
                    [tokens.ratios[name] for name in settings.names], dtype=np.int64
                )
        elif settings.allocation == "virtual_time":
            costs = [UnitCost()] * len(settings.names)
        totals = np.asarray([int(c.sum()) for c in counts], dtype=np.int64)
        self.eras = Eras(Steps(make_rules(settings, totals, costs, self.orders.growths)))
        self._check_first_quotas()
        self.config = fingerprint(settings, counts, shards, datasets)
        self.states = LaneStates(self.eras, settings, self.config, ratios, ChangedData(datasets))
        self.samples = RandomAccess(self.eras, settings, self.orders)

    def _check_ungrown(self, settings: MixtureSettings) -> None:
        """Refuses shards that were added to a mixture in tokens."""
        grown = [settings.names[d] for d in self.orders.growths]
        if grown:
            raise ValueError(
                f"datasets {grown[:8]} got shards in mid-run, and a mixture in tokens goes by what"
                " all of a dataset's shards hold. Add the shards as a new dataset of a new run."
            )

    @functools.cached_property
    def planner(self) -> ChunkPlanner:
        """A lane's next chunks."""
        return ChunkPlanner(self.eras, self.orders.lookup(0), self._settings.chunk_size)

    @functools.cached_property
    def counter(self) -> ChunkCounter:
        """Counts of many chunks at once."""
        bound = (-2.0, 1.0) if self._settings.allocation == "incremental" else None
        costs = self.eras.steps.rules.costs if self._weighs_tokens else None
        return ChunkCounter(self.eras, self._settings.names, self.target_at, costs, bound)

    def _check_first_quotas(self) -> None:
        """Refuses a run that has to end before the first chunk, or at a change, by its sizes."""
        steps, settings = self.eras.steps, self._settings
        capped = steps.rules.weighings[0].caps != UNCAPPED
        if not capped.any():
            return
        for weighing in steps.rules.weighings:
            first = weighing.first_chunk == 0
            if not first and steps.rules.costs is not None:
                break  # what later chunks ask for follows from the draws before
            quotas = steps.first_quotas() if first else steps.least_quotas(weighing)
            for d in np.flatnonzero(capped & (quotas > weighing.caps))[:1]:
                where = "the first chunk" if first else f"each chunk from {weighing.first_chunk} on"
                raise ValueError(
                    f"dataset {settings.names[d]!r} gives {quotas[d]} samples to {where}"
                    f" and has only {weighing.caps[d]} to give under exhausted_policy ="
                    f" {settings.exhausted_policy[d]!r}. Lower chunk_size = "
                    f"{settings.chunk_size} or its weight, or use 'repeat' or 'redistribute'."
                )

    @functools.cached_property
    def start(self) -> MixtureState:
        """The state before the first chunk of a run with one lane: decoding compares with it."""
        return self.seek(0, self.states.lane(0, 1))

    def seek(self, chunk_index: int, lane: Lane) -> MixtureState:
        """The state whose next chunk is this lane's first at or after `chunk_index`."""
        position = self.eras.seek(lane.chunk_from(chunk_index))
        if position.chunk_index < lane.origin:
            raise ValueError(
                f"origin = {lane.origin} is past the end of the run, which has"
                f" {position.chunk_index} chunks."
            )
        return self.states.state(position, lane)

    def seek_lanes(self, chunk_index: int, lanes: Sequence[Lane]) -> list[MixtureState]:
        """`seek` of many lanes at once."""
        start = self.eras.seek(chunk_index)
        chunks = [lane.chunk_from(chunk_index) for lane in lanes]
        allocation, found = start.era.allocation, dict[int, Position]()
        if allocation is not None and allocation.closed and start.chunk_index == chunk_index:
            rows = self.eras.steps.plain_rows(start.era, np.unique(chunks))
            for chunk, carry, drawn in zip(
                rows.chunks.tolist(), rows.carry, rows.drawn, strict=True
            ):
                found[chunk] = Position(chunk, start.era, carry.copy(), drawn.copy())
        return [
            self.states.state(found[chunk], lane)
            if chunk in found
            else self.seek(chunk_index, lane)
            for chunk, lane in zip(chunks, lanes, strict=True)
        ]

    def next_chunks(
        self, standings: Sequence[Standing]
    ) -> list[tuple[WorkChunk | None, MixtureState]]:
        """`next_chunk` of many lanes at once."""
        positions = [standing.position for standing in standings]
        plans = self.planner.next_of_lanes(positions, [standing.lane for standing in standings])
        return [self._drawn(*pair) for pair in zip(standings, plans, strict=True)]

    def next_chunk(self, standing: Standing) -> tuple[WorkChunk | None, MixtureState]:
        """The lane's next chunk and the state after it; at the end None and the same state."""
        return self._drawn(standing, self.planner.next(standing.position, standing.lane))

    def _drawn(
        self, standing: Standing, plan: ChunkPlan | None
    ) -> tuple[WorkChunk | None, MixtureState]:
        lane = standing.lane
        if plan is None:
            return None, standing.state
        gone, names = plan.exhausted, self._settings.names
        chunk_index = plan.position.chunk_index
        chunk = WorkChunk.from_arrays(
            names=names,
            counts=plan.quotas,
            ids=plan.ids,
            finder=None if plan.ids is not None else plan.finder,
            seed=self._settings.seed,
            target=self.target_at(plan.position),
            source_exhausted=tuple(map(names.__getitem__, gone.nonzero()[0])) if gone.any() else (),
            chunk_index=chunk_index,
            slot=(chunk_index - lane.origin) % lane.num_lanes,
            num_lanes=lane.num_lanes,
            whole=self._settings.chunk_size,
            upcoming=plan.upcoming,
        )
        return chunk, self.states.after(standing, plan.after)

    def target_at(self, position: Position) -> dict[str, float]:
        """The shares that the chunk at a position stands for, by name."""
        era = position.era
        name = (era.first_chunk, era.active.tobytes())
        target = self._targets.get(name)
        if target is None:
            units = era.weighing.units
            shares = [unit if on else 0 for unit, on in zip(units, era.active, strict=True)]
            total = sum(shares)
            names = self._settings.names
            target = {n: share / total for n, share in zip(names, shares, strict=True)}
            self._targets.put(name, target)
        return target


def _token_costs(
    datasets: Sequence[ShardedDataset],
    orders: DatasetOrders,
    names: tuple[str, ...],
    tokens: TokenEstimation,
) -> tuple[list[np.ndarray], list[RunningCost]]:
    """What each shard costs, int64 (num_shards,), and what draws do, of each dataset."""
    tokens.check_names(names)
    shards = [shard_costs(dataset, tokens) for dataset in datasets]
    pairs = zip(orders.of_epoch(0), shards, strict=True)
    return shards, [RunningCost(*pair) for pair in pairs]


def placed_in_tokens(
    datasets: Sequence[ShardedDataset],
    settings: MixtureSettings,
    counts: list[np.ndarray],
    tokens: TokenEstimation,
) -> tuple[int, ...]:
    """The chunks of a schedule's `token_points`.

    Args:
      datasets: The datasets of the mixture.
      settings: Checked settings, whose entries come in their order.
      counts: Samples of each shard of each dataset, int64 (num_shards,) each.
      tokens: What is known of the tokens in the data.
    """
    orders = DatasetOrders(replace(settings, changes=()), counts)
    _, costs = _token_costs(datasets, orders, settings.names, tokens)
    totals = np.asarray([int(c.sum()) for c in counts], dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said where the run is made
        rules = make_rules(settings, totals, costs, {})
    return chunks_of_points(settings.token_points, rules)
