"""Warnings name the line that they are about, which is one of the user's own program."""

from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys
import warnings

import jax
import pytest
from support.elastic_runs import readable

import zephon_jax as zx

COUNTED = [zx.Dataset.from_counts("a", [100]), zx.Dataset.from_counts("b", [200])]
FAR_APART = {"a": 1e-12, "b": 1}


@pytest.fixture
def caught():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def check_line(caught, match, test):
    """Checks that all that was said is about a line of a function of this file."""
    lines, first = inspect.getsourcelines(test)
    assert caught
    for warning in caught:
        assert match in str(warning.message)
        assert warning.filename == __file__
        assert first <= warning.lineno < first + len(lines)


def make_source(mixture=None, **settings):
    settings = {"chunk_size": 10, "exhausted_policy": "repeat", **settings}
    return zx.StaticMixtureWorkSource(COUNTED, mixture or {"a": 1, "b": 1}, **settings)


class Derived(zx.StaticMixtureWorkSource):
    pass


def elastic():
    return zx.ElasticIterDataset(
        readable(), 2, lambda lane: lane, process_index=0, process_count=1, global_batch_size=4
    )


def test_a_setting_without_effect(caught):
    make_source(shuffle_block_size=1)
    check_line(caught, "no effect", make_source)


@pytest.mark.parametrize("estimated", [False, True])
def test_a_setting_without_effect_in_a_derived_source(caught, estimated):
    tokens = zx.TokenEstimation.from_shard_totals({"a": [900], "b": [2000]})
    Derived(
        COUNTED, {"a": 1, "b": 1}, 100, shuffle_block_size=1,
        token_estimation=tokens if estimated else None,
    )  # fmt: skip
    check_line(caught, "no effect", test_a_setting_without_effect_in_a_derived_source)


def test_sources_made_of_a_source(caught):
    source = make_source(shuffle_block_size=1)
    caught.clear()
    source.replace(seed=3)
    source.with_mixture({"a": 1, "b": 2}, at=3)
    assert len(caught) == 4  # one of each of two datasets
    check_line(caught, "no effect", test_sources_made_of_a_source)


def test_weights_that_lie_far_apart(caught):
    make_source(FAR_APART)
    check_line(caught, "'a' moved", make_source)


@pytest.mark.parametrize("shares", [zx.quota.shares, zx.quota.fixed_shares])
@pytest.mark.parametrize("weights", [FAR_APART, list(FAR_APART.values())])
def test_shares_that_lie_far_apart(caught, shares, weights):
    shares(weights, 100)
    check_line(caught, "moved", test_shares_that_lie_far_apart)


def test_two_datasets_of_one_place(caught):
    records = list(range(50))
    datasets = [zx.Dataset.from_source(name, records) for name in "ab"]
    zx.StaticMixtureWorkSource(datasets, {"a": 1, "b": 1}, chunk_size=10)
    check_line(caught, "read the same place", test_two_datasets_of_one_place)


def test_samples_that_are_dropped(caught):
    zx.ElasticIterDataset(
        readable((1000,), chunk_size=300), 3, lambda lane: lane, process_index=0, process_count=1
    )
    check_line(caught, "are dropped", test_samples_that_are_dropped)


def test_a_run_that_went_back(caught, tmp_path):
    iterator = iter(elastic())
    next(iterator)
    before = iterator.get_state()
    next(iterator)
    zx.save_checkpoint(tmp_path, iterator)
    assert not caught
    zx.save_checkpoint(tmp_path, iterator, state=before)
    check_line(caught, "went back", test_a_run_that_went_back)


def test_a_later_checkpoint_that_is_torn(caught, tmp_path):
    iterator = iter(elastic())
    for _ in range(2):
        next(iterator)
        folder = pathlib.Path(zx.save_checkpoint(tmp_path, iterator))
    (torn,) = folder.glob("lanes-*")
    torn.unlink()
    assert not caught
    assert zx.restore_checkpoint(tmp_path, iterator) == 1
    check_line(caught, "step 1 is taken", test_a_later_checkpoint_that_is_torn)


def test_a_backend_that_does_not_work_here(caught):
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cuda")
    try:
        zx.use_backend("jax")
    finally:
        jax.config.update("jax_platforms", before)
        zx.use_backend("numpy")
    check_line(caught, "leaves out the CPU", test_a_backend_that_does_not_work_here)


WITHOUT_A_COMPILER = """
import warnings

import jax

import zephon_jax as zx
from zephon_jax.kernels import compiled


def refuse(function):
    raise RuntimeError("no compiler")


jax.jit = refuse
zx.use_backend("jax")
many = [zx.Dataset.from_counts(name, [1 << 16]) for name in "nm"]
source = zx.StaticMixtureWorkSource(
    many, {"n": 1, "m": 1}, chunk_size=1 << 15, shuffle_within_shard=True
)
state = source.init()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(8):
        state = source.next_chunk(state)[1]
        compiled.finish_compiling()
print(*(f"{one.filename}: {one.message}" for one in caught), sep="\\n")
"""


def test_kernels_that_do_not_compile_here():
    """In a process of its own, which has compiled nothing before and remembers nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    [told] = ran.stdout.splitlines()
    assert told.startswith("<string>: compiled kernels do not work here")


def test_a_chunk_that_goes_through_small_data_many_times():
    """163.84 passes were in the first chunk, and a run of three passes gave as many."""
    small = zx.Dataset.from_counts("small", [60, 40])
    with pytest.warns(UserWarning, match=r"163\.84 times all data, 100 samples.* chunk_size = 6,"):
        zx.StaticMixtureWorkSource([small], {"small": 1})
    with pytest.warns(UserWarning, match="times all data"):
        zx.StaticMixtureWorkSource([small], {"small": 1}, stop_after_passes=3)
    zx.StaticMixtureWorkSource([small], {"small": 1}, chunk_size=6)
    zx.StaticMixtureWorkSource([small], {"small": 1}, exhausted_policy="redistribute")
