"""Whole schedules as JAX functions: the chunks of a mixture under `jit`, `lax.scan` and `vmap`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import Array, as_int, is_tracer
from zephon_jax._text import short
from zephon_jax.kernels import lattice, permutation, quota, swrr
from zephon_jax.kernels.keys import fold, make_key
from zephon_jax.mixture.allocation import CarriedQuotas
from zephon_jax.mixture.base import MixtureSource
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.mixture.history import split_carry
from zephon_jax.mixture.traced_lookup import LookupKeys, TracedLookup, keys_of
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config

__all__ = ["TracedMixture", "TracedState", "traced"]

# What states of one traced function may differ in.
_FREE = {
    "seed", "mixture weights", "changes of the weights", "number of changes of the weights",
}  # fmt: skip
_MOST = (1 << 31) - 1  # draws, samples of a dataset, chunks
_MOST_ROWS = 1 << 16  # of a table of shards that would serve any weights


class Weighings(NamedTuple):
    """Weights, one entry after another: E of them, one where weights stay."""

    __module__ = "zephon_jax"

    first_chunk: Array  # int32 (E,), from which on an entry holds
    carry: Array  # int32 (E, k), at its first chunk
    whole: Array  # int32 (E, k), as in `quota.Shares`
    rem: Array  # int32 (E, k)
    unit: Array  # int32 (E,)


class TracedState(NamedTuple):
    """Where one lane of a traced mixture stands, and what seed and weights decide. A pytree."""

    __module__ = "zephon_jax"

    lane: Array  # int32 ()
    lane_step: Array  # int32 (), chunks that the lane has had
    chunk: Array  # int32 (), the chunk before which carry and drawn stand
    carry: Array  # int32 (k,), in units of 1 / W
    drawn: Array  # int32 (k,), samples of each component before it
    weights: Weighings  # what each component is owed a chunk
    lanes_key: Array  # uint32 (2,), deals chunks to lanes
    lookup_keys: LookupKeys  # of the datasets' shuffles


class TracedMixture:
    """A mixture's chunks as JAX functions. Made by `zx.traced`.

    Fields:
      names: Component names; `component` in what `next_chunk` gives indexes them.
      chunk_size: Samples in a chunk, n.
      num_chunks: Chunks of the run, over all lanes.
      num_lanes: Number of lanes.
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        source: ConfiguredMixture,
        num_chunks: int,
        num_lanes: int,
        read_config: MixtureReadConfig,
    ):
        settings = source.settings
        self.names, self.chunk_size = settings.names, settings.chunk_size
        self.num_chunks, self.num_lanes = num_chunks, num_lanes
        self._source, self._config = source, read_config
        self._lattice = read_config.mode == "lattice"
        self._permuted = settings.lane_assignment == "permute" and num_lanes > 1
        orders, k = source.run.orders.of_epoch(0), len(settings.names)
        weights = _weighings_of(source, num_chunks)
        self._num_entries = len(weights.unit)
        lookup = TracedLookup(orders, np.full(k, self.chunk_size))
        self._most = np.full(k, self.chunk_size)  # samples that a chunk draws of each, at most
        if lookup.num_rows > _MOST_ROWS:
            self._most = _most_drawn(weights, self.chunk_size)
            lookup = TracedLookup(orders, self._most)
        self._lookup = lookup

    def __reduce__(self) -> tuple[object, ...]:
        return TracedMixture, (self._source, self.num_chunks, self.num_lanes, self._config)

    def __repr__(self) -> str:
        lanes = "" if self.num_lanes == 1 else f", num_lanes={self.num_lanes}"
        return f"traced({self._source!r}, num_chunks={self.num_chunks}{lanes})"

    def init(self, lane: Array | int = 0, *, of: ConfiguredMixture | None = None) -> TracedState:
        """Returns the state before a lane's first chunk.

        Args:
          lane: The lane, an int or an int32 scalar that may be traced.
          of: A source that differs from the traced one in its seed and its weights alone: the same
            compiled function then gives its chunks.

        Returns:
          A pytree of NumPy arrays; states of several sources or lanes are stacked for `vmap`.

        Raises:
          TypeError, ValueError: If the lane is out of range, or `of` differs in something else.
        """
        if is_tracer(lane):
            lane = lane.astype(np.int32)  # type: ignore[union-attr]
        else:
            lane = np.int32(as_int(np.asarray(lane)[()], "lane", 0, self.num_lanes - 1))
        source = self._source if of is None else self._checked(of)
        weights = _weighings_of(source, self.num_chunks)
        if len(weights.unit) != self._num_entries:
            raise ValueError(
                "of= must change its weights as often as the traced source,"
                f" {self._num_entries - 1} times; it does so {len(weights.unit) - 1} times. Trace"
                " it by itself."
            )
        if (_most_drawn(weights, self.chunk_size) > self._most).any():
            raise ValueError(
                "these weights draw more samples in a chunk than the traced function has room for."
                " Trace a source with these weights."
            )
        seed, zero = source.settings.seed, np.int32(0)
        return TracedState(
            lane=lane,
            lane_step=zero,
            chunk=zero,
            carry=np.zeros(len(self.names), dtype=np.int32),
            drawn=np.zeros(len(self.names), dtype=np.int32),
            weights=weights,
            lanes_key=make_key(seed, "lanes", self.num_lanes, 0),
            lookup_keys=keys_of(source.run.orders.of_epoch(0)),
        )

    def _checked(self, source: ConfiguredMixture) -> ConfiguredMixture:
        mine, other = self._source.fingerprint(), source.fingerprint()
        names = (mine.keys() | other.keys()) - _FREE
        differs = sorted(name for name in names if mine.get(name) != other.get(name))
        if differs:
            raise ValueError(
                f"of= must differ from the traced source in its seed and weights alone; it differs"
                f" in {', '.join(differs)}. Trace it by itself."
            )
        _check_length(source, self.num_chunks)
        return source

    def next_chunk(self, state: TracedState) -> tuple[Array, Array, TracedState]:
        """The lane's next chunk in reading order. To be called under `jit`.

        Args:
          state: From `init` or the last call.

        Returns:
          Component indices, int32 (n,), sample ids, int32 (n, 3), and the next state. At the end
          all of them are -1 and the state stays as it is.
        """
        import jax
        import jax.numpy as jnp

        state = jax.tree.map(jnp.asarray, state)  # a state made under jit holds NumPy arrays
        g = self._chunk_of(state)
        over = g >= self.num_chunks

        def step(at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            counts, carry = self._quotas(state.weights, at[0], at[1])
            return at[0] + 1, carry, at[2] + counts

        start = state.chunk, state.carry, state.drawn
        target = jnp.where(over, state.chunk, g)
        _, carry, drawn = jax.lax.while_loop(lambda at: at[0] < target, step, start)
        counts, after = self._quotas(state.weights, target, carry)
        component = self._order(counts, g)
        draw = drawn[component] + self._rank(component)
        ids = self._lookup(component, draw, drawn, state.lookup_keys)
        moved = state._replace(
            lane_step=state.lane_step + 1, chunk=g + 1, carry=after, drawn=drawn + counts
        )
        state = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, moved)
        return jnp.where(over, -1, component), jnp.where(over, -1, ids), state

    def _quotas(self, weights: Weighings, chunk: Array, carry: Array) -> tuple[Array, Array]:
        """What a chunk draws of each component, and the carry after it: int32 (k,) each."""
        import jax.numpy as jnp

        entry = jnp.searchsorted(weights.first_chunk, chunk, side="right") - 1
        fresh = weights.first_chunk[entry] == chunk
        shares = quota.Shares(
            whole=weights.whole[entry],
            rem=weights.rem[entry],
            unit=weights.unit[entry],
            chunk_size=jnp.int32(self.chunk_size),
        )
        return quota.step(shares, jnp.where(fresh, weights.carry[entry], carry))

    def _chunk_of(self, state: TracedState) -> Array:
        """The lane's next chunk: int32 ()."""
        import jax.numpy as jnp

        place = state.lane
        if self._permuted:
            key = fold(state.lanes_key, state.lane_step)
            place = permutation.invert(place, self.num_lanes, key).astype(jnp.int32)
        return state.lane_step * self.num_lanes + place

    def _order(self, counts: Array, g: Array) -> Array:
        """The component of each slot: int32 (n,)."""
        if self._lattice:
            return lattice.order(counts, g % self.num_lanes, self.num_lanes, self.chunk_size)
        return swrr.order(counts, self.chunk_size)

    def _rank(self, component: Array) -> Array:
        """How many slots before each one have its component: int32 (n,)."""
        import jax
        import jax.numpy as jnp

        places = jnp.arange(len(self.names), dtype=jnp.int32)
        if self._lattice:  # nothing here goes slot by slot, which accelerators take long for
            hits = (component[:, None] == places).astype(jnp.int32)
            seen = jnp.cumsum(hits, axis=0, dtype=jnp.int32)
            return jnp.take_along_axis(seen, component[:, None], axis=1)[:, 0] - 1

        def count(seen: Array, one: Array) -> tuple[Array, Array]:
            hit = places == one
            return seen + hit, jnp.sum(jnp.where(hit, seen, 0), dtype=jnp.int32)

        # As round robin does. On a CPU a sixth of the time of the above.
        return jax.lax.scan(count, jnp.zeros_like(places), component, unroll=4)[1]


