"""The cache of local copies: budget, order of eviction, sharing and crashes."""

import errno
import fcntl
import gc
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest

from zephon_jax.data.cache import locks as cache_locks
from zephon_jax.data.cache import usage as cache_count
from zephon_jax.data.cache.locks import CacheLocks
from zephon_jax.data.cache.plans import Plans
from zephon_jax.data.cache.store import Entry, ShardCache


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


def test_look_ahead_drops_nothing_for_what_does_not_fit(tmp_path):
    cache = ShardCache(tmp_path, 100)
    use(cache, "later")
    with cache.acquire(entry("used", 80)):
        cache.plan(0, ["used", "next", "later"])
        assert cache.acquire(entry("next", 30), ahead=True) is None
        assert held(cache) == ["later", "used"]
        cache.acquire(entry("next", 20), ahead=True).close()  # Room for it can be made.
        assert held(cache) == ["next", "used"]
    cache.plan(0, ["huge", "next", "used"])
    assert cache.acquire(entry("huge", 101), ahead=True) is None
    assert held(cache) == ["next", "used"]
    use(cache, "huge", size=101)  # Needed now.
    assert held(cache) == ["huge"]


def test_look_ahead_drops_nothing_for_what_turns_out_not_to_fit(tmp_path):
    cache, made = ShardCache(tmp_path, 30), []
    use(cache, "sooner")
    use(cache, "later")
    cache.plan(0, ["sooner", "big", "later"])

    def make(target):
        made.append(target)
        with open(target, "r+b") as file:
            file.write(b"x" * 25)

    big = Entry("big", 5, False, make)
    for _ in range(2):
        assert cache.acquire(big, ahead=True) is None
        assert held(cache) == ["later", "sooner"]
    assert len(made) == 1  # Its size is known now.
    cache.acquire(big).close()
    assert held(cache) == ["big"]


def test_what_a_copy_is_made_of_has_its_place_in_the_plan(tmp_path):
    cache = ShardCache(tmp_path, 40)
    for name in ("a", "b", "later"):
        use(cache, name)
    cache.plan(0, ["a", "b", "plain", "later"])
    assert cache.acquire(entry("p.gz", 30), ahead=True, used_by="plain") is None
    assert cache.acquire(entry("p.gz", 20), ahead=True) is None  # For nobody, so last of all.
    assert held(cache) == ["a", "b", "later"]
    cache.acquire(entry("p.gz", 20), ahead=True, used_by="plain").close()
    assert held(cache) == ["a", "b", "p.gz"]
    cache.plan(0, [])


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
    monkeypatch.setattr(cache_locks, "_STUCK_SECONDS", 0.1)
    cache, others = ShardCache(tmp_path, 1000), CacheLocks(str(tmp_path))
    stopped = pytest.raises(TimeoutError, match=r"locks/unpacked-\d+ is held.*End that process")
    with others.maker("a", lambda: 0.0), stopped:
        cache.acquire(entry("a"))
    with others.room(), pytest.raises(TimeoutError, match="lock"):
        cache.acquire(entry("a"))
    with cache.acquire(entry("a")) as lease:
        assert os.path.exists(lease.path)


def test_slow_maker_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_locks, "_STUCK_SECONDS", 0.1)
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


@pytest.mark.parametrize(("name", "copy", "others"), [("a.gz", "a.gz", "bcd"), ("a", "f.gz", "b")])
def test_what_others_do_is_no_progress(tmp_path, monkeypatch, name, copy, others):
    """Neither uses of copies nor parts that the holder of the lock cannot be making."""
    monkeypatch.setattr(cache_locks, "_STUCK_SECONDS", 0.2)
    cache, locks, end = ShardCache(tmp_path, 1000), CacheLocks(str(tmp_path)), threading.Event()
    parts = [tmp_path / "copies" / f"{other}.part" for other in others]
    assert not any(locks.may_make(name, other) for other in others)
    assert locks.may_make(name, copy)

    def go_on():
        while not end.wait(0.02):
            use(cache, "used")
            for part in parts:
                part.write_bytes(b"x")

    thread = threading.Thread(target=go_on)
    thread.start()
    with locks.maker(name, lambda: 0.0):
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="End that process"):
            cache.acquire(entry(name))
        assert time.monotonic() - start < 10
        before = cache._last_write(name)
        (tmp_path / "copies" / f"{copy}.part.done").write_bytes(b"x")
        assert cache._last_write(name) > before
    end.set()
    thread.join()


