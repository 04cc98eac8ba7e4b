"""Objects with a place as sources: their place, as plain JSON, is the state.

The object of a lane is kept from chunk to chunk, under the place where it stands. Who comes with
that very place goes on with it; who comes with another gets a clone that is put there.
"""

# The object may be of any library.
# pyright: standard

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from zephon_jax._arrays import as_int
from zephon_jax._process import PerProcess
from zephon_jax._text import short
from zephon_jax.sources.checks import ShardedDataset, check_lane
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.work_source import WorkSource

__all__ = ["StatefulObject", "StatefulSource", "StatefulState", "from_stateful"]

_METHODS = ("next_chunk", "state_dict", "load_state_dict", "clone_for_lane", "component_ids")
_MOST_LIVE = 256  # objects that stand at a place


class StatefulState(NamedTuple):
    """Where a lane of a stateful object stands."""

    __module__ = "zephon_jax"
    state_name = "StatefulState"  # in every saved state

    lane: int
    num_lanes: int
    lane_step: int  # chunks that the lane has had
    place: str  # what state_dict gave, as JSON


class StatefulObject(Protocol):
    """A source of another library: it gives chunks, and changes as it does."""

    def next_chunk(self) -> object | None:
        """The next chunk, with its `components`; None at the end."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Where it stands, as plain JSON."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Goes to where it stood when its `state_dict` gave this."""
        ...

    def clone_for_lane(self, lane_id: int, canonical_replicas: int, /) -> StatefulObject:
        """Another one, at the beginning of a lane."""
        ...

    def component_ids(self) -> Mapping[str, int]:
        """The ids of its components."""
        ...


class _Live:
    """The objects of one process."""

    def __init__(self, make_source: Callable[[], StatefulObject]):
        self.prototype = make_source()
        self._standing: dict[tuple[int, int, str], StatefulObject] = {}

    def take(self, state: StatefulState) -> StatefulObject:
        """An object that stands at a state, for the caller alone."""
        mine = self._standing.pop((int(state.lane), int(state.num_lanes), state.place), None)
        if mine is None:
            mine = self.prototype.clone_for_lane(int(state.lane), int(state.num_lanes))
            mine.load_state_dict(json.loads(state.place))
        return mine

    def put(self, state: StatefulState, mine: StatefulObject) -> None:
        """Keeps an object that stands at a state."""
        self._standing[state.lane, state.num_lanes, state.place] = mine
        for key in list(self._standing)[:-_MOST_LIVE]:
            self._standing.pop(key, None)


class StatefulSource(WorkSource[StatefulState]):
    """A source whose chunks an object with a place gives. Made by `zx.from_stateful`."""

    __module__ = "zephon_jax"

    def __init__(
        self,
        make_source: Callable[[], StatefulObject],
        datasets: Mapping[int, ShardedDataset] | None,
        chunk_index: Callable[[Mapping[str, object]], int] | None,
    ):
        self._make_source, self._datasets, self._number = make_source, datasets, chunk_index
        self._live = PerProcess(lambda: _Live(make_source))
        prototype = self._live.get().prototype
        missing = [name for name in _METHODS if not callable(getattr(prototype, name, None))]
        if missing:
            raise TypeError(
                "make_source must make an object with"
                f" {', '.join(_METHODS)}; got {short(prototype)}, which has no {missing}."
            )
        if getattr(prototype, "requires_token_priming", False):
            raise ValueError(
                "make_source made a source that has to be primed. Prime it in make_source, before"
                " it is returned."
            )
        self._ids = MappingProxyType(dict(prototype.component_ids()))
        _check_names(datasets, getattr(prototype, "datasets_by_id", None))

    def __getstate__(self) -> tuple[object, ...]:
        return self._make_source, self._datasets, self._number

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)

    def __repr__(self) -> str:
        return f"from_stateful({type(self._live.get().prototype).__name__})"

    def component_ids(self) -> Mapping[str, int]:
        """The object's component ids."""
        return self._ids

    @property
    def datasets_by_id(self) -> Mapping[int, ShardedDataset]:
        """The datasets that were given, by the object's dataset ids."""
        return {} if self._datasets is None else self._datasets

    def chunk_size_hint(self) -> int | None:
        """What the object says, where it says something."""
        hint = getattr(self._live.get().prototype, "chunk_size_hint", lambda: None)
        return hint()

    def init(self, lane: int = 0, num_lanes: int = 1) -> StatefulState:
        """The place of a lane's clone at its beginning."""
        lane, num_lanes = check_lane(lane, num_lanes)
        live = self._live.get()
        mine = live.prototype.clone_for_lane(lane, num_lanes)
        state = StatefulState(lane, num_lanes, 0, self._place_of(mine)[0])
        live.put(state, mine)
        return state

    def _place_of(self, mine: StatefulObject) -> tuple[str, Mapping[str, object]]:
        """Where an object stands, as JSON that says it whole, and as it said it."""
        said = mine.state_dict()
        try:
            place = json.dumps(said, allow_nan=False)
            whole = json.loads(place) == _as_lists(said)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{type(mine).__name__}.state_dict() must be plain JSON: {error}."
            ) from None
        if not whole:
            raise TypeError(
                f"{type(mine).__name__}.state_dict() must be plain JSON, with strings for keys; got"
                f" {short(said)}."
            )
        return place, said

    def check_state(self, state: StatefulState) -> None:
        """Checks that the object can be put at a state.

        Raises:
          TypeError: If it is no state of such a source.
          ValueError: If the object refuses it, with what it says.
        """
        if not isinstance(state, StatefulState):
            raise TypeError(f"{self!r} needs a StatefulState; got {type(state).__name__}.")
        super().check_state(state)
        live = self._live.get()
        try:
            live.put(state, live.take(state))
        except Exception as error:
            raise ValueError(
                f"the state does not belong to this source: {type(error).__name__}: {error}"
            ) from error

    def next_chunk(self, state: StatefulState) -> tuple[WorkChunk | None, StatefulState]:
        """What the object gives at this place, and the place after it."""
        live = self._live.get()
        mine = live.take(state)
        given = mine.next_chunk()
        if given is None:
            return None, state
        place, said = self._place_of(mine)
        after = state._replace(lane_step=int(state.lane_step) + 1, place=place)
        live.put(after, mine)
        return self._converted(given, state, said), after

    def _converted(self, given: Any, state: StatefulState, said: Mapping[str, object]) -> WorkChunk:
        lane, num_lanes = int(state.lane), int(state.num_lanes)
        if self._number is not None:
            g = as_int(self._number(said), "what chunk_index gives", 0)
            if g // num_lanes != int(state.lane_step):
                raise ValueError(
                    f"chunk_index says {g} for chunk number {state.lane_step} of lane {lane} of"
                    f" {num_lanes}; a lane has one chunk of every {num_lanes} in a row. It is given"
                    f" the state_dict after the chunk: {short(said)}."
                )
            slot = g % num_lanes
        else:
            g, slot = int(state.lane_step) * num_lanes + lane, lane
        return WorkChunk(
            given.components,
            seed=getattr(given, "seed", None),
            target_mixture=getattr(given, "target_mixture", None),
            source_exhausted=tuple(getattr(given, "source_exhausted", ())),
            chunk_index=g,
            slot=slot,
            num_lanes=num_lanes,
        )


