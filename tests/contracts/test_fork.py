"""What a forked process and threads that import JAX find: free locks, NumPy, the same order."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
from support.helpers import mixture

import zephon_jax as zx
from zephon_jax._process import PerProcess


def run(code):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.strip().splitlines()[-1])


def test_a_child_finds_locks_free_that_threads_held():
    """A thread holds every lock of a source while the process forks."""
    same = run("""
        import json, os, signal, threading
        import zephon_jax as zx
        from zephon_jax import _process as per_process
        source = zx.StaticMixtureWorkSource(
            [zx.Dataset.from_counts("a", [900, 90])], {"a": 1}, 64, exhausted_policy="repeat")
        expected = source.next_chunk(source.seek(5))[0].order()[1].tolist()
        held, done = threading.Event(), threading.Event()
        def hold():
            for one in list(per_process._all):
                one._lock.acquire()
                if one._make is threading.RLock:
                    one.get().acquire()
            held.set()
            done.wait()
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            got = source.next_chunk(source.seek(5))[0].order()[1].tolist()
            os.write(write, str(int(got == expected)).encode())
            os._exit(0)
        print(json.dumps([os.waitpid(child, 0)[1], os.read(read, 1).decode()]))
        done.set()
    """)
    assert same == [0, "1"]


def test_a_child_computes_with_numpy_what_the_parent_compiled():
    """Round robins by a kernel in the parent, and of other counts by NumPy in the child."""
    same = run("""
        import json, os, signal, warnings
        import numpy as np
        from zephon_jax.kernels import backend, swrr
        def equal(counts):
            found = backend.swrr_orders(counts, 512)
            return len(found) == 40 and all(
                (row == swrr.order(one, 512)).all() for row, one in zip(found, counts))
        first, second = np.full((40, 2), 256), np.tile([300, 212], (40, 1))
        backend.use_backend("jax")
        backend.swrr_orders(first, 512)
        backend.finish_compiling()
        compiled = ("swrr", 2, 512) in backend.compiled() and bool(equal(first))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                backend.use_backend("jax")
            right = equal(second) and "forked" in str(caught[0].message)
            os.write(write, str(int(right)).encode())
            os._exit(0)
        print(json.dumps([os.waitpid(child, 0)[1], os.read(read, 1).decode(), compiled]))
    """)
    assert same == [0, "1", True]


def test_jax_half_imported_is_no_jax(monkeypatch):
    """Another thread has begun to import JAX: its module is there, and nothing in it."""
    expected = zx.swrr.order(np.array([3, 1])).tolist()
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    assert zx.swrr.order(np.array([3, 1])).tolist() == expected
    source = mixture([100, 30], chunk_size=16)
    config = zx.MixtureReadConfig(mode="weighted_random")
    assert len(source.next_chunk(source.init())[0].order(config)[0]) == 16


def test_a_thread_that_holds_the_locks_may_take_them_again():
    """As a signal's handler or a finalizer does, which steps a source in mid-step."""
    same = run("""
        import json, signal, threading
        import zephon_jax as zx
        from zephon_jax import _process as per_process
        source = zx.StaticMixtureWorkSource(
            [zx.Dataset.from_counts("a", [900, 90])], {"a": 1}, 64, exhausted_policy="repeat")
        expected = source.next_chunk(source.seek(5))[0].order()[1].tolist()
        signal.alarm(30)
        held = 0
        for one in list(per_process._all):
            if one._make in (threading.Lock, threading.RLock):
                one.get().acquire()
                held += 1
        got = source.next_chunk(source.seek(6))[0], source.next_chunk(source.seek(5))[0]
        print(json.dumps([held > 0, got[1].order()[1].tolist() == expected]))
    """)
    assert same == [True, True]


def test_ranges_of_far_passes_are_those_of_draws():
    """A thousand shards of one sample and passes a million apart: no table of all between."""
    source = mixture([[1] * 1000], chunk_size=2000, exhausted_policy="repeat")
    draws = source.run.orders.lookup(0)
    first = np.asarray([0, 10**9])
    got = draws.of_ranges(np.zeros(2, np.int64), first, np.full(2, 1500))
    wanted = np.concatenate([np.arange(1500), np.arange(10**9, 10**9 + 1500)])
    assert np.array_equal(got, draws.of_draws(np.zeros(3000, np.int64), wanted))


def test_a_value_may_ask_for_another_while_it_is_made():
    """As where the garbage collector ends a lane in the middle: its finalizer asks too."""
    values = PerProcess(lambda *name: name or (values.get("other"), values.get("third")))
    found = []
    thread = threading.Thread(target=lambda: found.append(values.get()), daemon=True)
    thread.start()
    thread.join(20)
    assert found == [(("other",), ("third",))]