def test_a_copy_that_another_makes_is_not_waited_for_ahead(tmp_path):
    cache, others = ShardCache(tmp_path, 1000), CacheLocks(str(tmp_path))
    with others.maker("a", lambda: 0.0):
        with pytest.raises(BlockingIOError, match=r"locks/unpacked-\d+ is held"):
            cache.acquire(entry("a"), ahead=True)
        cache.acquire(entry("b"), ahead=True).close()
    cache.acquire(entry("a"), ahead=True).close()
    assert held(cache) == ["a", "b"]


def test_what_a_killed_fetch_wrote_down_goes(tmp_path):
    """It died when its part had become a copy; another left its part too, and is resumed."""
    cache = ShardCache(tmp_path, 1000)
    for name in ("a.gz.part.done", "b.gz.part", "b.gz.part.done"):
        (tmp_path / "copies" / name).write_bytes(b"1234")
    use(cache, "c")  # The first copy takes a listing.
    assert sorted(os.listdir(tmp_path / "copies")) == ["b.gz.part", "b.gz.part.done", "c"]


def test_plan_that_is_taken_for_left_behind(tmp_path, monkeypatch):
    """Another process looks between the making of the file and its lock."""
    mine, theirs, looks = Plans(str(tmp_path)), Plans(str(tmp_path)), []
    lock = fcntl.flock

    def look_first(fd, how):
        if how == fcntl.LOCK_EX and not looks:
            looks.append(len(os.listdir(tmp_path)))
            assert theirs.ranks() == {}
            assert os.listdir(tmp_path) == []
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", look_first)
    mine.set(0, ["x", "y"])
    assert looks == [1]
    assert theirs.ranks() == {"x": 0, "y": 1}


def test_plan_whose_folder_is_taken_away(tmp_path):
    folder = tmp_path / "plans"
    mine, theirs = Plans(str(folder)), Plans(str(folder))
    mine.set(0, ["x"])
    assert theirs.ranks() == {"x": 0}
    shutil.rmtree(folder)
    mine.set(0, ["x", "y"])
    assert theirs.ranks() == {"x": 0, "y": 1}
    del mine
    gc.collect()
    assert theirs.ranks() == {}
    assert os.listdir(folder) == []


def test_folder_that_is_taken_away(tmp_path):
    cache = ShardCache(tmp_path / "cache", 1000)
    for _ in range(2):
        with cache.acquire(entry("a")) as lease:
            assert os.path.exists(lease.path)
        shutil.rmtree(tmp_path / "cache")


def counted_listings(cache, monkeypatch):
    """Files in each listing of the cache from now on."""
    found, listed = [], cache._list

    def count():
        copies = listed()
        found.append(len(copies))
        return copies

    monkeypatch.setattr(cache, "_list", count)
    return found


@pytest.mark.parametrize("exact", [True, False])
def test_listings_grow_with_the_number_of_copies_not_its_square(tmp_path, monkeypatch, exact):
    """Both while there is room and when each copy needs another one's."""
    size, room = 64, 320
    cache = ShardCache(tmp_path, size * room)
    found = counted_listings(cache, monkeypatch)
    for number in range(room):
        use(cache, f"{number}", size=size, exact=exact)
    assert sum(found) <= 2 * room
    assert len(held(cache)) == room
    found.clear()
    for number in range(room, 2 * room):
        use(cache, f"{number}", size=size, exact=exact)
    assert len(found) <= room // 4
    assert size * room * 63 // 64 <= cache.num_bytes() <= size * room


def test_what_is_planned_is_not_dropped_for_room_to_spare(tmp_path):
    cache = ShardCache(tmp_path, 2560)
    for number in range(256):
        use(cache, f"{number}")
    cache.plan(0, [f"{number}" for number in range(254)])
    use(cache, "new")
    assert len(held(cache)) == 255  # Only those that nobody has planned.
    cache.plan(0, [])


def test_locks_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_locks, "_NUM_FILES", 3)
    cache = ShardCache(tmp_path, 100)
    for number in range(30):
        use(cache, f"{number}")
        use(cache, f"{number}.gz")
    assert len(os.listdir(tmp_path / "locks")) <= 6


