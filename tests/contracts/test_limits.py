"""The limits of the guide's table: what is at one works, and what is past it is refused with it."""

import numpy as np
import pytest

import zephon_jax as zx


def source_of(counts, chunk_size=1024, name="a", **settings):
    settings = {"exhausted_policy": "repeat", **settings}
    data = zx.Dataset.from_counts(name, counts)
    return zx.StaticMixtureWorkSource([data], {name: 1}, chunk_size, **settings)


def works(source, chunk_index, lane=0, num_lanes=1):
    """Draws a chunk and restores the state after it."""
    chunk, state = source.next_chunk(source.seek(chunk_index, lane, num_lanes))
    data = zx.encode_state(state)
    assert zx.encode_state(zx.decode_state(source, data)) == data
    component, ids = chunk.window(0, min(len(chunk), 8), zx.MixtureReadConfig(mode="lattice"))
    assert component.tolist() == [0] * len(ids)
    assert (ids >= 0).all()
    return chunk


@pytest.mark.parametrize("block", [None, "auto", "global", 1 << 20])
def test_samples_of_a_dataset(block):
    works(source_of([1 << 60], shuffle_block_size=block), 1 << 49)
    with pytest.raises(ValueError, match=r"must be at most 2\^60"):
        source_of([(1 << 60) + 1])
    with pytest.raises(ValueError, match=r"must be at most 2\^60"):
        source_of([1 << 50], max_repeats=1 << 11)
    with pytest.raises(ValueError, match=r"more than 2\^62"):
        zx.Dataset.from_counts("a", [1 << 62, 1 << 62])


def test_samples_of_a_run():
    source = source_of([1_000])
    works(source, (1 << 52) - 1)
    assert source.sample_id_at((1 << 62) - 1024).dataset_id == 0
    with pytest.raises(ValueError, match="chunk_index must be at most 4503599627370495"):
        source.seek((1 << 52) + 1)


def test_shards_of_a_dataset():
    chunk = works(source_of(np.full(1_000_000, 7), shuffle_block_size="auto"), 100_000)
    assert chunk.components["a"][:, 1].max() > 100_000


def test_samples_of_a_chunk():
    assert len(works(source_of([1_000], 1), 10**8, 5, 1 << 16)) == 1
    long = source_of([1 << 33], 1 << 28)
    assert len(works(long, 3)) == 1 << 28
    for size in (0, (1 << 28) + 1):
        with pytest.raises(ValueError, match=f"chunk_size must be at .*; got {size}"):
            source_of([1 << 33], size)


def test_lanes():
    source = source_of([1_000])
    most = (1 << 31) - 1
    assert works(source, 3 * most, most - 1, most).num_lanes == most
    with pytest.raises(ValueError, match="num_lanes must be at most 2147483647"):
        source.init(0, most + 1)


def test_one_host_of_a_thousand():
    data = zx.Dataset.from_source("a", np.arange(1_000))
    source = zx.StaticMixtureWorkSource([data], {"a": 1}, 4, exhausted_policy="repeat")
    lanes = zx.ElasticIterDataset(
        source, 65_536, lambda lane: lane.map(lambda e: e["data"]), process_index=1_023,
        process_count=1_024,
    )  # fmt: skip
    iterator = iter(lanes)
    assert next(iterator).shape == (64,)
    state = iterator.get_state()
    after = next(iterator)
    iterator.set_state(state)
    assert next(iterator).tolist() == after.tolist()
    iterator.close()


@pytest.mark.parametrize(
    "name", ["数据集", "بيانات", "a b/c\n", "😀", "\ud800", "é" * 10_000, "x" * 10_000]
)
def test_names_of_any_script_and_length(name):
    source = source_of([100], 10, name)
    assert list(works(source, 3, 1, 2).components) == [name]


def test_a_dataset_has_a_name():
    with pytest.raises(ValueError, match="must not be empty"):
        zx.Dataset.from_counts("", [100])


def mixture_of(num):
    datasets = [zx.Dataset.from_counts(f"d{n}", [1_000]) for n in range(num)]
    mix = {dataset.name: 1 + n % 7 for n, dataset in enumerate(datasets)}
    return zx.StaticMixtureWorkSource(datasets, mix, 8_192, exhausted_policy="repeat")


@pytest.mark.parametrize("num", [2_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_components(num):
    source = mixture_of(num)
    chunk, state = source.next_chunk(source.seek(10_000))
    assert int(chunk.counts.sum()) == 8_192
    data = zx.encode_state(state)
    assert len(data) < 1_000  # a digest, not a list
    assert zx.encode_state(zx.decode_state(source, data)) == data
