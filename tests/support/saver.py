"""Processes that save all the time until they are killed, forked off one that has imported JAX.

Started by test_checkpoint as `python saver.py`. A line of JSON on standard input, [kind, folder,
storage options], starts one; it says "ready PID", before each save "saving NEWEST FROM STEP" and
after it "saved STEP". "ended" follows when it is dead. Nothing is open and no backend is there when
it is forked, so each is as good as a process of its own, without the seconds that importing takes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys

import numpy as np

import zephon_jax as zx
from support.elastic_runs import hosts, readable, rows


def dataset_to_save():
    source = readable((4000, 2000), (3, 2), chunk_size=64, exhausted_policy="repeat")
    return hosts(source, 4, rows, 1)[0]


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def save_files(folder, options):
    iterator = iter(dataset_to_save())
    with contextlib.suppress(FileNotFoundError):
        zx.restore_checkpoint(folder, iterator, storage_options=options)
    say("ready", os.getpid())
    while True:
        next(iterator)
        step = iterator.get_state()["step"]
        say("saving", step - 1, step - 1, step)
        zx.save_checkpoint(folder, iterator, keep=3, storage_options=options)
        say("saved", step)


def save_and_go_back(folder, options):
    """Every fourth time goes back by two steps, and so abandons one or two checkpoints."""
    iterator, newest = iter(dataset_to_save()), 0
    with contextlib.suppress(FileNotFoundError):
        newest = zx.restore_checkpoint(folder, iterator, storage_options=options)
    say("ready", os.getpid())
    for turn in itertools.count():
        back = newest - 2 if turn % 4 == 3 and newest > 2 else newest
        if back < newest:
            zx.restore_checkpoint(folder, iterator, step=back, storage_options=options)
        next(iterator)
        say("saving", newest, back, back + 1)
        zx.save_checkpoint(folder, iterator, keep=4, storage_options=options)
        newest = back + 1
        say("saved", newest)


def save_with_orbax(folder, options):
    import orbax.checkpoint as ocp

    from zephon_jax.elastic.checkpoint.orbax import ElasticRestore, ElasticSave

    iterator = iter(dataset_to_save())
    keep = ocp.CheckpointManagerOptions(max_to_keep=3)
    with ocp.CheckpointManager(folder, options=keep) as manager:
        if manager.latest_step():
            place = ocp.args.Composite(data=ElasticRestore(iterator))
            manager.restore(manager.latest_step(), args=place)
        say("ready", os.getpid())
        while True:
            next(iterator)
            step = iterator.get_state()["step"]
            say("saving", step - 1, step - 1, step)
            model = ocp.args.StandardSave({"w": np.full(4, step)})
            manager.save(step, args=ocp.args.Composite(model=model, data=ElasticSave(iterator)))
            manager.wait_until_finished()
            say("saved", step)


SAVERS = {"files": save_files, "back": save_and_go_back, "orbax": save_with_orbax}


def main():
    logging.disable(logging.WARNING)
    for name in ("orbax.checkpoint", "zephon_jax.elastic.checkpoint.orbax", "s3fs"):
        with contextlib.suppress(ImportError):
            __import__(name)
    for line in sys.stdin:
        kind, folder, options = json.loads(line)
        child = os.fork()
        if not child:
            try:
                SAVERS[kind](folder, options)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        say("ended")


if __name__ == "__main__":
    main()