def test_copies_that_share_a_lock(tmp_path, monkeypatch):
    """One waits for the other, drops what a dead one left, and a copy of a copy for nobody."""
    monkeypatch.setattr(cache_locks, "_NUM_FILES", 1)
    cache, begun, end = ShardCache(tmp_path, 30), threading.Event(), threading.Event()

    def make(target):
        begun.set()
        assert end.wait(20)
        with open(target, "r+b") as file:
            file.write(b"s" * 10)

    maker = threading.Thread(target=lambda: cache.acquire(Entry("s", 10, True, make)).close())
    maker.start()
    assert begun.wait(20)
    second = threading.Thread(target=use, args=(cache, "t"))
    second.start()
    use(cache, "u.gz")  # The other kind: it waits for neither.
    assert held(cache) == ["s.part", "u.gz"]
    end.set()
    maker.join()
    second.join()
    assert held(cache) == ["s", "t", "u.gz"]
    (tmp_path / "copies" / "dead.part").write_bytes(b"x" * 25)
    cache.plan(0, ["t", "u.gz", "v"])
    (tmp_path / "held").unlink()

    def unpack(target):
        with cache.acquire(entry("v.gz")), open(target, "r+b") as file:
            file.write(b"v" * 10)

    cache.acquire(Entry("v", 10, True, unpack)).close()
    assert held(cache) == ["t", "v", "v.gz"]
    cache.plan(0, [])


@pytest.mark.parametrize("count", [b"", b"0", b"\xff" * 99, b"00000000 [[], 0, [], 99]", None])
def test_count_that_is_garbage_makes_for_a_listing(tmp_path, count):
    cache = ShardCache(tmp_path, 50)
    for name in "abcde":
        use(cache, name)
    if count is None:
        os.unlink(tmp_path / "held")
    else:
        (tmp_path / "held").write_bytes(count)
    use(cache, "f")
    assert cache.num_bytes() == 50


def test_count_of_another_time_or_folder_does_not_count(tmp_path, monkeypatch):
    boot = tmp_path / "boot_id"
    boot.write_text("before\n")
    monkeypatch.setattr(cache_count, "_BOOT_ID", str(boot))
    cache = ShardCache(tmp_path / "a", 50)
    use(cache, "a")
    early = (tmp_path / "a" / "held").read_bytes()
    for name in "bcde":
        use(cache, name)
    late = (tmp_path / "a" / "held").read_bytes()
    (tmp_path / "a" / "held").write_bytes(early)  # Its last writes were lost with the power.
    boot.write_text("after\n")
    use(cache, "f")
    assert cache.num_bytes() == 50
    boot.write_text("before\n")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "held").write_bytes(early)
    copied = ShardCache(tmp_path / "b", 50)
    use(copied, "g")
    assert copied.num_bytes() == 50
    assert late != early
    boot.unlink()
    for name in "hijk":  # Where nothing tells the time, each copy takes a listing.
        use(copied, name)
        assert copied.num_bytes() == 50


def test_files_that_are_removed_by_hand(tmp_path, monkeypatch):
    cache = ShardCache(tmp_path, 50)
    for name in "abcde":
        use(cache, name)
    for name in "abcd":
        os.unlink(tmp_path / "copies" / name)
    found = counted_listings(cache, monkeypatch)
    for name in "fghi":
        use(cache, name)
    assert sorted(os.listdir(tmp_path / "copies")) == list("efghi")
    assert found == [1]  # The count was too high once.


def test_files_that_are_put_in_by_hand_are_noticed_in_time(tmp_path):
    cache = ShardCache(tmp_path, 5000)
    use(cache, "a")
    for number in range(100):
        (tmp_path / "copies" / f"stranger{number}").write_bytes(b"x" * 50)
    for number in range(64):
        use(cache, f"{number}")
    assert cache.num_bytes() <= 5000