def _as_lists(value: object) -> object:
    """Plain JSON with tuples as the lists that they become."""
    if isinstance(value, Mapping):
        return {key: _as_lists(item) for key, item in value.items()}
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _check_names(datasets: Mapping[int, ShardedDataset] | None, theirs: object) -> None:
    """Compares the datasets that were given with those of the object, where it has any."""
    if datasets is None or not isinstance(theirs, Mapping):
        return
    mine = {number: dataset.name for number, dataset in datasets.items()}
    named = {
        number: getattr(dataset, "name", mine.get(number)) for number, dataset in theirs.items()
    }
    if mine != named:
        raise ValueError(
            "datasets must be those of the source that make_source makes, by its dataset ids:"
            f" {short(named)}; got {short(mine)}."
        )


def from_stateful(
    make_source: Callable[[], StatefulObject],
    *,
    datasets: Sequence[ShardedDataset] | Mapping[int, ShardedDataset] | None = None,
    chunk_index: Callable[[Mapping[str, object]], int] | None = None,
) -> WorkSource[StatefulState]:
    """Makes a source of an object with `next_chunk()`, `state_dict()` and `load_state_dict()`.

    Such as a work source of Zephon. Lanes are what its `clone_for_lane(lane_id,
    canonical_replicas)` makes, and its `state_dict()`, plain JSON, is the state.

    Args:
      make_source: Makes the object, the same in every process. It is pickled with the source.
      datasets: What the dataset ids in its chunks refer to, for reading: `zx.Dataset`s in the
        order of these ids, or by id.
      chunk_index: Tells a chunk's number in the whole run from the `state_dict()` after it. By
        default a lane's n-th chunk is number n * num_lanes + lane, which is what it is where
        chunks are dealt to lanes in turn.

    Returns:
      A source. It has no length, and seeks by going through the lane.

    Raises:
      TypeError: If the object lacks one of the methods.
      ValueError: If the datasets are not those of the object.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [40])
      >>> class Stateful:
      ...     def __init__(self, lane=0):
      ...         self.lane, self.at = lane, 0
      ...     def clone_for_lane(self, lane_id, canonical_replicas):
      ...         return Stateful(lane_id)
      ...     def next_chunk(self):
      ...         self.at += 1
      ...         return zx.WorkChunk({"toy": [(0, 0, 10 * self.lane + self.at)]})
      ...     def state_dict(self):
      ...         return {"at": self.at}
      ...     def load_state_dict(self, state):
      ...         self.at = state["at"]
      ...     def component_ids(self):
      ...         return {"toy": 0}
      >>> source = zx.from_stateful(Stateful, datasets=[toy])
      >>> state = source.init(lane=1, num_lanes=2)
      >>> _, after = source.next_chunk(state)
      >>> [list(source.next_chunk(one)[0])[0][0].sample_index for one in (after, state, after)]
      [12, 11, 12]
    """
    if not callable(make_source):
        raise TypeError(
            "make_source must be a function that makes the object; got"
            f" {short(make_source)}. Give lambda: ... instead of the object itself."
        )
    if datasets is not None and not isinstance(datasets, Mapping):
        datasets = dict(enumerate(datasets))
    return StatefulSource(make_source, datasets, chunk_index)
