"""How long until the first chunk, and how much memory that takes.

python benchmarks/startup.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import resource
import subprocess
import sys

import mixtures
import numpy as np
from common import Measured, Table, clock, run

import zephon_jax as zx

SAMPLES = 10_000_000_000


def uneven(quick) -> np.ndarray:
    """Shards of drawn sizes."""
    num = 100_000 if quick else 1_000_000
    return np.random.default_rng(0).integers(1, 2 * SAMPLES // num, num)


def first_chunk(make) -> float:
    begin = clock()
    source = make()
    chunk, _ = source.next_chunk(source.init())
    chunk.order()
    return clock() - begin


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def numpy(quick):
    counts = uneven(quick)
    return {"uneven": first_chunk(lambda: mixtures.ours(1, counts))}


def compiled(quick):
    zx.use_backend("jax")
    return numpy(quick)


def shuffled_at_once(quick):
    counts = uneven(quick)
    dataset = zx.Dataset.from_counts("all", counts)
    small = zx.Dataset.from_counts("small", [10**6])

    def make(of):
        return zx.StaticMixtureWorkSource([of], {of.name: 1}, shuffle_block_size="global")

    first_chunk(lambda: make(small))  # what every process needs once
    before = megabytes()
    took = first_chunk(lambda: make(dataset))
    return {"global": took, "memory": megabytes() - before}


def imports(quick):
    def seconds_of(code):
        code = f"import time; b = time.perf_counter(); {code}; print(time.perf_counter() - b)"
        return float(subprocess.check_output([sys.executable, "-c", code], text=True))

    return {"import": seconds_of("import grain, jax") and seconds_of(
        "import grain, jax; b = time.perf_counter(); import zephon_jax as z; z.LaneIterDataset"
    )}  # fmt: skip


def zephon(quick):
    counts = uneven(quick)
    weights = mixtures.weights_of(1)
    assert weights

    def drawn():
        begin = clock()
        lane = mixtures.zephons(1, counts).clone_for_lane(0, 1)
        for _ in lane.next_chunk().iter_samples():
            pass
        return clock() - begin

    return {"uneven": drawn()}


PEERS = {
    "NumPy": numpy, "compiled": compiled, "global": shuffled_at_once, "imports": imports,
    "zephon": zephon,
}  # fmt: skip


def report(table: Table, found: Measured) -> None:
    for peer in ("NumPy", "compiled"):
        table.add(f"uneven shards, first chunk, {peer}", found.of(peer, "uneven"), "s")
        ratios = [1 / ratio for ratio in found.ratios("zephon", peer, "uneven")]
        table.add(f"uneven shards, first chunk, {peer} over Zephon", ratios, "x", most=0.3)
    table.add("uneven shards, first chunk, Zephon", found.of("zephon", "uneven"), "s")
    table.add("global over 1e10 samples, first chunk", found.of("global", "global"), "s", most=0.05)
    table.add("the same, memory beyond its table", found.of("global", "memory"), "MB", most=20)
    table.add("import beyond grain and jax", found.of("imports", "import"), "s", most=0.3)


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
