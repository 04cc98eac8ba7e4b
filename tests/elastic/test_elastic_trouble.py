"""Elastic lanes in trouble: pipelines that hang, die or are dropped. No wait is without a limit."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support.elastic_runs import (
    assert_same,
    first_fit,
    hosts,
    in_step,
    lane_workers,
    readable,
    rows,
)

import zephon_jax as zx
from zephon_jax.elastic import iterator as elastic_iterator


def elastic_threads():
    return [t for t in threading.enumerate() if t.name == "zephon_jax elastic"]


def wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_pipeline_that_hangs_is_given_up_on():
    go_on = threading.Event()

    def slow(e):
        if e["data"] == 1042:
            go_on.wait(60)
        return {"x": np.int32(e["data"])}

    [dataset] = hosts(readable(), 4, lambda lane: lane.map(slow), 1, timeout=0.3)
    iterator, got = iter(dataset), []
    with pytest.raises(TimeoutError, match=r"lanes 0 to 3 have not made a step within 0.3 s"):
        got.extend(iterator)
    state = iterator.get_state()
    assert state["step"] == len(got)
    with pytest.raises(TimeoutError, match="timeout="):
        iterator.set_state(state)
    go_on.set()
    got.extend(iterator)
    whole = hosts(readable(), 4, lambda lane: lane.map(lambda e: {"x": np.int32(e["data"])}), 1)
    assert_same(got, list(whole[0]))
    iterator.close()


def test_the_other_hosts_are_told_of_a_host_that_hangs(monkeypatch):
    monkeypatch.setattr(elastic_iterator, "_SECONDS_TO_END", 0.2)
    go_on, said = threading.Event(), []

    def agree(word):
        said.append(word & 3)
        return [word, word & ~3 | 1]

    pipeline = lambda lane: lane.filter(lambda e: go_on.wait(60))  # noqa: E731
    [dataset] = hosts(readable(), 4, pipeline, 1, rows_per_sample=None, timeout=0.2)
    iterator = iter(dataset)
    with pytest.raises(TimeoutError):
        next(zx.synchronized(iterator, agree))
    assert said == [2]
    start = time.monotonic()
    iterator.close()  # leaves the thread behind
    assert time.monotonic() - start < 30
    go_on.set()


def test_workers_that_hang_are_ended(monkeypatch):
    monkeypatch.setattr(elastic_iterator, "_SECONDS_TO_END", 0.2)

    def stuck(e):
        if e["data"] == 1042:
            time.sleep(1000)
        return {"x": np.int32(e["data"])}

    [dataset] = hosts(readable(), 4, lambda lane: lane.map(stuck), 1, num_workers=2, timeout=4)
    iterator = iter(dataset)
    with pytest.raises(TimeoutError, match="lanes 0 to 3"):
        list(iterator)
    processes = lane_workers()
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 30
    assert len(processes) == 2
    with pytest.raises(ValueError, match="closed"):
        processes[0].is_alive()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_exits_does_not_take_the_thread_with_it(workers):
    def leave(e):
        if e["data"] == 1042:
            sys.exit("no more")
        return {"x": np.int32(e["data"])}

    [dataset] = hosts(readable(), 4, lambda lane: lane.map(leave), 1, num_workers=workers,
                      timeout=60)  # fmt: skip
    iterator = iter(dataset)
    with pytest.raises(RuntimeError, match=r"SystemExit: no more|worker process .* died"):
        list(iterator)
    assert iterator.get_state()["step"] > 0
    iterator.close()


def test_iterators_that_are_dropped_leave_nothing_behind():
    before = len(elastic_threads())
    for _ in range(3):
        iterator = iter(hosts(readable(), 4, first_fit, 1, rows_per_sample=None)[0])
        next(iterator)
        assert len(elastic_threads()) > before
    del iterator
    gc.collect()
    wait_until(lambda: len(elastic_threads()) <= before)


def test_dropped_workers_end():
    iterator = iter(hosts(readable(), 4, rows, 1, num_workers=1)[0])
    next(iterator)
    [worker] = lane_workers()
    pid = worker.pid
    del iterator
    gc.collect()
    wait_until(lambda: pid not in [child.pid for child in multiprocessing.active_children()])


def ended(*lines):
    """What a program printed that ended by itself, though its limits at exit are short."""
    code = "\n    ".join((
        "import sys, time; sys.path.insert(0, 'tests')\n"
        "import zephon_jax as zx\n"
        "from support.elastic_runs import hosts, readable, rows\n"
        "from zephon_jax.elastic import iterator, prefetch\n"
        "from zephon_jax.pipelines import read_threads\n"
        "read_threads._SECONDS_AT_EXIT = prefetch._SECONDS_AT_EXIT = 0.5\n"
        "iterator._SECONDS_TO_END = 0.5\n"
        "if __name__ == '__main__':",
        *lines,
    ))  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "leaked" not in ran.stderr  # shared memory
    return ran.stdout


def test_a_program_that_ends_in_the_middle_ends():
    """Nothing is closed, one iterator is still at work and others hang, with threads and alone."""
    said = ended(
        "going = iter(hosts(readable(), 4, rows, 1)[0]); next(going)",
        "slow = lambda lane: lane.map(lambda e: time.sleep(1000))",
        "hanging = iter(hosts(readable(), 4, slow, 1)[0]); hanging.start_prefetch()",
        "many = iter(hosts(readable(), 4, slow, 1, num_threads=4)[0]); many.start_prefetch()",
        "work = iter(hosts(readable(), 4, rows, 1, num_workers=1)[0]); next(work)",
        "print('done')",
    )
    assert said == "done\n"


def test_a_program_whose_pipeline_or_reads_hang_ends_after_it_was_closed():
    said = ended(
        "class Slow:",
        "    __len__ = lambda self: 80",
        "    __getitem__ = lambda self, n: time.sleep(1000 * (n == 40)) or n",
        "numbers = zx.Dataset.from_source('n', Slow())",
        "reads = zx.StaticMixtureWorkSource([numbers], {'n': 1}, chunk_size=4)",
        "stuck = lambda lane: lane.map(lambda e: time.sleep(1000 * (e['data'] == 1042)) or e)",
        "for source, pipeline in ((readable(), stuck), (reads, lambda lane: lane)):",
        "    it = iter(hosts(source, 4, pipeline, 1, num_threads=4, timeout=1)[0])",
        "    try:",
        "        list(it)",
        "    except TimeoutError:",
        "        print('late')",
        "    it.close()",
    )
    assert said == "late\nlate\n"


def test_a_worker_that_is_killed_while_it_works():
    def slow(e):
        time.sleep(0.01)
        return {"x": np.int32(e["data"])}

    [dataset] = hosts(readable(), 4, lambda lane: lane.map(slow), 1, num_workers=2)
    iterator = iter(dataset)
    got = in_step([iterator], 3)
    os.kill(lane_workers()[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker process of lanes 0 to 3 died .*-9"):
        got.extend(iterator)
    assert iterator.get_state()["step"] == len(got)
    got.extend(iterator)  # new ones start where the last batch ended
    [plain] = hosts(readable(), 4, lambda lane: lane.map(slow), 1)
    assert_same(got, list(plain))
    iterator.close()


def test_what_a_pipeline_raises_when_it_is_made_names_the_lane():
    seen = []

    def picky(lane):
        seen.append(lane)
        if len(seen) == 3:
            raise KeyError("no table")
        return rows(lane)

    with pytest.raises(KeyError) as caught:
        iter(hosts(readable(), 4, picky, 1)[0])
    assert caught.value.__notes__ == ["raised by pipeline(lane_dataset) for lane 1 of 4"]
    with pytest.raises(TypeError, match=r"must return a grain.IterDataset; got list"):
        hosts(readable(), 4, lambda lane: [1], 1)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds; got 0"):
        hosts(readable(), 4, rows, 1, timeout=0)


def test_arguments_that_are_not_what_they_should_be(tmp_path):
    iterator = iter(hosts(readable(), 4, rows, 1)[0])
    for call, kind, text in (
        (lambda: hosts([1], 4, rows, 1), TypeError, r"source must be a zx.WorkSource; got \[1\]"),
        (lambda: hosts(readable(), 4, None, 1), TypeError, "pipeline must be a function"),
        (lambda: zx.save_checkpoint(tmp_path, [1]), TypeError, "GlobalBatches; got list"),
        (lambda: zx.restore_checkpoint(tmp_path, [1]), TypeError, "GlobalBatches; got list"),
        (lambda: zx.save_checkpoint(tmp_path, iterator, -1), ValueError, "step must be at least 0"),
        (lambda: zx.restore_checkpoint(tmp_path, iterator, "x"), TypeError, "step must be an int"),
        (lambda: zx.save_checkpoint(tmp_path, iterator, keep=0), ValueError, "keep must be at lea"),
    ):
        with pytest.raises(kind, match=text):
            call()
    assert list(tmp_path.iterdir()) == []
    lock = threading.Lock()
    [held] = hosts(readable(), 4, lambda lane: (lock, rows(lane))[1], 1, num_workers=1)
    with pytest.raises(TypeError, match=r"cannot be pickled: .*lock.*num_workers at 0"):
        next(iter(held))


@pytest.mark.parametrize("used", [-1, 4, 99])
def test_states_that_say_nonsense_of_their_batch(used):
    iterator = iter(hosts(readable(), 4, lambda lane: rows(lane).batch(3), 1,
                          global_batch_size=4)[0])  # fmt: skip
    next(iterator)
    state = iterator.get_state()
    bad = {**state, "lanes": {**state["lanes"], "1": {**state["lanes"]["1"], "used": used}}}
    with pytest.raises(ValueError, match=f"lane 1: .*{used} rows of a batch were used"):
        iterator.set_state(bad)
    assert iterator.get_state() == state


def test_what_a_worker_cannot_open_is_said():
    def only_here(lane):
        if multiprocessing.parent_process() is not None:
            raise ImportError("no such library in workers")
        return rows(lane)

    iterator = iter(hosts(readable(), 4, only_here, 1, num_workers=1)[0])
    with pytest.raises(ImportError, match="no such library in workers"):
        next(iterator)
    iterator.close()


def test_a_host_without_any_row_fails_all_where_others_go_on():
    """It cannot make masked rows, and the others must not wait for it for ever."""
    keep = lambda e: False  # noqa: E731
    [bare] = hosts(readable(), 4, lambda lane: lane.filter(keep), 1, rows_per_sample=None, pad=True)
    said = []

    def agree(others):
        return lambda word: (said.append(word & 3), [word, word & ~3 | others])[1]

    assert list(zx.synchronized(iter(bare), agree(0))) == []  # all have ended
    with pytest.raises(ValueError, match="lanes 0 to 3 have yielded no row"):
        next(zx.synchronized(iter(bare), agree(1)))
    [going] = hosts(readable(), 4, rows, 1, rows_per_sample=None, pad=True)
    with pytest.raises(RuntimeError, match="another host have ended without a row"):
        next(zx.synchronized(iter(going), agree(said[0])))


def test_a_host_without_any_row_learns_from_the_lanes_of_others_what_masked_rows_are():
    """Which hosts own a lane must not decide whether a run can go on."""
    ends = {"exhausted_policy": "redistribute", "lane_assignment": "modulo"}
    source = readable((16,), chunk_size=4, **ends)
    taken = [int(e["data"]) for e in zx.LaneIterDataset(source, 0, 2)]

    def some(lane):
        return rows(lane.filter(lambda e: e["data"] in taken[:3]))

    settings = {"rows_per_sample": None, "pad": True}
    [alone] = hosts(source, 2, some, 1, **settings)
    expected = list(zx.synchronized(iter(alone)))
    assert [batch["row_mask"].tolist() for batch in expected] == [[True, False]] * 3
    [_, bare] = [iter(dataset) for dataset in hosts(source, 2, some, 2, **settings)]
    words = iter([1, 1, 1, 0])  # the other goes on for three steps
    got = list(zx.synchronized(bare, lambda word: [word & ~3 | next(words), word]))
    assert_same(got, [{name: leaf[1:] for name, leaf in batch.items()} for batch in expected])


def test_closing_twice_and_using_what_is_closed(tmp_path):
    iterator = iter(hosts(readable(), 4, rows, 1)[0])
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    iterator.close()
    assert iterator.get_state() == state
    zx.save_checkpoint(tmp_path, iterator)
    for use in (
        lambda: next(iterator),
        iterator.start_prefetch,
        lambda: zx.restore_checkpoint(tmp_path, iterator),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_hosts_that_fail_before_they_write_fail_all_and_the_next_save_works(tmp_path, monkeypatch):
    """A host whose state cannot be had still comes to the others."""
    from support.checkpoints import save_all

    iterators = [iter(dataset) for dataset in hosts(readable(), 4, rows, 2)]
    in_step(iterators, 2)

    def broken():
        raise TypeError("a pipeline's state must be plain JSON")

    with monkeypatch.context() as patch:
        patch.setattr(iterators[1], "get_state", broken)
        errors = save_all(tmp_path, iterators)
    assert ["process 1: TypeError: a pipeline's state" in str(error) for error in errors] == [
        True,
        True,
    ]
    next(iterators[1])
    errors = save_all(tmp_path, iterators)
    assert all("at steps [2, 3]" in str(error) for error in errors)
    next(iterators[0])
    assert save_all(tmp_path, iterators) == [None, None]
