"""Schedules of weights: stages, the ramps between them, and the history that they come to.

A stage's mixture holds at the stage's first chunk. With "step" it holds to the stage's end; a ramp
moves from it to the next stage's mixture, which is reached where that stage begins. A ramp is a
staircase: its stage is cut into 64 parts (or the largest power of two below its chunks), as equal
as whole chunks allow, and part j has the weights of the ramp at j / 64. So a run of any length has
a history of a bounded number of entries, and a chunk's weights are exact: with "linear" they are
fractions of the two mixtures, with "cosine" fractions in steps of 2^-16 along half a cosine.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, cast

from zephon_jax._arrays import MAX_INDEX, as_int
from zephon_jax._text import short
from zephon_jax._warn import warn
from zephon_jax.kernels.weights import common_units, warn_if_moved
from zephon_jax.mixture.history import Entry, History

__all__ = ["RAMPS", "Amount", "Ramp", "Schedule", "Stage", "make_schedule", "samples", "tokens"]

Ramp: TypeAlias = Literal["step", "linear", "cosine"]
Units: TypeAlias = tuple[int, ...]

RAMPS: tuple[Ramp, ...] = ("step", "linear", "cosine")
# Parts of a ramp: the weights are within 1/64 of the way from the ideal line, and a far seek goes
# through the parts of all stages before once (0.3 ms each, 8 components).
_PARTS = 64
_COSINE_BITS = 16
_FAR_CHUNK = 1 << 32  # later than any chunk at which something is looked up before


class Amount(NamedTuple):
    """Where a stage ends, in samples or tokens since the start of the run."""

    __module__ = "zephon_jax"

    number: int
    unit: Literal["samples", "tokens"]


def samples(number: int) -> Amount:
    """So many samples, for the end of a stage.

    Args:
      number: Samples since the start of the run, all datasets together, at least 0.

    Raises:
      TypeError, ValueError: If it is no such number.

    Example:
      >>> import zephon_jax as zx
      >>> zx.Stage(until=zx.samples(10_000_000), mixture={"web": 1}).until.number
      10000000
    """
    return Amount(as_int(number, "samples", 0, MAX_INDEX), "samples")


def tokens(number: int) -> Amount:
    """So many tokens, for the end of a stage of a mixture in tokens.

    As many as the source's token estimation says. Only mixtures in tokens have such stages.

    Args:
      number: Tokens since the start of the run, all datasets together, at least 0.

    Raises:
      TypeError, ValueError: If it is no such number.

    Example:
      >>> import zephon_jax as zx
      >>> zx.tokens(10**12).unit
      'tokens'
    """
    return Amount(as_int(number, "tokens", 0, MAX_INDEX), "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a schedule: a mixture, and where the next one begins.

    Fields:
      mixture: Weight of each dataset, `MixtureSpec` or a mapping by name; only ratios matter.
        Weight 0 declares a dataset without drawing from it.
      until: The end of the stage, counted from the start of the run: a number of chunks,
        `zx.samples(n)`, or `zx.tokens(n)` in mixtures in tokens. None for the last stage, which
        has no end.
      ramp: How the weights go to the next stage's, "step", "linear" or "cosine"; None for what
        the source says.

    Example:
      >>> import zephon_jax as zx
      >>> zx.Stage(until=1000, mixture={"web": 9, "code": 1}, ramp="linear").until
      1000
    """

    __module__ = "zephon_jax"

    mixture: Mapping[str, int | float | Fraction | Decimal]
    until: int | Amount | None = None
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mixture, Mapping):  # what the caller does to it must not reach a source
            object.__setattr__(self, "mixture", dict(self.mixture))


class Schedule(NamedTuple):
    """What stages come to."""

    starts: tuple[int, ...]  # the first chunk of each stage
    history: History
    # Where stages end after tokens and nobody has said yet which chunks these are: tokens before
    # each entry, whose chunks then only say which comes after which.
    points: tuple[int, ...] = ()


