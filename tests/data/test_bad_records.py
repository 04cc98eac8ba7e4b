"""Records that cannot be read: left out, replaced or raised in their place; the order stays."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from support.helpers import wait_until

import zephon_jax as zx
from zephon_jax.data.formats.jsonl import JsonlShard
from zephon_jax.data.reader import Reader

EVERY = 97  # One line in so many is bad.
quiet = pytest.mark.filterwarnings("ignore:dataset '.*'. a record of shard")


def write_lines(folder, num_shards=4, each=500):
    """Numbers, of which every 97th is no JSON."""
    folder.mkdir()
    for shard in range(num_shards):
        numbers = range(shard * each, (shard + 1) * each)
        lines = ["{bad" if n % EVERY == 5 else json.dumps({"n": n}) for n in numbers]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")


def source_of(folder, on_bad_record, chunk_size=64, **settings):
    dataset = zx.Dataset.from_path("web", folder, on_bad_record=on_bad_record, **settings)
    return zx.StaticMixtureWorkSource(
        [dataset], {"web": 1}, chunk_size=chunk_size, shuffle_block_size="global",
        exhausted_policy="redistribute",
    )  # fmt: skip


def order_of(source, lane=0, num_lanes=1, each=500):
    """Numbers in a lane's order, bad ones included: from the schedule alone."""
    state, found = source.init(lane, num_lanes), []
    while (step := source.next_chunk(state))[0] is not None:
        chunk, state = step
        found += [int(row[1]) * each + int(row[2]) for row in chunk.order()[1]]
    return found


def is_bad(number):
    return number % EVERY == 5


@quiet
def test_skipped_records_leave_the_order_as_it_is(tmp_path):
    write_lines(tmp_path / "data")
    source = source_of(tmp_path / "data", "skip")
    for lane in range(2):
        iterator = iter(zx.LaneIterDataset(source, lane, 2))
        numbers = order_of(source, lane, 2)
        assert [e["data"]["n"] for e in iterator] == [n for n in numbers if not is_bad(n)]
        assert iterator.num_skipped == {"web": sum(map(is_bad, numbers))}
    listed = zx.bad_records("web")
    assert {bad.shard_id * 500 + bad.sample_index for bad in listed} >= set(
        filter(is_bad, range(2000))
    )
    assert "is not valid JSON" in listed[0].reason
    assert listed[0].path.endswith(".jsonl")


def test_the_first_one_is_said(tmp_path):
    write_lines(tmp_path / "data", 1, 100)
    dataset = zx.Dataset.from_path("said once", tmp_path / "data", on_bad_record="skip")
    source = zx.StaticMixtureWorkSource([dataset], {"said once": 1}, chunk_size=10)
    with pytest.warns(UserWarning, match=r"'said once': a record of shard 0 .*left out.*line 6"):
        assert sum(1 for _ in zx.LaneIterDataset(source)) == 99


@quiet
def test_restores_agree_at_every_place(tmp_path, monkeypatch):
    """Whatever windows the reads were cut into."""
    write_lines(tmp_path / "data", 2, 300)
    source = source_of(tmp_path / "data", "skip", chunk_size=150)
    numbers = order_of(source, each=300)
    good = [n for n in numbers if not is_bad(n)]
    iterator = iter(zx.LaneIterDataset(source))
    for place in range(0, len(good), 7):
        state = json.loads(json.dumps(iterator.get_state()))
        passed = numbers[: numbers.index(good[place])]
        assert state["skipped"]["web"] <= sum(map(is_bad, passed))  # What stands next may be bad.
        monkeypatch.setenv("ZEPHON_JAX_WINDOW_BYTES", str(1 << (10 + place % 12)))
        other = iter(zx.LaneIterDataset(source))
        other.set_state(state)
        assert other.num_skipped == state["skipped"]
        assert [e["data"]["n"] for e in other] == good[place:]
        assert other.num_skipped == {"web": sum(map(is_bad, numbers))}
        for _ in range(7):
            next(iterator, None)


@quiet
@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_the_same_batches_and_counts_on_any_number_of_hosts(tmp_path, num_hosts):
    check_hosts(tmp_path, num_hosts, num_shards=4, each=400)


@quiet
@pytest.mark.slow
def test_a_million_records_with_one_in_ten_thousand_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.EVERY", 10_000)
    for num_hosts in (1, 2, 4):
        check_hosts(tmp_path / str(num_hosts), num_hosts, num_shards=10, each=100_000)


