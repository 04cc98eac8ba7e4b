"""Shards that appear while a run goes on: recorded once, the same for all, or refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import fsspec
import numpy as np
import pytest
from support.elastic_runs import assert_same, hosts, in_step, merged
from support.helpers import chunks_of
from support.s3_server import S3Server

import zephon_jax as zx


def lines(first, count):
    return "".join(f'{{"n": {first + n}}}\n' for n in range(count)).encode()


def plan(datasets):
    weights = {"a": 2, "b": 1}
    mix = {dataset.name: weights[dataset.name] for dataset in datasets}
    return zx.StaticMixtureWorkSource(datasets, mix, chunk_size=6, exhausted_policy="repeat")


class Place:
    """Folders of two datasets on some file system, and their manifest."""

    def __init__(self, root, **options):
        self.root, self.options = str(root), options
        self.fs, self.inner = fsspec.core.url_to_fs(self.root, **options)
        self.manifest = self.opened()

    def opened(self):
        more = {"storage_options": self.options, "manifest_options": self.options}
        return zx.ShardManifest(
            f"{self.root}/manifest", {name: f"{self.root}/{name}/*.jsonl" for name in "ab"},
            **(more if self.options else {}),
        )  # fmt: skip

    def put(self, name, first, count):
        self.fs.makedirs(os.path.dirname(f"{self.inner}/{name}"), exist_ok=True)
        self.fs.pipe(f"{self.inner}/{name}.jsonl", lines(first, count))


@pytest.fixture(scope="module")
def server():
    with S3Server() as running:
        yield running


@pytest.fixture(params=["local", "memory", "s3"])
def place(request, tmp_path):
    if request.param == "local":
        return Place(tmp_path)
    if request.param == "memory":
        return Place(f"memory://growing-{tmp_path.name}")
    server = request.getfixturevalue("server")
    options = server.storage_options
    bucket = tmp_path.name.replace("_", "-").lower()[:50]
    fsspec.filesystem("s3", **options).mkdir(bucket)
    return Place(f"s3://{bucket}", **options)


def began(place):
    place.put("a/1", 0, 20)
    place.put("a/10", 100, 9)
    place.put("b/1", 1000, 15)
    assert place.manifest.record() == 3
    return place.manifest.source(plan)


def orders(source, limit):
    return [chunk.order()[1].tolist() for chunk in chunks_of(source, limit=limit)]


def test_what_came_later_does_not_count_until_it_is_recorded(place):
    source = began(place)
    wanted = plan([
        zx.Dataset.from_counts("a", [20, 9]), zx.Dataset.from_counts("b", [15]),
    ])  # fmt: skip
    assert orders(source, 30) == orders(wanted, 30)
    place.put("a/2", 200, 13)  # between the others by name
    again = place.opened().source(plan)
    assert zx.encode_state(again.seek(20)) == zx.encode_state(source.seek(20))
    assert place.opened().record(source, at=5) == 1
    grown = place.opened().source(plan)
    expected = wanted.with_mixture(
        {"a": 2, "b": 1}, 5, datasets=[zx.Dataset.from_counts("a", [20, 9, 13])]
    )
    assert orders(grown, 40) == orders(expected, 40)
    assert orders(grown, 5) == orders(source, 5)
    # Read by their places: the new shard is the third, whatever its name.
    assert [r["n"] for r in zx.read(grown, [(0, 2, 0), (0, 1, 0), (1, 0, 14)])] == [200, 100, 1014]
    assert place.opened().record(grown, at=50) == 0  # nothing new, nothing written
    assert len(place.opened().source(plan).changes) == 1


def test_all_hosts_go_on_from_a_state_with_what_was_recorded(tmp_path):
    place = Place(tmp_path)
    source = began(place)

    def rows(lane):
        return lane.map(lambda e: {"n": np.int32(e["data"]["n"])})

    running = hosts(source, 4, rows, 2)
    before = [iter(d) for d in running]
    found = in_step(before, 9)
    state = merged(before)
    place.put("b/2", 2000, 40)
    place.manifest.record(source, at=running[0].boundary(state), mixture={"a": 1, "b": 3})
    after = []
    for host in range(4):
        mine = Place(tmp_path).manifest.source(plan)
        after.append(iter(hosts(mine, 4, rows, 4)[host]))
        after[-1].set_state(state)
    going = in_step(after, 40)
    whole = hosts(place.opened().source(plan), 4, rows, 1)[0]
    assert_same([*found, *going], in_step([iter(whole)], 49))
    assert any((batch["n"] >= 2000).any() for batch in going)
    assert after[0].get_state()["changes"][0][1] == [1, 3]


def test_a_dataset_that_was_empty_comes_in_with_a_weight(tmp_path):
    place = Place(tmp_path)
    with pytest.raises(ValueError, match=r"no dataset has a shard yet: \['a', 'b'\] are empty"):
        place.manifest.record()
    with pytest.raises(FileNotFoundError, match="holds no record of shards yet"):
        place.manifest.source(plan)
    place.put("a/1", 0, 20)
    assert place.manifest.record() == 1
    source = place.manifest.source(plan)
    assert [*source.component_ids()] == ["a"]
    place.put("b/1", 1000, 20)
    with pytest.raises(ValueError, match="b"):
        place.manifest.record(source, at=4)
    assert place.manifest.record(source, at=4, mixture={"a": 1, "b": 1}) == 1
    grown = place.manifest.source(plan)
    assert grown.component_ids() == {"a": 0, "b": 1}
    drawn = zx.simulate(grown, 5).draws.tolist()
    assert drawn == [[6, 0]] * 4 + [[3, 3]]


def test_shards_that_changed_or_went_are_refused_by_name(place):
    began(place)
    place.put("a/10", 100, 8)
    with pytest.raises(ValueError, match=r"'a', shard 1 .*a/10.jsonl\) was recorded with 99 bytes"):
        place.opened().source(plan)
    place.fs.rm(f"{place.inner}/a/10.jsonl")
    with pytest.raises(ValueError, match=r"'a', shard 1 .*a/10.jsonl\) was recorded, and is gone"):
        place.opened().source(plan)


def test_the_same_size_with_other_counts_is_refused(tmp_path):
    place = Place(tmp_path)
    began(place)
    place.fs.pipe(f"{place.inner}/b/1.jsonl", b'{"n": 1}\n' * 20)
    size = 15 * len('{"n": 1000}\n')
    assert size == 9 * 20
    with pytest.raises(ValueError, match=r"'b', shard 0 .* with 15 samples and has 20"):
        place.opened().source(plan)


def test_half_written_shards_are_left_for_the_next_time(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "p"
    folder.mkdir()

    def write(name, count):
        pq.write_table(pa.table({"n": list(range(count))}), folder / name)

    def one(datasets):
        return zx.StaticMixtureWorkSource(datasets, {"p": 1}, 4, exhausted_policy="repeat")

    manifest = zx.ShardManifest(tmp_path / "m", {"p": folder / "*.parquet"})
    write("0.parquet", 10)
    manifest.record()
    source = manifest.source(one)
    write("1.parquet", 11)
    write("2.parquet", 12)
    whole = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match=r"1.parquet is left for the next time, for it cannot be"):
        assert manifest.record(source, at=3) == 1
    (folder / "1.parquet").write_bytes(whole)
    source = manifest.source(one)
    assert manifest.record(source, at=9) == 1
    assert manifest.source(one).datasets_by_id[0].shard_counts.tolist() == [10, 12, 11]


def test_a_shard_that_grows_while_it_is_looked_at_is_left(tmp_path, monkeypatch):
    place = Place(tmp_path)
    source = began(place)
    place.put("a/2", 200, 5)
    path = tmp_path / "a" / "2.jsonl"

    def sleep(seconds):
        assert seconds == 2.5
        path.write_bytes(path.read_bytes() + b'{"n": 7}\n')

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.warns(UserWarning, match="2.jsonl is left for the next time"):
        assert place.manifest.record(source, at=3, settle_seconds=2.5) == 0


def test_two_writers_and_what_does_not_fit_are_refused(tmp_path):
    place = Place(tmp_path)
    source = began(place)
    place.put("a/2", 200, 5)
    other = place.opened()
    with pytest.raises(ValueError, match="were recorded already: give source and at"):
        place.manifest.record()
    with pytest.raises(ValueError, match=r"at must be"):
        place.manifest.record(source, at=-1)
    assert place.manifest.record(source, at=3) == 1
    place.put("a/3", 300, 5)
    with pytest.raises(ValueError, match="the source has 0 changes and the manifest 1"):
        other.record(source, at=6)
    grown = place.manifest.source(plan)
    with pytest.raises(ValueError, match="the next change must come later"):
        other.record(grown, at=3)


def test_the_slower_of_two_writers_hears_of_the_other(place, monkeypatch):
    source = began(place)
    place.put("a/2", 200, 5)
    other, written = place.opened(), []

    def sleep(seconds):
        if seconds == 1 and not written:  # the first writer has listed what is there, and waits
            written.append(None)
            written.append(other.record(source, at=6, settle_seconds=1))

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(RuntimeError, match="let one alone record the shards of a run"):
        place.manifest.record(source, at=3, settle_seconds=1)
    assert written == [None, 1]
    assert place.opened().source(plan).boundaries == (0, 6)


def test_records_that_are_damaged_or_missing_are_named(tmp_path):
    place = Place(tmp_path)
    source = began(place)
    for number in range(2, 5):
        place.put(f"a/{number}", 100 * number, 5)
        place.manifest.record(source, at=3 * number)
        source = place.manifest.source(plan)
    record = tmp_path / "manifest" / "record-000002.json"
    data = record.read_bytes()
    record.write_bytes(data.replace(b'"a"', b'"b"'))
    with pytest.raises(ValueError, match=r"record-000002.json is not a file of"):
        place.opened().source(plan)
    record.unlink()
    with pytest.raises(ValueError, match=r"record-000002.json is missing, and .*000003.json comes"):
        place.opened().source(plan)
    (tmp_path / "manifest" / "record-000003.json").rename(record)
    with pytest.raises(ValueError, match=r"000002.json does not follow the record before it"):
        place.opened().source(plan)


def test_a_writer_that_is_killed_between_a_shard_and_its_record_leaves_the_run_as_it_was(tmp_path):
    place = Place(tmp_path)
    source = began(place)
    code = f"""
        import os, sys
        sys.path.insert(0, {os.path.dirname(os.path.dirname(__file__))!r})
        from mixture.test_shard_manifest import Place, plan
        import zephon_jax.mixture.shard_manifest as module
        place = Place({str(tmp_path)!r})
        place.put("a/2", 200, 5)
        os.link = lambda *a: os.kill(os.getpid(), 9)
        place.manifest.record(place.manifest.source(plan), at=3)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False)
    assert ran.returncode == -9
    again = place.opened().source(plan)
    assert zx.encode_state(again.seek(9)) == zx.encode_state(source.seek(9))
    assert place.opened().record(again, at=3) == 1


def test_a_plan_that_goes_on_is_not_dropped_in_silence(tmp_path):
    place = Place(tmp_path)

    def staged(datasets):
        return zx.ScheduledMixtureWorkSource(
            datasets, [zx.Stage(until=10, mixture={"a": 1, "b": 0}),
                       zx.Stage(mixture={"a": 1, "b": 1})],
            chunk_size=6, exhausted_policy="repeat",
        )  # fmt: skip

    began(place)
    source = place.manifest.source(staged)
    place.put("a/2", 200, 5)
    with pytest.raises(ValueError, match="the weights change as planned at chunk 10, after at = 4"):
        place.manifest.record(source, at=4)
    assert place.manifest.record(source, at=12) == 1
    assert place.manifest.source(staged).changes[0].units == (1, 1)


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(TypeError, match="paths must map names of datasets to folders"):
        zx.ShardManifest(tmp_path, [tmp_path])
    with pytest.raises(TypeError, match=r"takes no \['row_groups'\]"):
        zx.ShardManifest(tmp_path, {"a": tmp_path}, row_groups="shards")
    assert repr(zx.ShardManifest(tmp_path, {"a": "x"})).endswith("datasets ['a'])")