def make_schedule(
    stages: object,
    ramp: object,
    chunk_size: int,
    weights_of: Callable[[object], Sequence[Fraction]],
    *,
    in_tokens: bool = False,
    placed: Sequence[int] | None = None,
) -> Schedule:
    """Checks stages and brings them to a history.

    Args:
      stages: A sequence of `Stage`.
      ramp: How weights go from one to the next where a stage does not say.
      chunk_size: Samples in a chunk.
      weights_of: Checks a mixture and returns the weights of all datasets.
      in_tokens: True for a mixture in tokens.
      placed: The chunks of the points, as soon as they are known.

    Raises:
      TypeError, ValueError: Naming the stage and what is wrong with it.
    """
    if isinstance(stages, (str, Mapping)) or not isinstance(stages, Sequence):
        raise TypeError(f"stages must be a list of zx.Stage; got {short(stages)}.")
    checked = list(cast("Sequence[object]", stages))
    if not checked:
        raise ValueError("stages must hold at least one zx.Stage; got an empty list.")
    found: list[Stage] = []
    for n, stage in enumerate(checked):
        if not isinstance(stage, Stage):
            raise TypeError(f"stages[{n}] must be a zx.Stage; got {short(stage)}.")
        found.append(stage)
    starts, unit = _starts(found, chunk_size, in_tokens)
    ramps: list[Ramp] = [_ramp(n, stage, ramp) for n, stage in enumerate(found)]
    if found[-1].ramp not in (None, "step"):
        raise ValueError(
            f"stages[{len(found) - 1}].ramp = {found[-1].ramp!r} has no stage to go to. Leave it"
            " out of the last stage."
        )
    units: list[Units] = []
    for n, stage in enumerate(found):
        units.append(_units(n, stage, weights_of))
    entries: list[Entry] = []
    firsts: list[int] = []  # the entry with which each stage begins
    ends = [*starts[1:], None]
    for n, (start, end, how) in enumerate(zip(starts, ends, ramps, strict=True)):
        firsts.append(len(entries))
        if end is None or how == "step":
            entries.append(Entry(start, units[n]))
        elif end > start:
            entries += _ramped(start, end, how, units[n], units[n + 1])
    if unit != "tokens":
        return Schedule(tuple(starts), _merged(entries))
    if placed is None:
        points = tuple(entry.first_chunk for entry in entries)
        far = tuple(Entry(n and _FAR_CHUNK + n, one.units) for n, one in enumerate(entries))
        return Schedule(tuple(far[n].first_chunk for n in firsts), far, points)
    return _placed(found, entries, firsts, placed)


def _placed(
    stages: Sequence[Stage], entries: Sequence[Entry], firsts: Sequence[int], placed: Sequence[int]
) -> Schedule:
    """A schedule whose stages end after tokens, from the chunks at which its entries begin."""
    starts = [placed[n] for n in firsts]
    for n, (start, end) in enumerate(pairwise(starts)):
        if start == end and stages[n].until != Amount(0, "tokens"):
            raise ValueError(
                f"stages[{n}].until = {short(stages[n].until)} is nearest to chunk {end}, at which"
                " the stage begins. Each stage needs one chunk at least: lower chunk_size."
            )
    pairs = zip(placed, entries, strict=True)
    return Schedule(tuple(starts), _merged([Entry(chunk, one.units) for chunk, one in pairs]))


def _ramp(n: int, stage: Stage, ramp: object) -> Ramp:
    """A checked ramp: the stage's own, or the source's where it names none."""
    own = stage.ramp is not None
    value = stage.ramp if own else ramp
    if not isinstance(value, str) or value not in RAMPS:
        name = f"stages[{n}].ramp" if own else "ramp"
        raise ValueError(f"{name} must be one of {RAMPS}; got {short(value)}.")
    return cast("Ramp", value)


def _units(n: int, stage: Stage, weights_of: Callable[[object], Sequence[Fraction]]) -> Units:
    try:
        weights = weights_of(stage.mixture)
    except (TypeError, ValueError) as error:
        raise type(error)(f"stages[{n}]: {error}") from None
    warn_if_moved(weights, None)
    return tuple(common_units(weights))


