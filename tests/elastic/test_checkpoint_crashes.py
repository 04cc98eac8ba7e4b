"""Saves that are cut off at any call of the file system, and files that name what is not theirs."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import sys

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.checkpoints import advanced, lane_files
from support.elastic_runs import assert_same, hosts, in_step, readable, rows

import zephon_jax as zx
from zephon_jax._checked_json import wrap

CALLS = ("ls", "cat_file", "pipe_file", "rm_file", "rmdir", "makedirs", "exists")


class Died(BaseException):
    """The host is gone: nobody catches it, and nothing is done after it."""


class Mortal:
    """Has memory:// die at a call: before it, or with half of a file put."""

    def __init__(self, patch, torn):
        self.left, self.torn = None, torn
        for name in CALLS:
            patch.setattr(MemoryFileSystem, name, self._counted(getattr(MemoryFileSystem, name)))

    def _counted(self, call):
        def counted(fs, path, *arguments, **settings):
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    if self.left == -1 and self.torn and call.__name__ == "pipe_file":
                        call(fs, path, arguments[0][: len(arguments[0]) // 2])
                    raise Died
            return call(fs, path, *arguments, **settings)

        return counted

    def cut_off(self, calls, save):
        """Saves and dies after so many calls; returns whether the save was cut off."""
        self.left = calls
        try:
            save()
        except Died:
            return True
        finally:
            self.left = None
        return False


@pytest.fixture(params=[False, True], ids=["atomic puts", "torn puts"])
def mortal(request, monkeypatch):
    return Mortal(monkeypatch, request.param)


class Run:
    """A run whose saves go to a folder in memory."""

    def __init__(self, url, states):
        self.url, self.states = url, states
        self.iterator = iter(hosts(readable(), 2, rows, 1)[0])

    def go_to(self, step=None):
        """Restores; returns the step, None where there is no such checkpoint."""
        try:
            found = zx.restore_checkpoint(self.url, self.iterator, step)
        except FileNotFoundError:
            return None
        assert step in (None, found)
        assert self.iterator.get_state() == self.states[found]
        return found

    def save(self, step, keep=None):
        zx.save_checkpoint(self.url, self.iterator, state=self.states[step], keep=keep)


def states_of(num_steps):
    iterator = iter(hosts(readable(), 2, rows, 1)[0])
    return [iterator.get_state(), *((next(iterator), iterator.get_state())[1]
                                    for _ in range(num_steps))]  # fmt: skip


def save_on(run, *steps):
    for step in steps:
        run.save(step)


def back_to_four(run):
    save_on(run, 2, 4, 6, 8)
    run.go_to(4)


def back_and_on(run):
    back_to_four(run)
    save_on(run, 5)


def taking_up_eight(run):
    back_and_on(run)
    run.go_to(8)


# What was saved before, the step that is saved, keep=, and what is restored where that is cut off.
SAVES = {
    "the first": (lambda run: None, 2, None, {None}),
    "the next": (lambda run: save_on(run, 2, 4), 6, None, {4}),
    "pruning": (lambda run: save_on(run, 1, 2, 3, 4), 5, 1, {4}),
    "going back": (back_to_four, 5, None, {8, 4}),
    "to an abandoned step": (back_and_on, 6, None, {5}),
    "past abandoned steps, pruning": (back_and_on, 9, 1, {5}),
    "on from an abandoned step": (taking_up_eight, 9, None, {5}),
}


def gone_to(run, step, torn):
    """The step where it is whole; the one that was being put may be torn."""
    try:
        return run.go_to(step)
    except ValueError as error:
        if not torn or "cut or changed" not in str(error):
            raise
        return None


@pytest.mark.filterwarnings("ignore:.*(the run went back|is taken instead)")
@pytest.mark.parametrize("kind", SAVES)
def test_a_save_cut_off_at_any_call_leaves_the_runs_own_line(mortal, kind, tmp_path):
    prepare, step, keep, before = SAVES[kind]
    states = states_of(10)
    for calls in itertools.count():
        run = Run(f"memory://{tmp_path.name}/{calls}", states)
        prepare(run)
        cut_off = mortal.cut_off(calls, functools.partial(run.save, step, keep))
        held = [n for n in range(1, 10) if n != step and run.go_to(n)]  # whole, or not there
        saved = gone_to(run, step, mortal.torn)
        newest = gone_to(run, None, mortal.torn and before == {None})
        assert newest in before | {step}, calls
        if saved and kind != "to an abandoned step":
            assert newest == step, calls
        run.save((newest or 0) + 1)
        assert run.go_to() == (newest or 0) + 1
        if not cut_off:
            break
    assert saved == newest == step
    assert calls > 5
    assert not (keep and held)


def test_files_are_on_the_disk_before_they_have_their_names(tmp_path, monkeypatch):
    """A power loss must not leave a whole name with nothing behind it."""
    synced, replaced = set(), []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(fd):
        fsync(fd)
        synced.add((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    def recorded_replace(source, target):
        found = os.stat(source)
        replaced.append((os.path.basename(target), (found.st_ino, found.st_size) in synced))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    [iterator] = advanced(hosts(readable(), 4, rows, 1), 1)
    folder = pathlib.Path(zx.save_checkpoint(tmp_path, iterator))
    assert dict(replaced) == dict.fromkeys([*lane_files(folder), "manifest.json"], True)


def test_many_lanes_in_one_file(tmp_path):
    """Lanes go by number: as text "10" comes before "2"."""
    source, lanes = readable((240,), chunk_size=2), 12
    expected = list(hosts(source, lanes, rows, 1)[0])
    [iterator] = advanced(hosts(source, lanes, rows, 1), 3)
    zx.save_checkpoint(tmp_path, iterator)
    restored = [iter(dataset) for dataset in hosts(source, lanes, rows, 3)]
    assert [zx.restore_checkpoint(tmp_path, one) for one in restored] == [3] * 3
    assert_same(in_step(restored), expected[3:])


class Counted(list):
    """Records that know how many were read."""

    reads = 0

    def __getitem__(self, n):
        self.reads += 1
        return super().__getitem__(n)


@pytest.mark.parametrize("batch", [None, 3])
def test_a_restore_reads_no_data(tmp_path, batch):
    """Not even where a batch was half used; its size tells whether the state can be."""
    records = Counted(range(384))
    numbers = zx.Dataset.from_source("n", records)
    source = zx.StaticMixtureWorkSource([numbers], {"n": 1}, chunk_size=8)
    pipeline = rows if batch is None else lambda lane: rows(lane).batch(batch)
    [dataset] = hosts(source, 4, pipeline, 1, global_batch_size=4)
    expected, iterator = list(dataset), iter(dataset)
    in_step([iterator], 4)
    zx.save_checkpoint(tmp_path, iterator)
    iterator.close()
    again = iter(dataset)
    records.reads, calls = 0, []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    zx.restore_checkpoint(tmp_path, again)
    sys.setprofile(None)
    assert records.reads == 0
    assert sum("/zephon_jax/" in code.co_filename for code in calls) <= 700
    assert again.get_state() == iterator.get_state()
    assert_same(list(again), expected[4:])


@pytest.mark.parametrize("name", ["../../victim.txt", "../step_0000000002/manifest.json",
                                  "model.npz", "lanes-x.json"])  # fmt: skip
def test_only_our_own_files_are_removed_whatever_a_manifest_says(tmp_path, name):
    [iterator] = advanced(hosts(readable(), 4, rows, 1), 1)
    folder = tmp_path / "run" / "step_0000000001"
    zx.save_checkpoint(tmp_path / "run", iterator)
    zx.save_checkpoint(tmp_path / "run", iterator, step=2)
    victim = folder / name
    if not victim.exists():
        victim.write_text("theirs")
    before = victim.read_bytes()
    path = folder / "manifest.json"
    body = json.loads(path.read_text())["body"]
    path.write_bytes(wrap("zephon_jax checkpoint", {**body, "files": {**body["files"], name: []}}))
    zx.restore_checkpoint(tmp_path / "run", iterator, step=2)
    with pytest.warns(UserWarning, match="the run went back"):
        zx.save_checkpoint(tmp_path / "run", iterator, step=1, keep=1)
    assert victim.read_bytes() == before
