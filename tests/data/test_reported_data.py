"""Cases of data files that went wrong for people with other loaders, with the right values.

Each test names where the case was reported. Expected values are what the files were written with.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support.s3_server import S3Server

import zephon_jax as zx
from zephon_jax.data.read_samples import read

MARK = b"\xef\xbb\xbf"


def all_of(path, **settings):
    dataset = zx.Dataset.from_path("web", path, **settings)
    ids = [(0, s, i) for s, count in enumerate(dataset.shard_counts) for i in range(count)]
    return read({0: dataset}, np.array(ids, dtype=np.int64).reshape(-1, 3))


def record(path, index):
    return read({0: zx.Dataset.from_path("web", path)}, [(0, 0, index)])[0]


# JSON Lines


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
def test_byte_order_mark_and_keys_that_vary(tmp_path, packing):
    """Case 62. HF datasets#8241, promptflow#4188."""
    values = [{"a": 1}, {"b": [2, None]}, {}, {"a": "x", "c": {"d": 1.5}}]
    lines = [json.dumps(value).encode() for value in values]
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[packing]
    path = tmp_path / f"a.jsonl{packing}"
    path.write_bytes(pack(MARK + b"\n".join(lines) + b"\n"))
    assert all_of(path) == values
    joined = MARK + lines[0] + b"\n" + MARK + lines[1] + b"\n" + lines[2] + b"\n"
    path.write_bytes(pack(joined))
    assert record(path, 0) == values[0]
    assert record(path, 2) == values[2]
    with pytest.raises(ValueError, match=r"'web', shard 0 .*record 1 \(line 2\) is not valid JSON"):
        record(path, 1)


def test_line_separators_inside_strings(tmp_path):
    """Case 63. HF datasets PR3910, OpenViking#3984: only a line feed ends a line."""
    marks = ["\u2028", "\u2029", "\u0085", "\u001c", "\u000b", "\u000c"]
    values = [{"text": f"before{mark}after"} for mark in marks]
    lines = [json.dumps(value, ensure_ascii=False) for value in values[:3]]
    lines += [json.dumps(value) for value in values[3:]]  # JSON wants these three escaped.
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join(lines).encode())
    assert all_of(path) == values
    # As they stand they are no JSON, and no ends of lines either.
    for mark in "\x0b\x0c\x1c":
        path.write_bytes(b'{"text": "a%sb"}\n{"text": "c"}\n' % mark.encode())
        assert record(path, 1) == {"text": "c"}
        with pytest.raises(ValueError, match=r"record 0 \(line 1\)"):
            record(path, 0)


def test_holes_and_tails_of_nul_bytes(tmp_path):
    """Case 64. codegraff#242, nlohmann/json#1095: what a crash of a machine leaves in a file."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n' + bytes(5000) + b'{"n": 1}\n{"n": 2}\n' + bytes(700))
    assert zx.Dataset.from_path("web", path).num_samples == 4
    assert (record(path, 0), record(path, 2)) == ({"n": 0}, {"n": 2})
    for index, line in ((1, 2), (3, 4)):
        with pytest.raises(ValueError, match=rf"shard 0 .*record {index} \(line {line}\)"):
            record(path, index)
    path.write_text('{"text": "a\\u0000b"}\n')
    assert all_of(path) == [{"text": "a\0b"}]


@pytest.mark.parametrize(
    ("data", "good", "bad"),
    [
        (b'{"n": 0}{"n": 1}\n{"n": 2}\n', {1: {"n": 2}}, {0: 1}),
        (b'{"n": 0}\n \t \n\n{"n": 1}\n  ', {0: {"n": 0}, 1: {"n": 1}}, {}),
        (b'{"n": 0}\r{"n": 1}\r', {}, {0: 1}),
        (b'{"n": 0}\n{"n": "\xff"}\n', {0: {"n": 0}}, {1: 2}),
        (b'[{"n": 0},\n {"n": 1}]\n', {}, {0: 1, 1: 2}),
        (b'[{"n": 0}, {"n": 1}]\n', {0: [{"n": 0}, {"n": 1}]}, {}),
    ],
)
def test_lines_that_are_no_records(tmp_path, data, good, bad):
    """Case 65. lingua#42."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    assert zx.Dataset.from_path("web", path).num_samples == len(good) + len(bad)
    for index, value in good.items():
        assert record(path, index) == value
    for index, line in bad.items():
        with pytest.raises(ValueError, match=rf"'web', shard 0 .*record {index} \(line {line}\)"):
            record(path, index)


