"""One process of a distributed run, started by test_distributed: python elastic_host.py PLAN.

The plan is a JSON file: process, count, port, devices, folder, and the parts to run.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import time
import warnings

import grain
import jax
import numpy as np
import pytest

import zephon_jax as zx
from zephon_jax import _compat

LANES, ROWS, WIDTH, DEVICES = 8, 16, 8, 4


def source_of(sizes=(400, 240), **settings):
    datasets = [
        zx.Dataset.from_source(f"d{d}", [1000 * d + n for n in range(size)])
        for d, size in enumerate(sizes)
    ]
    settings = {"chunk_size": 10, "shuffle_block_size": "auto", **settings}
    mix = {dataset.name: size for dataset, size in zip(datasets, sizes, strict=True)}
    return zx.StaticMixtureWorkSource(datasets, mix, **settings)


def wide(e):
    row = np.arange(WIDTH, dtype=np.int32) + 100 * np.int32(e["data"])
    return {"x": row, "sample_id": e["sample_id"]}


def tokens(e):
    return {"x": np.full(e["data"] % 5 + 1, e["data"], np.int32)}


def noisy(e, rng):
    return {**wide(e), "noise": rng.integers(1 << 30, size=WIDTH).astype(np.int32)}


PIPELINES = {
    "map": (lambda lane: lane.map(wide), 1),
    "random map": (lambda lane: lane.random_map(noisy), 1),
    "filter": (lambda lane: lane.filter(lambda e: e["data"] % 3 != 0).map(wide), None),
    "first fit": (
        lambda lane: grain.experimental.FirstFitPackIterDataset(
            lane.map(tokens), length_struct={"x": WIDTH}, num_packing_bins=3, shuffle_bins=False
        ),
        None,
    ),
    "concat then split": (
        lambda lane: grain.experimental.ConcatThenSplitIterDataset(
            lane.map(tokens), length_struct={"x": WIDTH}
        ),
        None,
    ),
}


def meshes():
    """Shardings of a batch (rows, WIDTH) over four devices, by what they are like."""
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    d = np.array(sorted(jax.devices(), key=lambda device: device.id))
    assert d.size == DEVICES
    square = d.reshape(2, 2)

    def sharding(devices, names, *spec):
        return NamedSharding(Mesh(devices, names), P(*spec))

    return {
        "data": sharding(d, ("data",), "data"),
        "fsdp x tensor": sharding(square, ("fsdp", "tensor"), "fsdp"),
        "data and fsdp": sharding(square, ("data", "fsdp"), ("data", "fsdp")),
        "interleaved": sharding(d[[0, 2, 1, 3]], ("data",), "data"),
        "sequence": sharding(square, ("data", "seq"), "data", "seq"),
        "sequence over hosts": sharding(d, ("seq",), None, "seq"),
        "replicas over hosts": sharding(square.T, ("data", "model"), "data"),
    }


def elastic(pipeline, per_sample, sharding, source=None, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zx.ElasticIterDataset.for_sharding(
            source or source_of(), LANES, pipeline, sharding, rows_per_sample=per_sample,
            **{"global_batch_size": ROWS, **settings},
        )  # fmt: skip


def check_placed(batch, expected):
    """Each of this process's shards holds the rows and columns that its place says."""
    for name, leaf in batch.items():
        if name == "sample_id":
            continue
        assert leaf.shape == expected[name].shape, (name, leaf.shape, expected[name].shape)
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[name][shard.index])


def expected_of(plan, kind):
    with np.load(f"{plan['folder']}/{kind}.npz") as found:
        names = {key.split("/")[1] for key in found}
        steps = max(int(key.split("/")[0]) for key in found) + 1
        return [{name: found[f"{t}/{name}"] for name in names} for t in range(steps)]


def check_lanes_of_all(dataset):
    """Each lane is saved by one host, which owns it: two would write one manifest at once."""
    from jax.experimental import multihost_utils

    assert set(dataset.written_lanes) <= set(dataset.owned_lanes)
    written = np.isin(np.arange(LANES), dataset.written_lanes).astype(np.int32)
    by_host = np.asarray(multihost_utils.process_allgather(written)).reshape(-1, LANES)
    np.testing.assert_array_equal(by_host.sum(axis=0), 1)


def run_meshes(plan):
    expected = expected_of(plan, "map")
    for sharding in meshes().values():
        dataset = elastic(*PIPELINES["map"], sharding)
        check_lanes_of_all(dataset)
        batches = zx.GlobalBatches(iter(dataset), sharding)
        for t in range(3):
            check_placed(next(batches), expected[t])
        batches.close()


