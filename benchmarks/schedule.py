"""How fast a schedule is made: this library beside Zephon, in one run on one machine.

Prints a Markdown table of medians with ratios and, with --json FILE, writes them down.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import time

import numpy as np

import zephon_jax as zx

CHUNKS = 64
CHUNK_SIZE = 16_384
SHARDS, SHARD_SIZE = 1000, 20_000


def weights_of(num_components: int) -> list[float]:
    """Weights without a short period: six digits each, drawn once and for all."""
    drawn = np.random.default_rng(num_components).dirichlet(np.full(num_components, 4.0))
    return [round(float(w) + 2e-4, 6) for w in drawn]


def make_source(num_components: int, **settings) -> zx.StaticMixtureWorkSource:
    names = [f"d{d}" for d in range(num_components)]
    datasets = [zx.Dataset.from_counts(name, [SHARD_SIZE] * SHARDS) for name in names]
    mixture = dict(zip(names, weights_of(num_components), strict=True))
    settings = {"exhausted_policy": "repeat", "shuffle_block_size": "auto", **settings}
    return zx.StaticMixtureWorkSource(datasets, mixture, chunk_size=CHUNK_SIZE, seed=0, **settings)


def seconds_a_chunk(
    source, config=None, *, start=0, num_lanes=1, order=True, chunks=CHUNKS
) -> float:
    state = source.seek(start, 0, num_lanes)
    for _ in range(2):  # compiled kernels and tables are made once
        chunk, state = source.next_chunk(state)
        chunk.order(config)
    start = time.perf_counter()
    for _ in range(chunks):
        chunk, state = source.next_chunk(state)
        if order:
            chunk.order(config)
    return (time.perf_counter() - start) / chunks


def zephon_seconds_a_chunk(num_components: int, chunks: int) -> float | None:
    try:
        from zephon import Dataset
        from zephon.work import StaticMixtureWorkSource
    except ImportError:
        return None
    names = [f"d{d}" for d in range(num_components)]
    counts = {f"{n:05d}": SHARD_SIZE for n in range(SHARDS)}
    source = StaticMixtureWorkSource(
        [zephon_dataset(Dataset, name, counts) for name in names],
        dict(zip(names, weights_of(num_components), strict=True)),
        chunk_size=CHUNK_SIZE,
        seed=0,
        shuffle_block_size="auto",
        exhausted_policy="repeat",
    ).clone_for_lane(0, 1)
    for _ in source.next_chunk().iter_samples():
        pass
    start = time.perf_counter()
    for _ in range(chunks):
        for _ in source.next_chunk().iter_samples():
            pass
    return (time.perf_counter() - start) / chunks


def zephon_dataset(dataset_class, name, counts):
    """Metadata alone, as this library's `from_counts`."""
    return dataset_class(
        name, {}, None, np.asarray(list(counts)), np.asarray(list(counts.values()))
    )


def global_over_ten_billion() -> tuple[float, float]:
    """Seconds to the first chunk of a full shuffle, and megabytes of growth beyond its table."""
    counts = np.full(1000, 10_000_000)
    dataset = zx.Dataset.from_counts("all", counts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    source = zx.StaticMixtureWorkSource(
        [dataset], {"all": 1}, chunk_size=CHUNK_SIZE, shuffle_block_size="global"
    )
    chunk, _ = source.next_chunk(source.init())
    chunk.order()
    seconds = time.perf_counter() - start
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def median(rounds: int, make, *arguments, **settings) -> float:
    """Median seconds a chunk over rounds, each with a source made anew."""
    return statistics.median(seconds_a_chunk(make(), *arguments, **settings) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    figures: dict[str, object] = {}

    seconds, megabytes = global_over_ten_billion()
    figures["global over 1e10 samples"] = {"first chunk s": seconds, "growth MB": megabytes}
    print(f"'global' over 1e10 samples: first chunk {seconds:.3f} s, growth {megabytes:.0f} MB\n")

    lattice = zx.MixtureReadConfig(mode="lattice")
    print(
        "| components | Zephon ms | NumPy ms | ratio | compiled ms | ratio | lattice ms | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for k in (2, 8, 32, 128):
        row = {"zephon": zephon_seconds_a_chunk(k, 4 if k > 8 else 8)}
        make = functools.partial(make_source, k)
        for backend in ("numpy", "jax"):
            zx.use_backend(backend)
            row[backend] = median(arguments.rounds, make)
        zx.use_backend("numpy")
        row["lattice"] = median(arguments.rounds, make, lattice)
        figures[f"{k} components"] = row
        cells = [str(k), f"{row['zephon'] * 1e3:.1f}" if row["zephon"] else "not installed"]
        for name in ("numpy", "jax", "lattice"):
            cells.append(f"{row[name] * 1e3:.2f}")
            cells.append(f"{row['zephon'] / row[name]:.0f}" if row["zephon"] else "-")
        print("| " + " | ".join(cells) + " |")

    print("\n| own chunk, 8 components | 1 lane ms | 512 lanes ms | ratio |\n|---|---|---|---|")
    for backend in ("numpy", "jax"):
        zx.use_backend(backend)
        make = functools.partial(make_source, 8)
        one, many = (median(arguments.rounds, make, num_lanes=n, order=False) for n in (1, 512))
        figures[f"lanes, {backend}"] = {"1": one, "512": many}
        print(f"| {backend} | {one * 1e3:.2f} | {many * 1e3:.2f} | {many / one:.2f} |")
    zx.use_backend("numpy")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
