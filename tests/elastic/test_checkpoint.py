"""Checkpoints: whole or not at all, by any number of hosts, and refused where they do not fit."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import fsspec
import grain
import numpy as np
import pytest
from support.checkpoints import TORN, advanced, lane_files, save_all, tear
from support.elastic_runs import (
    PIPELINES,
    assert_same,
    concat_split,
    first_fit,
    hosts,
    in_step,
    readable,
    rows,
)
from support.saver import dataset_to_save

import zephon_jax as zx
from zephon_jax._checked_json import wrap
from zephon_jax.elastic.checkpoint import save_restore as checkpoint


def folder_of(tmp_path, count=2, steps=3, source=None, pipeline=rows):
    """A checkpoint of four lanes by some hosts: the folder of the step."""
    iterators = advanced(hosts(source or readable(), 4, pipeline, count), steps)
    assert save_all(tmp_path, iterators) == [None] * count
    return tmp_path / f"step_{steps:010d}"


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("kind", PIPELINES)
def test_hosts_of_any_number_save_and_restore(tmp_path, kind):
    pipeline, per_sample = PIPELINES[kind]
    source, settings = readable(), {"global_batch_size": 4, "rows_per_sample": per_sample}
    expected = in_step([iter(d) for d in hosts(source, 4, pipeline, 1, **settings)])
    for step, (before, after) in enumerate([(1, 4), (4, 2), (2, 1), (4, 4)]):
        saved = advanced(hosts(source, 4, pipeline, before, **settings), step)
        assert save_all(tmp_path, saved) == [None] * before
        restored = [iter(d) for d in hosts(source, 4, pipeline, after, **settings)]
        assert [zx.restore_checkpoint(tmp_path, one) for one in restored] == [step] * after
        assert_same(in_step(restored), expected[step:])


def test_one_file_for_each_host_and_a_manifest(tmp_path):
    folder = folder_of(tmp_path, count=4)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 5
    assert names[-1] == "manifest.json"
    held = json.loads((folder / "manifest.json").read_text())["body"]["files"]
    assert sorted(held) == names[:-1]
    assert sorted(held.values()) == [[0], [1], [2], [3]]


def test_size_for_each_lane(tmp_path):
    """At most 1 KB a lane, however large chunks are; packers add what they keep."""
    source = readable((100_000, 60_000), (1, 1), chunk_size=16384, exhausted_policy="repeat")
    [iterator] = advanced(hosts(source, 4, rows, 1), 5)
    assert save_all(tmp_path, [iterator]) == [None]
    size = sum(path.stat().st_size for path in (tmp_path / f"step_{5:010d}").iterdir())
    assert size <= 4 * 1024
    [packed] = advanced(hosts(source, 4, concat_split, 1, rows_per_sample=None), 5)
    files = checkpoint.to_files(packed.get_state())
    assert sum(map(len, files.values())) <= 4 * 1024 + 4 * 256


def test_the_newest_or_the_one_asked_for_and_pruning(tmp_path):
    [dataset] = hosts(readable(), 4, rows, 1)
    expected = list(dataset)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
        zx.save_checkpoint(str(tmp_path), iterator, keep=3)
    unfinished = tmp_path / f"step_{4:010d}" / "manifest.json"
    again = iter(dataset)
    assert zx.restore_checkpoint(tmp_path, again) == 5
    assert zx.restore_checkpoint(tmp_path, again, step=3) == 3
    assert_same(list(again), expected[3:])
    assert sorted(int(p.name[5:]) for p in tmp_path.iterdir()) == [3, 4, 5]
    unfinished.unlink()
    with pytest.raises(FileNotFoundError, match=r"of step 4.*\[3, 5\]"):
        zx.restore_checkpoint(tmp_path, again, step=4)
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        zx.restore_checkpoint(tmp_path / "elsewhere", again)


def steps_in(folder):
    return sorted(int(path.name[5:]) for path in folder.iterdir())


def test_a_run_that_went_back_abandons_what_it_had_saved_later(tmp_path):
    """They stay and are not taken for the newest, until the run comes to their steps again."""
    [dataset] = hosts(readable(), 4, rows, 1)
    expected, iterator = list(dataset), iter(dataset)

    def save_at(step, **settings):
        iterator.seek(step)
        zx.save_checkpoint(tmp_path, iterator, **settings)

    for step in (7, 8, 9):
        save_at(step)
    assert zx.restore_checkpoint(tmp_path, iterator, step=7) == 7
    with pytest.warns(UserWarning, match=r"steps \[7, 8, 9\] in .* abandoned since step 4 was"):
        save_at(4, keep=1)
    assert steps_in(tmp_path) == [4, 7, 8, 9]
    again = iter(dataset)
    assert zx.restore_checkpoint(tmp_path, again) == 4
    assert checkpoint.read_checkpoint(tmp_path)["step"] == 4
    assert zx.restore_checkpoint(tmp_path, again, step=9) == 9
    assert_same(list(again), expected[9:])
    save_at(5)  # says nothing more
    assert zx.restore_checkpoint(tmp_path, again) == 5
    save_at(8)
    assert zx.restore_checkpoint(tmp_path, again) == 8
    assert_same(list(again), expected[8:])
    save_at(10, keep=2)
    assert steps_in(tmp_path) == [8, 10]
    save_at(20)
    with pytest.warns(UserWarning, match="abandoned"):
        save_at(2, keep=1)
    shutil.rmtree(tmp_path / "step_0000000002")
    with pytest.raises(FileNotFoundError, match=r"ones: \[\]. Abandoned ones.*\[8, 10, 20\]"):
        zx.restore_checkpoint(tmp_path, again)


def test_what_others_save_meanwhile_is_not_abandoned(tmp_path):
    """A thread that saves in the background may end after one that began later."""
    [dataset] = hosts(readable(), 4, rows, 1)
    [one] = advanced([dataset], 3)
    state = one.get_state()
    next(one)

    def later_comes_first(tag, text, timeout):
        if "lanes of step 3" in tag:
            zx.save_checkpoint(tmp_path, one)
        return [text]

    zx.save_checkpoint(tmp_path, one, state=state, gather=later_comes_first)
    assert steps_in(tmp_path) == [3, 4]
    assert zx.restore_checkpoint(tmp_path, iter(dataset)) == 4


def test_a_save_whose_pruning_fails_says_that_it_was_saved(tmp_path, monkeypatch):
    from fsspec.implementations.local import LocalFileSystem

    def denied(self, path):
        raise PermissionError(f"not yours: {path}")

    [dataset] = hosts(readable(), 4, rows, 1)
    [iterator] = advanced([dataset], 1)
    zx.save_checkpoint(tmp_path, iterator)
    next(iterator)
    monkeypatch.setattr(LocalFileSystem, "rm_file", denied)
    with pytest.raises(RuntimeError, match=r"step 2 was saved, but older .* not yours"):
        zx.save_checkpoint(tmp_path, iterator, keep=1)
    assert zx.restore_checkpoint(tmp_path, iter(dataset)) == 2


def test_saves_of_one_step_side_by_side(tmp_path):
    """As of a thread that saves in the background: neither takes the other's file away."""
    [iterator] = advanced(hosts(readable(), 4, rows, 1), 1)
    state, errors = iterator.get_state(), []

    def save():
        for _ in range(15):
            try:
                zx.save_checkpoint(tmp_path, iterator, state=state)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    [folder] = tmp_path.iterdir()
    assert sorted(p.name for p in folder.iterdir()) == [*lane_files(folder), "manifest.json"]


