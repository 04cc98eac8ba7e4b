"""Shard formats: counting and reading by place."""

import gzip
import json
import re
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from array_record.python.array_record_module import ArrayRecordWriter

from zephon_jax.data.cache.stager import Stager
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.formats import FORMATS, format_of, get_format, jsonl
from zephon_jax.data.read_samples import read
from zephon_jax.data.reader import Reader


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("scan_bytes", [1, 2, 3, 7, 1 << 24])
def test_jsonl_lines(tmp_path, monkeypatch, ending, last, scan_bytes):
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", scan_bytes)
    values = [{"a": "é" * n} for n in range(20)] + [1, "", None]
    lines = [json.dumps(value) for value in values]
    text = ending.join(["", lines[0], "", *lines[1:], "", ""])
    path = tmp_path / "a.jsonl"
    path.write_bytes((text if last else text.removesuffix(ending)).encode())
    index = FORMATS["jsonl"].scan(str(path))
    assert index.num_samples == len(values)
    shard = FORMATS["jsonl"].open(str(path), index, None)
    assert list(shard.read(np.arange(len(values)))) == values
    assert list(shard.read(np.array([0, 3, 3, 22]))) == [values[i] for i in (0, 3, 3, 22)]
    shard.close()


@pytest.mark.parametrize("limit", ["_GAP_BYTES", "_RUN_BYTES"])
def test_jsonl_cuts_its_reads(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(jsonl, limit, 10)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'"{"x" * n}"\n' for n in range(50)))
    shard = FORMATS["jsonl"].open(str(path), FORMATS["jsonl"].scan(str(path)), None)
    wanted = [0, 1, 2, 5, 20, 21, 49]
    assert list(shard.read(np.array(wanted))) == ["x" * n for n in wanted]
    shard.close()


WHOLE = [
    *(0, -1, 2**31, 10**18, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**20),
    *(-(10**19) + 1, -(10**18), 3**100, -(7**90), 10**308 - 1, 1 - 10**308),
]


