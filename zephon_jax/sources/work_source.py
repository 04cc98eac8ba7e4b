"""The contract of a source, and what every source gets from it.

A source is a pair of pure functions: `init` gives a state, `next_chunk` takes one and returns a
chunk and the next state. States are immutable, so any of them can be kept, sent or gone back to.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Literal

import numpy as np
from numpy.typing import ArrayLike

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.sources.checks import (
    ShardedDataset,
    State,
    check_components,
    check_lane,
    first_state,
    first_states,
    lane_of,
)
from zephon_jax.sources.chunk import SampleId, WorkChunk
from zephon_jax.sources.chunk_spans import ChunkCounts, ChunkSpan, never_ends
from zephon_jax.sources.codec import Plain
from zephon_jax.sources.find_sample import Place, as_list, check_sample_id, search
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.stateful_lane import StatefulLane
from zephon_jax.sources.walk import walk

__all__ = ["WorkSource", "check_source"]


def check_source(source: object, name: str = "source") -> None:
    """Checks that something is a source.

    Args:
      source: The value of an argument.
      name: The argument's name.

    Raises:
      TypeError: If it is not.
    """
    if not isinstance(source, WorkSource):
        raise TypeError(f"{name} must be a zx.WorkSource; got {short(source)}.")


class WorkSource(abc.ABC, Generic[State]):
    """Base class of all sources. Subclass it to write your own.

    An author must give `init`, `next_chunk`, `component_ids` and, to read, `datasets_by_id`.
    States are NamedTuples with the fields `lane` and `num_lanes`, and leaves that are ints,
    strings or integer arrays whose structure, shapes and dtypes never change. Wherever the library
    steps through a source, `init` is given valid lanes only, and a chunk that holds an undeclared
    component raises.

    An author may give what the source knows of its run without drawing it: `chunk_size_hint`,
    `chunk_spans`, `lanes_of_chunks`, `chunk_counts`, `drawn_before`, `pass_sizes`, `fingerprint`,
    a faster `seek`. Where one of them is left out, the run is gone through chunk by chunk.

    Example:
      >>> from typing import NamedTuple
      >>> import zephon_jax as zx
      >>> class CountState(NamedTuple):
      ...     lane: int
      ...     num_lanes: int
      ...     step: int
      >>> class CountSource(zx.WorkSource):
      ...     def init(self, lane=0, num_lanes=1):
      ...         return CountState(lane, num_lanes, 0)
      ...     def next_chunk(self, state):
      ...         g = state.step * state.num_lanes + state.lane
      ...         chunk = zx.WorkChunk({"numbers": [(0, 0, g)]}, chunk_index=g)
      ...         return chunk, state._replace(step=state.step + 1)
      ...     def component_ids(self):
      ...         return {"numbers": 0}
      >>> source = CountSource()
      >>> chunk, state = source.next_chunk(source.init(lane=1, num_lanes=4))
      >>> list(chunk)
      [(SampleId(dataset_id=0, shard_id=0, sample_index=1), 'numbers')]
    """

    __module__ = "zephon_jax"

    # What an author must give.

    @abc.abstractmethod
    def init(self, lane: int = 0, num_lanes: int = 1) -> State:
        """Returns the state before a lane's first chunk."""

    @abc.abstractmethod
    def next_chunk(self, state: State) -> tuple[WorkChunk | None, State]:
        """Returns the lane's next chunk and the state after it.

        At the end the chunk is None and the state is the one that was given, for ever. The state
        that is passed in is never changed.
        """

    @abc.abstractmethod
    def component_ids(self) -> Mapping[str, int]:
        """A unique id, not negative, for each component that any chunk may hold."""

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The datasets that sample ids refer to, by dataset id; reading needs them."""
        return {}

    # What an author may give.

    #: The seed that decides the order, None where there is none or only the chunks know it.
    seed: int | None = None
    #: What a mixture's shares are shares of.
    unit: Literal["samples", "tokens"] = "samples"
    #: The first chunk that the source gives: where a run that was cut anew goes on.
    begin: int = 0
    #: The first chunk that it does not give, where a run is to be cut; else None.
    end: int | None = None

    @property
    def requires_token_priming(self) -> bool:
        """True when the source has to measure its data before use."""
        return False

    def prime(self, **settings: object) -> WorkSource[State]:
        """Returns a source that has measured its data: itself, where there is nothing to measure.

        Args:
          **settings: How to go about it; sources say what they take.
        """
        return self

    def primed_for(self, fields: list[Plain]) -> WorkSource[State]:
        """Returns a source that has measured nothing and takes what it needs from a saved state.

        Args:
          fields: The state's fields as they are encoded.
        """
        return self

    def check_encoded(self, fields: list[Plain]) -> None:
        """Checks an encoded state's fields before they are decoded by this source's structure.

        A source that reads states of another form may bring the fields up to date in place.

        Raises:
          ValueError: If they say that the state belongs to another source.
        """

    def init_lanes(self, lanes: Sequence[int], num_lanes: int) -> list[State]:
        """`init` of many lanes of a run, for a source that finds them faster together."""
        return [self.init(lane, num_lanes) for lane in lanes]

    def next_chunks(self, states: Sequence[State]) -> list[tuple[WorkChunk | None, State]]:
        """`next_chunk` of many lanes, for a source that draws them faster together."""
        return [self.next_chunk(state) for state in states]

    def chunk_size_hint(self) -> int | None:
        """Samples in a whole chunk, or None where they vary."""
        return None

    def chunk_spans(self) -> tuple[ChunkSpan, ...] | None:
        """All chunks of the run, without drawing them; None where the source cannot say.

        With `lanes_of_chunks` it tells how many samples each lane gives, and where each is.
        """
        return None

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, *, origin: int = 0
    ) -> np.ndarray | None:
        """The lane that gets each of some chunks: int64 (n,); None where the source cannot say.

        Each lane gets one chunk of every num_lanes in a row, counted from chunk `origin` on.
        """
        return None

    def drawn_before(self, chunk_index: int) -> np.ndarray | None:
        """Samples of each component in the chunks before one, of all lanes together: int64 (k,).

        In the order of `component_ids`; past the end those of the whole run. None where the source
        cannot say: its chunks are then gone through.
        """
        return None

    def chunk_counts(self, first: int, num_chunks: int) -> ChunkCounts | None:
        """Counts of consecutive chunks by component, without drawing their samples.

        Args:
          first: Global index of the first chunk.
          num_chunks: Chunks that are wanted. As many are given as stand for the same shares and
            are worked out together: at least one where one is wanted and the run has not ended.

        Returns:
          Their counts, or None where the source cannot say: its chunks are then gone through.
        """
        return None

    def pass_sizes(self) -> np.ndarray | None:
        """Samples in a pass of each component: int64 (k,), in the order of `component_ids`.

        For sources whose component ids are dataset ids, and which draw a component's samples pass
        after pass, each once in a pass. None for others.
        """
        return None

    def fingerprint(self) -> Mapping[str, int] | None:
        """A digest of each thing that fixes the order, by its name: with the same, the same order.

        A digest of 0 stands for what the source cannot tell. None where the source has none at all:
        orders are then compared chunk by chunk.
        """
        return None

    def with_chunk_size(self, chunk_size: int) -> WorkSource[State] | None:
        """A source of the same data in chunks of another size, or None where there is none."""
        return None

    @property
    def changes(self) -> Sequence[Sequence[object]]:
        """What was changed in mid-run, as plain integers, which saved runs keep: see `Change`."""
        return ()

    def earlier_forms(self) -> Sequence[WorkSource[State]]:
        """The source as it was before changes made in mid-run, whose states go on with it."""
        return ()

    def check_slot(self, data: bytes, slot: int) -> None:
        """Checks that a lane may go on inside the next chunk of a state, where it stood.

        Args:
          data: The state, encoded, which belongs to the source.
          slot: Samples of its next chunk that the lane has read.

        Raises:
          ValueError: If that chunk is drawn otherwise since.
        """

    @property
    def uncut(self) -> WorkSource[State]:
        """The source of which this one is a part, from a chunk on or up to one: else itself."""
        return self

    def origin_of(self, state: State) -> int:
        """The chunk from which on there are as many lanes as a state says: 0 but after a cut."""
        return 0

    def check_chunk(self, chunk: WorkChunk) -> None:
        """Checks that a chunk holds declared components only.

        Raises:
          TypeError: If it is not a `WorkChunk`.
          ValueError: If it holds a component that `component_ids` does not name.
        """
        check_components(chunk, self.component_ids(), type(self).__name__)

    def check_state(self, state: State) -> None:
        """Checks a decoded state; sources that know more than its structure extend this.

        Raises:
          ValueError: If the state does not belong to this source.
        """
        check_lane(*lane_of(state))

    def seek(
        self, chunk_index: int, lane: int = 0, num_lanes: int = 1, *, origin: int = 0
    ) -> State:
        """Returns the state whose next chunk is this lane's first at or after `chunk_index`.

        This default replays from the start, and cannot be cut anew. A chunk without a
        `chunk_index` of its own counts as dealt in turn: a lane's n-th chunk is number
        n * num_lanes + lane.

        Args:
          chunk_index: Global index of a chunk.
          lane: The lane.
          num_lanes: Number of lanes.
          origin: The chunk from which on there are so many lanes: where the run was cut anew.

        Raises:
          TypeError, ValueError: If an argument is not allowed.
        """
        self._check_uncut(origin)
        chunk_index = as_int(chunk_index, "chunk_index", 0)
        state = first_state(self, lane, num_lanes)
        for step in walk(self, [state]):
            if step.chunk_index >= chunk_index:
                return step.before
            state = step.after
        return state

    def supports_indexing(self) -> bool:
        """True when `source[i]`, `sample_id_at` and `len` work."""
        return False

    def _no_indexing(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} does not support indexing: it has no len() and no samples by"
            " index. Go through it with init and next_chunk."
        )

    def __len__(self) -> int:
        raise self._no_indexing()

    def __bool__(self) -> bool:
        return True

    def sample_ids_at(
        self,
        indices: ArrayLike,
        *,
        epoch: int = 0,
        read_config: MixtureReadConfig | None = None,
    ) -> np.ndarray:
        """Sample ids (n, 3) by index in the run, where the source supports indexing."""
        raise self._no_indexing()

    def sample_id_at(self, index: int) -> SampleId:
        """The sample id at one index in the run, where the source supports indexing."""
        index = as_int(index, "index")
        return SampleId(*self.sample_ids_at(np.asarray([index]))[0].tolist())

    def __getitem__(self, index: int) -> SampleId:
        return self.sample_id_at(index)

    def locate(
        self,
        sample_id: Sequence[int],
        num_lanes: int = 1,
        up_to_chunk: int | None = None,
        *,
        origin: int = 0,
        read_config: MixtureReadConfig | None = None,
    ) -> list[Place]:
        """Returns every time that the run holds a sample, in the order of its chunks.

        What did the model see before that loss spike, and when did it see this document?

        Args:
          sample_id: (dataset_id, shard_id, sample_index).
          num_lanes: Lanes of the run.
          up_to_chunk: The first chunk that is not looked at, of all lanes together; by default the
            whole run is, which must then end.
          origin: Where a run was cut anew: the chunk from which on there are so many lanes, as its
            states carry it. Chunks before it, which went to other lanes, are not looked at.
          read_config: How chunks are read; smooth weighted round robin by default.

        Returns:
          A list of `Place`: pass number, chunk, lane, lane step and slot.

        Raises:
          TypeError, ValueError: If there is no such sample, an argument is not allowed, or there
            are more than 2^22 places: `places_of` goes through any number, of endless runs too.
        """
        if up_to_chunk is None and never_ends(self):
            raise ValueError(
                f"{self!r} never ends: say how far to look with up_to_chunk=, or go through its"
                " places one by one with places_of."
            )
        places = self.places_of(
            sample_id, num_lanes, up_to_chunk, origin=origin, read_config=read_config
        )
        return as_list(places, "Lower up_to_chunk, or go through them with places_of.")

    def places_of(
        self,
        sample_id: Sequence[int],
        num_lanes: int = 1,
        up_to_chunk: int | None = None,
        *,
        origin: int = 0,
        read_config: MixtureReadConfig | None = None,
    ) -> Iterator[Place]:
        """Goes through the times that the run holds a sample, one after another.

        Takes the arguments of `locate`. This default goes through all chunks, and cannot be cut
        anew; mixtures compute the places. In an endless run there may be no end of them.
        """
        found, num_lanes, up_to_chunk = self._wanted(sample_id, num_lanes, up_to_chunk)
        self._check_uncut(origin)
        config = check_read_config(read_config)
        return search(self, first_states(self, num_lanes), found, up_to_chunk, config)

    def times_read(self, sample_id: Sequence[int], up_to_chunk: int) -> int:
        """How often the chunks before one hold a sample: `places_of`, counted.

        Raises:
          TypeError, ValueError: If there is no such sample.
        """
        return sum(1 for _ in self.places_of(sample_id, up_to_chunk=up_to_chunk))

    def _check_uncut(self, origin: int) -> None:
        if as_int(origin, "origin", 0):
            raise ValueError(
                f"{type(self).__name__} is not cut anew in mid-run: origin must be 0; got {origin}."
            )

    def _wanted(
        self, sample_id: Sequence[int], num_lanes: int, up_to_chunk: int | None
    ) -> tuple[SampleId, int, int | None]:
        """Checks what `places_of` is asked for."""
        found = check_sample_id(sample_id, self.datasets_by_id)
        stop = None if up_to_chunk is None else as_int(up_to_chunk, "up_to_chunk", 0)
        return found, check_lane(0, num_lanes)[1], stop

    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> StatefulLane[State]:
        """Returns a small mutable object bound to one lane, for code that expects one."""
        return StatefulLane(self, lane_id, canonical_replicas)
