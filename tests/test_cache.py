"""The cache of local copies: budget, order of eviction, sharing and crashes."""

import errno
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest
from filelock import FileLock

from zephon_jax import cache as cache_module
from zephon_jax.cache import Entry, ShardCache


def entry(name, size=10, exact=True, log=None):
    def make(target):
        if log is not None:
            with open(log, "a") as file:
                file.write(f"{name} ")
        with open(target, "r+b") as file:
            file.write(name[0].encode() * size)

    return Entry(name, size, exact, make)


def use(cache, name, **kwargs):
    lease = cache.acquire(entry(name, **kwargs))
    lease.close()


def held(cache):
    return sorted(name for name, _, _ in cache._list())


def test_copies_are_made_once(tmp_path):
    cache, log = ShardCache(tmp_path, 100), tmp_path / "log"
    for _ in range(3):
        with cache.acquire(entry("a", log=log)) as lease, open(lease.path) as file:
            assert file.read() == "a" * 10
    assert log.read_text() == "a "
    assert cache.has("a")
    assert cache.num_bytes() == 10


def test_oldest_use_goes_first(tmp_path):
    cache = ShardCache(tmp_path, 30)
    for name in "abc":
        use(cache, name)
        time.sleep(0.01)
    use(cache, "a")
    use(cache, "d")
    assert held(cache) == ["a", "c", "d"]


def test_farthest_next_use_goes_first(tmp_path):
    cache = ShardCache(tmp_path, 40)
    for name in "abcd":
        use(cache, name)
    cache.plan("lane 0", ["a", "b", "c"])
    cache.plan("lane 1", ["e", "f", "c"])
    use(cache, "e")
    assert held(cache) == ["a", "b", "c", "e"]  # Nobody has planned d.
    use(cache, "f")
    assert held(cache) == ["a", "b", "e", "f"]
    cache.plan("lane 0", [])
    use(cache, "c")
    assert "e" in held(cache)
    assert "f" in held(cache)


def test_what_is_in_use_stays(tmp_path):
    cache = ShardCache(tmp_path, 20)
    with cache.acquire(entry("a")), cache.acquire(entry("b")):
        cache.plan(0, ["c", "d"])
        assert cache.acquire(entry("d"), ahead=True) is None  # Not needed now, so it waits.
        use(cache, "c")  # Needed now, so the budget gives way.
        assert held(cache) == ["a", "b", "c"]
    use(cache, "d")
    assert cache.num_bytes() <= 20


def test_look_ahead_does_not_drop_what_is_sooner(tmp_path):
    cache = ShardCache(tmp_path, 20)
    for name in "ab":
        use(cache, name)
    cache.plan(0, ["a", "b", "c"])
    assert cache.acquire(entry("c"), ahead=True) is None
    assert held(cache) == ["a", "b"]
    cache.plan(0, ["b", "c"])
    cache.acquire(entry("c"), ahead=True).close()
    assert held(cache) == ["b", "c"]


def test_larger_than_the_budget(tmp_path):
    cache = ShardCache(tmp_path, 5)
    use(cache, "a")
    use(cache, "b")
    assert held(cache) == ["b"]
    with pytest.raises(ValueError, match="at least 0 bytes; got -1"):
        ShardCache(tmp_path, -1)


def test_estimate_that_was_too_small(tmp_path):
    cache = ShardCache(tmp_path, 30)
    use(cache, "a")
    use(cache, "b")

    def make(target):
        with open(target, "r+b") as file:
            file.write(b"x" * 25)
            file.truncate()

    cache.acquire(Entry("big", 5, False, make)).close()
    assert held(cache) == ["big"]


def test_failed_copy_is_tried_again(tmp_path):
    cache = ShardCache(tmp_path, 100)

    def fail(target):
        raise ConnectionError("no network")

    with pytest.raises(ConnectionError, match="no network"):
        cache.acquire(Entry("a", 10, True, fail))
    use(cache, "a")
    with pytest.raises(ValueError, match="not the 10 bytes"):
        cache.acquire(Entry("b", 10, True, lambda target: os.truncate(target, 3)))
    use(cache, "b")