def check_hosts(tmp_path, num_hosts, num_shards, each):
    tmp_path.mkdir(exist_ok=True)
    write_lines(tmp_path / "data", num_shards, each)
    source = source_of(tmp_path / "data", "skip", chunk_size=num_shards * each // 40)

    def host(index):
        lanes = zx.ElasticIterDataset(
            source, 4, lambda lane: lane.map(lambda e: e["data"]["n"]), process_index=index,
            process_count=num_hosts, rows_per_sample=None,
            read_config=zx.MixtureReadConfig(),
        )  # fmt: skip
        return iter(lanes)

    numbers = [order_of(source, lane, 4, each) for lane in range(4)]
    good = [[n for n in lane if not is_bad(n)] for lane in numbers]
    steps = min(map(len, good))
    want = [list(row) for row in zip(*good, strict=False)]
    found = [[] for _ in range(steps)]
    states = []
    for index in range(num_hosts):
        iterator = host(index)
        for step in range(steps):
            if step == steps // 2:  # The process is killed, and another goes on.
                state = json.loads(json.dumps(iterator.get_state()))
                iterator.close()
                iterator = host(index)
                iterator.set_state(state)
            found[step] += np.asarray(next(iterator)).tolist()
        states.append(iterator.get_state())
        iterator.close()
    assert found == want
    passed = 0
    for lane in range(4):  # A lane's place may be before or behind bad records that come next.
        last = numbers[lane].index(good[lane][steps - 1])
        passed += sum(map(is_bad, numbers[lane][:last]))
    assert passed <= zx.skipped_records(states)["web"] <= passed + 4


def test_rows_for_each_sample_cannot_be_promised(tmp_path):
    write_lines(tmp_path / "data", 1, 100)
    source = source_of(tmp_path / "data", "skip")
    with pytest.raises(ValueError, match=r"'web' skips bad records.*rows_per_sample=None"):
        zx.ElasticIterDataset(source, 1, lambda lane: lane, process_index=0, process_count=1)


@quiet
def test_a_function_replaces_them(tmp_path):
    write_lines(tmp_path / "data", 1, 300)

    def replace(bad):
        return None if bad.sample_index == 5 else {"n": -bad.sample_index}

    source = source_of(tmp_path / "data", replace)
    numbers = order_of(source)
    want = [-n if is_bad(n) else n for n in numbers if n != 5]
    assert [e["data"]["n"] for e in zx.LaneIterDataset(source)] == want
    found = list(zx.MixtureMapDataset(source).__getitems__(range(len(numbers))))
    assert [e and e["data"]["n"] for e in found] == [
        None if n == 5 else -n if is_bad(n) else n for n in numbers
    ]


@quiet
@pytest.mark.parametrize("empty", [0, 0.0, "", b"", False, {}, []])
def test_only_none_is_no_record(tmp_path, empty):
    """Empty records, zeros and texts without a letter are records like others."""
    write_lines(tmp_path / "data", 1, 120)
    source = source_of(tmp_path / "data", lambda bad: None if bad.sample_index == 5 else empty)
    numbers = order_of(source)
    want = [empty if is_bad(n) else {"n": n} for n in numbers if n != 5]
    assert [e["data"] for e in zx.LaneIterDataset(source)] == want
    found = zx.MixtureMapDataset(source).__getitems__(range(len(numbers)))
    assert [e["data"] for e in found if e is not None] == want


def test_a_lane_goes_on_behind_an_error(tmp_path):
    write_lines(tmp_path / "data", 1, 300)
    source = source_of(tmp_path / "data", "raise")
    iterator, found, errors = iter(zx.LaneIterDataset(source)), [], []
    for number in order_of(source):
        if is_bad(number):
            with pytest.raises(ValueError, match=r"'web', shard 0 .*line \d+") as info:
                next(iterator)
            errors.append(str(info.value))
        else:
            found.append(next(iterator)["data"]["n"] == number)
    assert all(found)
    assert len(errors) == 4
    assert next(iterator, None) is None
    assert iterator.num_skipped == {}
    assert "skipped" not in iterator.get_state()


@quiet
def test_so_many_and_no_more(tmp_path):
    write_lines(tmp_path / "data", 1, 300)
    source = source_of(tmp_path / "data", "skip", max_bad_records=2)
    numbers = order_of(source)
    third = [n for n in numbers if is_bad(n)][2]
    iterator = iter(zx.LaneIterDataset(source))
    for number in numbers[: numbers.index(third)]:
        if not is_bad(number):
            assert next(iterator)["data"]["n"] == number
    with pytest.raises(ValueError, match=r"'web', shard 0 .*left out 2 bad records.*max_bad_rec"):
        next(iterator)


@quiet
def test_the_bound_holds_after_every_restore(tmp_path):
    write_lines(tmp_path / "data", 1, 400)
    source = source_of(tmp_path / "data", "skip", max_bad_records=2)
    numbers = order_of(source)
    third = [n for n in numbers if is_bad(n)][2]
    want = [n for n in numbers[: numbers.index(third)] if not is_bad(n)]
    iterator = iter(zx.LaneIterDataset(source))
    for place in range(len(want)):
        if place % 40 == 0:
            other = iter(zx.LaneIterDataset(source))
            other.set_state(json.loads(json.dumps(iterator.get_state())))
            for number in want[place:]:
                assert next(other)["data"]["n"] == number
            with pytest.raises(ValueError, match="left out 2 bad records"):
                next(other)
            assert other.num_skipped == {"web": 2}
        next(iterator)


@quiet
@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_the_bound_is_met_at_the_same_step_on_any_number_of_hosts(tmp_path, num_hosts):
    write_lines(tmp_path / "data", 4, 400)
    source = source_of(tmp_path / "data", "skip", chunk_size=40, max_bad_records=1)
    ends = []
    for lane in range(4):
        numbers = order_of(source, lane, 4, 400)
        second = [n for n in numbers if is_bad(n)][1]
        ends.append(sum(not is_bad(n) for n in numbers[: numbers.index(second)]))
    found = []
    for index in range(num_hosts):
        iterator = iter(zx.ElasticIterDataset(
            source, 4, lambda lane: lane.map(lambda e: e["data"]["n"]), process_index=index,
            process_count=num_hosts, rows_per_sample=None,
            read_config=zx.MixtureReadConfig(),
        ))  # fmt: skip
        step = 0
        with pytest.raises(zx.LaneError, match="left out 1 bad records"):
            for step, _ in enumerate(iterator, 1):  # noqa: B007
                pass
        found.append(step)
        iterator.close()
    assert min(found) == min(ends)


@quiet
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_lanes_that_are_killed_go_on_counting(tmp_path):
    """By SIGKILL, three times: what the last state has not seen is read again."""
    write_lines(tmp_path / "data", 2, 600)
    source = source_of(tmp_path / "data", "skip", chunk_size=100)
    numbers = order_of(source, each=600)
    good = [n for n in numbers if not is_bad(n)]
    saved = tmp_path / "saved"
    saved.write_text(json.dumps([None, []]))

    def load():
        state, rows = json.loads(saved.read_text())
        iterator = iter(zx.LaneIterDataset(source))
        if state is not None:
            iterator.set_state(state)
        return iterator, rows

    def work(stop):
        iterator, rows = load()
        for element in iterator:
            rows.append(element["data"]["n"])
            if len(rows) % 7 == 0:
                (tmp_path / "new").write_text(json.dumps([iterator.get_state(), rows]))
                os.replace(tmp_path / "new", saved)
            if len(rows) == stop + 20:
                time.sleep(60)  # Here it is killed, with rows that no state has seen.

    for stop in (150, 500, 900):
        child = os.fork()
        if child == 0:
            try:
                work(stop)
            finally:
                os._exit(1)
        wait_until(lambda stop=stop: len(json.loads(saved.read_text())[1]) >= stop, seconds=60)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    iterator, rows = load()
    assert 900 <= len(rows) < len(good)
    rows += [element["data"]["n"] for element in iterator]
    assert rows == good
    assert iterator.num_skipped == {"web": sum(map(is_bad, numbers))}


@quiet
def test_a_corrupted_row_group(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"n": list(range(1000))})
    options = {"use_dictionary": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=100, **options)
    chunk = pq.read_metadata(path).row_group(4).column(0)
    data = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[middle] ^= 255
    path.write_bytes(data)
    source = source_of(path, "skip", chunk_size=100)
    iterator = iter(zx.LaneIterDataset(source))
    assert sorted(e["data"]["n"] for e in iterator) == [*range(400), *range(500, 1000)]
    assert iterator.num_skipped == {"web": 100}


