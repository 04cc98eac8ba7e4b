"""The cache of local copies: budget, order of eviction, sharing and crashes."""

import errno
import gc
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest
from support.helpers import wait_until

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


def test_copies_are_made_once(tmp_path):
    cache, log = ShardCache(tmp_path, 100), tmp_path / "log"
    for _ in range(3):
        with cache.acquire(entry("a", log=log)) as lease, open(lease.path) as file:
            assert file.read() == "a" * 10
    assert log.read_text() == "a "
    assert cache.has("a")
    assert cache.num_bytes() == 10


def test_oldest_use_goes_first(tmp_path):
    cache = ShardCache(tmp_path, 100)
    for name in "abcdefghij":  # No folder lists all of them in the order of their use.
        use(cache, name)
        time.sleep(0.01)
    for name in "gbi":
        use(cache, name)
        time.sleep(0.01)
    for number, left in enumerate(["acdefhjgbi"[n:] for n in range(1, 8)]):
        use(cache, f"{number}")
        assert "".join(cache.held()).strip("0123456") == "".join(sorted(left))


def test_farthest_next_use_goes_first(tmp_path):
    cache = ShardCache(tmp_path, 40)
    for name in "abcd":
        use(cache, name)
    cache.plan("lane 0", ["a", "b", "c"])
    cache.plan("lane 1", ["e", "f", "c"])
    use(cache, "e")
    assert cache.held() == ["a", "b", "c", "e"]  # Nobody has planned d.
    use(cache, "f")
    assert cache.held() == ["a", "b", "e", "f"]
    cache.plan("lane 0", [])
    use(cache, "c")
    assert "e" in cache.held()
    assert "f" in cache.held()


def test_what_is_in_use_stays(tmp_path):
    cache = ShardCache(tmp_path, 20)
    with cache.acquire(entry("a")), cache.acquire(entry("b")):
        cache.plan(0, ["c", "d"])
        assert cache.acquire(entry("d"), ahead=True) is None  # Not needed now, so it waits.
        use(cache, "c")  # Needed now, so the budget gives way.
        assert cache.held() == ["a", "b", "c"]
    use(cache, "d")
    assert cache.num_bytes() <= 20


def test_look_ahead_does_not_drop_what_is_sooner(tmp_path):
    cache = ShardCache(tmp_path, 20)
    for name in "ab":
        use(cache, name)
    cache.plan(0, ["a", "b", "c"])
    assert cache.acquire(entry("c"), ahead=True) is None
    assert cache.held() == ["a", "b"]
    cache.plan(0, ["b", "c"])
    cache.acquire(entry("c"), ahead=True).close()
    assert cache.held() == ["b", "c"]


def test_look_ahead_drops_nothing_for_what_does_not_fit(tmp_path):
    cache = ShardCache(tmp_path, 100)
    use(cache, "later")
    with cache.acquire(entry("used", 80)):
        cache.plan(0, ["used", "next", "later"])
        assert cache.acquire(entry("next", 30), ahead=True) is None
        assert cache.held() == ["later", "used"]
        cache.acquire(entry("next", 20), ahead=True).close()  # Room for it can be made.
        assert cache.held() == ["next", "used"]
    cache.plan(0, ["huge", "next", "used"])
    assert cache.acquire(entry("huge", 101), ahead=True) is None
    assert cache.held() == ["next", "used"]
    use(cache, "huge", size=101)  # Needed now.
    assert cache.held() == ["huge"]


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
        assert cache.held() == ["later", "sooner"]
    assert len(made) == 1  # Its size is known now.
    cache.acquire(big).close()
    assert cache.held() == ["big"]


def test_what_a_copy_is_made_of_has_its_place_in_the_plan(tmp_path):
    cache = ShardCache(tmp_path, 40)
    for name in ("a", "b", "later"):
        use(cache, name)
    cache.plan(0, ["a", "b", "plain", "later"])
    assert cache.acquire(entry("p.gz", 30), ahead=True, used_by="plain") is None
    assert cache.acquire(entry("p.gz", 20), ahead=True) is None  # For nobody, so last of all.
    assert cache.held() == ["a", "b", "later"]
    cache.acquire(entry("p.gz", 20), ahead=True, used_by="plain").close()
    assert cache.held() == ["a", "b", "p.gz"]
    cache.plan(0, [])


def test_larger_than_the_budget(tmp_path):
    cache = ShardCache(tmp_path, 5)
    use(cache, "a")
    use(cache, "b")
    assert cache.held() == ["b"]
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
    assert cache.held() == ["big"]


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
        attempts.append(cache.held())
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


def test_folder_that_is_taken_away(tmp_path):
    cache = ShardCache(tmp_path / "cache", 1000)
    for _ in range(2):
        with cache.acquire(entry("a")) as lease:
            assert os.path.exists(lease.path)
        shutil.rmtree(tmp_path / "cache")


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


