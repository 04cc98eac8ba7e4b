"""Carries of mixtures with rare components, thousands of chunks at a time.

A component is rare when it gets less than one sample a chunk. All others have a closed form. Where
a chunk has slots left over, a rare component may win one before it is owed a whole sample: it is
then ahead, its carry is negative, until the chunk in which it would have come to that sample.
Whether each rare component is ahead is all that must be followed from chunk to chunk, one bit a
component in plain Python; quotas and carries follow from those bits for a block of chunks at once.

Worked example: weights 300 and 1, chunks of 2 samples, so W = 301 and the rare component is owed
2 / 301 of a sample a chunk and the common one 1 + 299 / 301. One slot of each chunk is left over
and goes to the larger carry: to the rare component in chunk 76, when it is owed 152 / 301 and the
common one 149 / 301. From then on it is ahead, until chunk 151 brings it to a whole sample.

The result equals stepping with `quota.step`. The first seek to chunk 200,000 with 6 rare components
took 2.5 s against 17.5 s by stepping; the time grows with the number of chunks, so what is far is
found by `quota_coalescence` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.kernels.quota import Shares, quotas_between, rank, step

__all__ = ["forward", "quota_rows", "rare_components", "steps_through"]

_BLOCK = 2048  # chunks computed at once: larger blocks are no faster, and take more memory
_FOLLOWED = 60  # rare components at most: each is a bit of one int64
_COMPARED = 1 << 14  # rare components x components; above, stepping was as fast


def rare_components(shares: Shares) -> np.ndarray:
    """Components that get less than one sample a chunk: the only ones with a memory, int64 (t,)."""
    return np.flatnonzero((np.asarray(shares.whole) == 0) & (np.asarray(shares.rem) > 0))


def steps_through(shares: Shares) -> bool:
    """True where `forward` can only step, because too many components are rare."""
    return rare_components(shares).size > _FOLLOWED


class _Followed(NamedTuple):
    """What is known of n consecutive chunks once the rare components have been followed."""

    owed: np.ndarray  # int64 (n, k), carries before slots are dealt, if nobody were ahead
    ahead: np.ndarray  # bool (n, t), rare components that have had their next sample already
    missing: np.ndarray  # int64 (n,), slots that are still to be dealt; below 0 in a surplus


def _events(
    shares: Shares, rare: np.ndarray, carry: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, ...]:
    """What the memory of rare components follows from, for many chunks at once.

    Returns:
      For so many steps (n,) after a carry: what is owed to each component, (n, k); the slots
      missing if nobody were ahead, (n,); which rare component comes to a whole sample, (n, t); and
      how many components that are not rare are owed more than it, (n, t).
    """
    unit = int(shares.unit)
    owed = ((steps % unit)[:, None] * shares.rem.astype(np.int64) + carry) % unit
    common = np.delete(owed, rare, axis=1)
    places = np.setdiff1d(np.arange(owed.shape[1], dtype=np.int64), rare)
    mine = owed[:, rare]
    behind = np.empty_like(mine)
    for t, d in enumerate(rare.tolist()):
        one = mine[:, t, None]
        behind[:, t] = ((common > one) | ((common == one) & (places < d))).sum(axis=1)
    return owed, owed.sum(axis=1) // unit, mine < shares.rem[rare], behind


def _follow(shares: Shares, carry: np.ndarray, start: int, stop: int) -> Iterator[_Followed]:
    """Follows the rare components from the carry after `start` chunks on, a block at a time."""
    rare = rare_components(shares)
    bits = 1 << np.arange(rare.size)  # who is ahead, comes or could win, as bits of one integer
    ahead = int((carry[rare] < 0) @ bits)
    for first in range(1, stop - start + 1, _BLOCK):
        steps = np.arange(first, min(first + _BLOCK, stop - start + 1))
        owed, missing, whole, behind = _events(shares, rare, carry, steps)
        could = (behind < missing[:, None]) @ bits
        flags: list[int] = []
        left: list[int] = missing.tolist()
        for n, (comes, able) in enumerate(
            zip((whole @ bits).tolist(), could.tolist(), strict=True)
        ):
            ahead &= ~comes
            left[n] -= ahead.bit_count()
            flags.append(ahead)
            if left[n] > 0 and able & ~ahead:
                ahead |= _winners(owed[n, rare].tolist(), behind[n].tolist(), ahead, left[n])
        yield _Followed(owed, np.asarray(flags)[:, None] & bits != 0, np.asarray(left))


def _winners(owed: Sequence[int], behind: Sequence[int], ahead: int, slots: int) -> int:
    """The rare components that get one of the missing slots before their time, as bits."""
    waiting = sorted((-one, t) for t, one in enumerate(owed) if not ahead >> t & 1)
    # Those before it in line are rare too and not ahead, or counted in `behind`.
    return sum(1 << t for place, (_, t) in enumerate(waiting) if behind[t] + place < slots)


def _deal_missing(
    shares: Shares, rare: np.ndarray, followed: _Followed
) -> tuple[np.ndarray, np.ndarray]:
    """Carries (n, k) before and after the missing slots are dealt, where there is no surplus."""
    unit = int(shares.unit)
    before = followed.owed.copy()
    before[:, rare] -= followed.ahead * unit
    gets = rank(np, -before) < followed.missing[:, None]
    return before, before - gets * unit


def forward(shares: Shares, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The carry after `stop` chunks, from the one after `start` chunks, on the host.

    Args:
      shares: From `quota.shares` or `quota.fixed_shares`.
      carry: int32 (k,), the carry after `start` chunks.
      start: Chunks since the carry was zero.
      stop: Chunks since the carry was zero, not below `start`.

    Returns:
      int32 (k,).
    """
    rare, at, sure = rare_components(shares), start, start
    for followed in () if steps_through(shares) else _follow(shares, carry, start, stop):
        (plain,) = np.nonzero(followed.missing >= 0)
        if plain.size:  # the last chunk without a surplus: its carry is known
            last = plain[-1:]
            row = _Followed(*(field[last] for field in followed))
            carry, sure = (
                _deal_missing(shares, rare, row)[1][0].astype(np.int32),
                at + 1 + int(last[0]),
            )
        at += len(followed.missing)
    for _ in range(stop - sure):
        carry = step(shares, carry)[1]
    return carry