def _starts(
    stages: Sequence[Stage], chunk_size: int, in_tokens: bool
) -> tuple[list[int], str | None]:
    """The first chunk of each stage, or the tokens before it, ascending, and the unit given."""
    last = len(stages) - 1
    if stages[last].until is not None:
        raise ValueError(
            f"stages[{last}] is the last one and has no end: until must be None; got"
            f" {short(stages[last].until)}. zx.take ends a source after some chunks."
        )
    starts: list[int] = [0]
    first: str | None = None
    for n, stage in enumerate(stages[:last]):
        end, unit = _end(n, stage.until, chunk_size, in_tokens)
        first = unit if first is None else first
        if unit != first:
            raise ValueError(
                f"stages[{n}].until counts {unit}, and stages[0].until {first}. Give all in the"
                " same unit."
            )
        if end < starts[-1] or (end == starts[-1] and n > 0):
            what = "token" if unit == "tokens" else "chunk"
            raise ValueError(
                f"stages[{n}].until = {short(stage.until)} is {what} {end}, and the stage begins at"
                f" {what} {starts[-1]}. Stages must be in ascending order, each of one chunk of"
                f" {chunk_size} samples at least."
            )
        if end == 0:
            warn("stages[0] has no effect: it ends at chunk 0. Leave it out.")
        starts.append(end)
    return starts, first


def _end(n: int, until: object, chunk_size: int, in_tokens: bool) -> tuple[int, str]:
    """The chunk at which a stage ends, or the token, and the unit that says so."""
    most = MAX_INDEX // chunk_size
    if isinstance(until, Amount):
        if until.unit == "tokens":
            if not in_tokens:
                raise ValueError(
                    f"stages[{n}].until = {until.number} tokens needs a mixture in tokens. Give a"
                    " token_estimation, or the end in chunks or in zx.samples."
                )
            return until.number, until.unit
        return (2 * until.number + chunk_size) // (2 * chunk_size), until.unit
    if until is None:
        raise ValueError(
            f"stages[{n}].until is missing: only the last stage has no end. Give a number of"
            " chunks, zx.samples or zx.tokens."
        )
    return as_int(until, f"stages[{n}].until", 0, most), "chunks"


def _ramped(start: int, end: int, ramp: Ramp, one: Units, other: Units) -> list[Entry]:
    """The entries of a ramp from one mixture to another."""
    num_chunks = end - start
    parts = min(_PARTS, 1 << num_chunks.bit_length() - 1)
    whole = 1 << _COSINE_BITS if ramp == "cosine" else parts
    here = [unit * sum(other) for unit in one]  # the same sum for both
    there = [unit * sum(one) for unit in other]
    entries: list[Entry] = []
    for part in range(parts):
        moved = _cosine_steps()[part * (_PARTS // parts)] if ramp == "cosine" else part
        mixed = [a * (whole - moved) + b * moved for a, b in zip(here, there, strict=True)]
        entries.append(Entry(start + part * num_chunks // parts, tuple(common_units(mixed))))
    return entries


@functools.cache
def _cosine_steps() -> tuple[int, ...]:
    """(1 - cos(pi j / 64)) / 2 for j = 0 .. 63, in units of 2^-16, computed in integers."""
    bits = 96
    one, cosine = 1 << bits, 0  # cos(pi / 2), halved until it is cos(pi / 64)
    for _ in range(_PARTS.bit_length() - 2):
        cosine = math.isqrt((one + cosine) * one >> 1)
    cosines = [one, cosine]
    while len(cosines) < _PARTS:  # cos((j + 1) x) = 2 cos(x) cos(j x) - cos((j - 1) x)
        cosines.append((2 * cosine * cosines[-1] >> bits) - cosines[-2])
    shift = bits + 1 - _COSINE_BITS
    return tuple((one - each + (1 << shift - 1)) >> shift for each in cosines)


def _merged(entries: Sequence[Entry]) -> History:
    """The entries that change something: the last of a chunk, with other weights than before."""
    found: list[Entry] = []
    for entry in entries:
        if found and found[-1].first_chunk == entry.first_chunk:
            found.pop()
        if not found or found[-1].units != entry.units:
            found.append(entry)
    return tuple(found)