def test_copy_that_outgrows_its_room_counts_in_full(tmp_path):
    """While it is made, and once it is there."""
    cache, begun, end = ShardCache(tmp_path, 100), threading.Event(), threading.Event()

    def make(target):
        with open(target, "r+b") as file:
            file.write(b"x" * 75)
        begun.set()
        assert end.wait(20)

    maker = threading.Thread(target=lambda: cache.acquire(Entry("big", 5, False, make)).close())
    for name in "abc":
        use(cache, name)
    maker.start()
    assert begun.wait(20)
    use(cache, "d")
    assert cache.num_bytes() <= 100
    use(cache, "e")
    assert held(cache).count("big.part") == 1
    end.set()
    maker.join()
    assert "big" in held(cache)
    use(cache, "f")
    assert cache.num_bytes() <= 100


def _die_while_it_makes(folder, name, size, reserved):
    def make(target):
        with open(target, "r+b") as file:
            file.write(b"x" * size)
            file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    ShardCache(folder, 100).acquire(Entry(name, reserved, False, make))


def test_part_of_a_dead_process_counts_in_full(tmp_path):
    cache = ShardCache(tmp_path, 100)
    use(cache, "a")
    arguments = (tmp_path, "dead", 75, 5)
    process = multiprocessing.get_context("spawn").Process(
        target=_die_while_it_makes, args=arguments
    )
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert cache.num_bytes() == 85
    use(cache, "b")
    assert held(cache) == ["a", "b", "dead.part"]
    use(cache, "c")
    assert cache.num_bytes() <= 100


def _use_many(folder, seed, num_steps, budget):
    cache = ShardCache(folder, budget)
    for step in range(num_steps):
        number = (step * (2 * seed + 1) + seed) % 40
        with cache.acquire(entry(f"{number}", size=10 + number, exact=number % 2 > 0)) as lease:
            assert os.path.getsize(lease.path) == 10 + number


def _is_bound(cache):
    """True if the count, if there is one, is no less than what is held."""
    with cache._locks.room():
        if cache._count._read() is None:
            return True
        making = {f"{name}.part" for name in cache._count.making()}
        settled = sum(size for name, size, _ in cache._list() if name not in making)
        return cache._count._read().settled >= settled


