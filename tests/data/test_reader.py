"""The reader: records in the order asked for, or an error that names what is wrong."""

import json
import multiprocessing
import os
import threading

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import zephon_jax as zx
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.read_samples import read
from zephon_jax.data.reader import Reader, default_reader


def write_array_record(path, records, group_size=1):
    writer = ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write_jsonl(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.fixture
def corpora(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "text").mkdir()
    for shard, count in enumerate([5, 0, 300]):
        records = [b"%d/%d" % (shard, index) for index in range(count)]
        write_array_record(tmp_path / "bin" / f"{shard}.array_record", records, shard + 1)
        values = [{"at": [shard, index], "pad": "x" * (index % 7)} for index in range(count)]
        write_jsonl(tmp_path / "text" / f"{shard}.jsonl", values)
    return {
        0: Dataset.from_path("bin", tmp_path / "bin"),
        7: Dataset.from_path("text", tmp_path / "text"),
    }


def all_ids(datasets):
    return np.array(
        [
            (dataset_id, shard, index)
            for dataset_id, dataset in datasets.items()
            for shard, count in enumerate(dataset.shard_counts)
            for index in range(count)
        ]
    )


def expected(ids):
    return [b"%d/%d" % (s, i) if d == 0 else [s, i] for d, s, i in ids.tolist()]


def plain(records):
    return [record if isinstance(record, bytes) else record["at"] for record in records]


def test_any_order_with_repeats(corpora):
    ids = all_ids(corpora)
    assert plain(read(corpora, ids)) == expected(ids)
    some = np.random.default_rng(0).integers(len(ids), size=400)
    assert plain(read(corpora, ids[some])) == expected(ids[some])
    assert read(corpora, np.zeros((0, 3), np.int64)) == []
    assert read(corpora, []) == []


def test_counts_only_raises_at_once(corpora):
    corpora[1] = Dataset.from_counts("toy", [5])
    with pytest.raises(ValueError, match=r"'toy'.*counts"):
        read(corpora, np.array([[0, 0, 0], [1, 0, 0]]))
    assert read(corpora, np.array([[0, 0, 0]])) == [b"0/0"]


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ((3, 0, 0), "dataset 3"),
        ((0, 9, 0), "'bin' has 3 shards; got shard 9"),
        ((0, 0, 5), "'bin', shard 0 .* 5 samples; got index 5"),
        ((0, 2, -1), "index -1"),
        ((0, -1, 0), "shard -1"),
    ],
)
def test_ids_out_of_range(corpora, bad, word):
    with pytest.raises(ValueError, match=word):
        read(corpora, np.array([bad, (0, 0, 0)]))


@pytest.mark.parametrize("cut", [1, 100, 65536])
def test_truncated_array_record(tmp_path, cut):
    path = write_array_record(tmp_path / "a.array_record", [b"x" * 50] * 100)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"'a', shard 0 .*a.array_record.*cut short"):
        Dataset.from_path("a", path)


def test_corrupted_array_record_names_the_shard(tmp_path):
    path = write_array_record(tmp_path / "a.array_record", [os.urandom(50) for _ in range(1000)])
    data = bytearray(path.read_bytes())
    data[30000] ^= 255
    path.write_bytes(data)
    dataset = Dataset.from_path("a", path)
    everything = all_ids({0: dataset})
    with pytest.raises(ValueError, match=r"'a', shard 0 .*a.array_record"):
        read({0: dataset}, everything)
    assert len(read({0: dataset}, everything[:10])) == 10  # Still usable.


@pytest.mark.parametrize("change", ["append", "cut", "touch", "remove"])
def test_data_that_changed_under_a_run(tmp_path, change):
    path = write_jsonl(tmp_path / "a.jsonl", list(range(100)))
    dataset = Dataset.from_path("a", path)
    assert read({0: dataset}, [[0, 0, 99]]) == [99]
    text = path.read_text()
    if change == "append":
        path.write_text(text + "5\n" * 30)
    elif change == "cut":
        path.write_text(text[:200])
    elif change == "touch":
        os.utime(path, (1, 1))
    else:
        path.unlink()
    kind = FileNotFoundError if change == "remove" else ValueError
    with pytest.raises(kind, match=r"'a', shard 0 .*a.jsonl"):
        read({0: dataset}, [[0, 0, 5]])
    if change != "remove":
        again = Dataset.from_path("a", path)
        assert again.num_samples == {"append": 130, "touch": 100}.get(change, again.num_samples)
        assert read({0: again}, [[0, 0, again.num_samples - 1]]) is not None


