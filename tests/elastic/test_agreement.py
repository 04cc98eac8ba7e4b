"""Hosts that restore together: all of them from one checkpoint, or none."""

import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.checkpoints import Together, advanced, lane_files, save_all
from support.elastic_runs import assert_same, hosts, in_step, join, readable, rows

import zephon_jax as zx

LANES = 4


def restore_all(folders, iterators, steps=None):
    """Restores hosts side by side: what each returned or raised, and their warnings."""
    together = Together(len(iterators))
    found = [None] * len(iterators)
    steps = [None] * len(iterators) if steps is None else steps

    def restore(h):
        try:
            found[h] = zx.restore_checkpoint(
                folders[h], iterators[h], steps[h], gather=together.of(h), timeout=20
            )
        except Exception as error:
            found[h] = error

    threads = [threading.Thread(target=restore, args=(h,)) for h in range(len(iterators))]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found, [str(one.message) for one in said]


def saved(folder, steps, source=None, count=2):
    """A run of some hosts that has saved some steps."""
    iterators = [iter(one) for one in hosts(source or readable(), LANES, rows, count)]
    for step in range(max(steps) + 1):
        if step in steps:
            assert save_all(folder, iterators) == [None] * count
        for iterator in iterators:
            next(iterator)
    return folder


def copied(folder, to, steps):
    """What a host sees that does not see all steps."""
    for step in steps:
        shutil.copytree(folder / f"step_{step:010d}", to / f"step_{step:010d}")
    to.mkdir(exist_ok=True)
    return to


