"""Carries of mixtures with rare components at a far chunk, without the chunks before.

A component that gets less than one sample a chunk may have been given its next sample early: it is
then ahead until the chunk that owes it the sample. What is owed, modulo a sample, has a closed
form; who is ahead follows from the chunk before, so it seems that all of them must be gone through.
But the chain forgets: a component that comes to its sample is ahead no more, whatever was before,
and so after some chunks all histories have led to the same components being ahead. That is found
without any history, by the two bounds of a bounding chain: those that are ahead for sure, at first
nobody, and those that may be, at first all that could have won a slot. When both are the same, they
are the truth.

One chunk, with M slots for the fractions of all components, takes those ahead, A, to those with
  x in A, or |A + H(x)| < M,
where H(x) are the components that are owed more than x. That is monotone in A, so the chunk takes
the smallest and the largest A that are possible to bounds again, and where there is no surplus
exactly M components are ahead, which closes the gap.

References:
  Mark Huber, "Perfect sampling using bounding chains" (2004).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.kernels.quota import Shares

__all__ = ["Coalesced", "coalesced"]

_BLOCK = 1 << 18  # components x chunks whose fractions are computed at once

Flags: TypeAlias = NDArray[np.bool_]
Counts: TypeAlias = NDArray[np.int64]


class Coalesced(NamedTuple):
    """A carry that follows from no other."""

    num_chunks: int  # after which it is
    carry: NDArray[np.int32]  # (k,)


class _Bounds(NamedTuple):
    """Who is ahead for sure, and who may be: bool (k,). Everything in between is possible."""

    sure: Flags
    possible: Flags


class _Chunk(NamedTuple):
    """What a chunk does to those ahead."""

    num_chunks: int  # chunks up to its end
    owed: Counts  # (k,), fractions of a sample after it, in units of 1 / W
    slots: int  # for the fractions of all components
    comes: Flags  # (k,), who comes to a whole sample, and is ahead no more
    order: Counts  # (k,), components by what they are owed, the largest first


def _chunks(shares: Shares, carry: NDArray[np.int32], start: int, stop: int) -> Iterator[_Chunk]:
    """The chunks after `start` up to `stop`, from the carry of chunk 0."""
    unit, rem = int(shares.unit), shares.rem.astype(np.int64)
    common = shares.whole > 0  # they have no memory
    num = max(1, _BLOCK // rem.size)
    for first in range(start + 1, stop + 1, num):
        steps = np.arange(first, min(first + num, stop + 1), dtype=np.int64)
        owed = ((steps % unit)[:, None] * rem + carry) % unit
        comes = (owed < rem) | common
        order = np.argsort(-owed, axis=1, kind="stable")
        slots: list[int] = (owed.sum(axis=1) // unit).tolist()
        for n, number in enumerate(steps.tolist()):
            yield _Chunk(number, owed[n], slots[n], comes[n], order[n])


def _most_owed(chunk: _Chunk, ahead: Flags, number: int) -> Counts:
    """The so many components that are owed most, of those that are not ahead."""
    order = chunk.order
    return order[~ahead[order]][: max(0, number)]


def _narrowed(bounds: _Bounds, chunk: _Chunk) -> _Bounds:
    """The bounds after a chunk."""
    stay = ~chunk.comes
    sure, possible = bounds.sure & stay, bounds.possible & stay
    after = possible.copy()
    after[_most_owed(chunk, sure, chunk.slots - int(np.count_nonzero(sure)))] = True
    spare = chunk.slots - int(np.count_nonzero(possible))
    if spare >= 0:  # else there may be a surplus
        order = chunk.order
        held = possible[order]
        before = np.cumsum(~held) - ~held  # not held, and owed more
        sure = sure.copy()
        sure[order[before < spare + held]] = True
        if np.count_nonzero(after) == chunk.slots:
            return _Bounds(after, after)
        if np.count_nonzero(sure) == chunk.slots:
            return _Bounds(sure, sure)
    if np.count_nonzero(sure) == np.count_nonzero(after):
        return _Bounds(sure, sure)
    return _Bounds(sure, after)


def coalesced(
    shares: Shares, num_chunks: int, window: int, start: NDArray[np.int32] | None = None
) -> Coalesced | None:
    """The carry after about so many chunks, found from some chunks before alone.

    Args:
      shares: From `quota.shares` or `quota.fixed_shares`.
      num_chunks: Chunks since the carry was `start`.
      window: Chunks to look at, fewer than `num_chunks`.
      start: int32 (k,), the carry of chunk 0; zero by default.

    Returns:
      The carry after the last of the chunks up to `num_chunks` of which it is known; None where
      what came before the window still matters at its end.
    """
    carry = np.zeros(shares.rem.shape, dtype=np.int32) if start is None else start
    unit, first = int(shares.unit), num_chunks - window
    rare = (shares.whole == 0) & (shares.rem > 0)
    if start is None:
        # Who wins a slot is owed the mean of those that do not, at least, and more from then on.
        owed = (first % unit * shares.rem.astype(np.int64)) % unit
        rare &= owed * int(np.count_nonzero(shares.rem)) >= unit
    bounds, found = _Bounds(np.zeros_like(rare), rare), None
    for chunk in _chunks(shares, carry, first, num_chunks):
        if bounds.sure is not bounds.possible:
            bounds = _narrowed(bounds, chunk)
            continue
        ahead = bounds.sure & ~chunk.comes
        missing = chunk.slots - int(np.count_nonzero(ahead))
        ahead[_most_owed(chunk, ahead, missing)] = True
        bounds = _Bounds(ahead, ahead)
        if missing >= 0:  # of a surplus it is not known here who gives it back
            after = (chunk.owed - unit * ahead).astype(np.int32)
            found = Coalesced(chunk.num_chunks, after)
    return found