def _weighings_of(source: ConfiguredMixture, num_chunks: int) -> Weighings:
    """The weights of a run's first chunks, in arrays of NumPy."""
    firsts = [one.first_chunk for one in source.eras.steps.rules.weighings]
    positions = [source.eras.seek(first) for first in firsts if first < num_chunks]
    carries: list[np.ndarray] = []
    shares: list[quota.Shares] = []
    for position in positions:
        allocation = position.era.allocation
        assert isinstance(allocation, CarriedQuotas)
        shares.append(allocation.shares)
        # What waiting components hold is no part of the quotas.
        carries.append(split_carry(position.carry, position.era.active).carry)
    return Weighings(
        first_chunk=np.asarray([one.chunk_index for one in positions], dtype=np.int32),
        carry=np.stack(carries),
        whole=np.stack([one.whole for one in shares]),
        rem=np.stack([one.rem for one in shares]),
        unit=np.stack([one.unit for one in shares]),
    )


def _most_drawn(weights: Weighings, chunk_size: int) -> np.ndarray:
    """Samples that a chunk draws of each component at most: int64 (k,)."""
    # A carry lies in (-unit, 2 * unit), and one sample more is given out for what is missing.
    room = np.where(weights.rem > 0, 4, 0)
    return np.minimum(weights.whole.astype(np.int64) + room, chunk_size).max(axis=0)


