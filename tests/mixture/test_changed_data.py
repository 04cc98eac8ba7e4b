"""Data that changed since a state was saved, with the same counts, is refused by name."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zx
from zephon_jax.data import reader


def write_lines(path, values):
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def write_corpus(folder):
    for name in ("web", "code"):
        (folder / name).mkdir(parents=True)
        for shard in range(4):
            values = ["x" * (10 * shard + n) for n in range(20)]
            write_lines(folder / name / f"{shard}.jsonl", values)
    (folder / "rows").mkdir()
    for shard in range(3):
        table = pa.table({"n": list(range(100 * shard, 100 * shard + 50))})
        pq.write_table(table, folder / "rows" / f"{shard}.parquet", row_group_size=20)


def source_of(folder, **settings):
    names = ["web", "code", "rows"]
    datasets = [zx.Dataset.from_path(name, folder / name, **settings) for name in names]
    return zx.StaticMixtureWorkSource(datasets, dict.fromkeys(names, 1), chunk_size=10)


def rewrite_one(folder):
    write_lines(folder / "code" / "2.jsonl", ["y" * (20 + n) for n in range(19)] + ["y"])


def same_size(folder):
    """A shard of the same size and number of lines, whose lines are in another order."""
    write_lines(folder / "web" / "1.jsonl", ["x" * (10 + n) for n in reversed(range(20))])


def swap(folder):
    os.rename(folder / "web" / "0.jsonl", folder / "aside")
    os.rename(folder / "web" / "3.jsonl", folder / "web" / "0.jsonl")
    os.rename(folder / "aside", folder / "web" / "3.jsonl")


def rename_out_of_order(folder):
    os.rename(folder / "rows" / "0.parquet", folder / "rows" / "9.parquet")


def rewrite_all(folder):
    for shard in range(4):
        write_lines(folder / "code" / f"{shard}.jsonl", ["z" * (9 * shard + n) for n in range(20)])


def append(folder):
    with open(folder / "web" / "3.jsonl", "a") as file:
        file.write("\n   \n")  # No record more.


def rewrite_group(folder):
    table = pa.table({"n": [*range(100, 149), 7]})
    pq.write_table(table, folder / "rows" / "1.parquet", row_group_size=20)


CHANGES = {
    rewrite_one: r"'code', shard 2: it was written anew",
    same_size: r"other shard contents \(dataset 'web', shard 1: it was written anew",
    swap: r"'web': its shards are in another order",
    rename_out_of_order: r"'rows': its shards are in another order|'rows': several of its shards",
    rewrite_all: r"'code': several of its shards were written anew",
    append: r"'web', shard 3: it was written anew",
    rewrite_group: r"'rows', shard 1: it was written anew",
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_data_is_named(tmp_path, change):
    write_corpus(tmp_path)
    before = source_of(tmp_path)
    saved = zx.encode_state(before.seek(3))
    lane = iter(zx.LaneIterDataset(before))
    next(lane)
    place = lane.get_state()
    change(tmp_path)
    after = source_of(tmp_path)
    assert [d.shard_counts.tolist() for d in after.datasets_by_id.values()] == [
        d.shard_counts.tolist() for d in before.datasets_by_id.values()
    ]
    with pytest.raises(ValueError, match=r"the state belongs to a source.*" + CHANGES[change]):
        zx.decode_state(after, saved)
    with pytest.raises(ValueError, match=CHANGES[change]):
        iter(zx.LaneIterDataset(after)).set_state(place)
    with pytest.warns(UserWarning, match=r"data_changed = 'warn'"):
        state = zx.decode_state(source_of(tmp_path, data_changed="warn"), saved)
    again = source_of(tmp_path, data_changed="warn")
    assert zx.encode_state(state) == zx.encode_state(again.seek(3))  # From here on it is its own.
    zx.decode_state(after, zx.encode_state(state))


def test_changed_datasets_are_told_together(tmp_path):
    write_corpus(tmp_path)
    saved = zx.encode_state(source_of(tmp_path).seek(3))
    rewrite_all(tmp_path)
    same_size(tmp_path)
    with pytest.raises(ValueError, match=r"other shard bytes, shard contents\. Restore"):
        zx.decode_state(source_of(tmp_path), saved)


def test_a_copy_elsewhere_is_the_same_data(tmp_path, monkeypatch):
    write_corpus(tmp_path / "a")
    saved = zx.encode_state(source_of(tmp_path / "a").seek(3))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    copy = source_of(tmp_path / "b")
    assert zx.encode_state(zx.decode_state(copy, saved)) == saved

    def refuse(*args, **kwargs):
        raise AssertionError("a fingerprint reads no data")

    monkeypatch.setattr(reader.Reader, "read", refuse)
    again = source_of(tmp_path / "b")
    assert zx.encode_state(zx.decode_state(again, saved)) == saved


def test_what_one_side_does_not_know_is_not_compared(tmp_path):
    write_corpus(tmp_path)
    full = source_of(tmp_path)
    counts = [d.shard_counts.tolist() for d in full.datasets_by_id.values()]
    given = zx.StaticMixtureWorkSource(
        [
            zx.Dataset.from_path(name, tmp_path / name, counts=count)
            for name, count in zip(("web", "code", "rows"), counts, strict=True)
        ],
        {"web": 1, "code": 1, "rows": 1},
        chunk_size=10,
    )
    simulated = zx.StaticMixtureWorkSource(
        [
            zx.Dataset.from_counts(n, c)
            for n, c in zip(("web", "code", "rows"), counts, strict=True)
        ],
        {"web": 1, "code": 1, "rows": 1},
        chunk_size=10,
    )
    for one in (full, given, simulated):
        for other in (full, given, simulated):
            state = zx.decode_state(other, zx.encode_state(one.seek(3)))
            assert zx.encode_state(state) == zx.encode_state(other.seek(3))


def test_states_stay_small(tmp_path):
    datasets = []
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        write_lines(tmp_path / str(number) / "0.jsonl", range(100))
        datasets.append(zx.Dataset.from_path(f"d{number}", tmp_path / str(number)))
    source = zx.StaticMixtureWorkSource(datasets, {d.name: 1 for d in datasets}, chunk_size=16)
    assert len(zx.encode_state(source.seek(20))) <= 512


def ids_of(lane):
    return lane.map(lambda element: {"sample_id": element["sample_id"]})


def test_a_checkpoint_is_refused_too(tmp_path):
    write_corpus(tmp_path / "data")

    def lanes(**settings):
        elastic = zx.ElasticIterDataset(
            source_of(tmp_path / "data", **settings), 2, ids_of, process_index=0, process_count=1,
            pad=True,
        )  # fmt: skip
        return iter(elastic)

    iterator = lanes()
    next(iterator)
    zx.save_checkpoint(tmp_path / "saved", iterator, step=1)
    want = np.asarray(next(iterator)["sample_id"]).tolist()
    iterator.close()
    swap(tmp_path / "data")
    with pytest.raises(ValueError, match=r"'web': its shards are in another order"):
        zx.restore_checkpoint(tmp_path / "saved", lanes())
    iterator = lanes(data_changed="warn")
    with pytest.warns(UserWarning, match=r"'web': its shards are in another order"):
        zx.restore_checkpoint(tmp_path / "saved", iterator)
    assert np.asarray(next(iterator)["sample_id"]).tolist() == want
    iterator.close()


def test_the_setting_is_checked(tmp_path):
    write_corpus(tmp_path)
    with pytest.raises(ValueError, match=r"'web': data_changed must be 'raise' or 'warn'"):
        zx.Dataset.from_path("web", tmp_path / "web", data_changed="ignore")
