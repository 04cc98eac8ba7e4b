"""Where carried quotas stand at any chunk, without going through the chunks before.

Most mixtures have a closed form. The others (a component that gets less than one sample a chunk)
are stepped through once; carries saved along the way, and the period after which the carry is
zero again, keep that short.
"""

from __future__ import annotations

import bisect

import numpy as np

from zephon_jax.kernels import quota, quota_fast_forward

__all__ = ["Allocation"]

_STRIDE = 2048
_MAX_SAVED = 4096


class Allocation:
    """The carries of one mixture from chunk 0 on. Immutable but for the saved carries.

    Args:
      shares: What each component is owed a chunk.
    """

    exact_ends = False  # `chunks_until` is a guess

    __slots__ = ("_closed", "_period", "_saved", "_stride", "shares")

    def __init__(self, shares: quota.Shares):
        self.shares = shares
        self._closed = quota.is_closed_form(shares)
        self._period = quota.period(shares)
        self._stride = _STRIDE
        self._saved: dict[int, np.ndarray] = {0: quota.init_carry(shares)}

    @property
    def closed(self) -> bool:
        """True where the carry at any chunk is computed directly."""
        return self._closed

    def init_carry(self) -> np.ndarray:
        """The carry of chunk 0: int32 (k,)."""
        return quota.init_carry(self.shares)

    def carry_at(self, num_chunks: int) -> np.ndarray:
        """The carry after this many chunks: int32 (k,)."""
        if self._closed:
            return quota.steady_carry(self.shares, num_chunks)
        place = num_chunks % self._period
        mark, carry = self._nearest(place)
        stride = self._stride  # read once: another thread may double it meanwhile
        while place - mark >= stride:
            carry = quota_fast_forward.forward(self.shares, carry, mark, mark + stride)
            mark += stride
            self._save(mark, carry)
        return quota_fast_forward.forward(self.shares, carry, mark, place)

    def _nearest(self, place: int) -> tuple[int, np.ndarray]:
        """The last saved carry at or before a place in the period, and where it stands."""
        saved = self._saved  # read once: another thread may put others in its place
        marks = list(saved)
        mark = marks[bisect.bisect_right(marks, place) - 1]
        return mark, saved[mark]

    def _save(self, mark: int, carry: np.ndarray) -> None:
        """Keeps a carry; when there are too many, every other one goes and strides double."""
        saved = dict(self._saved)
        saved[mark] = carry
        if len(saved) > _MAX_SAVED:
            self._stride *= 2
            saved = {m: c for m, c in saved.items() if m % self._stride == 0}
        # One assignment: another thread sees the marks in order, before or after.
        self._saved = dict(sorted(saved.items()))

    def advance(self, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The carry after `stop` chunks, given the one after `start` of them."""
        if start == stop:
            return carry
        if self._closed:
            return self.carry_at(stop)
        if stop - start > self._stride:
            place = stop % self._period
            if place - self._nearest(place)[0] < stop - start:
                return self.carry_at(stop)
        return quota_fast_forward.forward(self.shares, carry, start, stop)

    def step(self, num_chunks: int, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The quotas of the chunk after so many and the next carry, int32 (k,) each."""
        return quota.step(self.shares, carry)

    def drawn_at(self, num_chunks: int | np.ndarray, carry: np.ndarray) -> np.ndarray:
        """Samples given out in this many chunks that end with this carry: int64 (k,)."""
        return quota.drawn_after(self.shares, num_chunks, carry)

    def drawn_before(self, chunks: np.ndarray) -> np.ndarray:
        """Samples given out before each of many chunks, int64 (n, k), in the closed form."""
        return self.drawn_at(chunks, quota.steady_carry(self.shares, chunks))

    def quotas_of(self, chunks: np.ndarray) -> np.ndarray:
        """Quotas of many chunks at once, int32 (n, k), where there is a closed form."""
        if (np.diff(chunks) == 1).all():  # in a row, each carry serves two chunks
            steps = np.append(chunks, chunks[-1:] + 1)
            carries = quota.steady_carry(self.shares, steps)
            return quota.quotas_between(self.shares, carries[:-1], carries[1:])
        before = quota.steady_carry(self.shares, chunks)
        return quota.quotas_between(
            self.shares, before, quota.steady_carry(self.shares, chunks + 1)
        )

    def chunks_until(self, draws: np.ndarray, chosen: np.ndarray, last: bool) -> int:
        """Chunks after which components have given so many samples, within a few.

        Args:
          draws: int64 (k,), samples.
          chosen: bool (k,), the components to look at; at least one, and all active.
          last: True for the last of them to come there, False for the first.
        """
        rate = (self.shares.whole + self.shares.rem / int(self.shares.unit))[chosen]
        with np.errstate(divide="ignore"):
            chunks = (draws[chosen] + 2) / rate
        return int(chunks.max() if last else chunks.min()) + 2

    def is_possible(self, num_chunks: int, carry: np.ndarray) -> bool:
        """True for a carry that so many chunks may leave over."""
        unit, wide = int(self.shares.unit), carry.astype(np.int64)
        owed = num_chunks % unit * self.shares.rem.astype(np.int64)
        return bool(
            num_chunks >= 0
            and ((wide > -unit) & (wide < 2 * unit)).all()
            and wide.sum() == 0
            and not ((owed - wide) % unit).any()
        )
