"""A save does nothing to what others keep in its directory, and right to its own run's steps."""

from __future__ import annotations

import json
import os
import pathlib

import fsspec
import pytest
from support.checkpoints import TORN, advanced, lane_files, save_all, tear
from support.elastic_runs import assert_same, hosts, in_step, readable, rows

import zephon_jax as zx
from zephon_jax._checked_json import wrap


def one_host(**settings):
    return hosts(readable(**settings), 4, rows, 1)[0]


def contents(folder):
    """Every file below a folder and what is in it; folders end with a slash."""
    return {
        str(path.relative_to(folder)) + "/" * path.is_dir(): path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


def saved_steps(folder):
    """Steps that have a manifest."""
    return sorted(int(path.parent.name[5:]) for path in folder.glob("*/manifest.json"))


def save_steps(folder, iterator, steps, **settings):
    for step in steps:
        iterator.seek(step)
        zx.save_checkpoint(folder, iterator, **settings)


# What is not ours


STRANGE = [
    "step_000001/model.bin",  # zero padded in another way
    "step_1/manifest.json",
    "step_0000000003/model.bin",  # as ours are, of a step that is not saved
    "step_0000000005/model.bin",  # and of one that is
    "step_0000000005/manifest-of-model.txt",
    "step_7",
    "step_\u0663/model.bin",  # a digit of another script
    "step_4.old/model.bin",
    "model/step_0000000001/model.bin",
]


def test_nothing_that_others_made_is_removed_or_changed(tmp_path):
    for name in STRANGE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "step_0000000002").mkdir()
    dataset = one_host()
    before, expected, iterator = contents(tmp_path), list(dataset), iter(dataset)
    for step in (1, 2, 4, 5, 6, 7, 8):
        save_steps(tmp_path, iterator, [step], keep=2)
        again = iter(dataset)
        assert zx.restore_checkpoint(tmp_path, again) == step
        assert zx.restore_checkpoint(tmp_path, again, step=step) == step
        assert_same([next(again)], [expected[step]])
    after = contents(tmp_path)
    assert before.items() - {("step_0000000002/", False)} <= after.items()
    added = {name.split("/")[0] for name in after.keys() - before.keys()}
    assert added == {"step_0000000007", "step_0000000008"}


def test_a_manifest_of_another_program_is_not_written_over(tmp_path):
    theirs = tmp_path / "step_0000000001" / "manifest.json"
    theirs.parent.mkdir()
    theirs.write_text('{"leaves": 3}')
    iterator = iter(one_host())
    with pytest.raises(RuntimeError, match=r"0000000001/manifest.json is not a manifest of a chec"):
        save_steps(tmp_path, iterator, [1])
    save_steps(tmp_path, iterator, [2, 3], keep=1)
    assert list(contents(tmp_path / "step_0000000001").values()) == [b'{"leaves": 3}']
    assert saved_steps(tmp_path) == [1, 3]


def test_what_a_run_left_incomplete_is_removed_and_what_others_did_is_not(tmp_path):
    mine, other = iter(one_host()), iter(one_host(seed=7))
    for step, iterator in ((1, mine), (2, other)):
        save_steps(tmp_path, iterator, [step])
        (tmp_path / f"step_{step:010d}" / "manifest.json").unlink()
    partial = tmp_path / "step_0000000001" / f"manifest.json.{'0' * 32}.partial"
    partial.write_bytes(b"{")
    save_steps(tmp_path, mine, [3, 4], keep=1)
    assert sorted(os.listdir(tmp_path)) == ["step_0000000002", "step_0000000004"]
    assert len(lane_files(tmp_path / "step_0000000002")) == 1


# Other runs


def test_steps_of_another_run_are_neither_written_over_nor_abandoned_nor_removed(tmp_path):
    first, second = iter(one_host()), iter(one_host(seed=7))
    runs = first.run_id, second.run_id
    save_steps(tmp_path, first, range(1, 7))
    before = contents(tmp_path)
    for step in (1, 2, 6):
        with pytest.raises(RuntimeError, match=f"of another run .{runs[0]}.* is run {runs[1]}: .*"
                           "another directory, or later steps than 6 by step="):  # fmt: skip
            save_steps(tmp_path, second, [step], keep=1)
        assert contents(tmp_path) == before
    save_steps(tmp_path, second, [7, 8, 9], keep=1)
    assert before.items() <= contents(tmp_path).items()
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6, 9]
    before = contents(tmp_path)
    with pytest.raises(RuntimeError, match=rf"steps \[9\] of another run .{runs[1]}"):
        save_steps(tmp_path, first, [8], keep=1)
    assert contents(tmp_path) == before


