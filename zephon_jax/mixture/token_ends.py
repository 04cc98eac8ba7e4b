"""The chunks at which a schedule's weights change, where its stages end after so many tokens.

How many tokens there are before a chunk follows from all weights before it. So the run is gone
through from one change to the next: each is at the chunk boundary that is nearest to its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zephon_jax.data.token_estimation import TOKEN_UNIT
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.history import FAR, Weighing
from zephon_jax.mixture.positions import ExhaustionRules, Position, Steps

__all__ = ["chunks_of_points"]


class _Run:
    """A run as far as its changes are known; the last of its weights hold for ever."""

    def __init__(self, rules: ExhaustionRules):
        assert rules.costs is not None
        self._rules, self._costs = rules, rules.costs
        self._done = [rules.weighings[0]._replace(end=FAR)]
        self._before: list[Position | None] = [None]  # where each of them comes about
        self._steps = self._steps_now()
        self._position = self._steps.start()

    def _steps_now(self) -> Steps:
        return Steps(replace(self._rules, weighings=tuple(self._done)))

    @property
    def chunk_index(self) -> int:
        """The chunk that was come to."""
        return self._position.chunk_index

    def _tokens(self, position: Position) -> int:
        """Cost of all samples before a position, in units of 1 / TOKEN_UNIT token."""
        drawn = position.drawn.tolist()
        return sum(cost.draw(n).before for cost, n in zip(self._costs, drawn, strict=True) if n)

    def come_to(self, amount: int) -> int | None:
        """Goes to the chunk boundary nearest to an amount of tokens; None where the run ends."""
        eras, low, high = Eras(self._steps), self._position, None
        spent, more, each, factor = self._tokens(low), 0, self._cost_of_chunk(low), 1
        while high is None or high.chunk_index - low.chunk_index > 1:
            if high is None:
                step, factor = max(1, (amount - spent) // each) * factor, 2 * factor
            else:  # nearly a line in between
                width = high.chunk_index - low.chunk_index
                step = min(max(1, (amount - spent) * width // (more - spent)), width - 1)
            found = eras.advance(low, low.chunk_index + step)
            here = self._tokens(found)
            if here > amount:
                high, more = found, here
            elif found.chunk_index < low.chunk_index + step:
                self._position = found
                return None
            else:
                low, spent = found, here
        self._position = low if spent > amount or amount - spent < more - amount else high
        return self._position.chunk_index

    def _cost_of_chunk(self, position: Position) -> int:
        """About what a chunk costs, in units of 1 / TOKEN_UNIT token."""
        units = position.era.weighing.units
        pairs = zip(units, self._costs, strict=True)
        samples = sum(unit / cost.mean for unit, cost in pairs if unit)
        return max(1, int(self._rules.chunk_size * sum(units) / samples))

    def change(self, chunk: int, weighing: Weighing) -> None:
        """Goes on by other weights from the chunk that was come to."""
        before: Position | None = self._position
        if self._done[-1].first_chunk == chunk:  # those before had no chunk
            self._done.pop()
            before = self._before.pop()
        if self._done and self._done[-1].units == weighing.units:
            self._done[-1] = self._done[-1]._replace(end=FAR)
            self._steps = self._steps_now()
            assert before is not None
            self._position = before
            return
        if self._done:
            self._done[-1] = self._done[-1]._replace(end=chunk)
        self._done.append(weighing._replace(first_chunk=chunk, end=FAR))
        self._before.append(before)
        self._steps = self._steps_now()
        if before is None:
            self._position = self._steps.start()
        elif before.era.first_chunk == chunk:  # somebody left just there
            self._position = self._steps.open(chunk, before.drawn)
        else:
            self._position = self._steps.changed(before)


def chunks_of_points(points: Sequence[int], rules: ExhaustionRules) -> tuple[int, ...]:
    """The first chunk of each entry of a schedule, ascending; several may be the same.

    Args:
      points: Tokens before each entry, ascending, the first one 0.
      rules: With the entries' weights in their order, whatever their chunks.
    """
    run, chunks = _Run(rules), [0]
    for point, weighing in zip(points[1:], rules.weighings[1:], strict=True):
        chunk = run.come_to(point * TOKEN_UNIT)
        if chunk is None:  # what is planned for after the end has no effect
            later = 1 + max(chunks[-1], run.chunk_index)
            chunks += range(later, later + len(points) - len(chunks))
            break
        run.change(chunk, weighing)
        chunks.append(chunk)
    return tuple(chunks)
