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
from test_elastic import (
    PIPELINES,
    assert_same,
    concat_split,
    first_fit,
    hosts,
    in_step,
    readable,
    rows,
)

import zephon_jax as zx
from zephon_jax import checkpoint
from zephon_jax.lane_files import wrap


class Together:
    """Hosts in threads of one process: everybody's texts, once all have come."""

    def __init__(self, count):
        self.count, self.texts = count, {}
        self.barrier = threading.Barrier(count)
        self.lock = threading.Lock()

    def of(self, host):
        rounds = iter(range(1 << 30))

        def gather(tag, text, timeout):
            turn = next(rounds)
            with self.lock:
                self.texts[turn, host] = text
            try:
                self.barrier.wait(timeout)
            except threading.BrokenBarrierError:
                raise TimeoutError(f"a host did not come to {tag!r}") from None
            return [self.texts[turn, h] for h in range(self.count)]

        return gather


def save_all(folder, iterators, **settings):
    """Saves hosts side by side and returns what each of them raised."""
    together, errors = Together(len(iterators)), [None] * len(iterators)

    def save(h):
        try:
            zx.save_checkpoint(folder, iterators[h], gather=together.of(h), timeout=20, **settings)
        except Exception as error:
            errors[h] = error

    threads = [threading.Thread(target=save, args=(h,)) for h in range(len(iterators))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def advanced(datasets, steps):
    iterators = [iter(dataset) for dataset in datasets]
    for _ in range(steps):
        for iterator in iterators:
            next(iterator)
    return iterators


def folder_of(tmp_path, count=2, steps=3, source=None, pipeline=rows):
    """A checkpoint of four lanes by some hosts: the folder of the step."""
    iterators = advanced(hosts(source or readable(), 4, pipeline, count), steps)
    assert save_all(tmp_path, iterators) == [None] * count
    return tmp_path / f"step_{steps:010d}"


@pytest.mark.filterwarnings("ignore:.*stay undelivered")
@pytest.mark.parametrize("kind", PIPELINES)
def test_hosts_of_any_number_save_and_restore(tmp_path, kind):
    pipeline, lengths = PIPELINES[kind]
    source, settings = readable(), {"global_batch_size": 4, "lengths": lengths}
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
    [packed] = advanced(hosts(source, 4, concat_split, 1, lengths="unknown"), 5)
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


def test_what_was_just_saved_stays_also_where_a_run_went_back(tmp_path):
    [dataset] = hosts(readable(), 4, rows, 1)
    iterator = iter(dataset)
    for step in (7, 8, 9):
        iterator.seek(step)
        zx.save_checkpoint(tmp_path, iterator)
    assert zx.restore_checkpoint(tmp_path, iterator, step=7) == 7
    iterator.seek(4)
    zx.save_checkpoint(tmp_path, iterator, keep=1)
    assert sorted(int(p.name[5:]) for p in tmp_path.iterdir()) == [4, 9]
    assert zx.restore_checkpoint(tmp_path, iter(dataset), step=4) == 4


def test_a_save_whose_pruning_fails_says_that_it_was_saved(tmp_path, monkeypatch):
    from fsspec.implementations.local import LocalFileSystem

    def denied(self, path, recursive=False, maxdepth=None):
        raise PermissionError(f"not yours: {path}")

    [dataset] = hosts(readable(), 4, rows, 1)
    [iterator] = advanced([dataset], 1)
    zx.save_checkpoint(tmp_path, iterator)
    next(iterator)
    monkeypatch.setattr(LocalFileSystem, "rm", denied)
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
    [dataset] = hosts(readable(), 4, first_fit, 1, lengths="unknown")
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

    [dataset] = hosts(readable(), 4, concat_split, 1, lengths="unknown")
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
    from zephon_jax.orbax import ElasticRestore, ElasticSave

    datasets = hosts(readable(), 4, concat_split, after, lengths="unknown")
    [one] = hosts(readable(), 4, concat_split, 1, lengths="unknown")
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


def test_orbax_handler_of_many_hosts(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    from etils import epath

    from zephon_jax.orbax import ElasticHandler, ElasticRestore, ElasticSave

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


def lane_files(folder):
    return sorted(path.name for path in folder.glob("lanes-*"))


def test_a_missing_lane(tmp_path):
    folder = folder_of(tmp_path)
    name = lane_files(folder)[1]
    (folder / name).unlink()
    refused(folder, rf"lanes \[2, 3\] are missing: .*{name}")
    path = folder / "manifest.json"
    body = json.loads(path.read_text())["body"]
    del body["files"][name]
    path.write_bytes(wrap(checkpoint._MANIFEST, body))
    refused(folder, r"lanes \[2, 3\] are in none of the files")


def test_two_manifests(tmp_path):
    folder = folder_of(tmp_path)
    shutil.copy(folder / "manifest.json", folder / "manifest (1).json")
    refused(folder, r"two manifests, \['manifest \(1\).json', 'manifest.json'\]")
    (folder / "manifest (1).json").unlink()
    shutil.copytree(folder, tmp_path / "step_3")
    refused(folder, "two checkpoints of step 3")


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


def test_another_pipeline(tmp_path):
    folder = folder_of(tmp_path)
    name = lane_files(folder)[0]
    spec = iter(hosts(readable(), 4, lambda lane: lane.map(lambda e: {"y": e["data"]}), 1)[0])
    refused(folder, rf"{name}.*rows of another kind.*'x'.*'y'", spec)
    packed = iter(hosts(readable(), 4, first_fit, 1, lengths="unknown")[0])
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
    from s3_server import S3Server

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


# SIGKILL

_SAVER = """
import contextlib, json, sys
sys.path.insert(0, sys.argv[2])
import zephon_jax as zx
from test_elastic import hosts, readable, rows
options = json.loads(sys.argv[3])
source = readable((4000, 2000), (3, 2), chunk_size=64, exhausted_policy="repeat")
iterator = iter(hosts(source, 4, rows, 1)[0])
with contextlib.suppress(FileNotFoundError):
    zx.restore_checkpoint(sys.argv[1], iterator, storage_options=options)
print("ready", flush=True)
while True:
    next(iterator)
    zx.save_checkpoint(sys.argv[1], iterator, keep=3, storage_options=options)
    print("saved", iterator.get_state()["step"], flush=True)
"""

_ORBAX_SAVER = """
import logging, sys
sys.path.insert(0, sys.argv[2])
logging.disable(logging.WARNING)
import numpy as np, orbax.checkpoint as ocp
from zephon_jax.orbax import ElasticRestore, ElasticSave
from test_elastic import hosts, readable, rows
source = readable((4000, 2000), (3, 2), chunk_size=64, exhausted_policy="repeat")
iterator = iter(hosts(source, 4, rows, 1)[0])
with ocp.CheckpointManager(sys.argv[1], options=ocp.CheckpointManagerOptions(
        max_to_keep=3)) as manager:
    if manager.latest_step():
        manager.restore(manager.latest_step(), args=ocp.args.Composite(
            data=ElasticRestore(iterator)))
    print("ready", flush=True)
    while True:
        next(iterator)
        step = iterator.get_state()["step"]
        manager.save(step, args=ocp.args.Composite(
            model=ocp.args.StandardSave({"w": np.full(4, step)}), data=ElasticSave(iterator)))
        manager.wait_until_finished()
        print("saved", step, flush=True)
"""


def restore_ours(folder, iterator, options):
    try:
        return zx.restore_checkpoint(folder, iterator, storage_options=options)
    except FileNotFoundError:
        return 0


def restore_orbax(folder, iterator, options):
    """The newest step; the model beside it must be of the same one."""
    import orbax.checkpoint as ocp

    from zephon_jax.orbax import ElasticRestore

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


def kill_while_saving(folder, kills, seed, *, saver=_SAVER, restore=restore_ours, options=None):
    """Kills a process that saves all the time; returns the step that was restored, each time.

    After each kill the newest checkpoint must be the last step that it reported, or the one after:
    saved whole, but killed before it could say so.
    """
    source = readable((4000, 2000), (3, 2), chunk_size=64, exhausted_policy="repeat")
    [dataset] = hosts(source, 4, rows, 1)
    drawn, restored = random.Random(seed), [0]
    command = [sys.executable, "-c", saver, str(folder), str(pathlib.Path(__file__).parent)]
    for _ in range(kills):
        child = subprocess.Popen(
            [*command, json.dumps(options or {})], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(drawn.uniform(0.005, 0.12))
        child.send_signal(signal.SIGKILL)
        rest = child.communicate(timeout=60)[0].splitlines()
        said = [int(line.split()[1]) for line in rest if line.startswith("saved ")]
        reported = said[-1] if said else restored[-1]
        iterator, sought = iter(dataset), iter(dataset)
        step = restore(folder, iterator, options)
        assert reported <= step <= reported + 1
        sought.seek(step)
        assert_same([next(iterator)], [next(sought)])
        iterator.close()
        sought.close()
        restored.append(step)
    return restored


def test_killed_while_saving(tmp_path):
    assert kill_while_saving(tmp_path, kills=3, seed=0)[-1] > 0


@pytest.mark.slow
def test_killed_while_saving_at_fifty_moments(tmp_path):
    seed = int(np.random.default_rng().integers(1 << 30))
    assert kill_while_saving(tmp_path, kills=50, seed=seed)[-1] > 50


def test_killed_while_saving_to_an_object_store(server):
    kill_while_saving("s3://runs/killed", kills=1, seed=0, options=server.storage_options)


@pytest.mark.slow
def test_killed_while_saving_to_an_object_store_at_twenty_moments(server):
    options = server.storage_options
    assert kill_while_saving("s3://runs/killed more", kills=20, seed=1, options=options)[-1] > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_while_orbax_saves(tmp_path, kills):
    pytest.importorskip("orbax.checkpoint")
    kill_while_saving(
        tmp_path / "run", kills=kills, seed=kills, saver=_ORBAX_SAVER, restore=restore_orbax
    )