@quiet
def test_a_corrupted_chunk_of_array_records(tmp_path):
    path = tmp_path / "a.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:10,uncompressed")
    for n in range(200):
        writer.write(b"%05d" % n * 20)
    writer.close()
    data = bytearray(path.read_bytes())
    place = bytes(data).index(b"00055" * 20)
    data[place] ^= 255
    path.write_bytes(data)
    dataset = zx.Dataset.from_path("web", path, on_bad_record="skip")
    ids = np.stack([np.zeros(200), np.zeros(200), np.arange(200)], axis=1)
    kept, records = Reader().read_good({0: dataset}, ids)
    assert 0 < 200 - len(kept) <= 10
    assert [int(record[:5]) for record in records] == kept[:, 2].tolist()


@quiet
def test_sources_and_parts(tmp_path):
    class Source(list):
        def __getitem__(self, place):
            if place % 10 == 3:
                raise RuntimeError("it fell out")
            return list.__getitem__(self, place)

    dataset = zx.Dataset.from_source("src", Source(range(100)), on_bad_record="skip")
    for part in dataset.split(seed=0, a=0.5, b=0.5).values():
        source = zx.StaticMixtureWorkSource([part], {part.name: 1}, chunk_size=10)
        iterator = iter(zx.LaneIterDataset(source))
        found = [e["data"] for e in iterator]
        assert all(number % 10 != 3 for number in found)
        assert len(found) + iterator.num_skipped[part.name] == 50
    assert {bad.path for bad in zx.bad_records("a")} == {None}


