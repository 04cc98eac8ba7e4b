"""Virtual time for many numbers of draws at once.

Between two numbers for which the draws of each component are known, a component's cost is a line in
pieces. The lines summed up say at what moment about so many draws are due; what that is off by is
put right draw by draw. Floats do all of it, and know how far they can be off: where two dues lie
nearer than that, a number is not sure, and left to integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax.kernels.draw_costs import shared

__all__ = ["Line", "drawn_between"]

_MOST_STEPS = 64  # draws by which a number is put right; k more with k components
_EXACT = 1 << 53  # integers that floats hold


class Line(NamedTuple):
    """The cost of one component's draws, in pieces that share a cost evenly."""

    weight: int
    phase: float  # 0 to 1, of a draw's cost
    first: np.ndarray  # int64 (P + 1,), draws before each piece, and before the end
    before: np.ndarray  # int64 (P + 1,), their cost, less weight times a moment that all share
    late: float = 0.0  # 0 to 1, added to each of these costs


class _Dues:
    """When draws are due, for all components in one table of pieces laid end to end."""

    def __init__(self, lines: Sequence[Line]):
        sizes = [line.first[-1] - line.first[0] for line in lines]
        begins = np.cumsum([0, *sizes[:-1]])
        self._shift = begins - np.asarray([line.first[0] for line in lines])
        pairs = zip(lines, self._shift, strict=True)
        self._first = np.concatenate([line.first[:-1] + shift for line, shift in pairs])
        self._before = np.concatenate([line.before[:-1] for line in lines])
        self._length = np.concatenate([np.diff(line.first) for line in lines])
        self._cost = np.concatenate([np.diff(line.before) for line in lines])
        self._weight = np.asarray([line.weight for line in lines], dtype=float)
        self._phase = np.asarray([line.phase for line in lines])
        self._late = np.asarray([line.late for line in lines])

    def of(self, component: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """When draws of components are due: float64, of the shape that the two broadcast to."""
        draw = draw + self._shift[component]
        piece = np.searchsorted(self._first, draw, side="right") - 1
        inside, cost, length = draw - self._first[piece], self._cost[piece], self._length[piece]
        spent = shared(cost, length, inside)
        own = shared(cost, length, inside + 1) - spent
        late = self._phase[component] * own + self._late[component]
        point = (self._before[piece] + spent) + late
        return point / self._weight[component]


def _guess(lines: Sequence[Line], num_draws: np.ndarray) -> np.ndarray:
    """Draws of each component at the moment at which about so many are due: int64 (k, n)."""
    knots = [line.before / line.weight for line in lines]
    moments = np.unique(np.concatenate(knots))
    due = np.zeros(moments.size)
    for line, knot in zip(lines, knots, strict=True):
        due += np.interp(moments, knot, line.first) + (0.5 - line.phase)
    moment = np.interp(num_draws, due, moments)
    given = np.empty((len(lines), num_draws.size), dtype=np.int64)
    for d, (line, knot) in enumerate(zip(lines, knots, strict=True)):
        point = np.floor(np.interp(moment, knot, line.first) - line.phase) + 1
        # Pieces may begin before draw 0, where dues are late: nothing before it is given again.
        given[d] = np.clip(point, max(0, line.first[0]), line.first[-1] - 1)
    return given


def drawn_between(lines: Sequence[Line], num_draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many of the first draws of the order are each component's.

    Args:
      lines: What the draws of each component cost, from its last one before the least of the
        numbers up to its first one after the greatest, or more of them.
      num_draws: int64 (n,), ascending.

    Returns:
      int64 (n, k), and for which numbers they are certain, bool (n,).
    """
    sure = np.zeros(num_draws.shape, dtype=bool)
    given = _guess(lines, num_draws)
    most = max(max(abs(int(line.before[0])), abs(int(line.before[-1]))) for line in lines)
    if most >= _EXACT:
        return given.T, sure
    margin = max(float(np.abs(line.before[[0, -1]]).max()) / line.weight for line in lines) / 2**48
    dues, every = _Dues(lines), np.arange(len(lines))[:, None]
    none = given == 0
    after = dues.of(every, given)
    last = np.where(none, -np.inf, dues.of(every, given - ~none))
    rows, missing = np.arange(num_draws.size), num_draws - given.sum(axis=0)
    for _ in range(_MOST_STEPS + len(lines)):
        gains, gives = after[:, rows].argmin(axis=0), last[:, rows].argmax(axis=0)
        gap = after[gains, rows] - last[gives, rows]
        right = (missing[rows] == 0) & (gap >= -margin)
        sure[rows[right]] = gap[right] > margin
        rows, gains, gives = rows[~right], gains[~right], gives[~right]
        if not rows.size:
            break
        more, less = missing[rows] >= 0, missing[rows] <= 0
        missing[rows] += less.astype(np.int64) - more
        _add(dues, given, last, after, gains[more], rows[more])
        _take(dues, given, last, after, gives[less], rows[less])
    return given.T, sure


def _add(
    dues: _Dues, given: np.ndarray, last: np.ndarray, after: np.ndarray, component: np.ndarray,
    row: np.ndarray,
) -> None:  # fmt: skip
    """Gives one draw more to components in rows."""
    given[component, row] += 1
    last[component, row] = after[component, row]
    after[component, row] = dues.of(component, given[component, row])


def _take(
    dues: _Dues, given: np.ndarray, last: np.ndarray, after: np.ndarray, component: np.ndarray,
    row: np.ndarray,
) -> None:  # fmt: skip
    """Takes the last draw from components in rows."""
    given[component, row] -= 1
    after[component, row] = last[component, row]
    left = given[component, row]
    last[component, row] = np.where(left == 0, -np.inf, dues.of(component, np.maximum(left - 1, 0)))
