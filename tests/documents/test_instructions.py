"""Counting instructions: what is read off Callgrind, and what is said of a change."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
# What Callgrind 3.19 wrote of a kernel with 10 and 20 calls, in two children of one process.
RECORDED = """\
==32400== Callgrind, a call-graph generating cache profiler
==452== Events    : Ir
==452== Collected : 363039806
==452==
==452== I   refs:      363,039,806
==453== Events    : Ir
==453== Collected : 364674090
==453==
==453== I   refs:      364,674,090
==32400== Events    : Ir
==32400== Collected : 391697211
"""


@pytest.fixture
def instructions(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import instructions

    return instructions


def test_a_call_costs_what_twice_the_calls_add(instructions, monkeypatch):
    monkeypatch.setitem(instructions.KERNELS, "recorded", (None, 10))
    found = instructions.counts_of(RECORDED, ["recorded"])
    assert found == {"recorded": (364_674_090 - 363_039_806) / 10}


def test_a_process_that_was_not_counted_is_an_error(instructions):
    with pytest.raises(RuntimeError, match="counted 3 processes"):
        instructions.counts_of(RECORDED, ["lattice", "quota step"])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_kernels_that_went_up_by_more_than_3_percent_are_told(instructions, capsys):
    before = dict.fromkeys(["same", "up", "nearly", "down"], 1000)
    counts = {"same": 1000.0, "up": 1031.0, "nearly": 1029.0, "down": 500.0, "new": 1.0}
    table = instructions.Table()
    baseline = {"made_with": instructions.made_with(), "instructions": before}
    assert instructions.compare(table, counts, baseline) == ["up"]
    assert [row.met for row in table.rows] == [True, False, True, True]
    told = capsys.readouterr().out
    assert "up by more than 3 %: up\n" in told
    assert "not comparable" not in told
    baseline["made_with"] = {**baseline["made_with"], "numpy": "1.0"}
    instructions.compare(table, counts, baseline)
    assert "not comparable: the baseline is of" in capsys.readouterr().out


def test_the_baseline_holds_every_kernel(instructions):
    baseline = json.loads(instructions.BASELINE.read_text())
    assert baseline["instructions"].keys() == instructions.KERNELS.keys()


@pytest.mark.slow
def test_a_kernel_is_timed_and_counted(tmp_path, instructions):
    json_file, saved = tmp_path / "rows.json", tmp_path / "saved.json"
    command = [
        sys.executable,
        str(FOLDER / "instructions.py"),
        "--quick",
        "--kernels",
        "quota step",
    ]
    done = subprocess.run(
        [*command, "--json", str(json_file), "--save", str(saved)], capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    rows = {row["what"]: row["value"] for row in json.loads(json_file.read_text())}
    assert rows["quota step, time"] > 0
    if shutil.which("valgrind") is None:
        assert "valgrind is not installed" in done.stdout
        assert "quota step, instructions" not in rows
    else:
        # A step is a few dozen NumPy calls on 8 numbers; starting Python alone is 10^8.
        assert 20_000 < rows["quota step, instructions"] < 2_000_000
        kept = json.loads(saved.read_text())
        assert kept["instructions"] == {"quota step": round(rows["quota step, instructions"])}
