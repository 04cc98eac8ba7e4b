"""Quotas by virtual time: what each component has given after any number of draws.

Draw j of a component is due at (cost of its draws before j + phase * cost of draw j) / weight;
the earliest due goes first, and ties go to the earlier component. Phases are golden-ratio
fractions by rank of weight, so that equal weights do not fall due together. The first n draws of
that one order are what n draws hold: no state is carried, and any n is found by looking for the
moment at which so many draws are due.

Where weights change in mid-run, each component starts with what its draws so far cost beyond its
exact share of all costs, which is what its dues are late by: see `Owed`.

References:
  A. Demers, S. Keshav, S. Shenker, "Analysis and Simulation of a Fair Queueing Algorithm", 1989.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from zephon_jax._arrays import GOLDEN, MAX_INDEX, Number, as_int
from zephon_jax.kernels.draw_costs import PIECES, Draw, Pieces, UnitCost
from zephon_jax.kernels.quota import exact_weights
from zephon_jax.kernels.virtual_time_batch import Line, drawn_between
from zephon_jax.kernels.weights import integer_weights

__all__ = ["Owed", "VirtualTime", "draws_after", "phases_of"]

_PHASE_BITS = 64
_PHASE_MASK = (1 << _PHASE_BITS) - 1
# Dues are fractions over weights of at most 2^29. Two that differ do so by more than 2^-58 of the
# unit of phases, so that as integers in that unit, rounded down, they keep their order and ties.
_DUE_BITS = 58
_COST_BITS = _PHASE_BITS + _DUE_BITS  # costs are counted in units of 2^-122 where dues are
_KEPT = 128  # answers remembered, up to so many components in all:
_KEPT_COMPONENTS = 1 << 16
_ONE_BY_ONE = 8  # up to here numbers of draws are taken one by one


class Cost(Protocol):
    """What the draws of one component cost."""

    @property
    def mean(self) -> float:
        """Cost of a draw on average; only says where to look first."""
        ...

    def draw(self, index: int) -> Draw:
        """The draw with this index."""
        ...

    def last_before(self, amount: int) -> Draw:
        """The last draw before which at most this much has been spent."""
        ...

    def num_pieces(self, start: int, stop: int) -> int:
        """How many pieces the draws from `start` up to `stop` have, at most."""
        ...

    def pieces(self, start: int, stop: int) -> Pieces | None:
        """The pieces of the draws from `start` up to `stop`; None where they exceed 64 bits."""
        ...


class Owed(NamedTuple):
    """What components start with where weights change. Of all components, active or not.

    Who is active shares in what the others are owed together, as with carries: these wait, and are
    owed it until they are drawn again.
    """

    phases: Sequence[int]  # in units of 2^-64; they stay, so that nobody falls due earlier by them
    ahead: Sequence[int]  # cost beyond the exact share of all costs, in units of 2^-122; sums to 0


class _Component(NamedTuple):
    """An active component."""

    weight: int  # in units of 1 / W, W at most 2^29
    phase: int  # in units of 2^-64
    cost: Cost
    start: int  # draws before chunk 0 of this allocation
    spent: int  # their cost
    late: int = 0  # in units of 2^-122 of cost, what must fall due before its first draw does

    def due(self, draw: Draw) -> int:
        """When a draw is due, in units of 2^-122 of cost by weight unit, rounded down."""
        point = (draw.before - self.spent << _PHASE_BITS) + self.phase * draw.cost
        return ((point << _DUE_BITS) + self.late) // self.weight

    def given(self, moment: int) -> tuple[int, float]:
        """Draws due at or before a moment, and how many more are due in one unit of cost."""
        point = ((moment + 1) * self.weight - 1 - self.late) >> _DUE_BITS
        draw = self.cost.last_before(self.spent + (max(point, 0) >> _PHASE_BITS))
        late = (draw.before - self.spent << _PHASE_BITS) + self.phase * draw.cost > point
        return draw.number - self.start + (0 if late else 1), self.weight / draw.cost


def phases_of(weights: Sequence[int]) -> list[int]:
    """Golden-ratio fractions by rank of weight, the heaviest first, ties earlier: of 2^-64 (k,)."""
    phases = [0] * len(weights)
    ranked = sorted(range(len(weights)), key=lambda d: (-weights[d], d))
    for rank, d in enumerate(ranked):
        phases[d] = (rank + 1) * GOLDEN & _PHASE_MASK
    return phases


class VirtualTime:
    """The quotas of one set of active components from some chunk on.

    Immutable but for what it remembers.

    Args:
      weights: Shares, not negative, at least one positive; 0 for who is not active.
      chunk_size: Samples in a chunk.
      costs: Cost of the draws of each component.
      base: int64 (k,), draws of each component before.
      owed: What the components start with; nothing by default, with phases by these weights.
    """

    closed = True
    exact_ends = True  # `chunks_until` is not a guess

    def __init__(
        self,
        weights: Sequence[Fraction | int],
        chunk_size: int,
        costs: Sequence[Cost],
        base: np.ndarray,
        owed: Owed | None = None,
    ):
        units, _ = integer_weights(weights)
        self.chunk_size, self.costs, self._size = chunk_size, costs, len(units)
        self._active = np.flatnonzero(units)
        phases = phases_of(units) if owed is None else owed.phases  # who has no weight comes last
        self._components = [
            _Component(units[d], phases[d], costs[d], start, costs[d].draw(start).before)
            for d, start in zip(self._active.tolist(), base[self._active].tolist(), strict=True)
        ]
        self._ahead = [0] * len(units) if owed is None else list(owed.ahead)
        # Draws, and a moment around which so many are due.
        self._anchor = (0, 0 if owed is None else self._put_late())
        self._known: OrderedDict[int, np.ndarray] = OrderedDict()
        # The last number that was asked for: draws, and those of each active component.
        self._last = (0, [0] * len(self._components))
        self._few = 2 * len(self._components) + 8  # draws by which `_near` may fall short
        self._rate = sum(c.weight / c.cost.mean for c in self._components)

    def _put_late(self) -> int:
        """Lets dues be late by what components are ahead; the moment from which on that is so."""
        ahead = [self._ahead[d] for d in self._active.tolist()]
        each, more = divmod(sum(ahead), len(ahead))
        found = [
            c._replace(late=own - each - (place < more))
            for place, (c, own) in enumerate(zip(self._components, ahead, strict=True))
        ]
        # Moments begin where the first draw is due, which may have been due before.
        begin = max(0, -min(c.due(c.cost.draw(c.start)) for c in found))
        self._components = [c._replace(late=c.late + begin * c.weight) for c in found]
        return begin

    def owed_after(self, num_draws: int, phases: Sequence[int]) -> Owed:
        """What components start with where weights change after so many draws.

        Args:
          num_draws: At least 0.
          phases: Those that they go on with: (k,).
        """
        ahead, spent = list(self._ahead), self._spent(num_draws)
        total, whole = sum(spent), sum(c.weight for c in self._components)
        for d, c, cost in zip(self._active.tolist(), self._components, spent, strict=True):
            ahead[d] += (cost << _COST_BITS) - (c.weight * total << _COST_BITS) // whole
        return Owed(phases=phases, ahead=ahead)

    def _spent(self, num_draws: int) -> list[int]:
        """The cost of the first draws of each active component."""
        given = self.draws_after(num_draws)[self._active].tolist()
        return [
            c.cost.draw(c.start + n).before - c.spent
            for c, n in zip(self._components, given, strict=True)
        ]

    def init_carry(self) -> np.ndarray:
        """Nothing is carried: int32 (0,)."""
        return np.zeros(0, dtype=np.int32)

    def advance(self, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The carry after `stop` chunks: as empty as any."""
        return carry

    def drawn_at(self, num_chunks: int, carry: np.ndarray) -> np.ndarray:
        """Samples given out in so many chunks: int64 (k,)."""
        return self.draws_after(num_chunks * self.chunk_size)

    def step(self, num_chunks: int, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The quotas of the chunk after so many, int32 (k,), and the carry."""
        before = self.drawn_at(num_chunks, carry)  # first: the next ones go on from there
        quotas = self.drawn_at(num_chunks + 1, carry) - before
        return quotas.astype(np.int32), carry

    def drawn_before(self, chunks: np.ndarray) -> np.ndarray:
        """Samples given out before each of many chunks: int64 (n, k)."""
        starts, place = np.unique(chunks, return_inverse=True)
        return self._drawn_many(starts * self.chunk_size)[place]

    def quotas_of(self, chunks: np.ndarray) -> np.ndarray:
        """Quotas of many chunks: int32 (n, k)."""
        ends, place = np.unique(np.concatenate([chunks, chunks + 1]), return_inverse=True)
        drawn = self._drawn_many(ends * self.chunk_size)
        before, after = place.reshape(2, -1)
        return (drawn[after] - drawn[before]).astype(np.int32)

    def _drawn_many(self, num_draws: np.ndarray) -> np.ndarray:
        """`draws_after` for many numbers in ascending order: int64 (n, k)."""
        drawn = np.zeros((num_draws.size, self._size), dtype=np.int64)
        if len(self._components) == 1:
            drawn[:, self._active[0]] = num_draws
            return drawn
        lines = self._lines(num_draws) if num_draws.size > _ONE_BY_ONE else None
        if lines is None and num_draws.size > _ONE_BY_ONE:  # too far apart to be worth a table
            halves = np.split(num_draws, [num_draws.size // 2])
            return np.concatenate([self._drawn_many(half) for half in halves])
        sure = np.zeros(num_draws.shape, dtype=bool)
        if lines is not None:
            drawn[:, self._active], sure = drawn_between(lines, num_draws)
            if num_draws.size <= _KEPT // 2:  # a lane's next chunks, which will ask for them
                for n in np.flatnonzero(sure).tolist():
                    self._remember(int(num_draws[n]), drawn[n].copy())
        for n in np.flatnonzero(~sure).tolist():
            drawn[n] = self.draws_after(int(num_draws[n]))
        return drawn

    def _lines(self, num_draws: np.ndarray) -> list[Line] | None:
        """The costs of the draws between the least and the greatest of some numbers."""
        # Bounds are enough, and are found sooner than the draws themselves.
        low = self._near(int(num_draws[0]))
        high = self._near(int(num_draws[-1]) + self._few)
        ends = [
            (c.start + max(0, a - 1), c.start + b + 1)
            for c, a, b in zip(self._components, low, high, strict=True)
        ]
        pairs = list(zip(self._components, ends, strict=True))
        if sum(c.cost.num_pieces(*two) - 1 for c, two in pairs) > PIECES * num_draws.size:
            return None
        pieces = [c.cost.pieces(*two) for c, two in pairs]
        # Costs count from a moment nearby, so that floats hold them.
        moment = min(
            (c.cost.draw(a).before - c.spent + (c.late >> _COST_BITS)) // c.weight
            for c, (a, _) in pairs
        )
        lines: list[Line] = []
        for c, part in zip(self._components, pieces, strict=True):
            if part is None:
                return None
            whole = c.late >> _COST_BITS
            shift = part.base - c.spent + whole - moment * c.weight
            if abs(shift) >= MAX_INDEX:
                return None
            phase = c.phase / 2.0**_PHASE_BITS
            late = (c.late - (whole << _COST_BITS)) / 2.0**_COST_BITS
            lines.append(Line(c.weight, phase, part.first - c.start, part.before + shift, late))
        return lines

    def chunks_until(self, draws: np.ndarray, chosen: np.ndarray, last: bool) -> int:
        """Chunks after which components have given so many samples: exactly, from the order's rule.

        Args:
          draws: int64 (k,), samples, at least one each.
          chosen: bool (k,), the components to look at; at least one, and all active.
          last: True for the last of them to come there, False for the first.
        """
        dues = [
            (c.due(c.cost.draw(c.start + int(draws[d]) - 1)), place)
            for place, (d, c) in enumerate(
                zip(self._active.tolist(), self._components, strict=True)
            )
            if chosen[d]
        ]
        moment, mine = max(dues) if last else min(dues)
        # Those that come before it at the same moment are the earlier components.
        before = [
            c.given(moment if place <= mine else moment - 1)[0]
            for place, c in enumerate(self._components)
        ]
        return -(-sum(before) // self.chunk_size)

    def draws_after(self, num_draws: int) -> np.ndarray:
        """How many of the first draws of the order are each component's: int64 (k,)."""
        known = self._known.get(num_draws)
        if known is not None:
            return known
        given = np.zeros(self._size, dtype=np.int64)
        given[self._active] = self._given(num_draws)
        self._remember(num_draws, given)
        return given

    def _remember(self, num_draws: int, given: np.ndarray) -> None:
        given.setflags(write=False)
        self._known[num_draws] = given
        while len(self._known) > max(2, min(_KEPT, _KEPT_COMPONENTS // self._size)):
            self._known.popitem(last=False)

    def _given(self, num_draws: int) -> list[int]:
        if len(self._components) == 1 or not num_draws:
            return [num_draws] * len(self._components)
        before, given = self._last  # read once: another thread may put another there
        # With many components a few more draws are cheaper than looking for a moment.
        if not 0 <= num_draws - before <= len(given):
            given = self._near(num_draws)
            before = sum(given)
        given = list(given)
        for d in self._next(given, num_draws - before):
            given[d] += 1
        self._last = (num_draws, given)
        return given

    def _next(self, given: list[int], num_draws: int) -> Iterator[int]:
        """Who is drawn next, so many times, after so many draws of each."""
        if not num_draws:
            return
        components, given = self._components, list(given)
        queue = [
            (c.due(c.cost.draw(c.start + n)), d)
            for d, (c, n) in enumerate(zip(components, given, strict=True))
        ]
        heapq.heapify(queue)
        for left in range(num_draws - 1, -1, -1):
            _, d = queue[0]
            yield d
            given[d] += 1
            if left:
                c = components[d]
                heapq.heapreplace(queue, (c.due(c.cost.draw(c.start + given[d])), d))

    def order(self, start: int, num_draws: int) -> np.ndarray:
        """The component of each of some draws in a row: int64 (num_draws,)."""
        given = self._given(start)
        drawn = np.fromiter(self._next(given, num_draws), dtype=np.int64, count=num_draws)
        return self._active[drawn]

    def _near(self, num_draws: int) -> list[int]:
        """Draws due at a moment at which no more than so many are, and only a few less.

        Newton's method on a function that is nearly linear in pieces, kept in by bisection.
        Floats say where to look and nothing else.
        """
        few, (before, moment) = self._few, self._anchor
        low, high, tries = -1, None, 0
        moment += self._step_ahead(num_draws - few // 2 - before, self._rate)
        while True:
            if moment <= low or (high is not None and (moment >= high or tries % 4 == 3)):
                moment = (low + high) // 2 if high is not None else 2 * low + 2
            tries += 1
            pairs = [c.given(moment) for c in self._components]
            given = [n for n, _ in pairs]
            total = sum(given)
            if num_draws - few <= total <= num_draws:
                self._anchor = (total, moment)
                return given
            if total > num_draws:
                high = moment
            else:
                low = moment
            moment += self._step_ahead(num_draws - few // 2 - total, sum(rate for _, rate in pairs))

    def _step_ahead(self, draws: int, rate: float) -> int:
        """How much later so many more draws are due."""
        return int(draws / rate * 2.0**60) << _PHASE_BITS + _DUE_BITS - 60


def draws_after(weights: Mapping[str, Number] | Sequence[Number], num_draws: int) -> np.ndarray:
    """How many of the first draws fall to each component, by virtual time with samples as cost.

    Args:
      weights: Numbers as in `MixtureSpec`, a mapping or a sequence; only ratios matter.
      num_draws: How many draws there have been, at least 0; any size below 2^62.

    Returns:
      int64 (k,), summing to `num_draws`.

    Raises:
      TypeError, ValueError: If a weight or the number is not allowed.

    Example:
      >>> from zephon_jax import virtual_time
      >>> [virtual_time.draws_after([2, 1], n).tolist() for n in range(4)]
      [[0, 0], [0, 1], [1, 1], [2, 1]]
    """
    exact = exact_weights(weights)
    number = as_int(num_draws, "num_draws", 0, MAX_INDEX - 1)
    base = np.zeros(len(exact), dtype=np.int64)
    return VirtualTime(exact, 1, [UnitCost()] * len(exact), base).draws_after(number).copy()
