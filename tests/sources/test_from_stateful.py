"""Objects with a place as sources, with a real one of Zephon 0.2.0."""

from __future__ import annotations

import json
import pickle
import threading

import numpy as np
import pytest
import zephon
from support.helpers import chunks_of
from zephon import work as zephon_work

import zephon_jax as zx

SIZES = {"a": (70, 30), "b": (45, 20)}


def of_zephon(lane_assignment="permute"):
    datasets = [
        zephon.Dataset.from_dict(
            name, {shard: zephon.InMemoryShard(range(size)) for shard, size in enumerate(sizes)}
        )
        for name, sizes in SIZES.items()
    ]
    return zephon_work.StaticMixtureWorkSource(
        datasets, {"a": 0.75, "b": 0.25}, chunk_size=8, seed=3, shuffle_within_shard=True,
        lane_assignment=lane_assignment,
    )  # fmt: skip


def dealt_in_turn():
    return of_zephon("modulo")


def number_of(state):
    return state["global_chunk_index"] - 1  # its state after a chunk names the next one


def records():
    """The same data in datasets of ours: shards of one size would be one list."""
    found = []
    for name, sizes in SIZES.items():
        whole = zx.Dataset.from_source(name, [f"{name} {i}" for i in range(sum(sizes))], sizes[0])
        assert whole.shard_counts.tolist() == list(sizes)
        found.append(whole)
    return found


def their_lane(lane, num_lanes, make=of_zephon):
    clone = make().clone_for_lane(lane, num_lanes)
    found = []
    while (chunk := clone.next_chunk()) is not None:
        found.append(chunk)
    return found


@pytest.mark.parametrize("num_lanes", [1, 3])
def test_lanes_are_those_of_zephon(num_lanes):
    source = zx.from_stateful(of_zephon)
    for lane in range(num_lanes):
        ours, theirs = chunks_of(source, lane, num_lanes), their_lane(lane, num_lanes)
        assert len(ours) == len(theirs) > 3
        for mine, other in zip(ours, theirs, strict=True):
            components = {name: ids.tolist() for name, ids in mine.components.items()}
            assert components == {n: [list(i) for i in ids] for n, ids in other.components.items()}
            assert mine.seed == other.seed
            order = [(tuple(sample), name) for sample, name in mine]
            assert order == [(tuple(sample), name) for sample, name in other.iter_samples()]


def test_the_laws_hold():
    zx.testing.check_source(zx.from_stateful(dealt_in_turn), lanes=(3,), other_process=False)
    numbered = zx.from_stateful(of_zephon, chunk_index=number_of)
    zx.testing.check_source(numbered, lanes=(2,), other_process=False)


