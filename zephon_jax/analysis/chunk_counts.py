"""A run in stretches of chunks with their quotas, many at a time and without samples.

What `next_chunk` draws one chunk at a time is worked out here for thousands: in closed form where
the mixture has one, and by following its rare components alone where it has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.data.token_estimation import TOKEN_UNIT
from zephon_jax.kernels import quota
from zephon_jax.kernels import quota_fast_forward as rare
from zephon_jax.kernels.virtual_time import VirtualTime
from zephon_jax.mixture.allocation import Allocation
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.positions import UNCAPPED, Position
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.checks import first_states, never_ends
from zephon_jax.sources.work_source import WorkSource

__all__ = ["Stretch", "stretches"]

_BLOCK = 8192  # chunks worked out together, at most:
_NUMBERS = 1 << 21  # chunks x components worked out together
_MOST_WALKED = 1_000_000  # chunks after which a source without an index counts as endless


class Stretch(NamedTuple):
    """Consecutive chunks that stand for the same shares."""

    first_chunk: int
    counts: np.ndarray  # int64 (n, k), samples of each component in each chunk
    lane: np.ndarray  # int64 (n,), the lane of each chunk
    target: np.ndarray  # float64 (k,), shares that sum to 1
    # What the shares are shares of where that is tokens, float64 (n, k); None for samples.
    tokens: np.ndarray | None = None
    # Components that give nothing more after these chunks, or because of which the run ends there.
    gone: tuple[str, ...] = ()
    seed: int | None = None  # the seed of a chunk that has no index of its own
    ended: bool = False  # True where the run ends with these chunks


def stretches(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[Stretch]:
    """Goes through the first chunks of a run, or all of it.

    Args:
      source: Any source.
      num_chunks: Chunks to go through, of all lanes together; None for the whole run.
      num_lanes: Lanes that the chunks are dealt to.

    Raises:
      ValueError: If the whole of an endless run is asked for.
    """
    if num_chunks is None and never_ends(source):
        raise ValueError(f"{source!r} never ends: say how far to look with num_chunks=.")
    # A subclass with chunks of its own is stepped through like any other source.
    if getattr(type(source), "next_chunk", None) is StaticMixtureWorkSource.next_chunk:
        assert isinstance(source, StaticMixtureWorkSource)
        return _of_mixture(source, num_chunks, num_lanes)
    return _by_stepping(source, num_chunks, num_lanes)


def _of_mixture(
    source: StaticMixtureWorkSource, num_chunks: int | None, num_lanes: int
) -> Iterator[Stretch]:
    eras, knobs = source.eras, source.knobs
    position = eras.start()
    costs = None if source.token_estimation is None else eras.rules.costs
    if eras.ended(position):
        yield Stretch(0, *_nothing(len(knobs.names)), ended=True)
        return
    while num_chunks is None or position.chunk_index < num_chunks:
        first = position.chunk_index
        most = max(1, min(_BLOCK, _NUMBERS // len(knobs.names)))
        most = most if num_chunks is None else min(most, num_chunks - first)
        target = np.asarray(list(source.run.target_at(position).values()), dtype=np.float64)
        counts, after, gone = _next_rows(eras, position, most)
        tokens = None if costs is None else _tokens(costs, position.drawn, counts)
        chunk = np.arange(first, first + len(counts))
        lane = source.lanes_of_chunks(chunk, num_lanes)
        names = tuple(knobs.names[d] for d in np.flatnonzero(gone))
        ended = after is None or eras.ended(after)
        yield Stretch(first, counts, lane, target, tokens, names, ended=ended)
        if after is None or ended:
            return
        position = after


def _tokens(costs: Sequence[Any], before: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Tokens in each chunk, as far as they are known: float64 (n, k)."""
    drawn = before + np.concatenate([np.zeros_like(counts[:1]), np.cumsum(counts, axis=0)])
    tokens = np.zeros(counts.shape)
    for d in np.flatnonzero(counts.any(axis=0)).tolist():
        tokens[:, d] = np.diff(costs[d].spent(drawn[:, d])) / TOKEN_UNIT
    return tokens


