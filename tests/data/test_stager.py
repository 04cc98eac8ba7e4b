"""Copies that are made ahead of need: which comes next, and what finding it costs."""

import functools
import gzip
import os
import threading
import time

import fsspec
import pytest
from support.helpers import wait_until

from zephon_jax._process import CLOSE_SECONDS, DaemonThreads
from zephon_jax.data.cache.prefetch import LookAhead, _Plan
from zephon_jax.data.cache.stager import Stager
from zephon_jax.data.cache.store import Entry, ShardCache
from zephon_jax.data.dataset import Dataset


def test_nearest_missing_copy_is_first():
    plan = _Plan([Entry(name, 1, True, lambda target: None) for name in "abcdef"])
    there, busy = {"a", "c"}, {"b"}

    def first(before=99):
        found = plan.first(before, lambda entry: entry.name in busy, there.__contains__)
        return None if found is None else (found[0], found[1].name)

    assert first() == (3, "d")
    assert first() == (3, "d")  # Nobody has begun it.
    assert first(before=3) is None
    busy.add("d")
    assert first() == (4, "e")
    busy.clear()  # Both failed and may be tried again.
    assert first() == (1, "b")
    there.update("bd")
    assert first() == (4, "e")
    there.update("ef")
    assert first() is None
    there.clear()
    assert first() is None  # What was there is not looked for until it is planned anew.


def test_looks_grow_with_the_number_of_shards_not_its_square(tmp_path, monkeypatch):
    """Look-ahead asks the cache about each planned copy a few times at most."""
    num_shards, looks = 120, []
    (tmp_path / "data").mkdir()
    for shard in range(num_shards):
        (tmp_path / "data" / f"{shard}.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    dataset = Dataset.from_path("packed", tmp_path / "data", counts=[1] * num_shards)
    shards = [dataset.shard(shard) for shard in range(num_shards)]
    stager = Stager(tmp_path / "cache")
    has = stager.cache.has

    def look(name):
        looks.append(name)
        return has(name)

    monkeypatch.setattr(stager.cache, "has", look)
    stager.plan("lane", shards)
    names = [stager.entries(shard)[0].name for shard in shards]
    wait_until(lambda: all(map(has, names)))
    stager.close()
    assert set(looks) == set(names)
    assert len(looks) <= 4 * num_shards


def test_look_ahead_goes_on_where_a_copy_does_not_fit(tmp_path):
    """Neither what is larger than the budget nor what there is no room for now stops it."""
    cache, made = ShardCache(tmp_path, 100), []

    def entry(name, size):
        return Entry(name, size, True, made.append)

    with cache.acquire(entry("used", 50)):
        sizes = {"used": 50, "huge": 101, "a": 20, "large": 40, "b": 10, "as large": 40, "c": 10}
        ahead = LookAhead(lambda: cache)
        ahead.plan("lane", [entry(name, size) for name, size in sizes.items()])
        wait_until(lambda: all(map(cache.has, "abc")))
        assert not any(map(cache.has, ["huge", "large", "as large"]))
        assert len(made) == 4
    ahead.plan("lane", [entry("large", 40), entry("huge", 101), entry("a", 20)])
    wait_until(lambda: cache.has("large"))
    assert cache.has("a")
    ahead.close()
    cache.plan("lane", [])


def test_look_ahead_waits_for_no_other_maker(tmp_path):
    """Another process makes the copy that comes first: the next ones are made meanwhile."""
    cache, begun, end = ShardCache(tmp_path, 100), threading.Event(), threading.Event()

    def make(target):
        begun.set()
        assert end.wait(60)

    entries = [Entry(name, 10, True, lambda target: None) for name in "abcd"]
    slow = Entry("a", 10, True, make)
    other = threading.Thread(target=lambda: ShardCache(tmp_path, 100).acquire(slow).close())
    other.start()
    assert begun.wait(20)
    ahead = LookAhead(lambda: cache)
    ahead.plan("lane", entries)
    wait_until(lambda: all(map(cache.has, "bcd")), seconds=10)
    assert not cache.has("a")
    end.set()
    other.join()
    wait_until(lambda: cache.has("a"))
    ahead.close()
    cache.plan("lane", [])


@pytest.mark.parametrize("ahead", [True, False])
def test_close_does_not_wait_for_what_is_stuck(tmp_path, ahead):
    begun, go_on = threading.Event(), threading.Event()

    def stick(target):
        begun.set()
        go_on.wait(30)

    if ahead:
        cache = ShardCache(tmp_path, 100)
        threads = LookAhead(lambda: cache)
        threads.plan("lane", [Entry("a", 10, True, stick)])
    else:
        threads = DaemonThreads(2, "stuck")
        threads.submit(stick, "")
    assert begun.wait(20)
    start = time.monotonic()
    threads.close(0.1)
    assert 0.1 <= time.monotonic() - start < 5
    go_on.set()
    threads.close()
    assert CLOSE_SECONDS <= 10
    if ahead:
        wait_until(lambda: cache.has("a"))
        cache.plan("lane", [])


def test_calls_one_after_another_run_on_one_thread():
    """What a thread frees is not there for another: four would hold four windows of records."""
    threads = DaemonThreads(4, "few")
    used = {threads.submit(lambda _: threading.get_ident(), None).result() for _ in range(200)}
    assert len(used) == 1
    start = threading.Barrier(4, timeout=60)
    calls = [threads.submit(lambda _: start.wait(), None) for _ in range(4)]
    assert sorted(call.result(60) for call in calls) == [0, 1, 2, 3]  # all at the same time
    threads.close()
    assert threads.submit(abs, -3).result(60) == 3
    threads.close()


def test_calls_run_where_no_thread_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    threads = DaemonThreads(2, "late")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert threads.submit(sum, [1, 2]).result(5) == 3
        assert isinstance(threads.submit(int, "x").exception(5), ValueError)
    assert threads.submit(sum, [3, 4]).result(5) == 7
    threads.close()


def test_unpacking_ahead_drops_nothing_that_is_sooner(tmp_path):
    """There is room for what is unpacked, but not for what it is unpacked from."""
    packed = gzip.compress(bytes(range(256)))
    files = {"sooner.jsonl": b"1" * 1000, "packed.jsonl.gz": packed}
    for name, data in files.items():
        with fsspec.open(f"memory://tight/{name}", "wb") as file:
            file.write(data)
    urls = [f"memory://tight/{name}" for name in files]
    shards = [Dataset.from_path("tight", url, counts=[1]).shard(0) for url in urls]
    for spare in (0, len(packed)):
        room = 1000 + 4 * len(packed) + len(packed) // 2 + spare
        stager = Stager(tmp_path / f"{spare}", room)
        kept, made = (stager.entries(shard)[0].name for shard in shards)
        with stager.staged(shards[0]):
            pass
        identity = os.stat(tmp_path / f"{spare}" / "copies" / kept).st_ino
        stager.plan("lane", shards)
        if spare:
            wait_until(functools.partial(stager.cache.has, made))
        else:
            time.sleep(0.5)
            assert not stager.cache.has(made)
        assert os.stat(tmp_path / f"{spare}" / "copies" / kept).st_ino == identity
        stager.close()
        stager.plan("lane", [])