def test_records_are_read_and_lanes_resume_through_json():
    source = pickle.loads(pickle.dumps(zx.from_stateful(of_zephon, datasets=records())))
    lane = iter(zx.LaneIterDataset(source, 1, 2))
    got, saved = [], []
    for element in lane:
        got.append(element["data"])
        saved.append(json.loads(json.dumps(lane.get_state())))
    expected = [
        f"{name} {sample[1] * SIZES[name][0] + sample[2]}"
        for chunk in their_lane(1, 2)
        for sample, name in chunk.iter_samples()
    ]
    assert got == expected
    for n in (0, 11, len(got) // 2, len(got) - 1):
        fresh = iter(zx.LaneIterDataset(source, 1, 2))
        fresh.set_state(saved[n])
        assert [element["data"] for element in fresh] == got[n + 1 :]


def test_elastic_datasets():
    source = zx.from_stateful(of_zephon, datasets=records(), chunk_index=number_of)

    def elastic():
        return iter(
            zx.ElasticIterDataset(
                source,
                2,
                lambda lane: lane.map(lambda e: {"id": e["sample_id"].astype(np.int32)}),
                process_index=0,
                process_count=1,
                global_batch_size=4,
                rows_per_sample=None,
            )
        )

    batches = elastic()
    for _ in range(7):
        next(batches)
    state = batches.get_state()
    expected = [next(batches)["id"].tolist() for _ in range(4)]
    again = elastic()
    again.set_state(state)
    assert [next(again)["id"].tolist() for _ in range(4)] == expected
    assert zx.simulate(source, 12, 2).num_samples == 96
    assert zx.audit(source, [source.seek(4, lane, 2) for lane in range(2)]).whole_chunks == 4


def test_threads_do_not_share_an_object():
    source = zx.from_stateful(of_zephon)
    state = source.init(0, 1)
    expected = [chunk.components["a"].tolist() for chunk in chunks_of(source, limit=8)]
    found = []

    def run():
        found.append([c.components["a"].tolist() for c in chunks_of(source, state=state, limit=8)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_states_of_other_sources_are_refused():
    source = zx.from_stateful(of_zephon)
    data = zx.encode_state(source.seek(3, 0, 2))
    assert zx.decode_state(source, data) == source.seek(3, 0, 2)
    moved = source.init(1, 2)._replace(place=source.init(0, 2).place)
    with pytest.raises(ValueError, match="does not belong to this source: RuntimeError: Lane"):
        source.check_state(moved)
    with pytest.raises(ValueError, match="another kind of source"):
        zx.decode_state(
            zx.StaticMixtureWorkSource([zx.Dataset.from_counts("a", [9])], {"a": 1}, 3), data
        )


class Stateful:
    """An object with a place, as small as may be."""

    def __init__(self):
        self.at = 0

    def clone_for_lane(self, lane_id, canonical_replicas):
        return type(self)()

    def next_chunk(self):
        self.at += 1
        return zx.WorkChunk({"toy": [(0, 0, self.at)]})

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def component_ids(self):
        return {"toy": 0}


def changed(**attributes):
    return type("Changed", (Stateful,), attributes)


def test_what_is_wrong_with_an_object_is_named():
    named = [zx.Dataset.from_counts(name, [100]) for name in "xy"]
    wrong = lambda state: 0  # noqa: E731
    for call, kind, text in (
        (lambda: zx.from_stateful(of_zephon()), TypeError, "function that makes the object"),
        (lambda: zx.from_stateful(dict), TypeError, "next_chunk, state_dict.*which has no"),
        (lambda: zx.from_stateful(of_zephon, datasets=named), ValueError, "datasets must be those"),
        (lambda: zx.from_stateful(changed(requires_token_priming=True)), ValueError, "Prime it"),
        (lambda: zx.from_stateful(changed(state_dict=lambda self: {1: 2})).init(), TypeError,
         "Changed.state_dict.. must be plain JSON, with strings"),
        (lambda: zx.from_stateful(changed(state_dict=lambda self: {"a": object()})).init(),
         TypeError, "plain JSON"),
        (lambda: chunks_of(zx.from_stateful(Stateful, chunk_index=wrong), 0, 2, limit=3),
         ValueError, "chunk_index says 0 for chunk number 1 of lane 0"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text):
            call()


def test_a_state_that_says_too_little_breaks_a_law():
    forgetful = changed(load_state_dict=lambda self, state: None)
    with pytest.raises(AssertionError, match="- purity: drawn again from its state"):
        zx.testing.check_source(zx.from_stateful(forgetful), other_process=False)


def test_modes_of_zephon_are_translated_in_words():
    theirs = zephon_work.MixtureReadMode.WEIGHTED_ROUND_ROBIN
    for mode in ("weighted_round_robin", theirs):
        with pytest.raises(ValueError, match="mode='smooth_weighted_round_robin' here"):
            zx.MixtureReadConfig(mode=mode)
    source = zx.from_stateful(of_zephon, datasets=records())
    with pytest.raises(TypeError, match="MixtureReadConfig"):
        zx.LaneIterDataset(source, read_config=zephon_work.MixtureReadConfig())
