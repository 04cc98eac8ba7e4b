"""Mixtures that are changed in mid-run, through real checkpoints and on other numbers of hosts."""

import json

import numpy as np
import pytest
from support.checkpoints import save_all
from support.elastic_runs import assert_same, first_fit, hosts, in_step, merged, readable, rows

import zephon_jax as zx

PACKED = {"global_batch_size": 8, "rows_per_sample": None}
WEIGHTS = {"d0": 1, "d1": 0, "d2": 3}


def planned():
    return readable((700, 900, 300), [2, 1, 1], chunk_size=20, exhausted_policy="repeat")


def packed(lane):
    def tokens_of(element):
        tokens = np.full(element["data"] % 7 + 2, element["data"], np.int32)
        return {"tokens": tokens, "component_id": element["component_id"]}

    return zx.pack(lane.map(tokens_of), 16, num_bins=4)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("pipeline", [packed, first_fit])
def test_a_run_that_was_changed_and_killed_goes_on_from_its_checkpoint(tmp_path, pipeline, count):
    old = planned()
    running = hosts(old, 8, pipeline, 4, **PACKED)
    before = [iter(d) for d in running]
    found = in_step(before, 12)
    state = merged(before)
    changed = old.with_mixture(WEIGHTS, running[0].boundary(state))
    expected = in_step([iter(d) for d in hosts(changed, 8, pipeline, 4, **PACKED)], 70)
    assert_same(found, expected[:12])  # what was read stays as it was

    going = [iter(d) for d in hosts(changed, 8, pipeline, 4, **PACKED)]
    for iterator in going:
        iterator.set_state(state)
    assert_same(in_step(going, 30), expected[12:42])
    assert save_all(tmp_path, going) == [None] * 4

    # Started again: the script knows the source as it was planned, the checkpoint the rest.
    again = planned().with_changes(zx.read_checkpoint(tmp_path)["changes"])
    after = [iter(d) for d in hosts(again, 8, pipeline, count, **PACKED)]
    assert [zx.restore_checkpoint(tmp_path, one) for one in after] == [42] * count
    assert_same(in_step(after, 28), expected[42:])


def test_a_source_without_the_runs_changes_is_refused_by_name(tmp_path):
    first = planned().with_mixture(WEIGHTS, 16)
    source = first.with_mixture({"d0": 1, "d1": 1, "d2": 1}, 32)
    saved = [iter(d) for d in hosts(source, 8, rows, 1)]
    in_step(saved, 50)
    assert save_all(tmp_path, saved) == [None]
    others = {
        r"change 0 of 2 is \[16, \[1, 0, 3\].*does not have it": planned(),
        r"change 1 of 2 is \[32, \[1, 1, 1\].*does not have it": first,
        r"change 1 of 2 is \[32, \[1, 1, 1\].*has \[40, \[1, 1, 1\]": first.with_mixture(
            {"d0": 1, "d1": 1, "d2": 1}, 40
        ),
    }
    for message, other in others.items():
        (dataset,) = hosts(other, 8, rows, 1)
        iterator = iter(dataset)
        with pytest.raises(ValueError, match=message) as refused:
            zx.restore_checkpoint(tmp_path, iterator)
        assert "with_changes(zx.read_checkpoint(directory)['changes']" in str(refused.value)
        assert iterator.get_state()["step"] == 0


