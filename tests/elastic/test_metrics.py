"""Numbers for logs against what batches hold, on any number of hosts and after restores."""

import gzip
import time

import numpy as np
import pytest
from support.elastic_runs import batched, hosts, in_step, noisy, readable, rows
from support.sources import CountSource

import zephon_jax as zx

NAMES = ["d0", "d1", "d2"]


def shared(metrics):
    """What is the same on all hosts."""
    return {
        k: v for k, v in metrics.items() if k.split("/")[0] in ("step", "rows", "samples", "passes")
    }


@pytest.mark.parametrize("pipeline", [rows, batched, noisy])
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_samples_and_passes_are_those_of_the_batches(pipeline, num_hosts):
    source = readable(exhausted_policy="repeat")  # records of dataset d are 1000 * d + n
    iterators = [iter(d) for d in hosts(source, 4, pipeline, num_hosts, global_batch_size=12)]
    drawn = np.zeros(3, dtype=int)
    for step in range(1, 60):
        (batch,) = in_step(iterators, 1)
        drawn += np.bincount(batch["x"] // 1000, minlength=3)
        found = [iterator.metrics() for iterator in iterators]
        assert all(shared(one) == shared(found[0]) for one in found)
        assert (found[0]["step"], found[0]["rows"]) == (step, 12 * step)
        told = np.array([found[0][f"samples/{name}"] for name in NAMES])
        # Exact where chunks of five end; inside, lanes are within a sample of their shares.
        np.testing.assert_allclose(told, drawn, atol=0 if 3 * step % 5 == 0 else 4)
        passes = [found[0][f"passes/{name}"] for name in NAMES]
        np.testing.assert_allclose(passes, told / [48, 80, 32])


def test_a_restore_goes_on_from_what_was_drawn():
    source = readable(exhausted_policy="repeat")
    (before,) = hosts(source, 4, rows, 1, global_batch_size=12)
    going = iter(before)
    for _ in range(25):
        next(going)
    state = going.get_state()
    for host in hosts(source, 4, rows, 2, global_batch_size=12):
        restored = iter(host)
        assert restored.metrics()["samples/d0"] == 0
        restored.set_state(state)
        assert shared(restored.metrics()) == shared(going.metrics())
        assert restored.metrics()["samples/d0"] == 25 * 12 * 48 // 160


def test_the_end_of_a_run_and_masked_rows():
    source = readable((47, 80, 31), exhausted_policy="redistribute")
    iterators = [iter(d) for d in hosts(source, 4, rows, 2, global_batch_size=8, pad=True)]
    in_step(iterators)
    for iterator in iterators:
        found = iterator.metrics()
        assert [found[f"samples/{name}"] for name in NAMES] == [47, 80, 31]
        assert [found[f"passes/{name}"] for name in NAMES] == [1.0, 1.0, 1.0]


def documents(lane):
    def tokens_of(element):
        return {
            "tokens": np.arange(element["data"] % 50 + 2, dtype=np.int32),
            "component_id": element["component_id"],
        }

    return lane.map(tokens_of)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_packed_lanes_tell_their_tokens_and_how_far_they_are_apart(num_workers):
    source = readable((480, 800, 320), exhausted_policy="repeat")
    (dataset,) = hosts(
        source, 4, lambda lane: zx.pack(documents(lane), 64, num_bins=2), 1,
        rows_per_sample=None, num_workers=num_workers,
    )  # fmt: skip
    iterator = iter(dataset)
    assert not any(name.startswith("tokens/") for name in iterator.metrics())
    tokens = np.zeros(3, dtype=int)
    for _ in range(120):
        ids = next(iterator)["component_ids"]
        tokens += [(ids == d).sum() for d in range(3)]
        found = iterator.metrics()
        assert [found[f"tokens/{name}"] for name in NAMES] == tokens.tolist()
    # Documents of 2 to 51 tokens, 26.5 in the mean, less one that has no place of its own.
    samples = sum(found[f"samples/{name}"] for name in NAMES)
    packed = tokens.sum() / 25.5
    # A packer's place is at most 64 documents and its window behind, in each of four lanes.
    assert 0.9 * packed - 4 * (64 + 10) < samples < 1.1 * packed
    assert 0 <= found["lane_lag_chunks"] < 20
    chunks = [place.chunk for place in zx.audit(source, iterator.get_state()).lanes]
    assert found["lane_lag_chunks"] == max(c // 4 for c in chunks) - min(c // 4 for c in chunks)
    iterator.close()


def test_a_source_that_cannot_count_says_what_it_can():
    numbers = {0: zx.Dataset.from_source("odd", list(range(200)))}
    numbers[1] = zx.Dataset.from_source("even", list(range(100)))

    class Readable(CountSource):
        datasets_by_id = numbers

    (dataset,) = hosts(Readable(), 2, lambda lane: lane.map(lambda e: e["data"]), 1,
                       rows_per_sample=None)  # fmt: skip
    iterator = iter(dataset)
    next(iterator)
    found = iterator.metrics()
    assert (found["step"], found["lane_lag_chunks"]) == (1, 0)
    assert not any(name.startswith(("samples/", "passes/")) for name in found)


def test_waiting_is_counted_and_numbers_are_plain():
    (dataset,) = hosts(readable(), 2, lambda lane: rows(lane).map(slow), 1)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    found = iterator.metrics()
    assert 5 * 2 * 0.02 * 0.9 < found["seconds_waited"] < 60
    assert all(type(value) in (int, float) for value in found.values())


def slow(element):
    time.sleep(0.02)
    return element


def test_reads_of_packed_shards_hit_the_cache_once_they_are_unpacked(tmp_path):
    for shard in range(2):
        lines = "".join(f'{{"n": {n}}}\n' for n in range(40))
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    numbers = zx.Dataset.from_path("numbers", str(tmp_path / "*.jsonl.gz"))
    source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
    (dataset,) = hosts(source, 2, lambda lane: lane.map(lambda e: e["data"]["n"]), 1)
    iterator = iter(dataset)
    before = iterator.metrics()
    assert len(list(iterator)) == 40
    after = iterator.metrics()
    hits, misses = (after[k] - before[k] for k in ("cache_hits", "cache_misses"))
    assert 0 <= misses <= 2 <= hits + misses
