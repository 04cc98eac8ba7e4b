"""Changes of a mixture while its run goes on: which are possible, and states from before them.

A change holds from a chunk on that nobody has read. What the source keeps of it are integers: see
`history.Change`. The source as it was before follows from the same datasets without what was added.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.mixture.history import Change
from zephon_jax.mixture.lane_states import field_words
from zephon_jax.mixture.settings import MixtureArguments, MixtureSettings
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.checks import ShardedDataset, check_lane
from zephon_jax.sources.codec import Plain
from zephon_jax.sources.words import from_words

if TYPE_CHECKING:
    from zephon_jax.mixture.base import MixtureSource

__all__ = [
    "as_before",
    "boundary_of",
    "check_settings",
    "checked_changes",
    "state_after_change",
    "with_datasets",
]

_OF_WEIGHTS = ("history", "fractions", "stage_starts", "token_points", "changes")


def boundary_of(at: object) -> int:
    """The chunk from which on a change may hold.

    Args:
      at: A chunk, or states of lanes. With those of all lanes it is the first boundary of a block
        of lanes that none has passed; with one lane's of several one block later, since another
        lane may be ahead by one.

    Raises:
      TypeError, ValueError: If it is neither, or the states are of different numbers of lanes.
    """
    if isinstance(at, MixtureState):
        at = [at]
    if not isinstance(at, (list, tuple)):
        return as_int(at, "at", 0)
    given = cast("Sequence[object]", at)
    states = [one for one in given if isinstance(one, MixtureState)]
    if not states or len(states) < len(given):
        raise TypeError(f"at must be a chunk, or states of lanes; got {short(at)}.")
    kinds = {(from_words(state.origin), int(state.num_lanes)) for state in states}
    if len(kinds) > 1:
        raise ValueError(f"at must hold states of one number of lanes; got {sorted(kinds)}.")
    ((origin, num_lanes),) = kinds
    blocks = [(from_words(state.chunk) - origin) // num_lanes + int(state.lag) for state in states]
    ahead = len({int(state.lane) for state in states}) < num_lanes
    return origin + (max(blocks) + ahead) * num_lanes


def with_datasets(
    datasets: Sequence[ShardedDataset], given: Sequence[ShardedDataset]
) -> tuple[ShardedDataset, ...]:
    """The datasets after a change: new ones at the end, and others in the place of their names.

    Raises:
      ValueError: If a dataset does not go on with the shards that it had, naming the first one.
    """
    places = {dataset.name: d for d, dataset in enumerate(datasets)}
    found = list(datasets)
    for dataset in given:
        place = places.get(dataset.name)
        if place is None:
            found.append(dataset)
            continue
        _check_goes_on(datasets[place], dataset)
        found[place] = dataset
    return tuple(found)


def _check_goes_on(old: ShardedDataset, new: ShardedDataset) -> None:
    """Refuses a dataset whose first shards are not those of the one before."""
    before, after = (np.asarray(one.shard_counts, dtype=np.int64) for one in (old, new))
    kinds = [("samples", before, after)]
    sizes = [getattr(one, "shard_bytes", None) for one in (old, new)]
    if sizes[0] is not None and sizes[1] is not None:
        kinds.append(("bytes", np.asarray(sizes[0]), np.asarray(sizes[1])))
    if len(after) < len(before):
        raise ValueError(
            f"dataset {old.name!r} had {len(before)} shards and now has {len(after)}; shards that a"
            " run may have read have to stay. Give it weight 0 to stop drawing from it."
        )
    for unit, one, other in kinds:
        differ = np.flatnonzero(one != other[: len(one)])
        if differ.size:
            n = int(differ[0])
            raise ValueError(
                f"shard {n} of dataset {old.name!r} had {one[n]} {unit} and now has {other[n]}; a"
                " dataset goes on with the shards that it had, and new ones after them."
            )


def checked_changes(changes: object, datasets: Sequence[ShardedDataset]) -> tuple[Change, ...]:
    """Changes as they were kept, which may have gone through JSON.

    Args:
      changes: The value of the argument.
      datasets: Those that there are after all changes.

    Raises:
      TypeError, ValueError: If they are none, or not in ascending order.
    """
    if isinstance(changes, (str, Mapping)) or not isinstance(changes, Sequence):
        raise TypeError(f"changes must be those of a source; got {short(changes)}.")
    found: list[Change] = []
    for n, one in enumerate(cast("Sequence[object]", changes)):
        where = f"changes[{n}]"
        if not isinstance(one, (list, tuple)) or len(one) != len(Change._fields):
            raise TypeError(f"{where} must have the fields {Change._fields}; got {short(one)}.")
        first_chunk, *lists = cast("Sequence[Sequence[int]]", one)
        change = Change(
            as_int(first_chunk, f"{where}.first_chunk", 0),
            *(
                tuple(as_int(value, f"{where}.{name}", 0) for value in values)
                for name, values in zip(Change._fields[1:], lists, strict=True)
            ),
        )
        before = found[-1] if found else None
        fits = len(change.num_shards) == len(change.drawn) <= len(change.units) <= len(datasets)
        if before is not None:
            fits = fits and len(before.units) == len(change.num_shards)
            fits = fits and before.first_chunk < change.first_chunk
        if not fits or not any(change.units):
            raise ValueError(f"{where} does not follow from those before it: {short(change)}.")
        for dataset, num in zip(datasets, change.num_shards, strict=False):
            if num > len(dataset.shard_counts):
                raise ValueError(
                    f"{where} says that dataset {dataset.name!r} had {num} shards, and now it has"
                    f" {len(dataset.shard_counts)}. Give the dataset with all its shards."
                )
        found.append(change)
    return tuple(found)


def check_settings(before: MixtureSettings, after: MixtureSettings) -> None:
    """Refuses other settings of datasets that there were.

    Raises:
      ValueError: Naming the setting and the dataset.
    """
    for field in fields(before):
        one, other = getattr(before, field.name), getattr(after, field.name)
        if field.name in _OF_WEIGHTS or one == other:
            continue
        names = before.names
        named = isinstance(one, tuple) and isinstance(other, tuple)
        pairs = zip(names, one, other, strict=False) if named else []
        for name, old, new in pairs:
            if old != new:
                raise ValueError(
                    f"{field.name} of {name!r} was {old!r} and cannot become {new!r}: with a change"
                    " of the mixture only new datasets have settings of their own."
                )


class FirstShards:
    """The first shards of a dataset: what there was of it before others were added.

    Args:
      dataset: The dataset as it is now.
      num_shards: How many.
    """

    def __init__(self, dataset: ShardedDataset, num_shards: int):
        self.name = dataset.name
        self.shard_counts = np.asarray(dataset.shard_counts, dtype=np.int64)[:num_shards]
        parts = {n: getattr(dataset, n, None) for n in ("shard_bytes", "shard_digests", "shards")}
        self.shard_bytes, self.shard_digests, self.shards = (
            () if part is None and n == "shards" else None if part is None else part[:num_shards]
            for n, part in parts.items()
        )
        self._whole = dataset

    def __getattr__(self, name: str) -> Any:
        # All else, what reading needs among it, is as in the whole dataset.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole, name)


def as_before(
    datasets: Sequence[ShardedDataset], arguments: MixtureArguments, number: int
) -> tuple[tuple[ShardedDataset, ...], MixtureArguments]:
    """The datasets and arguments of a source before its change with some number."""
    changes = arguments.changes
    num_shards = changes[number].num_shards
    first = tuple(
        dataset if n == len(dataset.shard_counts) else FirstShards(dataset, n)
        for dataset, n in zip(datasets, num_shards, strict=False)
    )
    own: dict[str, Any] = {
        name: {one.name: cast("Mapping[str, object]", value)[one.name] for one in first}
        for name, value in arguments.items()
        if isinstance(value, Mapping)
    }
    return first, replace(arguments, **own, changes=changes[:number])


def state_after_change(source: MixtureSource, fields: list[Plain], change: Change) -> MixtureState:
    """The state of a source where an encoded state from before one of its changes stands.

    Args:
      source: As it is now.
      fields: The state's fields as they are encoded, of the source before the change.
      change: The first one that the state does not know.

    Raises:
      ValueError: If the lane has read what is drawn otherwise since, or its counts are impossible.
    """
    words = {name: field_words(fields, name) for name in MixtureState._fields}
    sizes = [words[name].size for name in ("lane", "num_lanes", "chunk", "origin")]
    if sizes != [1, 1, 2, 2]:
        raise ValueError("not an encoded state, or a damaged one: its fields have other sizes.")
    lane, num_lanes = check_lane(int(words["lane"][0]), int(words["num_lanes"][0]))
    chunk, origin = from_words(words["chunk"]), from_words(words["origin"])
    first = change.first_chunk
    place = source.run.states.lane(lane, num_lanes, origin)
    if chunk > first and (origin > first or place.chunk_from(first) < place.chunk_from(chunk)):
        raise ValueError(
            f"the state of lane {lane} is past chunk {first}, where the mixture was changed: it has"
            f" read chunks up to {chunk} by the weights before. Restore an earlier state, or make"
            " the change at a later chunk."
        )
    drawn = from_words(words["drawn"].reshape(-1, 2))
    expected = source.eras.seek(chunk).drawn[: len(drawn)]
    if chunk <= first and not np.array_equal(drawn, expected):
        raise ValueError(
            "the state contradicts itself: its carry and counts do not belong to its chunk"
            f" {chunk}."
        )
    return source.seek(chunk, lane, num_lanes, origin=origin)