def test_a_damaged_checkpoint_of_another_run_is_not_written_over(tmp_path):
    """Its lanes say whose it is."""
    save_steps(tmp_path, iter(one_host()), [3])
    (tmp_path / "step_0000000003" / "manifest.json").write_bytes(b"")
    before = contents(tmp_path)
    for step in (2, 3):
        with pytest.raises(RuntimeError, match=r"steps \[3\] of another run"):
            save_steps(tmp_path, iter(one_host(seed=7)), [step])
    assert contents(tmp_path) == before


def test_all_hosts_hear_of_another_run(tmp_path):
    save_steps(tmp_path, iter(one_host()), [3])
    before = contents(tmp_path)
    errors = save_all(tmp_path, advanced(hosts(readable(seed=7), 4, rows, 2), 3))
    assert ["steps [3] of another run" in str(error) for error in errors] == [True, True]
    assert contents(tmp_path) == before


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_a_run_that_was_cut_anew_goes_on_in_its_directory(tmp_path):
    """Its steps count from the cut, so the loop's own count names them."""
    dataset = hosts(readable((96, 80), (96, 80), chunk_size=4), 4, rows, 1)[0]
    iterator = iter(dataset)
    in_step([iterator], 5)
    zx.save_checkpoint(tmp_path, iterator)
    cut = dataset.relane(iterator.get_state(), 6)
    loop = 5 + len(list(cut.rest))
    after = hosts(cut.source, 6, rows, 1, pad=True)[0]
    expected, iterator = list(after), iter(after)
    next(iterator)
    with pytest.raises(RuntimeError, match=r"steps \[5\] of another run"):
        zx.save_checkpoint(tmp_path, iterator)
    for step in (loop + 1, loop + 2, loop + 3):
        zx.save_checkpoint(tmp_path, iterator, step, keep=2)
        again = iter(after)
        assert zx.restore_checkpoint(tmp_path, again) == step
        assert_same(list(again), expected[step - loop :])
        next(iterator)
    assert saved_steps(tmp_path) == [5, loop + 2, loop + 3]


# Whole ones


@pytest.mark.parametrize("what", TORN)
def test_torn_checkpoints_do_not_count_as_kept(tmp_path, what):
    iterators = [iter(dataset) for dataset in hosts(readable(), 4, rows, 2)]
    for step in range(1, 6):
        in_step(iterators, 1)
        assert save_all(tmp_path, iterators, keep=2 if step == 5 else None) == [None, None]
        if step in (3, 4):
            tear(fsspec.filesystem("file"), str(tmp_path / f"step_{step:010d}"), what)
    assert saved_steps(tmp_path) == [2, 5]


def test_what_a_later_release_saved_is_not_removed(tmp_path):
    iterator = iter(one_host())
    save_steps(tmp_path, iterator, [1])
    path = tmp_path / "step_0000000001" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    path.write_bytes(wrap("zephon_jax checkpoint", {**body, "version": 3}))
    save_steps(tmp_path, iterator, [2, 3], keep=1)
    assert saved_steps(tmp_path) == [1, 3]


@pytest.mark.parametrize("version", ["1", None, 2.5, True, 0, 3])
def test_versions_that_are_none(tmp_path, version):
    dataset = one_host()
    save_steps(tmp_path, iter(dataset), [1])
    path = tmp_path / "step_0000000001" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    path.write_bytes(wrap("zephon_jax checkpoint", {**body, "version": version}))
    with pytest.raises(ValueError, match=rf"manifest.json has version {version!r}; this reads"):
        zx.restore_checkpoint(tmp_path, iter(dataset))


def test_a_step_saved_again_leaves_no_files_of_the_time_before(tmp_path):
    dataset = one_host()
    iterator = iter(dataset)
    for _ in range(4):
        next(iterator)
        zx.save_checkpoint(tmp_path, iterator, step=7)
        folder = tmp_path / "step_0000000007"
        assert sorted(os.listdir(folder)) == [*lane_files(folder), "manifest.json"]
        assert len(lane_files(folder)) == 1
    again = iter(dataset)
    assert zx.restore_checkpoint(tmp_path, again) == 7
    assert again.get_state() == iterator.get_state()


# Going back


def marked(folder):
    return sorted(int(path.parent.name[5:]) for path in folder.glob("*/abandoned"))


def test_a_save_that_fails_abandons_nothing(tmp_path):
    iterators = [iter(dataset) for dataset in hosts(readable(), 4, rows, 2)]
    for _ in range(4):
        in_step(iterators, 1)
        assert save_all(tmp_path, iterators) == [None, None]
    for iterator in iterators:
        zx.restore_checkpoint(tmp_path, iterator, 1)
        next(iterator)
    next(iterators[0])
    before = contents(tmp_path / "step_0000000004")
    errors = save_all(tmp_path, iterators, step=2)  # the hosts are at other steps
    assert ["of another step" in str(error) for error in errors] == [True, True]
    assert marked(tmp_path) == []
    assert contents(tmp_path / "step_0000000004") == before
    assert zx.restore_checkpoint(tmp_path, iter(one_host())) == 4


