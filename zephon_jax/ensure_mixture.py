"""Puts a lane's records into an order that follows a mixture, whatever became of them on the way.

Filters, splitters and packers change what a source had mixed. `EnsureMixture` holds some records
back and lets the component go first that is furthest behind its share, by the rule by which chunks
are read. Its state is the place of the oldest record it holds, and one bit for each later one.
"""

from __future__ import annotations

import base64
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import grain
import numpy as np

from zephon_jax._xp import as_int
from zephon_jax.balance import Balance, Weights
from zephon_jax.keys import digest_words
from zephon_jax.lane_transforms import EXHAUSTED
from zephon_jax.weights import MixtureSpec, exact_weight, integer_weights

__all__ = ["EnsureMixture"]

_LOG = logging.getLogger(__name__)


class EnsureMixture(grain.IterDataset):
    """Reorders records so that what comes out follows a mixture at every point.

    The next record is one of the component with the largest `n_d * max(1, t) - E_d * C`: target
    weights n_d with sum C, E_d given out of component d, t in all. Records of one component keep
    their order. Where that component has none in the buffer, more are taken from the parent. A
    buffer that is full gives out what it has: the mixture then drifts, and no record is lost. With
    `max_buffer_size=None` the mixture never drifts, and what is too much is lost: records that got
    as old as `max_replay` elements, and those left when the component in turn has ended; the log
    says so once. Rows of several components wait under the one that they have most of: behind a
    packer, where a component may never be that one, use a bounded buffer. Do not shuffle between
    `stamp_exhausted` and here: a component that is used up does not come back.

    Args:
      dataset: Records: dicts with `component_id`, or with one id for each token in
        `component_ids` (-1 where padded), as rows from `pack` have them. With the entry
        "exhausted" from `stamp_exhausted`, components that are used up are not waited for.
      target_mixture: Weight of each component, by name.
      component_ids: The id of each, from the source.
      weigh: What a record counts for its component: a function that returns an int, or a mapping
        of component ids to ints for records of several; or the name of the entry that holds its
        tokens or their number. Rows with `component_ids` count their tokens by default.
      max_buffer_size: Records that are held back at most; None for no bound but `max_replay`.
      max_replay: Elements of the parent among which the oldest record held is, at most. It bounds
        the buffer, what a restore reads again, and the state: a bit for each.
      warn_tolerance: Drift of a share that is logged, once each time that it goes beyond.

    Raises:
      TypeError, ValueError: If a setting is not allowed, or later a record.

    Example:
      >>> import grain
      >>> records = [{"component_id": int(c), "tokens": 1} for c in "00001111"]
      >>> dataset = grain.MapDataset.source(records).to_iter_dataset()
      >>> mixed = EnsureMixture(dataset, {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1})
      >>> [record["component_id"] for record in mixed]
      [0, 1, 0, 1, 0, 1, 0, 1]
    """

    def __init__(
        self,
        dataset: grain.IterDataset,
        target_mixture: Mapping[str, Any],
        *,
        component_ids: Mapping[str, int],
        weigh: str | Callable[[Any], Any] = "tokens",
        max_buffer_size: int | None = 1024,
        max_replay: int = 2048,
        warn_tolerance: float = 0.05,
    ):
        super().__init__(dataset)
        if not isinstance(dataset, grain.IterDataset):
            raise TypeError(
                f"EnsureMixture needs a grain.IterDataset; got {type(dataset).__name__}."
            )
        self.records = dataset
        self.names = tuple(component_ids)
        self.index_of = {
            as_int(id_, f"component_ids[{name!r}]", 0): d
            for d, (name, id_) in enumerate(component_ids.items())
        }
        self.weights = _weights(target_mixture, self.names)
        if not (isinstance(weigh, str) or callable(weigh)):
            raise TypeError(f"weigh must be a function or the name of an entry; got {weigh!r}.")
        self.weigh = weigh
        self.max_replay = as_int(max_replay, "max_replay", 1, 1 << 20)
        size = max_buffer_size
        self.max_buffer_size = None if size is None else as_int(size, "max_buffer_size", 1)
        if size is None and self.max_replay == 1:
            raise ValueError(
                "max_buffer_size = None drops what is older than max_replay elements, and with"
                " max_replay = 1 that is every record. Use 2 or more."
            )
        self.tolerance = exact_weight(warn_tolerance, "warn_tolerance")

        low, high = digest_words(
            2, "EnsureMixture", *self.names, *map(str, self.index_of), *map(str, self.weights),
            str(self.max_buffer_size), str(self.max_replay),
        ).tolist()  # fmt: skip
        self.digest = low | high << 32

    def __iter__(self) -> _Iterator:
        return _Iterator(self)

    def __str__(self) -> str:
        return f"EnsureMixture({dict(zip(self.names, self.weights, strict=True))})"


