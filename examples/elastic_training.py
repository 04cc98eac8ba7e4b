"""Train on 4 hosts, lose them in mid-step, go on with 2, then 8: the same batches, bit for bit.

Hosts are processes of this machine, joined by `jax.distributed` over loopback. Each round trains a
small model on the global batches; the first round is killed with SIGKILL. Beside them one process
trains without interruption, and what all saw is compared by the digest of every global batch.

    python examples/elastic_training.py            # half a minute on two cores
    python examples/elastic_training.py --steps 12 --rounds 2:6,1:12    # shorter
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np

import zephon_jax as zx

LANES, ROWS, WIDTH, VOCABULARY, DEVICES = 8, 16, 32, 64, 8


def make_source():
    """Two corpora of documents of 5 to 40 tokens, made up from their numbers."""
    corpora = [
        zx.Dataset.from_source(name, [(seed, n) for n in range(4000)])
        for seed, name in enumerate(("web", "books"))
    ]
    return zx.StaticMixtureWorkSource(
        corpora, {"web": 3, "books": 1}, chunk_size=125, shuffle_block_size="auto",
        exhausted_policy="repeat",
    )  # fmt: skip


def document(element):
    """Tokens of a document: a walk that the model can learn to predict."""
    corpus, n = element["data"]
    length = 5 + (n * 7919 + corpus) % 36
    return {"tokens": ((np.arange(length) * (corpus + 2) + n) % VOCABULARY).astype(np.int32)}


def pipeline(lane):
    """Filters and packs: steps with a state of their own, which hosts may change under."""
    lane = lane.filter(lambda element: element["data"][1] % 10 != 0).map(document)
    return grain.experimental.ConcatThenSplitIterDataset(lane, length_struct={"tokens": WIDTH})


def loss_of(weights, tokens):
    """Next-token loss of a bigram model."""
    logits = weights[tokens[:, :-1]]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -chosen.mean()


@jax.jit
def train_step(weights, tokens):
    loss, gradient = jax.value_and_grad(loss_of)(weights, tokens)
    return weights - 30.0 * gradient, loss


def digest_of(batch):
    """Digest of a global batch: every host's rows, gathered."""
    from jax.experimental import multihost_utils

    rows = np.asarray(multihost_utils.process_allgather(batch, tiled=True))
    return hashlib.sha256(rows.tobytes()).hexdigest()[:12]


def join_hosts(plan):
    """Starts JAX on this host's share of the devices."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES // plan["hosts"])
    if plan["hosts"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{plan['port']}", plan["hosts"], plan["index"])


def make_shardings():
    """How batches lie on the devices, and how weights do."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    return [
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        for spec in (("data",), ())
    ]


def make_lanes(sharding):
    return zx.ElasticIterDataset.for_sharding(
        make_source(), LANES, pipeline, sharding, global_batch_size=ROWS, rows_per_sample=None
    )


def report(plan, step, batch, loss):
    said = {"step": step, "digest": digest_of(batch), "loss": float(loss)}
    if plan["index"] == 0:
        print(json.dumps(said), flush=True)


def host(plan):
    """One host: restores the last checkpoint if there is one, trains, saves every third step."""
    join_hosts(plan)
    sharding, everywhere = make_shardings()
    batches = zx.GlobalBatches(iter(make_lanes(sharding)), sharding)
    weights, step = np.zeros((VOCABULARY, VOCABULARY), np.float32), 0
    folder = pathlib.Path(plan["folder"])
    if list(folder.glob("data/*/manifest.json")):
        step = zx.restore_checkpoint(folder / "data", batches)
        weights = np.load(folder / f"weights-{step}.npy")
    weights = jax.make_array_from_callback(weights.shape, everywhere, weights.__getitem__)
    while step < plan["until"]:
        batch = next(batches)["tokens"]
        weights, loss = train_step(weights, batch)
        step += 1
        report(plan, step, batch, loss)
        if step % 3 == 0:
            if plan["index"] == 0:  # before the data: a checkpoint of the data implies the model's
                np.save(folder / f"weights-{step}.npy", np.asarray(weights))
            zx.save_checkpoint(folder / "data", batches, step, timeout=60)
    batches.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_round(script, folder, hosts, until, kill):
    """Runs hosts until a step; returns digest and loss by step. `kill` ends them in mid-step."""
    port, children = free_port(), []
    for index in range(hosts):
        plan = {"hosts": hosts, "index": index, "port": port, "folder": str(folder),
                "until": until + 100 if kill else until}  # fmt: skip
        children.append(
            subprocess.Popen(
                [sys.executable, script, "--host", json.dumps(plan)],
                stdout=subprocess.PIPE if index == 0 else subprocess.DEVNULL,
                stderr=open(folder / f"log-{hosts}-{index}.txt", "w"),  # noqa: SIM115
                text=True,
                env={k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS",)},
            )
        )
    seen = {}
    for line in children[0].stdout:
        if line.startswith("{"):
            said = json.loads(line)
            seen[said["step"]] = said["digest"], said["loss"]
            if kill and said["step"] >= until:
                time.sleep(0.02)
                for child in children:
                    child.send_signal(signal.SIGKILL)
                break
    codes = [child.wait() for child in children]
    if any(codes) and not kill:
        logs = [path.read_text()[-2000:] for path in sorted(folder.glob(f"log-{hosts}-*"))]
        raise SystemExit(f"hosts ended with {codes}:\n" + "\n".join(logs))
    return seen


def compare(script, alone, folder, steps, rounds):
    """Runs rounds of hosts, and one process alone; prints both and returns 0 where they agree."""
    expected = run_round(script, alone, 1, steps, kill=False)
    found, by = {}, {}
    for n, one in enumerate(rounds.split(",")):
        hosts, until = map(int, one.split(":"))
        seen = run_round(script, folder, hosts, until, kill=n == 0)
        for step, said in seen.items():
            if step in found and found[step][0] != said[0]:
                raise SystemExit(f"step {step} was another batch when it came again")
            found[step], by[step] = said, hosts
        end = "were killed" if n == 0 else "ended"
        print(f"{hosts} hosts went from step {min(seen)} to {max(seen)} and {end}")
    print("step  hosts  digest        loss      alone: digest  loss")
    for step in sorted(expected):
        (digest, loss), (other, alone_loss) = found[step], expected[step]
        print(f"{step:4d}  {by[step]:5d}  {digest}  {loss:.6f}         {other}  {alone_loss:.6f}")
    same = all(found[step][0] == expected[step][0] for step in expected)
    far = max(abs(found[step][1] - expected[step][1]) for step in expected)
    print(f"batches equal bit for bit: {same}; losses differ by at most {far:.1e}")
    return 0 if same and far < 1e-4 else 1


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=30)
    arguments.add_argument("--rounds", default="4:10,2:18,8:30", help="hosts:until, ...")
    arguments.add_argument("--host", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.host:
        return host(json.loads(given.host))
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as folder:
        return compare(
            __file__, pathlib.Path(alone), pathlib.Path(folder), given.steps, given.rounds
        )


if __name__ == "__main__":
    sys.exit(main())
