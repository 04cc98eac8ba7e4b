"""Another number of lanes in mid-run, with pipelines that hold something back."""

from __future__ import annotations

import grain
import numpy as np
import pytest
from absl import flags
from support.elastic_runs import (
    assert_same,
    concat_split,
    filtered,
    first_fit,
    hosts,
    in_step,
    merged,
    noisy,
    readable,
    rows,
)

import zephon_jax as zx
from zephon_jax.elastic.relane import RelanedSource, boundary_of
from zephon_jax.pipelines.lane_lengths import lane_lengths
from zephon_jax.sources.stopped import StoppedSource


def delivered(batches, name="x"):
    found = []
    for batch in batches:
        kept = batch[name] if "row_mask" not in batch else batch[name][batch["row_mask"]]
        found += kept.ravel().tolist()
    return found


def whole_run(source, pipeline, per_sample):
    [whole] = hosts(source, 4, pipeline, 1, rows_per_sample=per_sample, pad=True)
    return delivered(zx.synchronized(iter(whole)))


def assert_each_once(got, expected, pipeline):
    if pipeline in (concat_split, first_fit):  # rests are padded elsewhere
        got, expected = [x for x in got if x], [x for x in expected if x]
    assert sorted(got) == sorted(expected)


KINDS = [
    (rows, 1),
    (noisy, 1),
    (rows, None),
    (filtered, None),
    (concat_split, None),
    (first_fit, None),
]


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("new_lanes", [2, 6])
@pytest.mark.parametrize(("pipeline", "per_sample"), KINDS)
def test_every_sample_once_through_a_cut(pipeline, per_sample, new_lanes):
    source = readable((96, 80), (96, 80), chunk_size=4)
    [dataset] = hosts(source, 4, pipeline, 1, rows_per_sample=per_sample)
    iterator = iter(dataset)
    got = delivered(in_step([iterator], 5))
    cut = dataset.relane(iterator.get_state(), new_lanes)
    assert cut.source.begin % 4 == 0
    got += delivered(zx.synchronized(cut.rest))
    [after] = hosts(cut.source, new_lanes, pipeline, 1, rows_per_sample=per_sample, pad=True)
    got += delivered(zx.synchronized(iter(after)))
    assert_each_once(got, whole_run(source, pipeline, per_sample), pipeline)


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize(("pipeline", "per_sample"), KINDS)
def test_cut_after_cut(pipeline, per_sample):
    """4 lanes, then 6, then 1, then 3, each in the middle of what the one before began."""
    whole = source = readable((288, 240), (288, 240), chunk_size=2)
    got, lanes = [], 4
    for new_lanes in (6, 1, 3):
        [dataset] = hosts(source, lanes, pipeline, 1, rows_per_sample=per_sample)
        iterator = iter(dataset)
        got += delivered(in_step([iterator], 3))
        cut = dataset.relane(iterator.get_state(), new_lanes)
        got += delivered(zx.synchronized(cut.rest))
        begin = getattr(source, "begin", 0)
        assert cut.source.begin > begin
        assert (cut.source.begin - begin) % lanes == 0
        source, lanes = cut.source, new_lanes
    [last] = hosts(source, lanes, pipeline, 1, rows_per_sample=per_sample, pad=True)
    got += delivered(zx.synchronized(iter(last)))
    assert_each_once(got, whole_run(whole, pipeline, per_sample), pipeline)


@pytest.mark.parametrize("new_lanes", [2, 6])
def test_hosts_cut_together_and_restore_after_the_cut(tmp_path, new_lanes):
    """With a known schedule all hosts make the same steps without a word between them."""
    source = readable((96, 80), (96, 80), chunk_size=4)
    datasets = hosts(source, 4, rows, 2)
    iterators = [iter(dataset) for dataset in datasets]
    in_step(iterators, 6)
    cuts = [dataset.relane(merged(iterators), new_lanes) for dataset in datasets]
    [alone] = hosts(source, 4, rows, 1)
    expected = alone.relane(merged(iterators), new_lanes)
    rests = [list(cut.rest) for cut in cuts]
    assert len({len(rest) for rest in rests}) == 1
    assert_same(in_step([iter(rest) for rest in rests]), list(expected.rest))
    # The source is made again from the chunk alone, and steps are known and sought as before.
    again = RelanedSource(source, expected.source.begin, new_lanes)
    [one] = hosts(again, new_lanes, rows, 1, pad=True)
    steps = list(hosts(expected.source, new_lanes, rows, 1, pad=True)[0])
    iterator = iter(one)
    assert_same(in_step([iterator], 3), steps[:3])
    zx.save_checkpoint(tmp_path, iterator)
    restored = [iter(d) for d in hosts(again, new_lanes, rows, 2, pad=True)]
    assert [zx.restore_checkpoint(tmp_path, host) for host in restored] == [3, 3]
    assert_same(in_step(restored), steps[3:])
    for step in (0, 5, len(steps)):
        iterator.seek(step)
        assert_same(list(iterator), steps[step:])


