"""A source that gives only what it must gets the same answers as the mixture inside it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.helpers import mixture, state_after
from support.sources import SOURCES, CountSource

import zephon_jax as zx

LATTICE = zx.MixtureReadConfig(mode="lattice")
# The last chunk of a run names every component as used up; closed forms know which one ended it.
OF_MIXTURES = {"bound", "exhausted", "warnings", "reads"}
OF_TOKENS = {"unit", "tokens", "deviation", "deviation_low", "deviation_high"}


class Bare(zx.WorkSource):
    """A source without one optional capability."""

    def __init__(self, source):
        self.source, self.seed = source, source.seed

    def init(self, lane=0, num_lanes=1):
        return self.source.init(lane, num_lanes)

    def next_chunk(self, state):
        return self.source.next_chunk(state)

    def component_ids(self):
        return self.source.component_ids()

    @property
    def datasets_by_id(self):
        return self.source.datasets_by_id


@pytest.fixture(params=SOURCES)
def pair(request):
    source = SOURCES[request.param]()
    return source, Bare(source)


def assert_same(one, other, without=()):
    for field in dataclasses.fields(one):
        if field.name not in without:
            pair = [getattr(record, field.name) for record in (one, other)]
            assert np.array_equal(*pair) or str(pair[0]) == str(pair[1]), field.name


def test_simulate(pair):
    known = pair[0].datasets_by_id
    without = OF_MIXTURES | (OF_TOKENS if pair[0].unit == "tokens" else set())
    for num_chunks, num_lanes in ((None, 1), (None, 3), (7, 4), (0, 2)):
        window = 2 if known and num_chunks != 0 else None
        runs = [zx.simulate(source, num_chunks, num_lanes, window=window) for source in pair]
        assert_same(*runs, without)
        if window is not None:
            assert all(map(np.array_equal, runs[0].reads[2:6], runs[1].reads[2:6]))


def test_audit(pair):
    for steps in ((2, 1, 2), (0, 3, 3), (5,)):
        states = [state_after(pair[0], n, lane, len(steps)) for lane, n in enumerate(steps)]
        audits = [zx.audit(source, states) for source in pair]
        assert_same(*audits, {"source"})
        assert audits[0].gaps == audits[1].gaps
        for sample in audits[0].front_ids[:5].tolist():
            assert audits[0].times_seen(sample) == audits[1].times_seen(sample)


def test_locate(pair):
    ids = pair[0].next_chunk(pair[0].init())[0].order()[1]
    for config in (None, LATTICE):
        for sample in ids[:3].tolist():
            places = [source.locate(sample, 3, read_config=config) for source in pair]
            assert places[0] == places[1]


@pytest.mark.parametrize("num_lanes", [1, 4])
@pytest.mark.parametrize("config", [None, LATTICE])
def test_diff(num_lanes, config):
    source = mixture([900, 300], [3, 1], chunk_size=100)
    for change in ({"seed": 1}, {"chunk_size": 50}, {"exhausted_policy": "stop"}, {}):
        other = source.replace(**change)
        found, bare = (
            zx.diff(*pair, num_lanes=num_lanes, read_config=config)
            for pair in ((source, other), (Bare(source), Bare(other)))
        )
        names = ("same", "chunk", "slot", "first", "second", "lane_chunk")
        for name in names:
            assert getattr(found, name) == getattr(bare, name), (change, name)


def test_plot(pair):
    plot = pytest.importorskip("zephon_jax.analysis.plot")
    figures = [plot.global_batch(source, 2, 3, num_steps=4) for source in pair]
    assert lines_of(figures[0]) == lines_of(figures[1])
    if pair[0].datasets_by_id:
        figures = [plot.positions(source) for source in pair]
        assert lines_of(figures[0]) == lines_of(figures[1])


def lines_of(figure):
    return [line.get_xydata().tolist() for ax in figure.axes for line in ax.get_lines()]


def test_a_source_of_ones_own_from_end_to_end():
    source = CountSource()
    run = zx.simulate(source, num_lanes=3)
    states = [source.seek(run.num_chunks, lane, 3) for lane in range(3)]
    assert sum(zx.audit(source, states).samples.values()) == run.num_samples
    assert zx.diff(source, CountSource()).same
