"""How much each component gives to a chunk: positions of a run, and the step from one to the next.

Between two changes of the mixture the quotas follow one allocation: an era. A position is a chunk
with everything that its quotas follow from. `eras` finds positions by chunk index and by sample.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.kernels import quota
from zephon_jax.kernels.virtual_time import Cost
from zephon_jax.mixture.allocation import Allocation, CarriedQuotas, Rows, VirtualTimeQuotas
from zephon_jax.mixture.history import (
    FAR,
    FINE_UNIT,
    UNCAPPED,
    Weighing,
    carry_over,
    split_carry,
)

__all__ = ["Era", "ExhaustionRules", "Position", "Steps"]

_KEPT_CHANGES = 64  # of a queue, where many lanes come to a change one after another


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExhaustionRules:
    """What decides when components leave and runs end. Arrays are (k,), in component order."""

    weighings: tuple[Weighing, ...]  # the weights of the run, in ascending order of their chunks
    totals: np.ndarray  # int64, samples in a pass
    leaves: np.ndarray  # bool, the component leaves the mixture after one pass
    passes: int | None  # the run ends when all active components have had so many
    chunk_size: int  # samples
    fixed: bool  # quotas are the same in every chunk
    costs: Sequence[Cost] | None = None  # of each component's draws, under virtual time


class Era(NamedTuple):
    """Consecutive chunks whose quotas follow one allocation."""

    first_chunk: int
    weighing: Weighing  # the weights of the mixture, of components that left too
    anchor: int  # the chunk that the allocation counts from: the first, or where a run was resumed
    base: np.ndarray  # int64 (k,), samples drawn before the anchor
    active: np.ndarray  # bool (k,), components that are drawn from
    allocation: Allocation | None  # None where no component is active


class Position(NamedTuple):
    """Everything that the next chunk follows from."""

    chunk_index: int
    era: Era
    carry: np.ndarray  # int32 (k,), in units of 1 / W; (0,) under virtual time
    drawn: np.ndarray  # int64 (k,), samples


@dataclass(eq=False)
class Steps:
    """The steps of a run. Immutable but for the allocations that it remembers."""

    rules: ExhaustionRules
    _allocations: dict[tuple[int, bool, bytes, bytes], Allocation] = field(
        default_factory=dict[tuple[int, bool, bytes, bytes], Allocation]
    )
    _first: Position | None = None
    _changes: BoundedCache[int, Position] = field(
        default_factory=lambda: BoundedCache[int, Position](_KEPT_CHANGES)
    )

    def start(self) -> Position:
        """The position of chunk 0."""
        if self._first is None:
            self._first = self.open(0, np.zeros_like(self.rules.totals))
        return self._first

    def weighing_at(self, chunk_index: int) -> Weighing:
        """The weights that hold at a chunk."""
        weighings = self.rules.weighings
        place = bisect.bisect_right(weighings, chunk_index, key=lambda one: one.first_chunk)
        return weighings[place - 1]

    def _allocation(
        self, weighing: Weighing, active: np.ndarray, base: np.ndarray, fine: bool = False
    ) -> Allocation:
        """The quotas of the active components where all carries are zero."""
        rules = self.rules
        # What a draw costs depends on its place in its dataset; a carry knows nothing of that.
        known = weighing.first_chunk, fine, active.tobytes(), base.tobytes() if rules.costs else b""
        if known not in self._allocations:
            units = _units(weighing, active)
            if fine:
                made = CarriedQuotas(self._fine_shares(weighing, active))
            elif rules.costs is not None:
                made = VirtualTimeQuotas(units, rules.chunk_size, rules.costs, base)
            else:
                make = quota.fixed_shares_of if rules.fixed else quota.shares_of
                made = CarriedQuotas(make(units, rules.chunk_size))
            self._allocations[known] = made
        return self._allocations[known]

    def _fine_shares(self, weighing: Weighing, active: np.ndarray) -> quota.Shares:
        """The shares of the active components after a change, to which carries are taken over."""
        shares = quota.shares_of(_units(weighing, active), self.rules.chunk_size)
        return quota.finer(shares, max(1, FINE_UNIT // int(shares.unit)))

    def _active(self, weighing: Weighing, drawn: np.ndarray) -> np.ndarray:
        return weighing.weighted & ~(self.rules.leaves & (drawn >= weighing.first_pass))

    def open(self, chunk_index: int, drawn: np.ndarray) -> Position:
        """The position at which an era begins and all carries are zero."""
        weighing = self.weighing_at(chunk_index)
        active = self._active(weighing, drawn)
        # At a change carries are in the units of one, also where somebody leaves there.
        plain = self.rules.fixed or self.rules.costs is not None  # nothing is in units
        fine = 0 < weighing.first_chunk == chunk_index and not plain
        allocation = self._allocation(weighing, active, drawn, fine) if active.any() else None
        era = Era(chunk_index, weighing, chunk_index, drawn, active, allocation)
        size = 0 if self.rules.costs is not None else drawn.size
        return Position(chunk_index, era, np.zeros(size, dtype=np.int32), drawn)

    def changed(self, position: Position) -> Position:
        """The position at a change of the weights, to which an era has come: carries go on."""
        chunk_index, before, carry, drawn = position
        weighing = self.weighing_at(chunk_index)
        active = self._active(weighing, drawn)
        if self.rules.fixed or not active.any():  # nothing is carried
            return self.open(chunk_index, drawn)
        if self.rules.costs is not None:
            return self._changed_queue(position, weighing, active)
        shares, old = self._fine_shares(weighing, active), before.allocation
        assert isinstance(old, CarriedQuotas)
        start = carry_over(carry, int(old.shares.unit), int(shares.unit), active)
        allocation = CarriedQuotas(shares, start)
        era = Era(chunk_index, weighing, chunk_index, drawn, active, allocation)
        return Position(chunk_index, era, allocation.init_carry(), drawn)

    def _changed_queue(
        self, position: Position, weighing: Weighing, active: np.ndarray
    ) -> Position:
        """`changed` under virtual time, where all follows from the chunk: every lane comes here."""
        chunk_index, before, carry, drawn = position
        known = self._changes.get(chunk_index)
        if known is not None and np.array_equal(known.drawn, drawn):
            return known
        assert isinstance(before.allocation, VirtualTimeQuotas)
        allocation = before.allocation.followed_by(
            chunk_index - before.anchor,
            _units(weighing, active),
            self.rules.weighings[0].units,
            drawn,
        )
        era = Era(chunk_index, weighing, chunk_index, drawn, active, allocation)
        found = Position(chunk_index, era, carry, drawn)
        self._changes.put(chunk_index, found)
        return found

    def at(self, position: Position, num_chunks: int) -> Position:
        """The position so many chunks after the era's anchor, as if nothing ended before."""
        era = position.era
        assert era.allocation is not None
        carry = era.allocation.advance(
            position.carry, position.chunk_index - era.anchor, num_chunks
        )
        drawn = era.base + era.allocation.drawn_at(num_chunks, carry)
        return Position(era.anchor + num_chunks, era, carry, drawn)

    # The rules of exhaustion, each for one chunk or for many: arrays (k,) or (n, k).

    def leaving(self, era: Era, drawn: np.ndarray) -> np.ndarray:
        """Active components that leave the mixture, of which all samples are drawn: bool."""
        return era.active & self.rules.leaves & (drawn >= era.weighing.first_pass)

    def may_draw(self, position: Position) -> np.ndarray:
        """Components that may be drawn from at a position or after it: bool (k,)."""
        weighing = position.era.weighing
        gone = self.rules.leaves & (position.drawn >= weighing.first_pass)
        return weighing.awaited & ~gone

    def capped(self, era: Era) -> np.ndarray:
        """The components that end the run where they cannot give enough: bool (k,)."""
        return era.active & (era.weighing.caps != UNCAPPED)

    def ending(self, era: Era, drawn: np.ndarray, quotas: np.ndarray) -> np.ndarray:
        """Components because of which the run ends before a chunk: bool.

        With `passes` the run ends where it is all components, else where it is one.

        Args:
          era: Of the chunk.
          drawn: int64, samples drawn before it.
          quotas: int, samples that it asks of each component.
        """
        if self.rules.passes is not None:
            return ~era.weighing.awaited | (drawn >= era.weighing.ends)
        return self.capped(era) & (drawn + quotas > era.weighing.caps)

    def ends(self, era: Era, drawn: np.ndarray, quotas: np.ndarray) -> np.ndarray:
        """True where the run ends before a chunk: bool (n,), of one chunk ()."""
        ending = self.ending(era, drawn, quotas)
        over = ending.all(axis=-1) if self.rules.passes is not None else ending.any(axis=-1)
        return np.asarray(over)

    def exhausted_rows(self, era: Era, drawn: np.ndarray) -> np.ndarray:
        """Components of which nothing is left: bool. The end of a run is not looked at."""
        weighing = era.weighing
        ends = np.where(self.rules.leaves, weighing.first_pass, weighing.caps)
        return weighing.weighted & (ends != UNCAPPED) & (drawn >= ends)

    def exhausted(self, position: Position) -> np.ndarray:
        """Components that give nothing from a position on: bool (k,)."""
        if self.ended(position):
            return position.era.weighing.weighted
        return self.exhausted_rows(position.era, position.drawn)

    def departed(self, position: Position) -> bool:
        """True when a component has reached its end at or before this chunk boundary."""
        return bool(self.leaving(position.era, position.drawn).any())

    def _quotas(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """The samples that the next chunk asks of each component, int32 (k,), and the carry."""
        era = position.era
        assert era.allocation is not None
        return era.allocation.step(position.chunk_index - era.anchor, position.carry)

    def first_quotas(self) -> np.ndarray:
        """The samples that chunk 0 asks of each component: int32 (k,); 0 where none is active."""
        start = self.start()
        if start.era.allocation is None:
            return np.zeros(start.drawn.shape, dtype=np.int32)
        return self._quotas(start)[0]

    def least_quotas(self, weighing: Weighing) -> np.ndarray:
        """Samples that each chunk asks of each component at least, after a change: int64 (k,)."""
        shares = quota.shares_of(weighing.units, self.rules.chunk_size)
        return np.maximum(shares.whole.astype(np.int64) - 1, 0)

    def ended(self, position: Position) -> bool:
        """True when the run ends at this chunk boundary, or ended before."""
        if position.era.allocation is None:
            return True
        if self.rules.passes is None and not self.capped(position.era).any():
            return False
        # With `passes` quotas do not matter; they are not computed.
        quotas = position.drawn if self.rules.passes is not None else self._quotas(position)[0]
        return bool(self.ends(position.era, position.drawn, quotas))

    def step(self, position: Position) -> tuple[np.ndarray, Position] | None:
        """SampleLookup one chunk.

        Returns:
          The samples that each component gives, int64 (k,), and the next position, or None where
          the run has ended.
        """
        era = position.era
        if era.allocation is None:
            return None
        quotas, carry = self._quotas(position)
        if self.ends(era, position.drawn, quotas):
            return None
        return self.given(position, quotas, carry)

    def given(
        self, position: Position, quotas: np.ndarray, carry: np.ndarray
    ) -> tuple[np.ndarray, Position]:
        """The samples that a chunk gives, fewer where a component leaves, and the position after.

        Args:
          position: Of the chunk, before which the run has not ended.
          quotas: int (k,), the samples that it asks for.
          carry: int32 (k,), after it.
        """
        era, rules = position.era, self.rules
        rest = era.weighing.first_pass - position.drawn
        given = np.minimum(quotas, np.where(era.active & rules.leaves, rest, FAR))
        after = Position(position.chunk_index + 1, era, carry, position.drawn + given)
        return given, self.settled(after)

    def settled(self, position: Position) -> Position:
        """A position at which an era may end, as that of the era which begins there."""
        if self.departed(position):
            return self.open(position.chunk_index, position.drawn)
        if position.chunk_index == position.era.weighing.end:
            return self.changed(position)
        return position

    def stretch(
        self, start: Position, num_chunks: int
    ) -> tuple[np.ndarray, Position | None, np.ndarray]:
        """Draws consecutive chunks of one era at once.

        Args:
          start: Where the run has not ended.
          num_chunks: Chunks at most, at least one.

        Returns:
          Samples that each component gives to each chunk, int64 (n, k); the position after them,
          None where the run has ended; and the components that leave with the last of the chunks,
          or because of which the run ends, bool (k,).
        """
        era, nobody = start.era, np.zeros_like(start.era.active)
        assert era.allocation is not None
        num_chunks = min(num_chunks, era.weighing.end - start.chunk_index)
        quotas, carry = era.allocation.stretch(
            start.carry, start.chunk_index - era.anchor, num_chunks
        )
        quotas = quotas.astype(np.int64)
        drawn = start.drawn + np.concatenate([np.zeros_like(quotas[:1]), np.cumsum(quotas, axis=0)])
        left = self.leaving(era, drawn[1:])
        departs = left.any(axis=1)
        num_rows = int(departs.argmax()) + 1 if departs.any() else num_chunks
        ended = self.ends(era, drawn[:num_rows], quotas[:num_rows])
        if ended.any():
            end = int(ended.argmax())
            by_passes = self.rules.passes is not None
            over = nobody if by_passes else self.ending(era, drawn[end], quotas[end])
            return quotas[:end], None, over
        chunk_index = start.chunk_index + num_rows
        if not departs.any():
            return quotas, self.settled(Position(chunk_index, era, carry, drawn[-1])), nobody
        # The chunk in which a component leaves is short where its quota was more than the rest.
        last = Position(chunk_index - 1, era, start.carry, drawn[num_rows - 1])
        given, after = self.given(last, quotas[num_rows - 1], start.carry)
        return np.concatenate([quotas[: num_rows - 1], given[None]]), after, left[num_rows - 1]

    def plain_rows(self, era: Era, chunks: np.ndarray) -> Rows:
        """The first of many chunks of a closed era, up to where it or the run ends.

        Args:
          era: The era.
          chunks: int64 (n,), ascending, by their index in the run; the era holds the first.

        Returns:
          Rows with chunks by their index in the run and samples drawn since its start.
        """
        assert era.allocation is not None
        chunks = chunks[chunks < era.weighing.end]
        rows = era.allocation.rows(chunks - era.anchor)
        drawn = era.base + rows.drawn
        over = self.leaving(era, drawn).any(axis=-1) | self.ends(era, drawn, rows.quotas)
        num = int(over.argmax()) if over.any() else len(chunks)
        return Rows(chunks[:num], rows.carry[:num], drawn[:num], rows.quotas[:num])

    def described(
        self, chunk_index: int, era_chunk: int, carry: np.ndarray, drawn: np.ndarray
    ) -> tuple[Position, bool]:
        """The position that a carry and counts describe, and whether the run can come to it.

        Chunks before the era do not matter.
        """
        weighing = self.weighing_at(chunk_index)
        active = self._active(weighing, drawn)
        at_change = weighing.first_chunk > 0 and era_chunk == weighing.first_chunk
        if not active.any():
            era = Era(era_chunk, weighing, era_chunk, drawn, active, None)
            possible = chunk_index == era_chunk and not carry.any()
        elif at_change and not self.rules.fixed:
            era, possible = self._resumed(weighing, chunk_index, carry, drawn)
        else:
            era, possible = self._described(weighing, chunk_index, era_chunk, carry, drawn)
        # Without a change of the weights, an era begins when a component leaves, and only then.
        began = at_change or era_chunk >= weighing.first_chunk
        if weighing.first_chunk == 0:
            began = (era_chunk == 0) == np.array_equal(active, self.start().era.active)
        return Position(chunk_index, era, carry, drawn), possible and began

    def _described(
        self,
        weighing: Weighing,
        chunk_index: int,
        era_chunk: int,
        carry: np.ndarray,
        drawn: np.ndarray,
    ) -> tuple[Era, bool]:
        """An era whose first carries are zero, and whether it can come to a carry and counts."""
        active, num_chunks = self._active(weighing, drawn), chunk_index - era_chunk
        allocation = self._allocation(weighing, active, drawn)
        base = drawn - allocation.drawn_at(num_chunks, carry)
        era = Era(era_chunk, weighing, era_chunk, base, active, allocation)
        # Who has no weight from chunk 0 on, and did not leave, has not been drawn from.
        never = ~active & ~self.rules.leaves & (weighing.first_chunk == 0)
        never |= era_chunk == 0
        possible = allocation.is_possible(num_chunks, carry) and (base >= 0).all()
        return era, bool(possible and not base[never].any())

    def _resumed(
        self, weighing: Weighing, chunk_index: int, carry: np.ndarray, drawn: np.ndarray
    ) -> tuple[Era, bool]:
        """An era after a change, which goes on from a carry and counts wherever it began.

        The chunks before are not gone through: what follows from the carry at the change follows
        from the one that a state holds.
        """
        active = self._active(weighing, drawn)
        start = split_carry(carry, active)
        allocation = CarriedQuotas(self._fine_shares(weighing, active), start)
        era = Era(weighing.first_chunk, weighing, chunk_index, drawn, active, allocation)
        wide, unit = start.carry.astype(np.int64), int(allocation.shares.unit)
        possible = not carry.sum(dtype=np.int64) and ((wide > -unit) & (wide < 2 * unit)).all()
        whole = int(drawn.sum()) == chunk_index * self.rules.chunk_size
        return era, bool(possible and (whole or self.rules.leaves.any()))


def _units(weighing: Weighing, active: np.ndarray) -> list[int]:
    """The weights of the active components, 0 for the others."""
    return [unit if on else 0 for unit, on in zip(weighing.units, active, strict=True)]
