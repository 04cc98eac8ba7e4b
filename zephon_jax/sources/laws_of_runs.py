"""What every source obeys as a whole: lanes, seeks, and what it says of its run in advance."""

# Whatever a source gives is looked at before it is trusted.
# pyright: standard

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from zephon_jax.sources.laws import BrokenLaw, Drawn, Subject, difference

__all__ = ["of_runs"]


def lanes_share_the_run(subject: Subject) -> None:
    """Lanes have each chunk of the one-lane run exactly once, one of each block, in order."""
    run = subject.run
    for place, drawn in enumerate(run):
        if drawn.chunk_index != place:
            raise BrokenLaw(
                f"chunks must be numbered 0, 1, 2 ...; as one lane the source gives"
                f" chunk_index = {drawn.chunk_index} where chunk {place} comes."
            )
    for num_lanes in subject.lanes:
        owner: dict[int, int] = {}
        for lane in range(num_lanes):
            _check_lane(subject, run, lane, num_lanes, owner)
        missing = sorted(set(range(len(run))) - set(owner))
        if missing:
            raise BrokenLaw(
                f"chunks {missing[:8]} of {len(run)} come in no lane of {num_lanes}: a lane stops"
                " too early or leaves them out."
            )


def _check_lane(
    subject: Subject, run: list[Drawn], lane: int, num_lanes: int, owner: dict[int, int]
) -> None:
    name, last = f"lane {lane} of {num_lanes}", -1
    whole = len(run) < subject.num_chunks  # the run ends within what is looked at
    for step, drawn in enumerate(subject.lane(lane, num_lanes)):
        g, chunk = drawn.chunk_index, drawn.chunk
        if g >= len(run) and not whole:
            return
        if g in owner:
            raise BrokenLaw(
                f"chunk {g} comes twice: in lane {owner[g]} and in {name}. Each chunk has one lane."
            )
        if g <= last:
            raise BrokenLaw(f"{name} gives chunk {g} after chunk {last}: a lane's chunks ascend.")
        if g >= len(run):
            raise BrokenLaw(f"{name} gives chunk {g}, and as one lane the run has {len(run)}.")
        if g // num_lanes != step:
            raise BrokenLaw(
                f"{name} gives chunk {g} as its chunk number {step}: each lane has one chunk of"
                f" every {num_lanes} in a row."
            )
        if differs := difference(run[g].chunk, chunk):
            raise BrokenLaw(f"chunk {g} is another one in {name} than in one lane: {differs}.")
        if (chunk.slot, chunk.num_lanes) not in ((g % num_lanes, num_lanes), (0, 1)):
            raise BrokenLaw(
                f"chunk {g} in {name} says slot = {chunk.slot} and num_lanes = {chunk.num_lanes};"
                f" they are {g % num_lanes} and {num_lanes}."
            )
        owner[g], last = lane, g


