"""Settings of a mixture, brought to one value a dataset and checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.kernels import quota
from zephon_jax.kernels.lanes import ASSIGNMENTS
from zephon_jax.kernels.weights import MixtureSpec
from zephon_jax.mixture.history import Change, History, changed_history, constant
from zephon_jax.mixture.schedule import Ramp, Stage, make_schedule
from zephon_jax.sources.checks import ShardedDataset

__all__ = [
    "ALLOCATIONS",
    "MAX_COUNT",
    "MAX_PASSES",
    "POLICIES",
    "MixtureArguments",
    "MixtureSettings",
    "check_datasets",
    "make_settings",
    "weights_of",
]

T = TypeVar("T")
Weight: TypeAlias = int | float | Fraction | Decimal
BlockSize: TypeAlias = int | Literal["auto", "global"] | None
Policy: TypeAlias = Literal["stop", "repeat", "redistribute"]
Assignment: TypeAlias = Literal["permute", "modulo"]
AllocationName: TypeAlias = Literal["incremental", "fixed", "virtual_time"]

POLICIES: tuple[Policy, ...] = ("stop", "repeat", "redistribute")
ALLOCATIONS: tuple[AllocationName, ...] = ("incremental", "fixed", "virtual_time")
MAX_COUNT = 1 << 60
MAX_PASSES = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureArguments:
    """The arguments of a mixture as they were given, but for its datasets."""

    mixture: Mapping[str, Weight] | None = None  # where the weights stay,
    stages: Sequence[Stage] | None = None  # or a schedule
    ramp: Ramp | None = None
    changes: Sequence[Change] = ()  # made while the run went on
    chunk_size: int
    seed: int
    shuffle_shards: bool | Mapping[str, bool]
    shuffle_within_shard: bool | Mapping[str, bool]
    shuffle_block_size: BlockSize | Mapping[str, BlockSize]
    exhausted_policy: Policy | Mapping[str, Policy] | None
    reshuffle_on_repeat: bool | Mapping[str, bool]
    max_repeats: int | Mapping[str, int | None] | None
    stop_after_passes: int | None
    lane_assignment: Assignment
    allocation: AllocationName
    token_estimation: TokenEstimation | None

    def __post_init__(self) -> None:
        for name, value in self.items():
            if isinstance(value, Mapping):  # what the caller does to it must not reach a source
                object.__setattr__(self, name, dict(cast("Mapping[str, object]", value)))

    def items(self) -> list[tuple[str, object]]:
        """The arguments of the source with their names."""
        other = ("stages", "ramp", "changes") if self.stages is None else ("mixture",)
        return [(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in other]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSettings:
    """Checked settings. Tuples hold one value a dataset, in the order of the datasets."""

    names: tuple[str, ...]
    fractions: tuple[Fraction, ...]  # first shares, which sum to 1; 0 declares without drawing
    history: History  # these and all later shares, with the chunks from which on they hold
    stage_starts: tuple[int, ...]  # the first chunk of each stage
    token_points: tuple[int, ...]  # see `Schedule.points`; empty as soon as all chunks are known
    changes: tuple[Change, ...]  # those of them that were made while the run went on
    chunk_size: int  # samples
    seed: int
    shuffle_shards: tuple[bool, ...]
    shuffle_within_shard: tuple[bool, ...]
    shuffle_block_size: tuple[int | str | None, ...]  # samples, "auto" or "global"
    exhausted_policy: tuple[str, ...]
    reshuffle_on_repeat: tuple[bool, ...]
    max_repeats: tuple[int | None, ...]
    stop_after_passes: int | None
    lane_assignment: str
    allocation: str


def _per_dataset(
    value: object, argument: str, names: Sequence[str], check: Callable[[object, str], T]
) -> tuple[T, ...]:
    """One checked value for each dataset, from one for all or a mapping that names every one."""
    if not isinstance(value, Mapping):
        return (check(value, argument),) * len(names)
    given = cast("Mapping[str, object]", value)
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise ValueError(
            f"{argument} as a mapping must name every dataset and no other; got"
            f" {'no value for ' + repr(missing) if missing else 'unknown ' + repr(unknown)}."
        )
    return tuple(check(given[name], f"{argument}[{name!r}]") for name in names)


def _bool(value: object, argument: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{argument} must be True or False; got {short(value)}.")
    return bool(value)


def _block(value: object, argument: str) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, str):
        if value not in ("auto", "global"):
            raise ValueError(
                f"{argument} must be None, a number of samples, 'auto' or 'global'; got"
                f" {short(value)}."
            )
        return value
    return as_int(value, argument, 1, MAX_COUNT)


def _choice(value: object, argument: str, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{argument} must be one of {tuple(allowed)}; got {short(value)}.")
    return value


def _policy(value: object, argument: str) -> str:
    return _choice(value, argument, POLICIES)


def _repeats(value: object, argument: str) -> int | None:
    return None if value is None else as_int(value, argument, 0, MAX_COUNT)


def weights_of(mixture: Any, names: Sequence[str]) -> tuple[Fraction, ...]:
    """The weights of the datasets, which a mixture must name, and no others."""
    spec = mixture if isinstance(mixture, MixtureSpec) else MixtureSpec(mixture)
    missing = [name for name in names if name not in spec]
    if missing:
        raise ValueError(
            f"mixture must give every dataset a weight; {missing} have none. Give 0 to declare a"
            " dataset without drawing from it."
        )
    unknown = sorted(set(spec) - set(names))
    if unknown:
        raise ValueError(f"mixture names {unknown}, and the datasets are {list(names)}.")
    return tuple(spec[name] for name in names)


def _exhaustion(
    arguments: MixtureArguments, names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[int | None, ...], int | None]:
    """Resolves the three settings that say what happens at the end of a dataset."""
    policy, repeats = arguments.exhausted_policy, arguments.max_repeats
    passes = arguments.stop_after_passes
    given = policy is not None
    capped = repeats is not None
    policies = _per_dataset(
        "repeat" if policy is None else policy, "exhausted_policy", names, _policy
    )
    caps = _per_dataset(repeats, "max_repeats", names, _repeats)
    if passes is None:
        return policies, caps, None if given or capped else 1
    passes = as_int(passes, "stop_after_passes", 1, MAX_PASSES)
    other = sorted(set(policies) - {"repeat"})
    if other or any(cap is not None for cap in caps):
        clash = f"exhausted_policy = {other[0]!r}" if other else f"max_repeats = {repeats!r}"
        raise ValueError(
            f"stop_after_passes lets every dataset repeat and cannot be combined with {clash}; got"
            f" stop_after_passes = {passes}. Leave one of them out."
        )
    return policies, caps, passes


def make_settings(
    names: Sequence[str], given: MixtureArguments, placed: Sequence[int] | None = None
) -> MixtureSettings:
    """Checks the settings of a mixture, before any data is looked at.

    Args:
      names: Of the datasets.
      given: The arguments.
      placed: The chunks of `token_points`, as soon as they are known.

    Raises:
      TypeError, ValueError: Naming the argument, the value and what is allowed.
    """

    def each(argument: str, check: Callable[[Any, str], T]) -> tuple[T, ...]:
        return _per_dataset(getattr(given, argument), argument, names, check)

    policies, repeats, passes = _exhaustion(given, names)
    chunk_size = as_int(given.chunk_size, "chunk_size", 1, quota.MAX_CHUNK_SIZE)
    allocation = _allocation(given.allocation, given.token_estimation)
    if given.stages is None:
        history, starts, points = constant(weights_of(given.mixture, names)), (0,), ()
    else:
        changes = given.changes
        planned = names[: len(changes[0].num_shards)] if changes else names
        starts, history, points = make_schedule(
            given.stages,
            given.ramp,
            chunk_size,
            lambda mixture: weights_of(mixture, planned),
            in_tokens=given.token_estimation is not None,
            placed=placed,
        )
        if changes and not points:
            history = changed_history(history, changes, len(names))
            starts = tuple(one for one in starts if one < changes[0].first_chunk)
            starts = (*starts, *(change.first_chunk for change in changes))
    first = history[0].units
    if given.token_estimation is not None:
        _check_goes_on_in_tokens(given.changes, names)
    return MixtureSettings(
        names=tuple(names),
        fractions=tuple(Fraction(unit, sum(first)) for unit in first),
        history=history,
        stage_starts=starts,
        token_points=points,
        changes=tuple(given.changes),
        chunk_size=chunk_size,
        seed=as_int(given.seed, "seed"),
        shuffle_shards=each("shuffle_shards", _bool),
        shuffle_within_shard=each("shuffle_within_shard", _bool),
        shuffle_block_size=each("shuffle_block_size", _block),
        exhausted_policy=policies,
        reshuffle_on_repeat=each("reshuffle_on_repeat", _bool),
        max_repeats=repeats,
        stop_after_passes=passes,
        lane_assignment=_choice(given.lane_assignment, "lane_assignment", ASSIGNMENTS),
        allocation=allocation,
    )


def _check_goes_on_in_tokens(changes: Sequence[Change], names: Sequence[str]) -> None:
    """Refuses datasets that were added in mid-run to a mixture in tokens."""
    first = len(changes[0].num_shards) if changes else len(names)
    if first < len(names):
        raise ValueError(
            f"datasets {list(names[first:])[:8]} were added in mid-run to a mixture in tokens, of"
            " which token_estimation speaks from the start. Declare them from the start, with"
            " weight 0."
        )


def _allocation(value: object, token_estimation: object) -> str:
    """A mixture in tokens is always allocated by virtual time."""
    allocation = _choice(value, "allocation", ALLOCATIONS)
    if token_estimation is None:
        return allocation
    if not isinstance(token_estimation, TokenEstimation):
        raise TypeError(
            "token_estimation must be a zx.TokenEstimation or None; got"
            f" {type(token_estimation).__name__}."
        )
    if allocation == "fixed":
        raise ValueError(
            "allocation = 'fixed' gives every chunk the same counts of samples and cannot follow"
            " tokens. Leave it out where there is a token_estimation."
        )
    return "virtual_time"


def check_datasets(datasets: object) -> tuple[ShardedDataset, ...]:
    """Returns datasets as a tuple with unique names; warns where two read the same place.

    Raises:
      TypeError: If they are not a sequence of datasets.
      ValueError: If there are none, or two have one name.
    """
    if isinstance(datasets, (str, Mapping)) or not isinstance(datasets, Sequence):
        raise TypeError(
            f"datasets must be a list of zx.Dataset; got {type(datasets).__name__}. Put one in a"
            " list: [dataset]."
        )
    if not datasets:
        raise ValueError("datasets must hold at least one dataset; got an empty list.")
    seen: dict[str, int] = {}
    places: dict[str, str] = {}
    checked: list[ShardedDataset] = []
    for place, dataset in enumerate(cast("Sequence[object]", datasets)):
        if not isinstance(dataset, ShardedDataset):
            raise TypeError(
                f"datasets[{place}] must be a zx.Dataset; got {short(dataset)}. Records in memory"
                " become one by zx.Dataset.from_source(name, records), files by"
                " zx.Dataset.from_path(name, path)."
            )
        checked.append(dataset)
        counts = np.asarray(dataset.shard_counts)
        if counts.dtype.kind not in "iu" or counts.ndim != 1 or counts.min(initial=0) < 0:
            raise ValueError(
                f"datasets[{place}].shard_counts must be integers of shape (num_shards,) that are"
                f" not negative; got {counts}."
            )
        if dataset.name in seen:
            raise ValueError(
                f"dataset names must be unique; datasets[{seen[dataset.name]}] and"
                f" datasets[{place}] are both {dataset.name!r}."
            )
        seen[dataset.name] = place
        location: str | None = getattr(dataset, "location", None)
        if location is not None and location in places:
            warn(
                f"datasets {places[location]!r} and {dataset.name!r} read the same place,"
                f" {location}: their samples will be seen more often than the weights say."
            )
        places.setdefault(location or dataset.name, dataset.name)
    return tuple(checked)