@pytest.mark.parametrize(("pipeline", "per_sample"), KINDS)
def test_a_cut_before_the_first_step_and_after_the_last(pipeline, per_sample):
    source = readable((96, 80), (96, 80), chunk_size=4)
    [dataset] = hosts(source, 4, pipeline, 1, rows_per_sample=per_sample, pad=True)
    iterator = iter(dataset)
    cut = dataset.relane(iterator.get_state(), 2)
    expected = whole_run(source, pipeline, per_sample)
    got = delivered(zx.synchronized(cut.rest))
    assert 0 < len(got) < len(expected)
    got += delivered(
        zx.synchronized(
            iter(hosts(cut.source, 2, pipeline, 1, rows_per_sample=per_sample, pad=True)[0])
        )
    )
    assert_each_once(got, expected, pipeline)
    assert delivered(zx.synchronized(iterator)) == expected
    cut = dataset.relane(iterator.get_state(), 2)
    assert list(zx.synchronized(cut.rest)) == []
    assert cut.source.next_chunk(cut.source.init(1, 2))[0] is None


def test_samples_of_cut_sources_are_counted():
    """`chunk_spans` against going through all lanes, with departures before and after cuts."""
    source = readable((37, 81, 20), (1, 1, 1), exhausted_policy="redistribute", chunk_size=7)
    assert len(source.chunk_spans()) > 1
    for begin in (0, 3, 9, 17, 19, 20, 25):
        cuts = [(source, 4), *((RelanedSource(source, begin, n), n) for n in (3, 5))]
        for cut, lanes in cuts:
            for one in (cut, StoppedSource(cut, max(begin, 18))):
                counts = []
                for lane in range(lanes):
                    state, count = one.init(lane, lanes), 0
                    while (drawn := one.next_chunk(state))[0] is not None:
                        count, state = count + len(drawn[0]), drawn[1]
                    counts.append(count)
                spans = one.chunk_spans()
                assert sum(span.num_samples for span in spans) == sum(counts)
                np.testing.assert_array_equal(lane_lengths(one, lanes), counts)


def test_what_cannot_be_cut_is_refused():
    [dataset, _] = hosts(readable(), 4, rows, 2)
    with pytest.raises(ValueError, match=r"lanes \[2, 3\] are missing"):
        boundary_of(dataset.plan, iter(dataset).get_state())
    cut = RelanedSource(readable(), 4, 3)
    with pytest.raises(ValueError, match="cut into 3 lanes; got num_lanes = 4"):
        cut.init(0, 4)
    with pytest.raises(ValueError, match="chunk_index must be at least 4"):
        RelanedSource(cut, 3, 2)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=1)
    [apart] = hosts(readable(), 1, lambda lane: rows(lane).mp_prefetch(options), 1,
                    rows_per_sample=None)  # fmt: skip
    iterator = iter(apart)
    with pytest.raises(ValueError, match="lane 0: how far the pipeline has read is not known"):
        boundary_of(apart.plan, iterator.get_state())
    iterator.close()


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("steps_before_kill", [1, 3])
@pytest.mark.parametrize(("pipeline", "per_sample"), KINDS)
def test_a_kill_on_the_way_to_a_cut_keeps_the_cut(
    tmp_path, pipeline, per_sample, steps_before_kill
):
    """Pipelines read ahead on the way: what they have read by then must not move the cut."""
    source = readable((96, 80), (96, 80), chunk_size=4)
    [dataset] = hosts(source, 4, pipeline, 1, rows_per_sample=per_sample)
    iterator = iter(dataset)
    in_step([iterator], 5)
    cut = dataset.relane(iterator.get_state(), 6)
    rest = zx.synchronized(cut.rest)
    for _ in range(steps_before_kill):
        if next(rest, None) is None:
            break
    zx.save_checkpoint(tmp_path, cut.rest)
    expected = list(rest)
    new = {"rows_per_sample": per_sample, "pad": True}
    [after] = hosts(cut.source, 6, pipeline, 1, **new)

    killed = hosts(source, 4, pipeline, 2, rows_per_sample=per_sample)
    again = [one.relane(zx.read_checkpoint(tmp_path), 6) for one in killed]
    assert {one.source.begin for one in again} == {cut.source.begin}
    [alone] = hosts(source, 4, pipeline, 1, rows_per_sample=per_sample)
    once_more = alone.relane(zx.read_checkpoint(tmp_path), 6)
    assert_same(list(zx.synchronized(once_more.rest)), expected)
    [restored] = hosts(once_more.source, 6, pipeline, 1, **new)
    assert_same(list(zx.synchronized(iter(restored))), list(zx.synchronized(iter(after))))


def test_the_cut_of_another_number_of_lanes_is_refused():
    source = readable((96, 80), (96, 80), chunk_size=4)
    [dataset] = hosts(source, 4, rows, 1)
    state = iter(dataset).get_state()
    with pytest.raises(ValueError, match="ends at chunk 6, inside a block of 4 lanes from chunk 0"):
        dataset.relane({**state, "end": 6}, 2)
