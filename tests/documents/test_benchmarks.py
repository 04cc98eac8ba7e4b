"""The benchmarks run and say what they measured; how fast it was is not for a test to judge."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_one_benchmark_through_the_command_for_all(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "checkpoint"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    rows = json.loads((tmp_path / "benchmarks.json").read_text())
    sizes = [row for row in rows if row["unit"] == "B" and row["goal"]]
    assert len(sizes) == 2
    assert all(row["met"] and row["value"] <= 320 for row in sizes)
    assert "goals met" in done.stdout
    assert (tmp_path / "benchmarks.md").read_text().count("| checkpoint |") == len(rows)


def test_every_benchmark_is_run_by_the_command_for_all():
    listed = (ROOT / "benchmarks" / "__main__.py").read_text()
    for path in (ROOT / "benchmarks").glob("*.py"):
        if "def main(" in path.read_text() and path.stem != "__main__":
            assert f'"{path.stem}"' in listed, path.stem