def test_full_disk(tmp_path):
    cache = ShardCache(tmp_path, 100)
    for name in "ab":
        use(cache, name)
    attempts = []

    def make(target):
        attempts.append(held(cache))
        if len(attempts) < 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        with open(target, "r+b") as file:
            file.write(b"c" * 10)

    cache.acquire(Entry("c", 10, True, make)).close()
    assert attempts == [["a", "b", "c.part"], ["c.part"]]

    def never(target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"disk of the cache folder .* is full.*ZEPHON_JAX_CACHE"):
        cache.acquire(Entry("d", 10, True, never))


def test_threads_share_copies(tmp_path):
    cache, log = ShardCache(tmp_path, 30), tmp_path / "log"
    failures = []

    def work(seed):
        for step in range(40):
            name = "abcdef"[(step * seed) % 6]
            with cache.acquire(entry(name)) as lease, open(lease.path) as file:
                if file.read() != name * 10:
                    failures.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    use(cache, "z")
    assert cache.num_bytes() <= 30
    assert not log.exists()


def _use_in_process(folder, log):
    cache = ShardCache(folder, 100)
    for name in "abc":
        use(cache, name, log=log)
    return cache.num_bytes()


def test_processes_share_copies(tmp_path):
    log = tmp_path / "log"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        arguments = [(tmp_path / "cache", log)] * 4
        assert pool.starmap(_use_in_process, arguments, chunksize=1) == [30] * 4
    assert sorted(log.read_text().split()) == ["a", "b", "c"]


def _hold_and_wait(folder, ready):
    cache = ShardCache(folder, 20)
    cache.plan(0, ["b"])
    lease = cache.acquire(entry("a"))
    use(cache, "b")
    ready.set()
    time.sleep(60)
    lease.close()


def test_other_processes_use_and_plans_count_while_they_live(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_and_wait, args=(tmp_path, ready))
    process.start()
    assert ready.wait(20)
    cache = ShardCache(tmp_path, 20)
    cache.plan(0, ["x", "y", "c"])
    assert cache.acquire(entry("c"), ahead=True) is None  # a is in use and b is planned.
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    cache.acquire(entry("c"), ahead=True).close()
    assert "c" in held(cache)
    assert len(os.listdir(tmp_path / "plans")) == 1
    cache.plan(0, [])


def test_maker_that_has_stopped_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_STUCK_SECONDS", 0.1)
    cache = ShardCache(tmp_path, 1000)
    with cache._only_maker("a"), pytest.raises(TimeoutError, match=r"locks/a.*End that process"):
        cache.acquire(entry("a"))
    with FileLock(str(tmp_path / "lock")), pytest.raises(TimeoutError, match="lock"):
        cache.acquire(entry("a"))
    with cache.acquire(entry("a")) as lease:
        assert os.path.exists(lease.path)


def test_slow_maker_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_STUCK_SECONDS", 0.1)
    cache, begun = ShardCache(tmp_path, 1000), threading.Event()

    def make(target):
        for step in range(10):
            with open(target, "r+b") as file:
                file.write(b"x" * 10 * (step + 1))
            begun.set()
            time.sleep(0.05)

    slow = Entry("a", 100, True, make)
    maker = threading.Thread(target=lambda: cache.acquire(slow).close())
    maker.start()
    assert begun.wait(20)
    with cache.acquire(slow) as lease:
        assert os.path.getsize(lease.path) == 100
    maker.join()


def test_folder_that_is_taken_away(tmp_path):
    cache = ShardCache(tmp_path / "cache", 1000)
    for _ in range(2):
        with cache.acquire(entry("a")) as lease:
            assert os.path.exists(lease.path)
        shutil.rmtree(tmp_path / "cache")
