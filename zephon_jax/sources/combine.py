"""Sources made of sources: one after another, side by side, the beginning of one, or the rest."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, cast

from zephon_jax._arrays import Number, as_int
from zephon_jax._text import short
from zephon_jax.kernels.weights import exact_weight
from zephon_jax.sources.checks import State
from zephon_jax.sources.combined import CombinedSource, CombinedState
from zephon_jax.sources.part_cursor import FAR, Part
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["concatenate", "interleave", "skip", "take"]


def _parts(sources: object) -> list[Part]:
    """Whole sources as parts."""
    if isinstance(sources, (str, bytes)) or not isinstance(sources, Sequence):
        raise TypeError(f"sources must be a list of zx.WorkSource; got {short(sources)}.")
    if not sources:
        raise ValueError("sources must hold at least one source; got an empty list.")
    parts: list[Part] = []
    for place, source in enumerate(cast("Sequence[WorkSource[Any]]", sources)):
        check_source(source, f"sources[{place}]")
        parts.append(_part(source, f"sources[{place}]"))
    return parts


def _part(source: WorkSource[State], name: str, first: int = 0, limit: int = FAR) -> Part:
    if source.requires_token_priming:
        raise ValueError(
            f"{name} weighs by tokens and has not been primed. Give the source that prime()"
            " returns."
        )
    return Part(source, first, limit)


def concatenate(sources: Sequence[WorkSource[Any]]) -> WorkSource[CombinedState]:
    """Returns the chunks of several sources, one source after another.

    Components of one name are one component, and a dataset that several sources have is one
    dataset. Chunks are numbered through and dealt to lanes anew, whatever lanes the sources deal
    to. Seeking takes as long as it takes the sources.

    Args:
      sources: Sources, of which all but the last must end.

    Returns:
      A pure source; its states hold one of each source.

    Raises:
      TypeError: If they are not sources.
      ValueError: If there is none, one but the last never ends, one has to be primed, or two have
        different datasets of one name.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [40])
      >>> plain = zx.StaticMixtureWorkSource([toy], {"toy": 1}, 10, shuffle_shards=False)
      >>> both = zx.concatenate([zx.take(plain, 1), plain])
      >>> [both.next_chunk(both.seek(g))[0].components["toy"][0].tolist() for g in range(3)]
      [[0, 0, 0], [0, 0, 0], [0, 0, 10]]
    """
    parts = _parts(sources)
    for place, part in enumerate(parts[:-1]):
        if part.num_chunks == FAR:
            raise ValueError(
                f"sources[{place}] never ends, so nothing after it would be read. Cut it with"
                " zx.take, or put it last."
            )
    return CombinedSource("concatenate", parts)


def interleave(
    sources: Sequence[WorkSource[Any]], weights: Sequence[Number]
) -> WorkSource[CombinedState]:
    """Returns the chunks of several sources side by side, in proportion to weights.

    Weights are shares of chunks, held to at any point by weighted fair queueing: a source is never
    more than two chunks from its share. A source that has ended leaves its share to the others, so
    that each chunk of each source comes once. Names, lanes and seeks are as in `zx.concatenate`.

    Args:
      sources: Sources.
      weights: A positive number for each source, as in `MixtureSpec`; only ratios matter.

    Returns:
      A pure source; its states hold one of each source.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> import zephon_jax as zx
      >>> names = "web", "code"
      >>> web, code = (
      ...     zx.StaticMixtureWorkSource([zx.Dataset.from_counts(n, [60])], {n: 1}, 10)
      ...     for n in names)
      >>> both = zx.interleave([web, code], [2, 1])
      >>> [zx.simulate(both).draws[:6, d].tolist() for d in range(2)]
      [[0, 10, 10, 0, 10, 10], [10, 0, 0, 10, 0, 0]]
    """
    parts = _parts(sources)
    return CombinedSource("interleave", parts, _weights(weights, len(parts)))


def _weights(weights: object, number: int) -> list[Fraction]:
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Sequence):
        raise TypeError(f"weights must be a list of numbers; got {short(weights)}.")
    given = cast("Sequence[Number]", weights)
    if len(given) != number:
        raise ValueError(
            f"weights must give each source a number: got {len(given)} for {number} sources."
        )
    exact = [exact_weight(weight, f"weights[{place}]") for place, weight in enumerate(given)]
    for place, weight in enumerate(exact):
        if not weight:
            raise ValueError(
                f"weights[{place}] must be positive; got 0. Leave the source out instead: nothing"
                " would be read of it until all others have ended."
            )
    total = sum(exact, Fraction(0))
    return [weight / total for weight in exact]


def take(source: WorkSource[State], num_chunks: int) -> WorkSource[CombinedState]:
    """Returns the first chunks of a source, all of them where there are no more.

    Args:
      source: Any source.
      num_chunks: Chunks, at least 1.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [40])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> zx.simulate(zx.take(source, 3)).num_samples
      30
    """
    check_source(source)
    num_chunks = as_int(num_chunks, "num_chunks", 1, FAR - 1)
    return CombinedSource("take", [_part(source, "source", 0, num_chunks)])


def skip(source: WorkSource[State], num_chunks: int) -> WorkSource[CombinedState]:
    """Returns a source without its first chunks. The rest is numbered from 0.

    Args:
      source: Any source.
      num_chunks: Chunks that are left out, at least 1.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or nothing would be left.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [40])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> zx.simulate(zx.skip(source, 3)).num_samples
      10
    """
    check_source(source)
    num_chunks = as_int(num_chunks, "num_chunks", 1, FAR - 1)
    part = _part(source, "source", num_chunks)
    if part.num_chunks == 0:
        raise ValueError(
            f"num_chunks must leave something to read; got {num_chunks}, and {source!r} has no"
            " more chunks."
        )
    return CombinedSource("skip", [part])