def _nothing(num_components: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, lanes and target of no chunk at all."""
    none = np.zeros((0, num_components), dtype=np.int64)
    return none, none[:, 0], np.zeros(num_components)


def _next_rows(
    eras: Eras, start: Position, most: int
) -> tuple[np.ndarray, Position | None, np.ndarray]:
    """Counts of up to so many chunks of one era, (n, k), with the position after them.

    The position is None where the run has ended. The last result says which components leave, or
    end the run: bool (k,).
    """
    rules, era = eras.rules, start.era
    nobody = np.zeros_like(era.active)
    assert era.allocation is not None  # the run has not ended
    since = start.chunk_index - era.first_chunk
    quotas, carry = _quotas(era.allocation, start.carry, since, most)
    drawn = start.drawn + np.concatenate([np.zeros_like(quotas[:1]), np.cumsum(quotas, axis=0)])
    leaving = era.active & rules.leaves
    left = leaving & (drawn[1:] >= rules.totals)
    departs = left.any(axis=1)
    num_rows = int(departs.argmax()) + 1 if departs.any() else most
    over = _over(eras, start, drawn[:-1], quotas)[:num_rows]
    ended = over.all(axis=1) if rules.passes is not None else over.any(axis=1)
    if ended.any():
        end = int(ended.argmax())
        return quotas[:end], None, nobody if rules.passes is not None else over[end]
    chunk_index = start.chunk_index + num_rows
    if not departs.any():
        return quotas, Position(chunk_index, era, carry, drawn[-1]), nobody
    # The chunk in which somebody leaves is short where its quota was more than what was left.
    before, quota_ = drawn[num_rows - 1], quotas[num_rows - 1]
    given = np.where(leaving, np.minimum(quota_, rules.totals - before), quota_)
    counts = np.concatenate([quotas[: num_rows - 1], given[None]])
    zero = np.zeros_like(start.carry)
    after = eras.resume(chunk_index, chunk_index, zero, before + given)
    return counts, after, left[num_rows - 1]


def _over(eras: Eras, start: Position, before: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """Components that would end the run before a chunk: bool (n, k).

    One is enough, but with `passes`, where all have to have had theirs.
    """
    rules, active = eras.rules, start.era.active
    if rules.passes is not None:
        return ~active | (before >= rules.passes * rules.totals)
    capped = active & (rules.caps != UNCAPPED)
    return capped & (before + quotas > rules.caps)


def _quotas(
    allocation: Allocation | VirtualTime, carry: np.ndarray, since: int, num_chunks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Quotas of consecutive chunks of an era, int64 (n, k), and the carry after them."""
    if isinstance(allocation, VirtualTime):
        quotas = allocation.quotas_of(np.arange(since, since + num_chunks))
        return quotas.astype(np.int64), carry
    shares = allocation.shares
    if allocation.closed:
        carries = quota.steady_carry(shares, np.arange(since, since + num_chunks + 1))
        quotas, carries = quota.quotas_between(shares, carries[:-1], carries[1:]), carries[1:]
    else:
        quotas, carries = rare.quota_rows(shares, carry, since, num_chunks)
    return quotas.astype(np.int64), carries[-1]


def _by_stepping(source: WorkSource, num_chunks: int | None, num_lanes: int) -> Iterator[Stretch]:
    """The same for any source, a block of lanes at a time."""
    place = {name: d for d, name in enumerate(source.component_ids())}
    gone: set[str] = set()
    states = first_states(source, num_lanes)
    block, more = 0, False
    while states and (num_chunks is None or block * num_lanes < num_chunks):
        if block * num_lanes >= _MOST_WALKED and num_chunks is None:
            raise ValueError(
                f"{type(source).__name__} did not end within {_MOST_WALKED:,} chunks: say how far"
                " to look with num_chunks=."
            )
        found = []
        for lane, state in list(states.items()):
            chunk, after = source.next_chunk(state)
            if chunk is None:
                del states[lane]
                continue
            states[lane] = after
            dealt = block * num_lanes + lane
            index = dealt if chunk.chunk_index is None else chunk.chunk_index
            if num_chunks is None or index < num_chunks:
                found.append((index, lane, chunk))
            else:
                more = True
        for index, lane, chunk in sorted(found, key=lambda one: one[:2]):
            counts = np.zeros((1, len(place)), dtype=np.int64)
            target = np.zeros(len(place))
            for name, count in zip(chunk.names, chunk.counts.tolist(), strict=True):
                counts[0, place[name]] = count
            for name, share in chunk.target_mixture.items():
                target[place[name]] = share
            new = tuple(name for name in chunk.source_exhausted if name not in gone)
            gone.update(new)
            seed = chunk.seed if chunk.chunk_index is None else None
            yield Stretch(index, counts, np.asarray([lane]), target, None, new, seed)
        block += 1
    if not more and all(source.next_chunk(state)[0] is None for state in states.values()):
        yield Stretch(0, *_nothing(len(place)), ended=True)