def _check_length(source: ConfiguredMixture, num_chunks: int) -> None:
    last = source.chunk_spans()[-1]
    if last.num_chunks is not None and num_chunks > last.first_chunk + last.num_chunks:
        raise ValueError(
            f"num_chunks must be at most the {last.first_chunk + last.num_chunks} chunks of"
            f" {source!r}; got {num_chunks}."
        )


def _check_traceable(source: ConfiguredMixture, config: MixtureReadConfig) -> None:
    """Refuses by name what has no form of fixed shape in 32 bits."""
    settings = source.settings
    leaving = [
        name
        for name, policy, share in zip(
            settings.names, settings.exhausted_policy, settings.fractions, strict=True
        )
        if policy == "redistribute" and share
    ]
    if leaving:
        raise ValueError(
            f"exhausted_policy = 'redistribute' of {leaving[:8]} cannot be traced: chunks become"
            " short and shares change where a dataset ends. Use 'repeat' or 'stop'."
        )
    if source.run.orders.growths:
        raise ValueError(
            "a mixture whose datasets got shards in mid-run cannot be traced: their passes go"
            " through generations. Trace a new run of all shards."
        )
    if source.unit == "tokens":
        raise ValueError(
            "a mixture in tokens cannot be traced: its allocation is exact in large integers. Leave"
            " token_estimation out, and give shares of samples."
        )
    if settings.allocation == "virtual_time":
        raise ValueError(
            "allocation = 'virtual_time' cannot be traced: it is exact in large integers. Use"
            " 'incremental' or 'fixed'."
        )
    if config.mode == "weighted_random" or config.shuffle_within_component:
        raise ValueError(
            f"mode = {config.mode!r} with shuffle_within_component ="
            f" {config.shuffle_within_component} cannot be traced: its keys are digests of each"
            " chunk's number, made on the host. Read by 'smooth_weighted_round_robin' or 'lattice'."
        )


