"""What has been read, from states alone, against going through it."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
from support.helpers import chunks_of, mixture, state_after
from support.sources import SOURCES, CountSource

import zephon_jax as zx
from zephon_jax.analysis.inspect_state import inspect_states
from zephon_jax.analysis.saved_states import load_states
from zephon_jax.elastic.relane import RelanedSource
from zephon_jax.sources.stateful_lane import state_to_dict


def read_by(source, steps, *, origin_states=None, slots=None, config=None):
    """Samples read by lanes that have made so many steps, with multiplicity."""
    found = Counter()
    num_lanes = len(steps)
    for lane, num in enumerate(steps):
        start = None if origin_states is None else origin_states[lane]
        chunks = chunks_of(source, lane, num_lanes, state=start, limit=num + 1)
        for n, chunk in enumerate(chunks):
            ids = map(tuple, chunk.order(config)[1].tolist())
            part = list(ids) if n < num else list(ids)[: (slots or [0] * num_lanes)[lane]]
            found.update(part)
    return found


def assert_audited(source, audit, read):
    names = {d: dataset.name for d, dataset in source.datasets_by_id.items()}
    names = names or {0: "odd", 1: "even"}
    by_name = dict.fromkeys(source.component_ids(), 0)
    for sample, times in read.items():
        by_name[names[sample[0]]] += times
    assert audit.samples == by_name
    for d, name in names.items():
        expected = Counter(times for sample, times in read.items() if sample[0] == d)
        if source.datasets_by_id:
            total = source.datasets_by_id[d].num_samples
            expected[0] = total - sum(expected.values())
        got = {times: count for times, count in audit.seen.get(name, {}).items() if count}
        assert got == {times: count for times, count in expected.items() if count}
    for sample in list(read)[:20]:
        assert audit.times_seen(sample) == read[sample]


@pytest.mark.parametrize("name", SOURCES)
def test_lanes_in_step(name):
    source = SOURCES[name]()
    for num_lanes, steps in ((1, 5), (3, 2), (4, 0), (2, 500)):
        states = [state_after_most(source, steps, lane, num_lanes) for lane in range(num_lanes)]
        for form in (states, [zx.encode_state(state) for state in states]):
            audit = zx.audit(source, form)
            assert_audited(source, audit, read_by(source, [steps] * num_lanes))
            assert not audit.gaps
            assert not audit.doubles
            assert not audit.notes


def state_after_most(source, steps, lane, num_lanes):
    state = source.init(lane, num_lanes)
    for _ in range(steps):
        chunk, state = source.next_chunk(state)
        if chunk is None:
            break
    return state


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("steps", [(3, 1, 2), (0, 4, 4), (5, 5, 2)])
def test_lanes_at_different_steps(name, steps):
    source = SOURCES[name]()
    states = [state_after_most(source, num, lane, 3) for lane, num in enumerate(steps)]
    audit = zx.audit(source, states)
    assert_audited(source, audit, read_by(source, steps))
    read = {
        chunk.chunk_index
        for lane, num in enumerate(steps)
        for chunk in chunks_of(source, lane, 3, limit=num)
    }
    gaps = {g for g in range(max(read)) if g not in read}
    assert {chunk for chunk, _ in audit.gaps} == gaps
    if all(source.next_chunk(state)[0] is not None for state in states):
        assert any("at different steps" in note for note in audit.notes)


def test_lanes_inside_a_chunk():
    source = SOURCES["passes"]()
    lattice = zx.MixtureReadConfig(mode="lattice")
    for config in (None, lattice):
        states = []
        for lane, (steps, slot) in enumerate(((2, 5), (2, 16), (1, 9))):
            shell = source.clone_for_lane(lane, 3)
            for _ in range(steps):
                shell.next_chunk()
            states.append({**shell.state_dict(), "slot": slot})
        audit = zx.audit(source, states, read_config=config)
        read = read_by(source, (2, 2, 1), slots=(5, 16, 9), config=config)
        assert_audited(source, audit, read)


@pytest.mark.parametrize("name", SOURCES)
def test_lanes_anywhere(name):
    """Before the start, inside chunks and past the end, in any mixture of these."""
    source, rng = SOURCES[name](), random.Random(name)
    for num_lanes in (1, 2, 5):
        ends = [len(chunks_of(source, lane, num_lanes)) for lane in range(num_lanes)]
        steps = [rng.choice([0, 1, 3, end // 2, end]) for end in ends]
        slots = [
            rng.choice([0, 1, 3]) if n < end else 0 for n, end in zip(steps, ends, strict=True)
        ]
        states = []
        for lane, (num, slot) in enumerate(zip(steps, slots, strict=True)):
            shell = source.clone_for_lane(lane, num_lanes)
            for _ in range(num):
                shell.next_chunk()
            states.append({**shell.state_dict(), "slot": slot})
        assert_audited(source, zx.audit(source, states), read_by(source, steps, slots=slots))


def test_missing_lanes_are_not_counted():
    source = SOURCES["passes"]()
    states = [state_after(source, 4, lane, 4) for lane in (0, 1, 3)]
    audit = zx.audit(source, states)
    assert audit.missing == (2,)
    assert any("no state of lane 2 of 4" in note for note in audit.notes)
    read = sum((read_of_lane(source, lane, 4, 4) for lane in (0, 1, 3)), Counter())
    assert sum(audit.samples.values()) == read.total()
    with pytest.raises(ValueError, match=r"what lanes \[2\] have read is not known"):
        audit.times_seen((0, 0, 0))


def read_of_lane(source, lane, num_lanes, steps):
    chunks = chunks_of(source, lane, num_lanes, limit=steps)
    return Counter(tuple(row) for chunk in chunks for row in chunk.order()[1].tolist())


def test_a_run_that_was_cut_anew():
    source = SOURCES["passes"]()
    two = [state_after(source, 3, lane, 2) for lane in range(2)]
    three = zx.relane(two, 3)
    before = read_by(source, [3, 3])
    for steps in ((0, 0, 0), (2, 2, 2), (2, 1, 0)):
        states = []
        for lane, num in enumerate(steps):
            state = three[lane]
            for _ in range(num):
                _, state = source.next_chunk(state)
            states.append(state)
        audit = zx.audit(source, states)
        assert_audited(source, audit, before + read_by(source, steps, origin_states=three))
        cut = RelanedSource(source, 6, 3)
        assert zx.audit(cut, states).seen == audit.seen
    stale = zx.audit(source, [*states, two[0]])
    assert any("before the run was cut into 3 lanes at chunk 6" in note for note in stale.notes)
    assert stale.seen == audit.seen
    partly = zx.audit(source, [states[0], states[2]])
    assert partly.missing == (1,)
    expected = before.copy()
    for lane in (0, 2):
        chunks = chunks_of(source, state=three[lane], limit=steps[lane])
        expected.update(tuple(row) for c in chunks for row in c.order()[1].tolist())
    assert sum(partly.samples.values()) == expected.total()


def test_doubles_are_named():
    source = SOURCES["passes"]()
    old, new = state_after(source, 2, 1, 2), state_after(source, 4, 1, 2)
    audit = zx.audit(source, [state_after(source, 4, 0, 2), old, new])
    assert audit.doubles == ((1, old.chunk_index, new.chunk_index),)
    assert any("lane 1 is given twice, at chunks" in note for note in audit.notes)
    two = [state_after(source, 3, lane, 2) for lane in range(2)]
    past = state_after(source, 5, 0, 2)
    audit = zx.audit(source, [*zx.relane(two, 3), past])
    assert audit.doubles == ((0, 6, past.chunk_index),)
    assert any("has read past chunk 6" in note for note in audit.notes)


def test_far_runs_are_answered_at_once():
    source = mixture([10**7, 10**6], [3, 1], chunk_size=1024, exhausted_policy="repeat")
    audit = zx.audit(source, [source.seek(10**6, lane, 64) for lane in range(64)])
    drawn = source.eras.seek(audit.whole_chunks).drawn
    assert audit.whole_chunks == 10**6
    assert sum(n * count for n, count in audit.seen["b"].items()) == drawn[1] == 256 * 10**6
    assert audit.seen["b"] == {256: 10**6}
    assert "64 lanes have read 1,024,000,000 samples: the first 1,000,000 chunks" in str(audit)


def test_checkpoints_and_files(tmp_path):
    numbers = zx.Dataset.from_source("numbers", list(range(128)), shard_size=25)
    source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=8)
    dataset = zx.ElasticIterDataset(
        source, 4, lambda lane: lane.batch(2), process_index=0, process_count=1
    )
    iterator = iter(dataset)
    read = Counter()
    for step in range(1, 5):
        read.update(next(iterator)["data"].tolist())
        if step % 2 == 0:
            zx.save_checkpoint(tmp_path / "run", iterator)
    for audit in (
        zx.audit(source, tmp_path / "run"),
        zx.audit(source, str(tmp_path / "run"), step=4),
        zx.audit(source, tmp_path / "run" / "step_0000000004"),
        zx.audit(source, iterator.get_state()),
    ):
        expected = Counter(read.values())
        expected[0] = 128 - len(read)
        assert audit.seen["numbers"] == dict(expected)
        assert all(
            audit.times_seen((0, number // 25, number % 25)) == read[number]
            for number in range(0, 100, 7)
        )
    assert zx.audit(source, tmp_path / "run", step=2).samples == {"numbers": 16}
    for name, data in (("one.state", zx.encode_state(source.seek(5))),):
        (tmp_path / name).write_bytes(data)
        assert zx.audit(source, tmp_path / name).samples == {"numbers": 40}


def component_rows(lane):
    return lane.map(lambda row: row["component_id"])


def test_elastic_states_are_read_by_lattice_wherever_they_lie():
    """Against what was handed out: 21 and 7 of 28 samples by lattice, 20 and 8 by round robin."""
    sets = [zx.Dataset.from_source("a", list(range(900))), zx.Dataset.from_source("b", [0] * 300)]
    source = zx.StaticMixtureWorkSource(sets, {"a": 3, "b": 1}, chunk_size=100)

    def run(config=None):
        iterator = iter(zx.ElasticIterDataset(
            source, 4, component_rows, global_batch_size=4, process_index=0, process_count=1,
            read_config=config,
        ))  # fmt: skip
        read = Counter(int(one) for _ in range(7) for one in next(iterator))
        state = iterator.get_state()
        iterator.close()
        return {"a": read[0], "b": read[1]}, state

    lattice, saved = run()
    lanes = saved["lanes"]
    for states in (
        saved, [saved], {"trainer": 1, "data": saved}, {"data": [{"deep": saved}]},
        [saved, lanes["0"]], list(lanes.values()), [{"lane": lanes[name]} for name in lanes],
        [saved, source.seek(0, 0, 4)],
    ):  # fmt: skip
        audit = zx.audit(source, states)
        assert audit.samples == lattice, states
    alone = [lane["pipeline"] for lane in lanes.values()]
    assert zx.audit(source, alone).samples == {"a": 20, "b": 8}
    with pytest.raises(ValueError, match="say with read_config= how chunks are read"):
        zx.audit(source, [saved, alone[0]])
    by_lattice = zx.MixtureReadConfig(mode="lattice")
    assert zx.audit(source, [saved, alone[0]], read_config=by_lattice).samples == lattice
    in_turn, saved = run(zx.MixtureReadConfig())
    assert in_turn != lattice
    assert zx.audit(source, saved, read_config=zx.MixtureReadConfig()).samples == in_turn


def test_lanes_that_are_far_apart_are_refused_at_once():
    class Watched(zx.StaticMixtureWorkSource):
        drawn = 0

        def next_chunk(self, state):
            Watched.drawn += 1
            return super().next_chunk(state)

    sets = [zx.Dataset.from_counts(name, [1000]) for name in "ab"]
    source = Watched(sets, {"a": 1, "b": 2}, chunk_size=90, exhausted_policy="repeat")
    states = [source.seek(10**12, 0, 3), source.seek(0, 1, 3), source.seek(0, 2, 3)]
    with pytest.raises(ValueError, match="more than 67,108,864 samples a lane from chunk"):
        zx.audit(source, states)
    assert Watched.drawn == 3  # the chunk that each lane stands at


def test_bad_input_is_named(tmp_path):
    source = SOURCES["passes"]()
    other = source.replace(seed=7)
    (tmp_path / "text.json").write_text("{nothing")
    (tmp_path / "empty").mkdir()
    for call, error, text in (
        (lambda: zx.audit(source, []), ValueError, "got none"),
        (lambda: zx.audit(source, 5), TypeError, "states must be states"),
        (lambda: zx.audit(source, [other.init()]), ValueError, "other seed"),
        (lambda: zx.audit(source, [source.init(0, 2), source.init(1, 3)]), ValueError, "one run"),
        (lambda: zx.audit(source, tmp_path / "none"), FileNotFoundError, "no file or folder"),
        (lambda: zx.audit(source, tmp_path / "text.json"), ValueError, "neither an encoded"),
        (
            lambda: zx.audit(source, tmp_path / "text.json", step=3),
            ValueError,
            "is a file: it has no",
        ),
        (lambda: zx.audit(source, {}), ValueError, "no state of a lane in it"),
        (lambda: zx.audit(source, tmp_path / "empty"), FileNotFoundError, "no complete checkpoint"),
        (lambda: zx.audit(source, b"abc"), ValueError, "not an encoded state"),
        (lambda: zx.audit(source, {"lanes": {"0": {}}}), ValueError, "place of one lane"),
        (lambda: zx.audit(CountSource(), [source.init()]), ValueError, "states are CountState"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_a_slot_beyond_its_chunk_is_refused():
    """A full chunk is read; more than that no lane has read of it, nor anything past the end."""
    source = SOURCES["passes"]()
    whole = {**state_to_dict(source.init()), "slot": 16}
    assert zx.audit(source, whole).whole_chunks == 1
    with pytest.raises(ValueError, match="slot = 17, and the lane's next chunk has 16 samples"):
        zx.audit(source, {**whole, "slot": 17})
    ended = state_to_dict(state_after_most(source, 10**6, 0, 1))
    assert sum(zx.audit(source, ended).samples.values()) == len(source)
    with pytest.raises(ValueError, match="slot = 1, and the lane's next chunk has ended"):
        zx.audit(source, {**ended, "slot": 1})


def test_states_that_were_mixed_up_are_refused():
    """By the lane that was saved with a state, the lane it is kept under, and the slot's check."""
    source = SOURCES["passes"]()
    places = [state_to_dict(source.init(lane, 3)) for lane in range(3)]
    lanes = {str(lane): {"pipeline": place} for lane, place in enumerate(places)}
    assert zx.audit(source, {"lanes": lanes}).samples == {"a": 0, "b": 0, "c": 0}
    iterator = iter(zx.LaneIterDataset(mixture([50], chunk_size=10), 0, 1))
    for states, text in (
        ({**places[0], "lane": 1}, "saved as that of lane 1 of 3; it is of lane 0 of 3"),
        ({**places[0], "num_lanes": 4}, "saved as that of lane 0 of 4; it is of lane 0 of 3"),
        ({"lanes": {**lanes, "0": lanes["2"]}}, "lane 0 holds the state of lane 2 of 3"),
        ({"lanes": lanes, "num_lanes": 4}, "lane 0 of 4 holds the state of lane 0 of 3"),
        ({**places[0], "slot": -1}, "the slot of the state must be at least 0"),
        ({**iterator.get_state(), "slot": 3}, "slot = 3 does not fit its check"),
    ):
        for look in (lambda one: zx.audit(source, one), inspect_states):
            with pytest.raises(ValueError, match=text):
                look(states)


