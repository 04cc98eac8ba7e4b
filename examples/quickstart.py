"""Trains a small transformer on a mixture of real text, stops half-way and resumes exactly.

    pip install -e '.[examples]' && python examples/quickstart.py

The text is on every machine with Python: its own source code, its documentation, and the names of
Unicode's characters. `quickstart_corpus.py` writes it to ArrayRecord shards once. Here it is mixed
by weight over four lanes, and tokenized, packed and batched in Grain. The second half of the
training runs in a new process that knows nothing but what the first one saved; at the end the
script reads the whole run again without a stop and compares digests of the batches. No network; a
minute or two on two cores.
"""

import argparse
import base64
import functools
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from quickstart_corpus import write_corpus

import zephon_jax as zx

MIXTURE = {"code": 5, "docs": 3, "characters": 2}  # only the ratios matter
SEED = 0
NUM_LANES = 4  # in a large run: one or more for each host
ROWS_PER_LANE = 4  # in each batch
SEQUENCE_LENGTH = 128  # bytes of text in a row
WIDTH, NUM_LAYERS, NUM_HEADS = 128, 2, 4


# 1. The data: a source says which samples come when; Grain reads, packs and batches them.


def make_source(folder):
    """The mixture as a pure function: it says which samples come when, and reads none of them."""
    return zx.StaticMixtureWorkSource(
        datasets=[zx.Dataset.from_path(name, folder / name) for name in MIXTURE],
        mixture=MIXTURE,
        chunk_size=64 * NUM_LANES,
        seed=SEED,
        shuffle_within_shard=True,
        shuffle_block_size="auto",
        exhausted_policy="repeat",
    )


def tokenize(element):
    """Bytes are tokens. Each carries its component along, to count the mixture by bytes."""
    tokens = np.frombuffer(element["data"], dtype=np.uint8)
    return {"tokens": tokens, "component": np.full(len(tokens), element["component_id"])}


def open_lane(source, lane):
    """One lane's batches. Its Grain state is a few hundred bytes, whatever is read ahead."""
    reading = zx.MixtureReadConfig(mode="lattice")
    length = SEQUENCE_LENGTH + 1  # a row's targets are its tokens moved by one
    dataset = zx.LaneIterDataset(source, lane, NUM_LANES, reading).map(tokenize)
    dataset = grain.experimental.ConcatThenSplitIterDataset(
        dataset, length_struct={"tokens": length, "component": length}
    )
    return iter(dataset.batch(ROWS_PER_LANE))


def next_batch(lanes):
    """One global batch: rows of every lane."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *[next(lane) for lane in lanes])


def update_digest(digest, batch):
    for name in sorted(batch):
        digest.update(batch[name].tobytes())


# 2. The model: a causal transformer over bytes, in plain JAX.


def init_params(key):
    def normal(*shape):
        nonlocal key
        key, mine = jax.random.split(key)
        return jax.random.normal(mine, shape) * WIDTH**-0.5

    def init_layer():
        return {
            "qkv": normal(WIDTH, 3, NUM_HEADS, WIDTH // NUM_HEADS),
            "out": normal(NUM_HEADS, WIDTH // NUM_HEADS, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }

    return {
        "tokens": normal(256, WIDTH),
        "places": normal(SEQUENCE_LENGTH + 1, WIDTH),
        "layers": [init_layer() for _ in range(NUM_LAYERS)],
        "head": normal(WIDTH, 256),
    }


def normalize(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def loss_of(params, batch):
    """Mean loss in nats per byte. A passage sees, and is asked for, nothing but itself."""
    tokens, passage = batch["tokens"].astype(jnp.int32), batch["tokens_segment_ids"]
    x = params["tokens"][tokens[:, :-1]] + params["places"][batch["tokens_positions"][:, :-1]]
    same = passage[:, :-1, None] == passage[:, None, :-1]
    mask = (same & jnp.tril(jnp.ones(same.shape[1:], dtype=bool)))[:, None]
    for layer in params["layers"]:
        q, k, v = jnp.einsum("btd,dnhe->nbhte", normalize(x), layer["qkv"])
        scores = jnp.einsum("bhte,bhse->bhts", q, k) / np.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x += jnp.einsum("bhts,bhse,hed->btd", weights, v, layer["out"])
        x += jax.nn.gelu(normalize(x) @ layer["up"]) @ layer["down"]
    logits = normalize(x) @ params["head"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    asked = passage[:, 1:] == passage[:, :-1]
    return jnp.sum(losses * asked) / jnp.sum(asked)


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-3))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, moments, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    updates, moments = optimizer.update(gradients, moments)
    return optax.apply_updates(params, updates), moments, loss


# 3. The run: train, save, drop everything, resume in a new process.


def new_model():
    params = init_params(jax.random.key(SEED))
    return [params, optimizer.init(params)]


def train(lanes, model, seen, steps, num_steps):
    """Trains for a range of steps. Returns the model, bytes seen by component, the digest."""
    digest, losses = hashlib.sha256(), []
    for step in steps:
        batch = next_batch(lanes)
        update_digest(digest, batch)
        seen = seen + np.bincount(batch["component"].ravel(), minlength=len(MIXTURE))
        *model, loss = train_step(*model, batch)
        losses.append(loss)
        if step == 0 or (step + 1) % max(1, num_steps // 12) == 0 or step == steps[-1]:
            shares = zip(MIXTURE, 100 * seen / seen.sum(), strict=True)
            mixture = ", ".join(f"{name} {share:.1f}%" for name, share in shares)
            print(f"step {step + 1:4}  loss {np.mean(losses):.3f}  seen: {mixture}", flush=True)
            losses.clear()
    return model, seen, digest.hexdigest()


def save(folder, lanes, model, seen):
    """Saves the model and each lane's place: a few numbers around the source's encoded state."""
    places = json.dumps([lane.get_state() for lane in lanes])
    (folder / "places.json").write_text(places)
    np.savez(folder / "model.npz", *jax.tree.leaves(model), seen=seen)
    print(f"stopped; the places of {len(lanes)} lanes take {len(places)} bytes", flush=True)


def parse_places(text):
    """Places from JSON. Grain's packer compares parts of its state with tuples; JSON has lists."""

    def tuples(value):
        if isinstance(value, dict):
            return {name: tuples(part) for name, part in value.items()}
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return [tuples(place) for place in json.loads(text)]


