"""What to look at in a simulated run, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zephon_jax._text import counted, some
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.work_source import WorkSource

__all__ = ["warnings_of"]

_POOR = 4  # a lane that gets less than its even part of a component by this factor is starved
_SAID = 4  # components of which the same thing is said in full
_ENOUGH = 16  # samples a lane: below, uneven parts are no wonder


def _lanes(lanes: Sequence[int], num_lanes: int, verb: str) -> str:
    """Lanes as the subject of a sentence."""
    if len(lanes) == 1:
        return f"lane {lanes[0]} of {num_lanes} {verb}s"
    return f"lanes {some(lanes)} of {num_lanes} {verb}"


def _first(said: Sequence[tuple[str, str]], of_more: str) -> Iterator[str]:
    """What is said of the first components of some; the others are only named."""
    yield from (text for _, text in said[:_SAID])
    if len(said) > _SAID:
        yield f"{of_more}: {some([repr(name) for name, _ in said[_SAID:]])}."


def _never_drawn(record: Simulation) -> Iterator[str]:
    if not record.num_samples:
        yield "nothing is drawn in the run: there is no chunk to draw."
        return
    wanted, total = (record.targets > 0).any(axis=0), float(record.amounts.sum())
    said = []
    for d in np.flatnonzero(wanted & (record.first_draw < 0)).tolist():
        share = record.targets[:, d].max()
        text = (
            f"{record.names[d]!r} is not drawn in the run: its share of {share:.3g} comes to"
            f" {share * total:.3g} of the {total:,.0f} {record.unit}. Give it a"
            " larger weight, or a longer run."
        )
        said.append((record.names[d], text))
    yield from _first(said, "not drawn in the run either")


def _times(passes: float) -> str:
    said = f"{passes:.3g}"
    return "1 pass" if said == "1" else f"{said} passes"


def _ends(record: Simulation) -> Iterator[str]:
    drawn, gone = record.lane_draws.sum(axis=0), dict(record.exhausted)
    left = [
        f"{n!r} has had {_times(drawn[d] / record.totals[d])}"
        for d, n in enumerate(record.names)
        if n not in gone and record.totals[d] and drawn[d]
    ]
    for name, chunk in record.exhausted[:1]:
        if chunk < record.num_chunks - 1:
            yield (
                f"{name!r} ends first, after chunk {chunk:,} of {record.num_chunks:,}; from there"
                " on the others share its part."
            )
    for name, chunk in record.exhausted[-1:]:
        # Where all have ended, the last of them is not why.
        if record.ended and chunk == record.num_chunks - 1 and (left or len(gone) == 1):
            by_then = f": by then {some(left)}" if left else ""
            yield f"{name!r} ends the run, after chunk {chunk:,}{by_then}."
    with np.errstate(divide="ignore", invalid="ignore"):
        passes = np.where(record.totals > 0, drawn / record.totals, 0.0)
    if len(passes) > 1 and passes.max() >= 4 and passes.max() >= 4 * passes[drawn > 0].min():
        most, least = int(passes.argmax()), int(np.where(drawn > 0, passes, np.inf).argmin())
        many, few = (f"{record.names[d]!r} has had {_times(passes[d])}" for d in (most, least))
        yield f"{many} while {few}: weights and sizes are far apart."


def _starved(record: Simulation, dealt_in_turn: bool) -> Iterator[str]:
    if record.num_lanes == 1 or not record.num_chunks:
        return
    empty = np.flatnonzero(record.lane_chunks == 0).tolist()
    if empty:
        yield (
            f"{_lanes(empty, record.num_lanes, 'get')} no chunk:"
            f" {counted(record.num_chunks, 'chunk')} {'is' if record.num_chunks == 1 else 'are'}"
            " too few. Use smaller chunks or fewer lanes."
        )
    yield from _first(list(_uneven(record, dealt_in_turn)), "uneven between lanes too")


def _uneven(record: Simulation, dealt_in_turn: bool) -> Iterator[tuple[str, str]]:
    """Components of which lanes get nothing, or much less than an even part, with what to say."""
    fair = record.lane_draws.sum(axis=0) / record.num_lanes
    for d, name in enumerate(record.names):
        got = record.lane_draws[:, d]
        never = np.flatnonzero((got == 0) & (record.lane_chunks > 0)).tolist()
        poor = np.flatnonzero((got > 0) & (got * _POOR < fair[d])).tolist()
        advice = _advice(record, d, dealt_in_turn)
        if fair[d] > 0 and never:
            who = _lanes(never, record.num_lanes, "never get")
            yield name, f"{who} {name!r} ({counted(int(got.sum()), 'sample')} in all). {advice}"
        elif fair[d] >= _ENOUGH and poor:
            who, even = _lanes(poor, record.num_lanes, "get"), f"({fair[d]:,.0f} samples)"
            yield name, f"{who} less than a quarter of an even part of {name!r} {even}. {advice}"


def _advice(record: Simulation, component: int, dealt_in_turn: bool) -> str:
    if record.lane_draws[:, component].sum() < 2 * record.num_lanes:
        return "There are too few for so many lanes: a longer run or fewer lanes help."
    if dealt_in_turn:
        return (
            "Its chunks come at steps that fall together with the lanes:"
            " lane_assignment='permute' spreads them."
        )
    return "Smaller chunks, fewer lanes or a longer run even that out."


def _shared(source: WorkSource, seeds: Mapping[int | None, int]) -> Iterator[str]:
    for seed, times in seeds.items():
        if times > 1:
            yield (
                f"{times:,} chunks share seed {seed} and have no chunk_index, so random reading"
                " orders are the same in all of them. Give chunks their chunk_index."
            )
    places = Counter(
        place
        for dataset in source.datasets_by_id.values()
        if (place := getattr(dataset, "location", None)) is not None
    )
    for place, times in places.items():
        if times > 1:
            names = [
                repr(d.name)
                for d in source.datasets_by_id.values()
                if getattr(d, "location", None) == place
            ]
            yield f"{some(names)} read the same place, {place}: each of them gives its samples."


def warnings_of(
    record: Simulation, source: WorkSource, seeds: Mapping[int | None, int]
) -> Iterator[str]:
    """Says what a run should be looked at for.

    Args:
      record: The run.
      source: What it was simulated of.
      seeds: Chunks by seed, for chunks that have no index of their own.
    """
    yield from _never_drawn(record)
    yield from _ends(record)
    mixture = isinstance(source, StaticMixtureWorkSource)
    in_turn = mixture and source.knobs.lane_assignment == "modulo"
    yield from _starved(record, in_turn)
    yield from _shared(source, seeds)