def _hold_and_wait(folder, ready):
    cache = ShardCache(folder, 20)
    cache.plan(0, ["b"])
    lease = cache.acquire(entry("a"))
    use(cache, "b")
    ready.set()
    time.sleep(60)
    lease.close()


def test_what_other_processes_use_and_plan_counts_while_they_live(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold_and_wait, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    cache = ShardCache(tmp_path, 20)
    cache.plan(0, ["x", "y", "c"])
    assert cache.acquire(entry("c"), ahead=True) is None  # a is in use and b is planned.
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    cache.acquire(entry("c"), ahead=True).close()  # Nobody uses a any more.
    assert cache.held() == ["b", "c"]
    early = ShardCache(tmp_path, 20, plan_seconds=0.05)
    time.sleep(0.1)
    early.plan(0, ["d"])
    early.acquire(entry("d"), ahead=True).close()  # Nor are plans believed that nobody renews.
    assert early.held() == ["c", "d"]


def test_a_plan_counts_until_it_is_forgotten(tmp_path):
    mine, theirs = Plans(str(tmp_path), 0.2), Plans(str(tmp_path), 0.2)
    mine.set("lane 0", ["x", "y"])
    mine.set("lane 1", ["z", "x"])
    assert theirs.ranks() == mine.ranks() == {"x": 0, "y": 1, "z": 0}
    for _ in range(10):
        time.sleep(0.05)
        mine.renew()
        assert theirs.ranks() == {"x": 0, "y": 1, "z": 0}
    shutil.rmtree(tmp_path)
    assert theirs.ranks() == {}
    mine.set("lane 0", ())
    assert theirs.ranks() == {"z": 0, "x": 1}
    (tmp_path / "half").write_text("{")  # As it is while another process writes it.
    assert theirs.ranks() == {"z": 0, "x": 1}
    del mine
    gc.collect()
    assert theirs.ranks() == {}


def make_slowly(begun, end, size=10):
    def make(target):
        begun.set()
        assert end.wait(60)
        with open(target, "r+b") as file:
            file.write(b"a" * size)

    return Entry("a", size, True, make)


def test_one_makes_what_others_wait_for(tmp_path):
    """A thread that needs it waits, look-ahead does not, and neither makes it again."""
    cache, begun, end = ShardCache(tmp_path, 1000), threading.Event(), threading.Event()
    leases = []
    makers = [
        threading.Thread(target=lambda: leases.append(cache.acquire(make_slowly(begun, end))))
        for _ in range(3)
    ]
    makers[0].start()
    assert begun.wait(20)
    with pytest.raises(BlockingIOError, match="making"):
        cache.acquire(entry("a"), ahead=True)
    cache.acquire(entry("b"), ahead=True).close()
    assert cache.held() == ["a.part", "b"]
    for maker in makers[1:]:
        maker.start()
    end.set()
    for maker in makers:  # Though nobody gives his lease back.
        maker.join(20)
    assert len({lease.identity for lease in leases}) == 1
    assert len(leases) == 3
    assert cache.held() == ["a", "b"]


def test_maker_that_has_stopped_is_not_waited_for(tmp_path):
    cache, begun, end = ShardCache(tmp_path, 1000), threading.Event(), threading.Event()
    maker = threading.Thread(target=lambda: cache.acquire(make_slowly(begun, end)).close())
    maker.start()
    assert begun.wait(20)
    hasty = ShardCache(tmp_path, 1000, stuck_seconds=0.1)
    with pytest.raises(TimeoutError, match=r"copies/a\.part is locked.*End that process"):
        hasty.acquire(entry("a"))
    end.set()
    maker.join()
    with hasty.acquire(entry("a")) as lease:
        assert os.path.exists(lease.path)


def test_slow_maker_is_waited_for(tmp_path):
    cache, begun = ShardCache(tmp_path, 1000, stuck_seconds=0.2), threading.Event()

    def make(target):
        for step in range(10):
            with open(target, "r+b") as file:
                file.write(b"x" * 10 * (step + 1))
            begun.set()
            time.sleep(0.1)

    slow = Entry("a", 100, True, make)
    maker = threading.Thread(target=lambda: cache.acquire(slow).close())
    maker.start()
    assert begun.wait(20)
    with cache.acquire(slow) as lease:
        assert os.path.getsize(lease.path) == 100
    maker.join()


def _die_while_it_makes(folder, name, size, reserved):
    def make(target):
        with open(target, "r+b") as file:
            file.write(b"x" * size)
            file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    ShardCache(folder, 100).acquire(Entry(name, reserved, False, make))


def test_part_of_a_dead_process_counts_and_is_taken_up_or_dropped(tmp_path):
    cache = ShardCache(tmp_path, 100)
    use(cache, "a")
    arguments = (tmp_path, "dead", 75, 75)
    process = multiprocessing.get_context("spawn").Process(
        target=_die_while_it_makes, args=arguments
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert cache.num_bytes() == 85
    use(cache, "b")
    assert cache.held() == ["a", "b", "dead.part"]
    assert cache.acquire(Entry("dead", 101, True, print), ahead=True) is None
    found = []

    def go_on(target):
        with open(target, "rb") as file:
            found.append(file.read())

    cache.acquire(Entry("dead", 75, True, go_on)).close()
    assert found == [b"x" * 75]
    assert cache.held() == ["a", "b", "dead"]
    os.rename(tmp_path / "copies" / "dead", tmp_path / "copies" / "other.part")
    (tmp_path / "copies" / "other.part.done").write_bytes(b"1234")
    for name in "cde":  # The part of nobody goes in its turn, with what was written down of it.
        use(cache, name)
    assert sorted(os.listdir(tmp_path / "copies")) == list("bcde"[-4:])


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
    assert "big.part" in cache.held()
    end.set()
    maker.join()
    use(cache, "f")
    assert "big" in cache.held()
    assert cache.num_bytes() <= 100


def _use_many(folder, log, seed, num_steps, budget):
    """Uses copies of many sizes. Each is made in the presence of a file that nobody else finds."""
    cache = ShardCache(folder, budget)
    for step in range(num_steps):
        number = (step * (2 * seed + 1) + seed) % 40

        def make(target, name=f"{log}.{number}", size=10 + number):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL))
            with open(target, "r+b") as file:
                file.write(b"%02d" % (size - 10) * size)
                file.truncate(size)
            os.unlink(name)

        copy = Entry(f"{number}", 10 + number, number % 2 > 0, make)
        with cache.acquire(copy) as lease, open(lease.path, "rb") as file:
            assert file.read() == (b"%02d" % number * (10 + number))[: 10 + number]
    return cache.num_bytes()