def run_whole(plan):
    """Every pipeline to its end: as many steps on all hosts, and the same batches."""
    sharding = meshes()["data"]
    for kind, (pipeline, per_sample) in PIPELINES.items():
        expected = expected_of(plan, kind)
        iterator = iter(elastic(pipeline, per_sample, sharding))
        batches = iterator if per_sample == 1 else zx.synchronized(iterator)
        got = [zx.to_global(batch, sharding) for batch in batches]
        assert len(got) == len(expected), (kind, len(got), len(expected))
        for one, other in zip(got, expected, strict=True):
            check_placed(one, other)
        iterator.close()


def run_padded(plan):
    """Hosts whose lanes have ended give masked rows until the last lane has."""
    expected = expected_of(plan, "filter padded")
    sharding = meshes()["data"]
    iterator = iter(elastic(*PIPELINES["filter"], sharding, pad=True))
    got = list(zx.GlobalBatches(iterator, sharding, synchronized=True))
    assert len(got) == len(expected), (len(got), len(expected))
    for one, other in zip(got, expected, strict=True):
        check_placed(one, other)


def run_save(plan):
    """Saves each pipeline at its own step, and on a mesh where hosts share lanes."""
    for n, (kind, (pipeline, per_sample)) in enumerate(PIPELINES.items()):
        sharding = meshes()["replicas over hosts" if n % 2 else "data"]
        iterator = iter(elastic(pipeline, per_sample, sharding))
        for _ in range(n + 1):
            next(iterator)
        snapshot = iterator.get_state()
        next(iterator)
        for _ in range(2):  # again over itself: the same checkpoint
            zx.save_checkpoint(
                f"{plan['folder']}/{kind} by {plan['count']}", iterator, state=snapshot, timeout=60
            )
        iterator.close()


def run_restore(plan):
    for other in plan["saved_by"]:
        for n, (kind, (pipeline, per_sample)) in enumerate(PIPELINES.items()):
            sharding = meshes()["interleaved" if n % 2 else "data"]
            expected = expected_of(plan, kind)
            iterator = iter(elastic(pipeline, per_sample, sharding))
            batches = zx.GlobalBatches(iterator, sharding)
            step = zx.restore_checkpoint(f"{plan['folder']}/{kind} by {other}", batches)
            assert step == n + 1
            for t in range(step, step + 2):
                check_placed(next(batches), expected[t])
            batches.close()


def run_save_every_step(plan):
    sharding = meshes()["data"]
    for kind, (pipeline, per_sample) in PIPELINES.items():
        iterator = iter(elastic(pipeline, per_sample, sharding))
        for step in range(len(expected_of(plan, kind)) + 1):
            assert iterator.get_state()["step"] == step
            folder = f"{plan['folder']}/every {kind} by {plan['count']}"
            zx.save_checkpoint(folder, iterator, timeout=60)
            if step < len(expected_of(plan, kind)):
                next(iterator)
        iterator.close()


def run_restore_every_step(plan):
    """Every step of every number of processes; whole tails of one's own, two batches of others'."""
    for kind in PIPELINES:
        restore_steps(plan, kind, plan["saved_by"], 0)


def run_restore_every_step_in_workers(plan):
    """The same in worker processes, which restore all steps in one life: starting takes seconds."""
    for kind in PIPELINES:
        restore_steps(plan, kind, plan["saved_by"], plan["workers"])


def restore_steps(plan, kind, saved_by, workers):
    sharding, expected = meshes()["data"], expected_of(plan, kind)
    pipeline, per_sample = PIPELINES[kind]
    iterator = iter(elastic(pipeline, per_sample, sharding, num_workers=workers))
    for other in saved_by:
        folder = f"{plan['folder']}/every {kind} by {other}"
        for step in range(len(expected) + 1):
            assert zx.restore_checkpoint(folder, iterator, step=step) == step
            batches = iterator if per_sample == 1 else zx.synchronized(iterator)
            tail = expected[step:] if other == plan["count"] else expected[step : step + 2]
            for batch in tail:
                check_placed(zx.to_global(next(batches), sharding), batch)
            if step + len(tail) == len(expected):
                assert next(batches, None) is None
    iterator.close()


def run_workers(plan):
    """Worker processes of several hosts, with a packer, to the end."""
    sharding = meshes()["data"]
    kind = "concat then split"
    expected = expected_of(plan, kind)
    iterator = iter(elastic(*PIPELINES[kind], sharding, num_workers=2))
    got = list(zx.GlobalBatches(iterator, sharding, synchronized=True, prefetch=2))
    iterator.close()
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        check_placed(one, other)


