"""Puts a lane's records into an order that follows a mixture, whatever became of them on the way.

Filters, splitters and packers change what a source had mixed. `EnsureMixtureIterDataset` holds some
records back and lets the component go first that is furthest behind its share, by the rule by which
chunks are read. Its state is the place of the oldest record it holds, and one bit for each later
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import grain

from zephon_jax import _compat
from zephon_jax._arrays import Number, as_int
from zephon_jax._text import short
from zephon_jax.kernels.keys import digest_words
from zephon_jax.kernels.weights import MixtureSpec, exact_weight, integer_weights
from zephon_jax.pipelines.ensure_mixture_state import MixturePlace, MixtureRules
from zephon_jax.pipelines.mark_exhausted import EXHAUSTED
from zephon_jax.pipelines.record_weights import RecordWeights
from zephon_jax.pipelines.reorder_buffer import Balance, Held, HeldRecords

__all__ = ["EnsureMixtureIterDataset", "ensure_mixture"]

_LOG = logging.getLogger(__name__)

_TOLD = frozenset(16**n for n in range(16))  # numbers of dropped records that the log tells
_END = object()
_WAIT = 16  # windows that are dropped at most in a row


class EnsureMixtureIterDataset(grain.IterDataset):
    """Reorders records so that what comes out follows a mixture at every point.

    The next record is one of the component with the largest `n_d * max(1, t) - E_d * C`: target
    weights n_d with sum C, E_d given out of component d, t in all. Records of one component keep
    their order. Where that component has none in the buffer, more are taken from the parent. A
    buffer that is full gives out what it has: the mixture then drifts, and no record is lost. With
    `max_buffer_size=None` the mixture never drifts, and what is too much is dropped: records that
    got as old as `max_replay` elements, and those left when the component in turn has ended. The
    log tells how many, and a wait that drops 16 times `max_replay` records in a row is an error.

    A row of several components, as a packer makes them, waits for the one of which it has most as
    measured by the targets. Records that weigh 0 are given out at once, and so are those of
    components that should have none; without a bound on the buffer the latter are dropped. Time
    and state grow with the number of components.

    Args:
      dataset: Records: dicts with `component_id`, or with one id for each token in
        `component_ids` (-1 where padded), as rows from `pack` have them. With the entry
        "exhausted" from `mark_exhausted`, components that are used up are not waited for.
      target_mixture: Weight of each component, by name; one with 0 is never in turn.
      component_ids: The id of each, from the source.
      weigh: What a record counts for its component: a function that returns an int, or a mapping
        of component ids to ints for records of several; or the name of the entry that holds its
        tokens or their number. None counts the tokens of rows with `component_ids`, and those in
        the entry "tokens" of others.
      max_buffer_size: Records that are held back at most; None for no bound but `max_replay`.
      max_replay: Elements of the parent among which the oldest record held is, at most. It bounds
        the buffer, what a restore reads again, and the state: a bit for each.
      warn_tolerance: Drift of a share that is logged. Once, until it was back within half of that.

    Raises:
      TypeError, ValueError: If a setting is not allowed, or later a record; or where a wait has no
        end because nothing comes of a component, or rows hold too little of it. After an error, of
        the parent too, the next call meets the same record.

    Example:
      >>> import grain
      >>> records = [{"component_id": int(c), "tokens": 1} for c in "00001111"]
      >>> dataset = grain.MapDataset.source(records).to_iter_dataset()
      >>> mixed = ensure_mixture(dataset, {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1})
      >>> [record["component_id"] for record in mixed]
      [0, 1, 0, 1, 0, 1, 0, 1]
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        dataset: grain.IterDataset,
        target_mixture: Mapping[str, Number],
        *,
        component_ids: Mapping[str, int],
        weigh: str | Callable[[Any], object] | None = None,
        max_buffer_size: int | None = 1024,
        max_replay: int = 2048,
        warn_tolerance: float = 0.05,
    ):
        super().__init__(dataset)
        if not isinstance(dataset, grain.IterDataset):
            raise TypeError(
                f"EnsureMixtureIterDataset needs a grain.IterDataset; got {type(dataset).__name__}."
            )
        self.records = dataset
        self.weighed = RecordWeights(component_ids, weigh)
        names = self.weighed.names
        self.weights = _weights(target_mixture, names)
        self.max_replay = as_int(max_replay, "max_replay", 1, 1 << 20)
        size = max_buffer_size
        self.max_buffer_size = None if size is None else as_int(size, "max_buffer_size", 1)
        if size is None and self.max_replay == 1:
            raise ValueError(
                "max_buffer_size = None drops what is older than max_replay elements, and with"
                " max_replay = 1 that is every record. Use 2 or more."
            )
        self.tolerance = _tolerance(warn_tolerance)

        low, high = digest_words(
            2, "EnsureMixture", *names, *map(str, self.weighed.ids), *map(str, self.weights),
            str(self.max_buffer_size), str(self.max_replay), *_name_of(weigh),
        ).tolist()  # fmt: skip
        self.rules = MixtureRules(str(self), len(names), self.max_replay, low | high << 32)

    def __iter__(self) -> _Iterator:
        return _Iterator(self)

    def __str__(self) -> str:
        return (
            f"EnsureMixtureIterDataset({dict(zip(self.weighed.names, self.weights, strict=True))})"
        )


