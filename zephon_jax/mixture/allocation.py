"""Where carried quotas stand at any chunk, without going through the chunks before.

Most mixtures have a closed form. The others (a component that gets less than one sample a chunk)
forget what was before, most of them after some hundred chunks: their carries are found from these
alone. The rest is stepped through once; carries saved along the way, and the period after which the
carry is zero again, keep that short.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels import quota, quota_coalescence, quota_fast_forward
from zephon_jax.kernels.virtual_time import VirtualTime, phases_of
from zephon_jax.kernels.weights import integer_weights
from zephon_jax.mixture.history import Start

__all__ = ["Allocation", "CarriedQuotas", "Rows", "VirtualTimeQuotas"]

_WINDOWS = (1 << 9, 1 << 11, 1 << 13, 1 << 15, 1 << 17)  # chunks looked at to find a carry alone
_STRIDE = 2048  # chunks between saved carries: stepping through so many takes milliseconds
_MAX_SAVED = 4096


class Rows(NamedTuple):
    """Many chunks of one allocation, in ascending order."""

    chunks: np.ndarray  # int64 (n,), since the allocation began
    carry: np.ndarray  # int32 (n, k) before each chunk, (n, 0) where nothing is carried
    drawn: np.ndarray  # int64 (n, k), samples given out before each chunk
    quotas: np.ndarray  # int32 (n, k)


class Allocation(Protocol):
    """How many samples each component gives to each chunk, from chunk 0 of an era on."""

    @property
    def closed(self) -> bool:
        """True where any chunk is computed directly, without the chunks before it."""
        ...

    @property
    def exact_ends(self) -> bool:
        """True where `chunks_until` is no guess."""
        ...

    def init_carry(self) -> np.ndarray:
        """The carry of chunk 0: int32 (k,), or (0,) where nothing is carried."""
        ...

    def advance(self, carry: np.ndarray, start: int, stop: int) -> np.ndarray:
        """The carry after `stop` chunks, given the one after `start` of them."""
        ...

    def step(self, num_chunks: int, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The quotas of the chunk after `num_chunks`, int32 (k,), and the next carry."""
        ...

    def drawn_at(self, num_chunks: int, carry: np.ndarray) -> np.ndarray:
        """Samples given out in `num_chunks` chunks that end with this carry: int64 (k,)."""
        ...

    def rows(self, chunks: np.ndarray) -> Rows:
        """Many chunks (n,) at once, where the allocation is closed."""
        ...

    def quotas_of(self, chunks: np.ndarray) -> np.ndarray:
        """Quotas of many chunks at once, int32 (n, k), where the allocation is closed."""
        ...

    def stretch(
        self, carry: np.ndarray, start: int, num_chunks: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quotas of consecutive chunks, int32 (n, k), and the carry after them.

        Args:
          carry: The carry after `start` chunks.
          start: Chunks before.
          num_chunks: Chunks, at least one.
        """
        ...

    def chunks_until(self, draws: np.ndarray, chosen: np.ndarray, last: bool) -> int:
        """Chunks after which components have given as many samples as wanted, or within a few.

        Args:
          draws: int64 (k,), samples, at least one each.
          chosen: bool (k,), the components to look at; at least one, and all active.
          last: True for the last of them to come there, False for the first.
        """
        ...

    def is_possible(self, num_chunks: int, carry: np.ndarray) -> bool:
        """True for a carry that so many chunks may leave over."""
        ...


class CarriedQuotas:
    """The carries of one mixture from chunk 0 on. Immutable but for the saved carries.

    Args:
      shares: What each component is owed a chunk.
      start: What the components are owed at chunk 0; nothing by default.
      stride: Chunks between two carries that are saved.
      max_saved: Carries saved at most; above, every other one goes and the stride doubles.
    """

    exact_ends = False  # `chunks_until` is a guess

    __slots__ = (
        "_closed", "_held", "_max_saved", "_period", "_saved", "_start", "_stride", "_worth",
        "shares",
    )  # fmt: skip

    def __init__(
        self,
        shares: quota.Shares,
        start: Start | None = None,
        *,
        stride: int = _STRIDE,
        max_saved: int = _MAX_SAVED,
    ):
        self.shares, self._max_saved = shares, max_saved
        self._closed = quota.is_closed_form(shares)
        # A carry that starts at zero comes back to it; another need not come back.
        self._period = quota.period(shares) if start is None else MAX_INDEX
        self._stride = stride
        # Going through chunks one by one takes as long as a window does, following bits a quarter.
        self._worth = 1 if quota_fast_forward.steps_through(shares) else 4
        self._start = None if start is None else start.carry
        self._held = None if start is None else start.held
        first = quota.init_carry(shares) if start is None else start.carry
        self._saved: dict[int, np.ndarray] = {0: first}  # what is held is no part of them

    def _outer(self, carry: np.ndarray) -> np.ndarray:
        """Carries (..., k) of the run from those of this allocation."""
        return carry if self._held is None else carry + self._held

    def _inner(self, carry: np.ndarray) -> np.ndarray:
        """The other way around."""
        return carry if self._held is None else carry - self._held

    @property
    def closed(self) -> bool:
        """True where the carry at any chunk is computed directly."""
        return self._closed

    @property
    def saved(self) -> tuple[int, ...]:
        """The chunks whose carries are saved."""
        return tuple(self._saved)

    def init_carry(self) -> np.ndarray:
        """The carry of chunk 0: int32 (k,)."""
        return self._outer(self._saved[0])

    def carry_at(self, num_chunks: int) -> np.ndarray:
        """The carry after this many chunks: int32 (k,)."""
        return self._outer(self._carry_at(num_chunks))

    def _carry_at(self, num_chunks: int) -> np.ndarray:
        if self._closed:
            return quota.steady_carry(self.shares, num_chunks, self._start)
        place = num_chunks % self._period
        mark, carry = self._near(place)
        stride = self._stride  # read once: another thread may double it meanwhile
        while place - mark >= stride:
            carry = quota_fast_forward.forward(self.shares, carry, mark, mark + stride)
            mark += stride
            self._save(mark, carry)
        return quota_fast_forward.forward(self.shares, carry, mark, place)

    def _near(self, place: int) -> tuple[int, np.ndarray]:
        """A carry at or before a place in the period, found alone where the saved ones are far."""
        mark, carry = self._nearest(place)
        for window in _WINDOWS:
            if place - mark < window * self._worth:
                break
            found = quota_coalescence.coalesced(self.shares, place, window, self._start)
            if found is not None:
                self._save(*found)
                return found
        return mark, carry

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
        if len(saved) > self._max_saved:
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
        if stop - start > min(self._stride, _WINDOWS[0] * self._worth):
            if start:
                self._save(start % self._period, self._inner(carry))
            return self.carry_at(stop)
        inner = quota_fast_forward.forward(self.shares, self._inner(carry), start, stop)
        return self._outer(inner)

    def step(self, num_chunks: int, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The quotas of the chunk after so many and the next carry, int32 (k,) each."""
        if self._held is None:
            return quota.step(self.shares, carry)
        quotas, inner = quota.step(self.shares, carry - self._held)
        return quotas, inner + self._held

    def drawn_at(self, num_chunks: int | np.ndarray, carry: np.ndarray) -> np.ndarray:
        """Samples given out in this many chunks that end with this carry: int64 (k,)."""
        return quota.drawn_after(self.shares, num_chunks, self._inner(carry), self._start)

    def rows(self, chunks: np.ndarray) -> Rows:
        """Many chunks (n,) at once, where the allocation is closed."""
        before, after = self._carries(chunks)
        quotas = quota.quotas_between(self.shares, before, after)
        drawn = quota.drawn_after(self.shares, chunks, before, self._start)
        return Rows(chunks, self._outer(before), drawn, quotas)

    def quotas_of(self, chunks: np.ndarray) -> np.ndarray:
        """Quotas of many chunks at once, int32 (n, k), where the allocation is closed."""
        return quota.quotas_between(self.shares, *self._carries(chunks))

    def _carries(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Carries before and after chunks, int32 (n, k) each, without what is held."""
        shares, start = self.shares, self._start
        if (np.diff(chunks) == 1).all():  # in a row, each carry serves two chunks
            carries = quota.steady_carry(shares, np.append(chunks, chunks[-1:] + 1), start)
            return carries[:-1], carries[1:]
        before, after = (quota.steady_carry(shares, c, start) for c in (chunks, chunks + 1))
        return before, after

    def stretch(
        self, carry: np.ndarray, start: int, num_chunks: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quotas of consecutive chunks, int32 (n, k), and the carry after them."""
        if not self.closed:
            quotas, carries = quota_fast_forward.quota_rows(
                self.shares, self._inner(carry), start, num_chunks
            )
            return quotas, self._outer(carries[-1])
        before, after = self._carries(np.arange(start, start + num_chunks))
        return quota.quotas_between(self.shares, before, after), self._outer(after[-1])

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
        if num_chunks < 0:
            return False
        unit, wide = int(self.shares.unit), self._inner(carry).astype(np.int64)
        if wide.min() <= -unit or wide.max() >= 2 * unit or wide.sum():
            return False
        owed = num_chunks % unit * self.shares.rem.astype(np.int64) - wide
        if self._start is not None:
            owed += self._start
        return not (owed % unit).any()


class VirtualTimeQuotas(VirtualTime):
    """Quotas of the chunks that the draws of virtual time are dealt to. States carry nothing."""

    closed = True
    exact_ends = True

    def followed_by(
        self, num_chunks: int, units: Sequence[int], first_units: Sequence[int], drawn: np.ndarray
    ) -> VirtualTimeQuotas:
        """The quotas after a change of weights, with what components are ahead or behind by then.

        Args:
          num_chunks: Chunks up to the change.
          units: Weights from there on, of all components.
          first_units: Those of the run's beginning, which rank the components.
          drawn: int64 (k,), samples of each component drawn before the change.
        """
        phases = phases_of(integer_weights(first_units)[0])
        owed = self.owed_after(num_chunks * self.chunk_size, phases)
        return VirtualTimeQuotas(units, self.chunk_size, self.costs, drawn, owed)

    def rows(self, chunks: np.ndarray) -> Rows:
        """Many chunks (n,) at once."""
        ends, place = np.unique(np.concatenate([chunks, chunks + 1]), return_inverse=True)
        drawn = self.drawn_before(ends)
        before, after = (drawn[one] for one in place.reshape(2, -1))
        carry = np.zeros((chunks.size, 0), dtype=np.int32)
        return Rows(chunks, carry, before, (after - before).astype(np.int32))

    def stretch(
        self, carry: np.ndarray, start: int, num_chunks: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quotas of consecutive chunks, int32 (n, k), and the empty carry."""
        return self.quotas_of(np.arange(start, start + num_chunks)), carry

    def is_possible(self, num_chunks: int, carry: np.ndarray) -> bool:
        """True for the empty carry."""
        return num_chunks >= 0 and carry.size == 0
