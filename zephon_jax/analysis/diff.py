"""Whether two runs have the same order, and if not, from where on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, zip_longest
from typing import Any, NamedTuple

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import counted
from zephon_jax.analysis.chunk_counts import count_chunks
from zephon_jax.mixture.fingerprint import differing
from zephon_jax.sources.checks import check_lane, first_states
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["OrderDifference", "SampleName", "diff"]

_LOOKED_AT = 1000  # chunks that are compared sample by sample unless told otherwise
_TOGETHER = 1 << 16  # chunks whose lanes are looked up together
# Settings that change which sample a draw is, or how a chunk is read; the others change counts.
_OF_DRAWS = {
    "order version", "dataset names", "shard counts", "chunk_size", "seed", "shuffle_shards",
    "shuffle_within_shard", "shuffle_block_size", "reshuffle_on_repeat", "read_config",
}  # fmt: skip


class _Way(NamedTuple):
    """How a run is read."""

    config: MixtureReadConfig
    num_lanes: int


class SampleName(NamedTuple):
    """A sample by the name of its dataset: ids of datasets differ between sources."""

    __module__ = "zephon_jax"

    dataset: str
    shard_id: int
    sample_index: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OrderDifference:
    """What `zx.diff` found out about two runs."""

    __module__ = "zephon_jax"

    # True where the order is the same, for the whole of both runs or for `num_chunks`.
    same: bool
    # True where that is known for ever: the settings that decide the order are the same.
    proven: bool
    # Settings that differ, by what states call them; empty where a source cannot say.
    settings: tuple[str, ...]
    # Chunks that were compared.
    num_chunks: int
    # First chunk that differs, and the first place in its reading order that does.
    chunk: int | None = None
    slot: int | None = None
    # What lies there in each run; None where a run, or its chunk, has ended.
    first: SampleName | None = None
    second: SampleName | None = None
    # First chunk that goes to another lane, where lanes were asked for.
    lane_chunk: int | None = None

    def summary(self) -> str:
        """The difference in words."""
        lines = []
        if self.settings:
            lines.append(f"settings that differ: {', '.join(self.settings)}")
        if self.proven:
            lines.append("the order is the same: so are all settings that decide it")
        elif self.chunk is None:
            lines.append(f"no difference in the first {counted(self.num_chunks, 'chunk')}")
        else:
            lines.append(
                f"the order differs from chunk {self.chunk:,} on, slot {self.slot:,}:"
                f" {_said(self.first)} against {_said(self.second)}"
            )
        if self.lane_chunk is not None:
            lines.append(f"lanes differ from chunk {self.lane_chunk:,} on")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"<OrderDifference: same={self.same}, proven={self.proven}, chunk={self.chunk},"
            f" slot={self.slot}; print it for the samples>"
        )


def _said(sample: SampleName | None) -> str:
    if sample is None:
        return "the end"
    return f"sample {sample.sample_index:,} in shard {sample.shard_id:,} of {sample.dataset!r}"


def diff(
    first: WorkSource,
    second: WorkSource,
    num_chunks: int | None = None,
    num_lanes: int = 1,
    *,
    read_config: MixtureReadConfig | None = None,
    second_read_config: MixtureReadConfig | None = None,
) -> OrderDifference:
    """Compares the orders of two runs: the same, or the first difference.

    Args:
      first: A source.
      second: Another one.
      num_chunks: Chunks to compare; by default 1,000 where samples have to be compared one by one,
        and a million where counts tell.
      num_lanes: Lanes, to compare which lane gets each chunk too; the lattice deals by them.
      read_config: How chunks are read; smooth weighted round robin by default.
      second_read_config: How those of the second run are, where that is another way.

    Returns:
      A record; `print` shows it in words.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> import zephon_jax as zx
      >>> sets = [zx.Dataset.from_counts("web", [600]), zx.Dataset.from_counts("toy", [100])]
      >>> source = zx.StaticMixtureWorkSource(sets, {"web": 3, "toy": 1}, chunk_size=100)
      >>> print(zx.diff(source, source.replace(exhausted_policy="stop")))
      settings that differ: exhausted_policy, stop_after_passes
      the order differs from chunk 4 on, slot 0: sample 300 in shard 0 of 'web' against the end
    """
    check_source(first, "first")
    check_source(second, "second")
    num_lanes = check_lane(0, num_lanes)[1]
    if num_chunks is not None:
        num_chunks = as_int(num_chunks, "num_chunks", 0)
    looked_at = _LOOKED_AT if num_chunks is None else num_chunks
    asked = (read_config, read_config if second_read_config is None else second_read_config)
    configs = tuple(dataclasses.replace(check_read_config(one), precompute=False) for one in asked)
    other_ways = () if configs[0] == configs[1] else ("read_config",)
    ways = tuple(_Way(config, num_lanes) for config in configs)
    mine, others = first.fingerprint(), second.fingerprint()
    if mine is None or others is None:
        things, counts_tell = other_ways, False
    else:
        things = (*differing(mine, others), *other_ways)
        counts_tell = not _OF_DRAWS & set(things)
        if not things:
            return OrderDifference(same=True, proven=True, settings=(), num_chunks=0)
    if counts_tell:
        most = 10**6 if num_chunks is None else num_chunks
        found = _by_counts(first, second, most, ways, things)
    else:
        found = _by_samples(first, second, looked_at, ways, things)
    if num_lanes == 1:
        return found
    lanes = (_lanes(source, found.num_chunks, num_lanes) for source in (first, second))
    pairs = enumerate(zip(*lanes, strict=False))
    lane_chunk = next((chunk for chunk, (one, other) in pairs if one != other), None)
    return dataclasses.replace(found, lane_chunk=lane_chunk, same=found.same and lane_chunk is None)


def _lanes(source: WorkSource, num_chunks: int, num_lanes: int) -> Iterator[int]:
    """The lane of each of the first chunks of a run."""
    if source.lanes_of_chunks(np.zeros(0, dtype=np.int64), num_lanes) is None:
        steps = walk(source, first_states(source, num_lanes))
        yield from (step.lane for step in islice(steps, num_chunks))
        return
    for begin in range(0, num_chunks, _TOGETHER):
        chunks = np.arange(begin, min(begin + _TOGETHER, num_chunks))
        lanes = source.lanes_of_chunks(chunks, num_lanes)
        assert lanes is not None
        yield from lanes.tolist()


def _by_counts(
    first: WorkSource,
    second: WorkSource,
    num_chunks: int,
    ways: tuple[_Way, ...],
    things: tuple[str, ...],
) -> OrderDifference:
    """Where each draw is the same sample in both: the first chunk of other counts tells."""
    at = 0
    pair = [_rows(source, num_chunks) for source in (first, second)]
    left = [np.zeros((0, len(first.component_ids())), dtype=np.int64)] * 2
    ended = [False, False]
    while at < num_chunks:
        for n in range(2):
            if not len(left[n]) and not ended[n]:
                left[n] = next(pair[n], left[n])
                ended[n] = not len(left[n])
        size = min(len(left[0]), len(left[1]))
        if not size:
            break
        differs = (left[0][:size] != left[1][:size]).any(axis=1)
        if differs.any():
            at += int(differs.argmax())
            break
        at, left = at + size, [part[size:] for part in left]
    if at >= num_chunks or all(ended):
        return OrderDifference(same=True, proven=False, settings=things, num_chunks=at)
    return _by_samples(first, second, at + 1, ways, things, start=at)


def _rows(source: WorkSource, num_chunks: int) -> Iterator[np.ndarray]:
    parts = (part.chunks.counts for part in count_chunks(source, num_chunks, 1))
    return (counts for counts in parts if len(counts))


def _by_samples(
    first: WorkSource,
    second: WorkSource,
    num_chunks: int,
    ways: tuple[_Way, ...],
    things: tuple[str, ...],
    start: int = 0,
) -> OrderDifference:
    """Compares chunks in reading order, sample by sample."""
    numbers: dict[str, int] = {}  # of datasets, whose ids may differ between the runs
    runs = [
        _numbered(source, start, way, numbers)
        for source, way in zip((first, second), ways, strict=True)
    ]
    none = np.zeros((0, 3), dtype=np.int64)
    at = start - 1
    for at, pair in enumerate(zip_longest(*runs, fillvalue=none), start):
        if at >= num_chunks:
            break
        slot = _first_difference(*pair)
        if slot is not None:
            names = list(numbers)
            here = [
                SampleName(names[rows[slot, 0]], *rows[slot, 1:].tolist())
                if slot < len(rows)
                else None
                for rows in pair
            ]
            return OrderDifference(
                same=False, proven=False, settings=things, num_chunks=at + 1, chunk=at, slot=slot,
                first=here[0], second=here[1],
            )  # fmt: skip
    else:
        at += 1
    return OrderDifference(same=True, proven=False, settings=things, num_chunks=at)


def _first_difference(one: np.ndarray, other: np.ndarray) -> int | None:
    """The first row in which two arrays differ, or the end of one of them."""
    size = min(len(one), len(other))
    differs = np.flatnonzero((one[:size] != other[:size]).any(axis=1))
    if differs.size:
        return int(differs[0])
    return None if len(one) == len(other) else size


def _numbered(
    source: WorkSource, start: int, way: _Way, numbers: dict[str, int]
) -> Iterator[np.ndarray]:
    """The chunks of a run from one on, in reading order: int64 (n, 3).

    Dataset ids give way to numbers of the datasets' names.
    """
    names = {d: getattr(one, "name", str(d)) for d, one in source.datasets_by_id.items()}
    for chunk in _chunks(source, start, way):
        rows = chunk.order(way.config)[1]
        ids, place = np.unique(rows[:, 0], return_inverse=True)
        known = [numbers.setdefault(names.get(d, str(d)), len(numbers)) for d in ids.tolist()]
        yield np.column_stack([np.asarray(known, dtype=np.int64)[place], rows[:, 1:]])


def _chunks(source: WorkSource, start: int, way: _Way) -> Iterator[WorkChunk]:
    """The chunks of a run from one on, of all lanes together."""
    # Only the lattice reads a chunk in another order where there are more lanes.
    num_lanes = way.num_lanes if way.config.mode == "lattice" else 1
    if source.lanes_of_chunks(np.asarray([start]), num_lanes) is None:
        first = [source.seek(start, lane, num_lanes) for lane in range(num_lanes)]
        yield from (step.chunk for step in walk(source, first, start))
        return
    states: dict[int, Any] = {}  # of lanes that were come to: there may be thousands
    for index in count(start):
        lanes = source.lanes_of_chunks(np.asarray([index]), num_lanes)
        lane = 0 if lanes is None else int(lanes[0])
        if lane not in states:
            states[lane] = source.seek(start, lane, num_lanes)
        chunk, states[lane] = source.next_chunk(states[lane])
        if chunk is None:
            return
        yield chunk
