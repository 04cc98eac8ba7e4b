"""What the benchmarks share: a process for each peer and round, medians, a table.

A peer is a function that measures one library and returns figures by name. Every round runs each
peer once, in a process of its own, one after the other on the same machine; a ratio is the median
of the ratios of the rounds. A peer that is not installed is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

MISSING = 3  # exit status of a peer that is not installed
Figures = dict[str, float]
Peers = Mapping[str, Callable[[bool], Figures]]


class Row(NamedTuple):
    """One measured line."""

    what: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    low: float | None = None
    high: float | None = None


class Table:
    """Prints lines as they are measured, in Markdown."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        print(
            "| what | median | lowest .. highest | unit | goal | met |\n|---|---|---|---|---|---|"
        )

    def add(self, what, values, unit, *, least=None, most=None) -> None:
        """Adds the median of some values; none where there are none."""
        if not values:
            return
        value = statistics.median(values)
        goal = f">= {least}" if least is not None else f"<= {most}" if most is not None else ""
        met = None
        if goal:
            met = value >= least if least is not None else value <= most
        self.rows.append(Row(what, value, unit, goal, met, min(values), max(values)))
        told = {None: "", True: "yes", False: "NO"}[met]
        spread = f"{number(min(values))} .. {number(max(values))}"
        print(f"| {what} | {number(value)} | {spread} | {unit} | {goal} | {told} |", flush=True)

    def write(self, path: str | None) -> None:
        if path:
            with open(path, "w") as file:
                json.dump([row._asdict() for row in self.rows], file, indent=2)


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def parse(argv, doc, peers: Peers) -> argparse.Namespace | None:
    """Reads the arguments; None where this is a peer's own process, whose figures it prints."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, short ones")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time of this process alone, where others use the machine too",
    )
    parser.add_argument("--peer", choices=list(peers), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    given.rounds = 1 if given.quick else given.rounds
    if given.processor_time:
        os.environ["BENCHMARK_CLOCK"] = "process_time"  # peers inherit it
    if given.peer is None:
        return given
    try:
        figures = peers[given.peer](given.quick)
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(MISSING)
    print(json.dumps(figures))
    return None


class Measured(NamedTuple):
    """Figures of peers, a dict a round; empty lists for peers that are not installed."""

    rounds: dict[str, list[Figures]]

    def of(self, peer: str, name: str, scale: float = 1.0) -> list[float]:
        return [figures[name] * scale for figures in self.rounds[peer] if name in figures]

    def ratios(self, slow: str, fast: str, name: str, other: str | None = None) -> list[float]:
        """How many times longer the first peer takes, round by round."""
        pairs = zip(self.rounds[slow], self.rounds[fast], strict=False)
        return [a[name] / b[other or name] for a, b in pairs if name in a]


def measure(file: str, peers: Peers, given: argparse.Namespace) -> Measured:
    rounds: dict[str, list[Figures]] = {peer: [] for peer in peers}
    gone: set[str] = set()
    for _ in range(given.rounds):
        for peer in peers:
            if peer in gone:
                continue
            command = [sys.executable, file, "--peer", peer, *(["--quick"] * given.quick)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if ran.returncode == MISSING:
                gone.add(peer)
                print(f"{peer} is not installed and is skipped: {ran.stderr.strip()}\n")
            elif ran.returncode:
                raise RuntimeError(f"{peer}: {ran.stderr[-2000:]}")
            else:
                rounds[peer].append(json.loads(ran.stdout.splitlines()[-1]))
    return Measured(rounds)


def run(
    argv: list[str] | None,
    doc: str,
    file: str,
    peers: Peers,
    report: Callable[[Table, Measured], None],
) -> None:
    """A benchmark from its arguments to its table, or one of its peers."""
    given = parse(argv, doc, peers)
    if given is not None:
        found = measure(file, peers, given)
        table = Table()
        report(table, found)
        table.write(given.json)


def clock() -> float:
    """Seconds, by the wall or of this process."""
    return getattr(time, os.environ.get("BENCHMARK_CLOCK", "perf_counter"))()


def seconds(call, repeats: int = 1) -> float:
    """Median seconds of a call."""
    took = []
    for _ in range(repeats):
        start = clock()
        call()
        took.append(clock() - start)
    return statistics.median(took)
