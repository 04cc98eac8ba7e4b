"""A mixture with weights that stay: the source most runs need."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from zephon_jax import lanes
from zephon_jax._xp import as_int
from zephon_jax.chunk import WorkChunk
from zephon_jax.costs import UnitCost
from zephon_jax.cursor import sample_ids
from zephon_jax.eras import MAX_SAMPLES, UNCAPPED, Eras, Position
from zephon_jax.knobs import (
    CONFIG_THINGS,
    Knobs,
    check_datasets,
    config_digests,
    make_knobs,
    make_rules,
)
from zephon_jax.locate import locate
from zephon_jax.places import Place
from zephon_jax.reading import MixtureReadConfig, check_read_config
from zephon_jax.run_index import Cursors, RunIndex
from zephon_jax.source import ChunkSpan, WorkSource, check_lane
from zephon_jax.state import MAX_LISTED, MixtureState, from_words, ledger_digest, to_words
from zephon_jax.virtual_time import Cost

__all__ = ["StaticMixtureWorkSource"]

_PAGE = 64  # blocks whose place in the lanes is looked up at once
_AHEAD = 31  # chunks whose reading orders are computed with one that is missing
_KEPT_COMPONENTS = 1 << 16  # components of positions remembered, over all of them


@functools.lru_cache(maxsize=1024)
def _lane_page(
    page: int, lane: int, num_lanes: int, seed: int, assignment: str, origin: int
) -> list[int]:
    """The lane's chunks in _PAGE consecutive blocks: one call costs as much as one chunk's."""
    steps = np.arange(page * _PAGE, (page + 1) * _PAGE)
    return lanes.chunk_of_lane(steps, lane, num_lanes, seed, assignment, origin=origin).tolist()


class StaticMixtureWorkSource(WorkSource):
    """Draws from datasets by weights that do not change. Immutable and picklable.

    Args:
      datasets: Named lists of shards; a dataset's id is its place here, and each is a component.
      mixture: Weight of each dataset: `MixtureSpec` or a mapping by name. Only ratios matter.
      chunk_size: Samples in a chunk, 1 to 2^28.
      seed: Any int. Decides every shuffle and the lanes.
      shuffle_shards: Go through the shards in a random order.
      shuffle_within_shard: Go through each shard in a random order.
      shuffle_block_size: Shuffle blocks of so many consecutive samples of the resulting sequence;
        "auto" is 8 times the largest shard, "global" shuffles the whole dataset at once (the
        first two levels are then not applied), None leaves the sequence as it is.
      exhausted_policy: What happens when a dataset has been gone through: "stop" ends the run
        before the chunk it cannot fill, "repeat" starts it again, "redistribute" gives its share
        to the others. Every dataset repeats by default.
      reshuffle_on_repeat: Give each pass an order of its own.
      max_repeats: Caps "repeat" at so many passes after the first; the run then ends as with
        "stop".
      stop_after_passes: End the run at the first chunk boundary where every active dataset has
        been gone through so often. 1 unless a policy or `max_repeats` is given.
      lane_assignment: How chunks are dealt to lanes: "permute" or "modulo".
      allocation: "incremental" carries fractions of samples from chunk to chunk; "fixed" gives
        every chunk the same counts, at least one sample of each component; "virtual_time" deals
        draws out one by one by weighted fair queueing, a closed form that carries nothing.

    The shuffle and policy settings take one value for all datasets or a mapping that names every
    dataset.

    Raises:
      TypeError, ValueError: If a setting is not allowed, naming it and what is.

    Example:
      >>> import zephon_jax as zx
      >>> web, toy = zx.Dataset.from_counts("web", [600, 400]), zx.Dataset.from_counts("toy", [50])
      >>> source = zx.StaticMixtureWorkSource(
      ...     datasets=[web, toy], mixture={"web": 3, "toy": 1}, chunk_size=100, seed=0)
      >>> chunk, state = source.next_chunk(source.init())
      >>> {name: len(ids) for name, ids in chunk.components.items()}
      {'web': 75, 'toy': 25}
      >>> len(source), source[999] == source.sample_id_at(999)
      (1400, True)
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        mixture: Mapping[str, Any],
        chunk_size: int = 16384,
        seed: int = 42,
        shuffle_shards: bool | Mapping[str, bool] = True,
        shuffle_within_shard: bool | Mapping[str, bool] = False,
        shuffle_block_size: int | str | Mapping[str, int | str | None] | None = None,
        exhausted_policy: str | Mapping[str, str] | None = None,
        reshuffle_on_repeat: bool | Mapping[str, bool] = True,
        max_repeats: int | Mapping[str, int | None] | None = None,
        stop_after_passes: int | None = None,
        lane_assignment: str = "permute",
        allocation: str = "incremental",
    ):
        settings = {
            # Copies: what the caller does to a mapping later must not reach a pickled source.
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in locals().items()
            if name not in ("self", "datasets", "__class__")
        }
        self._build(check_datasets(datasets), settings)

    def _build(self, datasets: tuple[Any, ...], settings: dict[str, Any]) -> None:
        """Makes everything that follows from the arguments."""
        self._datasets, self._settings = datasets, settings
        names = [dataset.name for dataset in datasets]
        self._knobs = make_knobs(names, **settings)
        self._counts = [np.asarray(d.shard_counts, dtype=np.int64) for d in datasets]
        totals = np.asarray([int(counts.sum()) for counts in self._counts], dtype=np.int64)
        self._cursors = Cursors(self._knobs, self._counts)
        self._eras = Eras(make_rules(self._knobs, totals, self._costs()))
        self._config = config_digests(self._knobs, self._counts)
        self._by_id = MappingProxyType(dict(enumerate(datasets)))
        self._ids = MappingProxyType({name: d for d, name in enumerate(names)})
        self._targets: dict[bytes, dict[str, float]] = {}
        self._recent: OrderedDict[int, Position] = OrderedDict()
        self._lock = threading.Lock()
        self._index = RunIndex(self._eras, self._knobs, self._cursors)
        self._check_first_quotas()
        self._built = frozenset(vars(self)) | {"_built"}

    def _costs(self) -> Sequence[Cost] | None:
        """What each dataset's draws cost, under virtual time."""
        if self._knobs.allocation != "virtual_time":
            return None
        return [UnitCost()] * len(self._knobs.names)

    def _check_first_quotas(self) -> None:
        rules, quotas = self._eras.rules, self._eras.first_quotas()
        over = (rules.caps != UNCAPPED) & (quotas > rules.caps)
        for d in np.flatnonzero(over)[:1]:
            raise ValueError(
                f"dataset {self._knobs.names[d]!r} gives {quotas[d]} samples to the first chunk and"
                f" has only {rules.caps[d]} to give under exhausted_policy ="
                f" {self._knobs.exhausted_policy[d]!r}. Lower chunk_size = "
                f"{self._knobs.chunk_size} or its weight, or use 'repeat' or 'redistribute'."
            )

    def __getstate__(self) -> dict[str, Any]:
        # What a subclass adds travels as it is; the rest follows from the arguments.
        own = {name: value for name, value in vars(self).items() if name not in self._built}
        return {"datasets": self._datasets, "settings": self._settings, "own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, where the source was first made
            self._build(state["datasets"], state["settings"])
        vars(self).update(state["own"])

    def __repr__(self) -> str:
        knobs = self._knobs
        shares = {
            n: round(float(f), 6) for n, f in zip(knobs.names[:8], knobs.fractions, strict=False)
        }
        more = "" if len(knobs.names) <= 8 else f" and {len(knobs.names) - 8} more"
        return (
            f"{type(self).__name__}({shares}{more}, chunk_size={knobs.chunk_size},"
            f" seed={knobs.seed})"
        )

    def component_ids(self) -> Mapping[str, int]:
        """The id of each component: its dataset's place in the list."""
        return self._ids

    @property
    def datasets_by_id(self) -> Mapping[int, Any]:
        """The datasets by id, in the order of the list."""
        return self._by_id

    @property
    def knobs(self) -> Knobs:
        """The settings, checked and brought to one value a dataset."""
        return self._knobs

    @property
    def eras(self) -> Eras:
        """Who draws in which chunk, and how much: positions of the run by chunk index."""
        return self._eras

    def chunk_size_hint(self) -> int:
        """Samples in a whole chunk."""
        return self._knobs.chunk_size

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed that decides every shuffle and the lanes."""
        return self._knobs.seed

    def replace(self, **settings: Any) -> StaticMixtureWorkSource:
        """A source with some arguments changed, named as in the constructor.

        Example:
          >>> import zephon_jax as zx
          >>> source = zx.StaticMixtureWorkSource([zx.Dataset.from_counts("a", [90])], {"a": 1})
          >>> source.replace(chunk_size=30).chunk_size_hint()
          30
        """
        return StaticMixtureWorkSource(**{
            "datasets": self._datasets, **self._settings, **settings
        })  # fmt: skip

    def chunk_spans(self) -> tuple[ChunkSpan, ...]:
        """All chunks of the run, one entry for each set of datasets that draw together."""
        found = []
        for span in self._eras.spans():
            endless = span.num_samples >= MAX_SAMPLES
            counts = (None, None) if endless else (span.num_chunks, span.num_samples)
            found.append(ChunkSpan(span.start.chunk_index, *counts))
        return tuple(found)

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, origin: int = 0
    ) -> np.ndarray:
        """The lane of each chunk: int64 (n,)."""
        knobs = self._knobs
        return lanes.lane_of_chunk(
            chunk_index, num_lanes, knobs.seed, knobs.lane_assignment, origin=origin
        )

    # States

    def init(self, lane: int = 0, num_lanes: int = 1) -> MixtureState:
        """Returns the state before a lane's first chunk.

        Raises:
          TypeError, ValueError: If the lane is not in [0, num_lanes).
        """
        return self.seek(0, lane, num_lanes)

    def seek(
        self, chunk_index: int, lane: int = 0, num_lanes: int = 1, *, origin: int = 0
    ) -> MixtureState:
        """Returns the state whose next chunk is this lane's first at or after `chunk_index`.

        Takes about as long for any chunk. Past the end of the run it is the lane's last state.

        Args:
          chunk_index: Global index of a chunk.
          lane: The lane.
          num_lanes: Number of lanes.
          origin: The chunk from which on there are so many lanes: where `relane` cut the run.

        Raises:
          TypeError, ValueError: If an argument is not allowed.
        """
        lane, num_lanes = check_lane(lane, num_lanes)
        most = MAX_SAMPLES // self._knobs.chunk_size - num_lanes
        origin = as_int(origin, "origin", 0, most)
        chunk_index = as_int(chunk_index, "chunk_index", origin, most)
        first = self._lane_chunk(chunk_index, lane, num_lanes, origin)
        return self._state(self._eras.seek(first), lane, num_lanes, origin)

    def _lane_chunk(self, chunk_index: int, lane: int, num_lanes: int, origin: int) -> int:
        """The lane's first chunk at or after this one."""
        if num_lanes == 1:
            return chunk_index
        block = (chunk_index - origin) // num_lanes
        for step in (block, block + 1):
            page, place = divmod(step, _PAGE)
            knobs = self._knobs
            chunks = _lane_page(page, lane, num_lanes, knobs.seed, knobs.lane_assignment, origin)
            if chunks[place] >= chunk_index:
                return chunks[place]
        raise AssertionError("a lane has one chunk in each block")

    def _state(self, position: Position, lane: int, num_lanes: int, origin: int) -> MixtureState:
        self._remember(position)
        listed = len(self._knobs.names) <= MAX_LISTED
        none = np.zeros((0, 2), dtype=np.uint32)
        # A lane that has read its chunk of the block in which the run ends stands at the end, as
        # one does whose chunk would have come later: only `lag` tells them apart.
        next_chunk = self._lane_chunk(position.chunk_index, lane, num_lanes, origin)
        lag = (next_chunk - origin) // num_lanes - (position.chunk_index - origin) // num_lanes
        state = MixtureState(
            lane=np.asarray(lane, dtype=np.int32),
            num_lanes=np.asarray(num_lanes, dtype=np.int32),
            lag=np.asarray(lag, dtype=np.int32),
            chunk=to_words(position.chunk_index),
            origin=to_words(origin),
            era=to_words(position.era.first_chunk),
            carry=position.carry if listed else np.zeros(0, dtype=np.int32),
            drawn=to_words(position.drawn) if listed else none,
            ledger=none[:, 0] if listed else ledger_digest(position.carry, position.drawn),
            config=self._config,
        )
        for leaf in state:
            leaf.setflags(write=False)
        return state

    def _remember(self, position: Position) -> None:
        with self._lock:
            self._recent[position.chunk_index] = position
            crowded = len(self._recent) * len(self._knobs.names) > _KEPT_COMPONENTS
            if crowded and len(self._recent) > 2:
                self._recent.popitem(last=False)

    def _position(self, state: MixtureState) -> Position:
        """The position that a state of this source describes."""
        chunk_index = from_words(state.chunk)
        known = self._recent.get(chunk_index)
        if np.asarray(state.ledger).size:
            position = known or self._eras.seek(chunk_index)
            digest = ledger_digest(position.carry, position.drawn)
            if position.chunk_index != chunk_index or not np.array_equal(digest, state.ledger):
                raise ValueError(
                    "the state contradicts itself: its digest does not belong to its chunk"
                    f" {chunk_index}."
                )
            return position
        carry, drawn = np.array(state.carry, dtype=np.int32), from_words(state.drawn)
        if (
            known is not None
            and known.era.first_chunk == from_words(state.era)
            and np.array_equal(known.carry, carry)
            and np.array_equal(known.drawn, drawn)
        ):
            return known
        return self._eras.resume(chunk_index, from_words(state.era), carry, drawn)

    def check_state(self, state: MixtureState) -> None:
        """Checks that a state belongs to this source.

        Raises:
          TypeError: If it is no state of a mixture.
          ValueError: Naming each thing that differs, or what in it is not possible.
        """
        if not isinstance(state, MixtureState):
            raise TypeError(
                f"{type(self).__name__} needs a MixtureState, from init, seek, next_chunk or"
                f" decode_state; got {type(state).__name__}."
            )
        config = np.asarray(state.config)
        if not np.array_equal(config, self._config):
            differs = [
                thing
                for thing, mine, other in zip(CONFIG_THINGS, self._config, config, strict=True)
                if mine != other
            ]
            raise ValueError(
                f"the state belongs to a source with other {', '.join(differs)}. Restore it with"
                " the settings and data it was saved with, or start anew."
            )
        super().check_state(state)
        chunk, origin, era = (from_words(w) for w in (state.chunk, state.origin, state.era))
        most = MAX_SAMPLES // self._knobs.chunk_size
        lag = int(state.lag)
        if not (0 <= origin <= chunk <= most and 0 <= era <= chunk and lag in (0, 1)):
            raise ValueError(
                f"the state contradicts itself: chunk = {chunk}, origin = {origin}, era = {era},"
                f" lag = {lag}."
            )
        if not np.asarray(state.ledger).size:
            self._position(state)

    # Chunks

    def next_chunk(self, state: MixtureState) -> tuple[WorkChunk | None, MixtureState]:
        """Returns the lane's next chunk and the state after it; at the end None and the same state.

        Raises:
          ValueError: If the state belongs to another source.
        """
        if getattr(state, "config", None) is not self._config:
            self.check_state(state)
        lane, num_lanes, origin = int(state.lane), int(state.num_lanes), from_words(state.origin)
        position = self._position(state)
        here = self._lane_chunk(position.chunk_index, lane, num_lanes, origin)
        position = self._eras.advance(position, here)
        drawn = self._eras.step(position) if position.chunk_index == here else None
        if drawn is None:
            return None, state
        quotas, after = drawn
        chunk = self._chunk(position, quotas, after, lane, num_lanes, origin)
        there = self._lane_chunk(here + 1, lane, num_lanes, origin)
        return chunk, self._state(self._eras.advance(after, there), lane, num_lanes, origin)

    def _chunk(
        self, position: Position, quotas: np.ndarray, after: Position, lane: int, num_lanes: int,
        origin: int,
    ) -> WorkChunk:  # fmt: skip
        return WorkChunk.from_arrays(
            names=self._knobs.names,
            counts=quotas.astype(np.int32),
            ids=self._ids_of(position, quotas),
            seed=self._knobs.seed,
            target=self.target_at(position),
            source_exhausted=self._exhausted(after),
            chunk_index=position.chunk_index,
            slot=(position.chunk_index - origin) % num_lanes,
            num_lanes=num_lanes,
            whole=self._knobs.chunk_size,
            upcoming=functools.partial(self._upcoming, position, lane, num_lanes, origin),
        )

    def _ids_of(self, position: Position, quotas: np.ndarray) -> np.ndarray:
        cursors = self._cursors.of_epoch(0)
        return sample_ids(
            [
                (cursors[d], d, range(int(position.drawn[d]), int(position.drawn[d] + quotas[d])))
                for d in np.flatnonzero(quotas).tolist()
            ]
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
        rules = self._eras.rules
        ends = np.where(rules.leaves, rules.totals, rules.caps)
        gone = rules.weighted & (ends != UNCAPPED) & (after.drawn >= ends)
        if self._eras.ended(after):
            gone = rules.weighted
        return tuple(self._knobs.names[d] for d in np.flatnonzero(gone))

    def _upcoming(self, position: Position, lane: int, num_lanes: int, origin: int) -> np.ndarray:
        """Counts of the lane's next chunks, for reading orders: int32 (n, k)."""
        allocation = position.era.allocation
        if allocation is None or not allocation.closed:
            return np.zeros((0, len(self._knobs.names)), dtype=np.int32)
        here, chunks = position.chunk_index, []
        for _ in range(_AHEAD):
            here = self._lane_chunk(here + 1, lane, num_lanes, origin)
            chunks.append(here - position.era.first_chunk)
        return allocation.quotas_of(np.asarray(chunks))

    # Random access

    def supports_indexing(self) -> bool:
        """True: any sample of the run is found by its index."""
        return True

    def __len__(self) -> int:
        if self._eras.endless:
            raise TypeError(
                f"{self!r} never ends and has no len(). Set stop_after_passes, max_repeats, or"
                " exhausted_policy 'stop' or 'redistribute'."
            )
        return self._eras.num_samples()

    def sample_ids_at(
        self, indices: Any, *, epoch: int = 0, read_config: MixtureReadConfig | None = None
    ) -> np.ndarray:
        """Returns the samples at any places of the one-lane run, in the order asked for.

        Args:
          indices: Integers of shape (n,); negative ones count from the end.
          epoch: Another epoch goes through the same counts in another order of its own.
          read_config: How chunks are read; smooth weighted round robin by default.

        Returns:
          int64 (n, 3).

        Raises:
          IndexError: If an index is out of range.
        """
        config = check_read_config(read_config)
        return self._index.sample_ids(indices, as_int(epoch, "epoch", 0), config)

    def locate(
        self,
        sample_id: Any,
        num_lanes: int = 1,
        up_to_chunk: int | None = None,
        *,
        read_config: MixtureReadConfig | None = None,
    ) -> list[Place]:
        """Returns every time that the run holds a sample, without replaying it.

        Takes the arguments of `WorkSource.locate`.

        Example:
          >>> import zephon_jax as zx
          >>> toy = zx.Dataset.from_counts("toy", [60, 40])
          >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, 10, stop_after_passes=2)
          >>> places = source.locate((0, 1, 7), num_lanes=4)
          >>> places[1]
          Place(pass_number=1, chunk=10, lane=1, lane_step=2, slot=7)
          >>> [tuple(source[10 * place.chunk + place.slot]) for place in places]
          [(0, 1, 7), (0, 1, 7)]
        """
        found, num_lanes, up_to_chunk = self._wanted(sample_id, num_lanes, up_to_chunk)
        if up_to_chunk is not None:
            most = MAX_SAMPLES // self._knobs.chunk_size
            up_to_chunk = as_int(up_to_chunk, "up_to_chunk", 0, most)
        return locate(
            self._knobs,
            self._eras,
            self._counts[found.dataset_id],
            self.lanes_of_chunks,
            found,
            num_lanes,
            up_to_chunk,
            check_read_config(read_config),
        )