def test_hosts_that_do_not_know_of_each_other_save_nothing(tmp_path):
    for dataset, lanes in zip(hosts(readable(), 4, rows, 2), ([2, 3], [0, 1]), strict=True):
        with pytest.raises(RuntimeError, match=rf"lanes \[{lanes[0]}, {lanes[1]}\] are of none"):
            zx.save_checkpoint(tmp_path, iter(dataset))
    assert not list(tmp_path.glob("*/manifest*"))
    states = [iter(dataset).get_state() for dataset in hosts(readable(), 4, rows, 2)]
    with pytest.raises(ValueError, match=r"the state lacks lanes \[2, 3\]"):
        checkpoint.to_files(states[0], range(4))


def test_other_file_systems(tmp_path):
    [dataset] = hosts(readable(), 4, rows, 1)
    [iterator] = advanced([dataset], 2)
    url = f"memory://{tmp_path.name}"
    zx.save_checkpoint(url, iterator, keep=1)
    next(iterator)
    zx.save_checkpoint(url, iterator, keep=1)
    again = iter(dataset)
    assert zx.restore_checkpoint(url, again) == 3
    with pytest.raises(FileNotFoundError):
        zx.restore_checkpoint(url, again, step=2)


def test_a_snapshot_is_not_changed_by_later_steps(tmp_path):
    [dataset] = hosts(readable(), 4, first_fit, 1, rows_per_sample=None)
    expected = list(dataset)
    [iterator] = advanced([dataset], 2)
    snapshot = iterator.get_state()
    next(iterator)
    zx.save_checkpoint(tmp_path, iterator, state=snapshot)
    again = iter(dataset)
    assert zx.restore_checkpoint(tmp_path, again) == 2
    assert_same(list(again), expected[2:])


