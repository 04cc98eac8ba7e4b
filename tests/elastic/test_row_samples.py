"""Which samples are in a global batch: arithmetic and replays against what was handed out."""

import grain
import numpy as np
import pytest
from support.elastic_runs import PIPELINES, batched, filtered, hosts, readable, rows

import zephon_jax as zx

pytestmark = pytest.mark.filterwarnings("ignore:.*samples .* are dropped")


def ids_of(batch):
    """The ids in a global batch, none in masked rows: a list of (n, 3) for each row."""
    mask = batch.get("row_mask", np.ones(len(batch["sample_id"]), bool))
    return [
        row[None] if real else row[:0] for row, real in zip(batch["sample_id"], mask, strict=True)
    ]


def assert_told(told, wanted):
    assert len(told) == len(wanted)
    for row, ids in zip(told, wanted, strict=True):
        assert row.sample_ids.dtype == np.int64
        np.testing.assert_array_equal(row.sample_ids, ids)


SETTINGS = {
    "one row a lane": {},
    "several rows": {"global_batch_size": 12},
    "a ramp": {"global_batch_size": lambda step: 4 * (1 + step % 3)},
    "masked rows": {"global_batch_size": 8, "pad": True},
    "read as round robin": {
        "read_config": zx.MixtureReadConfig(mode="smooth_weighted_round_robin")
    },
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("pipeline", ["map", "batches", "random map"])
def test_one_to_one_pipelines_are_told_by_arithmetic(pipeline, settings):
    source = readable((47, 80, 31), shuffle_within_shard=True)
    (dataset,) = hosts(source, 4, PIPELINES[pipeline][0], 1, **SETTINGS[settings])
    batches = list(dataset)
    for step, batch in enumerate(batches):
        told = dataset.sample_ids_at(step)
        assert_told(told, ids_of(batch))
        each = len(told) // 4
        assert [row.lane for row in told] == [lane for lane in range(4) for _ in range(each)]
        records = [r for row in told for r in zx.read(source, row.sample_ids)]
        mask = batch.get("row_mask", np.ones(len(batch["x"]), bool))
        assert records == batch["x"][mask].tolist()
    with pytest.raises(ValueError, match=f"before the end of the run; got {len(batches)}"):
        dataset.sample_ids_at(len(batches))


def test_each_host_tells_the_whole_batch():
    source = readable()
    one, two = hosts(source, 4, rows, 2)
    assert_told(one.sample_ids_at(3), [row.sample_ids for row in two.sample_ids_at(3)])
    assert len(one.sample_ids_at(3)) == 4


@pytest.mark.parametrize("size", [4, lambda step: 2 * (1 + step % 3)])
@pytest.mark.parametrize("pipeline", [filtered, batched, lambda lane: filtered(lane).batch(3)])
def test_rows_that_keep_their_id_are_told_by_a_replay(pipeline, size):
    (dataset,) = hosts(
        readable(), 2, pipeline, 1, rows_per_sample=None, global_batch_size=size, batched=None
    )
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert len(batches) > 4
    for begin in (0, 1, 3):
        for step in (begin, begin + 1, begin + 2, len(batches) - 1):
            assert_told(dataset.sample_ids_at(step, states[begin]), ids_of(batches[step]))
    with pytest.raises(ValueError, match="of step 1 or before; got step 2"):
        dataset.sample_ids_at(1, states[2])
    with pytest.raises(ValueError, match="before the end of the run; got 1000"):
        dataset.sample_ids_at(1000, states[2])


def documents(lane):
    """Tokens that say which record they are of."""
    return lane.map(
        lambda e: {
            "tokens": np.full(2 + e["data"] % 7, e["data"], np.int32),
            "component_id": e["component_id"],
            "sample_id": e["sample_id"],
        }
    )


@pytest.mark.parametrize("method", ["first_fit", "best_fit", "concat_then_split"])
@pytest.mark.parametrize("size", [None, 3])
def test_packed_rows_are_told_by_a_replay(method, size):
    def pipeline(lane):
        packed = zx.pack(documents(lane), 10, method=method, num_bins=4, layout="levanter")
        return packed if size is None else packed.batch(size)

    source = readable()
    (dataset,) = hosts(source, 2, pipeline, 1, rows_per_sample=None, global_batch_size=4, pad=True)
    iterator = iter(dataset)
    states, batches = [iterator.get_state()], []
    for batch in iterator:
        batches.append(batch)
        states.append(iterator.get_state())
    assert len(batches) > 5
    for begin in (0, 1, 4):
        for step in (begin, begin + 1, len(batches) - 1):
            told = dataset.sample_ids_at(step, states[begin])
            for row, tokens, segments in zip(
                told, batches[step]["tokens"], batches[step]["segment_ids"], strict=True
            ):
                found = zx.read(source, row.sample_ids)
                in_row = tokens[segments >= 0]
                assert found == list(dict.fromkeys(in_row.tolist()))


def test_what_cannot_be_told_is_refused():
    source = readable()

    def shuffled(lane):
        return grain.experimental.WindowShuffleIterDataset(rows(lane), window_size=4, seed=0)

    (mixed,) = hosts(source, 2, shuffled, 1)
    with pytest.raises(ValueError, match="in which order WindowShuffleIterDataset"):
        mixed.sample_ids_at(0)
    (packing,) = hosts(source, 2, filtered, 1, rows_per_sample=None)
    with pytest.raises(ValueError, match=r"rows_per_sample = None\. Give the state"):
        packing.sample_ids_at(0)
    (bare,) = hosts(source, 2, lambda lane: lane.map(lambda e: e["data"]), 1)
    with pytest.raises(ValueError, match="keeps 'sample_id'"):
        bare.sample_ids_at(0, iter(bare).get_state())

    def forgetful(lane):
        return zx.pack(
            lane.map(lambda e: {"tokens": np.arange(3), "component_id": e["component_id"]}), 6
        )

    (lost,) = hosts(source, 2, forgetful, 1, rows_per_sample=None)
    with pytest.raises(zx.LaneError, match="documents must keep 'sample_id'"):
        lost.sample_ids_at(0, iter(lost).get_state())
    with pytest.raises(ValueError, match="step must be at least 0"):
        bare.sample_ids_at(-1)
