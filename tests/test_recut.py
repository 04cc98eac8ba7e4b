"""Another number of lanes in mid-run, with pipelines that hold something back."""

from __future__ import annotations

import pytest
from test_elastic import concat_split, filtered, first_fit, hosts, in_step, noisy, readable, rows

import zephon_jax as zx
from zephon_jax.recut import RecutSource, StoppedSource, boundary_of


def delivered(batches, name):
    found = []
    for batch in batches:
        kept = batch[name] if "row_mask" not in batch else batch[name][batch["row_mask"]]
        found += kept.ravel().tolist()
    return found


@pytest.mark.filterwarnings("ignore:.*stay undelivered")
@pytest.mark.parametrize("new_lanes", [2, 6])
@pytest.mark.parametrize("pipeline", [rows, filtered, concat_split, first_fit, noisy])
def test_every_sample_once_through_a_cut(pipeline, new_lanes):
    source = readable((96, 80), (96, 80), chunk_size=4)
    [dataset] = hosts(source, 4, pipeline, 1, lengths="unknown")
    iterator = iter(dataset)
    got = delivered(in_step([iterator], 5), "x")
    state = iterator.get_state()
    end = boundary_of(dataset, state)
    assert end % 4 == 0
    [rest] = hosts(StoppedSource(source, end), 4, pipeline, 1, lengths="unknown", pad=True)
    up_to = iter(rest)
    up_to.set_state(state)
    got += delivered(zx.in_step(up_to), "x")
    states = [source.seek(end, lane, 4) for lane in range(4)]
    [after] = hosts(RecutSource(source, states, new_lanes), new_lanes, pipeline, 1,
                    lengths="unknown", pad=True)  # fmt: skip
    got += delivered(zx.in_step(iter(after)), "x")
    [whole] = hosts(source, 4, pipeline, 1, lengths="unknown", pad=True)
    expected = delivered(zx.in_step(iter(whole)), "x")
    if pipeline in (concat_split, first_fit):  # rests are padded elsewhere
        got, expected = [x for x in got if x], [x for x in expected if x]
    assert sorted(got) == sorted(expected)


def test_the_boundary_needs_all_lanes():
    [dataset, _] = hosts(readable(), 4, rows, 2)
    with pytest.raises(ValueError, match=r"lanes \[2, 3\] are missing"):
        boundary_of(dataset, iter(dataset).get_state())


def test_cut_sources_refuse_other_lane_counts():
    source = readable()
    cut = RecutSource(source, [source.init(lane, 2) for lane in range(2)], 3)
    with pytest.raises(ValueError, match="cut into 3 lanes; got num_lanes = 4"):
        cut.init(0, 4)
