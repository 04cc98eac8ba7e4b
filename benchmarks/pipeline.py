"""Whole pipelines, from records to batches, beside plain Grain; and what a packed row costs.

    python benchmarks/pipeline.py [--rounds 3] [--quick] [--json FILE]

"text": ArrayRecord texts of about 1.2 KB, byte tokens, packed to 1,024, batches of 32, 8 lanes.
"bpe": the same through a BPE of 32,000 that is trained on the corpus. "images": PNGs, decoded,
cropped and batched. Each pipeline goes through its whole corpus once and is timed from its first
batch on; the totals of tokens (pixels) must be those of the corpus. Grain has the better of its
default threads and none, its own first fit, and `mp_prefetch` where there are workers. Lanes
without workers have the better of one thread and two.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable

import absl.flags
import grain
import numpy as np
from common import Measured, Table, run
from corpora import write_array_record

import zephon_jax as zx

FOLDER = "BENCHMARK_PIPELINE_FOLDER"  # where the corpora are
LENGTH, BATCH, LANES, VOCABULARY = 1024, 32, 8, 32_000
WORKERS = (0, 1, 2, 4)
SHARDS = 8
LENGTHS = {
    "1 to 400": lambda rng, n: rng.integers(1, 400, n),
    "200 to 1,023": lambda rng, n: rng.integers(200, 1024, n),
    "lognormal, median 245": lambda rng, n: np.clip(rng.lognormal(5.5, 1.2, n), 1, 5000),
}


def make_corpora(folder: pathlib.Path, quick: bool) -> None:
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"eeettaaooiinnsshhrrddlluuccmmffwwyyggppbbvvk", np.uint8)
    words = [bytes(rng.choice(letters, n)) for n in rng.integers(2, 11, 40_000)]
    texts = [
        b" ".join(words[w] for w in np.minimum(rng.zipf(1.2, n), len(words)) - 1)
        for n in rng.integers(80, 320, 2_000 if quick else 24_000)
    ]
    for kind, records in (("text", texts), ("images", make_images(rng, 400 if quick else 4_000))):
        (folder / kind).mkdir()
        for shard in range(SHARDS):
            write_array_record(folder / kind / f"{shard}.array_record", records[shard::SHARDS])
    make_tokenizer(folder, texts)


def make_images(rng, number: int) -> list[bytes]:
    from PIL import Image

    found = []
    for _ in range(number):
        small = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        data = io.BytesIO()
        Image.fromarray(small).resize((160, 160), Image.Resampling.BILINEAR).save(data, "PNG")
        found.append(data.getvalue())
    return found


def make_tokenizer(folder: pathlib.Path, texts: list[bytes]) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator((text.decode() for text in texts[:8_000]), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


@functools.cache
def bpe():
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(corpus("tokenizer.json")))


def corpus(kind: str) -> pathlib.Path:
    return pathlib.Path(os.environ[FOLDER]) / kind


def image_of(record: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(record)))


def cropped(image: np.ndarray, rng) -> np.ndarray:
    y, x = rng.integers(0, 33, 2)
    return image[y : y + 128, x : x + 128]


# ours


def our_pipeline(kind: str, lane):
    if kind == "images":
        lane = lane.map(lambda e: {**e, "image": image_of(e["data"])})
        return lane.random_map(lambda e, rng: {"image": cropped(e["image"], rng)})
    tokenizer = bpe() if kind == "bpe" else lambda text: np.frombuffer(text, np.uint8)
    return zx.pack(zx.tokenize(lane, tokenizer), LENGTH)


def ours(kind: str, workers: int, threads: int):
    data = zx.Dataset.from_path("a", corpus("images" if kind == "images" else "text"))
    size = min(512, sum(data.shard_counts) // (4 * LANES))
    source = zx.StaticMixtureWorkSource(
        [data], {"a": 1}, chunk_size=size, exhausted_policy="redistribute"
    )
    return zx.ElasticIterDataset(
        source, LANES, functools.partial(our_pipeline, kind), process_index=0, process_count=1,
        global_batch_size=BATCH, rows_per_sample=1 if kind == "images" else None, pad=True,
        num_workers=workers, num_threads=threads,
    )  # fmt: skip


# Grain's


class Pieces(grain.experimental.FlatMapTransform):
    """Pairs of a document, cut where it is longer than a row."""

    max_fan_out = 64

    def flat_map(self, element):
        return [
            {"inputs": element[at : at + LENGTH + 1][:-1], "targets": element[at + 1 :][:LENGTH]}
            for at in range(0, len(element) - 1, LENGTH)
        ]


def grain_tokens(kind: str, record: bytes) -> np.ndarray:
    if kind == "text":
        return np.frombuffer(record, np.uint8).astype(np.int32)
    return np.asarray(bpe().encode(record.decode()).ids, dtype=np.int32)


def plain_grain(kind: str, workers: int, threads: int):
    folder = corpus("images" if kind == "images" else "text")
    records = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("*"))))
    dataset = grain.MapDataset.source(records).shuffle(seed=0).seed(0)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 1)
    if kind == "images":
        dataset = dataset.map(image_of).random_map(lambda i, rng: {"image": cropped(i, rng)})
        rows = dataset.to_iter_dataset(options)
    else:
        documents = dataset.map(functools.partial(grain_tokens, kind)).to_iter_dataset(options)
        pieces = grain.experimental.FlatMapIterDataset(documents, Pieces())
        rows = grain.experimental.FirstFitPackIterDataset(
            pieces, length_struct={"inputs": LENGTH, "targets": LENGTH}, num_packing_bins=16,
            shuffle_bins=False,
        )  # fmt: skip
    rows = rows.batch(BATCH)
    return rows.mp_prefetch(grain.MultiprocessingOptions(workers)) if workers else rows


def counted(batch) -> tuple[int, int]:
    """Rows and tokens, or images and pixels, of a batch."""
    if "image" in batch:
        real = batch.get("row_mask", np.ones(len(batch["image"]), bool))
        return int(real.sum()), int(batch["image"][real].size)
    real = batch["targets_segmentation" if "row_mask" in batch else "targets_segment_ids"] > 0
    return int(real.any(axis=1).sum()), int(real.sum())


def busy() -> float:
    """Processor seconds of this process and of those it has ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def measured(dataset) -> dict[str, float]:
    before, iterator = busy(), iter(dataset)
    rows = tokens = 0
    first = counted(next(iterator))
    begin = time.perf_counter()
    for batch in iterator:
        more = counted(batch)
        rows, tokens = rows + more[0], tokens + more[1]
    took = time.perf_counter() - begin
    iterator.close()
    total = tokens + first[1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = (busy() - before) / total * 1e6
    return {"rate": rows / took, "tokens": total, "cpu": cpu, "memory": memory}


def our_peer(quick, *, kind, workers):
    del quick
    found = [measured(ours(kind, workers, threads)) for threads in ((1,) if workers else (1, 2))]
    return max(found, key=lambda figures: figures["rate"])


def grain_peer(quick, *, kind, workers):
    del quick
    absl.flags.FLAGS.mark_as_parsed()  # Grain's worker processes read flags
    found = [measured(plain_grain(kind, workers, threads)) for threads in (0, 16)]
    return max(found, key=lambda figures: figures["rate"])


# a packed row


class InMemory(grain.IterDataset):
    """Documents whose reading costs next to nothing."""

    def __init__(self, documents):
        super().__init__()
        self.documents = documents

    def __iter__(self):
        return InMemoryIterator(self.documents)


class InMemoryIterator(grain.DatasetIterator):
    def __init__(self, documents):
        super().__init__()
        self.documents, self.index = documents, 0

    def __next__(self):
        if self.index == len(self.documents):
            raise StopIteration
        self.index += 1
        return self.documents[self.index - 1]

    def get_state(self):
        return {"index": self.index}

    def set_state(self, state):
        self.index = state["index"]


def row_cost(dataset, documents) -> float:
    """Microseconds of the processor for a row, beyond going through the documents; best of 5."""
    found = []
    for _ in range(5):
        begin = time.process_time()
        for _ in documents:
            pass
        middle = time.process_time()
        rows = sum(1 for _ in dataset)
        found.append(((time.process_time() - middle) - (middle - begin)) / rows * 1e6)
    return min(found)


def as_pairs(document):
    ids = document["tokens"].astype(np.int32)
    of = np.full(len(ids) - 1, document["component_id"], np.int32)
    return {"inputs": ids[:-1], "targets": ids[1:], "component_ids": of}


def packing(quick):
    rng = np.random.default_rng(0)
    documents = [
        {"tokens": rng.integers(0, 256, n).astype(np.uint8), "component_id": 0}
        for n in rng.integers(400, LENGTH + 1, 600 if quick else 4000)
    ]
    parent = InMemory(documents)
    found = {
        method: row_cost(zx.pack(parent, LENGTH, method=method), parent)
        for method in ("first_fit", "best_fit", "concat_then_split")
    }
    pairs = parent.map(as_pairs)
    lengths = dict.fromkeys(("inputs", "targets", "component_ids"), LENGTH)
    theirs = grain.experimental.FirstFitPackIterDataset(
        pairs, length_struct=lengths, num_packing_bins=16, shuffle_bins=False
    )
    found["Grain's first fit"] = row_cost(theirs, pairs)
    for name, draw in LENGTHS.items():
        docs = [
            {"tokens": np.zeros(n + 1, np.uint8), "component_id": 0}
            for n in draw(rng, 3000).astype(int).tolist()
        ]
        for method in ("first_fit", "best_fit"):
            rows = list(zx.pack(InMemory(docs), LENGTH, method=method))[:-16]
            filled = np.mean([np.mean(row["inputs_segmentation"] > 0) for row in rows])
            found[f"padding, {name}, {method}"] = 100 * (1 - float(filled))
    return found


KINDS = ("text", "bpe", "images")
GOALS = {("text", 0): 3.0, ("text", 2): 2.0, ("bpe", 0): 1.5, ("bpe", 2): 1.5}
PEERS: dict[str, Callable[[bool], dict[str, float]]] = {"packing": packing}
for _kind in KINDS:
    for _workers in WORKERS:
        _name = f"{_kind}, {_workers} workers"
        PEERS[f"ours, {_name}"] = functools.partial(our_peer, kind=_kind, workers=_workers)
        PEERS[f"Grain, {_name}"] = functools.partial(grain_peer, kind=_kind, workers=_workers)


def report(table: Table, found: Measured) -> None:
    for method in ("first_fit", "best_fit", "concat_then_split"):
        table.add(f"a packed row, {method}", found.of("packing", method), "us", most=15)
    table.add("a packed row, Grain's first fit", found.of("packing", "Grain's first fit"), "us")
    for name in LENGTHS:
        for method in ("first_fit", "best_fit"):
            key = f"padding, {name}, {method}"
            table.add(key, found.of("packing", key), "%")
    for kind in KINDS:
        for workers in WORKERS:
            name = f"{kind}, {workers} workers"
            pair = f"ours, {name}", f"Grain, {name}"
            for peer in pair:
                table.add(peer, found.of(peer, "rate"), "rows/s")
                table.add(f"{peer}: processor time", found.of(peer, "cpu"), "s/M tokens")
            totals = {total for peer in pair for total in found.of(peer, "tokens")}
            if len(totals) > 1:
                raise RuntimeError(f"{name}: the pipelines gave {totals} tokens")
            ratios = found.ratios(pair[0], pair[1], "rate")
            table.add(f"{name}: ours over Grain", ratios, "x", least=GOALS.get((kind, workers)))


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    if "--peer" in given:
        run(given, __doc__ or "", __file__, PEERS, report)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_corpora(pathlib.Path(folder), "--quick" in given)
        os.environ[FOLDER] = folder
        run(given, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main()
