"""Compiled kernels whatever the program around has set: the same orders, or NumPy and one warning.

Meshes, devices and flags belong to a process, so each group of them has a process of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from zephon_jax.kernels import compiled as kernels

COMMON = """
import contextlib, json, threading, warnings
import numpy as np
import zephon_jax as zx
from zephon_jax.kernels import backend
from zephon_jax.kernels import compiled as kernels
from zephon_jax.kernels import quota
from zephon_jax.sources import read_order as reading

def orders():
    reading.remembered.forget()
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_counts(n, [9000] * 4) for n in "abc"], {"a": 5, "b": 3, "c": 1}, 4096,
        exhausted_policy="repeat", shuffle_within_shard=True)
    state, found = source.init(), []
    for _ in range(3):
        chunk, state = source.next_chunk(state)
        found.append(chunk.order()[1])
    return np.concatenate(found)

expected = orders()

def run_and_compare(name):
    assert np.array_equal(orders(), expected), name

def compile_and_compare(name):
    kernels.forget()
    run_and_compare(name)
    backend.finish_compiling()
    assert {kernel[0] for kernel in backend.compiled()} == {"rounds", "swrr"}, name
    run_and_compare(name)
"""


def start(code, *, flags=("-W", "error"), **environment):
    return subprocess.Popen(
        [sys.executable, *flags, "-c", COMMON + textwrap.dedent(code)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process):
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]
    return out.splitlines()


FOUR_DEVICES = "--xla_force_host_platform_device_count=4"


def test_a_mesh_and_a_trace_do_not_reach_them():
    """The short form of the test below."""
    lines = said(
        start(
            """
            import jax
            from jax.sharding import AxisType
            zx.use_backend("jax")
            mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
            with jax.set_mesh(mesh):
                compile_and_compare("mesh")

            def inside(x):
                run_and_compare("trace")
                return x

            jax.jit(inside)(1.0)
            print("same")
            """,
            XLA_FLAGS=FOUR_DEVICES,
        )
    )
    assert lines == ["same"]


@pytest.mark.slow
def test_meshes_devices_contexts_and_traces_do_not_reach_them():
    lines = said(
        start(
            """
            import jax, jax.numpy as jnp
            from jax.sharding import AxisType, PartitionSpec as P
            zx.use_backend("jax")
            assert len(jax.devices()) == 4
            compile_and_compare("nothing")
            for types in (AxisType.Auto, AxisType.Explicit):
                for devices in (jax.devices()[2:], jax.devices()):
                    mesh = jax.make_mesh(
                        (len(devices),), ("x",), devices=devices, axis_types=(types,))
                    with jax.set_mesh(mesh):
                        compile_and_compare(f"mesh {types}")
            contexts = {
                "default device": jax.default_device(jax.devices()[3]),
                "guard": jax.transfer_guard("disallow_explicit"),
                "disable_jit": jax.disable_jit(),
                "nans": jax.debug_nans(True),
                "x64": jax.enable_x64(True),
                "promotion": jax.numpy_dtype_promotion("strict"),
                "rank": jax.numpy_rank_promotion("raise"),
                "leaks": jax.checking_leaks(),
            }
            for name, context in contexts.items():
                with context:
                    run_and_compare(name)

            def inside(x):
                run_and_compare("trace")
                return x

            jax.jit(inside)(1.0)
            jax.vmap(inside)(jnp.arange(2.0))
            jax.grad(inside)(1.0)
            mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
            mapped = jax.shard_map(inside, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
            jax.jit(mapped)(jnp.arange(8.0))
            jax.set_mesh(mesh)  # for good
            compile_and_compare("mesh of the program")
            print("same")
            """,
            XLA_FLAGS=FOUR_DEVICES,
        )
    )
    assert lines == ["same"]


def test_flags_of_the_whole_process_do_not_reach_them():
    """Flags, unlike contexts, hold in the compiler's thread too."""
    lines = said(
        start(
            """
            import jax
            zx.use_backend("jax")
            flags = {
                "jax_default_device": jax.devices()[3],
                "jax_transfer_guard": "disallow",
                "jax_disable_jit": True,
                "jax_debug_nans": True,
                "jax_enable_x64": True,
                "jax_numpy_dtype_promotion": "strict",
                "jax_numpy_rank_promotion": "raise",
                "jax_check_tracer_leaks": True,
                "jax_enable_checks": True,
            }
            for name, value in flags.items():
                jax.config.update(name, value)
            compile_and_compare("all at once")
            print("same")
            """,
            XLA_FLAGS=FOUR_DEVICES,
        )
    )
    assert lines == ["same"]


def test_callbacks_of_jax_programs_do_not_wait_for_a_kernel():
    """All threads of the CPU may stand in callbacks: a kernel in one of them would never run."""
    lines = said(
        start(
            """
            import faulthandler
            import jax, jax.numpy as jnp
            from jax.experimental import io_callback
            from jax.sharding import AxisType, PartitionSpec as P
            faulthandler.dump_traceback_later(120, exit=True)
            zx.use_backend("jax")
            compile_and_compare("before")
            called = []

            def callback(x):
                run_and_compare("callback")
                called.append(1)
                return np.zeros(x.shape, x.dtype)

            def step(x):
                x = jax.lax.psum(x, "x")
                x = io_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
                return jax.lax.psum(x, "x")

            mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
            mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P()))
            jax.block_until_ready([mapped(jnp.ones((400, 50))) for _ in range(3)])
            alone = jax.jit(lambda x: jax.pure_callback(callback, x, x))
            jax.block_until_ready(alone(jnp.ones(3)))
            print(len(called))
            """,
            XLA_FLAGS=FOUR_DEVICES,
        )
    )
    assert lines == ["13"]


def test_a_process_without_a_cpu_platform_computes_with_numpy_and_says_so():
    """No platform is started for it: the trainer's may be on the way."""
    lines = said(
        start(
            """
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                zx.use_backend("jax")
                run_and_compare("numpy")
            (warning,) = caught
            print(warning.message)
            from jax._src import xla_bridge
            print(xla_bridge.backends_are_initialized(), backend.compiled())
            """,
            JAX_PLATFORMS="cuda",
        )
    )
    assert "'cuda,cpu'" in lines[0]
    assert "NumPy" in lines[0]
    assert lines[1] == "False []"


@pytest.mark.slow
def test_a_platform_that_goes_away_later_is_told_once():
    lines = said(
        start(
            """
            import jax
            zx.use_backend("jax")
            jax.config.update("jax_platforms", "cuda")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run_and_compare("numpy")
                run_and_compare("numpy again")
            print(len(caught), caught[0].message)
            jax.config.update("jax_platforms", "cpu")
            zx.use_backend("jax")
            compile_and_compare("back")
            """
        )
    )
    assert lines[0].startswith("1 ")
    assert "cuda" in lines[0]


def test_each_process_of_a_distributed_run_uses_a_device_of_its_own():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    code = """
        import os, jax
        zx.use_backend("jax")
        jax.distributed.initialize(os.environ["AT"], 2, int(os.environ["ME"]))
        compile_and_compare("distributed")
        assert jax.process_count() == 2 and len(jax.devices()) == 8
        assert kernels.device().process_index == jax.process_index()
        print("same")
    """
    both = [start(code, XLA_FLAGS=FOUR_DEVICES, AT=address, ME=str(n)) for n in range(2)]
    assert [said(process) for process in both] == [["same"]] * 2


def test_work_that_fails_gives_way_with_its_reason(monkeypatch):
    monkeypatch.setattr(kernels, "_failed", False)
    monkeypatch.setattr(kernels, "_compiled", {})
    args = (np.arange(4, dtype=np.int32),)

    def double(x):
        return x + x

    def attempt(function, work):
        return kernels.attempt((function.__name__,), function, args, work, wait=True)

    assert attempt(double, lambda kernel: kernel(*args)).tolist() == [0, 2, 4, 6]
    with pytest.warns(UserWarning, match=r"(?s)NumPy, in the same order\. TypeError: .*int32\[5\]"):
        assert attempt(double, lambda kernel: kernel(np.zeros(5, np.int32))) is None
    assert attempt(double, lambda kernel: kernel(*args)) is None  # silent: said once
    kernels.start()
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        assert attempt(lambda x: x + 1 // 0, lambda kernel: kernel(*args)) is None
    kernels.start()
    assert attempt(double, lambda kernel: kernel(*args)).tolist() == [0, 2, 4, 6]