# Names


ODD = [
    "a b", "a%20b", "a+b", "#1", "50%", "x&y=z", "{v}", "(1)", "[2]", "it's", '"q"', "semi;colon",
    "co,mma", "e\u0301", "日本", "é", "-dash", "~tilde", "$usd", "@at", "!bang", "tab\tname",
]  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with S3Server() as running:
        yield running


def test_odd_names_here(tmp_path):
    """Case 66. gcsfs#270, kedro#3196, sirius PR1229, s5cmd#279."""
    for number, name in enumerate(ODD):
        (tmp_path / f"{name}.jsonl").write_text(f"{number}\n")
    assert sorted(all_of(tmp_path)) == list(range(len(ODD)))
    for number, name in enumerate(ODD):
        assert all_of(tmp_path / f"{name}.jsonl") == [number]


def test_odd_names_in_a_bucket(server, tmp_path, monkeypatch):
    """Case 66, where a name is quoted on its way."""
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path))
    fs = fsspec.filesystem("s3", **server.storage_options)
    fs.mkdir("odd-names")
    fs.pipe({f"odd-names/d/{name}.jsonl": b"%d\n" % n for n, name in enumerate(ODD)})
    options = {"storage_options": server.storage_options}
    assert sorted(all_of("s3://odd-names/d", **options)) == list(range(len(ODD)))
    for number in (0, 1, 2, 3, 4):
        assert all_of(f"s3://odd-names/d/{ODD[number]}.jsonl", **options) == [number]


# A page of a listing has 1,000.
@pytest.mark.parametrize("num", [43, pytest.param(1203, marks=pytest.mark.slow)])
def test_a_folder_of_many_objects(server, monkeypatch, tmp_path, num):
    """Case 67. s3fs#279: a listing has more than one page. Case 68: its order is by number."""
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path))
    fs = fsspec.filesystem("s3", **server.storage_options)
    root = f"many-{num}"
    fs.mkdir(root)
    names = [f"part-{n}.jsonl" for n in range(num)]
    objects = {f"{root}/data/{name}": b"1\n" for name in names}
    others = ["data/", "data/_SUCCESS", "data/_temporary/0/part-0.jsonl", "data/.part-0.jsonl.crc"]
    others += ["data/part-0.jsonl.crc", "database/part-0.jsonl", "data.jsonl"]
    objects |= {f"{root}/{name}": b"" for name in others}
    fs.pipe(objects)
    dataset = zx.Dataset.from_path(
        "far", f"s3://{root}/data", storage_options=server.storage_options, counts=[1] * num
    )
    # OpenNMT-py PR1755, HF datasets#3857.
    assert [os.path.basename(file.path) for file in dataset.shards] == names


# Parquet


def test_parquet_without_rows(tmp_path):
    """Case 69. ray PR54822, dataset-viewer#2709, ClickHouse#107746."""
    schema = pa.schema([("n", pa.int64())])
    with pq.ParquetWriter(tmp_path / "0.parquet", schema):
        pass  # No row group at all.
    with pq.ParquetWriter(tmp_path / "1.parquet", schema) as writer:
        for rows in ([], [1, 2], [], [], [3], []):
            writer.write_table(pa.table({"n": pa.array(rows, pa.int64())}))
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "2.parquet")
    assert all_of(tmp_path) == [{"n": 1}, {"n": 2}, {"n": 3}]
    groups = zx.Dataset.from_path("web", tmp_path, row_groups="shards")
    assert groups.shard_counts.tolist() == [2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["struct", "list of structs"])