def test_bad_line_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": \n{"a": 4}\n')
    dataset = Dataset.from_path("text", path)
    assert dataset.num_samples == 4
    with pytest.raises(ValueError, match=r"'text', shard 0 .*a.jsonl.*record 2 \(line 4\)"):
        read({0: dataset}, [[0, 0, 0], [0, 0, 3], [0, 0, 2]])
    assert read({0: dataset}, [[0, 0, 3], [0, 0, 1]]) == [{"a": 4}, {"a": 2}]


def test_open_files_are_bounded(tmp_path):
    for shard in range(40):
        write_array_record(tmp_path / f"{shard}.array_record", [b"x"] * 3)
    dataset = Dataset.from_path("many", tmp_path)
    reader = Reader(max_open_files=4)
    before = len(os.listdir("/proc/self/fd"))
    ids = all_ids({0: dataset})
    assert reader.read({0: dataset}, ids) == [b"x"] * 120
    assert len(os.listdir("/proc/self/fd")) - before <= 4
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="max_open_files"):
        Reader(max_open_files=0)


def test_threads_share_a_reader(corpora):
    ids, failures = all_ids(corpora), []
    reader = Reader(max_open_files=1)

    def work(seed):
        some = ids[np.random.default_rng(seed).integers(len(ids), size=200)]
        for _ in range(10):
            if plain(reader.read(corpora, some)) != expected(some):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_after_fork(corpora):
    ids = all_ids(corpora)
    read(corpora, ids)
    parent = default_reader()
    child = os.fork()
    if child == 0:
        good = plain(read(corpora, ids)) == expected(ids) and default_reader() is not parent
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert plain(read(corpora, ids)) == expected(ids)


def test_windows_bound_bytes(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 3000, size=500)
    dataset = Dataset.from_path("a", write_jsonl(tmp_path / "a.jsonl", ["x" * n for n in lengths]))
    reader = Reader(window_bytes=20_000)
    ids = np.array([(0, 0, i) for i in np.random.default_rng(1).permutation(500)])
    sizes = lengths[ids[:, 2]] + 3
    windows = list(reader.windows({0: dataset}, ids))
    assert [start for start, _ in windows] == [0, *(stop for _, stop in windows[:-1])]
    assert windows[-1][1] == 500
    for start, stop in windows:
        assert sizes[start:stop].sum() <= 20_000
        assert stop == 500 or sizes[start : stop + 1].sum() > 20_000
    assert list(reader.windows({0: dataset}, ids[:3], max_bytes=1)) == [(0, 1), (1, 2), (2, 3)]
    assert list(reader.windows({0: dataset}, ids[:0])) == []
    reader.close()


def test_windows_bound_bytes_whichever_shard_a_record_is_of(tmp_path):
    """Shards of short and of long records, of two datasets and of a part, read mixed."""
    draw, datasets, sizes = np.random.default_rng(2), {}, {}
    for d, name in enumerate("ab"):
        (folder := tmp_path / name).mkdir()
        for shard, longest in enumerate((5, 4000, 60)):
            lengths = draw.integers(1, longest, size=100)
            write_jsonl(folder / f"{shard}.jsonl", ["x" * n for n in lengths])
            sizes.update({(d, shard, i): n + 3 for i, n in enumerate(lengths.tolist())})
        datasets[d] = Dataset.from_path(name, tmp_path / name)
    part = datasets[2] = datasets[0].split(seed=0, part=0.5)["part"]
    for shard, count in enumerate(part.shard_counts.tolist()):
        _, whole, places = part.resolve(shard, np.arange(count))
        sizes.update({(2, shard, i): sizes[0, whole, p] for i, p in enumerate(places.tolist())})
    ids = draw.permutation(np.array(list(sizes)))
    held = np.array([sizes[tuple(one)] for one in ids.tolist()])
    windows = list(Reader().windows(datasets, ids, 20_000))
    assert [start for start, _ in windows] == [0, *(stop for _, stop in windows[:-1])]
    assert windows[-1][1] == len(ids)
    for start, stop in windows:
        assert held[start:stop].sum() <= 20_000
        assert stop == len(ids) or held[start : stop + 1].sum() > 20_000


