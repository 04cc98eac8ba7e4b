"""Mixtures that are changed while their run goes on: the past stays, and every state goes on."""

from __future__ import annotations

import json
import pickle
import random

import numpy as np
import pytest
from support.elastic_runs import assert_same, first_fit, hosts, in_step, merged, readable
from support.helpers import chunks_of, mixture, scheduled

import zephon_jax as zx


def counted(name, *sizes):
    return zx.Dataset.from_counts(name, list(sizes))


def orders(source, limit=None):
    return [chunk.order()[1].tolist() for chunk in chunks_of(source, limit=limit)]


def drawn_change(seed):
    """A mixture, its change with or without a new dataset, and the schedule that comes to."""
    rnd = random.Random(seed)
    k, at = rnd.choice([1, 2, 3, 5]), rnd.randint(0, 12)
    new = rnd.randint(0, 1)
    sizes = [rnd.randint(20, 90) for _ in range(k + new)]
    before = [rnd.randint(1, 9) for _ in range(k)]
    after = [rnd.choice([0, 1, 5]) for _ in range(k + new - 1)] + [3]
    settings = {"chunk_size": rnd.choice([3, 8, 20]), "exhausted_policy": "repeat"}
    old = mixture(sizes[:k], before, **settings)
    every = [counted(chr(97 + d), size) for d, size in enumerate(sizes)]
    weights = {dataset.name: w for dataset, w in zip(every, after, strict=True)}
    source = old.with_mixture(weights, at, datasets=every[k:])
    stages = [(at, before + [0] * new), (None, after)]
    planned = scheduled(sizes, stages if at else stages[1:], **settings)
    return rnd, at, old, source, planned


@pytest.mark.parametrize("seed", range(8))
def test_a_change_is_a_stage_that_nobody_had_planned(seed):
    _, at, old, source, planned = drawn_change(seed)
    assert orders(source, 25) == orders(planned, 25)
    assert orders(source, at) == orders(old, at)
    assert [*source.datasets_by_id] == [*source.component_ids().values()]
    again = pickle.loads(pickle.dumps(source))
    assert zx.encode_state(again.seek(20)) == zx.encode_state(source.seek(20))


@pytest.mark.parametrize("seed", range(8))
def test_states_from_before_go_on(seed):
    rnd, at, old, source, planned = drawn_change(seed)
    num_lanes = rnd.choice([1, 2, 3])
    found = {}
    for lane in range(num_lanes):
        state, own = old.init(lane, num_lanes), source.seek(0, lane, num_lanes)
        while True:
            chunk, after = old.next_chunk(state)
            again = zx.decode_state(source, zx.encode_state(state))
            assert zx.encode_state(again) == zx.encode_state(own)
            if chunk.chunk_index >= at:
                break
            mine, own = source.next_chunk(own)
            assert mine.order()[1].tolist() == chunk.order()[1].tolist()
            found[chunk.chunk_index] = chunk.order()[1].tolist()
            state = after
        for chunk in chunks_of(source, state=state, limit=5):  # the old state itself
            found[chunk.chunk_index] = chunk.order()[1].tolist()
        with pytest.raises(ValueError, match=rf"lane {lane} is past chunk {at}, where"):
            zx.decode_state(source, zx.encode_state(after))
    expected = orders(planned, max(found) + 1)
    assert all(expected[g] == ids for g, ids in found.items())
    assert set(range(at + 4 * num_lanes)) <= set(found)


