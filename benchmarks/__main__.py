"""Runs all benchmarks, one after the other, and writes one Markdown table and one JSON file.

    python -m benchmarks [--quick] [--rounds 3] [--out FOLDER] [--only schedule lanes ...]

Counts (of Python calls, of instructions) are left out unless they are named: `--only calls`, or
`--only instructions`, which takes two minutes.
Nothing else should run on the machine. What falls short of its goal is listed at the end.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ALL = (
    "schedule", "lanes", "seek", "startup", "checkpoint", "end_to_end", "tokens", "elastic",
    "reading", "workers", "pipeline", "traced", "open_lanes",
)  # fmt: skip
COUNTED = ("calls", "instructions")


def run(name: str, quick: bool, rounds: int) -> list[dict]:
    """One benchmark's rows; its table is printed as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path)]
        command += ["--quick"] if quick else ["--rounds", str(rounds)]
        done = subprocess.run(command, check=False)
        if done.returncode:
            print(f"{name} failed with status {done.returncode}")
            return []
        return [{"benchmark": name, **row} for row in json.loads(path.read_text())]


def as_markdown(rows: list[dict]) -> str:
    lines = ["| benchmark | what | value | unit | goal | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        value = f"{row['value']:,.0f}" if abs(row["value"]) >= 100 else f"{row['value']:.3g}"
        met = {None: "", True: "yes", False: "NO"}[row["met"]]
        lines.append(
            f"| {row['benchmark']} | {row['what']} | {value} | {row['unit']} | {row['goal']} |"
            f" {met} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, and one of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="folder for benchmarks.json and .md")
    parser.add_argument("--only", nargs="+", choices=(*ALL, *COUNTED), default=ALL)
    given = parser.parse_args(argv)
    rows, begin = [], time.perf_counter()
    for name in given.only:
        print(f"\n## {name}\n", flush=True)
        rows += run(name, given.quick, given.rounds)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "benchmarks.json").write_text(json.dumps(rows, indent=2))
        (given.out / "benchmarks.md").write_text(as_markdown(rows))
    short = [row for row in rows if row["met"] is False]
    goals = sum(row["met"] is not None for row in rows)
    print(f"\n{goals - len(short)} of {goals} goals met in {time.perf_counter() - begin:.0f} s")
    if short:
        print("Short:\n\n" + as_markdown(short))


if __name__ == "__main__":
    main()
