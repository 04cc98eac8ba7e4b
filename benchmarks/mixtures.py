"""The mixtures that the benchmarks draw from, for this library and for Zephon."""

from __future__ import annotations

import json
import pathlib

import numpy as np

import zephon_jax as zx

CHUNK_SIZE = 16_384
SHARDS, SHARD_SIZE = 1000, 20_000
SHUFFLED = {"shuffle_block_size": "auto", "shuffle_within_shard": True}


def weights_of(num_components: int) -> dict[str, float]:
    """Weights without a short period: six digits each, drawn once and for all."""
    drawn = np.random.default_rng(num_components).dirichlet(np.full(num_components, 4.0))
    return {f"d{d}": round(float(w) + 2e-4, 6) for d, w in enumerate(drawn)}


def ours(num_components, counts=None, **settings) -> zx.StaticMixtureWorkSource:
    counts = [SHARD_SIZE] * SHARDS if counts is None else counts
    weights = weights_of(num_components)
    datasets = [zx.Dataset.from_counts(name, counts) for name in weights]
    settings = {"exhausted_policy": "repeat", **SHUFFLED, **settings}
    return zx.StaticMixtureWorkSource(datasets, weights, chunk_size=CHUNK_SIZE, seed=0, **settings)


def zephons(num_components, counts=None, **settings):
    """The same source of Zephon's, from metadata alone."""
    from zephon import Dataset
    from zephon.work import StaticMixtureWorkSource

    counts = np.full(SHARDS, SHARD_SIZE) if counts is None else np.asarray(counts)
    names = np.asarray([f"{n:07d}" for n in range(len(counts))])
    weights = weights_of(num_components)
    settings = {"exhausted_policy": "repeat", **SHUFFLED, **settings}
    return StaticMixtureWorkSource(
        [Dataset(name, {}, None, names, counts) for name in weights],
        weights,
        chunk_size=CHUNK_SIZE,
        seed=0,
        **settings,
    )


def streamings(num_components, epoch_size, folder):
    """The same sizes and weights in MosaicML Streaming, from index files alone.

    It is in no extra: with PyTorch it takes 6 GB, and it wants an older NumPy.
    """
    from streaming import Stream, StreamingDataset

    shard = {
        "version": 2, "format": "mds", "samples": SHARD_SIZE, "column_names": ["x"],
        "column_encodings": ["int"], "column_sizes": [8], "compression": None, "hashes": [],
        "size_limit": 1 << 26, "zip_data": None,
    }  # fmt: skip
    files = [{"basename": f"{n}.mds", "bytes": 1, "hashes": {}} for n in range(SHARDS)]
    index = {"version": 2, "shards": [{**shard, "raw_data": file} for file in files]}
    streams = []
    for name, weight in weights_of(num_components).items():
        remote = pathlib.Path(folder, name)
        remote.mkdir()
        (remote / "index.json").write_text(json.dumps(index))
        local = str(remote / "local")
        streams.append(Stream(remote=str(remote), local=local, proportion=weight))
    return StreamingDataset(
        streams=streams, epoch_size=epoch_size, shuffle=True, shuffle_block_size=8 * SHARD_SIZE,
        batch_size=CHUNK_SIZE, num_canonical_nodes=1, shuffle_seed=0,
    )  # fmt: skip
