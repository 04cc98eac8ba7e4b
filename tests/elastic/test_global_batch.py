"""Global batches in one process; test_distributed has them on several."""

from __future__ import annotations

import contextlib
import json

import jax
import numpy as np
import pytest
from support.elastic_runs import assert_same, filtered, hosts, readable, rows

import zephon_jax as zx


@pytest.fixture
def sharding():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def test_integers_that_do_not_fit_raise(sharding):
    ids = np.asarray([[1 << 40, 0, 3]])
    batch = {"sample_id": ids, "x": np.asarray([5]), "text": np.asarray(["a"], object)}
    placed = zx.to_global(batch, sharding)
    assert placed["sample_id"] is ids
    assert placed["text"] is batch["text"]
    assert placed["x"].dtype == np.int32
    for wide in (np.asarray([1 << 31]), np.asarray([-(1 << 31) - 1]), np.asarray([1 << 32], "u8")):
        with pytest.raises(ValueError, match=r"leaf \['x'\] .* wrap to 32 bits"):
            zx.to_global({"x": wide}, sharding)
    most = np.asarray([(1 << 32) - 1], "u8")
    assert np.asarray(zx.to_global({"x": most}, sharding)["x"]).tolist() == most.tolist()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_state_is_of_the_last_batch_handed_out(sharding, ahead):
    [dataset] = hosts(readable(), 4, rows, 1)
    expected = list(dataset)
    batches = zx.GlobalBatches(iter(dataset), sharding, prefetch=ahead)
    states = [batches.get_state()]
    for _ in range(6):
        next(batches)
        states.append(batches.get_state())
    assert [state["step"] for state in states] == list(range(7))
    batches.set_state(json.loads(json.dumps(states[2])))
    assert_same(list(batches), expected[2:])
    assert next(batches, None) is None
    batches.seek(4)
    assert_same(list(batches), expected[4:])


@pytest.mark.parametrize("pad", [False, True])
def test_filtered_lanes_end_together(sharding, pad):
    """Ahead of need and in step: the batches of `in_step`, from the start and from any place."""
    odd = lambda lane: rows(lane).filter(lambda e: int(e["x"]) % 3)  # noqa: E731
    [dataset] = hosts(readable(), 4, odd, 1, rows_per_sample=None, pad=pad)
    expected = list(zx.synchronized(iter(dataset)))
    batches = zx.GlobalBatches(iter(dataset), sharding, prefetch=2, synchronized=True)
    states, got = [batches.get_state()], []
    for batch in batches:
        got.append(batch)
        states.append(batches.get_state())
    assert_same(got, expected)
    assert next(batches, None) is None
    for step in (0, 3, len(expected) - 1, len(expected)):
        batches.set_state(json.loads(json.dumps(states[step])))
        assert_same(list(batches), expected[step:])


def test_batches_before_an_error_are_handed_out(sharding):
    def fragile(e):
        if e["data"] == 1042:
            raise KeyError("no such token")
        return {"x": np.int32(e["data"])}

    batches = zx.GlobalBatches(
        iter(hosts(readable(), 4, lambda lane: lane.map(fragile), 1)[0]), sharding, prefetch=3
    )
    got = []
    with pytest.raises(zx.LaneError, match="no such token"):
        got.extend(batches)
    assert batches.get_state()["step"] == len(got)
    with pytest.raises(zx.LaneError, match="no such token"):
        next(batches)


def test_a_batch_that_cannot_be_placed_is_not_lost(sharding):
    wide = lambda e: {"x": np.int64(e["data"]) << (40 if e["data"] == 1042 else 0)}  # noqa: E731
    [dataset] = hosts(readable(), 4, lambda lane: lane.map(wide), 1)
    expected = list(dataset)
    batches, got = zx.GlobalBatches(iter(dataset), sharding), []
    for _ in range(2):
        with pytest.raises(ValueError, match="wrap to 32 bits"):
            got.extend(batches)
    assert_same(got, expected[: len(got)])
    assert 0 < len(got) < len(expected)
    assert batches.get_state()["step"] == len(got)
    with jax.enable_x64(True):
        assert_same(list(batches), expected[len(got) :])


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_hosts_in_step_end_together_and_fail_together():
    [dataset] = hosts(readable(), 4, filtered, 1, rows_per_sample=None)
    expected = list(dataset)
    assert_same(list(zx.synchronized(iter(dataset))), expected)
    other_ended = iter([1, 1, 0])  # what another host says: going, going, ended
    agree = lambda word: [word, word & ~3 | next(other_ended)]  # noqa: E731
    assert_same(list(zx.synchronized(iter(dataset), agree)), expected[:2])
    with pytest.raises(RuntimeError, match="another host failed"):
        next(zx.synchronized(iter(dataset), lambda word: [word, word & ~3 | 2]))


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_hosts_of_other_steps_or_runs_are_refused_before_a_batch():
    """What each host would say, put together as hosts do."""
    [dataset] = hosts(readable(), 4, filtered, 1, rows_per_sample=None)
    [other_run] = hosts(readable(seed=5), 4, filtered, 1, rows_per_sample=None)
    ahead = iter(dataset)
    for _ in range(3):
        next(ahead)

    def said_by(iterator):
        words = []
        with contextlib.suppress(InterruptedError):
            next(zx.synchronized(iterator, lambda word: words.append(word) or raised()))
        return words[0]

    def raised():
        raise InterruptedError

    for iterator, text in ((ahead, r"are at steps \[0, 3\]"), (iter(other_run), "in runs")):
        word = said_by(iterator)
        with pytest.raises(RuntimeError, match=text):
            next(zx.synchronized(iter(dataset), lambda mine, word=word: [mine, word]))


def test_profiles_show_where_the_time_goes(tmp_path, sharding):
    """Reads, transforms, waits and transfers have names in a profile of JAX's."""
    batches = zx.GlobalBatches(iter(hosts(readable(), 4, rows, 1)[0]), sharding)
    with jax.profiler.trace(str(tmp_path)):
        for _ in batches:
            pass
    [profile] = tmp_path.glob("**/*.xplane.pb")
    found = {
        event.name
        for plane in jax.profiler.ProfileData.from_file(str(profile)).planes
        for line in plane.lines
        for event in line.events
    }
    parts = {f"zephon_jax.{part}" for part in ("read", "transform", "wait", "to_global")}
    assert parts <= found