def test_processes_make_the_same_and_other_copies(tmp_path):
    """40 copies of 10 to 49 bytes in a budget of 200; nobody makes what another one is making."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        arguments = [(tmp_path / "cache", tmp_path / "log", n, 60, 200) for n in range(3)]
        found = pool.starmap(_use_many, arguments, chunksize=1)
    # While others are in use, the budget is exceeded by what is needed at the time.
    assert max(found) <= 200 + 2 * 49
    cache = ShardCache(tmp_path / "cache", 200)
    use(cache, "last")
    assert cache.num_bytes() <= 200
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("log")]


def test_threads_make_the_same_and_other_copies(tmp_path):
    found = []
    threads = [
        threading.Thread(
            target=lambda n=n: found.append(_use_many(tmp_path, tmp_path / "log", n, 60, 200))
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert max(found) <= 200 + 2 * 49


@pytest.mark.parametrize("num_kills", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_whatever_is_killed_the_budget_holds_and_copies_are_whole(tmp_path, num_kills):
    context, budget = multiprocessing.get_context("spawn"), 400
    cache = ShardCache(tmp_path / "cache", budget)
    for kill in range(num_kills // 2):
        workers = [
            context.Process(
                target=_use_many,
                args=(tmp_path / "cache", tmp_path / f"log{kill}{seed}", seed, 100_000, budget),
            )
            for seed in range(2)
        ]
        for worker in workers:
            worker.start()
        wait_until(lambda: len(cache.held()) > 5)
        for worker in workers:
            time.sleep(0.1 + 0.013 * (kill % 7))
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            assert worker.exitcode == -signal.SIGKILL  # It was at work, and found no torn copy.
        assert cache.num_bytes() <= budget + 2 * 50  # What a killed process needed at once.
        use(cache, f"after {kill}")
        assert cache.num_bytes() <= budget
    for name in cache.held():
        if name.isdecimal():
            content = (tmp_path / "cache" / "copies" / name).read_bytes()
            assert content == (b"%02d" % int(name) * len(content))[: 10 + int(name)]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_holds_nothing_of_its_parent(tmp_path):
    """Neither a copy in use nor one that is being made, and it lets neither go."""
    cache, begun, end = ShardCache(tmp_path, 20), threading.Event(), threading.Event()
    lease = cache.acquire(entry("used"))
    maker = threading.Thread(target=lambda: cache.acquire(make_slowly(begun, end)).close())
    maker.start()
    assert begun.wait(20)
    go, ready = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        lease.close()
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"x"
        with pytest.raises(BlockingIOError):
            cache.acquire(entry("a"), ahead=True)  # The parent still makes it.
        cache.acquire(entry("b")).close()
        assert cache.held() == ["a.part", "b", "used"]  # And still holds its copy.
        lease.close()
        end.set()
        maker.join()
        use(cache, "c")
        use(cache, "d")
        assert cache.held() == ["c", "d"]  # Though the child lives.
    finally:
        os.write(go[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        for fd in (*go, *ready):
            os.close(fd)
