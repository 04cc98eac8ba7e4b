"""Windows of a lattice order, found without the rest of the chunk.

Slot j of a chunk has the key j * GOLDEN mod 2^64, and slots take components in the order of their
keys: a component is an arc of the circle of keys. So all that is needed is how many of the first m
keys lie in an arc. For a convergent p/q of GOLDEN / 2^64 the first q keys lie one in each cell of
2^64 / q, and how many of them are below a bound is one multiplication and one comparison. All
partial quotients are 1, so the q are Fibonacci numbers, and any m is a sum of at most 40 of them: a
count takes so many steps, whatever the chunk.

References:
  Steinhaus's three-gap theorem (Vera Sos, 1958); Edouard Zeckendorf, "Representation des nombres
  naturels par une somme de nombres de Fibonacci" (1972).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon_jax._arrays import GOLDEN

__all__ = ["LatticeWindow", "LatticeWindows"]

_MOST_SLOTS = 1 << 28  # of a chunk
_STEP = np.uint64(GOLDEN)
_HALF, _LOW_HALF = np.uint64(32), np.uint64(0xFFFFFFFF)
_ZERO, _ONE = np.uint64(0), np.uint64(1)

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]


class _Ring(NamedTuple):
    """A convergent p/q of GOLDEN / 2^64."""

    size: int  # q, below 2^30, so that products with 32 bits do not wrap
    inverse: int  # of p modulo q: the r-th key round the circle is that of slot r * inverse mod q
    above: (
        bool  # True where keys lie at or after the begin of their cell, else at or before its end
    )


def _make_rings() -> list[_Ring]:
    rings: list[_Ring] = []
    (p_before, q_before), (p, q), (numerator, rest) = (1, 0), (0, 1), (1 << 64, GOLDEN)
    while q <= 2 * _MOST_SLOTS:
        rings.append(_Ring(q, pow(p, -1, q), GOLDEN * q > p << 64))
        quotient, after = divmod(numerator, rest)
        assert quotient == 1  # so that each ring is used once at most
        p_before, p, q_before, q = p, p + p_before, q, q + q_before
        numerator, rest = rest, after
    return rings


_RINGS = _make_rings()  # of 1, 1, 2, 3, 5, 8, ... keys


def _keys(slots: Counts | Keys) -> Keys:
    return slots.astype(np.uint64) * _STEP


def _num_below(ring: _Ring, bound: Keys) -> Keys:
    """How many of a ring's slots have a key below a bound."""
    size, inverse = np.uint64(ring.size), np.uint64(ring.inverse)
    # The whole part of bound * size / 2^64.
    cell = ((bound >> _HALF) * size + ((bound & _LOW_HALF) * size >> _HALF)) >> _HALF
    if ring.above:  # cell r has the key of rank r
        return cell + (cell * inverse % size * _STEP < bound)
    slot = (cell + _ONE) * inverse % size  # cell r has that of rank r + 1, and slot 0 lies at 0
    return cell + (bound > _ZERO) + ((slot > _ZERO) & (slot * _STEP < bound))


def _num_in_arc(ring: _Ring, begin: Keys, width: Keys) -> Keys:
    """How many of a ring's slots have a key in an arc."""
    end = begin + width
    found = _num_below(ring, end) - _num_below(ring, begin)
    return found + np.where(end < begin, np.uint64(ring.size), _ZERO)


def _num_before(slot: int, begin: Keys, width: Keys) -> Counts:
    """How many slots before one have a key in each of some arcs: (n,)."""
    turned, total = 0, np.zeros(begin.size, dtype=np.uint64)
    for ring in reversed(_RINGS):
        if slot >= ring.size:
            total += _num_in_arc(ring, begin - np.uint64(turned), width)
            turned = (turned + ring.size * GOLDEN) % (1 << 64)
            slot -= ring.size
    return total.astype(np.int64)


def _ranks(slots: Counts, size: int) -> Counts:
    """Ranks of the keys of some slots among `size` of them."""
    return _num_before(size, np.zeros(slots.size, dtype=np.uint64), _keys(slots))


def _slots_of_ranks(ranks: Counts, size: int) -> Counts:
    """The slots whose keys have some ranks: a guess in the ring below, and a walk from there."""
    if size == 1:
        return np.zeros_like(ranks)
    last = max(n for n, ring in enumerate(_RINGS) if ring.size < size)
    ring, pair = _RINGS[last], (_RINGS[last], _RINGS[last - 1])
    # The slots with the smallest and with the largest key, which are the neighbors of slot 0.
    low, high = (next(r.size for r in pair if r.above == above) for above in (True, False))
    slots = ranks * ring.size // size * ring.inverse % ring.size
    off = ranks - _ranks(slots, size)
    while off.any():  # a few steps: keys are spread evenly
        up = np.where(
            slots < size - low, slots + low,
            np.where(slots < high, slots + low - high, slots - high),
        )  # fmt: skip
        down = np.where(
            slots >= low, slots - low,
            np.where(slots < size - high, slots + high, slots + high - low),
        )  # fmt: skip
        slots = np.where(off > 0, up, np.where(off < 0, down, slots))
        off -= np.sign(off)
    return slots