def seek_is_stepping(subject: Subject) -> None:
    """A seek to any chunk goes on as stepping does."""
    source = subject.source
    for lane, num_lanes in ((0, 1), (subject.lanes[-1] - 1, subject.lanes[-1])):
        most = -(-subject.num_chunks // num_lanes)
        steps = list(islice(subject.lane(lane, num_lanes), most))
        end = len(steps) * num_lanes
        for g in sorted({0, 1, 2, 3, end // 3, end // 2, end - 1, end, end + num_lanes + 1}):
            rest = [drawn for drawn in steps if drawn.chunk_index >= g]
            if g < 0 or (not rest and len(steps) == most):
                continue
            state = source.seek(g, lane, num_lanes)
            found = list(islice(subject.lane(lane, num_lanes, state), 2))
            for place in range(2):
                wanted = rest[place] if place < len(rest) else None
                if wanted is None and len(steps) == most:
                    break
                got = found[place] if place < len(found) else None
                _check_sought(f"seek({g}, {lane}, {num_lanes})", wanted, got)


def _check_sought(call: str, wanted: Drawn | None, got: Drawn | None) -> None:
    if wanted is None or got is None:
        if wanted is not got:
            said, stepped = (
                "the end" if one is None else f"chunk {one.chunk_index}" for one in (got, wanted)
            )
            raise BrokenLaw(f"{call} leads to {said}, stepping to {stepped}.")
        return
    differs = difference(wanted.chunk, got.chunk)
    if wanted.chunk.chunk_index is None and not differs:
        return
    if differs or wanted.chunk_index != got.chunk_index:
        raise BrokenLaw(
            f"{call} leads to chunk {got.chunk_index}, stepping to chunk {wanted.chunk_index}"
            + (f": {differs}." if differs else ".")
        )


def lengths_are_true(subject: Subject) -> None:
    """Sizes and ends that the source says are those of its chunks."""
    source, run = subject.source, subject.run
    size, spans = source.chunk_size_hint(), source.chunk_spans()
    sizes = np.asarray([len(drawn.chunk) for drawn in run], dtype=np.int64)
    if size is not None and len(sizes) and sizes.max() > size:
        g = int(sizes.argmax())
        raise BrokenLaw(f"chunk_size_hint() says {size}, and chunk {g} has {sizes[g]} samples.")
    ended = len(run) < subject.num_chunks
    if spans:
        _check_spans(subject, spans, sizes, ended)
    if source.supports_indexing() and ended and len(source) != sizes.sum():
        raise BrokenLaw(f"len() says {len(source)} samples, and the run has {sizes.sum()}.")


def _check_spans(subject: Subject, spans: Any, sizes: np.ndarray, ended: bool) -> None:
    last = spans[-1]
    if last.num_chunks is None:
        if ended:
            raise BrokenLaw(
                f"chunk_spans() says that the run never ends; it ends after {len(sizes)} chunks."
            )
    else:
        total = last.first_chunk + last.num_chunks
        if (total < subject.num_chunks or ended) and total != len(sizes):
            raise BrokenLaw(
                f"chunk_spans() says {total} chunks; the run has {len(sizes)}"
                f"{'' if ended else ' and more'}."
            )
        if not ended:  # the end is further on: it is looked at by a seek
            for g, there in ((total - 1, True), (total, False)):
                chunk, _ = subject.source.next_chunk(subject.source.seek(g))
                if (chunk is not None) != there:
                    raise BrokenLaw(
                        f"chunk_spans() says {total} chunks, and chunk {g}"
                        f" {'is none' if there else 'is one more'}."
                    )
    for span in spans:
        if span.num_chunks is None or span.first_chunk + span.num_chunks > len(sizes):
            break
        samples = int(sizes[span.first_chunk : span.first_chunk + span.num_chunks].sum())
        if samples != span.num_samples:
            raise BrokenLaw(
                f"chunk_spans() says {span.num_samples} samples in {span.num_chunks} chunks from"
                f" {span.first_chunk} on; they hold {samples}."
            )


def told_lanes_are_true(subject: Subject) -> None:
    """Lanes and counts that the source says in advance are those of its chunks."""
    source, run = subject.source, subject.run
    chunks = np.arange(len(run))
    for num_lanes in subject.lanes:
        told = source.lanes_of_chunks(chunks, num_lanes)
        if told is None:
            break
        for lane in range(num_lanes):
            for drawn in islice(subject.lane(lane, num_lanes), len(run)):
                g = drawn.chunk_index
                if g >= len(run):
                    break
                if told[g] != lane:
                    raise BrokenLaw(
                        f"lanes_of_chunks() says lane {told[g]} of {num_lanes} for chunk {g}, which"
                        f" comes in lane {lane}."
                    )
    place = {name: d for d, name in enumerate(source.component_ids())}
    drawn_before = np.zeros(len(place), dtype=np.int64)
    for g in range(len(run) + 1):
        told = source.drawn_before(g)
        if told is None:
            return
        if not np.array_equal(told, drawn_before):
            raise BrokenLaw(
                f"drawn_before({g}) says {np.asarray(told).tolist()[:8]}; the chunks before hold"
                f" {drawn_before.tolist()[:8]}."
            )
        if g < len(run):
            chunk = run[g].chunk
            for name, count in zip(chunk.names, chunk.counts.tolist(), strict=True):
                drawn_before[place[name]] += count


def samples_by_index(subject: Subject) -> None:
    """Samples by index are those of the chunks in reading order."""
    source = subject.source
    if not source.supports_indexing():
        return
    parts = [drawn.chunk.order()[1] for drawn in subject.run]
    stream = np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts])
    indices = np.arange(len(stream))
    for some in (indices, indices[::-1][::7]):
        found = source.sample_ids_at(some)
        wrong = np.flatnonzero((np.asarray(found) != stream[some]).any(axis=1))
        if len(wrong):
            at = int(wrong[0])
            raise BrokenLaw(
                f"sample {some[at]} by index is {tuple(np.asarray(found)[at].tolist())}, and in the"
                f" chunks {tuple(stream[some[at]].tolist())}."
            )


def exactly_once(subject: Subject) -> None:
    """Each pass has each sample once; where it was claimed, so has the whole run."""
    source, run = subject.source, subject.run
    names, sizes = list(source.component_ids()), source.pass_sizes()
    for d, size in enumerate([] if sizes is None else sizes.tolist()):
        parts = [r.chunk.components[names[d]] for r in run if names[d] in r.chunk.names]
        ids = np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts])
        for begin in range(0, len(ids), max(1, size)):
            one = ids[begin : begin + size]
            if len(np.unique(one, axis=0)) < len(one):
                raise BrokenLaw(
                    f"pass {begin // size} of {names[d]!r} holds a sample twice: {_double(one)}."
                )
    if subject.once:
        _check_once(subject, run)


def _double(ids: np.ndarray) -> tuple[int, ...]:
    found, times = np.unique(ids, axis=0, return_counts=True)
    return tuple(found[times.argmax()].tolist())


def _check_once(subject: Subject, run: list[Drawn]) -> None:
    if len(run) == subject.num_chunks:
        raise BrokenLaw(
            f"exactly_once needs the whole run, and {subject.num_chunks} chunks are not all of it:"
            " give a larger num_chunks or a smaller source."
        )
    parts = [drawn.chunk.order()[1] for drawn in run]
    ids = np.concatenate([np.zeros((0, 3), dtype=np.int64), *parts])
    if len(np.unique(ids, axis=0)) < len(ids):
        raise BrokenLaw(f"sample {_double(ids)} comes more than once in the run.")
    for number, dataset in subject.source.datasets_by_id.items():
        mine = ids[ids[:, 0] == number]
        counts = np.asarray(dataset.shard_counts, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        seen = np.zeros(int(counts.sum()), dtype=bool)
        seen[starts[mine[:, 1]] + mine[:, 2]] = True
        if not seen.all():
            first = int(seen.argmin())
            shard = int(np.searchsorted(starts, first, side="right")) - 1
            raise BrokenLaw(
                f"{(~seen).sum()} of {len(seen)} samples of dataset {dataset.name!r} never come,"
                f" the first of them {(number, shard, first - int(starts[shard]))}."
            )


of_runs = {
    "lanes": lanes_share_the_run,
    "seek": seek_is_stepping,
    "length": lengths_are_true,
    "what is told in advance": told_lanes_are_true,
    "samples by index": samples_by_index,
    "exactly once": exactly_once,
}