def test_changes_follow_each_other_and_drop_what_was_planned():
    stages = [(10, [1, 0]), (30, [1, 0], "linear"), (50, [1, 3]), (None, [1, 1])]
    settings = {"chunk_size": 12, "exhausted_policy": "repeat"}
    planned = scheduled([300, 200], stages, **settings)
    first = planned.with_mixture({"a": 2, "b": 1}, 17)
    second = first.with_mixture({"a": 0, "b": 1, "c": 2}, 40, datasets=[counted("c", 50)])
    assert second.boundaries == (0, 10, 17, 40)
    assert orders(second, 17) == orders(planned, 17)
    assert orders(second, 40) == orders(first, 40)
    rows = [chunk.counts.tolist() for chunk in chunks_of(second, limit=60)]
    assert rows[20:24] == [[8, 4, 0]] * 4
    assert rows[45:50] == [[0, 4, 8]] * 5
    assert second[0] == planned[0]
    # Through JSON: what a checkpoint keeps of the history, and the datasets that there are now.
    kept = json.loads(json.dumps(second.changes))
    datasets = [*planned.datasets_by_id.values(), counted("c", 50)]
    made = [
        zx.Stage(until=end, mixture={"a": one, "b": other}, ramp=next(iter(own), None))
        for end, (one, other), *own in stages
    ]
    again = zx.ScheduledMixtureWorkSource(datasets, made, changes=kept, **settings)
    for source, at in ((planned, 16), (first, 33), (second, 58)):
        state = zx.decode_state(again, zx.encode_state(source.seek(at)))
        assert zx.encode_state(state) == zx.encode_state(second.seek(at))
    place = second.locate((2, 0, 7), up_to_chunk=60)[0]
    assert tuple(second[12 * place.chunk + place.slot]) == (2, 0, 7)


def test_the_chunk_of_a_change_by_states():
    source = mixture([900, 900], chunk_size=10, exhausted_policy="repeat")
    new = {"a": 1, "b": 3}
    assert source.with_mixture(new, source.seek(7)).boundaries == (0, 7)
    states = [source.seek(0, lane, 4) for lane in range(4)]
    assert source.with_mixture(new, states).boundaries == (0,)
    states[2] = source.next_chunk(states[2])[1]
    assert source.with_mixture(new, states).boundaries == (0, 4)
    assert source.with_mixture(new, states[2]).boundaries == (0, 8)  # another may be ahead
    cut = zx.relane([source.seek(12, lane, 4) for lane in range(4)], 3)
    assert source.with_mixture(new, cut).boundaries == (0, 12)
    changed = source.with_mixture(new, cut)
    found = sorted(changed.next_chunk(state)[0].chunk_index for state in cut)
    assert found == [12, 13, 14]


def test_what_cannot_be_continued_is_refused():
    source = mixture([50, 60], [1, 2], chunk_size=10, shuffle_shards={"a": True, "b": False})
    new = {"a": 1, "b": 1}
    end = len(chunks_of(source))
    assert source.with_mixture(new, end).boundaries == (0, end)
    with pytest.raises(ValueError, match=f"run ends at chunk {end} and cannot be changed at 99"):
        source.with_mixture(new, 99)
    changed = source.with_mixture(new, 4)
    with pytest.raises(ValueError, match=r"changed at chunk 4, and the next.*got at = 4"):
        changed.with_mixture(new, 4)
    with pytest.raises(ValueError, match=r"'b'.* have none\. Give 0 to declare"):
        source.with_mixture({"a": 1}, 4)
    with pytest.raises(ValueError, match="must have a positive weight"):
        source.with_mixture({"a": 0, "b": 0}, 4)
    with pytest.raises(TypeError, match="at must be a chunk, or states"):
        source.with_mixture(new, ["x"])
    third = {**new, "c": 1}
    with pytest.raises(ValueError, match=r"shuffle_shards as a mapping.*no value for"):
        source.with_mixture(third, 4, datasets=[counted("c", 9)])
    shuffles = {"a": True, "b": False, "c": True}
    assert source.with_mixture(third, 4, datasets=[counted("c", 9)], shuffle_shards=shuffles)
    with pytest.raises(ValueError, match="shuffle_shards of 'b' was False and cannot become True"):
        source.with_mixture(
            third, 4, datasets=[counted("c", 9)], shuffle_shards=dict.fromkeys("abc", True)
        )
    with pytest.raises(ValueError, match="shard 0 of dataset 'a' had 50 samples and now has 51"):
        source.with_mixture(new, 4, datasets=[counted("a", 51)])
    with pytest.raises(ValueError, match="other mixture weights"):
        zx.decode_state(changed, zx.encode_state(source.replace(mixture=new).seek(2)))
    with pytest.raises(ValueError, match=r"changes\[0\] does not follow"):
        zx.ScheduledMixtureWorkSource(
            [counted("a", 9)], [zx.Stage(mixture={"a": 1})], changes=[[3, [0], [1], [0]]]
        )
    with pytest.raises(ValueError, match=r"changes\[0\] says that dataset 'a' had 2 shards"):
        zx.ScheduledMixtureWorkSource(
            [counted("a", 9)], [zx.Stage(mixture={"a": 1})], changes=[[3, [1], [2], [0]]]
        )