class LatticeWindow(NamedTuple):
    """Some consecutive slots of a chunk."""

    component: NDArray[np.int32]  # (n,), of each slot
    number: Counts  # (n,), which of its component's samples in the chunk each slot takes
    first: Counts  # (k,), samples of each component before the window
    counts: Counts  # (k,), samples of each component in it


class LatticeWindows:
    """The lattice order of a chunk, of which any window is found alone.

    Args:
      counts: Integers (k,), samples of each component, one at least in all, 2^28 at most.
      slot: The chunk's slot in its block of lanes.
      num_lanes: Lanes that read in lockstep.

    Example:
      >>> import numpy as np
      >>> windows = LatticeWindows(np.array([6, 2]), slot=0, num_lanes=2)
      >>> windows.window(3, 7).component.tolist()
      [1, 0, 0, 1]
    """

    def __init__(self, counts: NDArray[np.integer], slot: int, num_lanes: int):
        size = int(counts.sum(dtype=np.int64))
        self._set(size, counts.size, *_arcs(counts[None], size, np.asarray([slot]), num_lanes)[0])

    def _set(self, size: int, num_components: int, low: Keys, bounds: Keys) -> None:
        self.size, self._num_components = size, num_components
        self._low = low  # (1,), where the first arc begins
        self._bounds = bounds  # where the others do, from there on

    @classmethod
    def of_chunks(
        cls, counts: NDArray[np.integer], slots: Counts, num_lanes: int
    ) -> list[LatticeWindows]:
        """The orders of many chunks of one size, found together.

        Args:
          counts: Integers (n, k), samples of each component in each chunk; all rows have one sum.
          slots: Integers (n,), each chunk's slot in its block of lanes.
          num_lanes: Lanes that read in lockstep.

        Raises:
          ValueError: If chunks differ in size, or the size is not allowed.
        """
        sizes = counts.sum(axis=1, dtype=np.int64)
        if not sizes.size:
            return []
        if (sizes != sizes[0]).any():
            raise ValueError(
                f"chunks must be of one size; got {int(sizes.min())} to {int(sizes.max())} samples."
            )
        size, found = int(sizes[0]), list[LatticeWindows]()
        for low, bounds in _arcs(counts, size, slots, num_lanes):
            one = cls.__new__(cls)
            one._set(size, counts.shape[1], low, bounds)
            found.append(one)
        return found

    def window(self, start: int, stop: int) -> LatticeWindow:
        """Slots start to stop of the order, 0 <= start <= stop <= size."""
        return self.windows_of([self], start, stop)[0]

    @staticmethod
    def windows_of(orders: Sequence[LatticeWindows], start: int, stop: int) -> list[LatticeWindow]:
        """The same slots of many orders: most of the work is done for all of them together."""
        if not orders:
            return []
        many = np.asarray([one._bounds.size for one in orders])
        begins = np.repeat(np.concatenate([one._low for one in orders]), many)
        below = _num_before(start, begins, np.concatenate([one._bounds for one in orders]))
        keys = _keys(np.arange(start, stop, dtype=np.int64))
        parts = np.split(below, np.cumsum(many)[:-1])
        return [
            one._window(keys - one._low, part, start)
            for one, part in zip(orders, parts, strict=True)
        ]

    def _window(self, keys: Keys, below: Counts, start: int) -> LatticeWindow:
        """A window from its keys, and how many slots before it lie below each bound."""
        k = self._num_components
        component = np.searchsorted(self._bounds, keys, side="right")
        first = np.zeros(k, dtype=np.int64)
        first[: below.size + 1] = np.diff(below, prepend=0, append=start)
        counts = np.bincount(component, minlength=k)
        narrow = np.uint8 if k <= 1 << 8 else np.uint16 if k <= 1 << 16 else np.int32
        order = np.argsort(component.astype(narrow), kind="stable")  # narrow ones by radix
        number = np.empty(component.size, dtype=np.int64)
        begins = first - (np.cumsum(counts) - counts)
        number[order] = np.arange(component.size) + np.repeat(begins, counts)
        return LatticeWindow(component.astype(np.int32), number, first, counts)


def _arcs(
    counts: NDArray[np.integer], size: int, slots: Counts, num_lanes: int
) -> list[tuple[Keys, Keys]]:
    """Where the arcs of chunks (n, k) of one size begin: the first, (1,), and the others from it.

    Raises:
      ValueError: If the size is not allowed.
    """
    if not 1 <= size <= _MOST_SLOTS:
        raise ValueError(f"a chunk must have 1 to {_MOST_SLOTS} samples; got {size}.")
    ends = np.cumsum(counts, axis=1, dtype=np.int64)
    ends = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1)
    arcs = ends < size  # the last goes round to where the first begins
    shift = slots.astype(np.int64)[:, None] * size // num_lanes
    keys = _keys(_slots_of_ranks(((ends - shift) % size)[arcs], size))
    parts = np.split(keys, np.cumsum(arcs.sum(axis=1))[:-1])
    return [(part[:1], part[1:] - part[0]) for part in parts]
