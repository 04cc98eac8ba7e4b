"""Loops over indices: what is kept or read ahead for them changes nothing but the time."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.helpers import chunks_of, mixture, samples_of

import zephon_jax as zx


def readable(**settings):
    datasets = [
        zx.Dataset.from_source("a", [[n] for n in range(300)]),
        zx.Dataset.from_source("b", [[1000 + n] for n in range(200)]),
    ]
    return zx.StaticMixtureWorkSource(datasets, {"a": 3, "b": 2}, chunk_size=64, **settings)


def rows(elements):
    return [(e["data"], int(e["component_id"]), e["sample_id"].tolist()) for e in elements]


def test_source_by_index_is_the_run():
    source = mixture([[40, 60], 80], [2, 1], chunk_size=50)
    run = [sample for sample, _ in samples_of(chunks_of(source))]
    assert [source[i] for i in range(len(source))] == run
    order = np.random.default_rng(0).permutation(len(source)).tolist()
    assert [source[i] for i in order] == [run[i] for i in order]
    assert source[-1] == run[-1]
    with pytest.raises(IndexError):
        source[len(source)]


@pytest.mark.parametrize("indices", ["loop", "backwards", "steps", "scattered", "twice"])
def test_map_dataset_in_loops(indices):
    dataset = zx.MixtureMapDataset(readable(shuffle_block_size=32))
    size = len(dataset)
    asked = {
        "loop": list(range(size + 70)),  # into another epoch
        "backwards": list(range(size - 1, -1, -1)),
        "steps": list(range(0, size, 3)),
        "scattered": np.random.default_rng(1).integers(0, 2 * size, 300).tolist(),
        "twice": [i for i in range(size) for _ in range(2)],
    }[indices]
    together = rows(zx.MixtureMapDataset(readable(shuffle_block_size=32)).__getitems__(asked))
    assert rows([dataset[i] for i in asked]) == together


def test_each_element_is_handed_out_once():
    dataset = zx.MixtureMapDataset(readable())
    first = [dataset[i] for i in range(64)]
    for element in first:
        element["data"] = None
        element["sample_id"][:] = -1
    again = [dataset[i] for i in range(64)]
    assert rows(again) == rows(zx.MixtureMapDataset(readable()).__getitems__(range(64)))


def test_threads_share_a_loop():
    dataset = zx.MixtureMapDataset(readable())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(dataset.__getitem__, range(len(dataset))))
    assert rows(found) == rows(zx.MixtureMapDataset(readable()).__getitems__(range(len(dataset))))


def test_copies_of_a_dataset_start_anew():
    dataset = zx.MixtureMapDataset(readable())
    expected = rows([dataset[i] for i in range(10)])
    copy = pickle.loads(pickle.dumps(dataset))
    assert rows([copy[i] for i in range(10)]) == expected


@pytest.mark.parametrize("stride", [1, 2, 3, 8, 32, 64, 65])
def test_a_stride_reads_little_that_is_not_asked_for(stride):
    """The usual way to share a dataset out: every n-th element."""

    class Counted(list):
        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return super().__getitem__(index)

    records = Counted(range(70_000))
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_source("a", records)], {"a": 1}, chunk_size=4096, shuffle_shards=False
    )
    part = zx.MixtureMapDataset(source)[3::stride]
    assert [part[i]["data"] for i in range(1000)] == list(range(3, 3 + 1000 * stride, stride))
    assert records.reads <= (1100 if stride == 1 else 2100)