@pytest.mark.parametrize("num_kills", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_count_is_never_too_low_whatever_is_killed(tmp_path, num_kills):
    context, budget = multiprocessing.get_context("spawn"), 400
    cache = ShardCache(tmp_path, budget)
    most = 0
    for kill in range(num_kills // 2):
        workers = [
            context.Process(target=_use_many, args=(tmp_path, seed, 100_000, budget))
            for seed in range(2)
        ]
        for worker in workers:
            worker.start()
        time.sleep(0.8)
        for worker in workers:
            for _ in range(20):
                assert _is_bound(cache)
            time.sleep(0.013 * (kill % 7))
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
        assert _is_bound(cache)
        most = max(most, cache.num_bytes())
        use(cache, f"after {kill}")
        assert cache.num_bytes() <= budget
    assert most <= budget + 2 * 50  # What a killed process needed at once.


def _note_makers(folder, log, seed, num_steps):
    """Uses copies that other processes use too, and some that they do not; returns what was made.

    Each copy is made in the presence of a file that nobody else may find.
    """
    cache = ShardCache(folder, 100)

    def make(name):
        def fill(target):
            inside = f"{log}.{name}"
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            with open(target, "r+b") as file:
                file.write(name[-1].encode() * 20)
            os.unlink(inside)

        return fill

    for step in range(num_steps):
        name = f"same{step % 6}" if step % 2 else f"own{seed}{step % 7}"
        with cache.acquire(Entry(name, 20, True, make(name))) as lease, open(lease.path) as file:
            assert file.read() == name[-1] * 20
    return cache.num_bytes()


def test_four_processes_make_the_same_and_other_copies(tmp_path):
    """34 copies of 20 bytes in a budget of 100, and nobody makes what another one is making."""
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        arguments = [(tmp_path / "cache", tmp_path / "log", seed, 60) for seed in range(4)]
        found = pool.starmap(_note_makers, arguments, chunksize=1)
    # While others are in use, the budget is exceeded by what is needed at the time.
    assert max(found) <= 100 + 3 * 20
    cache = ShardCache(tmp_path / "cache", 100)
    use(cache, "last", size=20)
    assert cache.num_bytes() <= 100
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("log")]


def _make_for_ever(folder, ready):
    def make(target):
        ready.set()
        time.sleep(60)

    ShardCache(folder, 100).acquire(Entry("a", 10, True, make))


def test_copy_of_a_killed_maker_is_made_by_who_waits_for_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, start = context.Event(), time.monotonic()
    maker = context.Process(target=_make_for_ever, args=(tmp_path, ready))
    maker.start()
    assert ready.wait(30)
    cache, found = ShardCache(tmp_path, 100), []
    waiter = threading.Thread(target=lambda: found.append(cache.acquire(entry("a"))))
    waiter.start()
    waiter.join(0.3)
    assert not found
    os.kill(maker.pid, signal.SIGKILL)
    waiter.join(20)
    maker.join()
    assert found[0].path.endswith("/a")
    assert time.monotonic() - start < 50  # Nobody had to find out that it has stopped.
    found[0].close()


def _make_and_fork(folder, pipe):
    """Makes a copy for ever, with a forked process beside it that has no part in it."""
    begun = threading.Event()

    def make(target):
        begun.set()
        time.sleep(60)

    copy = Entry("a", 10, True, make)
    threading.Thread(target=ShardCache(folder, 100).acquire, args=(copy,), daemon=True).start()
    assert begun.wait(30)
    if os.fork() == 0:
        signal.alarm(60)
        pipe.send(os.getpid())
    time.sleep(60)


def test_copy_of_a_killed_maker_is_free_though_its_forked_process_lives(tmp_path):
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    maker = context.Process(target=_make_and_fork, args=(tmp_path, theirs))
    maker.start()
    assert pipe.poll(60)
    child = pipe.recv()
    try:
        locks = CacheLocks(str(tmp_path))
        with locks.abandoned("a", "b") as gone:
            assert not gone
        os.kill(maker.pid, signal.SIGKILL)
        maker.join()
        with locks.abandoned("a", "b") as gone:
            assert gone
        os.kill(child, 0)  # It lives.
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_child_that_leaves_the_block_of_its_parent_unlocks_nothing(tmp_path):
    locks = CacheLocks(str(tmp_path))
    locks.make_folder()
    parent, child = os.getpid(), 0
    with locks.maker("a", lambda: 0.0):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
        else:
            assert os.waitpid(child, 0)[1] == 0
            with CacheLocks(str(tmp_path)).abandoned("a", "b") as gone:
                assert not gone
    if os.getpid() != parent:
        os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_holds_neither_copies_nor_plans(tmp_path):
    cache, plans = ShardCache(tmp_path, 10), Plans(str(tmp_path / "plans"))
    lease = cache.acquire(entry("a"))
    plans.set(0, ["a"])
    go, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        lease.close()  # It has been, so no other descriptor is.
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        plans.set(0, ["b"])  # In a file of its own.
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"x"
        cache.acquire(entry("b"))  # The parent still holds its copy.
        assert held(cache) == ["a", "b"]
        lease.close()
        use(cache, "c")
        assert held(cache) == ["c"]
        os.write(go[1], b"x")
        assert os.read(ready[0], 1) == b"x"
        assert plans.ranks() == {"a": 0, "b": 0}
    finally:
        os.write(go[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        for fd in (*go, *ready):
            os.close(fd)
    assert plans.ranks() == {"a": 0}


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_fork_while_a_copy_is_made(tmp_path):
    """The child neither holds the lock nor lets it go, and outlives the parent's holding it."""
    cache, begun, end = ShardCache(tmp_path, 100), threading.Event(), threading.Event()

    def make(target):
        begun.set()
        assert end.wait(30)
        with open(target, "r+b") as file:
            file.write(b"a" * 10)

    maker = threading.Thread(target=lambda: cache.acquire(Entry("a", 10, True, make)).close())
    maker.start()
    assert begun.wait(20)
    go, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with cache._locks.abandoned("a", "b") as gone:
            os.write(done[1], b"01"[gone : gone + 1])
        os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(done[0], 1) == b"0"
        with cache._locks.abandoned("a", "b") as gone:
            assert not gone  # What the child closed was its own.
        end.set()
        maker.join()
        with cache._locks.abandoned("a", "b") as gone:
            assert gone  # Though the child, which was forked while it was held, still lives.
    finally:
        os.write(go[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        for fd in (*go, *done):
            os.close(fd)
