"""Sources made of the chunks of other sources: the chunks of the whole are dealt to lanes anew.

Chunk g of the whole is chunk h of one of the parts, which is gone through as one lane. Who gives
chunk g follows from g alone where the parts say how many chunks they have; a part that does not is
gone through until it ends. When a part has nothing left for its turn, a new stretch begins without
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.kernels import lanes
from zephon_jax.kernels.keys import digest_words
from zephon_jax.sources.checks import ShardedDataset, check_lane
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.chunk_spans import ChunkSpan
from zephon_jax.sources.codec import Plain, decode, encode_state
from zephon_jax.sources.on_the_host import check_untraced
from zephon_jax.sources.part_cursor import FAR, Cursor, Part
from zephon_jax.sources.part_names import PartNames
from zephon_jax.sources.turns import ByWeights, InTurn, Stretch, Turns, end_of_stretch
from zephon_jax.sources.words import from_words, to_words
from zephon_jax.sources.work_source import WorkSource

__all__ = ["CombinedSource", "CombinedState"]


class CombinedState(NamedTuple):
    """Where a lane of a combined source stands. Immutable; its own leaves are 32-bit words."""

    __module__ = "zephon_jax"
    state_name = "CombinedState"  # in every saved state

    lane: np.ndarray  # int32 ()
    num_lanes: np.ndarray  # int32 ()
    config: np.ndarray  # uint32 (2,), a digest of how the parts are put together
    lane_step: np.ndarray  # uint32 (2,), low and high word: chunks that the lane has had
    given: np.ndarray  # uint32 (k, 2), chunks of each part before the stretch that was come to
    ended: np.ndarray  # bool (k,), parts that had nothing more to give there
    places: np.ndarray  # uint32 (k, 2), chunks of each part's source before its state
    parts: tuple[Any, ...]  # a state of each part's source, as one lane


class CombinedSource(WorkSource[CombinedState]):
    """A source whose chunks are those of other sources. Immutable and picklable.

    Made by `zx.concatenate`, `zx.interleave`, `zx.take` and `zx.skip`.

    Args:
      name: How the parts are put together, for `repr` and errors.
      parts: Stretches of the sources.
      weights: Shares of the chunks, where the parts take turns; None where one comes after another.
    """

    __module__ = "zephon_jax"

    def __init__(self, name: str, parts: Sequence[Part], weights: Sequence[Fraction] | None = None):
        self._name, self._parts = name, tuple(parts)
        self._weights = None if weights is None else tuple(weights)
        self._turns: Turns = InTurn() if weights is None else ByWeights(weights)
        sources = [part.source for part in self._parts]
        self._names = PartNames(sources)
        stretches = [number for part in self._parts for number in (part.skip, part.limit)]
        terms = [n for weight in weights or () for n in weight.as_integer_ratio()]
        self._config = digest_words(2, len(terms), *terms, *stretches, *self._names.component_ids)
        self._config.setflags(write=False)
        seeds = {source.seed for source in sources}
        self.seed = seeds.pop() if len(seeds) == 1 else None
        tokens = all(source.unit == "tokens" for source in sources)
        self.unit = "tokens" if tokens else "samples"

    def __getstate__(self) -> dict[str, Any]:
        parts = [(part.source, part.skip, part.limit) for part in self._parts]
        return {"name": self._name, "parts": parts, "weights": self._weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parts = [Part(*part) for part in state["parts"]]
        self.__init__(state["name"], parts, state["weights"])

    def __repr__(self) -> str:
        sources = ", ".join(repr(part.source) for part in self._parts[:4])
        more = "" if len(self._parts) <= 4 else f" and {len(self._parts) - 4} more"
        return f"{self._name}({sources}{more})"

    def component_ids(self) -> Mapping[str, int]:
        """The components of all parts, those of one name as one."""
        return MappingProxyType(self._names.component_ids)

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The datasets of all parts."""
        return MappingProxyType(self._names.datasets)

    @property
    def requires_token_priming(self) -> bool:
        """True where a part has to measure its data before use."""
        return any(part.source.requires_token_priming for part in self._parts)

    @property
    def seeks_at_once(self) -> bool:
        """True where no part has to be gone through to come to a chunk."""
        return all(part.seeks for part in self._parts)

    # States

    def init(self, lane: int = 0, num_lanes: int = 1) -> CombinedState:
        """Returns the state before a lane's first chunk."""
        lane, num_lanes = check_lane(lane, num_lanes)
        starts = [part.start() for part in self._parts]
        return CombinedState(
            lane=_frozen(lane, np.int32),
            num_lanes=_frozen(num_lanes, np.int32),
            config=self._config,
            lane_step=to_words(0),
            given=to_words([0] * len(starts)),
            ended=_frozen([False] * len(starts), np.bool_),
            places=to_words([start.place for start in starts]),
            parts=tuple(start.state for start in starts),
        )

    def seek(
        self, chunk_index: int, lane: int = 0, num_lanes: int = 1, *, origin: int = 0
    ) -> CombinedState:
        """Returns the state whose next chunk is this lane's first at or after `chunk_index`.

        The parts are sought when the chunk is drawn; one that can only be gone through is then gone
        through from its beginning.

        Raises:
          TypeError, ValueError: If an argument is not allowed.
        """
        self._check_uncut(origin)
        chunk_index = as_int(chunk_index, "chunk_index", 0, FAR - 1)
        state = self.init(lane, num_lanes)
        step = chunk_index // int(state.num_lanes)
        step += self._chunk_of(state._replace(lane_step=to_words(step))) < chunk_index
        return state._replace(lane_step=to_words(step))

    def _chunk_of(self, state: CombinedState) -> int:
        """The lane's next chunk, in the numbers of the whole."""
        lane, num_lanes, step = int(state.lane), int(state.num_lanes), from_words(state.lane_step)
        if num_lanes == 1:
            return step
        return int(lanes.chunk_of_lane(np.asarray(step), lane, num_lanes, self.seed or 0))

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, *, origin: int = 0
    ) -> np.ndarray:
        """The lane of each chunk: int64 (n,)."""
        self._check_uncut(origin)
        return lanes.lane_of_chunk(chunk_index, num_lanes, self.seed or 0)

    def check_state(self, state: CombinedState) -> None:
        """Checks that a state belongs to this source, and each part's to the part.

        Raises:
          TypeError: If it is no state of a combined source.
          ValueError: Naming the part whose state does not belong to it.
        """
        self._check_form(state)
        super().check_state(state)
        for place, (part, mine) in enumerate(zip(self._parts, state.parts, strict=True)):
            with _Named(place):
                part.source.check_state(mine)

    def _check_form(self, state: object) -> None:
        """Checks a state but for those of the parts, which check them when they go on with them."""
        if not isinstance(state, CombinedState):
            raise TypeError(
                f"{self._name} needs a state of its own, from init, seek, next_chunk or"
                f" decode_state; got {type(state).__name__}."
            )
        self._check_config(np.array_equal(state.config, self._config))
        k = len(self._parts)
        shapes = [(2,), (k, 2), (k,), (k, 2)]
        if [np.shape(field) for field in state[3:7]] != shapes or len(state.parts) != k:
            raise ValueError(f"the state must be of {k} parts; got {short(state)}.")
        counts = [from_words(state.lane_step), *_counts(state.given), *_counts(state.places)]
        if min(counts) < 0:
            raise ValueError(f"the state contradicts itself: {short(state)}.")

    def check_encoded(self, fields: list[Plain]) -> None:
        """Checks that an encoded state is of the same parts, put together in the same way.

        Raises:
          ValueError: Naming the part whose state does not belong to it.
        """
        names = CombinedState._fields
        if len(fields) == len(names):
            mine = self._config.astype("<u4").tobytes()
            self._check_config(fields[names.index("config")] == mine)
            parts = fields[names.index("parts")]
            if isinstance(parts, list) and len(parts) == len(self._parts):
                for place, (part, mine) in enumerate(zip(self._parts, parts, strict=True)):
                    if isinstance(mine, list):
                        with _Named(place):
                            part.source.check_encoded(mine)

    def check_slot(self, data: bytes, slot: int) -> None:
        """Refuses a lane inside a chunk where a part was changed since its state was made.

        Which part gave the chunk, and whether it would give it again, is not worked out.
        """
        if slot and encode_state(decode(self, data)) != data:
            raise ValueError(
                f"a part of {self!r} was changed in mid-run since the state was saved, and the lane"
                f" has read {slot} samples of a chunk, which may be drawn otherwise now. Go on from"
                " a state where chunks end."
            )

    def _check_config(self, is_mine: bool) -> None:
        if not is_mine:
            raise ValueError(
                f"the state belongs to sources that are put together in another way than {self!r}:"
                " other numbers of chunks or weights, or other components. Restore it with the"
                " combination it was saved with."
            )

    # Chunks

    def next_chunk(self, state: CombinedState) -> tuple[WorkChunk | None, CombinedState]:
        """Returns the lane's next chunk and the state after it; at the end None and the same."""
        check_untraced(self, state)
        self._check_form(state)
        g = self._chunk_of(state)
        given, ended = tuple(_counts(state.given)), tuple(np.asarray(state.ended).tolist())
        stretch = Stretch(sum(given), given, ended)
        cursors = list(map(Cursor, _counts(state.places), state.parts))
        while True:
            turn = self._turn(stretch, g, cursors)
            if turn is None:
                return None, state
            if isinstance(turn, tuple):
                break
            stretch = self._after(stretch, turn)
        place, number = turn
        chunk, cursors[place] = self._parts[place].chunk(cursors[place], number)
        assert chunk is not None
        after = state._replace(
            lane_step=to_words(from_words(state.lane_step) + 1),
            given=to_words(stretch.given),
            ended=_frozen(stretch.ended, np.bool_),
            places=to_words([cursor.place for cursor in cursors]),
            parts=tuple(cursor.state for cursor in cursors),
        )
        return self._renumbered(chunk, place, g, int(state.num_lanes)), after

    def _turn(
        self, stretch: Stretch, g: int, cursors: list[Cursor] | None = None
    ) -> tuple[int, int] | int | None:
        """Who gives a chunk.

        Args:
          stretch: The stretch that was come to, which begins at the chunk or before it.
          g: The chunk.
          cursors: Of the parts, which are moved on where one does not know its length; None where
            all of them do.

        Returns:
          The part and the number of its chunk; the number of chunks within which the stretch ends,
          where it ends at the chunk or before; None at the end of the run.
        """
        if all(stretch.ended):
            return None
        turns = g - stretch.first
        before = self._turns.after(stretch.ended, turns)
        upto = self._turns.after(stretch.ended, turns + 1)
        lacking = False
        for place, part in enumerate(self._parts):  # each is looked at, so that all ends are known
            if stretch.ended[place] or not upto[place]:
                continue
            last = stretch.given[place] + int(upto[place]) - 1
            if cursors is None:
                held = last < (part.num_chunks or 0)
            else:
                held, cursors[place] = part.holds(cursors[place], last)
            lacking = lacking or not held
        if lacking:
            return turns + 1
        place = int((upto - before).argmax())
        return place, stretch.given[place] + int(before[place])

    def _after(self, stretch: Stretch, num_chunks: int) -> Stretch:
        """The stretch that follows one that ends within so many chunks."""
        left = [
            (part.limit if part.num_chunks is None else part.num_chunks) - given
            for part, given in zip(self._parts, stretch.given, strict=True)
        ]
        end = end_of_stretch(lambda n: self._turns.after(stretch.ended, n), left, num_chunks)
        before = self._turns.after(stretch.ended, end)
        upto = self._turns.after(stretch.ended, end + 1)
        given = tuple(n + int(more) for n, more in zip(stretch.given, before, strict=True))
        mine = int((upto - before).argmax())
        ended = tuple(over or place == mine for place, over in enumerate(stretch.ended))
        return Stretch(stretch.first + end, given, ended)

    def _renumbered(self, chunk: WorkChunk, place: int, g: int, num_lanes: int) -> WorkChunk:
        """A part's chunk as a chunk of the whole."""
        fields = chunk.__getstate__()
        fields.update(
            ids=self._names.moved_ids(place, chunk, fields["ids"]),
            source_exhausted=self._names.used_up(place, chunk.source_exhausted),
            chunk_index=g,
            slot=g % num_lanes,
            num_lanes=num_lanes,
        )
        return WorkChunk.from_arrays(**fields)

    # What is known of the run

    def chunk_size_hint(self) -> int | None:
        """Samples in a whole chunk, where all parts have the same."""
        sizes = {part.source.chunk_size_hint() for part in self._parts}
        return sizes.pop() if len(sizes) == 1 else None

    def chunk_spans(self) -> tuple[ChunkSpan, ...] | None:
        """All chunks of the run, where all parts say theirs and their chunks are of one size."""
        size = self.chunk_size_hint()
        if size is None or any(part.spans() is None for part in self._parts):
            return None
        stretches = self._stretches()
        short_ones = sorted(
            (self._number_of(stretches, place, number), missing)
            for place, part in enumerate(self._parts)
            for number, missing in part.short_chunks(size)
        )
        endless = any(part.num_chunks == FAR for part in self._parts)
        first, found = 0, list[ChunkSpan]()
        for g, missing in short_ones:
            found.append(ChunkSpan(first, g + 1 - first, (g + 1 - first) * size - missing))
            first = g + 1
        total = sum(part.num_chunks or 0 for part in self._parts)
        if endless:
            found.append(ChunkSpan(first, None, None))
        elif total > first or not found:
            found.append(ChunkSpan(first, total - first, (total - first) * size))
        return tuple(found)

    def _stretches(self) -> list[Stretch]:
        """All stretches, where all parts say how many chunks they have; the end of the run last."""
        found = [Stretch(0, (0,) * len(self._parts), (False,) * len(self._parts))]
        while not all(found[-1].ended):
            here = found[-1]
            left = [
                part.num_chunks - given
                for part, given, over in zip(self._parts, here.given, here.ended, strict=True)
                if part.num_chunks is not None and part.num_chunks < FAR and not over
            ]
            if not left:
                break
            # Within so many turns of all parts together somebody's chunks have run out.
            turns = 1
            while self._turn(here, here.first + turns - 1) != turns:
                turns *= 2
            found.append(self._after(here, turns))
        return found

    def _number_of(self, stretches: Sequence[Stretch], place: int, number: int) -> int:
        """The chunk of the run that is a part's chunk with a number."""
        for here, after in [*pairwise(stretches), (stretches[-1], None)]:
            if after is not None and after.given[place] <= number:
                continue
            low, high = 0, 1  # turns after which the part has, and has not, given it
            while here.given[place] + self._turns.after(here.ended, high)[place] <= number:
                low, high = high, 2 * high
            while high - low > 1:
                middle = (low + high) // 2
                given = here.given[place] + self._turns.after(here.ended, middle)[place]
                low, high = (middle, high) if given <= number else (low, middle)
            return here.first + low
        raise AssertionError("a part gives each of its chunks")


def _frozen(value: object, dtype: type[np.generic]) -> np.ndarray:
    array = np.asarray(value, dtype=dtype)
    array.setflags(write=False)
    return array


def _counts(words: np.ndarray) -> list[int]:
    """Counts of parts, from words (k, 2)."""
    return from_words(words).tolist()


class _Named:
    """Says which part an error is about."""

    def __init__(self, place: int):
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, ValueError):
            raise ValueError(f"sources[{self._place}]: {error}") from error
