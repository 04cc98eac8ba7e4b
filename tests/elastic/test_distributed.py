"""Real processes on loopback, joined by `jax.distributed`: the same global batches for all."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from support import elastic_host

import zephon_jax as zx


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(folder, count, parts, limit=400, **more):
    """Runs parts of elastic_host.py in `count` processes that have four devices together."""
    port, running = free_port(), []
    script = pathlib.Path(elastic_host.__file__)
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    for process in range(count):
        plan = {
            "process": process, "count": count, "port": port,
            "devices": elastic_host.DEVICES // count,
            "folder": str(folder), "parts": parts, **more,
        }  # fmt: skip
        path = folder / f"plan-{count}-{process}.json"
        path.write_text(json.dumps(plan))
        log = open(folder / f"log-{count}-{process}.txt", "w+")  # noqa: SIM115
        running.append((subprocess.Popen(
            [sys.executable, str(script), str(path)], stdout=log, stderr=log, env=env
        ), log))  # fmt: skip
    end = time.monotonic() + limit
    while any(child.poll() is None for child, _ in running) and time.monotonic() < end:
        if any(child.returncode for child, _ in running):
            end = min(end, time.monotonic() + 10)  # the others wait for one that is no more
        time.sleep(0.02)
    failed = []
    for process, (child, log) in enumerate(running):
        child.kill()
        child.wait()
        log.seek(0)
        if child.returncode:
            failed.append(f"process {process} of {count}: {log.read()[-3000:]}")
        log.close()
    assert not failed, "\n".join(failed)


def save_expected(folder):
    """What one process with all lanes delivers, as files."""
    kinds = {**elastic_host.PIPELINES, "filter padded": elastic_host.PIPELINES["filter"]}
    for kind, (pipeline, per_sample) in kinds.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dataset = zx.ElasticIterDataset(
                elastic_host.source_of(), elastic_host.LANES, pipeline, process_index=0,
                process_count=1, global_batch_size=elastic_host.ROWS, rows_per_sample=per_sample,
                pad=kind == "filter padded",
            )  # fmt: skip
        arrays = {
            f"{t}/{name}": leaf for t, batch in enumerate(dataset) for name, leaf in batch.items()
        }
        np.savez(folder / f"{kind}.npz", **arrays)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    save_expected(folder)
    return folder


def saved_by(folder, counts, part="save", before=()):
    """Has other numbers of processes save, where a test before has not."""
    for count in counts:
        if before or not list(folder.glob(f"{part} by {count}/done")):
            launch(folder, count, [*before, part])
            (folder / f"{part} by {count}").mkdir(exist_ok=True)
            (folder / f"{part} by {count}" / "done").touch()


# One process of jax.distributed, and each number of them with each other, in the slow form.
ONE = pytest.param(1, marks=pytest.mark.slow)
FOUR = pytest.param(4, marks=pytest.mark.slow)


@pytest.mark.parametrize("count", [ONE, 2, 4])
def test_processes_agree(folder, count):
    """Every mesh, every pipeline to its end, with workers too, and hosts that do not come.

    They save as well, for the tests below: starting processes takes longer than what they do.
    """
    before = ["meshes", "whole", "padded", "copies"]
    before += ["absent"] if count > 1 else []  # before other saves, which it must not touch
    before += ["workers"] if count == 2 else []
    saved_by(folder, [count], before=before)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_saves_that_some_processes_leave_out(folder, count):
    launch(folder, count, ["skips"], skips=150)


@pytest.mark.parametrize(("count", "others"), [
    (1, [2, 4]), (2, [4]), pytest.param(2, [1, 4], marks=pytest.mark.slow),
    pytest.param(4, [1, 2], marks=pytest.mark.slow),
])  # fmt: skip
def test_processes_restore_what_others_saved(folder, count, others):
    """ProLong#12, mosaic PR#619 and litData#316 among them: any number restores any other's."""
    saved_by(folder, others)
    launch(folder, count, ["restore"], saved_by=others)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_restore_every_step_of_others(folder, count):
    saved_by(folder, (1, 2, 4), "save every step")
    launch(folder, count, ["restore every step"], saved_by=[1, 2, 4])


@pytest.mark.slow
@pytest.mark.parametrize(("count", "workers"), [(1, 3), (2, 2), (4, 1)])
def test_processes_with_workers_restore_every_step_of_others(folder, count, workers):
    saved_by(folder, (1,), "save every step")
    launch(folder, count, ["restore every step in workers"], saved_by=[1], workers=workers)


@pytest.mark.parametrize("count", [1, FOUR])
def test_processes_restore_what_others_saved_with_orbax(folder, count):
    """Both interfaces, next to a model whose arrays lie on all processes."""
    pytest.importorskip("orbax.checkpoint")
    saved_by(folder, [2], "orbax save")
    launch(folder, count, ["orbax restore"], saved_by=[2])


@pytest.mark.parametrize("name", ["elastic_training", "resume_with_orbax"])
def test_examples_of_resuming(name):
    """In short: two hosts are killed in mid-step and one resumes."""
    if name == "resume_with_orbax":
        pytest.importorskip("orbax.checkpoint")
    script = pathlib.Path(__file__).parents[2] / "examples" / f"{name}.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--steps", "6", "--rounds", "2:4,1:6"],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "batches equal bit for bit: True" in ran.stdout