def ensure_mixture(
    dataset: grain.IterDataset,
    target_mixture: Mapping[str, Number],
    *,
    component_ids: Mapping[str, int],
    **settings: Any,
) -> EnsureMixtureIterDataset:
    """Reorders records so that what comes out follows a mixture at every point.

    Args:
      dataset: As for `EnsureMixtureIterDataset`, and so are the others.
      target_mixture: Weight of each component, by name.
      component_ids: The id of each, from the source.
      **settings: `weigh`, `max_buffer_size`, `max_replay` and `warn_tolerance`.

    Raises:
      TypeError, ValueError: If a setting is not allowed.

    Example:
      >>> import grain, zephon_jax as zx
      >>> records = [{"component_id": c, "tokens": 1} for c in (0, 0, 1, 1)]
      >>> dataset = grain.MapDataset.source(records).to_iter_dataset()
      >>> mixed = zx.ensure_mixture(dataset, {"a": 1, "b": 1}, component_ids={"a": 0, "b": 1})
      >>> [record["component_id"] for record in mixed]
      [0, 1, 0, 1]
    """
    return EnsureMixtureIterDataset(
        dataset, target_mixture, component_ids=component_ids, **settings
    )


def _weights(target: Mapping[str, Number], names: tuple[str, ...]) -> list[int]:
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


def _tolerance(value: Number) -> Fraction:
    try:
        return exact_weight(value, "warn_tolerance")
    except ValueError:
        raise ValueError(
            f"warn_tolerance must be a share of at least 0; got {short(value)}."
        ) from None


def _name_of(weigh: str | Callable[[Any], object] | None) -> tuple[str, str]:
    if weigh is None or isinstance(weigh, str):
        return "entry", weigh or ""
    return "function", getattr(weigh, "__name__", type(weigh).__name__)


