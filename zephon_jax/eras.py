"""Exhaustion: who draws in which chunk, and where a run ends.

Between two departures from the mixture the quotas follow one allocation: an era. A position is a
chunk with everything needed to draw it, and positions are found by index. The end of an era is
found by bisection over the number of chunks, never by walking through them.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from zephon_jax import quota
from zephon_jax.allocation import Allocation
from zephon_jax.per_process import PerProcess
from zephon_jax.virtual_time import Cost, VirtualTime

__all__ = ["Era", "Eras", "Position", "Rules", "Span"]

UNCAPPED = -1
MAX_SAMPLES = 1 << 62  # counts of samples stay below, so that 64 bits hold them
_FAR = 1 << 62


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


class Span(NamedTuple):
    """An era with its length, for random access."""

    start: Position
    first_sample: int
    num_chunks: int  # _FAR where it has no end
    num_samples: int  # _FAR where it has no end
    last: bool  # True where the run ends with it


def _bisect(low: int, high: int, near: int, holds: Callable[[int], bool]) -> int:
    """Smallest n in (low, high] for which a monotone condition holds; it does at high.

    Looks at `near` first and goes away from there in growing strides.
    """
    near, stride = min(near, high - 1), 1
    while high - low > 1:
        middle = near if low < near < high else (low + high) // 2
        if holds(middle):
            high, near = middle, middle - stride
        else:
            low, near = middle, middle + stride
        stride *= 2
    return high


@dataclass(eq=False)
class Eras:
    """Positions of a run by chunk index. Immutable but for what it remembers."""

    rules: Rules
    _allocations: dict[bytes, Allocation | VirtualTime] = field(default_factory=dict)
    _starts: list[Position] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)
    _begun: Span | None = None
    _length: tuple[Era, int | None] | None = None
    _lock: PerProcess[Any] = field(default_factory=lambda: PerProcess(threading.RLock))

    def start(self) -> Position:
        """The position of chunk 0."""
        if not self._starts:
            self._starts = [self._open(0, np.zeros_like(self.rules.totals))]
        return self._starts[0]

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

    def _open(self, chunk_index: int, drawn: np.ndarray) -> Position:
        """The position at which an era begins: all carries are zero."""
        active = self._active(drawn)
        allocation = self._allocation(active, drawn)
        size = 0 if self.rules.costs is not None else drawn.size
        era = Era(chunk_index, drawn, active, allocation)
        return Position(chunk_index, era, np.zeros(size, dtype=np.int32), drawn)

    def resume(
        self, chunk_index: int, era_chunk: int, carry: np.ndarray, drawn: np.ndarray
    ) -> Position:
        """The position that a saved carry and saved counts describe.

        Raises:
          ValueError: If they contradict each other.
        """
        if self.rules.costs is not None:
            position = self.seek(chunk_index)
            found = position.chunk_index, position.era.first_chunk
            consistent = found == (chunk_index, era_chunk) and bool((position.drawn == drawn).all())
        else:
            position, consistent = self._resume(chunk_index, era_chunk, carry, drawn)
        if not consistent:
            raise ValueError(
                "the state contradicts itself: its carry and counts do not belong to its chunk"
                f" {chunk_index}."
            )
        return position

    def _resume(
        self, chunk_index: int, era_chunk: int, carry: np.ndarray, drawn: np.ndarray
    ) -> tuple[Position, bool]:
        """The same from the carry alone, whatever was before the era; says whether it can be."""
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

    def _at(self, position: Position, num_chunks: int) -> Position:
        """The position after `num_chunks` of the era, as if nothing ended before."""
        era = position.era
        assert era.allocation is not None
        carry = era.allocation.advance(
            position.carry, position.chunk_index - era.first_chunk, num_chunks
        )
        drawn = era.base + era.allocation.drawn_at(num_chunks, carry)
        return Position(era.first_chunk + num_chunks, era, carry, drawn)

    def _departed(self, position: Position) -> bool:
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

    def ended(self, position: Position) -> bool:
        """True when the run ends at this chunk boundary, or ended before."""
        rules, active = self.rules, position.era.active
        if position.era.allocation is None:
            return True
        if rules.passes is not None:
            return bool((position.drawn >= rules.passes * rules.totals)[active].all())
        capped = active & (rules.caps != UNCAPPED)
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
        left = np.where(era.active & rules.leaves, rules.totals - position.drawn, _FAR)
        given = np.minimum(quotas, left)
        after = Position(position.chunk_index + 1, era, carry, position.drawn + given)
        if self._departed(after):
            after = self._open(after.chunk_index, after.drawn)
        return given, after

    def _within(self, position: Position, chunk_index: int) -> tuple[Position, bool]:
        """Goes towards a chunk, as far as the era or the run lasts; says whether to go on."""
        era = position.era
        if era.allocation is None or chunk_index <= position.chunk_index:
            return position, False
        first = position.chunk_index - era.first_chunk
        last = chunk_index - era.first_chunk
        target = self._at(position, last)
        crossed = self._departed(target)
        if crossed:
            near = self._first_chunks(era) or last
            last = _bisect(first, last, near, lambda n: self._departed(self._at(position, n)))
            target = self._at(position, last)
        # The run may have ended in an earlier chunk: before the one in which somebody leaves.
        final = self._at(position, last - 1) if crossed else target
        if self.ended(final):
            last = final.chunk_index - era.first_chunk
            near = self._first_chunks(era) or last
            end = _bisect(first - 1, last, near, lambda n: self.ended(self._at(position, n)))
            return self._at(position, end), False
        if crossed:
            drawn = np.where(
                self.rules.leaves, np.minimum(target.drawn, self.rules.totals), target.drawn
            )
            return self._open(target.chunk_index, drawn), True
        return target, False

    def advance(self, position: Position, chunk_index: int) -> Position:
        """The position of a later chunk, or the end of the run if that comes first."""
        going = True
        while going:
            position, going = self._within(position, chunk_index)
        return position

    def seek(self, chunk_index: int) -> Position:
        """The position of any chunk, or the end of the run if that comes first."""
        with self._lock.get():
            return self._seek(chunk_index)

    def _seek(self, chunk_index: int) -> Position:
        self.start()
        starts = self._starts
        place = bisect.bisect_right([s.chunk_index for s in starts], chunk_index) - 1
        position, going = starts[place], True
        while going:
            position, going = self._within(position, chunk_index)
            if going and position.chunk_index > starts[-1].chunk_index:
                starts.append(position)
        return position

    @property
    def endless(self) -> bool:
        """True when nothing ever ends the run."""
        rules, active = self.rules, self.start().era.active
        if rules.passes is not None or (active & (rules.caps != UNCAPPED)).any():
            return False
        return bool((active & ~rules.leaves).any())

    def _first_chunks(self, era: Era) -> int | None:
        """After how many chunks, within a few, an era ends, or None where it never does."""
        known = self._length
        if known is None or known[0] is not era:
            known = self._length = (era, self._look_for_end(era))
        return known[1]

    def _look_for_end(self, era: Era) -> int | None:
        rules = self.rules
        assert era.allocation is not None
        # In samples: what the components must have drawn for the era to have ended.
        ends = np.full(rules.totals.shape, _FAR)
        capped = era.active & (rules.caps != UNCAPPED)
        ends[capped] = rules.caps[capped] + 1
        leaving = era.active & rules.leaves
        ends[leaving] = rules.totals[leaving]
        if rules.passes is not None:
            ends[era.active] = rules.passes * rules.totals[era.active]
        chosen = ends < _FAR
        if not chosen.any():
            return None
        draws = np.maximum(ends - era.base, 0)
        return era.allocation.chunks_until(draws, chosen, last=rules.passes is not None)

    def _end_of(self, start: Position) -> tuple[Position, bool] | None:
        """The end of the era that starts here and whether another follows, or None."""
        guess = self._first_chunks(start.era)
        if guess is None:
            return None
        most = MAX_SAMPLES // self.rules.chunk_size - start.chunk_index
        while True:
            end, more = self._within(start, start.chunk_index + min(guess, most))
            if more or self.ended(end):
                return end, more
            if guess >= most:
                raise ValueError(
                    "the run is longer than 2^62 samples, and has no length that 64 bits hold."
                    " Lower stop_after_passes or max_repeats, or let the datasets repeat for ever."
                )
            guess *= 2

    def _next_span(self, start: Position, first_sample: int) -> Span:
        if start.era.allocation is None or self.ended(start):
            return Span(start, first_sample, 0, 0, True)
        found = self._end_of(start)
        if found is None:
            return Span(start, first_sample, _FAR, _FAR, True)
        end, more = found
        num_samples = int(end.drawn.sum() - start.drawn.sum())
        if more and end.chunk_index > self._starts[-1].chunk_index:
            self._starts.append(end)
        return Span(start, first_sample, end.chunk_index - start.chunk_index, num_samples, not more)

    def span_of_sample(self, index: int) -> Span | None:
        """The era that holds the sample with this index in the run, or None past the end."""
        with self._lock.get():
            return self._span_of_sample(index)

    def _span_of_sample(self, index: int) -> Span | None:
        while True:
            place = bisect.bisect_right([s.first_sample for s in self._spans], index) - 1
            if place >= 0:
                span = self._spans[place]
                if index < span.first_sample + span.num_samples:
                    return span
                if self._spans[-1].last:
                    return None
            begun = self._begun_span(*self._after_spans(), index)
            if begun is not None:
                return begun
            self._spans.append(self._next_span(*self._after_spans()))

    def _after_spans(self) -> tuple[Position, int]:
        """Where the first era begins whose end is not known yet, and its first sample."""
        if not self._spans:
            return self.start(), 0
        last = self._spans[-1]
        start = self.seek(last.start.chunk_index + last.num_chunks)
        return start, last.first_sample + last.num_samples

    def _begun_span(self, start: Position, first_sample: int, index: int) -> Span | None:
        """The part of an era up to a sample, where the era lasts so long: its end may be far."""
        allocation, known = start.era.allocation, self._begun
        if allocation is None or allocation.closed:
            return None  # the end is found at once
        if known is None or known.first_sample != first_sample:
            known = Span(start, first_sample, 0, 0, False)
        if index < first_sample + known.num_samples:
            return known
        num_chunks = (index - first_sample) // self.rules.chunk_size
        guess = self._first_chunks(start.era)
        if guess is None or num_chunks > guess:
            return None
        here, more = self._within(start, start.chunk_index + num_chunks)
        drawn = self.step(here)
        if more or drawn is None or here.chunk_index != start.chunk_index + num_chunks:
            return None
        num_samples = num_chunks * self.rules.chunk_size + int(drawn[0].sum())
        if index >= first_sample + num_samples:
            return None
        self._begun = Span(start, first_sample, num_chunks + 1, num_samples, False)
        return self._begun

    def spans(self) -> list[Span]:
        """All eras of the run; the last may have no end."""
        with self._lock.get():
            while not self._spans or not self._spans[-1].last:
                self._spans.append(self._next_span(*self._after_spans()))
            return list(self._spans)

    def num_samples(self) -> int:
        """Samples in the whole run, which must end."""
        assert not self.endless
        last = self.spans()[-1]
        return last.first_sample + last.num_samples