def test_every_form_of_states_is_read_by_audits_and_inspections(tmp_path):
    source = SOURCES["passes"]()
    states = [state_after(source, 2, lane, 2) for lane in range(2)]
    places = [state_to_dict(state) for state in states]
    lanes = {str(lane): [{"deep": place}, 5] for lane, place in enumerate(places)}
    plain = [places, {"a": places}, {"lanes": lanes}, {"lanes": lanes, "num_lanes": 2, "step": 7}]
    forms = [states, [zx.encode_state(states[0]), states[1]], *plain, [plain[2]]]
    path = tmp_path / "states.json"
    for text in map(json.dumps, plain):
        marked = b"\xef\xbb\xbf \n\t" + text.encode()
        for data in (text.encode(), marked, text.encode("utf-16")):
            path.write_bytes(data)
            forms.append(load_states(path))
    for form in forms:
        assert zx.audit(source, form).whole_chunks == 4
        found = inspect_states(form)
        expected = [(lane, 2, state.chunk_index, 0) for lane, state in enumerate(states)]
        assert [lane[:4] for lane in found.lanes] == expected
        assert (found.num_lanes, found.missing) == (2, ())


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply to be a state in JSON"):
        load_states(path)
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="no state of a lane in it"):
        inspect_states(deep)
    while deep:  # or the interpreter takes it apart by recursion
        deep = deep["a"]


def test_sources_without_numbers_are_walked():
    class Plain(CountSource):
        def next_chunk(self, state):
            chunk, after = super().next_chunk(state)
            return chunk and zx.WorkChunk(chunk.components), after

    source = Plain()
    states = [state_after(source, num, lane, 2) for lane, num in enumerate((4, 3))]
    audit = zx.audit(source, states)
    read = read_by(source, (4, 3))
    assert sum(audit.samples.values()) == read.total()
    assert np.array_equal([g for g, _ in audit.gaps], [])
