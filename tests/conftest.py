"""Settings that every test shares: Hypothesis profiles, and slow campaigns only when asked for."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example of a shape pays for a compilation. In CI the examples are the same
# in every run, so that a red build is about the change and not about the draw.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Indexes and copies of shards go to a folder of this run, and so do those of processes it starts.
# Processes that share the tests (`pytest -n`) have a folder each.
if "ZEPHON_JAX_CACHE" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["ZEPHON_JAX_CACHE"] = tempfile.mkdtemp(prefix="zephon_jax-tests-")
    atexit.register(shutil.rmtree, os.environ["ZEPHON_JAX_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def leftovers_fail_where_they_are_made():
    """Files, sockets and processes left open warn when they are collected, and warnings are errors.

    Left to itself the collector comes by at any time, mostly in a test that makes many objects,
    as those with drawn examples do: one of those then failed for what another module had left.
    """
    yield
    gc.collect()


def pytest_collection_modifyitems(config, items):
    """Leaves out slow campaigns unless -m asks for them; each has a short form that always runs."""
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
