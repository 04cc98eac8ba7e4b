"""A mixture's run: from states to chunks, once everything that decides the order is known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon_jax.data.token_estimation import TokenEstimation, shard_costs
from zephon_jax.mixture.chunk_counts import ChunkCounter
from zephon_jax.mixture.chunk_samples import ChunkIds
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.fingerprint import fingerprint, shard_sizes
from zephon_jax.mixture.lane_states import LaneStates
from zephon_jax.mixture.positions import MAX_SAMPLES, UNCAPPED, Position
from zephon_jax.mixture.random_access import Cursors, RunIndex
from zephon_jax.mixture.settings import Knobs, make_rules
from zephon_jax.mixture.state import MAX_LISTED, MixtureState, from_words
from zephon_jax.mixture.token_costs import RunningCost, UnitCost
from zephon_jax.sources.chunk import WorkChunk

__all__ = ["MixtureRun"]

_AHEAD = 31  # chunks whose reading orders are computed with one that is missing,
_AHEAD_COMPONENTS = 1 << 15  # up to so many components in all of them


class MixtureRun:
    """Everything that a run's chunks follow from. Immutable but for what it remembers.

    Args:
      datasets: The datasets of the mixture.
      knobs: Checked settings.
      counts: Samples of each shard of each dataset, int64 (num_shards,) each.
      tokens: What is known of the tokens in the data, where weights are shares of tokens.

    Fields:
      eras: Positions of the run.
      cursors: Where the datasets' samples lie.
      states: Positions as states of lanes.
      samples: Samples by index.
      config: The fingerprint of the source, uint32 (c, 3).
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        knobs: Knobs,
        counts: list[np.ndarray],
        tokens: TokenEstimation | None,
    ):
        self._knobs, self._weighs_tokens = knobs, tokens is not None
        self._targets: dict[bytes, dict[str, float]] = {}
        self.cursors = Cursors(knobs, counts)
        shards, costs, ratios = [], None, np.zeros(0, dtype=np.int64)
        if tokens is not None:
            tokens.check_names(knobs.names)
            shards = [shard_costs(dataset, tokens) for dataset in datasets]
            pairs = zip(self.cursors.of_epoch(0), shards, strict=True)
            costs = [RunningCost(*pair) for pair in pairs]
            if tokens.ratios is not None and len(knobs.names) <= MAX_LISTED:
                ratios = np.asarray([tokens.ratios[name] for name in knobs.names], dtype=np.int64)
        elif knobs.allocation == "virtual_time":
            costs = [UnitCost()] * len(knobs.names)
        totals = np.asarray([int(c.sum()) for c in counts], dtype=np.int64)
        self.eras = Eras(make_rules(knobs, totals, costs))
        self._check_first_quotas()
        self.config = fingerprint(knobs, counts, shards, shard_sizes(datasets))
        self.states = LaneStates(self.eras, knobs, self.config, ratios)
        self.samples = RunIndex(self.eras, knobs, self.cursors)

    @functools.cached_property
    def _ids(self) -> ChunkIds:
        return ChunkIds(self.cursors.draws(0), self._knobs.chunk_size)

    @functools.cached_property
    def counter(self) -> ChunkCounter:
        """Counts of many chunks at once."""
        bound = (-2.0, 1.0) if self._knobs.allocation == "incremental" else None
        costs = self.eras.rules.costs if self._weighs_tokens else None
        return ChunkCounter(self.eras, self._knobs.names, self.target_at, costs, bound)

    def _check_first_quotas(self) -> None:
        rules, quotas = self.eras.rules, self.eras.first_quotas()
        over = (rules.caps != UNCAPPED) & (quotas > rules.caps)
        for d in np.flatnonzero(over)[:1]:
            raise ValueError(
                f"dataset {self._knobs.names[d]!r} gives {quotas[d]} samples to the first chunk and"
                f" has only {rules.caps[d]} to give under exhausted_policy ="
                f" {self._knobs.exhausted_policy[d]!r}. Lower chunk_size = "
                f"{self._knobs.chunk_size} or its weight, or use 'repeat' or 'redistribute'."
            )

    @functools.cached_property
    def start(self) -> MixtureState:
        """The state before the first chunk of a run with one lane: decoding compares with it."""
        return self.seek(0, 0, 1, 0)

    def seek(self, chunk_index: int, lane: int, num_lanes: int, origin: int) -> MixtureState:
        """The state whose next chunk is this lane's first at or after `chunk_index`."""
        first = self.states.lane_chunk(chunk_index, lane, num_lanes, origin)
        position = self.eras.seek(first)
        if position.chunk_index < origin:
            raise ValueError(
                f"origin = {origin} is past the end of the run, which has"
                f" {position.chunk_index} chunks."
            )
        return self.states.state(position, lane, num_lanes, origin)

    def next_chunk(self, state: MixtureState) -> tuple[WorkChunk | None, MixtureState]:
        """The lane's next chunk and the state after it; at the end None and the same state."""
        eras, states = self.eras, self.states
        lane, num_lanes, origin = int(state.lane), int(state.num_lanes), from_words(state.origin)
        position = states.position(state)
        here = states.lane_chunk(position.chunk_index, lane, num_lanes, origin)
        position = eras.advance(position, here)
        drawn = eras.step(position) if position.chunk_index == here else None
        if drawn is None:
            return None, state
        quotas, after = drawn
        chunk = self._chunk(position, quotas, after, lane, num_lanes, origin)
        there = states.lane_chunk(here + 1, lane, num_lanes, origin)
        return chunk, states.state(eras.advance(after, there), lane, num_lanes, origin)

    def _chunk(
        self, position: Position, quotas: np.ndarray, after: Position, lane: int, num_lanes: int,
        origin: int,
    ) -> WorkChunk:  # fmt: skip
        def next_chunk(chunk_index: int) -> int:
            return self.states.lane_chunk(chunk_index + 1, lane, num_lanes, origin)

        return WorkChunk.from_arrays(
            names=self._knobs.names,
            counts=quotas.astype(np.int32),
            ids=self._ids.of(position, quotas, (lane, num_lanes, origin), next_chunk),
            seed=self._knobs.seed,
            target=self.target_at(position),
            source_exhausted=self._exhausted(after),
            chunk_index=position.chunk_index,
            slot=(position.chunk_index - origin) % num_lanes,
            num_lanes=num_lanes,
            whole=self._knobs.chunk_size,
            upcoming=functools.partial(self._upcoming, position, next_chunk),
        )

    def target_at(self, position: Position) -> dict[str, float]:
        """The shares that the chunk at a position stands for, by name."""
        name = position.era.active.tobytes()
        if name not in self._targets:
            shares = [
                f if on else 0
                for f, on in zip(self._knobs.fractions, position.era.active, strict=True)
            ]
            total = sum(shares)
            self._targets[name] = {
                n: float(share / total) for n, share in zip(self._knobs.names, shares, strict=True)
            }
        return self._targets[name]

    def _exhausted(self, after: Position) -> tuple[str, ...]:
        """Components that give nothing from this position on."""
        rules = self.eras.rules
        ends = np.where(rules.leaves, rules.totals, rules.caps)
        gone = rules.weighted & (ends != UNCAPPED) & (after.drawn >= ends)
        if self.eras.ended(after):
            gone = rules.weighted
        return tuple(self._knobs.names[d] for d in np.flatnonzero(gone))

    def _upcoming(self, position: Position, next_chunk: Callable[[int], int]) -> np.ndarray:
        """Counts of the lane's next chunks, for reading orders: int32 (n, k)."""
        allocation = position.era.allocation
        if allocation is None or not allocation.closed:
            return np.zeros((0, len(self._knobs.names)), dtype=np.int32)
        here, chunks = position.chunk_index, []
        most = MAX_SAMPLES // self._knobs.chunk_size
        for _ in range(min(_AHEAD, _AHEAD_COMPONENTS // len(self._knobs.names))):
            here = next_chunk(here)
            if here < most:
                chunks.append(here - position.era.first_chunk)
        return allocation.quotas_of(np.asarray(chunks, dtype=np.int64))
