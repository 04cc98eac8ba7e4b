"""What has been read so far, proven from states alone: counts, gaps and doubles.

An order is a function of the chunk, so a state says which samples its lane has read. What all
lanes have read in common is a closed form; only the chunks at the front, which some lanes have
read and others not, are looked into.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zephon_jax._text import counted, listed, visible
from zephon_jax.analysis.chunk_counts import count_chunks
from zephon_jax.analysis.lane_progress import FINISHED, LaneProgress, progress_of
from zephon_jax.analysis.saved_states import SavedState, load_states, read_states
from zephon_jax.analysis.times_seen import times_seen
from zephon_jax.sources.chunk import WorkChunk
from zephon_jax.sources.find_sample import check_sample_id
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.walk import walk
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["Audit", "audit"]

_SHOWN = 24  # components listed in a summary
_MOST_BETWEEN = 1 << 26  # samples of a lane that are looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Audit:
    """What `zx.audit` found out about a run so far."""

    __module__ = "zephon_jax"

    # The source.
    source: WorkSource
    # How far each lane has read, by lane; of the newest dealing, where lanes were cut anew.
    lanes: tuple[LaneProgress, ...]
    # Lanes that no state is of: what they have read is not known and not counted.
    missing: tuple[int, ...]
    # Every chunk before this one has been read, but for those of missing lanes.
    whole_chunks: int
    # Chunks from there on: (chunk, lane, samples read of it, samples in it), by chunk, up to the
    # last of which anything has been read.
    front: tuple[tuple[int, int, int, int], ...]
    # Samples read of each component.
    samples: dict[str, int]
    # Samples of each dataset by the number of times that they have been read.
    seen: dict[str, dict[int, int]]
    # Stretches of chunks that are read twice if all of these states go on: (lane, first, stop).
    doubles: tuple[tuple[int, int, int], ...]
    # What to know about these states, in words.
    notes: tuple[str, ...]
    # Ids of the samples read at the front, int64 (n, 3).
    front_ids: np.ndarray

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Chunks that are not wholly read though a later one is: (chunk, lane)."""
        last = max((chunk for chunk, _, read, size in self.front if read == size), default=-1)
        return tuple((g, n) for g, n, read, size in self.front if read < size and g < last)

    def times_seen(self, sample_id: Sequence[int]) -> int:
        """How often a sample has been read so far.

        Raises:
          TypeError, ValueError: If there is no such sample, or lanes are missing.
        """
        found = check_sample_id(sample_id, self.source.datasets_by_id)
        if self.missing:
            raise ValueError(
                f"what lanes {list(self.missing)} have read is not known: their states are missing."
            )
        whole = self.source.times_read(found, self.whole_chunks)
        return whole + int((self.front_ids == found).all(axis=1).sum())

    def summary(self) -> str:
        """What has been read, in words."""
        begun = sum(1 for *_, read, _ in self.front if read)
        more = len(self.samples) - _SHOWN
        return "\n".join([
            f"{counted(len(self.lanes), 'lane')} {'has' if len(self.lanes) == 1 else 'have'} read"
            f" {counted(sum(self.samples.values()), 'sample')}: the first"
            f" {counted(self.whole_chunks, 'chunk')}"
            + (f", and {begun:,} more in whole or in part" if begun else ""),
            *(
                f"  {visible(name)}: {counted(count, 'sample')}{_times(self.seen.get(name))}"
                for name, count in list(self.samples.items())[:_SHOWN]
            ),
            *([f"and {counted(more, 'more component')}"] if more > 0 else []),
            *(f"! {note}" for note in self.notes),
        ])  # fmt: skip

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return (
            f"<Audit: {counted(len(self.lanes), 'lane')},"
            f" {counted(sum(self.samples.values()), 'sample')} read,"
            f" {counted(len(self.notes), 'note')}; print it for its table>"
        )


def _times(seen: dict[int, int] | None) -> str:
    if not seen:
        return ""
    parts = [f"{count:,} {_often(times)}" for times, count in sorted(seen.items()) if count]
    return "; of the dataset " + ", ".join(parts)