def test_windows_learn_the_size_of_packed_records(tmp_path):
    # Zeros shrink to next to nothing, so the file says little about the records.
    path = write_array_record(tmp_path / "a.array_record", [bytes(1000)] * 1000)
    dataset, reader = Dataset.from_path("a", path), Reader()
    ids = np.array([(0, 0, i) for i in range(1000)])
    sizes = []
    for start, stop in reader.windows({0: dataset}, ids, max_bytes=400_000):
        reader.read({0: dataset}, ids[start:stop])
        sizes.append(1000 * (stop - start))
    assert max(sizes) <= 400_000
    assert max(sizes[1:]) >= 300_000
    reader.close()


def test_plan_without_copies_does_nothing(corpora):
    reader = Reader()
    assert not reader.needs_plan(corpora)
    reader.plan(corpora, [(0, 0), (7, 2)])
    reader.plan(corpora, [])


def _settings_of_default_reader():
    return default_reader().window_bytes


def test_settings_reach_started_processes(monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_WINDOW_BYTES", "12345")
    assert default_reader().window_bytes == 12345
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_settings_of_default_reader) == 12345
    monkeypatch.delenv("ZEPHON_JAX_WINDOW_BYTES")
    assert default_reader().window_bytes == 1 << 26
    for text in ("0", "-1", "64M"):
        monkeypatch.setenv("ZEPHON_JAX_OPEN_FILES", text)
        with pytest.raises(ValueError, match=f"ZEPHON_JAX_OPEN_FILES must .* got '{text}'"):
            default_reader()


def test_windows_are_as_long_as_they_can_be(tmp_path):
    draw = np.random.default_rng(0)
    sizes = draw.integers(3, 40, 3000)
    sizes[draw.integers(0, 3000, 20)] = 5000
    write_jsonl(tmp_path / "a.jsonl", ["x" * (int(size) - 3) for size in sizes])
    lines = Dataset.from_path("a", tmp_path)
    ids = np.stack([np.zeros(3000), np.zeros(3000), draw.permutation(3000)], axis=1).astype(int)
    for budget in (10, 100, 3000, 40_000, 10**9):
        expected, start, held = [], 0, 0
        for place, size in enumerate(sizes[ids[:, 2]].tolist()):
            if place > start and held + size > budget:
                expected.append((start, place))
                start, held = place, 0
            held += size
        found = list(Reader().windows({0: lines}, ids, budget))
        assert found == [*expected, (start, 3000)]


class TestReadForALoopOfOnesOwn:
    """`zx.read`: what `chunk.order()` names, as records."""

    def source(self, tmp_path):
        (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(40)))
        filed = zx.Dataset.from_path("filed", tmp_path / "a.jsonl")
        made = zx.Dataset.from_source("made", [f"m{n}" for n in range(30)])
        return zx.StaticMixtureWorkSource([filed, made], {"filed": 2, "made": 1}, chunk_size=16)

    def test_records_are_those_of_a_lane(self, tmp_path):
        source = self.source(tmp_path)
        state, found = source.init(1, 2), []
        while True:
            chunk, state = source.next_chunk(state)
            if chunk is None:
                break
            found += zx.read(source, chunk.order()[1])
        assert found == [element["data"] for element in zx.LaneIterDataset(source, 1, 2)]

    def test_ids_may_repeat_and_be_none(self, tmp_path):
        source = self.source(tmp_path)
        ids = [(1, 0, 3), (0, 0, 39), (1, 0, 3)]
        assert zx.read(source, ids) == ["m3", {"n": 39}, "m3"]
        assert zx.read(list(source.datasets_by_id.values()), np.asarray(ids, np.int32)) == zx.read(
            source.datasets_by_id, ids
        )
        assert zx.read(source, []) == []

    @pytest.mark.parametrize(
        ("ids", "error", "words"),
        [
            ((0, 0, 1), ValueError, r"sample_ids must be \(n, 3\)"),
            ([(0, 0, 1.5)], TypeError, "sample_ids must be integers"),
            ([(2, 0, 0)], ValueError, r"dataset 2; known are \[0, 1\]"),
            ([(0, 0, 40)], ValueError, "filed"),
        ],
    )
    def test_ids_that_name_nothing(self, tmp_path, ids, error, words):
        with pytest.raises(error, match=words):
            zx.read(self.source(tmp_path), ids)

    def test_something_else_in_place_of_a_source(self):
        with pytest.raises(TypeError, match=r"a source or a list of zx\.Dataset"):
            zx.read(["web"], [(0, 0, 0)])
