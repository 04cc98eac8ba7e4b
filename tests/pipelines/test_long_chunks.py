"""Chunks that are too long to be put in order as a whole before their first sample is read."""

import pickle

import numpy as np
import pytest

import zephon_jax as zx

SIZE = 70_000  # above what is found as a whole
MODES = {
    "lattice": zx.MixtureReadConfig(mode="lattice"),
    "round robin": zx.MixtureReadConfig(),
    "random": zx.MixtureReadConfig(mode="weighted_random"),
    "within": zx.MixtureReadConfig(mode="lattice", shuffle_within_component=True),
}


def sources():
    plain = [zx.Dataset.from_counts(f"d{n}", [40_000, 31_000, 9_000 * n]) for n in range(1, 4)]
    weights = {"d1": 5, "d2": 0.3, "d3": 2}
    shuffled = {
        "shuffle_shards": True, "shuffle_within_shard": True, "shuffle_block_size": "auto",
    }  # fmt: skip
    static = zx.StaticMixtureWorkSource(plain, weights, SIZE)
    stages = [
        zx.Stage(until=1, mixture={"d1": 1, "d2": 0, "d3": 2}, ramp="linear"),
        zx.Stage(until=None, mixture=weights),
    ]
    return {
        "in order": static,
        "shuffled": static.replace(**shuffled, exhausted_policy="repeat"),
        "a schedule": zx.ScheduledMixtureWorkSource(
            plain, stages, chunk_size=SIZE, exhausted_policy="repeat", **shuffled
        ),
        "to the end": static.replace(exhausted_policy="redistribute", **shuffled),
    }


SOURCES = sources()


def cuts(size, rng):
    yield from [(0, size), (0, 1), (size - 1, size), (5, 5)]
    for _ in range(5):
        a = int(rng.integers(size))
        yield a, min(size, a + int(rng.choice([7, 1_024, 30_000])))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SOURCES)
def test_windows_are_parts_of_the_order(kind, mode):
    source, config = SOURCES[kind], MODES[mode]
    state, rng = source.init(1, 2), np.random.default_rng(3)
    for _ in range(2):
        chunk, after = source.next_chunk(state)
        whole, _ = source.next_chunk(state)
        assert chunk.by_window
        component, ids = whole.order(config)
        for a, b in cuts(len(chunk), rng):
            found, sample_ids = chunk.window(a, b, config)
            np.testing.assert_array_equal(found, component[a:b])
            np.testing.assert_array_equal(sample_ids, ids[a:b])
            assert (found.dtype, sample_ids.dtype) == (np.int32, np.int64)
        assert chunk.by_window  # nothing of the whole was kept
        state = after


def test_windows_of_chunks_that_are_known():
    """Chunks of one's own, those that were ordered before, and those that were pickled."""
    own = zx.WorkChunk({"a": [(0, 0, n) for n in range(9)], "b": [(1, 0, n) for n in range(4)]})
    late, _ = SOURCES["shuffled"].next_chunk(SOURCES["shuffled"].init())
    again = pickle.loads(pickle.dumps(late))
    assert not again.by_window
    for chunk in (own, again):
        for config in MODES.values():
            if chunk is own and config not in (MODES["lattice"], MODES["round robin"]):
                continue
            component, ids = chunk.order(config)
            found, sample_ids = chunk.window(3, 11, config)
            np.testing.assert_array_equal(found, component[3:11])
            np.testing.assert_array_equal(sample_ids, ids[3:11])
    for name, ids in late.components.items():
        np.testing.assert_array_equal(ids, again.components[name])
    with pytest.raises(ValueError, match=r"stop must be .*13"):
        own.window(0, 14)
    with pytest.raises(ValueError, match="start must be"):
        own.window(5, 3)


@pytest.mark.parametrize("mode", ["lattice", "round robin"])
@pytest.mark.parametrize("part", [slice(0, None, 1), slice(2, None, 5)])
def test_lanes_read_long_chunks_in_their_order(mode, part):
    config, numbers = MODES[mode], {}
    for d, size in enumerate((50_000, 30_000)):
        numbers[f"d{d}"] = zx.Dataset.from_source(f"d{d}", np.arange(size) + 100_000 * d)
    source = zx.StaticMixtureWorkSource(
        list(numbers.values()), {"d0": 3, "d1": 1}, SIZE, exhausted_policy="repeat",
        shuffle_block_size="auto",
    )  # fmt: skip
    lane = zx.LaneIterDataset(source, 1, 2, config)
    lane.set_slice(part)
    chunk, state = source.next_chunk(source.init(1, 2))
    following, _ = source.next_chunk(state)
    ids = np.concatenate([chunk.order(config)[1], following.order(config)[1]])[part]
    iterator, states, found = iter(lane), {}, []
    marks = {0, 1, 900, 5_000, len(ids) // 2, len(ids) // 2 + 3}
    for place in range(len(ids) // 2 + 2_000):
        if place in marks:
            states[place] = iterator.get_state()
        found.append(next(iterator))
    np.testing.assert_array_equal([one["sample_id"] for one in found], ids[: len(found)])
    values = [100_000 * int(one["sample_id"][0]) + int(one["sample_id"][2]) for one in found]
    assert [int(one["data"]) for one in found] == values
    for place, saved in states.items():
        other = iter(lane)
        other.set_state(saved)
        for row in ids[place : place + 50]:
            np.testing.assert_array_equal(next(other)["sample_id"], row)


def test_many_lanes_of_one_process_read_what_they_read_alone():
    """With so many lanes no whole chunk is found, whatever its size."""
    numbers = zx.Dataset.from_source("numbers", np.arange(200_000))
    source = zx.StaticMixtureWorkSource(
        [numbers], {"numbers": 1}, 4_096, exhausted_policy="repeat", shuffle_block_size="auto"
    )
    num_lanes = 256
    (run,) = [
        zx.ElasticIterDataset(
            source, num_lanes, lambda lane: lane.map(lambda e: e["data"]), process_index=0,
            process_count=1,
        )
    ]  # fmt: skip
    iterator = iter(run)
    steps = [next(iterator) for _ in range(3)]
    lattice = zx.MixtureReadConfig(mode="lattice")
    for lane in (0, 17, 255):
        chunk, _ = source.next_chunk(source.init(lane, num_lanes))
        wanted = zx.read(source, chunk.order(lattice)[1][:3])
        assert [int(step[lane]) for step in steps] == [int(one) for one in wanted]
