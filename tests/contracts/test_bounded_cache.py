"""The cache that all rooms share: its bound, its order of forgetting, threads and forks."""

import os
import pickle
import threading

import pytest

from zephon_jax._bounded_cache import BoundedCache


def test_least_recently_used_goes_first():
    cache = BoundedCache(3)
    for key in "abc":
        cache.put(key, key.upper())
    assert cache.get("a") == "A"
    cache.put("d", "D")
    assert cache.get("b") is None
    assert [cache.get(key) for key in "acd"] == ["A", "C", "D"]
    cache.put("a", "new")
    assert (cache.get("a"), len(cache)) == ("new", 3)


def test_costs_are_bounded_and_the_last_value_stays():
    cache, asked = BoundedCache(10, cost_of=len), []
    cache.put("a", "x" * 6)
    cache.put("b", "x" * 4)
    cache.put("c", "x" * 5)
    assert [cache.get(key) is not None for key in "abc"] == [False, True, True]
    cache.put("huge", "x" * 11)
    assert (len(cache), cache.get("huge")) == (1, "x" * 11)
    cache.put("huge", "x")  # The cost of what it replaces is not counted any more.
    cache.put("d", "x" * 9)
    assert len(cache) == 2
    counted = BoundedCache(2, lambda value: asked.append(value) or 1)
    counted.put("a", 1)
    counted.get("a")
    assert asked == [1]


def test_values_are_made_once_and_forgotten_by_key():
    cache, made = BoundedCache(5), []
    for _ in range(3):
        assert cache.get_or_make("a", lambda: made.append("a") or len(made)) == 1
    for key in "bcd":
        cache.put(key, key)
    cache.forget(lambda key: key in "bc")
    assert [cache.get(key) for key in "abcd"] == [1, None, None, "d"]
    cache.forget()
    assert len(cache) == 0
    for key in "efghi":  # Nothing that was forgotten counts.
        cache.put(key, key)
    assert len(cache) == 5


def test_pickled_caches_start_empty():
    cache = BoundedCache(10, len)
    cache.put("a", "x" * 6)
    copy = pickle.loads(pickle.dumps(cache))
    assert (len(copy), copy.max_cost, copy.cost_of) == (0, 10, len)


def test_threads_keep_the_bound():
    cache, failures = BoundedCache(50), []

    def work(seed):
        for step in range(2000):
            key = step * seed % 97
            if cache.get_or_make(key, lambda key=key: key + 1) != key + 1:
                failures.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(cache) == 50


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_starts_with_none_and_waits_for_no_thread_of_its_parent():
    begun, go_on = threading.Event(), threading.Event()

    class Slow(str):
        def __hash__(self):
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                go_on.wait(30)
            return 1

    cache = BoundedCache(10)
    cache.put("a", 1)
    thread = threading.Thread(target=cache.put, args=(Slow("b"), 2))
    thread.start()
    assert begun.wait(30)  # The thread holds the lock.
    child = os.fork()
    if child == 0:
        good = cache.get("a") is None and cache.get_or_make("a", lambda: 3) == 3
        os._exit(0 if good else 1)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get("a") == 1