def _weights(target: Mapping[str, Any], names: tuple[str, ...]) -> list[int]:
    """Integer weights in the order of the components' ids."""
    spec = MixtureSpec(target)
    unknown = [name for name in spec if name not in names]
    missing = [name for name in names if name not in spec]
    if unknown or missing:
        which = f"unknown components {unknown}" if unknown else f"no weight for {missing}"
        raise ValueError(
            f"target_mixture has {which}; components are {list(names)}. Name each, with 0 for"
            " those that are never in turn."
        )
    return integer_weights([spec[name] for name in names])[0]


class _Entry:
    """An element of the parent: held, or given out while an older one is held."""

    __slots__ = ("component", "index", "record", "state", "weights")

    def __init__(self, index: int, state: Any, record: Any, weights: Weights):
        self.index, self.state, self.record, self.weights = index, state, record, weights
        # The component it has most of; of equals the earlier one.
        self.component = max(weights, key=lambda part: (part[1], -part[0]))[0]


class _Iterator(grain.DatasetIterator):
    """Elements are numbered from the oldest that is held; the bits say which are gone."""

    def __init__(self, dataset: EnsureMixture):
        self._records = iter(dataset.records)
        super().__init__(self._records)
        self._dataset = dataset
        self._forget()

    def _forget(self) -> None:
        self._balance = Balance(self._dataset.weights)
        self._entries: deque[_Entry] = deque()  # from the oldest that is held
        self._queues: list[deque[_Entry]] = [deque() for _ in self._dataset.names]
        self._first = self._taken = 0  # number of the oldest; a bit for each that is not held
        self._num_held = self._num_dropped = 0
        self._used_up = [False] * len(self._dataset.names)
        self._ended = self._drifting = self._told = False
        self._pending: dict[str, Any] | None = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._pending is not None:
            self._replay(self._pending)
        while True:
            entry = self._choose()
            if entry is not None:
                return self._give_out(entry)
            if self._ended:
                raise StopIteration
            self._pull()

    def _choose(self) -> _Entry | None:
        """The record that goes next; None where more have to be taken from the parent."""
        size, queues = self._dataset.max_buffer_size, self._queues
        while len(self._entries) >= self._dataset.max_replay:
            if size is not None:
                return self._entries[0]
            self._drop(self._entries[0])
        best = self._in_turn()
        if best is not None and queues[best]:
            return queues[best][0]
        if self._ended and size is None:
            while self._entries:
                self._drop(self._entries[0])
        if not self._entries or not (self._ended or self._num_held >= (size or math.inf)):
            return None
        best = self._balance.furthest(queues)
        return self._entries[0] if best is None else queues[best][0]

    def _in_turn(self) -> int | None:
        """The component that is furthest behind, without those that have nothing more to give."""
        balance, everyone = self._balance, [True] * len(self._queues)
        ends = self._ended and self._dataset.max_buffer_size is not None
        while (best := balance.furthest(everyone)) is not None:
            if self._queues[best] or not (ends or self._used_up[best]):
                break
            balance.retire(best)
        return best

    def _pull(self) -> None:
        state = self._records.get_state()
        try:
            record = next(self._records)
        except StopIteration:
            self._ended = True
            return
        try:
            self._add(state, record)
        except Exception:
            self._records.set_state(state)  # the next call meets the same record
            raise

    def _add(self, state: Any, record: Any) -> None:
        weights = _weigh(record, self._dataset)
        if EXHAUSTED in record:
            for id_ in record[EXHAUSTED]:
                self._used_up[self._dataset.index_of[int(id_)]] = True
            record = {name: value for name, value in record.items() if name != EXHAUSTED}
        entry = _Entry(self._first + len(self._entries), state, record, weights)
        self._entries.append(entry)
        self._queues[entry.component].append(entry)
        self._num_held += 1

    def _give_out(self, entry: _Entry) -> Any:
        record = entry.record
        self._balance.add(entry.weights)
        self._take(entry)
        self._watch()
        return record

    def _drop(self, entry: _Entry) -> None:
        if not (self._ended or self._told):
            _LOG.warning(
                "records are dropped: %r has more than the mixture takes within max_replay = %s"
                " elements. Where that should not be, raise it, give a max_buffer_size, or leave"
                " out components that do not come.",
                self._dataset.names[entry.component], self._dataset.max_replay,
            )  # fmt: skip
            self._told = True
        self._num_dropped += 1
        self._take(entry)

    def _take(self, entry: _Entry) -> None:
        """Lets go of a record, which is the oldest of its component."""
        self._queues[entry.component].popleft()
        self._num_held -= 1
        entry.record = entry.state = None
        self._taken |= 1 << (entry.index - self._first)
        while self._taken & 1:
            self._entries.popleft()
            self._taken >>= 1
            self._first += 1

    def _watch(self) -> None:
        """Logs a drift when it begins."""
        balance = self._balance
        off = balance.drift(self._dataset.tolerance)
        if off is not None and not self._drifting:
            has, should = balance.shares(off)
            _LOG.warning(
                "the mixture drifts: %r has %.1f %% of what was given out, and should have %.1f %%."
                " Its records come too rarely, or too often, for max_buffer_size = %s and"
                " max_replay = %s.",
                self._dataset.names[off], 100 * has, 100 * should,
                self._dataset.max_buffer_size, self._dataset.max_replay,
            )  # fmt: skip
        self._drifting = off is not None

    def get_state(self) -> dict[str, Any]:
        """The place as plain JSON: of the oldest record held, and who was given out since."""
        if self._pending is not None:
            return dict(self._pending)
        balance, entries = self._balance, self._entries
        taken = self._taken.to_bytes(-(-self._dataset.max_replay // 8), "little")
        return {
            "parent": entries[0].state if entries else self._records.get_state(),
            "num_elements": len(entries),
            "taken": base64.b64encode(taken).decode("ascii"),
            "emitted": list(balance.emitted),
            "active": _flags(balance.active),
            "used_up": _flags(self._used_up),
            "largest": balance.largest,
            "drifting": int(self._drifting),
            "num_dropped": self._num_dropped,
            "mixture": f"{self._dataset.digest:016x}",
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a place that `get_state` described; records are read again with the next one.

        Raises:
          ValueError: If it is not a state of this transform with these components.
        """
        num_components = len(self._dataset.names)
        try:
            emitted = [as_int(n, "emitted", 0) for n in state["emitted"]]
            flags = [[bool(int(c)) for c in state[name]] for name in ("active", "used_up")]
            as_int(state["num_elements"], "num_elements", 0, self._dataset.max_replay)
            taken = base64.b64decode(state["taken"], validate=True)
            numbers = [as_int(state[n], n, 0) for n in ("largest", "drifting", "num_dropped")]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of EnsureMixture: {error!r}.") from None
        if {len(emitted), *map(len, flags)} != {num_components}:
            raise ValueError(
                f"the state is of {len(emitted)} components; this mixture has {num_components}."
            )
        if len(taken) != -(-self._dataset.max_replay // 8):
            raise ValueError(
                f"the state was saved with another max_replay than {self._dataset.max_replay}."
            )
        if state.get("mixture") != f"{self._dataset.digest:016x}":
            raise ValueError(
                "the state was saved with another target_mixture, other component_ids or another"
                f" max_buffer_size than {self._dataset} has. Use those, or start anew."
            )
        self._records.set_state(state["parent"])
        self._forget()
        self._balance.set(emitted, flags[0])
        self._used_up, self._balance.largest = flags[1], numbers[0]
        self._drifting, self._num_dropped = bool(numbers[1]), numbers[2]
        self._pending = dict(state)

    def _replay(self, state: dict[str, Any]) -> None:
        """Takes the same elements again, and holds those that were held."""
        try:
            self._take_again(state)
        except Exception:
            self.set_state(state)  # the next call starts the replay anew
            raise

    def _take_again(self, state: dict[str, Any]) -> None:
        taken = int.from_bytes(base64.b64decode(state["taken"]), "little")
        for index in range(state["num_elements"]):
            self._pull()
            if self._ended:
                raise ValueError("the data ended before what the state has seen of it.")
            if taken >> index & 1:
                entry = self._entries[-1]
                self._queues[entry.component].pop()
                self._num_held -= 1
                entry.record = entry.state = None
        self._taken, self._pending = taken, None

    def __str__(self) -> str:
        return f"EnsureMixtureIterator({self._dataset})"


def _flags(values: list[bool]) -> str:
    return "".join("01"[value] for value in values)


def _weigh(record: Any, dataset: EnsureMixture) -> Weights:
    """What a record counts, by component index; at least one pair."""
    weigh = dataset.weigh
    if not isinstance(record, Mapping):
        raise ValueError(f"records must be dicts with 'component_id'; got {type(record).__name__}.")
    if isinstance(weigh, str) and "component_ids" in record:
        ids, counts = np.unique(np.asarray(record["component_ids"]), return_counts=True)
        parts = {int(i): int(n) for i, n in zip(ids, counts, strict=True) if i >= 0}
    else:
        found = _tokens(record, weigh) if isinstance(weigh, str) else weigh(record)
        parts = found if isinstance(found, Mapping) else {_component(record): found}
    weights = []
    for id_, weight in parts.items():
        if id_ not in dataset.index_of:
            raise ValueError(
                f"a record is of component {id_}; known ids are {sorted(dataset.index_of)[:8]}."
            )
        weights.append((dataset.index_of[id_], as_int(weight, "the weight of a record", 0)))
    return weights or [(0, 0)]


def _component(record: Mapping[str, Any]) -> int:
    if "component_id" not in record:
        raise ValueError(
            f"records must keep 'component_id' (or 'component_ids'); got {sorted(record)}."
        )
    return int(record["component_id"])


def _tokens(record: Mapping[str, Any], name: str) -> int:
    if name not in record:
        raise ValueError(
            f"weigh = {name!r} names the entry that holds a record's tokens or their number; got"
            f" {sorted(record)}. Name another, or give a function."
        )
    value = record[name]
    return len(value) if np.ndim(value) else int(value)