def orbax_parts(sharding, value):
    """A model's array over all devices, whose value is the step, and how it is asked for."""
    from jax.sharding import NamedSharding, PartitionSpec

    everywhere = NamedSharding(sharding.mesh, PartitionSpec("data"))
    data = np.full((DEVICES * 2,), value, np.float32)
    model = jax.make_array_from_callback(data.shape, everywhere, lambda part: data[part])
    return model, jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=everywhere)


def run_orbax_save(plan):
    """v0's manager with handler and args, and v1 in the background, while steps go on."""
    import orbax.checkpoint as ocp
    from orbax.checkpoint.experimental import v1

    from zephon_jax.elastic.checkpoint.orbax import ElasticSave

    folder, sharding = pathlib.Path(plan["folder"]), meshes()["data"]
    kind = "concat then split"
    batches = zx.GlobalBatches(iter(elastic(*PIPELINES[kind], sharding)), sharding)
    with ocp.CheckpointManager(folder / f"v0 by {plan['count']}") as manager:
        for step in (1, 2, 3):
            next(batches)
            manager.save(step, args=ocp.args.Composite(
                model=ocp.args.StandardSave({"w": orbax_parts(sharding, step)[0]}),
                data=ElasticSave(batches),
            ))  # fmt: skip
        manager.wait_until_finished()
    response = v1.save_checkpointables_async(
        folder / f"v1 by {plan['count']}",
        {"model": {"w": orbax_parts(sharding, 3)[0]}, "data": batches},
    )
    for _ in range(2):  # the save has its own snapshot
        next(batches)
    response.result()
    batches.close()


def run_orbax_restore(plan):
    import orbax.checkpoint as ocp
    from orbax.checkpoint.experimental import v1

    from zephon_jax.elastic.checkpoint.orbax import ElasticRestore

    folder, sharding = pathlib.Path(plan["folder"]), meshes()["data"]
    kind = "concat then split"
    expected = expected_of(plan, kind)
    _, like = orbax_parts(sharding, 0)

    def check(batches, model, step):
        assert all((np.asarray(part.data) == step).all() for part in model.addressable_shards)
        for t in range(step, len(expected) - 1):
            check_placed(next(batches), expected[t])
        batches.close()

    for other in plan["saved_by"]:
        for step in (2, 3):
            batches = zx.GlobalBatches(iter(elastic(*PIPELINES[kind], sharding)), sharding)
            with ocp.CheckpointManager(folder / f"v0 by {other}") as manager:
                found = manager.restore(step, args=ocp.args.Composite(
                    model=ocp.args.StandardRestore({"w": like}), data=ElasticRestore(batches)
                ))  # fmt: skip
            check(batches, found["model"]["w"], step)
        batches = zx.GlobalBatches(iter(elastic(*PIPELINES[kind], sharding)), sharding)
        next(batches)
        found = v1.load_checkpointables(
            folder / f"v1 by {other}", {"model": {"w": like}, "data": batches}
        )
        check(batches, found["model"]["w"], 3)


def run_copies(plan):
    """Two groups of hosts that hold the same rows: copies are not further samples."""
    from jax.experimental import multihost_utils

    sharding = meshes()["fsdp x tensor"]
    numbers = zx.Dataset.from_source("n", list(range(80)))
    source = zx.StaticMixtureWorkSource(
        [numbers], {"n": 1}, chunk_size=4, shuffle_shards=False, lane_assignment="modulo"
    )
    dataset = zx.ElasticIterDataset.for_sharding(
        source, 2, lambda lane: lane.map(wide), sharding, global_batch_size=8
    )
    iterator = iter(dataset)
    mine = np.stack([next(iterator)["sample_id"][:, 2] for _ in range(5)])
    folder = f"{plan['folder']}/copies by {plan['count']}"
    zx.save_checkpoint(folder, iterator, timeout=60)
    again = iter(dataset)
    assert zx.restore_checkpoint(folder, again) == 5
    following = np.asarray(next(again)["sample_id"][:, 2])
    if plan["count"] == 4:
        everyone = multihost_utils.process_allgather(mine).reshape(4, 5, 4)
        np.testing.assert_array_equal(everyone[0], everyone[1])
        np.testing.assert_array_equal(everyone[2], everyone[3])
        assert sorted(everyone[::2].ravel().tolist()) == list(range(40))
        later = multihost_utils.process_allgather(following).reshape(4, 4)
        assert sorted(later[::2].ravel().tolist()) == list(range(40, 48))


def refused(kind, match, *saving, timeout=60.0):
    with pytest.raises(kind, match=match):
        zx.save_checkpoint(*saving, timeout=timeout)


