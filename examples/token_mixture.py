"""Mixes three kinds of text by tokens, and shows what happens when documents are counted instead.

    pip install -e '.[examples]' && python examples/token_mixture.py

A comment of Python's library has ten tokens, a chapter of its language reference a thousand, a
module of NumPy's source five thousand. All three are on this machine; nothing is downloaded, and
the tokenizer is a real one whose vocabulary comes in a package. With weights of a third each, a
mixture of documents gives nearly all of the tokens to the modules. With `token_estimation` the
weights are shares of tokens: the source is primed with a few documents of each kind, and what
comes out of the packer holds about a third of each.
"""

import argparse
import functools
import io
import json
import sys
import sysconfig
import tokenize
from pathlib import Path

import bpe_openai
import numpy as np
from texts import module_texts, reference_texts, whole

import zephon_jax as zx

WEIGHTS = {"comments": 1, "manual": 1, "modules": 1}  # a third each
NUM_SHARDS = 4
ROWS, LENGTH = 16, 512  # of a batch


# 1. The corpus: real text, written once as JSON Lines.


def comments():
    """The comments of the standard library that say something."""
    for text in module_texts(sysconfig.get_path("stdlib")):
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                comment = token.string.strip("#:! \t")
                if token.type == tokenize.COMMENT and " " in comment:
                    yield comment
        except (SyntaxError, tokenize.TokenError):
            continue  # files that are not meant to be read


def modules():
    """NumPy's source files."""
    yield from (text for text in module_texts(Path(np.__file__).parent) if text.strip())


TEXTS = {"comments": comments, "manual": reference_texts, "modules": modules}


def write_corpus(folder):
    """Writes the datasets into a folder that appears when it is whole, or finds it there."""
    if folder.exists():
        return
    with whole(folder) as unfinished:
        for name, texts in TEXTS.items():
            (unfinished / name).mkdir()
            lines = [json.dumps({"text": text}) + "\n" for text in texts()]
            for shard in range(NUM_SHARDS):
                part = lines[
                    shard * len(lines) // NUM_SHARDS : (shard + 1) * len(lines) // NUM_SHARDS
                ]
                (unfinished / name / f"{shard}.jsonl").write_text("".join(part), "utf-8")


# 2. Two sources that differ in one setting.


@functools.cache
def encoding():
    return bpe_openai.get_encoding("o200k_base")


def token_ids(text):
    return encoding().encode_ordinary(text)


def make_source(folder, token_estimation=None):
    return zx.StaticMixtureWorkSource(
        datasets=[zx.Dataset.from_path(name, folder / name) for name in WEIGHTS],
        mixture=WEIGHTS,
        chunk_size=1024,
        seed=0,
        shuffle_within_shard=True,
        shuffle_block_size="auto",
        exhausted_policy="repeat",
        token_estimation=token_estimation,
    )


# 3. What comes out, batch by batch.


def run(source, num_steps):
    """Reads batches of packed rows.

    Returns the documents and tokens seen up to each step, by component: (steps, components) each.
    """
    documents = np.zeros(len(WEIGHTS), dtype=np.int64)

    def tokenized(element):
        documents[element["component_id"]] += 1
        # The end of a text is a token too, that follows from its last one.
        ids = [*token_ids(element["data"]["text"]), encoding().eot_token]
        return {"tokens": ids, "component_id": element["component_id"]}

    lane = zx.LaneIterDataset(source, read_config=zx.MixtureReadConfig(mode="lattice"))
    batches = iter(zx.pack(lane.map(tokenized), LENGTH, num_bins=ROWS).batch(ROWS))
    seen = []
    for _ in range(num_steps):
        tokens = zx.component_tokens(next(batches), len(WEIGHTS))
        seen.append((documents.copy(), tokens))
    of_documents, of_tokens = (
        np.asarray(column, dtype=np.int64) for column in zip(*seen, strict=True)
    )
    return of_documents, np.cumsum(of_tokens, axis=0)


def shares(counts):
    return counts / counts.sum(axis=-1, keepdims=True)


def report(title, documents, tokens):
    """Prints the shares at some of the steps."""
    print(f"\n{title}")
    print(f"{'':>9}" + "".join(f"{name:>22}" for name in WEIGHTS))
    print(f"{'step':>9}" + f"{'documents    tokens':>22}" * len(WEIGHTS))
    steps = sorted({*range(0, len(tokens), max(1, len(tokens) // 8)), len(tokens) - 1})
    for step in steps:
        pairs = zip(shares(documents[step]), shares(tokens[step]), strict=True)
        print(f"{step + 1:>9}" + "".join(f"{d:>12.1%}{t:>10.1%}" for d, t in pairs))


def draw(path, results):
    """Draws the shares against the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, (title, counts) in zip(axes, results.items(), strict=True):
        for axis, kind, seen in zip(row, ("documents", "tokens"), counts, strict=True):
            for d, name in enumerate(WEIGHTS):
                axis.plot(range(1, len(seen) + 1), shares(seen)[:, d], label=name)
            axis.axhline(1 / 3, color="gray", linewidth=0.8, linestyle=":")
            axis.set_title(f"{title}: share of {kind}", fontsize=10)
            axis.set_ylim(0, 1)
    for axis in axes[-1]:
        axis.set_xlabel("steps")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="batches, at least 1")
    parser.add_argument("--picture", type=Path, default=Path("token_mixture.png"))
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=Path("~/.cache/zephon_jax/token_mixture"),
        help="where the shards are kept; delete it to have them written anew",
    )
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps must be at least 1; got {args.steps}")
    version = f"python-{sys.version_info[0]}.{sys.version_info[1]}-numpy-{np.__version__}"
    corpus = args.cache_dir.expanduser() / version
    write_corpus(corpus)

    by_documents = make_source(corpus)
    estimation = zx.TokenEstimation(token_ids, field="text", samples_per_dataset=256)
    by_tokens = make_source(corpus, estimation).prime()
    assert by_tokens.token_estimation is not None
    print(by_tokens.token_estimation.table())

    results = {}
    for title, source in (("weights of documents", by_documents), ("weights of tokens", by_tokens)):
        results[title] = run(source, args.steps)
        report(title, *results[title])
    off = {
        title: np.abs(shares(tokens[-1]) - 1 / 3).max() for title, (_, tokens) in results.items()
    }
    print()
    for title, distance in off.items():
        print(f"{title}: tokens are up to {distance:.1%} of all away from a third")
    draw(args.picture, results)
    print(f"the picture is {args.picture}")


if __name__ == "__main__":
    main()