def test_nested_text_above_two_gigabytes(tmp_path, kind):
    """Case 70. HF datasets#7793, LlamaFactory#7310, rllm#84, DeepEyes#97."""
    schema = pa.schema([("s", pa.struct([("text", pa.string())]))])
    if kind == "list of structs":
        schema = pa.schema([("s", pa.list_(pa.struct([("text", pa.string())])))])

    def text(number):
        return f"{number:07d}" * 149_797  # 1 MiB

    def rows(start):
        values = [{"text": text(number)} for number in range(start, start + 100)]
        return pa.table({"s": values if kind == "struct" else [[v] for v in values]}, schema)

    path = tmp_path / "a.parquet"
    table = pa.concat_tables([rows(start) for start in range(0, 2_100, 100)])
    pq.write_table(table, path, row_group_size=1 << 20, use_dictionary=False)
    del table
    assert pq.read_metadata(path).num_row_groups == 1
    dataset = zx.Dataset.from_path("web", path)
    indices = (2_099, 0, 1_024)
    found = read({0: dataset}, [(0, 0, index) for index in indices])
    values = [one["s"] if kind == "struct" else one["s"][0] for one in found]
    assert [value["text"] for value in values] == [text(index) for index in indices]


# Megatron


def write_index(path, lengths, code, dtype, documents=None, modes=b""):
    lengths = np.asarray(lengths, np.int32)
    width = np.dtype(dtype).itemsize
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * width
    documents = np.arange(len(lengths) + 1) if documents is None else np.asarray(documents)
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(documents))
    body = lengths.tobytes() + pointers.tobytes() + documents.astype(np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(head + body + modes)
    return pointers


DTYPES = [(1, "u1"), (2, "i1"), (3, "i2"), (4, "i4"), (5, "i8"), (6, "f8"), (7, "f4"), (8, "u2")]


@pytest.mark.parametrize(("code", "dtype"), DTYPES)
def test_dtypes_of_megatron(tmp_path, code, dtype):
    """Case 72. json2binidx_tool#5 and #6, transformers#2825: ids up to 65,535, empty sequences."""
    most = 65_535 if dtype in ("u2", "i4", "i8", "f8", "f4") else 127
    sequences = [[1, most], [], [0], [], []]
    write_index(tmp_path / "a", list(map(len, sequences)), code, dtype)
    data = b"".join(np.array(sequence, dtype).tobytes() for sequence in sequences)
    (tmp_path / "a.bin").write_bytes(data)
    found = all_of(tmp_path / "a.bin")
    assert [one.tolist() for one in found] == sequences
    assert {one.dtype for one in found} == {np.dtype(dtype)}
    write_index(tmp_path / "none", [], code, dtype)
    (tmp_path / "none.bin").write_bytes(b"")
    assert all_of(tmp_path / "none.bin") == []


def test_pointers_that_lead_nowhere(tmp_path):
    """Case 74. lm-engine#53."""
    lengths = [3, 2, 4]
    pointers = write_index(tmp_path / "a", lengths, 4, "i4")
    (tmp_path / "a.bin").write_bytes(np.arange(9, dtype=np.int32).tobytes())
    index = tmp_path / "a.idx"
    whole = index.read_bytes()
    at = whole.index(pointers.tobytes())
    for wrong in (-4, 1 << 40):
        data = bytearray(whole)
        data[at + 8 : at + 16] = struct.pack("<q", wrong)
        index.write_bytes(data)
        assert record(tmp_path / "a.bin", 0).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match=r"'web', shard 0 .*record 1: .*corrupted"):
            record(tmp_path / "a.bin", 1)
    index.write_bytes(whole)
    (tmp_path / "a.bin").write_bytes(np.arange(8, dtype=np.int32).tobytes())
    with pytest.raises(ValueError, match=r"'web', shard 0 .*cut short: 32 of 36 bytes"):
        zx.Dataset.from_path("web", tmp_path / "a.bin")


@pytest.mark.parametrize("documents", [[0, 2, 4], [0, 4]])
def test_documents_of_several_sequences(tmp_path, documents):
    """Case 75. Megatron-LM#81: a sample is a sequence, whatever documents say."""
    lengths = [2, 1, 3, 1]
    write_index(tmp_path / "a", lengths, 4, "i4", documents)
    (tmp_path / "a.bin").write_bytes(np.arange(7, dtype=np.int32).tobytes())
    assert [one.tolist() for one in all_of(tmp_path / "a.bin")] == [[0, 1], [2], [3, 4, 5], [6]]


