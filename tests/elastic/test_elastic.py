"""Elastic lanes in one process: hosts are datasets side by side, as they are on one mesh."""

from __future__ import annotations

import json
import warnings

import grain
import jax
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from support.elastic_runs import (
    PIPELINES,
    assert_same,
    batched,
    concat_split,
    filtered,
    first_fit,
    hosts,
    in_step,
    lane_workers,
    merged,
    noisy,
    readable,
    rows,
)
from support.helpers import flat_mapped, mixture

import zephon_jax as zx
from zephon_jax import _compat


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("kind", PIPELINES)
def test_global_batches_are_the_same_for_all_host_counts(kind):
    pipeline, per_sample = PIPELINES[kind]
    settings = {"global_batch_size": 8, "rows_per_sample": per_sample}
    source = readable()
    expected = in_step([iter(d) for d in hosts(source, 4, pipeline, 1, **settings)])
    assert len(expected) >= 5
    for count in (2, 4):
        iterators = [iter(d) for d in hosts(source, 4, pipeline, count, **settings)]
        assert_same(in_step(iterators), expected)


def resumed_everywhere(kind, num_lanes, counts, stride, source):
    """Saves at every step by every number of hosts; restores every `stride`-th by every number.

    All of them save the same state, so that one of them stands for all in what is restored.
    """
    pipeline, per_sample = PIPELINES[kind]
    settings = {"global_batch_size": num_lanes, "rows_per_sample": per_sample}
    expected = in_step([iter(d) for d in hosts(source, num_lanes, pipeline, 1, **settings)])
    states = []
    for count in counts:
        iterators = [iter(d) for d in hosts(source, num_lanes, pipeline, count, **settings)]
        found = [merged(iterators)]
        for batch in expected:
            assert_same(in_step(iterators, 1), [batch])
            found.append(merged(iterators))
        states = states or found
        assert found == states
    restored = 0
    for count in counts:
        datasets = hosts(source, num_lanes, pipeline, count, **settings)
        iterators = [iter(dataset) for dataset in datasets]
        for step in range(0, len(expected) + 1, stride):
            for iterator in iterators:
                iterator.set_state(states[step])
            assert_same(in_step(iterators), expected[step:])
            restored += 1
    return restored


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("kind", PIPELINES)
def test_any_host_count_restores_a_state_of_any_other(kind):
    assert resumed_everywhere(kind, 4, (1, 2, 4), 3, readable((48, 80, 32))) >= 9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("kind", PIPELINES)
def test_every_step_is_restored_by_every_host_count(kind):
    source = readable((144, 240, 96))
    assert resumed_everywhere(kind, 8, (1, 2, 4, 8), 1, source) >= 4 * 16


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("kind", PIPELINES)
def test_grains_own_checkpoint_test(kind):
    pipeline, per_sample = PIPELINES[kind]
    [dataset] = hosts(readable(), 4, pipeline, 1, global_batch_size=4, rows_per_sample=per_sample)
    assert_equal_output_after_checkpoint(dataset)


def test_state_describes_the_last_batch_handed_out():
    [dataset] = hosts(readable(), 4, rows, 1)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert [state["step"] for state in states] == list(range(len(batches) + 1))
    for state, step in ((states[0], 0), (states[7], 7), (states[-1], len(batches))):
        iterator.set_state(json.loads(json.dumps(state)))
        assert_same(list(iterator), batches[step:])
    assert next(iterator, None) is None
    assert next(iterator, None) is None


def test_state_is_small_plain_and_of_constant_shape():
    iterator = iter(hosts(readable(), 4, rows, 1)[0])
    shapes = set()
    for _ in range(20):
        state = iterator.get_state()
        shapes.add(str(jax.tree.map(lambda leaf: type(leaf).__name__, state)))
        assert len(json.dumps(state)) <= 4 * 1024
        assert not {"worker", "thread", "host", "process"} & set(json.dumps(state).split('"'))
        next(iterator)
    assert len(shapes) == 1


