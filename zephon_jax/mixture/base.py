"""A source whose chunks follow from a mixture's run: states, chunks and samples by index."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zephon_jax._arrays import MAX_INDEX, as_int
from zephon_jax.kernels import lanes
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.fingerprint import named_digests
from zephon_jax.mixture.history import FAR
from zephon_jax.mixture.lane_states import Standing
from zephon_jax.mixture.locate import Dealing, places_of, times_drawn
from zephon_jax.mixture.run import MixtureRun
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.checks import ShardedDataset, check_lane
from zephon_jax.sources.chunk import SampleId, WorkChunk
from zephon_jax.sources.chunk_spans import ChunkCounts, ChunkSpan
from zephon_jax.sources.codec import Plain, decode, encode_state
from zephon_jax.sources.find_sample import Place
from zephon_jax.sources.on_the_host import check_untraced
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.words import from_words
from zephon_jax.sources.work_source import WorkSource

__all__ = ["MixtureSource"]


class MixtureSource(WorkSource[MixtureState]):
    """What a source has as soon as it has a run. `StaticMixtureWorkSource` makes that of arguments.

    Fields that a subclass sets: the checked settings, the shard counts of each dataset, and the
    datasets and component ids by their names.
    """

    _settings: MixtureSettings
    _counts: list[np.ndarray]
    _by_id: Mapping[int, ShardedDataset]
    _ids: Mapping[str, int]

    @property
    @abc.abstractmethod
    def run(self) -> MixtureRun:
        """Everything that the run's chunks follow from."""

    def component_ids(self) -> Mapping[str, int]:
        """The id of each component: its dataset's place in the list."""
        return self._ids

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The datasets by id, in the order of the list."""
        return self._by_id

    @property
    def settings(self) -> MixtureSettings:
        """The settings, checked and brought to one value a dataset."""
        return self._settings

    @property
    def eras(self) -> Eras:
        """Who draws in which chunk, and how much: positions of the run by chunk index."""
        return self.run.eras

    def chunk_size_hint(self) -> int:
        """Samples in a whole chunk."""
        return self._settings.chunk_size

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The seed that decides every shuffle and the lanes."""
        return self._settings.seed

    def chunk_spans(self) -> tuple[ChunkSpan, ...]:
        """All chunks of the run, one entry for each set of datasets that draw together."""
        found: list[ChunkSpan] = []
        for span in self.eras.spans():
            first, num_chunks, num_samples = (
                span.start.chunk_index,
                span.num_chunks,
                span.num_samples,
            )
            if found and first == span.start.era.weighing.first_chunk:
                before = found[-1]
                assert before.num_chunks is not None
                assert before.num_samples is not None
                # Other weights, and chunks of the same size as before where nobody left.
                if before.num_samples == before.num_chunks * self._settings.chunk_size:
                    first = found.pop().first_chunk
                    num_chunks += before.num_chunks
                    num_samples += before.num_samples
            endless = span.num_samples == FAR
            counts = (None, None) if endless else (num_chunks, num_samples)
            found.append(ChunkSpan(first, *counts))
        return tuple(found)

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, *, origin: int = 0
    ) -> np.ndarray:
        """The lane of each chunk: int64 (n,)."""
        settings = self._settings
        return lanes.lane_of_chunk(
            chunk_index, num_lanes, settings.seed, settings.lane_assignment, origin=origin
        )

    def drawn_before(self, chunk_index: int) -> np.ndarray:
        """Samples of each component drawn before a chunk, of all lanes: int64 (k,)."""
        return self.eras.seek(self._chunk_index(chunk_index)).drawn.copy()

    def chunk_counts(self, first: int, num_chunks: int) -> ChunkCounts:
        """Counts of many chunks: the first of them that stand for the same shares."""
        first = self._chunk_index(first, "first")
        return self.run.counter.counts(first, as_int(num_chunks, "num_chunks", 0))

    def pass_sizes(self) -> np.ndarray | None:
        """Samples in a pass of each component's dataset: int64 (k,); None where one grew."""
        return None if self.run.orders.growths else self.eras.steps.rules.totals

    def fingerprint(self) -> dict[str, int]:
        """A digest of each thing that fixes the order, by its name."""
        return named_digests(self.run.config)

    def times_read(self, sample_id: Sequence[int], up_to_chunk: int) -> int:
        """How often the chunks before one hold a sample."""
        found = self._wanted(sample_id, 1, up_to_chunk)[0]
        drawn = int(self.drawn_before(up_to_chunk)[found.dataset_id])
        return times_drawn(self.run.orders.of_dataset(found.dataset_id), found, drawn)

    def _chunk_index(self, chunk_index: int, name: str = "chunk_index") -> int:
        return as_int(chunk_index, name, 0, MAX_INDEX // self._settings.chunk_size)

    # States

    def origin_of(self, state: MixtureState) -> int:
        """The chunk from which on there are as many lanes as now."""
        return from_words(state.origin)

    def check_chunk(self, chunk: WorkChunk) -> None:
        """Checks a chunk that a subclass made; the mixture's own name all components."""
        if not isinstance(chunk, WorkChunk) or chunk.names is not self._settings.names:
            super().check_chunk(chunk)

    def init(self, lane: int = 0, num_lanes: int = 1) -> MixtureState:
        """Returns the state before a lane's first chunk.

        Raises:
          TypeError, ValueError: If the lane is not in [0, num_lanes).
        """
        return self.run.start if num_lanes == 1 else self.seek(0, lane, num_lanes)

    def init_lanes(self, lanes: Sequence[int], num_lanes: int) -> list[MixtureState]:
        """`init` of many lanes, found together.

        Raises:
          TypeError, ValueError: If a lane is not in [0, num_lanes).
        """
        own = _is_own(self.init, MixtureSource.init) and _is_own(self.seek, MixtureSource.seek)
        if num_lanes == 1 or not own:
            return super().init_lanes(lanes, num_lanes)
        pairs = [check_lane(lane, num_lanes) for lane in lanes]
        return self.run.seek_lanes(0, [self.run.states.lane(*pair) for pair in pairs])

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
        most = MAX_INDEX // self._settings.chunk_size - num_lanes
        origin = as_int(origin, "origin", 0, most)
        chunk_index = as_int(chunk_index, "chunk_index", origin, most)
        return self.run.seek(chunk_index, self.run.states.lane(lane, num_lanes, origin))

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
        states = self.run.states
        states.check_config(np.asarray(state.config), state.ratios)
        states.check_form(state)
        check_lane(int(state.lane), int(state.num_lanes))
        states.check(state)

    def check_encoded(self, fields: list[Plain]) -> None:
        """Says which settings differ, where the structure of the state would not tell.

        The fields of a state from before a change of this source are brought up to date.

        Raises:
          ValueError: Naming each thing that differs.
        """
        self._bring_up_to_date(fields)
        self.run.states.check_fields(fields)

    def _bring_up_to_date(self, fields: list[Plain]) -> None:
        """Puts what a state's fields are now in the place of those from before a change."""

    def _of_now(self, state: MixtureState) -> MixtureState:
        """A state of this source, also where it was made before a change."""
        if not self.earlier_forms() or not isinstance(state, MixtureState):
            return state
        if np.array_equal(state.config, self.run.config):
            return state
        return decode(self, encode_state(state))

    # Chunks

    def next_chunk(self, state: MixtureState) -> tuple[WorkChunk | None, MixtureState]:
        """Returns the lane's next chunk and the state after it; at the end None and the same state.

        A state from before a change of this source goes on, unless its lane has read further.

        Raises:
          TypeError: If JAX is tracing it; `zx.traced` can be traced.
          ValueError: If the state belongs to another source.
        """
        check_untraced(self, state)
        return self.run.next_chunk(self._standing(state))

    def next_chunks(
        self, states: Sequence[MixtureState]
    ) -> list[tuple[WorkChunk | None, MixtureState]]:
        """`next_chunk` of many lanes, drawn together.

        Raises:
          ValueError: If a state belongs to another source.
        """
        if not _is_own(self.next_chunk, MixtureSource.next_chunk):
            return super().next_chunks(states)
        return self.run.next_chunks([self._standing(state) for state in states])

    def _standing(self, state: MixtureState) -> Standing:
        """A state of this source, checked unless it was made here, and where it stands."""
        states = self.run.states
        standing = states.known(state)
        if standing is None:
            state = self._of_now(state)
            self.check_state(state)
            standing = states.known(state) or states.standing(state)
        return standing

    # Random access

    def supports_indexing(self) -> bool:
        """True: any sample of the run is found by its index."""
        return True

    def __len__(self) -> int:
        if self.eras.endless:
            raise TypeError(
                f"{self!r} never ends and has no len(). Set stop_after_passes, max_repeats, or"
                " exhausted_policy 'stop' or 'redistribute'."
            )
        return self.eras.num_samples()

    def sample_id_at(self, index: int) -> SampleId:
        """The sample id at one index in the one-lane run; fast for one index after another."""
        if type(index) is int:
            row = self.run.samples.kept(index, 0, check_read_config(None))
            if row is not None:
                return SampleId(*row)
        return super().sample_id_at(index)

    def sample_ids_at(
        self, indices: object, *, epoch: int = 0, read_config: MixtureReadConfig | None = None
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
        return self.run.samples.sample_ids(indices, as_int(epoch, "epoch", 0), config)

    def places_of(
        self,
        sample_id: Sequence[int],
        num_lanes: int = 1,
        up_to_chunk: int | None = None,
        *,
        origin: int = 0,
        read_config: MixtureReadConfig | None = None,
    ) -> Iterator[Place]:
        """Goes through the times that the run holds a sample, without replaying it.

        Takes the arguments of `locate`, which gives them in a list.

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
        most = MAX_INDEX // self._settings.chunk_size
        if up_to_chunk is not None:
            up_to_chunk = as_int(up_to_chunk, "up_to_chunk", 0, most)
        return places_of(
            self._settings,
            self.eras,
            self.run.orders.of_dataset(found.dataset_id),
            found,
            up_to_chunk,
            Dealing(num_lanes, as_int(origin, "origin", 0, most), check_read_config(read_config)),
        )


def _is_own(method: object, function: object) -> bool:
    """True where a method is this class's, and no other in its place."""
    return getattr(method, "__func__", None) is function