def _often(times: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(times, f"{times} times")


def audit(
    source: WorkSource,
    states: object,
    *,
    step: int | None = None,
    read_config: MixtureReadConfig | None = None,
) -> Audit:
    """Proves from states alone which samples have been read how often so far.

    Args:
      source: The source that the states belong to.
      states: The lanes' states (records, bytes or plain JSON, in a list), an elastic iterator's
        state, or the path of a checkpoint or of a file with one of these.
      step: Which checkpoint of a folder; the newest by default.
      read_config: How chunks are read, where a lane stands inside one. By default lattice for
        elastic states and checkpoints, wherever in `states` they lie, and smooth weighted round
        robin for others; to be given where states of both kinds stand inside a chunk.

    Returns:
      A record; `print` shows it in words.

    Raises:
      TypeError, ValueError: If a state does not belong to the source, naming what differs.
      FileNotFoundError: If there is no such checkpoint.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [100])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10, stop_after_passes=2)
      >>> states = [source.seek(12, lane, 2) for lane in range(2)]
      >>> print(zx.audit(source, states))
      2 lanes have read 120 samples: the first 12 chunks
        toy: 120 samples; of the dataset 80 once, 20 twice
    """
    check_source(source)
    source = source.uncut
    if isinstance(states, (str, os.PathLike)):
        states = load_states(states, step)
    saved = read_states(states)
    config = _way_of_reading(saved.states) if read_config is None else read_config
    kept = _newest(progress_of(source, saved))
    return _audited(source, kept, check_read_config(config))


def _way_of_reading(states: Sequence[SavedState]) -> MixtureReadConfig | None:
    """By lattice, where the states that stand inside a chunk are an elastic iterator's."""
    inside = {state.elastic for state in states if state.slot}
    if len(inside) > 1:
        raise ValueError(
            "some of these states are an elastic iterator's, whose lanes read by lattice, and"
            " others are not and stand inside a chunk too: say with read_config= how chunks are"
            " read (on the command line by 'read' in the configuration's 'run')."
        )
    return MixtureReadConfig(mode="lattice") if inside == {True} else None


class _LaneStates(NamedTuple):
    """States of one dealing of the chunks to lanes, one for each lane."""

    lanes: list[LaneProgress]
    missing: list[int]
    doubles: list[tuple[int, int, int]]
    notes: list[str]


def _newest(found: Sequence[LaneProgress]) -> _LaneStates:
    """The states of the newest dealing, and what to say of the others."""
    if not found:
        raise ValueError("an audit needs the state of a lane at least; got none.")
    origin = max(lane.origin for lane in found)
    newest = sorted(lane for lane in found if lane.origin == origin)
    kinds = sorted({lane.num_lanes for lane in newest})
    if len(kinds) > 1:
        raise ValueError(f"the states are of runs with {kinds} lanes; give those of one run.")
    kept = _LaneStates([], [], [], [])
    for old in sorted(set(found) - set(newest)):
        _set_aside(kept, old, origin, kinds[0])
    for lane, states in itertools.groupby(newest, key=lambda one: one.lane):
        steps = sorted(set(states), key=lambda one: (one.chunk, one.slot))
        for one, other in itertools.pairwise(steps):
            kept.doubles.append((lane, one.chunk, other.chunk))
            kept.notes.append(
                f"lane {lane} is given twice, at chunks {_chunk(one)} and {_chunk(other)}:"
                " whoever goes on from the first reads what lies between again."
            )
        kept.lanes.append(steps[-1])
    kept.missing.extend(set(range(kinds[0])) - {one.lane for one in kept.lanes})
    if kept.missing:
        kept.missing.sort()
        since = f" since chunk {origin:,}" if origin else ""
        kept.notes.append(
            f"there is no state of {listed('lane', kept.missing)} of {kinds[0]}: what was read"
            f" there{since} is not counted."
        )
    return kept


def _set_aside(kept: _LaneStates, old: LaneProgress, origin: int, num_lanes: int) -> None:
    """Says what a state from before a cut means."""
    lane, cut = f"lane {old.lane} of {old.num_lanes}", counted(num_lanes, "lane")
    if old.chunk <= origin:
        kept.notes.append(
            f"{lane}: a state from before the run was cut into {cut} at chunk {origin:,}; it"
            " counts for nothing."
        )
        return
    kept.doubles.append((old.lane, origin, old.chunk))
    kept.notes.append(
        f"{lane} has read past chunk {origin:,}, where the run was cut into {cut}: its chunks from"
        " there on are read twice."
    )


def _chunk(lane: LaneProgress) -> str:
    if lane.chunk == FINISHED:
        return "the end"
    return f"{lane.chunk:,}" + (f" slot {lane.slot:,}" if lane.slot else "")


def _audited(source: WorkSource, kept: _LaneStates, config: MixtureReadConfig) -> Audit:
    lanes, missing = kept.lanes, kept.missing
    chunks = [lane.chunk for lane in lanes]
    end = _num_chunks(source, lanes[0]) if FINISHED in chunks else FINISHED
    whole, stop = min(*chunks, end), min(max(chunks) + 1, end)
    _check_distance(source, lanes, whole, stop)
    front = [one for lane in lanes for one in _front_of(source, lane, whole, stop)]
    front.sort(key=lambda one: one.chunk_index)
    while front and not front[-1].read:
        front.pop()
    names = {name: d for d, name in enumerate(source.component_ids())}
    counts = _counts_before(source, lanes[0], whole, missing)
    ids = [np.zeros((0, 3), dtype=np.int64)]
    for one in front:
        component, read = one.chunk.order(config)
        place = np.asarray([names[name] for name in one.chunk.names])
        counts += np.bincount(place[component[: one.read]], minlength=len(names))
        ids.append(read[: one.read])
    front_ids = np.concatenate(ids)
    return Audit(
        source=source,
        lanes=tuple(lanes),
        missing=tuple(missing),
        whole_chunks=whole,
        front=tuple((one.chunk_index, one.lane, one.read, len(one.chunk)) for one in front),
        samples=dict(zip(names, counts.tolist(), strict=True)),
        seen={} if missing else times_seen(source, whole, [one.chunk for one in front], front_ids),
        doubles=tuple(kept.doubles),
        notes=(*kept.notes, *_out_of_step(lanes)),
        front_ids=front_ids,
    )


def _check_distance(
    source: WorkSource, lanes: Sequence[LaneProgress], whole: int, stop: int
) -> None:
    """Refuses lanes too far apart to look at what lies between, before anything is looked at."""
    low, high = source.drawn_before(whole), source.drawn_before(stop)
    between = 0 if low is None or high is None else int((high - low).sum())
    if between // lanes[0].num_lanes > _MOST_BETWEEN:
        raise _too_far(whole)


def _too_far(first: int) -> ValueError:
    return ValueError(
        f"lanes are too far apart to look at what lies between: more than {_MOST_BETWEEN:,} samples"
        f" a lane from chunk {first:,} to the last that is read."
    )


def _out_of_step(lanes: Sequence[LaneProgress]) -> Iterator[str]:
    """Says where lanes have not made the same number of steps."""
    steps = {lane: ((lane.chunk - lane.origin) // lane.num_lanes, lane.slot) for lane in lanes}
    low, high = min(lanes, key=lambda lane: steps[lane]), max(lanes, key=lambda lane: steps[lane])
    # Where the run has ended, some lanes have had a chunk more.
    if steps[low] != steps[high] and high.chunk != FINISHED:
        yield (
            f"lanes are at different steps: lane {low.lane} is at chunk {_chunk(low)}, lane"
            f" {high.lane} at chunk {_chunk(high)}."
        )


class _FrontChunk(NamedTuple):
    """A chunk that some lanes have come to and others not."""

    chunk_index: int
    lane: int
    read: int  # samples
    chunk: WorkChunk


def _front_of(
    source: WorkSource, lane: LaneProgress, first: int, stop: int
) -> Iterator[_FrontChunk]:
    """A lane's chunks from one that all lanes have come to, up to the last that any is in."""
    start = max(first, lane.origin)
    state = source.seek(start, lane.lane, lane.num_lanes, origin=lane.origin)
    samples = 0
    for step in walk(source, [state], start):
        if step.chunk_index >= stop:
            return
        size = len(step.chunk)
        samples += size
        if samples > _MOST_BETWEEN:
            raise _too_far(first)
        at = step.chunk_index
        read = size if at < lane.chunk else lane.slot if at == lane.chunk else 0
        yield _FrontChunk(at, lane.lane, read, step.chunk)


def _num_chunks(source: WorkSource, lane: LaneProgress) -> int:
    """Chunks in a run that has ended."""
    spans = source.chunk_spans()
    if spans and spans[-1].num_chunks is not None:
        return spans[-1].first_chunk + spans[-1].num_chunks
    return sum(len(part.lane) for part in count_chunks(source, None, lane.num_lanes))


def _counts_before(
    source: WorkSource, lane: LaneProgress, stop: int, missing: Sequence[int]
) -> np.ndarray:
    """Samples of each component in the chunks before one, but for those of missing lanes."""
    drawn = None if missing else source.drawn_before(stop)
    if drawn is not None:
        return drawn
    counts = np.zeros(len(source.component_ids()), dtype=np.int64)
    for part in count_chunks(source, stop, lane.num_lanes):
        owner = part.lane
        if lane.origin:
            first = part.chunks.first_chunk
            chunk = np.arange(first, first + len(owner))
            owner = np.full(chunk.shape, -1)
            cut = chunk >= lane.origin
            owner[cut] = source.lanes_of_chunks(chunk[cut], lane.num_lanes, origin=lane.origin)
        counts += part.chunks.counts[~np.isin(owner, missing)].sum(axis=0)
    return counts
