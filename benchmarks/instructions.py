"""Instructions that the hot kernels execute, counted by Callgrind, beside their times.

    python benchmarks/instructions.py [--quick] [--json FILE] [--baseline FILE] [--save FILE]

Counts are the same from run to run where times are not, so they tell a change of a few percent.
Only NumPy kernels are counted, on one thread. A change that is meant is put into the baseline by
`--save benchmarks/instructions.json`. Without Valgrind there are times alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import mixtures
import numpy as np
from common import Table, seconds

import zephon_jax as zx

BASELINE = pathlib.Path(__file__).with_suffix(".json")
MOST = 1.03  # times the baseline
WARM = 8  # calls before those that count
GLOBAL = {"shuffle_block_size": "global", "shuffle_within_shard": False}
SETTLED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
Kernel = Callable[[int], object]  # takes the number of the call


def permutations(size: int) -> Kernel:
    key, index = zx.permutation.make_key(0, "instructions"), np.arange(min(size, 16_384))
    return lambda call: zx.permutation.permute(index, size, key)


def quotas(kernel) -> Kernel:
    owed = zx.quota.shares(mixtures.weights_of(8), mixtures.CHUNK_SIZE)
    counts, carry = zx.quota.step(owed, zx.quota.init_carry(owed))
    return lambda call: kernel(owed, carry, np.asarray(counts), call)


def chunks(read: bool, **settings) -> Kernel:
    source = mixtures.ours(8, **settings)
    state = source.init()

    def one(call):
        nonlocal state
        chunk, state = source.next_chunk(state)
        return chunk.order() if read else chunk.components

    return one


def single_chunks() -> Kernel:
    source = mixtures.ours(8)
    return lambda call: source.next_chunk(source.seek(call * 1001))[0].components


def virtual_quotas() -> Kernel:
    weights, size = mixtures.weights_of(8), mixtures.CHUNK_SIZE
    return lambda call: zx.virtual_time.draws_after(weights, 10**9 + call * size)


def states() -> Kernel:
    source = mixtures.ours(8)
    state = source.seek(10**6, 3, 16)
    return lambda call: zx.decode_state(source, zx.encode_state(state))


# What makes each kernel, and calls that count: a multiple of the chunks that are found together.
KERNELS: dict[str, tuple[Callable[[], Kernel], int]] = {
    "permute 100": (lambda: permutations(100), 16),
    "permute 16,384": (lambda: permutations(16_384), 8),
    "permute 16,384 of 1e9": (lambda: permutations(10**9), 8),
    "quota step": (lambda: quotas(lambda w, a, q, n: zx.quota.step(w, a)), 64),
    "closed-form carry": (lambda: quotas(lambda w, a, q, n: zx.quota.steady_carry(w, n + 999)), 64),
    "round robin": (lambda: quotas(lambda w, a, q, n: zx.swrr.order(q)), 2),
    "lattice": (lambda: quotas(lambda w, a, q, n: zx.lattice.order(q, 3, 16)), 16),
    "one chunk alone, after a seek": (single_chunks, 8),
    "next chunk": (lambda: chunks(False), 32),
    "next chunk and order": (lambda: chunks(True), 64),
    "next chunk, global": (lambda: chunks(False, **GLOBAL), 16),
    "virtual-time quotas": (virtual_quotas, 16),
    "encode and decode a state": (states, 32),
}


def run(kernel: Kernel, start: int, num: int) -> None:
    for call in range(start, start + num):
        kernel(call)


def warm(name: str) -> Kernel:
    kernel = KERNELS[name][0]()
    run(kernel, 0, WARM)
    return kernel


def count_here(names: Sequence[str]) -> None:
    """Runs each kernel in two children, one with twice the calls: the process Callgrind watches.

    A child inherits all that is loaded and warm; what it costs to start and end is in both.
    """
    gc.disable()
    for name in names:
        kernel = warm(name)
        for rounds in (1, 2):
            child = os.fork()
            if child == 0:
                run(kernel, WARM, rounds * KERNELS[name][1])
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise RuntimeError(f"{name} failed in its child")


def counts_of(output: str, names: Sequence[str]) -> dict[str, float]:
    """Instructions a call from what Callgrind writes when a process ends: children come first."""
    totals = [int(n) for n in re.findall(r"^==\d+== Collected : (\d+)$", output, re.MULTILINE)]
    if len(totals) != 2 * len(names) + 1:
        raise RuntimeError(f"Callgrind counted {len(totals)} processes: {output[-2000:]}")
    pairs = zip(names, totals[:-1:2], totals[1::2], strict=True)
    return {name: (twice - once) / KERNELS[name][1] for name, once, twice in pairs}


def count(names: Sequence[str]) -> dict[str, float]:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += [__file__, "--count", "--kernels", *names]
    settled = {**os.environ, **SETTLED}
    ran = subprocess.run(command, env=settled, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"Callgrind: {ran.stderr[-2000:]}")
    return counts_of(ran.stderr, names)


def made_with() -> dict[str, str]:
    """What counts depend on besides the code."""
    told = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    return {**versions, "machine": platform.machine(), "valgrind": told.stdout.strip()}


def compare(table: Table, counts: dict[str, float], baseline: dict) -> list[str]:
    """Adds each kernel's ratio to the baseline; returns those that went up."""
    known = baseline["instructions"]
    ratios = {name: n / known[name] for name, n in counts.items() if name in known}
    for name, ratio in ratios.items():
        table.add(f"{name}, instructions over the baseline's", [ratio], "x", most=MOST)
    went_up = [name for name, ratio in ratios.items() if ratio > MOST]
    print(f"\nup by more than 3 %: {', '.join(went_up) or 'none'}")
    if baseline["made_with"] != (here := made_with()):
        print(f"not comparable: the baseline is of {baseline['made_with']}, this of {here}")
    return went_up


def times(name: str, rounds: int) -> list[float]:
    """Microseconds a call, round by round."""
    kernel, num = warm(name), KERNELS[name][1]
    return [1e6 * seconds(lambda: run(kernel, WARM, num)) / num for _ in range(rounds)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5, help="of the times; counts need one")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--baseline", type=pathlib.Path, default=BASELINE)
    parser.add_argument("--save", type=pathlib.Path, help="write the counts as a baseline")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.count:
        return count_here(given.kernels)
    table = Table()
    for name in given.kernels:
        table.add(f"{name}, time", times(name, 1 if given.quick else given.rounds), "us/call")
    if shutil.which("valgrind") is None:
        print("\nvalgrind is not installed, so that instructions are not counted")
        return table.write(given.json)
    counts = count(given.kernels)
    for name, n in counts.items():
        table.add(f"{name}, instructions", [n], "/call")
    if given.save:
        saved = {"made_with": made_with(), "instructions": {k: round(n) for k, n in counts.items()}}
        given.save.write_text(json.dumps(saved, indent=2) + "\n")
    elif given.baseline.exists():
        compare(table, counts, json.loads(given.baseline.read_text()))
    table.write(given.json)


if __name__ == "__main__":
    main(sys.argv[1:])