def test_threads_change_nothing():
    source = readable()
    expected = list(hosts(source, 4, noisy, 1)[0])
    for threads in (1, 2, 3, 4):
        dataset = hosts(source, 4, noisy, 1, num_threads=threads, prefetch=threads)[0]
        assert_same(list(dataset), expected)


@pytest.mark.parametrize("workers", [
    pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3,
    pytest.param(4, marks=pytest.mark.slow),
])  # fmt: skip
def test_worker_processes_change_nothing(workers):
    """grain#1129: with several workers each dropped its own tail of a batch."""
    source = readable((101,), chunk_size=1, exhausted_policy="redistribute")
    settings = {"global_batch_size": 8, "pad": True}
    expected = list(hosts(source, 4, noisy, 1, **settings)[0])
    assert sum(int(batch["row_mask"].sum()) for batch in expected) == 101
    iterator = iter(hosts(source, 4, noisy, 1, num_workers=workers, **settings)[0])
    assert_same(in_step([iterator], 5), expected[:5])
    state = json.loads(json.dumps(iterator.get_state()))
    assert_same(list(iterator), expected[5:])
    iterator.set_state(state)
    assert_same(in_step([iterator], 2), expected[5:7])
    iterator.close()
    again = iter(hosts(source, 4, noisy, 1, **settings)[0])
    again.set_state(state)
    assert_same(list(again), expected[5:])