def test_jsonl_keeps_integers_of_up_to_308_digits(tmp_path):
    """Their value and type, wherever in a line or a record they stand, and nothing else changes."""
    records = []
    for place, number in enumerate(WHOLE):
        pad = "x1" * (place % 5) + "." * (place % 9)
        records += [{"pad": pad, "n": number}, [pad, {"deep": [[number], 1.5]}], number]
    records += [{"f": 1e300, "g": 0.1234567890123456789, "h": [2.5, -0.0]}]
    records += [{"id": "12345678901234567890", "text": "1234567890 " * 9, "float": 1.25e22}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    dataset = Dataset.from_path("a", path)
    together = read({0: dataset}, [[0, 0, index] for index in [*range(len(records))] * 9])
    assert repr(together) == repr(records * 9)  # 1 and 1.0 are equal, but not here.
    alone = [read({0: dataset}, [[0, 0, index]])[0] for index in range(len(records))]
    assert repr(alone) == repr(records)


@pytest.mark.parametrize("digits", range(17, 42))
def test_jsonl_finds_long_integers_at_any_place(tmp_path, digits):
    lines = [f'{{"{"k" * offset}":{sign}{"9" * digits},"f":0.5}}\n'
             for offset in range(20) for sign in ("", "-")]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text("".join(lines))
    found = read({0: Dataset.from_path("a", path)}, [[0, 0, index] for index in range(len(lines))])
    for number, record in enumerate(found):
        wanted = (10**digits - 1) * (1 - 2 * (number % 2))
        assert record["k" * (number // 2)] == wanted
        assert type(record["k" * (number // 2)]) is int


REFUSED = ["NaN", "Infinity", "-Infinity", "1e400", "9" * 309, "-" + "1" * 310, r'"\ud800"']


@pytest.mark.parametrize("value", REFUSED)
def test_jsonl_refuses_values_that_it_cannot_keep(tmp_path, value):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n' * 300 + f'{{"n": {value}}}\n')
    dataset = Dataset.from_path("a", path)
    bad = r"'a', shard 0 .*record 300 \(line 301\) is not valid JSON .*: it starts with b'{\"n\": "
    with pytest.raises(ValueError, match=bad):
        read({0: dataset}, [[0, 0, index] for index in range(301)])
    assert read({0: dataset}, [[0, 0, 299]]) == [{"n": 1}]


def nested(path, depth, value):
    path.write_text('{"n": 1.5}\n' * 3 + '{"a":' * depth + value + "}" * depth + "\n")
    return Dataset.from_path("a", path)


TOO_DEEP = r"'a', shard 0 .*record 3 \(line 4\) is not valid JSON .*: it starts with b'{\"a\":{\"a"


@pytest.mark.parametrize(("depth", "value"), [(800, 1), (800, 2**64), (1022, 1), (1022, 2**64)])
def test_jsonl_reads_deep_lines_or_names_them(tmp_path, depth, value):
    """How deep the parser for long numbers goes depends on the Python."""
    dataset = nested(tmp_path / "a.jsonl", depth, str(value))
    try:
        found = read({0: dataset}, [[0, 0, 2], [0, 0, 3]])[1]
    except ValueError as error:
        found = str(error)
    while isinstance(found, dict):
        found, depth = found["a"], depth - 1
    if isinstance(found, str):
        assert depth == 1022
        assert value == 2**64
        assert re.search(TOO_DEEP, found)
    else:
        assert (found, depth) == (value, 0)


def test_jsonl_names_the_line_that_is_too_deep(tmp_path):
    dataset = nested(tmp_path / "a.jsonl", 2000, "1")
    with pytest.raises(ValueError, match=TOO_DEEP):
        read({0: dataset}, [[0, 0, 2], [0, 0, 3]])


def test_jsonl_empty(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in ("", "\n", "\n\r\n\n"):
        path.write_text(text)
        assert FORMATS["jsonl"].scan(str(path)).num_samples == 0


def test_format_by_name():
    assert format_of("a/b.array_record-00001-of-00010") is FORMATS["array_record"]
    assert format_of("b.ArrayRecord") is FORMATS["array_record"]
    assert format_of("s3://bucket/x.jsonl") is FORMATS["jsonl"]
    assert format_of("x.dat", lambda: b'  {"a"') is FORMATS["jsonl"]
    assert format_of("x", lambda: b"") is None
    with pytest.raises(ValueError, match=r"'tar'.*array_record"):
        get_format("tar")


def ids_of(*indices, shard=0):
    return np.array([(0, shard, index) for index in indices])


@pytest.mark.parametrize("group_size", [1, 7, 1000])
def test_array_record_groups(tmp_path, group_size):
    path = tmp_path / "a.array_record"
    writer = ArrayRecordWriter(str(path), f"group_size:{group_size}")
    for index in range(100):
        writer.write(b"%d" % index)
    writer.close()
    dataset = Dataset.from_path("a", path)
    wanted = np.random.default_rng(0).permutation(100)
    assert read({0: dataset}, ids_of(*wanted)) == [b"%d" % index for index in wanted]


@pytest.fixture
def table():
    rows = list(range(95))
    return pa.table({"id": rows, "text": [f"t{i}" for i in rows], "more": [[i] for i in rows]})


def test_parquet(tmp_path, table, monkeypatch):
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=10)
    pq.write_table(table.slice(0, 0), tmp_path / "1.parquet")
    dataset = Dataset.from_path("rows", tmp_path)
    assert dataset.shard_counts.tolist() == [95, 0]
    wanted = [3, 94, 4, 5, 90, 3, 20]
    assert read({0: dataset}, ids_of(*wanted)) == [
        {"id": i, "text": f"t{i}", "more": [i]} for i in wanted
    ]
    some = Dataset.from_path("rows", tmp_path, columns=["text"])
    assert read({0: some}, ids_of(*range(95))) == [{"text": f"t{i}"} for i in range(95)]
    bad = Dataset.from_path("rows", tmp_path, columns=["nope"])
    with pytest.raises(ValueError, match=r"'rows', shard 0 .*'nope'.*'text'"):
        read({0: bad}, ids_of(0))


def test_parquet_decodes_a_row_group_once(tmp_path, table, monkeypatch):
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    decoded = []
    original = pq.ParquetFile.read_row_group

    def counting(self, group, **options):
        decoded.append(group)
        return original(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    dataset, reader = Dataset.from_path("rows", tmp_path), Reader()
    for start in range(0, 95, 3):
        reader.read({0: dataset}, ids_of(*range(start, min(95, start + 3))))
    assert decoded == list(range(10))
    reader.close()


def test_open_parquet_files_hold_no_buffers(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_DECODED_BYTES", str(16 << 20))
    large = pa.table({"text": [f"{n:0100d}" for n in range(40_000)]})
    for shard in range(10):
        options = {"compression": "NONE", "use_dictionary": False}
        pq.write_table(large, tmp_path / f"{shard}.parquet", **options)
    dataset, reader = Dataset.from_path("rows", tmp_path), Reader()
    before = pa.total_allocated_bytes()
    for shard in range(10):
        assert reader.read({0: dataset}, ids_of(7, shard=shard)) == [{"text": f"{7:0100d}"}]
    held = pa.total_allocated_bytes() - before
    assert held <= (16 << 20) + 5_000_000  # Not 4 MB for each file.
    reader.close()
    assert pa.total_allocated_bytes() - before <= 5_000_000


def test_truncated_parquet(tmp_path, table):
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"'rows', shard 0 .*a.parquet.*not a complete Parquet"):
        Dataset.from_path("rows", path)


def write_megatron(prefix, sequences, code=8, dtype=np.uint16):
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    width = np.dtype(dtype).itemsize
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * width
    documents = np.arange(len(sequences) + 1, dtype=np.int64)
    data = b"".join(np.asarray(sequence, dtype).tobytes() for sequence in sequences)
    prefix.with_suffix(".bin").write_bytes(data)
    prefix.with_suffix(".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(documents))
        + lengths.tobytes()
        + pointers.tobytes()
        + documents.tobytes()
    )


def test_megatron(tmp_path):
    sequences = [list(range(n)) for n in (3, 0, 700, 5)]
    write_megatron(tmp_path / "corpus_text_document", sequences)
    write_megatron(tmp_path / "corpus_text_document_2", [[70000, 1]], 4, np.int32)
    write_megatron(tmp_path / "corpus_text_document_3", [])
    dataset = Dataset.from_path("tokens", tmp_path)
    assert (dataset.format, dataset.shard_counts.tolist()) == ("megatron", [4, 1, 0])
    found = read({0: dataset}, ids_of(2, 0, 1, 3))
    assert [record.tolist() for record in found] == [sequences[i] for i in (2, 0, 1, 3)]
    assert found[0].dtype == np.uint16
    assert found[0].flags.writeable
    assert read({0: dataset}, ids_of(0, shard=1))[0].tolist() == [70000, 1]
    assert Dataset.from_path("tokens", tmp_path / "corpus_text_document").num_shards == 1


def test_broken_megatron(tmp_path):
    write_megatron(tmp_path / "a", [[1, 2, 3]] * 50)
    (tmp_path / "a.bin").write_bytes(b"12")
    with pytest.raises(ValueError, match=r"'a', shard 0 .*a.bin.*2 of 300 bytes"):
        Dataset.from_path("a", tmp_path)
    (tmp_path / "a.idx").write_bytes((tmp_path / "a.idx").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"'a', shard 0 .*idx file is cut short"):
        Dataset.from_path("a", tmp_path)
    (tmp_path / "a.idx").unlink()
    with pytest.raises(FileNotFoundError, match=r"'a', shard 0 .*a.idx"):
        Dataset.from_path("a", tmp_path)


def pack(data, packing):
    return gzip.compress(data) if packing == "gz" else zstandard.compress(data)


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_compressed_jsonl(tmp_path, monkeypatch, packing):
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    lines = [json.dumps({"a": i}).encode() + b"\n" for i in range(1000)]
    path = tmp_path / f"a.jsonl.{packing}"
    # Both formats may hold several streams one after the other.
    path.write_bytes(pack(b"".join(lines[:500]), packing) + pack(b"".join(lines[500:]), packing))
    dataset = Dataset.from_path("a", path)
    assert dataset.num_samples == 1000
    assert read({0: dataset}, ids_of(999, 5)) == [{"a": 999}, {"a": 5}]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"'a', shard 0 .*a.jsonl.* is cut short"):
        Dataset.from_path("a", path)
    with pytest.raises(ValueError, match=r"'a', shard 0 .*changed since"):
        read({0: dataset}, ids_of(5))


def test_unpacked_copies_stay_in_budget(tmp_path):
    for shard in range(4):
        data = b"".join(b'"%0999d"\n' % index for index in range(100))
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(pack(data, "gz"))
    dataset = Dataset.from_path("a", tmp_path, counts=[100] * 4)
    stager = Stager(tmp_path / ".cache", max_bytes=250_000)
    reader = Reader(stager=stager)
    for shard in (0, 1, 2, 3, 0):
        assert len(reader.read({0: dataset}, ids_of(5, 99, shard=shard))) == 2
        assert stager.cache.num_bytes() <= 250_000
    reader.close()


def test_lines_of_white_space_are_blank(tmp_path):
    """Case 65, whatever their length."""
    path = tmp_path / "a.jsonl"
    for blank in (b" ", b"\t \r", b" " * 9000):
        path.write_bytes(b"\n".join([blank, b"1", blank, blank, b" 2 ", blank, b"3", blank]))
        dataset = Dataset.from_path("a", path)
        assert dataset.num_samples == 3
        assert read({0: dataset}, ids_of(2, 0, 1)) == [3, 1, 2]


def test_megatron_pairs_that_disagree_in_size(tmp_path):
    """Case 73: an index says uint16 of a file that holds int32."""
    write_megatron(tmp_path / "a", [[1, 2, 3], [4]])
    (tmp_path / "a.bin").write_bytes(np.array([1, 2, 3, 4], np.int32).tobytes())
    with pytest.raises(ValueError, match=r"'a', shard 0 .*describes 8 bytes of uint16.*has 16"):
        Dataset.from_path("a", tmp_path)


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (pa.ArrowMemoryError("malloc of size 1 failed"), MemoryError, "malloc"),
        (MemoryError(), MemoryError, "shard 0"),
        (pa.ArrowInvalid("bad page"), ValueError, "corrupted"),
    ],
)
def test_parquet_errors_keep_their_kind(tmp_path, table, monkeypatch, error, kind, word):
    """Case 71."""
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = Dataset.from_path("a", tmp_path)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fail)
    with pytest.raises(kind, match=rf"'a', shard 0 .*{word}" if word != "shard 0" else word):
        read({0: dataset}, ids_of(1))


@pytest.mark.parametrize("pieces", [True, False])
def test_parquet_that_cannot_be_read_in_one_piece(tmp_path, monkeypatch, pieces):
    """Case 70, where nested text is above 2 GiB; and case 71, of a codec that is not there."""
    nested = pa.table({"n": [{"text": str(n)} for n in range(10_000)]})
    pq.write_table(nested, tmp_path / "a.parquet")
    dataset = Dataset.from_path("a", tmp_path)

    def refuse(*args, **kwargs):
        raise pa.ArrowNotImplementedError("not here")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", refuse)
    if pieces:
        wanted = (9999, 5, 4095, 4096, 7, 7)
        assert read({0: dataset}, ids_of(*wanted)) == [{"n": {"text": str(n)}} for n in wanted]
        return
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)
    with pytest.raises(ValueError, match="cannot be read by this pyarrow"):
        read({0: dataset}, ids_of(1))


READ_AND_END = """
import sys, zephon_jax as zx
assert zx.read([zx.Dataset.from_path("a", sys.argv[1])], [[0, 0, 5]])
"""
ITERATE_AND_END = """
import sys, zephon_jax as zx
dataset = zx.Dataset.from_path("a", sys.argv[1])
source = zx.StaticMixtureWorkSource([dataset], {"a": 1}, chunk_size=4)
assert next(iter(zx.LaneIterDataset(source)))["data"]  # What follows is decoded ahead.
"""


def write_in_format(folder, table, name):
    if name == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=7)
    elif name == "jsonl":
        (folder / "a.jsonl").write_text("".join(f"{json.dumps(n)}\n" for n in table.to_pylist()))
    elif name == "megatron":
        write_megatron(folder / "a", [[1, 2, 3]] * 20)
    else:
        writer = ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
        for row in range(20):
            writer.write(b"%d" % row)
        writer.close()


@pytest.mark.parametrize(
    ("name", "program", "num_runs"),
    [
        ("parquet", READ_AND_END, 5),
        ("parquet", ITERATE_AND_END, 1),
        pytest.param("parquet", ITERATE_AND_END, 50, marks=pytest.mark.slow),
        *[pytest.param(n, READ_AND_END, 50, marks=pytest.mark.slow) for n in sorted(FORMATS)],
    ],
)
def test_programs_that_read_a_record_end_well(tmp_path, table, name, program, num_runs):
    """Case 84: a thread of Arrow's that held an object of Python's aborted most of them."""
    write_in_format(tmp_path, table, name)
    command = [sys.executable, "-c", program, str(tmp_path)]
    for _ in range(num_runs):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