def run_absent(plan):
    """Hosts that leave out a save, are apart, or come late: it costs that save and no other."""
    me, last = plan["process"], plan["count"] - 1
    sharding, folder = meshes()["data"], f"{plan['folder']}/absent by {plan['count']}"
    iterator = iter(elastic(*PIPELINES["map"], sharding))
    next(iterator)
    saving = folder, iterator
    if me == 0:
        everybody = ", ".join(str(process) for process in range(1, last + 1))
        match = rf"\[{everybody}\] did not come to the lanes of step 1 in"
        refused(TimeoutError, match, *saving, 1, timeout=0.3)
    together("others stayed away")
    zx.save_checkpoint(*saving, 2)
    if me != last:
        match = rf"processes \[.*{last}\] did not come to the lanes of step 3"
        refused(TimeoutError, match, *saving, 3, timeout=1)
    together("the last stayed away")
    zx.save_checkpoint(*saving, 4)
    if me != 0:
        match = r"processes \[0.*\] did not come to the lanes of step 5 in"
        refused(TimeoutError, match, *saving, 5, timeout=1)
    together("the first stayed away")
    check_apart(me, last, saving)
    saved = sorted(path.parent.name for path in pathlib.Path(folder).glob("*/manifest.json"))
    assert saved == [f"step_{step:010d}" for step in (2, 4, 7, 9, 10)]
    assert zx.restore_checkpoint(folder, iterator) == 10
    check_placed(zx.to_global(next(iterator), sharding), expected_of(plan, "map")[1])
    together("all have read")
    left = _compat.distributed_hosts().client.key_value_dir_get("zephon_jax")
    places = {tuple(key.split("/")[:3]) for key, _ in left}
    assert len(left) <= 8 + 2 * plan["count"] * len(places)  # they do not pile up


def check_apart(me, last, saving):
    """Hosts that are at other steps hear it at once; those that come too late, what they missed."""
    start = time.monotonic()
    if me == 0:
        match = r"processes \[.*\] left out the lanes of step 6 in .* of step 7"
        refused(RuntimeError, match, *saving, 6)
    zx.save_checkpoint(*saving, 7)
    if me == last:
        match = r"processes \[0\] left out the lanes of step 8 in .* of step 9"
        refused(RuntimeError, match, *saving, 8)
    zx.save_checkpoint(*saving, 9)
    assert time.monotonic() - start < 30  # not after the limit
    if me != last:
        refused(TimeoutError, rf"processes \[.*{last}\] did not come", *saving, 10, timeout=1)
    together("most have given up")
    if me == last:
        refused(TimeoutError, r"processes \[0.*\] had given up", *saving, 10, timeout=0.3)
    together("all have given up")
    for _ in range(2):
        zx.save_checkpoint(*saving, 10)


def together(name):
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def run_skips(plan):
    """Every host comes to each save or not, by draw, and waits for nobody in between.

    What all came to is saved and what one left out is refused, wherever the others are by then.
    """
    iterator = iter(elastic(*PIPELINES["map"], meshes()["data"]))
    folder = f"{plan['folder']}/skips by {plan['count']}"
    whole = []
    for step in range(1, plan["skips"] + 1):
        draw = random.Random(step)
        come = [draw.random() < 0.85 for _ in range(plan["count"])]
        whole += [step] * all(come)
        if not come[plan["process"]]:
            continue
        if all(come):
            zx.save_checkpoint(folder, iterator, step, timeout=60)
        else:
            with pytest.raises((TimeoutError, RuntimeError), match=r"did not|given up|left out"):
                zx.save_checkpoint(folder, iterator, step, timeout=0.2)
    saved = sorted(path.parent.name for path in pathlib.Path(folder).glob("*/manifest.json"))
    assert saved == [f"step_{step:010d}" for step in whole]
    assert 0.2 * plan["skips"] < len(whole) < plan["skips"]


PARTS = {
    "meshes": run_meshes, "whole": run_whole, "padded": run_padded, "save": run_save,
    "restore": run_restore, "copies": run_copies, "absent": run_absent, "skips": run_skips,
    "workers": run_workers,
    "orbax save": run_orbax_save, "orbax restore": run_orbax_restore,
    "save every step": run_save_every_step, "restore every step": run_restore_every_step,
    "restore every step in workers": run_restore_every_step_in_workers,
}  # fmt: skip


def main(path):
    plan = json.loads(pathlib.Path(path).read_text())
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", plan["devices"])
    source_of().seek(3)  # none of this starts a backend
    if plan["count"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{plan['port']}", plan["count"], plan["process"], initialization_timeout=60
        )
    for part in plan["parts"]:
        start = time.perf_counter()
        PARTS[part](plan)
        print("done", part, round(time.perf_counter() - start, 1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
