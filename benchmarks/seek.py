"""Samples and states by index: far seeks, many samples at once, and loops.

python benchmarks/seek.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys

import grain
import mixtures
import numpy as np
from common import Measured, Table, clock, run, seconds

import zephon_jax as zx
from zephon_jax.kernels import backend

FAR = 1_000_000  # chunks: 16e9 samples


def seeks(k, quick):
    source = mixtures.ours(k)
    cold = seconds(lambda: source.seek(FAR))
    return {f"cold {k}": cold, f"warm {k}": seconds(lambda: source.seek(FAR + 1), 9)}


def numpy(quick):
    source = mixtures.ours(8)
    size = 100_000 if quick else 1_000_000
    start = 10**9

    def consecutive():
        source.sample_ids_at(np.arange(start, start + size))

    at = seconds(consecutive) / size
    scattered = np.random.default_rng(0).integers(0, 10**8, 4096)
    lattice = zx.MixtureReadConfig(mode="lattice")
    far = seconds(lambda: source.sample_ids_at(scattered, read_config=lattice)) / scattered.size
    begin = clock()
    for index in range(start, start + 20_000):
        source[index]
    loop = (clock() - begin) / 20_000
    return {**seeks(8, quick), **seeks(128, quick), "at": at, "scattered": far, "loop": loop}


def compiled(quick):
    zx.use_backend("jax")
    figures = {**seeks(8, quick), **seeks(128, quick)}
    backend.finish_compiling()
    return figures


def by_index(dataset, num) -> float:
    for index in range(100):
        dataset[index]
    begin = clock()
    for index in range(num):
        dataset[index]
    return (clock() - begin) / num


def ranges(quick):
    datasets = [zx.Dataset.from_source("a", range(200_000)),
                zx.Dataset.from_source("b", range(100_000))]  # fmt: skip
    source = zx.StaticMixtureWorkSource(datasets, {"a": 2, "b": 1}, **mixtures.SHUFFLED)
    return {"[i]": by_index(zx.MixtureMapDataset(source), 20_000 if quick else 100_000)}


def grains(quick):
    parts = [grain.MapDataset.range(200_000).shuffle(seed=0),
             grain.MapDataset.range(100_000).shuffle(seed=1)]  # fmt: skip
    mixed = grain.MapDataset.mix(parts, weights=[2, 1])
    return {"[i]": by_index(mixed, 20_000 if quick else 100_000)}


PEERS = {"compiled": compiled, "NumPy": numpy, "ranges": ranges, "grain": grains}


def report(table: Table, found: Measured) -> None:
    for peer, k, cold in (("compiled", 8, 0.5), ("compiled", 128, 4), ("NumPy", 8, 3),
                          ("NumPy", 128, 4)):  # fmt: skip
        what = f"seek to chunk 1e6, {k} components, {peer}"
        table.add(f"{what}, cold", found.of(peer, f"cold {k}"), "s", most=cold)
        table.add(f"{what}, warm", found.of(peer, f"warm {k}", 1e3), "ms", most=1)
    rates = [1 / second for second in found.of("NumPy", "at")]
    table.add("sample_ids_at, consecutive", rates, "ids/s", least=5_000_000)
    rates = [1 / second for second in found.of("NumPy", "scattered")]
    table.add("sample_ids_at, scattered over 1e8", rates, "ids/s")
    table.add("source[i] in a loop", found.of("NumPy", "loop", 1e6), "us")
    table.add("MixtureMapDataset[i] in a loop", found.of("ranges", "[i]", 1e6), "us")
    table.add("Grain mix and shuffle [i] in a loop", found.of("grain", "[i]", 1e6), "us")
    ratios = found.ratios("grain", "ranges", "[i]")
    table.add("Grain over MixtureMapDataset, [i] in a loop", ratios, "x", least=3)


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