def test_grains_own_handler_at_an_unchanged_count(tmp_path):
    from etils import epath

    [dataset] = hosts(readable(), 4, concat_split, 1, rows_per_sample=None)
    expected = list(dataset)
    [iterator] = advanced([dataset], 2)
    handler = grain.checkpoint.CheckpointHandler()
    handler.save(epath.Path(tmp_path), iterator)
    again = handler.restore(epath.Path(tmp_path), iter(dataset))
    assert_same(list(again), expected[2:])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("after", [1, 2, 4])
def test_orbax_next_to_a_model(tmp_path, after):
    ocp = pytest.importorskip("orbax.checkpoint")
    from zephon_jax.elastic.checkpoint.orbax import ElasticRestore, ElasticSave

    datasets = hosts(readable(), 4, concat_split, after, rows_per_sample=None)
    [one] = hosts(readable(), 4, concat_split, 1, rows_per_sample=None)
    expected = list(one)
    [iterator] = advanced([one], 2)
    weights = {"w": np.arange(4.0)}
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(2, args=ocp.args.Composite(
            model=ocp.args.StandardSave(weights), data=ElasticSave(iterator)
        ))  # fmt: skip
        manager.wait_until_finished()
        restored = [iter(dataset) for dataset in datasets]
        for host in restored:
            found = manager.restore(2, args=ocp.args.Composite(
                model=ocp.args.StandardRestore(weights), data=ElasticRestore(host)
            ))  # fmt: skip
            np.testing.assert_array_equal(found["model"]["w"], weights["w"])
    assert_same(in_step(restored), expected[2:])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_orbax_saves_nothing_after_going_back_until_later_steps_are_deleted(tmp_path):
    """As the guide says: its manager wants steps in order, and restores the highest."""
    ocp = pytest.importorskip("orbax.checkpoint")
    from zephon_jax.elastic.checkpoint.orbax import ElasticRestore, ElasticSave

    [dataset] = hosts(readable(), 4, rows, 1)
    expected, iterator = list(dataset), iter(dataset)
    with ocp.CheckpointManager(tmp_path / "run") as manager:

        def save(step):
            iterator.seek(step)
            saved = manager.save(step, args=ocp.args.Composite(data=ElasticSave(iterator)))
            manager.wait_until_finished()
            return saved

        assert [save(2), save(5)] == [True, True]
        assert save(3) is False
        manager.delete(5)
        assert save(3) is True
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        assert manager.latest_step() == 3
        manager.restore(3, args=ocp.args.Composite(data=ElasticRestore(iterator)))
    assert_same(list(iterator), expected[3:])