def test_modes_of_a_multimodal_corpus_are_said(tmp_path):
    """Case 75: they were dropped in silence."""
    write_index(tmp_path / "a", [2, 1], 4, "i4", [0, 2], modes=b"\x00\x01")
    (tmp_path / "a.bin").write_bytes(np.arange(3, dtype=np.int32).tobytes())
    with pytest.warns(UserWarning, match=r"a.idx holds a mode for each of its 2 sequences"):
        dataset = zx.Dataset.from_path("web", tmp_path / "a.bin")
    with pytest.warns(UserWarning, match=r"Modes are not read"):
        found = read({0: dataset}, [(0, 0, 0), (0, 0, 1)])
    assert [one.tolist() for one in found] == [[0, 1], [2]]


def test_megatron_file_above_two_gigabytes(tmp_path):
    """Case 75: a sparse file of 2.4 GB."""
    lengths = [600_000_000, 2, 3]
    pointers = write_index(tmp_path / "a", lengths, 4, "i4")
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(4 * sum(lengths))
        file.seek(int(pointers[1]))
        file.write(np.array([7, 8, 9, 10, 11], np.int32).tobytes())
    assert pointers[1] > 1 << 31
    dataset = zx.Dataset.from_path("web", tmp_path / "a.bin")
    found = read({0: dataset}, [(0, 0, 2), (0, 0, 1)])
    assert [one.tolist() for one in found] == [[9, 10, 11], [7, 8]]


# Runs


KINDS = {
    "lane": lambda lane: lane.map(lambda e: {"n": e["data"]}),
    "random map": lambda lane: lane.random_map(
        lambda e, rng: {"n": e["data"], "r": int(rng.integers(1 << 30))}
    ),
    "packed": lambda lane: zx.pack(
        lane.map(lambda e: {**e, "tokens": np.full(e["data"] % 5 + 1, e["data"])}), 8
    ),
}


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_restored_at_every_step(kind, elastic):
    """Case 81. HF datasets#8308, torchdata#1267, Energon PR68: twice before a step, and no data."""
    datasets = [
        zx.Dataset.from_source(name, list(range(first, first + num)))
        for name, first, num in (("a", 0, 24), ("none", 0, 0), ("b", 100, 16))
    ]
    source = zx.StaticMixtureWorkSource(
        datasets, {"a": 2, "none": 1, "b": 1}, chunk_size=5, exhausted_policy="redistribute"
    )

    def make():
        if not elastic:
            lane = zx.LaneIterDataset(source)
            return iter(KINDS[kind](lane.seed(3) if kind == "random map" else lane))
        return iter(zx.ElasticIterDataset(
            source, 2, KINDS[kind], process_index=0, process_count=1, pad=True,
            rows_per_sample=None if kind == "packed" else 1,
        ))  # fmt: skip

    def text(row):
        return str({name: np.asarray(value).tolist() for name, value in row.items()})

    whole, states, iterator = [], [], make()
    while True:
        states.append(json.dumps(iterator.get_state()))
        assert json.dumps(iterator.get_state()) == states[-1]
        row = next(iterator, None)
        if row is None:
            break
        whole.append(text(row))
    assert len(whole) > 5
    for place in range(0, len(states), 1 if len(states) < 12 else 3):
        other = make()
        other.set_state(json.loads(states[place]))
        assert json.dumps(other.get_state()) == states[place]
        assert [text(row) for row in other] == whole[place:]


UNDER_ABSL = """
import sys
from absl import app
import jax, jax.numpy as jnp, numpy as np
import zephon_jax as zx

def rows(lane):
    return lane.map(lambda e: e["data"])

def main(argv):
    if "after" in argv:
        assert int(jnp.arange(5).sum()) == 10  # A backend is there, with its threads.
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_source("a", list(range(64)))], {"a": 1}, chunk_size=8)
    batches = zx.ElasticIterDataset(
        source, 4, rows, process_index=0, process_count=1, num_workers=2 if "after" in argv else 0)
    print([np.asarray(batch).tolist() for batch in batches])

if __name__ == "__main__":
    app.run(main)
"""


@pytest.mark.slow
def test_worker_processes_under_absl_after_jax_ran(tmp_path):
    """Case 83. jax#18852, abseil#170."""
    script = tmp_path / "main.py"
    script.write_text(UNDER_ABSL)
    said = []
    for argument in ("after", "without"):
        command = [sys.executable, str(script), argument]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] != ""