@pytest.mark.filterwarnings("ignore:.*the run went back")
def test_an_abandoned_step_that_the_run_goes_on_from_is_its_own_again(tmp_path):
    dataset = one_host()
    iterator = iter(dataset)
    save_steps(tmp_path, iterator, range(1, 7))
    zx.restore_checkpoint(tmp_path, iterator, 3)
    next(iterator)
    zx.save_checkpoint(tmp_path, iterator)
    assert marked(tmp_path) == [5, 6]
    assert zx.restore_checkpoint(tmp_path, iterator, step=6) == 6
    assert marked(tmp_path) == [5, 6]  # reading changes nothing
    other = iter(dataset)
    zx.restore_checkpoint(tmp_path, other, step=5)
    other.seek(6)  # goes elsewhere
    next(other)
    next(iterator)
    zx.save_checkpoint(tmp_path / "elsewhere", iterator, state=iterator.get_state())
    assert marked(tmp_path) == [5, 6]
    zx.restore_checkpoint(tmp_path, iterator, step=6)
    next(iterator)
    zx.save_checkpoint(tmp_path, iterator)
    zx.save_checkpoint(tmp_path, other)
    assert marked(tmp_path) == [5]
    (tmp_path / "step_0000000007" / "manifest.json").write_bytes(b"")
    with pytest.warns(UserWarning, match="step 6 is taken instead of a later one"):
        assert zx.restore_checkpoint(tmp_path, iter(dataset)) == 6


# Snapshots


def test_snapshots_are_checked_as_states_are_where_they_are_read(tmp_path):
    [iterator] = advanced([one_host()], 3)
    [other] = advanced([one_host(seed=7)], 3)
    state = iterator.get_state()
    lanes = state["lanes"]
    for bad, text in (
        (other.get_state(), "a source with other seed"),
        ({**state, "step": -3}, "step must be at least 0; got -3"),
        ({**state, "step": 2.7}, "step must be an integer; got 2.7"),
        ({**state, "rows": "9"}, "rows must be an integer"),
        ({**state, "num_lanes": 8}, "the state is of 8 lanes; this run has 4"),
        ({**state, "version": True}, "version must be an integer; got True"),
        ({**state, "version": 9}, "the state has version 9"),
        ({**state, "lanes": dict.fromkeys(lanes, "x")}, "lane 0: not the state of a lane"),
        ({**state, "lanes": {**lanes, "2": {"used": 0}}}, "lane 2: not the state of a lane"),
        ({**state, "lanes": {**lanes, "2": {**lanes["2"], "used": -1}}}, "lane 2: -1 rows of a"),
        ({**state, "lanes": {**lanes, "2": {**lanes["2"], "used": 0.5}}}, "lane 2: not the stat"),
        ({**state, "lanes": {"0": lanes["0"]}}, r"the state lacks lanes \[1, 2, 3\]"),
        *(
            ({key: value for key, value in state.items() if key != gone}, gone)
            for gone in ("version", "run", "num_lanes", "step", "rows", "spec", "lanes")
        ),
    ):
        with pytest.raises(RuntimeError, match=f"nothing was saved: process 0: .*{text}"):
            zx.save_checkpoint(tmp_path, iterator, state=bad)
        with pytest.raises(ValueError, match=text):
            iterator.set_state(bad)
    assert list(tmp_path.iterdir()) == []
    assert iterator.get_state() == state
    folder = zx.save_checkpoint(tmp_path, iterator, state={**state, "extra": 1})
    assert pathlib.Path(folder).name == "step_0000000003"


@pytest.mark.filterwarnings("ignore:.*the run went back")
def test_global_batches_go_on_from_an_abandoned_step_and_check_snapshots(tmp_path):
    import jax

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    batches = zx.GlobalBatches(iter(one_host()), sharding)
    save_steps(tmp_path, batches, [2, 4, 3])
    assert marked(tmp_path) == [4]
    zx.restore_checkpoint(tmp_path, batches, step=4)
    next(batches)
    with pytest.raises(RuntimeError, match=r"nothing was saved: process 0: .*at least 0; got -1"):
        zx.save_checkpoint(tmp_path, batches, state={**batches.get_state(), "step": -1})
    assert marked(tmp_path) == [4]
    zx.save_checkpoint(tmp_path, batches, state=batches.get_state())
    assert marked(tmp_path) == []
    assert zx.restore_checkpoint(tmp_path, batches) == 5