def resumed_with_workers(kind, workers, steps):
    """States of threads go on in worker processes, and theirs in threads."""
    pipeline, per_sample = PIPELINES[kind]
    settings = {"global_batch_size": 8, "rows_per_sample": per_sample}
    source = readable()
    expected = list(hosts(source, 4, pipeline, 1, **settings)[0])
    plain = iter(hosts(source, 4, pipeline, 1, **settings)[0])
    iterator = iter(hosts(source, 4, pipeline, 1, num_workers=workers, **settings)[0])
    for step in steps:
        fresh = iter(hosts(source, 4, pipeline, 1, **settings)[0])
        assert_same(in_step([fresh], step), expected[:step])
        plain.set_state(fresh.get_state())
        iterator.set_state(json.loads(json.dumps(plain.get_state())))
        assert_same(in_step([iterator], 2), expected[step : step + 2])
        state = json.loads(json.dumps(iterator.get_state()))
        assert_same(list(iterator), expected[step + 2 :])
        plain.set_state(state)
        assert_same(list(plain), expected[step + 2 :])
    iterator.close()


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize(("kind", "workers"), [
    pytest.param("first fit", 1, marks=pytest.mark.slow), ("concat then split", 2),
])  # fmt: skip
def test_packers_in_worker_processes(kind, workers):
    resumed_with_workers(kind, workers, (0, 3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", PIPELINES)
def test_every_pipeline_and_step_in_worker_processes(kind, workers):
    resumed_with_workers(kind, workers, range(9))


def test_errors_deaths_and_kinds_of_arrays_of_workers():
    half = jax.numpy.bfloat16

    def fragile(e):
        if e["data"] == 1042:
            raise KeyError("no such token")
        day = np.datetime64(e["data"], "D")
        return {"x": np.full(2, e["data"] % 256, half), "text": "x" * (e["data"] % 3), "day": day}

    [dataset] = hosts(readable(), 4, lambda lane: lane.map(fragile), 1, num_workers=1)
    iterator, got = iter(dataset), []
    with pytest.raises(zx.LaneError, match="no such token") as caught:
        got.extend(iterator)
    assert caught.value.sample_id == (1, 0, 42)
    assert iterator.get_state()["step"] == len(got)
    assert (got[0]["x"].dtype, got[0]["day"].dtype) == (half, "M8[D]")
    plain = iter(hosts(readable(), 4, lambda lane: lane.map(fragile), 1)[0])
    assert_same(in_step([plain], len(got)), got)
    state = iterator.get_state()
    for process in lane_workers():
        process.kill()
    iterator.seek(0)
    with pytest.raises(RuntimeError, match=r"worker process .* died"):
        next(iterator)
    assert iterator.get_state() == {**state, "step": 0, "rows": 0, "lanes": _start_of(dataset)}
    assert_same(in_step([iterator], len(got)), got)
    iterator.close()


def _start_of(dataset):
    return iter(dataset).get_state()["lanes"]


def test_random_transforms_differ_between_lanes():
    [dataset] = hosts(readable(), 4, noisy, 1)
    noise = np.stack([batch["noise"] for batch in dataset], axis=1)
    assert len(np.unique(noise)) == noise.size
    again = zx.ElasticIterDataset(readable(seed=7), 4, noisy, process_index=0, process_count=1)
    assert next(iter(again))["noise"].tolist() != noise[:, 0].tolist()


def test_batch_ramp_and_microbatches():
    source = readable()
    sizes = [4, 8, 4, 12, 20]
    [ramp] = hosts(source, 4, rows, 1, global_batch_size=lambda step: sizes[step % 5])
    iterator = iter(ramp)
    batches = in_step([iterator], 5)
    assert [len(batch["x"]) for batch in batches] == sizes
    one = list(hosts(source, 4, rows, 1)[0])
    for lane in range(4):
        got = [x for b, n in zip(batches, sizes, strict=True)
               for x in b["x"].reshape(4, n // 4)[lane]]  # fmt: skip
        assert got == [batch["x"][lane] for batch in one[: len(got)]]
    # Lane states are the same whatever the steps were: other batch sizes go on from them.
    other = iter(hosts(source, 4, rows, 1, global_batch_size=8)[0])
    other.set_state(iterator.get_state())
    assert_same([next(other)], [_paired(one[12], one[13])])


def _paired(a, b):
    return jax.tree.map(lambda x, y: np.stack([x, y], axis=1).reshape(-1, *x.shape[1:]), a, b)


def test_a_packer_gets_its_tuples_back():
    """Grain's concat-then-split takes [-1, -1], what JSON makes of (-1, -1), for a remainder."""
    [dataset] = hosts(readable(), 4, concat_split, 1, rows_per_sample=None)
    expected = list(dataset)
    iterator = iter(dataset)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.set_state(state)
    assert_same(list(iterator), expected)


@pytest.mark.parametrize("kind", ["map", "random map", "batches"])
def test_seek(kind):
    pipeline, _ = PIPELINES[kind]
    [dataset] = hosts(readable(), 4, pipeline, 1, global_batch_size=8)
    expected = list(dataset)
    iterator = iter(dataset)
    for step in (5, 0, 1, len(expected) - 1, len(expected)):
        iterator.seek(step)
        assert iterator.get_state()["step"] == step
        assert_same(list(iterator), expected[step:])
    grain.experimental.set_next_index(iterator, 3)
    assert grain.experimental.get_next_index(iterator) == 3
    assert_same(list(iterator), expected[3:])


def test_seek_to_masked_rows_behind_a_last_batch_that_is_not_full():
    """Such a place had a state that nothing could go back to."""
    source = readable((16,), chunk_size=3, exhausted_policy="redistribute")
    [dataset] = hosts(source, 2, batched, 1, pad=True, global_batch_size=2)
    expected = list(dataset)
    lengths = np.sum([batch["row_mask"] for batch in expected], axis=0)
    assert lengths.tolist() in ([9, 7], [7, 9])  # in batches of three: 3, 3, 1
    iterator = iter(dataset)
    for step in range(10):
        iterator.seek(step)
        iterator.set_state(json.loads(json.dumps(iterator.get_state())))
        assert_same(list(iterator), expected[step:])


def test_seek_crosses_short_chunks():
    source = readable((37, 81, 20), (1, 1, 1), exhausted_policy="redistribute", chunk_size=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [dataset] = hosts(source, 2, rows, 1)
    expected = list(dataset)
    for step in range(0, len(expected), 5):
        iterator = iter(dataset)
        iterator.seek(step)
        assert_same(list(iterator), expected[step:])


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("part", [slice(0, None, 1), slice(1, None, 3)])
def test_elements_of_a_lane_by_number(part):
    """Grain's `set_next_index` and `get_next_index`, over short chunks and slices of workers."""
    source = readable((37, 81, 20), (1, 1, 1), exhausted_policy="redistribute", chunk_size=7)
    for lane in range(2):
        dataset = zx.LaneIterDataset(source, lane, 2)
        dataset.set_slice(part)
        iterator, expected = iter(dataset), []
        for element in iterator:
            expected.append(element["data"])
            assert grain.experimental.get_next_index(iterator) == len(expected)
        for number in range(0, len(expected) + 1, 4):
            grain.experimental.set_next_index(iterator, number)
            assert grain.experimental.get_next_index(iterator) == number
            assert [element["data"] for element in iterator] == expected[number:]


class Unsized(zx.WorkSource):
    """A source that says nothing about its chunks."""

    inner = readable((37, 81, 20), (1, 1, 1), exhausted_policy="redistribute", chunk_size=7)

    def __init__(self, seed=None):
        self.seed = seed

    def init(self, lane=0, num_lanes=1):
        return self.inner.init(lane, num_lanes)

    def next_chunk(self, state):
        return self.inner.next_chunk(state)

    def component_ids(self):
        return self.inner.component_ids()

    @property
    def datasets_by_id(self):
        return self.inner.datasets_by_id


def test_sources_of_ones_own_are_replayed_and_may_have_a_seed():
    iterator = iter(zx.LaneIterDataset(Unsized(), 1, 2))
    expected = [element["data"] for element in iterator]
    for number in (0, 30, len(expected), len(expected) + 5):
        grain.experimental.set_next_index(iterator, number)
        assert [element["data"] for element in iterator] == expected[number:]
    with pytest.raises(NotImplementedError, match=r"Unsized gives no chunk_spans\(\)"):
        grain.experimental.get_next_index(iterator)
    noise = [
        next(iter(hosts(Unsized(seed), 2, noisy, 1, rows_per_sample=None)[0]))["noise"].tolist()
        for seed in (None, 42, 43)
    ]
    assert noise[0] == noise[1]  # without one, that of the first chunk
    assert noise[1] != noise[2]


def test_only_one_to_one_pipelines_seek():
    [dataset] = hosts(readable(), 4, filtered, 1, rows_per_sample=None)
    with pytest.raises(ValueError, match="one row for each sample"):
        iter(dataset).seek(3)
    wrong = iter(hosts(readable(), 4, filtered, 1)[0])
    with pytest.raises(ValueError, match="element by its number"):
        wrong.seek(3)


# Ends


def test_schedule_refuses_pipelines_that_are_not_one_to_one():
    with pytest.raises(ValueError, match="rows_per_sample=None"):
        list(hosts(readable(), 4, filtered, 1)[0])
    for settings in ({}, {"pad": True}, {"num_threads": 2}):
        iterator, got = iter(hosts(readable(), 4, doubled, 1, **settings)[0]), []
        with pytest.raises(ValueError, match=r"lane 0 gave 41 rows so far where .* hold 40"):
            got.extend(iterator)
        assert len(got) == iterator.get_state()["step"] == 40


def doubled(lane):
    return flat_mapped(rows(lane), lambda e: [e, e])


def test_a_flat_map_at_its_end_is_restored_without_doubles():
    """Grain's own keeps its last elements through `set_state` and hands them out again."""
    [dataset] = hosts(readable(), 4, doubled, 1, rows_per_sample=None)
    iterator = iter(dataset)
    whole = list(iterator)
    assert len(whole) == 80
    iterator.set_state(json.loads(json.dumps(iterator.get_state())))
    assert list(iterator) == []


def test_lanes_too_short_for_a_batch_that_is_not_dropped():
    drops = lambda lane: rows(lane).batch(9, drop_remainder=True)  # noqa: E731
    for pad in (False, True):
        with pytest.raises(ValueError, match=r"a lane has 5 samples, too few for a batch"):
            hosts(readable((20,)), 4, drops, 2, global_batch_size=4, pad=pad)


def test_padding_delivers_everything():
    source = readable((50, 33), chunk_size=10)
    one = [e["sample_id"].tolist() for n in range(4) for e in zx.LaneIterDataset(source, n, 4)]
    for per_sample in (1, None):
        for count in (1, 2, 4):
            datasets = hosts(source, 4, rows, count, pad=True, global_batch_size=12,
                             rows_per_sample=per_sample)  # fmt: skip
            runs = [list(dataset) for dataset in datasets]
            if per_sample == 1:
                assert len({len(run) for run in runs}) == 1
            got = []
            for run in runs:
                for batch in run:
                    mask = batch["row_mask"]
                    assert mask.dtype == bool
                    assert mask.shape == (12 // count,)
                    got += batch["sample_id"][mask].tolist()
                    assert not batch["sample_id"][~mask].any()
            assert sorted(got) == sorted(one)


def test_padding_resumes_among_masked_steps():
    source = readable((50, 33), chunk_size=10)
    settings = {"pad": True, "global_batch_size": 4}
    expected = list(hosts(source, 4, rows, 1, **settings)[0])
    step = len(expected) - 4
    assert not expected[step]["row_mask"].all()
    iterator = iter(hosts(source, 4, rows, 1, **settings)[0])
    in_step([iterator], step + 1)
    again = [iter(d) for d in hosts(source, 4, rows, 2, **settings)]
    for one in again:
        one.set_state(iterator.get_state())
    assert_same(in_step(again), expected[step + 1 :])


def test_masked_rows_are_known_wherever_a_run_begins():
    """By a seek or a restore to where a host's lanes have ended, whatever the elements are like."""
    tree = lambda e: {"a b": (np.int32(e["data"]), [np.zeros((2, 3)), "text"])}  # noqa: E731
    pipeline = lambda lane: lane.map(tree)  # noqa: E731
    source = readable((50, 33), chunk_size=10)
    whole = list(hosts(source, 4, pipeline, 1, pad=True)[0])
    step = next(n for n, batch in enumerate(whole) if not batch["row_mask"].all())
    sought = [iter(dataset) for dataset in hosts(source, 4, pipeline, 4, pad=True)]
    for iterator in sought:
        iterator.seek(step)
    assert_same(in_step(sought), whole[step:])
    first = iter(hosts(source, 4, pipeline, 1, pad=True)[0])
    assert_same(in_step([first], step), whole[:step])
    restored = [iter(dataset) for dataset in hosts(source, 4, pipeline, 4, pad=True)]
    for iterator in restored:
        iterator.set_state(first.get_state())
    assert_same(in_step(restored), whole[step:])


def test_uneven_ends_are_announced():
    with pytest.warns(UserWarning, match=r"are dropped.*chunk_size = \d+") as caught:
        hosts(readable((1000,), chunk_size=300), 3, rows, 1)
    advice = int(str(caught[0].message).split("chunk_size = ")[1].split()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hosts(readable((1000,), chunk_size=advice), 3, rows, 1)
    with pytest.raises(ValueError, match=r"lanes \[.*get no chunk.*chunk_size = \d+"):
        hosts(readable((40,), chunk_size=30), 4, rows, 1)


def test_schedules_need_chunks_of_known_size():
    with pytest.raises(ValueError, match="chunk_size_hint"):
        hosts(Unsized(), 4, rows, 1)
    got = list(hosts(Unsized(), 4, rows, 1, rows_per_sample=None)[0])
    lanes = [list(zx.LaneIterDataset(Unsized(), lane, 4)) for lane in range(4)]
    assert len(got) == min(map(len, lanes))


# Bad input


def test_host_counts_that_do_not_divide_the_lanes():
    with pytest.raises(ValueError, match=r"must divide num_lanes = 12; got 5.*1, 2, 3, 4, 6, 12"):
        zx.ElasticIterDataset(readable(), 12, rows, process_index=0, process_count=5)
    with pytest.raises(ValueError, match="multiple of num_lanes = 4; got 6"):
        hosts(readable(), 4, rows, 1, global_batch_size=6)
    with pytest.raises(ValueError, match="rows_per_sample must be 1, or None"):
        hosts(readable(), 4, rows, 1, rows_per_sample="guess")


def test_foreign_states_are_refused_and_change_nothing():
    [dataset] = hosts(readable(), 4, rows, 1)
    iterator = iter(dataset)
    expected = list(dataset)
    assert_same(in_step([iterator], 4), expected[:4])
    good = iterator.get_state()
    less = {**good, "lanes": {k: v for k, v in good["lanes"].items() if k != "2"}}
    swapped = {**good, "lanes": {**good["lanes"], "1": good["lanes"]["2"]}}
    packed = iter(hosts(readable(), 4, first_fit, 1, rows_per_sample=None)[0]).get_state()
    for bad, text in (
        (less, r"lacks lanes \[2\]"),
        (swapped, "lane 1: .*lane 2 of 4; this is lane 1 of 4"),
        (iter(hosts(readable(), 2, rows, 1)[0]).get_state(), "of 2 lanes; this run has 4"),
        (iter(hosts(readable(seed=1), 4, rows, 1)[0]).get_state(), "other seed"),
        ({**good, "spec": "['y']:int32[]"}, "pipeline that yields"),
        (packed, "lane 0: the state does not fit the pipeline"),
        ({**good, "version": 99}, "version 99"),
        ({"lanes": {}}, "not the state"),
    ):
        with pytest.raises(ValueError, match=text):
            iterator.set_state(bad)
    assert iterator.get_state() == good
    assert_same(list(iterator), expected[4:])


def test_another_pipeline_is_refused_at_its_first_batch():
    state = hosts(readable(), 4, rows, 1)[0]
    iterator = iter(state)
    next(iterator)
    other = iter(hosts(readable(), 4, lambda lane: lane.map(lambda e: {"y": e["data"]}), 1)[0])
    other.set_state(iterator.get_state())
    with pytest.raises(ValueError, match="rows of another kind"):
        next(other)


def test_an_error_names_its_lane_chunk_and_sample():
    broken = {"on": True}

    def fragile(e):
        if broken["on"] and e["data"] == 1042:
            raise KeyError("no such token")
        return {"x": np.int32(e["data"])}

    source = readable()
    expected = list(hosts(source, 4, lambda lane: lane.map(lambda e: {"x": np.int32(e["data"])}),
                          1)[0])  # fmt: skip
    for pipeline in (
        lambda lane: lane.map(fragile),
        lambda lane: grain.experimental.ThreadPrefetchIterDataset(
            lane.map(fragile), prefetch_buffer_size=2
        ),
    ):
        broken["on"] = True
        iterator, got = iter(hosts(source, 4, pipeline, 1)[0]), []
        with pytest.raises(zx.LaneError, match="no such token") as caught:
            got.extend(iterator)
        error = caught.value
        assert error.sample_id == (1, 0, 42)
        lane = next(n for b in expected for n, x in enumerate(b["x"]) if x == 1042)
        assert error.lane == lane
        chunk, _ = source.next_chunk(source.seek(error.chunk_index))
        assert [1, 0, 42] in chunk.components["d1"].tolist()
        state = json.loads(json.dumps(iterator.get_state()))
        assert state["step"] == len(got)
        broken["on"] = False
        again = [iter(d) for d in hosts(source, 4, pipeline, 2)]
        for one in again:
            one.set_state(state)
        assert_same(got + in_step(again), expected)
        assert_same(got + list(iterator), expected)


def test_rows_of_unlike_shapes_are_refused():
    [dataset] = hosts(readable(), 4, lambda lane: lane.map(lambda e: np.zeros(e["data"] % 7)), 1)
    with pytest.raises(zx.LaneError, match="one shape and dtype"):
        list(dataset)


def test_batches_whose_leaves_have_other_numbers_of_rows_are_refused():
    uneven = lambda lane: rows(lane).batch(4).map(lambda b: {**b, "y": b["x"][:2]})  # noqa: E731
    with pytest.raises(zx.LaneError, match=r"all leaves of a batch must have as many rows"):
        next(iter(hosts(readable(), 4, uneven, 1)[0]))


@pytest.mark.parametrize("size", [None, 2])
def test_text_of_any_length_in_rows_and_batches(size):
    """As arrays of NumPy's own kinds, rows with longer text would have another dtype."""
    text = lambda e: {"t": "x" * (e["data"] % 7), "u": np.array(["y" * (e["data"] % 5)])}  # noqa: E731
    expected = [text(e) for e in zx.LaneIterDataset(readable(), 0, 1)]
    pipeline = lambda lane: lane.map(text) if size is None else lane.map(batchable).batch(size)  # noqa: E731
    batchable = lambda e: {"t": text(e)["t"], "u": np.array(text(e)["u"], object)}  # noqa: E731
    got = list(hosts(readable(), 1, pipeline, 1, global_batch_size=1,
                     read_config=zx.MixtureReadConfig())[0])  # fmt: skip
    assert [batch["t"].tolist() for batch in got] == [[e["t"]] for e in expected]
    assert [batch["u"].tolist() for batch in got] == [[e["u"].tolist()] for e in expected]
    assert {batch[name].dtype for batch in got for name in "tu"} == {np.dtype(object)}


@pytest.mark.parametrize("size", [None, 2])
def test_arrays_of_bytes_of_any_length_in_rows_and_batches(size):
    """As those of text: the longest entry of one row is not that of another."""
    kept = lambda e: {"b": np.array([b"z" * (e["data"] % 5), b"a"])}  # noqa: E731
    expected = [kept(e)["b"].tolist() for e in zx.LaneIterDataset(readable(), 0, 1)]
    alike = lambda e: {"b": kept(e)["b"].astype("S9")}  # noqa: E731
    pipeline = lambda lane: lane.map(kept) if size is None else lane.map(alike).batch(size)  # noqa: E731
    got = list(hosts(readable(), 1, pipeline, 1, global_batch_size=2,
                     read_config=zx.MixtureReadConfig())[0])  # fmt: skip
    assert [row for batch in got for row in batch["b"].tolist()] == expected
    assert {batch["b"].dtype for batch in got} == {np.dtype(object)}


def test_text_and_bytes_keep_every_byte():
    datasets = [zx.Dataset.from_source("b", [bytes([n, 0, 0]) for n in range(16)])]
    source = zx.StaticMixtureWorkSource(datasets, {"b": 1}, chunk_size=4)
    got = [x for batch in hosts(source, 4, lambda lane: lane, 1)[0] for x in batch["data"]]
    assert sorted(got) == [bytes([n, 0, 0]) for n in range(16)]


# Grain's private names


def test_batches_are_found():
    lane = zx.LaneIterDataset(readable())
    assert _compat.batching_of(lane) is None
    assert _compat.batching_of(rows(lane).batch(3)) == (3, False)
    assert _compat.batching_of(rows(lane).batch(3, drop_remainder=True).map(lambda b: b)) == (
        3,
        True,
    )
    rebatched = grain.experimental.RebatchIterDataset(lane.batch(3), batch_size=4)
    assert _compat.batching_of(rebatched) == (4, False)
    assert _compat.batching_of(first_fit(lane)) is None
    assert _compat.batching_of(concat_split(lane)) is None
    assert _compat.distributed_hosts() == (None, 0, 1)


# Cases that went wrong for people with other loaders


def ids_of(batches):
    return [tuple(row) for batch in batches for row in batch["sample_id"].tolist()]


def test_ranks_get_different_data():
    """HF datasets#7868: all ranks got the same data."""
    parts = [list(d) for d in hosts(readable((32,), chunk_size=8), 4, rows, 4)]
    assert [len(part) for part in parts] == [8] * 4
    each = [{sample[2] for sample in ids_of(part)} for part in parts]
    assert sum(map(len, each)) == 32
    assert set().union(*each) == set(range(32))


@pytest.mark.filterwarnings("ignore:8 of 360 samples")
def test_few_shards_starve_nobody():
    """HF datasets#8669: workers starved when a source had few shards."""
    datasets = [
        zx.Dataset.from_source(f"s{n}", list(range(size)), shard_size=10)
        for n, size in enumerate((10, 100, 250))
    ]
    assert [len(dataset.shard_counts) for dataset in datasets] == [1, 10, 25]
    mix = {"s0": 10, "s1": 100, "s2": 250}
    source = zx.StaticMixtureWorkSource(datasets, mix, chunk_size=45)
    for count in (1, 2, 4, 8):
        runs = [list(d) for d in hosts(source, 8, rows, count, global_batch_size=16)]
        assert {len(run) for run in runs} == {22}
        assert {len(b["x"]) for run in runs for b in run} == {16 // count}


def test_lanes_read_different_streams():
    """webdataset#242: all workers drew one stream."""
    source = readable((64,), chunk_size=16)
    batches = list(hosts(source, 4, rows, 1, global_batch_size=8)[0])
    assert [len(set(ids_of([batch]))) for batch in batches] == [8] * 8
    assert {sample[2] for sample in ids_of(batches)} == set(range(64))


def test_more_hosts_than_files():
    """maxtext PR#4335: more hosts than files always raised."""
    numbers = zx.Dataset.from_source("n", list(range(80)), shard_size=27)
    assert len(numbers.shard_counts) == 3
    source = zx.StaticMixtureWorkSource([numbers], {"n": 1}, chunk_size=1)
    runs = [list(d) for d in hosts(source, 8, rows, 8, global_batch_size=8)]
    assert [len(run) for run in runs] == [10] * 8
    assert [len(ids_of(run)) for run in runs] == [10] * 8
    assert len({sample for run in runs for sample in ids_of(run)}) == 80


def test_another_number_of_hosts_after_a_resume():
    """litData#316, #331: another topology after a resume; later epochs began in the middle."""
    source = readable((100,), chunk_size=5, stop_after_passes=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = in_step([iter(d) for d in hosts(source, 8, rows, 1)])
    assert len(expected) == 25
    four = [iter(d) for d in hosts(source, 8, rows, 4)]
    assert_same(in_step(four, 5), expected[:5])
    state = merged(four)
    for count in (2, 8):
        restored = [iter(d) for d in hosts(source, 8, rows, count)]
        for one in restored:
            one.set_state(state)
        assert_same(in_step(restored), expected[5:])
    every = sorted(sample[2] for sample in ids_of(expected))
    assert every == sorted([*range(100), *range(100)])


# Lattice reading across 64 lanes


def worst_batch(weights, *, num_lanes=64, chunks=2):
    size = 64 * num_lanes
    source = mixture([10**6] * len(weights), weights, chunk_size=size, exhausted_policy="repeat")
    shares = np.asarray([float(w) for w in weights]) / float(sum(weights))
    config = zx.MixtureReadConfig(mode="lattice")
    orders = []
    for lane in range(num_lanes):
        state, parts = source.init(lane, num_lanes), []
        for _ in range(chunks):
            chunk, state = source.next_chunk(state)
            parts.append(chunk.order(config)[0])
        orders.append(np.concatenate(parts))
    steps = np.stack(orders, axis=1)
    counts = np.stack([(steps == d).sum(axis=1) for d in range(len(weights))], axis=1)
    return np.abs(counts - num_lanes * shares).max()


MIXTURES = [
    (0.9, 0.1),
    (0.5, 0.25, 0.125, 0.0625, 0.04, 0.01, 0.01, 0.0025),
    (1, 1, 1),
    (840, 420, 280, 210, 168, 140, 120, 105),
]


@pytest.mark.parametrize("weights", MIXTURES)
def test_every_global_batch_is_near_its_mixture(weights):
    assert worst_batch(weights) <= 1.5


def test_drawn_mixtures_are_near_in_every_global_batch():
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights = (rng.pareto(1.2, rng.integers(2, 33)) + 0.05).round(4).tolist()
        assert worst_batch(weights, chunks=1) <= 1.5


def test_the_elastic_layer_reads_by_lattice():
    source = readable((4096,) * 3, (0.5, 0.3, 0.2), chunk_size=1024, exhausted_policy="repeat")
    batches = in_step([iter(hosts(source, 16, rows, 1)[0])], 1500)
    counts = np.stack([np.bincount(b["sample_id"][:, 0], minlength=3) for b in batches])
    assert np.abs(counts - 16 * np.asarray([0.5, 0.3, 0.2])).max() <= 1.5
