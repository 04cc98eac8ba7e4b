"""Who draws in a chunk, and how much: positions of a run, and the step from one to the next.

Between two departures from the mixture the quotas follow one allocation: an era. A position is a
chunk with everything needed to draw it. `zephon_jax.mixture.eras` finds positions by their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.kernels import quota
from zephon_jax.kernels.virtual_time import Cost, VirtualTime
from zephon_jax.mixture.allocation import Allocation

__all__ = ["FAR", "MAX_SAMPLES", "UNCAPPED", "Era", "Position", "Rules", "Steps"]

UNCAPPED = -1
MAX_SAMPLES = 1 << 62  # counts of samples stay below, so that 64 bits hold them
FAR = 1 << 62  # more than anything counted here


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
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
    """A stretch of chunks with one set of active components."""

    first_chunk: int
    base: np.ndarray  # int64 (k,), drawn before the era
    active: np.ndarray  # bool (k,)
    allocation: Allocation | VirtualTime | None  # None when nothing is left to draw from


class Position(NamedTuple):
    """Everything that the next chunk follows from."""

    chunk_index: int
    era: Era
    carry: np.ndarray  # int32 (k,), in units of 1 / W; (0,) under virtual time
    drawn: np.ndarray  # int64 (k,), samples


@dataclass(eq=False)
class Steps:
    """The steps of a run. Immutable but for the allocations that it remembers."""

    rules: Rules
    _allocations: dict[bytes, Allocation | VirtualTime] = field(default_factory=dict)
    _first: Position | None = None

    def start(self) -> Position:
        """The position of chunk 0."""
        if self._first is None:
            self._first = self.open(0, np.zeros_like(self.rules.totals))
        return self._first

    def _allocation(self, active: np.ndarray, base: np.ndarray) -> Any:
        """The quotas of these components, from an era's start on."""
        if not active.any():
            return None
        rules = self.rules
        # What a draw costs depends on its place in its dataset; a carry knows nothing of that.
        name = active.tobytes() + (base.tobytes() if rules.costs is not None else b"")
        if name not in self._allocations:
            shares = zip(rules.fractions, active, strict=True)
            weights = [share if on else Fraction(0) for share, on in shares]
            if rules.costs is not None:
                made = VirtualTime(weights, rules.chunk_size, rules.costs, base)
            else:
                make = quota.fixed_shares_of if rules.fixed else quota.shares_of
                made = Allocation(make(weights, rules.chunk_size))
            self._allocations[name] = made
        return self._allocations[name]

    def _active(self, drawn: np.ndarray) -> np.ndarray:
        rules = self.rules
        return rules.weighted & ~(rules.leaves & (drawn >= rules.totals))

    def open(self, chunk_index: int, drawn: np.ndarray) -> Position:
        """The position at which an era begins: all carries are zero."""
        active = self._active(drawn)
        allocation = self._allocation(active, drawn)
        size = 0 if self.rules.costs is not None else drawn.size
        era = Era(chunk_index, drawn, active, allocation)
        return Position(chunk_index, era, np.zeros(size, dtype=np.int32), drawn)

    @property
    def endless(self) -> bool:
        """True when nothing ever ends the run."""
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

    def departed(self, position: Position) -> bool:
        """True when a component has reached its end at or before this chunk boundary."""
        leaving = position.era.active & self.rules.leaves
        return bool((leaving & (position.drawn >= self.rules.totals)).any())

    def _quotas(self, position: Position) -> tuple[np.ndarray, np.ndarray]:
        """What the next chunk asks of each component, int32 (k,), and the carry after it."""
        era = position.era
        assert era.allocation is not None
        return era.allocation.step(position.chunk_index - era.first_chunk, position.carry)

    def first_quotas(self) -> np.ndarray:
        """What chunk 0 asks of each component: int32 (k,), zeros where nobody is active."""
        start = self.start()
        if start.era.allocation is None:
            return np.zeros(start.drawn.shape, dtype=np.int32)
        return self._quotas(start)[0]

    def capped(self, era: Era) -> np.ndarray:
        """The components that end the run where they cannot give enough: bool (k,)."""
        return era.active & (self.rules.caps != UNCAPPED)

    def ended(self, position: Position) -> bool:
        """True when the run ends at this chunk boundary, or ended before."""
        rules, active = self.rules, position.era.active
        if position.era.allocation is None:
            return True
        if rules.passes is not None:
            return bool((position.drawn >= rules.passes * rules.totals)[active].all())
        capped = self.capped(position.era)
        if not capped.any():
            return False
        quotas, _ = self._quotas(position)
        return bool((position.drawn + quotas > rules.caps)[capped].any())

    def step(self, position: Position) -> tuple[np.ndarray, Position] | None:
        """Draws one chunk.

        Returns:
          The samples that each component gives, int64 (k,), and the next position, or None where
          the run has ended.
        """
        if self.ended(position):
            return None
        era, rules = position.era, self.rules
        quotas, carry = self._quotas(position)
        left = np.where(era.active & rules.leaves, rules.totals - position.drawn, FAR)
        given = np.minimum(quotas, left)
        after = Position(position.chunk_index + 1, era, carry, position.drawn + given)
        if self.departed(after):
            after = self.open(after.chunk_index, after.drawn)
        return given, after

    def described(
        self, chunk_index: int, era_chunk: int, carry: np.ndarray, drawn: np.ndarray
    ) -> tuple[Position, bool]:
        """The position that a carry and counts describe, and whether there can be such a one.

        What was before the era does not matter.
        """
        active = self._active(drawn)
        allocation = self._allocation(active, drawn)
        num_chunks = chunk_index - era_chunk
        base = drawn
        if allocation is None:
            consistent = num_chunks == 0 and not carry.any()
        else:
            base = drawn - allocation.drawn_at(num_chunks, carry)
            consistent = bool(
                allocation.is_possible(num_chunks, carry)
                and (base >= 0).all()
                and not base[(era_chunk == 0) | ~active & ~self.rules.leaves].any()
            )
        # Eras after the first begin when somebody leaves, and only then.
        same = np.array_equal(active, self.start().era.active)
        era = Era(era_chunk, base, active, allocation)
        return Position(chunk_index, era, carry, drawn), consistent and (era_chunk == 0) == same