@quiet
def test_tokens_are_measured_of_the_others(tmp_path):
    write_lines(tmp_path / "data", 1, 300)
    dataset = zx.Dataset.from_path("web", tmp_path / "data", on_bad_record="skip")
    counted = zx.count_shard_tokens([dataset], lambda record: 1)
    assert counted["web"].tolist() == [296]


def test_errors_of_the_network_are_no_bad_records(tmp_path, monkeypatch):
    write_lines(tmp_path / "data", 1, 100)
    source = source_of(tmp_path / "data", "skip")

    def fail(self, indices):
        raise TimeoutError("too slow")

    with monkeypatch.context() as patch:
        patch.setattr("zephon_jax.data.formats.jsonl.JsonlShard.read", fail)
        iterator = iter(zx.LaneIterDataset(source))
        with pytest.raises(TimeoutError, match="'web', shard 0"):
            next(iterator)
    assert sum(1 for _ in iterator) == 99


@quiet
def test_errors_that_pass_leave_the_counts_as_they_are(tmp_path, monkeypatch):
    """A read that fails in mid-run neither forgets what was left out before it, nor the bound."""
    write_lines(tmp_path / "data")
    numbers = order_of(source_of(tmp_path / "data", "skip"))
    bad = [n for n in numbers if is_bad(n)]
    good = [n for n in numbers if not is_bad(n)]
    source = source_of(tmp_path / "data", "skip", max_bad_records=len(bad) - 1)
    iterator, calls, got = iter(zx.LaneIterDataset(source)), itertools.count(1), []
    whole = JsonlShard.read

    def read(self, indices):
        if next(calls) % 29 == 0:  # a window with a bad record takes about a dozen
            raise TimeoutError("too slow")
        return whole(self, indices)

    monkeypatch.setattr(JsonlShard, "read", read)
    refused, num_failed = "", 0
    while not refused:
        try:
            got.append(next(iterator)["data"]["n"])
        except TimeoutError:
            num_failed += 1
            left_out = sum(map(is_bad, numbers[: numbers.index(got[-1])]))
            assert left_out <= iterator.num_skipped["web"] <= len(bad)
            assert iterator.get_state()["skipped"] == iterator.num_skipped
        except ValueError as error:
            refused = str(error)
    assert num_failed > 2
    assert f"left out {len(bad) - 1} bad records" in refused
    assert got == good[: numbers.index(bad[-1]) - len(bad) + 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_bad_record": "drop"}, r"'a': on_bad_record must be 'raise', 'skip' or a function"),
        ({"on_bad_record": "skip", "max_bad_records": -1}, "'a': max_bad_records must be at least"),
        ({"max_bad_records": 3}, "max_bad_records = 3 has no effect"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        zx.Dataset.from_source("a", [1], **settings)