def _check_sizes(source: ConfiguredMixture, num_chunks: int) -> None:
    """Refuses what 32 bits do not hold."""
    samples = num_chunks * source.settings.chunk_size
    if samples > _MOST:
        raise ValueError(
            f"a traced run has at most 2^31 - 1 samples; got num_chunks = {num_chunks} of"
            f" {source.settings.chunk_size}. Lower num_chunks."
        )
    sizes = source.eras.steps.rules.totals.tolist()
    for name, size in zip(source.settings.names, sizes, strict=True):
        if size > _MOST:
            raise ValueError(
                f"dataset {name!r} has {size} samples; a traced run goes through datasets of at"
                " most 2^31 - 1. Split it into several."
            )


def traced(
    source: ConfiguredMixture,
    *,
    num_chunks: int | None = None,
    num_lanes: int = 1,
    read_config: MixtureReadConfig | None = None,
) -> TracedMixture:
    """Makes a mixture's schedule a JAX function, for `jit`, `lax.scan` and `vmap`.

    `init` and `next_chunk` of what it returns give what `source.next_chunk` and `chunk.order` do,
    bit for bit, without the host: quotas, reading order, shuffles, passes and lanes. Under `vmap`
    states may differ by lane, by seed and by weights, schedules of as many changes included.
    Integers are of 32 bits, with x64 or without.

    Args:
      source: A mixture whose weights stay, or a schedule.
      num_chunks: Chunks of the run, over all lanes; all of it by default, where it ends.
      num_lanes: Number of lanes.
      read_config: Round robin or lattice; smooth weighted round robin by default.

    Returns:
      An object with `init(lane)` and `next_chunk(state)`.

    Raises:
      TypeError: If the source is no mixture.
      ValueError: If it has not so many chunks, has more than 32 bits hold, or a setting cannot be
        traced: "redistribute", tokens, virtual time, random reading orders.

    Example:
      >>> import jax
      >>> import zephon_jax as zx
      >>> web, toy = zx.Dataset.from_counts("web", [60, 40]), zx.Dataset.from_counts("toy", [5])
      >>> source = zx.StaticMixtureWorkSource(
      ...     [web, toy], {"web": 3, "toy": 1}, chunk_size=8, shuffle_within_shard=True)
      >>> order = zx.traced(source, num_chunks=4)
      >>> def step(state, _):
      ...     component, ids, state = order.next_chunk(state)
      ...     return state, ids
      >>> _, ids = jax.jit(lambda state: jax.lax.scan(step, state, length=4))(order.init())
      >>> ids.reshape(-1, 3).tolist() == source.sample_ids_at(range(32)).tolist()
      True
    """
    own = getattr(type(source), "next_chunk", None)
    if not isinstance(source, ConfiguredMixture) or own is not MixtureSource.next_chunk:
        raise TypeError(
            "traced needs a zx.StaticMixtureWorkSource or a zx.ScheduledMixtureWorkSource; got"
            f" {short(source)}. Other sources draw on the host alone."
        )
    config = check_read_config(read_config)
    _check_traceable(source, config)
    num_lanes = as_int(num_lanes, "num_lanes", 1, 1 << 15)
    last = source.chunk_spans()[-1]
    if num_chunks is None:
        if last.num_chunks is None:
            raise ValueError(f"{source!r} never ends: say how far to trace it with num_chunks=.")
        num_chunks = last.first_chunk + last.num_chunks
    num_chunks = as_int(num_chunks, "num_chunks", 1)
    _check_length(source, num_chunks)
    _check_sizes(source, num_chunks)
    return TracedMixture(source, num_chunks, num_lanes, config)
