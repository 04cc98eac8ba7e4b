"""How fast a schedule is made: chunks in reading order, beside Zephon's and MosaicML Streaming's.

python benchmarks/schedule.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile

import mixtures
import numpy as np
from common import Measured, Table, clock, run, seconds

import zephon_jax as zx
from zephon_jax.kernels import backend, quota
from zephon_jax.mixture.allocation import CarriedQuotas

COMPONENTS = (2, 8, 32, 128)
GOALS = {
    "compiled": (40, 70, 150, 400),
    "NumPy": (15, 15, 30, 80),
    "lattice": (15, 25, 60, 200),
}
SIZES = (10**6, 10**9, 10**12)


def chunks(source, num, *, start=0, config=None, warm=48) -> float:
    """Mean seconds a chunk, after the first ones, in which tables and kernels are made."""
    state = source.seek(start)
    for _ in range(warm):
        chunk, state = source.next_chunk(state)
        chunk.order(config)
        backend.finish_compiling()
    begin = clock()
    for _ in range(num):
        chunk, state = source.next_chunk(state)
        chunk.order(config)
    return (clock() - begin) / num


def of_ours(config=None):
    def figures(quick):
        num = 32 if quick else 64
        return {str(k): chunks(mixtures.ours(k), num, config=config) for k in COMPONENTS}

    return figures


def compiled(quick):
    zx.use_backend("jax")
    return {**of_ours()(quick), "quotas": scan_quotas()}


def numpy(quick):
    return {**of_ours()(quick), "quotas": scan_quotas()}


def scan_quotas() -> float:
    """Seconds a chunk for the quotas of many chunks at once."""
    weights = list(mixtures.weights_of(8).values())
    allocation = CarriedQuotas(quota.shares(weights, mixtures.CHUNK_SIZE))
    steps = np.arange(8192)
    allocation.quotas_of(steps)
    return seconds(lambda: allocation.quotas_of(steps), 9) / steps.size


def scaling(quick):
    """Seconds a chunk at other sizes, passes and places, one dataset of eight each."""
    num = 8 if quick else 48
    figures = {}

    def add(name, source, start=0):
        # In a process each: orders that another source has left in memory would come for nothing.
        with multiprocessing.get_context("fork").Pool(1) as pool:
            figures[name] = pool.apply(chunks, (source, num), {"start": start})

    for size in SIZES:
        shards = [size // 400] * 50
        add(f"samples {size:.0e}", mixtures.ours(8, shards))
        settings = {"shuffle_block_size": "global", "shuffle_within_shard": False}
        add(f"global {size:.0e}", mixtures.ours(8, shards, **settings))
    source = mixtures.ours(8, [2500] * 50)
    for passes in (1, 1000):
        add(f"pass {passes}", source, start=61 * passes)
    source = mixtures.ours(8)
    for start in (0, 10**7):
        add(f"chunk {start:.0e}", source, start=start)
    return figures


def compiled_chunks(size, num) -> float:
    zx.use_backend("jax")
    return chunks(mixtures.ours(8, [size // 400] * 50), num, warm=240)


def compiled_scaling(quick):
    """The same by size with compiled kernels, which forked processes do not have.

    Small datasets come to a kernel for the tables of some passes only after a few passes.
    """
    figures = {}
    for size in SIZES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            figures[f"samples {size:.0e}"] = pool.apply(compiled_chunks, (size, 8 if quick else 48))
    return figures


def zephon(quick):
    figures = {}
    for k in COMPONENTS:
        source = mixtures.zephons(k).clone_for_lane(0, 1)
        for _ in range(2):
            for _ in source.next_chunk().iter_samples():
                pass
        num = 4 if quick else max(8, 64 // (1 + k // 8))
        start = clock()
        for _ in range(num):
            for _ in source.next_chunk().iter_samples():
                pass
        figures[str(k)] = (clock() - start) / num
    return figures


def streaming(quick):
    """Seconds a chunk of an epoch, all of which is made before its first sample."""
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    size = mixtures.CHUNK_SIZE * (256 if quick else 1024)
    with tempfile.TemporaryDirectory() as folder:
        dataset = mixtures.streamings(8, size, folder)
        took = seconds(lambda: generate_work("random", dataset, World.detect(), 0, 0))
    return {"8": took * mixtures.CHUNK_SIZE / size, "epoch": took}


PEERS = {
    "compiled": compiled,
    "NumPy": numpy,
    "lattice": of_ours(zx.MixtureReadConfig(mode="lattice")),
    "scaling": scaling,
    "compiled scaling": compiled_scaling,
    "zephon": zephon,
    "streaming": streaming,
}


def report(table: Table, found: Measured) -> None:
    for peer, goals in GOALS.items():
        for k, goal in zip(COMPONENTS, goals, strict=True):
            table.add(f"{k} components, {peer}", found.of(peer, str(k), 1e3), "ms/chunk")
            ratios = found.ratios("zephon", peer, str(k))
            table.add(f"{k} components, Zephon over {peer}", ratios, "x", least=goal)
    for k in COMPONENTS:
        table.add(f"{k} components, Zephon", found.of("zephon", str(k), 1e3), "ms/chunk")
    table.add("8 components, Streaming", found.of("streaming", "8", 1e3), "ms/chunk")
    ratios = found.ratios("streaming", "NumPy", "8")
    table.add("8 components, Streaming over NumPy", ratios, "x")
    table.add("8 components, Streaming's first sample", found.of("streaming", "epoch"), "s")
    for peer, goal in (("compiled", 0.2), ("NumPy", 3)):
        quotas = found.of(peer, "quotas", 1e6)
        table.add(f"quotas of 8 components, {peer}", quotas, "us/chunk", most=goal)
    sizes = [f"samples {size:.0e}" for size in SIZES]
    for peer, name, among in (
        ("scaling", "1e6 to 1e12 samples", sizes),
        ("compiled scaling", "1e6 and 1e9 samples, compiled", sizes[:2]),
        ("scaling", "1e6 to 1e12 samples, global", [f"global {size:.0e}" for size in SIZES]),
        ("scaling", "pass 1 and 1,000", ["pass 1", "pass 1000"]),
        ("scaling", "chunk 0 and 1e7", ["chunk 0e+00", "chunk 1e+07"]),
    ):
        rounds = found.rounds[peer]
        apart = [max(r[n] for n in among) / min(r[n] for n in among) for r in rounds]
        table.add(f"time a chunk, slowest over fastest, {name}", apart, "x", most=1.3)
    # Shards of more than 2^31 samples need 64-bit words, which NumPy permutes in both.
    apart = [r[sizes[2]] / r[sizes[1]] for r in found.rounds["compiled scaling"]]
    table.add("time a chunk, 1e12 over 1e9 samples, compiled", apart, "x")


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