def flip(path):
    """Changes a byte of a file: its size stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def at(iterators):
    return [iterator.get_state()["step"] for iterator in iterators]


def test_hosts_go_on_from_the_newest_step_that_all_see(tmp_path):
    """A save became visible in between: host 0 saw step 15, host 1 the one before."""
    folder = saved(tmp_path / "a", (5, 10, 15))
    other = copied(folder, tmp_path / "b", (5, 10))
    iterators = [iter(one) for one in hosts(readable(), LANES, rows, 2)]
    found, said = restore_all([folder, other], iterators)
    assert found == [10, 10]
    assert at(iterators) == [10, 10]
    assert sum("processes [0]: sees step 15; processes [1]: sees step 10" in one for one in said)


def test_a_file_that_one_host_cannot_read_makes_all_fall_back(tmp_path):
    folder = saved(tmp_path / "a", (2, 4))
    other = copied(folder, tmp_path / "b", (2, 4))
    last = other / "step_0000000004"
    flip(last / lane_files(last)[1])  # the lanes of host 1
    iterators = [iter(one) for one in hosts(readable(), LANES, rows, 2)]
    found, said = restore_all([folder, other], iterators)
    assert found == [2, 2]
    assert at(iterators) == [2, 2]
    assert any("step 2 is taken instead of a later one" in one for one in said)
    found, _ = restore_all([folder, other], iterators, [4, 4])
    assert isinstance(found[0], RuntimeError)
    assert "processes [1]: ValueError" in str(found[0])
    assert "cut or changed" in str(found[0])
    assert isinstance(found[1], ValueError)
    assert at(iterators) == [2, 2]


@pytest.mark.parametrize(
    ("arranged", "text"),
    [
        ("steps", r"hosts differ: processes \[0\]: asks for step 2; processes \[1\]: asks for"),
        ("runs", r"hosts differ: processes \[0\]: is of run .*; processes \[1\]: is of run"),
        ("contents", "hosts see different checkpoints of step 2"),
        ("nothing", r"processes \[1\]: FileNotFoundError"),
        (
            "pipelines",
            r"\[0\]: has the pipeline Map; processes \[1\]: has the pipeline Map > Batch\(2\)",
        ),
        ("pipeline ids", r"\[0\]: has pipeline_id ; processes \[1\]: has pipeline_id b"),
    ],
)
def test_mixes_are_refused_before_the_first_batch(tmp_path, arranged, text):
    folder = saved(tmp_path / "a", (2, 4))
    folders, steps, datasets = [folder] * 2, [2, 2], hosts(readable(), LANES, rows, 2)
    if arranged == "steps":
        steps = [2, 4]
    elif arranged == "runs":
        datasets[1] = hosts(readable(seed=7), LANES, rows, 2)[1]
    elif arranged == "contents":
        # The same step of a run of another number of writing hosts: other files.
        folders[1] = saved(tmp_path / "b", (2,), count=1)
    elif arranged == "nothing":
        folders[1] = tmp_path / "empty"
        folders[1].mkdir()
    elif arranged == "pipelines":
        datasets[1] = hosts(readable(), LANES, lambda lane: rows(lane).batch(2), 2)[1]
    else:
        datasets[1] = hosts(readable(), LANES, rows, 2, pipeline_id="b")[1]
    iterators = [iter(dataset) for dataset in datasets]
    found, _ = restore_all(folders, iterators, steps)
    assert all(isinstance(one, Exception) for one in found)
    assert any(
        isinstance(one, RuntimeError) and str(one).startswith("nothing was restored: ")
        for one in found
    )
    with pytest.raises(RuntimeError, match=text):
        raise next(one for one in found if isinstance(one, RuntimeError))
    assert at(iterators) == [0, 0]
    for iterator, dataset in zip(iterators, datasets, strict=True):
        np.testing.assert_equal(next(iterator), next(iter(dataset)))


def check_drawn(seed, tmp_path, folder, foreign):
    """A drawn race: what each host sees, asks for and is; all at one step after it, or nowhere."""
    rng = np.random.default_rng(seed)
    count = int(rng.choice([2, 4]))
    steps = [1, 3, 4, 6]
    asked = [None] * count
    if rng.random() < 0.3:
        asked = [int(rng.choice(steps))] * count
    folders, readable_steps = [], []
    for h in range(count):
        seen = [step for step in steps if rng.random() < 0.75]
        own = copied(folder, tmp_path / f"{seed}-{h}", seen)
        good = set(seen)
        for step in seen:
            if rng.random() < 0.15:  # one of the two files of lanes; it may hold none of this host
                place = own / f"step_{step:010d}"
                part = int(rng.integers(2))
                flip(place / lane_files(place)[part])
                if h * 2 // count == part:
                    good.discard(step)
        folders.append(own)
        readable_steps.append(good)
    sources = [readable()] * count
    mixed = False
    kind = rng.random()
    if kind < 0.15:
        sources[int(rng.integers(count))] = readable(seed=3)
        mixed = True
    elif kind < 0.3:
        folders[int(rng.integers(count))] = foreign
        mixed = True
    elif kind < 0.4 and asked[0] is not None:
        other = int(rng.integers(count))
        asked[other] = steps[(steps.index(asked[other]) + 1) % 4]
        mixed = True
    iterators = [iter(hosts(source, LANES, rows, count)[h]) for h, source in enumerate(sources)]
    found, _ = restore_all(folders, iterators, asked)
    common = set.intersection(*readable_steps)
    if asked[0] is not None:
        common &= {asked[0]}
    if mixed or not common:
        assert all(isinstance(one, Exception) for one in found), (seed, found)
        assert at(iterators) == [0] * count, seed
    else:
        assert found == [max(common)] * count, (seed, found, readable_steps)
        assert at(iterators) == found, seed


@pytest.mark.parametrize("seeds", [range(24), pytest.param(range(24, 240), marks=pytest.mark.slow)])
def test_drawn_races(tmp_path, seeds):
    folder = saved(tmp_path / "run", (1, 3, 4, 6))
    foreign = saved(tmp_path / "foreign", (1, 3, 4, 6), readable(seed=9))
    for seed in seeds:
        check_drawn(seed, tmp_path, folder, foreign)


def test_one_host_alone_falls_back_too(tmp_path):
    folder = saved(tmp_path / "a", (2, 4), count=1)
    last = folder / "step_0000000004"
    flip(last / lane_files(last)[0])
    (iterator,) = advanced(hosts(readable(), LANES, rows, 1), 1)
    with pytest.warns(UserWarning, match="step 2 is taken instead of a later one"):
        assert zx.restore_checkpoint(folder, iterator) == 2


def test_states_know_their_pipeline():
    def cut(lane):
        return rows(lane).batch(2)

    def first(pipeline, **settings):
        return iter(hosts(readable(), LANES, pipeline, 1, **settings)[0])

    state = first(rows).get_state()
    with pytest.warns(UserWarning, match="of the pipeline 'Map'; this one is 'Map > Batch.2.'"):
        first(cut).set_state(state)
    with pytest.warns(UserWarning, match="of the pipeline 'Map'"):
        first(cut, pipeline_id="b").set_state(state)
    named = first(rows, pipeline_id="a").get_state()
    first(cut, pipeline_id="a").set_state(named)
    other = first(rows, pipeline_id="b")
    with pytest.raises(ValueError, match="of the pipeline 'a'; this one has pipeline_id = 'b'"):
        other.set_state(named)
    first(rows).set_state(named)
    with pytest.raises(TypeError, match="pipeline_id must be a string; got 3"):
        hosts(readable(), LANES, rows, 1, pipeline_id=3)


def test_hosts_whose_lanes_have_ended_count_masked_steps_as_the_others_do(tmp_path):
    """They save together among them, and any number of hosts goes on from there."""
    source = readable((40,), chunk_size=4, exhausted_policy="redistribute")
    taken = [[e["data"] for e in zx.LaneIterDataset(source, lane, 2)] for lane in range(2)]
    kept = {*taken[0], *taken[1][:3]}

    def some(lane):
        return rows(lane.filter(lambda e: e["data"] in kept))

    settings = {"rows_per_sample": None, "pad": True}
    alone = iter(hosts(source, 2, some, 1, **settings)[0])
    places, expected = [], []
    for batch in zx.synchronized(alone):
        places.append(alone.get_state())
        expected.append(batch)
    assert [int(batch["row_mask"].sum()) for batch in expected] == [2] * 3 + [1] * 17
    iterators = [iter(one) for one in hosts(source, 2, some, 2, **settings)]
    together = Together(2)

    def agree(say):
        return lambda word: [int(said) for said in say("a step", str(word), 20)]

    steps = [zx.synchronized(one, agree(together.of(h))) for h, one in enumerate(iterators)]
    with ThreadPoolExecutor(2) as pool:
        for step, (batch, place) in enumerate(zip(expected, places, strict=True), 1):
            assert_same([join(list(pool.map(next, steps)))], [batch])
            for state in [place, *(one.get_state() for one in iterators)]:
                assert {**state, "lanes": {}} == {**place, "lanes": {}, "step": step, "rows": step}
            if step in (2, 3, 4, 11, 20):
                assert save_all(tmp_path / str(step), iterators) == [None, None]
                again = iter(hosts(source, 2, some, 1, **settings)[0])
                assert zx.restore_checkpoint(tmp_path / str(step), again) == step
                assert_same(list(zx.synchronized(again)), expected[step:])


def test_a_host_that_cannot_go_to_the_checkpoint_leaves_all_where_they_are(tmp_path):
    """What the others only hear when they have gone there already."""
    folder = saved(tmp_path / "a", (2, 4))
    iterators = [iter(one) for one in hosts(readable(), LANES, rows, 2)]
    for _ in range(3):
        before = [next(iterator) for iterator in iterators]
    places = [iterator.get_state() for iterator in iterators]
    stands = type(iterators[1]).set_state

    def refuses(state):
        raise ValueError("its pipeline is of another version")

    for asked in (None, 2):
        iterators[1].set_state = refuses
        found, _ = restore_all([folder] * 2, iterators, [asked] * 2)
        assert isinstance(found[0], RuntimeError)
        assert "nothing was restored: processes [1]: ValueError" in str(found[0])
        assert isinstance(found[1], ValueError)
        assert [iterator.get_state() for iterator in iterators] == places
    del iterators[1].set_state
    assert type(iterators[1]).set_state is stands
    [whole] = hosts(readable(), LANES, rows, 1)
    expected = list(whole)
    assert_same([join(before)], [expected[2]])
    assert_same(in_step(iterators), expected[3:])