def test_orbax_handler_of_many_hosts(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    from etils import epath

    from zephon_jax.elastic.checkpoint.orbax import ElasticHandler, ElasticRestore, ElasticSave

    handler, folder = ElasticHandler(), epath.Path(tmp_path)
    saved = advanced(hosts(readable(), 4, rows, 4), 3)
    for iterator in saved[1:]:
        handler.save(folder, args=ElasticSave(iterator))
    with pytest.raises(ValueError, match=r"lanes \[0\] are in none"):
        handler.finalize(folder)
    handler.save(folder, args=ElasticSave(saved[0]))
    handler.finalize(folder)
    restored = [iter(d) for d in hosts(readable(), 4, rows, 2)]
    for iterator in restored:
        assert handler.restore(folder, args=ElasticRestore(iterator)) is iterator
    assert_same(in_step(restored), in_step(saved))
    with pytest.raises(TypeError, match="got list"):
        handler.save(folder, args=ElasticSave([]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_orbax_v1_saves_the_iterator_itself(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    from orbax.checkpoint.experimental import v1 as ocp

    [one] = hosts(readable(), 4, rows, 1)
    expected = list(one)
    [iterator] = advanced([one], 2)
    response = ocp.save_checkpointables_async(
        tmp_path / "run", {"model": {"w": np.arange(4.0)}, "data": iterator}
    )
    next(iterator)  # the save has its own snapshot
    response.result()
    restored = [iter(d) for d in hosts(readable(), 4, rows, 2)]
    for host in restored:
        ocp.load_checkpointables(tmp_path / "run", {"data": host})
    assert_same(in_step(restored), expected[2:])


def test_restoring_does_not_grow_with_progress(tmp_path):
    source = readable((4000, 2000), (3, 2), chunk_size=64, exhausted_policy="repeat")
    [dataset] = hosts(source, 4, rows, 1)
    took = {}
    for step in (10, 100_000):
        iterator = iter(dataset)
        iterator.seek(step)
        zx.save_checkpoint(tmp_path, iterator)
    for _ in range(7):
        for step in (10, 100_000):
            again = iter(hosts(readable((4000, 2000), (3, 2), chunk_size=64,
                                        exhausted_policy="repeat"), 4, rows, 1)[0])  # fmt: skip
            start = time.perf_counter()
            assert zx.restore_checkpoint(tmp_path, again, step=step) == step
            next(again)
            took.setdefault(step, []).append(time.perf_counter() - start)
            again.close()
    assert min(took[100_000]) <= 1.5 * min(took[10]) + 0.002


# What is refused


def refused(folder, match, iterator=None, error=ValueError):
    iterator = iterator or iter(hosts(readable(), 4, rows, 1)[0])
    before = iterator.get_state()
    with pytest.raises(error, match=match):
        zx.restore_checkpoint(folder.parent, iterator)
    assert iterator.get_state() == before


def replaced(folder, name, data):
    """Puts other content into a file of a checkpoint."""
    (folder / name).write_bytes(data)


def test_a_missing_lane(tmp_path):
    folder = folder_of(tmp_path)
    name = lane_files(folder)[1]
    (folder / name).unlink()
    refused(folder, rf"lanes \[2, 3\] are missing: .*{name}")
    path = folder / "manifest.json"
    body = json.loads(path.read_text())["body"]
    del body["files"][name]
    path.write_bytes(wrap("zephon_jax checkpoint", body))
    refused(folder, r"lanes \[2, 3\] are in none of the files")


def test_two_manifests(tmp_path):
    folder = folder_of(tmp_path)
    shutil.copy(folder / "manifest.json", folder / "manifest (1).json")
    refused(folder, r"two manifests, \['manifest \(1\).json', 'manifest.json'\]")
    (folder / "manifest (1).json").unlink()
    shutil.copytree(folder, tmp_path / "step_3")
    refused(folder, "two checkpoints of step 3")
    [iterator] = advanced(hosts(readable(), 4, rows, 1), 2)
    with pytest.warns(UserWarning, match=r"steps \[3, 3\] in .* abandoned since step 2"):
        zx.save_checkpoint(tmp_path, iterator)  # what lies about does not keep a run from saving


def test_a_file_of_another_run_or_step(tmp_path):
    folder = folder_of(tmp_path / "a")
    name = lane_files(folder)[1]
    other = folder_of(tmp_path / "b", source=readable(seed=7))
    replaced(folder, name, (other / lane_files(other)[1]).read_bytes())
    refused(folder, rf"lanes \[2, 3\] in .*{name} are of another run")
    later = folder_of(tmp_path / "c", steps=4)
    replaced(folder, name, (later / lane_files(later)[1]).read_bytes())
    refused(folder, rf"lanes \[2, 3\] in .*{name} are of another step \(4\)")
    refused(other, "lane 0: .*other seed")


def test_files_that_were_cut_or_changed(tmp_path):
    folder = folder_of(tmp_path)
    name = lane_files(folder)[0]
    whole = (folder / name).read_bytes()
    for bad in (whole[:-9], b"", b"{}", whole.replace(b'"step":3', b'"step":4')):
        replaced(folder, name, bad)
        refused(folder, rf"{name} \(lanes \[0, 1\]\) is not a file of")
    replaced(folder, name, whole)
    replaced(folder, "manifest.json", b"{")
    refused(folder, "manifest.json is not a file of")


def check_torn(url, what, **options):
    """Saves steps 1 and 2, tears 2, and restores on other hosts: all take 1 and say so."""
    source = readable()
    expected = list(hosts(source, 4, rows, 1)[0])
    saving = [iter(dataset) for dataset in hosts(source, 4, rows, 2)]
    for _ in range(2):
        in_step(saving, 1)
        assert save_all(url, saving, **options) == [None, None]
    fs, root = fsspec.core.url_to_fs(url, **options.get("storage_options", {}))
    name = tear(fs, f"{root}/step_0000000002", what)
    restored = [iter(dataset) for dataset in hosts(source, 4, rows, 4)]
    for one in restored:
        with pytest.warns(UserWarning, match=rf"step 1 is taken instead .*step_0000000002/{name}"):
            assert zx.restore_checkpoint(url, one, **options) == 1
        with pytest.raises(ValueError, match=f"step_0000000002/{name}"):
            zx.restore_checkpoint(url, one, step=2, **options)
    assert_same(in_step(restored, 3), expected[1:4])
    assert save_all(url, restored, step=2, **options) == [None] * 4  # over the torn one
    again = iter(hosts(source, 4, rows, 1)[0])
    assert zx.restore_checkpoint(url, again, **options) == 2
    assert_same([next(again)], [expected[4]])


@pytest.mark.parametrize("what", TORN)
def test_a_torn_checkpoint_is_passed_over_where_no_step_is_asked_for(tmp_path, what):
    check_torn(f"memory://{tmp_path.name}", what)


def test_where_all_are_torn_the_newest_is_named(tmp_path):
    folder = folder_of(tmp_path)
    shutil.copytree(folder, tmp_path / "step_0000000002")
    for path in tmp_path.glob("*/manifest.json"):
        path.write_bytes(b"")
    refused(folder, r"step_0000000003/manifest.json is not a file of")


def test_manifests_of_the_first_version_are_read(tmp_path):
    """They do not say how large files are."""
    folder = folder_of(tmp_path)
    path = folder / "manifest.json"
    body = json.loads(path.read_text())["body"]
    assert body.pop("sizes") == {
        name: (folder / name).stat().st_size for name in lane_files(folder)
    }
    assert body["version"] == 2
    path.write_bytes(wrap("zephon_jax checkpoint", {**body, "version": 1}))
    assert zx.restore_checkpoint(tmp_path, iter(hosts(readable(), 4, rows, 1)[0])) == 3
    path.write_bytes(wrap("zephon_jax checkpoint", {**body, "version": 3}))
    refused(folder, r"manifest.json has version 3; this reads up to version 2")


def test_another_pipeline(tmp_path):
    folder = folder_of(tmp_path)
    name = lane_files(folder)[0]
    spec = iter(hosts(readable(), 4, lambda lane: lane.map(lambda e: {"y": e["data"]}), 1)[0])
    assert zx.restore_checkpoint(tmp_path, spec) == 3
    with pytest.raises(ValueError, match=r"rows of another kind.*'x'.*'y'"):
        next(spec)  # the first that reads
    packed = iter(hosts(readable(), 4, first_fit, 1, rows_per_sample=None)[0])
    refused(folder, rf"{name}.*lane 0: the state does not fit the pipeline", packed)


def test_lanes_that_differ_between_files():
    [iterator] = advanced(hosts(readable(), 4, rows, 1), 2)
    state = iterator.get_state()
    other = {**state, "lanes": {**state["lanes"], "1": {"pipeline": {}, "used": 0}}}
    files = {**checkpoint.to_files(state), **checkpoint.to_files(other, [1])}
    with pytest.raises(ValueError, match="lane 1 differs between"):
        checkpoint.from_files(files)
    assert checkpoint.from_files(checkpoint.to_files(state), [2])["lanes"] == {
        "2": state["lanes"]["2"]
    }
    assert checkpoint.to_files(state, []) == {}
    with pytest.raises(ValueError, match="no files"):
        checkpoint.from_files({})


def test_a_host_that_cannot_write_fails_all_of_them(tmp_path):
    iterators = advanced(hosts(readable(), 4, rows, 2), 3)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    errors = save_all(blocked, iterators)
    assert all(isinstance(error, RuntimeError) for error in errors)
    assert all("process 1: " in str(error) for error in errors)


# An object store


@pytest.fixture(scope="module")
def server():
    s3fs = pytest.importorskip("s3fs")
    from support.s3_server import S3Server

    with S3Server() as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        fsspec.filesystem("s3", **running.storage_options).mkdir("runs")
        yield running


def test_checkpoints_in_an_object_store(server):
    options = server.storage_options
    fs, url = fsspec.filesystem("s3", **options), "s3://runs/plain"
    expected = list(hosts(readable(), 4, rows, 1)[0])
    iterators = [iter(dataset) for dataset in hosts(readable(), 4, rows, 2)]
    with pytest.raises(FileNotFoundError, match="no complete checkpoint"):
        zx.restore_checkpoint(url, iterators[0], storage_options=options)
    for step in range(1, 6):
        in_step(iterators, 1)
        assert save_all(url, iterators, keep=2, storage_options=options) == [None, None]
        again = iter(hosts(readable(), 4, rows, 1)[0])
        assert zx.restore_checkpoint(url, again, storage_options=options) == step
    assert_same(list(again), expected[5:])
    kept = sorted(fs.find(url))
    assert [path.split("/")[-2] for path in kept] == ["step_0000000004"] * 3 + [
        "step_0000000005"
    ] * 3

    def crash(tag, text, timeout):
        raise KeyboardInterrupt  # between the lanes and the manifest

    [one] = advanced(hosts(readable(), 4, rows, 1), 7)
    with pytest.raises(KeyboardInterrupt):
        zx.save_checkpoint(url, one, gather=crash, storage_options=options)
    assert len(fs.find(f"{url}/step_0000000007")) == 1
    assert zx.restore_checkpoint(url, again, storage_options=options) == 5
    server.faults.down = True
    with pytest.raises(RuntimeError, match="step 8 was not saved: process 0: "):
        zx.save_checkpoint(url, one, 8, storage_options=options)
    server.faults.down = False
    zx.save_checkpoint(url, one, keep=1, storage_options=options)
    assert zx.restore_checkpoint(url, again, storage_options=options) == 7
    assert_same(list(again), expected[7:])
    assert {path.split("/")[-2] for path in fs.find(url)} == {"step_0000000007"}


@pytest.mark.parametrize("what", ["manifest half", "lanes last"])
def test_a_torn_checkpoint_in_an_object_store(server, what):
    check_torn(f"s3://runs/torn {what}", what, storage_options=server.storage_options)


# SIGKILL


def restore_ours(folder, iterator, options):
    try:
        return zx.restore_checkpoint(folder, iterator, storage_options=options)
    except FileNotFoundError:
        return 0


def restore_orbax(folder, iterator, options):
    """The newest step; the model beside it must be of the same one."""
    import orbax.checkpoint as ocp

    from zephon_jax.elastic.checkpoint.orbax import ElasticRestore

    del options
    with ocp.CheckpointManager(folder) as manager:
        step = manager.latest_step() or 0
        if step:
            found = manager.restore(step, args=ocp.args.Composite(
                model=ocp.args.StandardRestore({"w": np.zeros(4, int)}),
                data=ElasticRestore(iterator),
            ))  # fmt: skip
            assert found["model"]["w"].tolist() == [step] * 4
            assert iterator.get_state()["step"] == step
    return step


@pytest.fixture(scope="module")
def saver():
    """A process that forks off others which save; see saver.py."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
    tests = pathlib.Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-m", "support.saver"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=tests,
    ) as running:  # fmt: skip
        yield running
        assert running.stdin is not None
        running.stdin.close()


LONGEST = {"files": 0.12, "back": 0.12, "orbax": 0.4}  # seconds to a kill: time for some saves
RESTORE = {"files": restore_ours, "back": restore_ours, "orbax": restore_orbax}


def kill_while_saving(saver, kind, folder, kills, seed, options=None):
    """Kills a process that saves all the time, and restores what it has left.

    After each kill the newest checkpoint must be the last step that it reported or, where it was
    saving, the one that it went back to or the new one: saved whole, but killed before it could
    say so. Goes on until a kill has hit a save, however busy the machine is.
    """
    dataset, hits = dataset_to_save(), 0
    drawn, restored = random.Random(seed), [0]
    while len(restored) <= kills or not hits:
        assert len(restored) <= 10 * kills + 50, "no kill has hit a save"
        said = killed(saver, kind, folder, options, drawn.uniform(0.005, LONGEST[kind]))
        reported = [int(line.split()[1]) for line in said if line.startswith("saved")]
        allowed = {reported[-1] if reported else restored[-1]}
        if said and said[-1].startswith("saving"):
            allowed, hits = set(map(int, said[-1].split()[1:])), hits + 1
        iterator, sought = iter(dataset), iter(dataset)
        step = RESTORE[kind](folder, iterator, options)
        assert step in allowed, said
        sought.seek(step)
        assert_same([next(iterator)], [next(sought)])
        iterator.close()
        sought.close()
        restored.append(step)
    assert hits >= kills // 4
    assert restored[-1] >= kills // 2 or kills < 50


def killed(saver, kind, folder, options, seconds):
    """Starts a process that saves, kills it after some time, and returns what it said."""
    print(json.dumps([kind, str(folder), options]), file=saver.stdin, flush=True)
    ready, pid = saver.stdout.readline().split()
    assert ready == "ready"
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGKILL)
    return [line.rstrip() for line in iter(saver.stdout.readline, "ended\n")]


def test_killed_while_saving(saver, tmp_path):
    """Case 82. RLinf PR1469, prime-rl PR1825."""
    kill_while_saving(saver, "files", tmp_path, kills=5, seed=0)


@pytest.mark.slow
def test_killed_while_saving_at_two_hundred_moments(saver, tmp_path):
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    kill_while_saving(saver, "files", tmp_path, kills=200, seed=seed)


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_while_going_back(saver, tmp_path, kills):
    """What is restored is of the run's own line, wherever marking and saving were cut off."""
    kill_while_saving(saver, "back", tmp_path, kills, seed=kills)


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_while_saving_to_an_object_store(saver, server, kills):
    url, options = f"s3://runs/killed {kills} times", server.storage_options
    kill_while_saving(saver, "files", url, kills, seed=1, options=options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_while_orbax_saves(saver, tmp_path, kills):
    pytest.importorskip("orbax.checkpoint")
    kill_while_saving(saver, "orbax", tmp_path / "run", kills, seed=kills)
