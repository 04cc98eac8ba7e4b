"""How much each component gives to a chunk: positions of a run, and the step from one to the next.

Between two changes of the mixture the quotas follow one allocation: an era. A position is a chunk
with everything that its quotas follow from. `eras` finds positions by chunk index and by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels import quota
from zephon_jax.kernels.virtual_time import Cost
from zephon_jax.mixture.allocation import Allocation, CarriedQuotas, Rows, VirtualTimeQuotas

__all__ = ["FAR", "UNCAPPED", "Era", "ExhaustionRules", "Position", "Steps"]

UNCAPPED = -1
FAR = MAX_INDEX  # more than anything counted here


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExhaustionRules:
    """What decides when components leave and runs end. Arrays are (k,), in component order."""

    fractions: tuple[Fraction, ...]  # original shares, 0 for components that are not active
    weighted: np.ndarray  # bool, the share is positive
    totals: np.ndarray  # int64, samples in a pass
    caps: np.ndarray  # int64, samples after which the run ends, or UNCAPPED
    leaves: np.ndarray  # bool, the component leaves the mixture after one pass
    passes: int | None  # the run ends when all active components have had so many
    chunk_size: int  # samples
    fixed: bool  # quotas are the same in every chunk
    costs: Sequence[Cost] | None = None  # of each component's draws, under virtual time


class Era(NamedTuple):
    """Consecutive chunks whose quotas follow one allocation."""

    first_chunk: int
    fractions: tuple[Fraction, ...]  # shares of the mixture, of components that left too
    base: np.ndarray  # int64 (k,), samples drawn before the era
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
    _allocations: dict[bytes, Allocation] = field(default_factory=dict[bytes, Allocation])
    _first: Position | None = None

    def start(self) -> Position:
        """The position of chunk 0."""
        if self._first is None:
            self._first = self.open(0, np.zeros_like(self.rules.totals))
        return self._first

    def _era(self, first_chunk: int, active: np.ndarray, base: np.ndarray) -> Era:
        fractions = self.rules.fractions
        allocation = self._allocation(fractions, active, base) if active.any() else None
        return Era(first_chunk, fractions, base, active, allocation)

    def _allocation(
        self, fractions: Sequence[Fraction], active: np.ndarray, base: np.ndarray
    ) -> Allocation:
        """The quotas of the active components, from an era's first chunk on."""
        rules = self.rules
        # What a draw costs depends on its place in its dataset; a carry knows nothing of that.
        name = active.tobytes() + (base.tobytes() if rules.costs is not None else b"")
        if name not in self._allocations:
            shares = zip(fractions, active, strict=True)
            weights = [share if on else Fraction(0) for share, on in shares]
            if rules.costs is not None:
                made = VirtualTimeQuotas(weights, rules.chunk_size, rules.costs, base)
            else:
                make = quota.fixed_shares_of if rules.fixed else quota.shares_of
                made = CarriedQuotas(make(weights, rules.chunk_size))
            self._allocations[name] = made
        return self._allocations[name]

    def _active(self, drawn: np.ndarray) -> np.ndarray:
        rules = self.rules
        return rules.weighted & ~(rules.leaves & (drawn >= rules.totals))

    def open(self, chunk_index: int, drawn: np.ndarray) -> Position:
        """The position at which an era begins: all carries are zero."""
        era = self._era(chunk_index, self._active(drawn), drawn)
        size = 0 if self.rules.costs is not None else drawn.size
        return Position(chunk_index, era, np.zeros(size, dtype=np.int32), drawn)

    @property
    def endless(self) -> bool:
        """True where the run has no end."""
        rules, active = self.rules, self.start().era.active
        if rules.passes is not None or (active & (rules.caps != UNCAPPED)).any():
            return False
        return bool((active & ~rules.leaves).any())

    def at(self, position: Position, num_chunks: int) -> Position:
        """The position after `num_chunks` of the era, as if nothing ended before."""
        era = position.era
        assert era.allocation is not None
        carry = era.allocation.advance(
            position.carry, position.chunk_index - era.first_chunk, num_chunks
        )
        drawn = era.base + era.allocation.drawn_at(num_chunks, carry)
        return Position(era.first_chunk + num_chunks, era, carry, drawn)

    # The rules of exhaustion, each for one chunk or for many: arrays (k,) or (n, k).

    def leaving(self, era: Era, drawn: np.ndarray) -> np.ndarray:
        """Active components that leave the mixture, of which all samples are drawn: bool."""
        return era.active & self.rules.leaves & (drawn >= self.rules.totals)

    def capped(self, era: Era) -> np.ndarray:
        """The components that end the run where they cannot give enough: bool (k,)."""
        return era.active & (self.rules.caps != UNCAPPED)

    def ending(self, era: Era, drawn: np.ndarray, quotas: np.ndarray) -> np.ndarray:
        """Components because of which the run ends before a chunk: bool.

        With `passes` the run ends where it is all components, else where it is one.

        Args:
          era: Of the chunk.
          drawn: int64, samples drawn before it.
          quotas: int, samples that it asks of each component.
        """
        rules = self.rules
        if rules.passes is not None:
            return ~era.active | (drawn >= rules.passes * rules.totals)
        return self.capped(era) & (drawn + quotas > rules.caps)

    def ends(self, era: Era, drawn: np.ndarray, quotas: np.ndarray) -> np.ndarray:
        """True where the run ends before a chunk: bool (n,), of one chunk ()."""
        ending = self.ending(era, drawn, quotas)
        over = ending.all(axis=-1) if self.rules.passes is not None else ending.any(axis=-1)
        return np.asarray(over)

    def exhausted_rows(self, drawn: np.ndarray) -> np.ndarray:
        """Components of which nothing is left: bool. The end of a run is not looked at."""
        rules = self.rules
        ends = np.where(rules.leaves, rules.totals, rules.caps)
        return rules.weighted & (ends != UNCAPPED) & (drawn >= ends)

    def exhausted(self, position: Position) -> np.ndarray:
        """Components that give nothing from a position on: bool (k,)."""
        if self.ended(position):
            return self.rules.weighted
        return self.exhausted_rows(position.drawn)

    def departed(self, position: Position) -> bool:
        """True when a component has reached its end at or before this chunk boundary."""
        return bool(self.leaving(position.era, position.drawn).any())

    def _quotas(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """The samples that the next chunk asks of each component, int32 (k,), and the carry."""
        era = position.era
        assert era.allocation is not None
        return era.allocation.step(position.chunk_index - era.first_chunk, position.carry)

    def first_quotas(self) -> np.ndarray:
        """The samples that chunk 0 asks of each component: int32 (k,); 0 where none is active."""
        start = self.start()
        if start.era.allocation is None:
            return np.zeros(start.drawn.shape, dtype=np.int32)
        return self._quotas(start)[0]

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
        left = np.where(era.active & rules.leaves, rules.totals - position.drawn, FAR)
        given = np.minimum(quotas, left)
        after = Position(position.chunk_index + 1, era, carry, position.drawn + given)
        if self.departed(after):
            after = self.open(after.chunk_index, after.drawn)
        return given, after

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
        quotas, carry = era.allocation.stretch(
            start.carry, start.chunk_index - era.first_chunk, num_chunks
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
            return quotas, Position(chunk_index, era, carry, drawn[-1]), nobody
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
        rows = era.allocation.rows(chunks - era.first_chunk)
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
        active = self._active(drawn)
        era = self._era(era_chunk, active, drawn)
        num_chunks = chunk_index - era_chunk
        if era.allocation is None:
            consistent = num_chunks == 0 and not carry.any()
        else:
            allocation = era.allocation
            base = drawn - allocation.drawn_at(num_chunks, carry)
            era = era._replace(base=base)
            consistent = bool(
                allocation.is_possible(num_chunks, carry)
                and (base >= 0).all()
                and not base[(era_chunk == 0) | ~active & ~self.rules.leaves].any()
            )
        # Eras after the first begin when a component leaves, and only then.
        same = np.array_equal(active, self.start().era.active)
        return Position(chunk_index, era, carry, drawn), consistent and (era_chunk == 0) == same
