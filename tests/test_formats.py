"""Shard formats: counting and reading by place."""

import json

import numpy as np
import pytest

from zephon_jax.formats import FORMATS, format_of, get_format, jsonl


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


def test_jsonl_empty(tmp_path):
    path = tmp_path / "a.jsonl"
    for text in ("", "\n", "\n\r\n\n"):
        path.write_text(text)
        assert FORMATS["jsonl"].scan(str(path)).num_samples == 0


def test_format_by_name():
    assert format_of("a/b.array_record-00001-of-00010") is FORMATS["array_record"]
    assert format_of("b.ArrayRecord") is FORMATS["array_record"]
    assert format_of("s3://bucket/x.jsonl") is FORMATS["jsonl"]
    assert format_of("x.bin", lambda: b'  {"a"') is FORMATS["jsonl"]
    assert format_of("x", lambda: b"") is None
    with pytest.raises(ValueError, match=r"'tar'.*array_record"):
        get_format("tar")
