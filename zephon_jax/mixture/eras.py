"""Positions of a run by chunk index and by sample, and where the run ends.

The end of an era is found by bisection over the number of chunks, never by walking through them.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax._process import PerProcess
from zephon_jax.mixture.history import FAR, UNCAPPED
from zephon_jax.mixture.positions import Era, Position, Steps

__all__ = ["Eras", "Span"]


class Span(NamedTuple):
    """An era with its length, for random access."""

    start: Position
    first_sample: int
    num_chunks: int  # FAR where it has no end
    num_samples: int  # FAR where it has no end
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
    """Positions of a run by chunk index and by sample. Immutable but for the eras it remembers."""

    steps: Steps
    _starts: list[Position] = field(default_factory=list[Position])
    _spans: list[Span] = field(default_factory=list[Span])
    _begun: Span | None = None
    _length: tuple[Era, int | None] | None = None
    _lock: PerProcess[threading.RLock] = field(default_factory=lambda: PerProcess(threading.RLock))

    def resume(
        self, chunk_index: int, era_chunk: int, carry: np.ndarray, drawn: np.ndarray
    ) -> Position:
        """The position that a saved carry and saved counts describe.

        Raises:
          ValueError: If they contradict each other.
        """
        if self.steps.rules.costs is not None:
            position = self.seek(chunk_index)
            found = position.chunk_index, position.era.first_chunk
            consistent = found == (chunk_index, era_chunk) and bool((position.drawn == drawn).all())
        else:
            position, consistent = self.steps.described(chunk_index, era_chunk, carry, drawn)
        if not consistent:
            raise ValueError(
                "the state contradicts itself: its carry and counts do not belong to its chunk"
                f" {chunk_index}."
            )
        return position

    def _within(self, position: Position, chunk_index: int) -> tuple[Position, bool]:
        """Goes towards a chunk, as far as the era or the run lasts; says whether to go on."""
        era = position.era
        if era.allocation is None or chunk_index <= position.chunk_index:
            return position, False
        first = position.chunk_index - era.anchor
        last = min(chunk_index, era.weighing.end) - era.anchor
        target = self.steps.at(position, last)
        crossed = self.steps.departed(target)
        if crossed:
            last = self._departure(position, first, last)
            target = self.steps.at(position, last)
        changes = target.chunk_index == era.weighing.end
        # The run may have ended in an earlier chunk: before the one in which a component leaves.
        capped = self.steps.capped(era).any()
        if capped or (self.steps.rules.passes is not None and not crossed):
            # At a change the next weights say whether it ends.
            final = self.steps.at(position, last - 1) if crossed or changes else target
            if self.steps.ended(final):
                last = final.chunk_index - era.anchor
                near = self._first_chunks(era) or last
                end = _bisect(
                    first - 1, last, near, lambda n: self.steps.ended(self.steps.at(position, n))
                )
                return self.steps.at(position, end), False
        if crossed:
            # What the chunk asked for beyond the rest of a dataset was not given.
            rest = np.minimum(target.drawn, era.weighing.first_pass)
            leaves = era.active & self.steps.rules.leaves
            target = target._replace(drawn=np.where(leaves, rest, target.drawn))
        return self.steps.settled(target), crossed or changes

    def _departure(self, position: Position, first: int, last: int) -> int:
        """Chunks of an era after which a component leaves: more than `first`, `last` at most."""
        era = position.era
        assert era.allocation is not None
        near = self._first_chunks(era) or last
        if era.allocation.exact_ends and not self.steps.capped(era).any():
            return near
        return _bisect(first, last, near, lambda n: self.steps.departed(self.steps.at(position, n)))

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

    @property
    def endless(self) -> bool:
        """True where the run has no end."""
        rules = self.steps.rules
        tail = rules.weighings[-1]
        if rules.passes is not None or (tail.weighted & (tail.caps != UNCAPPED)).any():
            return False
        if not (tail.weighted & ~rules.leaves).any():
            return False
        if tail.first_chunk == 0:
            return True
        at = self.seek(tail.first_chunk)
        return at.chunk_index == tail.first_chunk and not self.steps.ended(at)

    def _seek(self, chunk_index: int) -> Position:
        self._keep(self.steps.start())
        starts = self._starts
        place = bisect.bisect_right(starts, chunk_index, key=lambda one: one.chunk_index) - 1
        position, going = starts[place], True
        while going:
            position, going = self._within(position, chunk_index)
            if going:
                self._keep(position)
        return position

    def _keep(self, start: Position) -> None:
        """Remembers where an era begins, for seeks: in ascending order, the run's start first."""
        self._starts = self._starts or [self.steps.start()]
        if start.chunk_index > self._starts[-1].chunk_index:
            self._starts.append(start)

    def _first_chunks(self, era: Era) -> int | None:
        """After how many chunks, within a few, an era ends, or None where it never does."""
        known = self._length
        if known is None or known[0] is not era:
            known = self._length = (era, self._look_for_end(era))
        return known[1]

    def _look_for_end(self, era: Era) -> int | None:
        rules, weighing = self.steps.rules, era.weighing
        assert era.allocation is not None
        # In samples: what the components must have drawn for the era to have ended.
        ends = np.full(rules.totals.shape, FAR)
        capped = self.steps.capped(era)
        ends[capped] = weighing.caps[capped] + 1
        leaving = era.active & rules.leaves
        ends[leaving] = weighing.first_pass[leaving]
        if rules.passes is not None:
            ends[era.active] = weighing.ends[era.active]
        chosen = ends < FAR
        if not chosen.any():
            return None
        draws = np.maximum(ends - era.base, 0)
        return era.allocation.chunks_until(draws, chosen, last=rules.passes is not None)

    def _end_of(self, start: Position) -> tuple[Position, bool] | None:
        """The end of the era that starts here and whether another follows, or None."""
        if start.era.weighing.end < FAR:
            return self._within(start, start.era.weighing.end)
        guess = self._first_chunks(start.era)
        if guess is None:
            return None
        most = MAX_INDEX // self.steps.rules.chunk_size - start.chunk_index
        while True:
            end, more = self._within(start, start.chunk_index + min(guess, most))
            if more or self.steps.ended(end):
                return end, more
            if guess >= most:
                raise ValueError(
                    "the run is longer than 2^62 samples, and has no length that 64 bits hold."
                    " Lower stop_after_passes or max_repeats, or let the datasets repeat for ever."
                )
            guess *= 2

    def _next_span(self, start: Position, first_sample: int) -> Span:
        if start.era.allocation is None or self.steps.ended(start):
            return Span(start, first_sample, 0, 0, True)
        found = self._end_of(start)
        if found is None:
            return Span(start, first_sample, FAR, FAR, True)
        end, more = found
        num_samples = int(end.drawn.sum() - start.drawn.sum())
        if more:
            self._keep(end)
        return Span(start, first_sample, end.chunk_index - start.chunk_index, num_samples, not more)

    def span_of_sample(self, index: int) -> Span | None:
        """The era that holds the sample with this index in the run, or None past the end."""
        with self._lock.get():
            return self._span_of_sample(index)

    def _span_of_sample(self, index: int) -> Span | None:
        while True:
            place = bisect.bisect_right(self._spans, index, key=lambda s: s.first_sample) - 1
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
            return self.steps.start(), 0
        last = self._spans[-1]
        start = self.seek(last.start.chunk_index + last.num_chunks)
        return start, last.first_sample + last.num_samples

    def _begun_span(self, start: Position, first_sample: int, index: int) -> Span | None:
        """The part of an era up to a sample, where the era lasts that long.

        The end of an era without a closed form is found by stepping through its chunks, which takes
        long where it is far; a sample near the era's start need not wait for it.
        """
        allocation, known = start.era.allocation, self._begun
        if allocation is None or allocation.closed:
            return None  # the end is found at once
        if known is None or known.first_sample != first_sample:
            known = Span(start, first_sample, 0, 0, False)
        if index < first_sample + known.num_samples:
            return known
        num_chunks = (index - first_sample) // self.steps.rules.chunk_size
        guess = self._first_chunks(start.era)
        if start.era.weighing.end < FAR:
            length = start.era.weighing.end - start.chunk_index
            guess = length if guess is None else min(guess, length)
        if guess is None or num_chunks > guess:
            return None
        here, more = self._within(start, start.chunk_index + num_chunks)
        drawn = self.steps.step(here)
        if more or drawn is None or here.chunk_index != start.chunk_index + num_chunks:
            return None
        num_samples = num_chunks * self.steps.rules.chunk_size + int(drawn[0].sum())
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
