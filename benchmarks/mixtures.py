"""The mixtures that the benchmarks draw from, for this library and for Zephon."""

from __future__ import annotations

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