class _Iterator(grain.DatasetIterator):
    """Its place is that of the oldest record it holds; bits say which later ones are gone."""

    def __init__(self, dataset: EnsureMixtureIterDataset):
        super().__init__(iter(dataset.records))
        self._dataset = dataset
        self._forget()

    def _forget(self) -> None:
        self._balance = Balance(self._dataset.weights)
        self._held = HeldRecords(self._dataset.weights)
        num_components = len(self._dataset.weights)
        self._used_up = [False] * num_components
        self._num_dropped = self._in_vain = 0  # in all, and since a record was given out
        self._ended = self._told = self._drifting = False
        self._pending: dict[str, Any] | None = None

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._pending is not None:
            self._replay(self._pending)
        while (held := self._choose()) is None:
            if self._ended:
                self._end()
            elif len(self._held) >= self._dataset.max_replay:
                self._drop(self._held.oldest)
            else:
                self._pull()
        return self._give_out(held)

    def _choose(self) -> Held | None:
        """The record that goes next; None where that takes another one, or one less."""
        held, size = self._held, self._dataset.max_buffer_size
        while (found := held.waiting_for(None)) is not None:
            if size is not None or not found.parts:
                return found
            self._drop(found)
        best = self._in_turn()
        found = None if best is None else held.waiting_for(best)
        if found is not None or not held.num_waiting or size is None:
            return found
        if len(held) >= self._dataset.max_replay:
            return held.oldest
        if not (self._ended or held.num_waiting >= size):
            return None
        best = self._balance.furthest_among(held.waited_for())
        return None if best is None else held.waiting_for(best)

    def _in_turn(self) -> int | None:
        """The component that is furthest behind, without those that have nothing more to give."""
        balance, held = self._balance, self._held
        ends = self._ended and self._dataset.max_buffer_size is not None
        best = balance.furthest()
        if best is None or held.waiting_for(best) or not (ends or self._used_up[best]):
            return best
        waited_for = held.waited_for()
        gone = (d for d, used_up in enumerate(self._used_up) if ends or used_up)
        balance.leave(d for d in gone if not waited_for[d])
        return balance.furthest()

    def _pull(self) -> None:
        state = self._parents[0].get_state()
        try:
            record = next(self._parents[0], _END)
            if record is _END:
                self._ended = True
            else:
                self._add(state, record)
        except BaseException:
            self._reopen(state)  # the next call meets the same record
            raise

    def _reopen(self, state: Any) -> None:
        """Goes to a place of the parent: with a new iterator, for some of Grain's keep elements."""
        _compat.replace_parent(self, iter(self._dataset.records))
        self._parents[0].set_state(state)

    def _add(self, state: object, record: Any) -> None:
        weighed = self._dataset.weighed
        parts, used_up = weighed.of(record), record.get(EXHAUSTED, ())
        for index in [weighed.index_of(id_, f"an id in {EXHAUSTED!r}") for id_ in used_up]:
            self._used_up[index] = True
        if EXHAUSTED in record:
            record = {name: value for name, value in record.items() if name != EXHAUSTED}
        main = self._held.add(state, record, parts).main
        if main is not None and not self._balance.active[main]:
            self._balance.enter(main)  # it was said to be used up

    def _give_out(self, held: Held) -> object:
        record, self._in_vain = held.record, 0
        self._balance.add(held.parts)
        self._held.take(held)
        self._watch()
        return record

    def _drop(self, held: Held) -> None:
        best = self._in_turn()
        waited_for = "no component" if best is None else repr(self._dataset.weighed.names[best])
        if self._in_vain >= _WAIT * self._dataset.max_replay:
            raise ValueError(
                f"{self._in_vain} records in a row were dropped to wait for {waited_for}: nothing"
                " comes of it, or rows hold too little of it. Lower its weight in target_mixture,"
                " stamp components that are used up, or give a max_buffer_size."
            )
        self._num_dropped += 1
        self._in_vain += 1
        self._held.take(held)
        if self._num_dropped in _TOLD:
            _LOG.warning(
                "%s records were dropped so far, of components that have more than the mixture"
                " takes; it waits for %s. Where that should not be, raise max_replay = %s, give a"
                " max_buffer_size, or stamp components that are used up.",
                self._num_dropped, waited_for, self._dataset.max_replay,
            )  # fmt: skip

    def _end(self) -> None:
        """Drops what is left where the component in turn has ended."""
        while self._held.num_waiting:
            self._held.take(self._held.oldest)
            self._num_dropped += 1
        if self._num_dropped and not self._told:
            _LOG.warning("%s records were dropped in all.", self._num_dropped)
        self._told = True
        raise StopIteration

    def _watch(self) -> None:
        """Logs a drift when it begins."""
        balance, tolerance = self._balance, self._dataset.tolerance
        off = balance.drift(tolerance / 2 if self._drifting else tolerance)
        if off is not None and not self._drifting:
            has, should = balance.shares(off)
            _LOG.warning(
                "the mixture drifts: %r has %.1f %% of what was given out, and should have %.1f %%."
                " Its records come too rarely, or too often, for max_buffer_size = %s and"
                " max_replay = %s.",
                self._dataset.weighed.names[off], 100 * has, 100 * should,
                self._dataset.max_buffer_size, self._dataset.max_replay,
            )  # fmt: skip
        self._drifting = off is not None

    def get_state(self) -> dict[str, object]:
        """The place as plain JSON: of the oldest record held, and who was given out since."""
        if self._pending is not None:
            return dict(self._pending)
        balance, held = self._balance, self._held
        parent = held.oldest.state if len(held) else self._parents[0].get_state()
        place = MixturePlace(
            len(held), held.gone, balance.emitted, balance.active, self._used_up, balance.largest,
            self._drifting, self._num_dropped, self._in_vain,
        )  # fmt: skip
        return {"parent": parent, **place.to_json(self._dataset.rules)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a place that `get_state` described; records are read again with the next one.

        Raises:
          ValueError: If it is not a state of this transform with these components.
        """
        self._assert_not_closed()
        MixturePlace.of(state, self._dataset.rules)
        before = self.get_state()
        try:
            self._restore(state)
        except BaseException:
            self._restore(before)  # a state that is refused changes nothing
            raise

    def _restore(self, state: dict[str, object]) -> None:
        self._reopen(state["parent"])
        self._forget()
        self._go_to(MixturePlace.of(state, self._dataset.rules))
        self._pending = dict(state)

    def _go_to(self, place: MixturePlace) -> None:
        self._balance.set(list(place.emitted), list(place.active))
        self._balance.largest, self._drifting = place.largest, place.drifting
        self._used_up = list(place.used_up)
        self._num_dropped, self._in_vain = place.num_dropped, place.in_vain

    def _replay(self, state: dict[str, object]) -> None:
        """Takes the same elements again, and holds those that were held."""
        place = MixturePlace.of(state, self._dataset.rules)
        try:
            for index in range(place.num_elements):
                self._pull()
                if self._ended:
                    raise ValueError("the data ended before what the state has seen of it.")
                if place.gone >> index & 1:
                    self._held.take(self._held.newest)
        except BaseException:
            self._restore(state)  # the next call starts the replay anew
            raise
        self._go_to(place)
        self._pending = None

    def __str__(self) -> str:
        return f"EnsureMixtureIterator({self._dataset})"
