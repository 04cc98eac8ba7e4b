"""Drawn runs against one plain loop over lanes, each a Grain pipeline of its own."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import warnings

import jax
import numpy as np
import pytest
from support.checkpoints import save_all
from support.elastic_runs import concat_split, first_fit, hosts
from support.helpers import flat_mapped

import zephon_jax as zx
from zephon_jax.kernels.keys import digest_words

ROWS_OF = (1, 3, 2, 5)  # of a lane, by step, in ramps


def odd(e):
    """A row whose leaves are as unlike as they may be."""
    n = int(e["data"])
    half = np.full((2, 3), n % 256, jax.numpy.bfloat16)
    return {
        "x": np.int32(n), "id": e["sample_id"], "deep": {"a b": half, "z": (np.float64(n), [n])},
        "text": "s" * (n % 4), "bytes": b"\0" * (n % 3),
    }  # fmt: skip


def odds(lane):
    return lane.map(odd)


def split(lane):
    return flat_mapped(odds(lane), lambda e: [{**e, "k": k} for k in range(e["x"] % 4)])


PIPELINES = {
    "map": (odds, 1),
    "random map": (
        lambda lane: odds(lane).random_map(lambda e, rng: {**e, "r": rng.integers(1 << 30)}),
        1,
    ),
    "batches": (lambda lane: odds(lane).batch(3), 1),
    "whole batches": (lambda lane: odds(lane).batch(4, drop_remainder=True), 1),
    "filter": (lambda lane: odds(lane.filter(lambda e: e["data"] % 3 != 0)), None),
    "hard filter": (lambda lane: odds(lane.filter(lambda e: e["data"] % 17 == 0)), None),
    "first fit": (first_fit, None),
    "concat then split": (concat_split, None),
    "batches of packs": (lambda lane: concat_split(lane).batch(3), None),
    "flat map": (split, None),
    "batches of a flat map": (lambda lane: split(lane).batch(5), None),
    "flush": (lambda lane: zx.FlushIterDataset(lane, concat_split, 2), None),
}
BATCHES = ("batches", "whole batches", "batches of packs", "batches of a flat map")


def drawn_source(draw):
    sizes = [draw.randint(5, 60) for _ in range(draw.randint(1, 3))] + draw.choice([[], [1], [2]])
    datasets = [
        zx.Dataset.from_source(f"d{d}", [1000 * d + n for n in range(size)])
        for d, size in enumerate(sizes)
    ]
    ends = draw.choice([
        {"exhausted_policy": "redistribute"}, {"exhausted_policy": "stop"}, {"max_repeats": 1},
        {"stop_after_passes": 2}, {"allocation": "virtual_time"},
        {"allocation": "virtual_time", "exhausted_policy": "redistribute"},
    ])  # fmt: skip
    mix = {d.name: draw.choice([1, 2, 3, size]) for d, size in zip(datasets, sizes, strict=True)}
    return zx.StaticMixtureWorkSource(
        datasets, mix, chunk_size=draw.choice([2, 3, 5, 8, 13]), seed=draw.randint(0, 9),
        shuffle_block_size=draw.choice([None, "auto", 7, "global"]),
        lane_assignment=draw.choice(["permute", "modulo"]), **ends,
    )  # fmt: skip


def lane_rows(source, lane, num_lanes, pipeline, batched):
    """Every row of a lane, by Grain alone."""
    dataset = zx.LaneIterDataset(source, lane, num_lanes, zx.MixtureReadConfig(mode="lattice"))
    low, high = digest_words(2, source.seed, "elastic lane", lane).tolist()
    elements = list(pipeline(dataset.seed(low | high << 32)))
    return [row for e in elements for row in unbatched(e)] if batched else elements


def unbatched(batch):
    leaves, tree = jax.tree.flatten(batch)
    return [jax.tree.unflatten(tree, row) for row in zip(*leaves, strict=True)]


def plain(row):
    return [np.asarray(leaf, object if isinstance(leaf, bytes) else None).tolist()
            for leaf in jax.tree.leaves(row)]  # fmt: skip


def expected_batches(lanes, rows_of, pad):
    """Global batches as lists of rows, None where masked."""
    found, at = [], 0
    while True:
        each = rows_of(len(found))
        ended = [len(lane) < at + each for lane in lanes]
        if any(ended) if not pad else at >= max(map(len, lanes)):
            return found
        found.append([lane[n] if n < len(lane) else None
                      for lane in lanes for n in range(at, at + each)])  # fmt: skip
        at += each


def batch_rows(batch):
    mask = batch.pop("row_mask", None)
    return [row and plain(row) for row in (
        row if mask is None or mask[n] else None for n, row in enumerate(unbatched(batch))
    )]  # fmt: skip


def run(iterators, in_step):
    """The rest of the global batches of hosts side by side."""
    count = len(iterators)
    barrier, words, got, errors = threading.Barrier(count), [0] * count, [[]] * count, []

    def go(h):
        def agree(word):
            words[h] = word
            barrier.wait(60)
            said = list(words)
            barrier.wait(60)
            return said

        try:
            got[h] = list(zx.synchronized(iterators[h], agree) if in_step else iterators[h])
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=go, args=(h,)) for h in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    parts = zip(*got, strict=True)  # as many steps on all hosts
    return [[row for part in step for row in batch_rows(part)] for step in parts]


def check_drawn(seed, kind, workers=0):
    """Whole runs, then saved at a drawn step and restored by another number of hosts, then sought.

    With workers one host restores, whose processes live through a whole run, the restored and the
    sought one: starting them takes seconds.

    Returns:
      False where the draw makes no run, or one that is refused.
    """
    draw = random.Random(f"{seed} {kind}")
    pipeline, per_sample = PIPELINES[kind]
    try:
        source = drawn_source(draw)
    except ValueError:
        return False
    num_lanes, pad, base = draw.choice([1, 2, 3, 4, 6]), draw.random() < 0.5, draw.randint(1, 4)
    counts = [n for n in range(1, num_lanes + 1) if num_lanes % n == 0]
    rows_of = (lambda t: ROWS_OF[t % 4]) if draw.random() < 0.4 else (lambda t: base)

    def opened(count, workers=0):
        settings = {"num_threads": draw.randint(1, 2), "prefetch": draw.randint(1, 3)}
        return [iter(dataset) for dataset in hosts(
            source, num_lanes, pipeline, count, pad=pad, rows_per_sample=per_sample,
            num_workers=workers,
            global_batch_size=lambda t: num_lanes * rows_of(t), **settings,
        )]  # fmt: skip

    try:
        iterators = opened(draw.choice(counts))
    except ValueError as error:
        if "no chunk" in str(error) or "too few for a batch" in str(error):
            return False
        raise
    lanes = [lane_rows(source, n, num_lanes, pipeline, kind in BATCHES) for n in range(num_lanes)]
    expected = expected_batches([[plain(row) for row in lane] for lane in lanes], rows_of, pad)
    in_step = per_sample is None
    assert run(iterators, in_step) == expected
    # Lanes of one host that go on alone end at their own ends.
    step = draw.randint(0, len(expected) if not (pad and in_step) else len(expected) // 3)
    iterators = opened(draw.choice(counts))
    if any(next(one, None) is None for _ in range(step) for one in iterators):
        return False
    restored = opened(1 if workers else draw.choice(counts), workers)
    if workers:
        assert run(restored, in_step) == expected
    check_restored(iterators, restored, step, expected, in_step)
    if not in_step:
        check_sought(restored, draw.randint(0, len(expected)), expected)
    for one in [*iterators, *restored]:
        one.close()
    return True


def check_restored(iterators, restored, step, expected, in_step):
    """What some hosts saved is what others restore, and so is all that follows."""
    with tempfile.TemporaryDirectory() as folder:
        assert save_all(folder, iterators) == [None] * len(iterators)
        next(restored[0], None)
        assert {zx.restore_checkpoint(folder, one) for one in restored} == {step}
    saved = {lane: s for one in iterators for lane, s in one.get_state()["lanes"].items()}
    again = {lane: s for one in restored for lane, s in one.get_state()["lanes"].items()}
    assert json.dumps(again, sort_keys=True) == json.dumps(saved, sort_keys=True)
    assert run(restored, in_step) == expected[step:]


def check_sought(iterators, step, expected):
    """A place that was gone to has a state as any other."""
    for one in iterators:
        one.seek(step)
        one.set_state(json.loads(json.dumps(one.get_state())))
    assert run(iterators, in_step=False) == expected[step:]


def campaign(kind, draws, workers=0):
    """Runs draws; returns how many made a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is dropped, knobs without effect
        return sum(check_drawn(seed, kind, workers) for seed in range(draws))


@pytest.mark.parametrize("kind", PIPELINES)
def test_drawn_runs_are_what_a_loop_over_lanes_gives(kind):
    assert campaign(kind, 2) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", PIPELINES)
def test_many_drawn_runs_are_what_a_loop_over_lanes_gives(kind):
    assert campaign(kind, 60) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", PIPELINES)
def test_drawn_runs_in_worker_processes(kind):
    assert campaign(kind, 4, workers=2) >= 2