def test_a_state_of_fewer_changes_goes_on_with_more():
    first = planned().with_mixture(WEIGHTS, 16)
    (dataset,) = hosts(first, 8, rows, 1)
    iterator = iter(dataset)
    in_step([iterator], 50)
    state = iterator.get_state()
    at = dataset.boundary(state)
    assert at == 24  # fifty rows of a lane: it is in its third chunk of twenty
    last = first.with_mixture({"d0": 0, "d1": 1, "d2": 0}, at)
    (dataset,) = hosts(last, 8, rows, 1)
    again = iter(dataset)
    again.set_state(state)
    batches = in_step([again], 30)
    assert_same(batches[:10], in_step([iterator], 10))
    assert set(np.concatenate([b["x"] for b in batches[10:]]) // 1000) == {1}
    assert [change[0] for change in again.get_state()["changes"]] == [16, 24]


@pytest.mark.parametrize("at", [8, 11, 15])
def test_a_lane_inside_a_chunk_that_was_changed_is_refused(at):
    """25 rows of a lane are five of its second chunk, one of chunks 8 to 15."""
    old = planned()
    (dataset,) = hosts(old, 8, rows, 1)
    iterator = iter(dataset)
    in_step([iterator], 25)
    state, lane = iterator.get_state(), zx.lanes
    changed = old.with_mixture(WEIGHTS, at)
    (dataset,) = hosts(changed, 8, rows, 1)
    with pytest.raises(ValueError, match=rf"has read 5 samples of chunk .* before chunk {at}"):
        iter(dataset).set_state(state)
    with pytest.raises(ValueError, match="has read 5 samples"):
        zx.audit(changed, state)
    for one in range(8):
        alone = iter(zx.LaneIterDataset(old, one, 8))
        for _ in range(25):
            next(alone)
        again = iter(zx.LaneIterDataset(changed, one, 8))
        if int(lane.chunk_of_lane(1, one, 8, seed=old.seed)) < at:
            again.set_state(alone.get_state())
            assert next(again)["data"] == next(alone)["data"]
        else:
            with pytest.raises(ValueError, match="has read 5 samples"):
                again.set_state(alone.get_state())


@pytest.mark.parametrize("rows_read", [20, 40])
def test_a_change_where_chunks_have_just_ended_goes_on(rows_read):
    old, at = planned(), rows_read // 20 * 8
    (dataset,) = hosts(old, 8, rows, 1)
    iterator = iter(dataset)
    in_step([iterator], rows_read)
    changed = old.with_mixture({"d0": 0, "d1": 0, "d2": 1}, at)
    (dataset,) = hosts(changed, 8, rows, 1)
    again = iter(dataset)
    again.set_state(iterator.get_state())
    assert set(np.concatenate([b["x"] for b in in_step([again], 20)]) // 1000) == {2}


def test_what_a_packer_holds_counts_as_read():
    """Its place is before the chunk; the documents that it passes over are not."""
    old = planned()
    (dataset,) = hosts(old, 2, packed, 1, rows_per_sample=None)
    iterator = iter(dataset)
    refused = 0
    for _ in range(24):
        next(iterator)
        state = iterator.get_state()
        boundary = dataset.boundary(state)
        for at in range(max(boundary - 2, 1), boundary + 1):
            (changed,) = hosts(old.with_mixture(WEIGHTS, at), 2, packed, 1, rows_per_sample=None)
            again = iter(changed)
            try:
                again.set_state(state)
            except ValueError as error:
                assert at < boundary
                refused += "may change" in str(error)
    assert refused > 8


@pytest.mark.parametrize("at", [0, 8, 12, 24])
def test_a_component_switched_on_gives_each_host_the_same_rows(at):
    """Before, at and after the switch, at the start, and inside a block of lanes."""
    old = readable((700, 900, 300), [2, 1, 0], chunk_size=20, exhausted_policy="repeat")
    source = old.with_mixture({"d0": 1, "d1": 1, "d2": 2}, at)
    iterators = [iter(d) for d in hosts(source, 8, rows, 8, global_batch_size=16)]
    drawn = np.zeros(3, dtype=int)
    for _ in range(60):  # 960 samples, 48 chunks
        parts = [next(iterator)["x"] for iterator in iterators]
        assert [len(part) for part in parts] == [2] * 8
        drawn += np.bincount(np.concatenate(parts) // 1000, minlength=3)
    before, after = 20 * at, 960 - 20 * at
    expected = [2 * before / 3 + after / 4, before / 3 + after / 4, after / 2]
    assert np.abs(drawn - expected).max() < 2


def test_changes_past_the_end_and_twice_at_a_place_are_refused():
    finite = readable((100, 100), chunk_size=20, exhausted_policy="stop")
    with pytest.raises(ValueError, match="the run ends at chunk 10 and cannot be changed at 11"):
        finite.with_mixture({"d0": 1, "d1": 0}, 11)
    changed = finite.with_mixture({"d0": 1, "d1": 3}, 4)
    for at in (3, 4):
        with pytest.raises(ValueError, match="was changed at chunk 4, and the next change must"):
            changed.with_mixture({"d0": 1, "d1": 0}, at)


def test_changes_are_those_of_the_run_and_all_of_them():
    new = zx.Dataset.from_source("d3", [3000 + n for n in range(50)])
    changed = planned().with_mixture({**WEIGHTS, "d3": 1}, 16, datasets=[new])
    kept = json.loads(json.dumps(changed.changes))
    again = planned().with_changes(kept, datasets=[new])
    assert zx.encode_state(again.seek(40)) == zx.encode_state(changed.seek(40))
    assert again.changes == changed.changes
    same = changed.with_changes(kept)
    assert zx.encode_state(same.seek(40)) == zx.encode_state(changed.seek(40))
    with pytest.raises(ValueError, match=r"changes\[0\] does not follow"):
        planned().with_changes(kept)  # the new dataset is not there
    with pytest.raises(ValueError, match="changes has 0 entries, and the source was changed 1"):
        changed.with_changes([])
    with pytest.raises(ValueError, match=r"changes\[0\] is .*first_chunk=24.* give the changes"):
        changed.with_changes([[24, *kept[0][1:]]])