def quota_rows(
    shares: Shares, carry: np.ndarray, start: int, num_chunks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Quotas of consecutive chunks and the carry after each of them.

    Args:
      shares: From `quota.shares` or `quota.fixed_shares`.
      carry: int32 (k,), the carry after `start` chunks.
      start: Chunks since the carry was zero.
      num_chunks: Chunks to go through.

    Returns:
      int32 (n, k) both.
    """
    rare = rare_components(shares)
    if rare.size > _FOLLOWED or rare.size * carry.size > _COMPARED:
        rows = np.empty((2, num_chunks, carry.size), dtype=np.int32)
        for n in range(num_chunks):
            rows[0, n], carry = step(shares, carry)
            rows[1, n] = carry
        return rows[0], rows[1]
    carries = [carry[None].astype(np.int64)]
    for followed in _follow(shares, carry, start, start + num_chunks):
        before, after = _deal_missing(shares, rare, followed)
        _settle_surpluses(shares, carries[-1][-1], before, after, followed.missing)
        carries.append(after)
    found = np.concatenate(carries)
    return quotas_between(shares, found[:-1], found[1:]), found[1:].astype(np.int32)


def _settle_surpluses(
    shares: Shares, carry: np.ndarray, before: np.ndarray, after: np.ndarray, missing: np.ndarray
) -> None:
    """Fills in the carries after chunks with a surplus, which the largest quotas' owners give back.

    A component can give a sample back only where its quota is positive, which depends on the carry
    of the chunk before: of several chunks with a surplus in a row, each is settled after the last.
    """
    (surplus,) = np.nonzero(missing < 0)
    if not surplus.size:
        return
    begins = np.flatnonzero(np.diff(surplus, prepend=-2) != 1)
    depth = np.arange(surplus.size) - np.repeat(begins, np.diff(np.append(begins, surplus.size)))
    for level in range(int(depth.max()) + 1):
        row = surplus[depth == level]
        last = np.where(row[:, None] > 0, after[row - 1], carry)
        quotas = quotas_between(shares, last, before[row])
        key = np.where(quotas > 0, before[row], np.iinfo(np.int32).max)
        after[row] = before[row] + (rank(np, key) < -missing[row, None]) * int(shares.unit)
