"""What to look at in a simulated run: a line for each thing, as `Simulation.warnings` has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zephon_jax._text import counted, listed, some
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.sources.work_source import WorkSource

__all__ = ["warnings_of"]

_STARVED = 4  # a lane with less than a fourth of its even part of a component is starved
_FAR = 4  # datasets whose passes differ by this factor have weights far from their sizes
_TOLD = 4  # components of which the same thing is told in full; the others are named
_ENOUGH = 16  # samples a lane: below, uneven parts are no wonder


def warnings_of(
    run: Simulation, source: WorkSource, seeds: Mapping[int | None, int]
) -> Iterator[str]:
    """Says what a run should be looked at for.

    Args:
      run: The run.
      source: The source that was simulated.
      seeds: Chunks by seed, for chunks that have no index of their own.
    """
    yield from _first(list(_never_drawn(run)), "not drawn in the run either")
    yield from _ends(run)
    if run.num_lanes > 1 and run.num_chunks:
        if empty := np.flatnonzero(run.lane_chunks == 0).tolist():
            yield (
                f"{listed('lane', empty)} of {run.num_lanes} got no chunk: the run has"
                f" {counted(run.num_chunks, 'chunk')}. Use smaller chunks or fewer lanes."
            )
        yield from _first(list(_uneven(run, source)), "uneven between lanes too")
    for seed, times in seeds.items():
        if times > 1:
            yield (
                f"{times:,} chunks share seed {seed} and have no chunk_index, so random reading"
                " orders are the same in all of them. Give chunks their chunk_index."
            )
    for place, names in _by_place(source).items():
        if len(names) > 1:
            yield f"{some(names)} read the same place, {place}: each of them gives its samples."


def _first(told: Sequence[tuple[str, str]], of_more: str) -> Iterator[str]:
    """What is told of the first components; the others are only named."""
    yield from (text for _, text in told[:_TOLD])
    if len(told) > _TOLD:
        yield f"{of_more}: {some([repr(name) for name, _ in told[_TOLD:]])}."


def _never_drawn(run: Simulation) -> Iterator[tuple[str, str]]:
    """Components with a share and without a sample, with what to say of each."""
    if not run.num_samples:
        yield "", "nothing is drawn in the run: there is no chunk to draw."
        return
    total = float(run.amounts.sum())
    for d in np.flatnonzero((run.targets > 0).any(axis=0) & (run.first_draw < 0)).tolist():
        share = run.targets[:, d].max()
        yield (
            run.names[d],
            f"{run.names[d]!r} is not drawn in the run: its share of {share:.3g} comes to"
            f" {share * total:.3g} of the {total:,.0f} {run.unit}. Give it a larger weight, or a"
            " longer run.",
        )


def _ends(run: Simulation) -> Iterator[str]:
    """The datasets that ended first and last, and those whose passes are far apart."""
    drawn, used_up = run.lane_draws.sum(axis=0), dict(run.exhausted)
    passes = np.divide(drawn, run.totals, out=np.zeros(drawn.shape), where=run.totals > 0)
    had = [f"{name!r} has had {_passes(passes[d])}" for d, name in enumerate(run.names)]
    left = [had[d] for d, name in enumerate(run.names) if passes[d] and name not in used_up]
    for name, chunk in run.exhausted[:1]:
        if chunk < run.num_chunks - 1:
            yield (
                f"{name!r} ends first, after chunk {chunk:,} of {run.num_chunks:,}; from there on"
                " the others share its part."
            )
    for name, chunk in run.exhausted[-1:]:
        # Where all datasets have ended, the last of them is not why.
        if run.ended and chunk == run.num_chunks - 1 and (left or len(used_up) == 1):
            by_then = f": by then {some(left)}" if left else ""
            yield f"{name!r} ends the run, after chunk {chunk:,}{by_then}."
    if len(passes) > 1 and passes.max() >= _FAR:
        least = int(np.where(drawn > 0, passes, np.inf).argmin())
        if passes.max() >= _FAR * passes[least]:
            many = had[int(passes.argmax())]
            yield f"{many} while {had[least]}: weights and sizes are far apart."


def _passes(number: float) -> str:
    text = f"{number:.3g}"
    return f"{text} pass{'' if text == '1' else 'es'}"


def _uneven(run: Simulation, source: WorkSource) -> Iterator[tuple[str, str]]:
    """Components of which lanes get nothing, or much less than an even part, with what to say."""
    even = run.lane_draws.sum(axis=0) / run.num_lanes
    for d, name in enumerate(run.names):
        got = run.lane_draws[:, d]
        never = np.flatnonzero((got == 0) & (run.lane_chunks > 0)).tolist()
        little = np.flatnonzero((got > 0) & (got * _STARVED < even[d])).tolist()
        if even[d] > 0 and never:
            lanes = f"{listed('lane', never)} of {run.num_lanes} never got {name!r}"
            in_all = counted(int(got.sum()), "sample")
            yield name, f"{lanes} ({in_all} in all). {_advice(run, d, source)}"
        elif even[d] >= _ENOUGH and little:
            lanes = f"{listed('lane', little)} of {run.num_lanes} got less than a quarter of an"
            part = f"even part of {name!r} ({even[d]:,.0f} samples)"
            yield name, f"{lanes} {part}. {_advice(run, d, source)}"


def _advice(run: Simulation, component: int, source: WorkSource) -> str:
    if run.lane_draws[:, component].sum() < 2 * run.num_lanes:
        return "There are too few for so many lanes: a longer run or fewer lanes help."
    chunks = np.arange(4 * run.num_lanes)
    lanes = source.lanes_of_chunks(chunks, run.num_lanes)
    if lanes is not None and np.array_equal(lanes, chunks % run.num_lanes):
        return (
            "Its chunks come at steps that fall together with the lanes:"
            " lane_assignment='permute' spreads them."
        )
    return "Smaller chunks, fewer lanes or a longer run even that out."


def _by_place(source: WorkSource) -> dict[str, list[str]]:
    """The names of the datasets that read each place."""
    found: dict[str, list[str]] = {}
    for dataset in source.datasets_by_id.values():
        place = getattr(dataset, "location", None)
        if place is not None:
            found.setdefault(place, []).append(repr(dataset.name))
    return found
