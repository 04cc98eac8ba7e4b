"""The data's place next to the model's state in Orbax: 4 hosts are killed, 2 resume, then 1.

The same run as in elastic_training.py, but Orbax's CheckpointManager saves both, in one step that
is there whole or not at all, and restores both at another number of hosts.

    pip install -e '.[orbax]' && python examples/resume_with_orbax.py    # half a minute
"""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import sys
import tempfile

import elastic_training
import jax
import numpy as np
import orbax.checkpoint as ocp

import zephon_jax as zx


def host(plan):
    """One host: restores the last checkpoint if there is one, trains, saves every third step."""
    logging.disable(logging.WARNING)
    elastic_training.join_hosts(plan)
    sharding, everywhere = elastic_training.make_shardings()
    lanes = elastic_training.make_lanes(sharding)
    batches = zx.GlobalBatches(iter(lanes), sharding)
    zeros = np.zeros((elastic_training.VOCABULARY,) * 2, np.float32)
    weights = jax.make_array_from_callback(zeros.shape, everywhere, lambda part: zeros[part])
    like = jax.ShapeDtypeStruct(weights.shape, weights.dtype, sharding=everywhere)
    with ocp.CheckpointManager(pathlib.Path(plan["folder"]) / "run") as manager:
        step = manager.latest_step() or 0
        if step:
            restored = manager.restore(step, args=ocp.args.Composite(
                model=ocp.args.StandardRestore({"weights": like}),
                data=zx.orbax.ElasticRestore(batches),
            ))  # fmt: skip
            weights = restored["model"]["weights"]
        while step < plan["until"]:
            batch = next(batches)["tokens"]
            weights, loss = elastic_training.train_step(weights, batch)
            step += 1
            elastic_training.report(plan, step, batch, loss)
            if step % 3 == 0:
                manager.save(step, args=ocp.args.Composite(
                    model=ocp.args.StandardSave({"weights": weights}),
                    data=zx.orbax.ElasticSave(batches),
                ))  # fmt: skip
                manager.wait_until_finished()
    batches.close()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=15)
    arguments.add_argument("--rounds", default="4:7,2:11,1:15", help="hosts:until, ...")
    arguments.add_argument("--host", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.host:
        return host(json.loads(given.host))
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as folder:
        return elastic_training.compare(
            __file__, pathlib.Path(alone), pathlib.Path(folder), given.steps, given.rounds
        )


if __name__ == "__main__":
    sys.exit(main())