@pytest.mark.parametrize("chunks", [(4, 4), (4, 3), (3, 5, 5), (5, 3, 7)])
def test_kept_changes_ascend(chunks):
    """Of two changes at one chunk, or in another order, nobody can tell which holds."""
    datasets = [counted("a", 50), counted("b", 60)]
    changes = [[g, [1 + n, 1], [1, 1], [0, 0]] for n, g in enumerate(chunks)]
    wrong = next(n for n in range(1, len(chunks)) if chunks[n] <= chunks[n - 1])
    stages = [zx.Stage(mixture={"a": 1, "b": 2})]
    with pytest.raises(ValueError, match=rf"changes\[{wrong}\] does not follow"):
        zx.ScheduledMixtureWorkSource(datasets, stages, chunk_size=10, changes=changes)
    with pytest.raises(ValueError, match=rf"changes\[{wrong}\] does not follow"):
        mixture([50, 60], [1, 2], chunk_size=10).with_changes(changes)


@pytest.mark.parametrize("count", [2, 8])
def test_restored_on_other_hosts_with_packing(count):
    """Killed before the change, and restored with it: as if nothing had stopped."""
    old = readable((700, 900, 300), [2, 1, 1], chunk_size=20, exhausted_policy="repeat")
    changed = old.with_mixture({"d0": 1, "d1": 0, "d2": 3}, 24)
    settings = {"global_batch_size": 8, "rows_per_sample": None}
    expected = in_step([iter(d) for d in hosts(changed, 8, first_fit, 4, **settings)], 40)
    before = [iter(d) for d in hosts(old, 8, first_fit, 4, **settings)]
    found = in_step(before, 5)
    state = merged(before)
    after = [iter(d) for d in hosts(changed, 8, first_fit, count, **settings)]
    for iterator in after:
        iterator.set_state(state)
    assert_same([*found, *in_step(after, 35)], expected)
    drawn = np.unique(np.concatenate([batch["x"].ravel() for batch in expected[30:]]) // 1000)
    assert 2 in drawn


def own_samples(chunks, name):
    return [row for chunk in chunks for row in chunk.components[name][:, 1:].tolist()]


def grown(seed, **settings):
    """A mixture of 'a' and 'b' and, from some chunk on, more shards of 'a', once or twice."""
    rnd = random.Random(seed)
    shards = [rnd.randint(1, 9) for _ in range(rnd.randint(1, 4))]
    old = zx.StaticMixtureWorkSource(
        [counted("a", *shards), counted("b", 33)], {"a": 2, "b": 1},
        **{"chunk_size": rnd.choice([4, 7, 30]), **settings},
    )  # fmt: skip
    source, ats, sizes = old, [], [len(shards)]
    for at in sorted(rnd.sample(range(12), rnd.randint(1, 2))):
        shards = [*shards, *(rnd.randint(0, 9) for _ in range(rnd.randint(1, 3)))]
        weights = {"a": rnd.randint(1, 3), "b": 1}
        source = source.with_mixture(weights, at, datasets=[counted("a", *shards)])
        ats.append(at)
        sizes.append(len(shards))
    return rnd, old, source, shards, ats, sizes


SHUFFLES = [
    {"shuffle_shards": False}, {"shuffle_within_shard": True}, {"shuffle_block_size": "auto"},
    {"shuffle_block_size": "global"}, {"shuffle_block_size": 3, "reshuffle_on_repeat": False},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_passes_go_through_generations_in_turn(seed):
    settings = {"exhausted_policy": "repeat", **SHUFFLES[seed % 5]}
    _, old, source, shards, ats, sizes = grown(seed, **settings)
    chunks = chunks_of(source, limit=30)
    drawn = own_samples(chunks, "a")
    assert [c.counts.tolist() for c in chunks][: ats[0]] == [
        c.counts.tolist() for c in chunks_of(old, limit=ats[0])
    ]
    # The old shards come in the order that they would have without the others.
    alone = zx.StaticMixtureWorkSource(
        [counted("a", *shards[: sizes[0]])], {"a": 1}, 4, exhausted_policy="repeat",
        **SHUFFLES[seed % 5],
    )  # fmt: skip
    first = [row for row in drawn if row[0] < sizes[0]]
    assert first == alone.sample_ids_at(np.arange(len(first)))[:, 1:].tolist()
    # Pass after pass, each sample of the shards that there are once, generation by generation.
    done, begins = [sum(len(c.components["a"]) for c in chunks[:at]) for at in ats], 0
    while begins < len(drawn):
        # Those that came before the pass was done, or just when it was, are part of it.
        known = sizes[0]
        for size, at in zip(sizes[1:], done, strict=True):
            known = size if at <= begins + sum(shards[:known]) else known
        part = drawn[begins : begins + sum(shards[:known])]
        every = [[s, i] for s in range(known) for i in range(shards[s])]
        if len(part) == len(every):
            assert sorted(part) == every
        assert len({tuple(row) for row in part}) == len(part)
        generation = [sum(row[0] >= n for n in sizes) for row in part]
        assert generation == sorted(generation)
        begins += len(every)


@pytest.mark.parametrize("seed", range(10, 16))
def test_every_way_to_look_at_a_dataset_that_grew(seed):
    rnd, old, source, shards, ats, _ = grown(seed, exhausted_policy="repeat", **SHUFFLES[seed % 5])
    chunks = chunks_of(source, limit=30)
    flat = [tuple(one) for chunk in chunks for one, _ in chunk]
    again = pickle.loads(pickle.dumps(source))
    for i in rnd.sample(range(len(flat)), 20):
        assert tuple(again[i]) == flat[i]
    assert [tuple(row) for row in again.sample_ids_at(np.arange(len(flat))).tolist()] == flat
    for g in rnd.sample(range(30), 8):
        state = zx.decode_state(again, zx.encode_state(source.seek(g)))
        assert list(again.next_chunk(state)[0]) == list(chunks[g])
    for lane in range(3):
        for chunk in chunks_of(again, lane, 3, limit=8):
            assert (
                chunk.components["a"].tolist() == chunks[chunk.chunk_index].components["a"].tolist()
            )
    for shard in rnd.sample(range(len(shards)), min(3, len(shards))):
        for index in range(min(2, shards[shard])):
            places = again.locate((0, shard, index), up_to_chunk=30)
            size = source.chunk_size_hint()
            found = sorted(size * place.chunk + place.slot for place in places)
            assert found == [i for i, one in enumerate(flat) if one == (0, shard, index)]
            assert again.times_read((0, shard, index), 30) == len(found)
            assert [p.pass_number for p in places] == sorted({p.pass_number for p in places})
    before = zx.encode_state(old.seek(ats[0]))
    assert zx.encode_state(zx.decode_state(source, before)) == zx.encode_state(source.seek(ats[0]))
    with pytest.raises(ValueError, match="cannot be traced"):
        zx.traced(source, num_chunks=3)


@pytest.mark.parametrize("policy", ["passes", "stop", "redistribute", "capped"])
def test_the_end_of_a_run_whose_dataset_grew(policy):
    settings = {
        "passes": {"stop_after_passes": 2}, "stop": {"exhausted_policy": "stop"},
        "redistribute": {"exhausted_policy": "redistribute"}, "capped": {"max_repeats": 1},
    }[policy]  # fmt: skip
    old = zx.StaticMixtureWorkSource([counted("a", 24, 16)], {"a": 1}, 10, **settings)
    end = {"passes": 8, "capped": 8}.get(policy, 4)
    assert len(old) == 10 * end
    for at in range(end + 1):
        source = old.with_mixture({"a": 1}, at, datasets=[counted("a", 24, 16, 30)])
        drawn = own_samples(chunks_of(source), "a")
        times = {(s, i): drawn.count([s, i]) for s, n in enumerate((24, 16, 30)) for i in range(n)}
        passes = end // 4
        # New shards come once in the pass that is under way, or was just done, and in later ones.
        late = passes - max(0, at - 1) // 4
        assert {times[key] for key in times if key[0] < 2} == {passes}
        assert {times[key] for key in times if key[0] == 2} == {late}
        assert len(source) == len(drawn)