def load(folder, source):
    """Restores what `save` saved, in a process that has nothing else."""
    lanes = [open_lane(source, lane) for lane in range(NUM_LANES)]
    places = parse_places((folder / "places.json").read_text())
    for lane, place in zip(lanes, places, strict=True):
        lane.set_state(place)
        # For show: within the packer's place is the stream's, and in it `zx.encode_state` bytes.
        inner = place["parent_state"]
        state = zx.decode_state(source, base64.b64decode(inner["state"]))
        chunk, _ = source.next_chunk(state)
        print(f"lane {inner['lane']} goes on in {chunk!r} at sample {inner['slot']}")
    leaves, structure = jax.tree.flatten(new_model())
    with np.load(folder / "model.npz") as saved:
        model = structure.unflatten([saved[f"arr_{i}"] for i in range(len(leaves))])
        return lanes, model, saved["seen"]


def first_half(source, num_steps, folder):
    lanes = [open_lane(source, lane) for lane in range(NUM_LANES)]
    seen = np.zeros(len(MIXTURE), dtype=np.int64)
    model, seen, _ = train(lanes, new_model(), seen, range(num_steps // 2), num_steps)
    save(folder, lanes, model, seen)


def second_half(source, num_steps, folder):
    lanes, model, seen = load(folder, source)
    *_, digest = train(lanes, model, seen, range(num_steps // 2, num_steps), num_steps)
    (folder / "digest").write_text(digest)


def uninterrupted_digest(source, num_steps):
    """The digest of the second half's batches where no one has stopped. Nothing is trained."""
    lanes = [open_lane(source, lane) for lane in range(NUM_LANES)]
    digest = hashlib.sha256()
    for step in range(num_steps):
        batch = next_batch(lanes)
        if step >= num_steps // 2:
            update_digest(digest, batch)
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=480, help="training steps, at least 2")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=Path("~/.cache/zephon_jax/quickstart"),
        help="where the shards are kept; delete it to have them written anew",
    )
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)  # used by the script itself
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps must be at least 2; got {args.steps}")
    # Another version of Python has another standard library.
    corpus = args.cache_dir.expanduser() / f"python-{platform.python_version()}"
    write_corpus(corpus)
    source = make_source(corpus)
    if args.resume:
        second_half(source, args.steps, args.resume)
        return
    print(source)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first_half(source, args.steps, folder)
        subprocess.run([sys.executable, *sys.argv, "--resume", name], check=True)
        resumed = (folder / "digest").read_text()
    uninterrupted = uninterrupted_digest(source, args.steps)
    print(f"digest of the batches after the stop: {resumed}")
    print(f"the same batches without a stop:      {uninterrupted}")
    print(f"resumed run equals uninterrupted run: {resumed == uninterrupted}")
    if resumed != uninterrupted:
        sys.exit(1)


if __name__ == "__main__":
    main()
