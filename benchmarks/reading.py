"""Reading speed, waiting and memory, side by side with other readers in one run.

    python benchmarks/reading.py [--rounds 5] [--quick] [--json FILE] [--only arrayrecord jsonl ...]

Contenders take turns, so that all meet the same machine; a ratio is the median of the ratios of
the rounds. Data is made in a temporary folder (about 2.5 GB) and removed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import grain
import numpy as np
from common import Table, clock, seconds
from corpora import write_array_record, write_jsonl, write_megatron, write_parquet
from mixtures import SHUFFLED
from remote import remote

import zephon_jax as zx


def race(contenders, rounds):
    """Records a second of each in each round.

    Args:
      contenders: Name -> (makes an iterable, records to take at most).
      rounds: Turns.
    """
    rates = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (make, limit) in contenders.items():
            elements = iter(make())
            if name.startswith(("lane", "map")):
                next(elements)  # Its start, with the index of the files, is measured elsewhere.
            begin = clock()
            taken = sum(1 for _ in itertools.islice(elements, limit))
            rates[name].append(taken / (clock() - begin))
    return rates


def ratios(rates, one, other):
    """One rate by the best of the others, in each round."""
    others = [other] if isinstance(other, str) else other
    best = [max(found) for found in zip(*(rates[name] for name in others), strict=True)]
    return [a / b for a, b in zip(rates[one], best, strict=True)]


def add_rates(table, rates, titles, unit):
    for name, title in titles.items():
        table.add(title, rates[name], unit)


def lane(datasets, weights, **knobs):
    source = zx.StaticMixtureWorkSource(datasets=datasets, mixture=weights, seed=1, **knobs)
    return zx.LaneIterDataset(source, 0, 1)


def read_all(paths):
    from array_record.python.array_record_module import ArrayRecordReader

    for path in paths:
        reader = ArrayRecordReader(path)
        yield from reader.read_all()
        reader.close()


def mixed(paths, threads):
    """Grain's own shuffle and mix over two datasets."""
    parts = [
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards)).shuffle(seed=1)
        for shards in paths
    ]
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 0)
    return grain.MapDataset.mix(parts, [0.5, 0.5]).to_iter_dataset(options)


def batches(dataset, size=4096):
    for start in range(0, len(dataset), size):
        yield from dataset.__getitems__(list(range(start, min(start + size, len(dataset)))))


def arrayrecord(folder, table, rounds, quick):
    per_shard = 5_000 if quick else 25_000
    rng = np.random.default_rng(0)
    paths = [[str(folder / f"{name}-{shard}.array_record") for shard in range(4)] for name in "ab"]
    for path in itertools.chain(*paths):
        write_array_record(path, (rng.bytes(4096) for _ in range(per_shard)))
    parts = [zx.Dataset.from_path(name, shards) for name, shards in zip("ab", paths, strict=True)]
    total, weights = 8 * per_shard, {"a": 1, "b": 1}
    source = zx.StaticMixtureWorkSource(datasets=parts, mixture=weights, seed=1, **SHUFFLED)
    by_index = zx.MixtureMapDataset(source)
    contenders = {"read_all": (lambda: read_all(itertools.chain(*paths)), total)}
    for threads in (0, 4, 16):
        contenders[f"grain {threads}"] = (lambda t=threads: mixed(paths, t), 10_000)
    contenders["lane"] = (lambda: lane(parts, weights, **SHUFFLED), total)
    contenders["map"] = (lambda: batches(by_index), total)
    rates = race(contenders, rounds)
    theirs = [name for name in rates if name.startswith("grain")]
    titles = {"read_all": "ArrayRecord: plain read_all"}
    titles |= {name: f"ArrayRecord: {name} threads, shuffle and mix" for name in theirs}
    titles |= {"lane": "ArrayRecord: LaneIterDataset", "map": "ArrayRecord: MixtureMapDataset"}
    add_rates(table, rates, titles, "records/s")
    for name in ("lane", "map"):
        table.add(f"{titles[name]} / best of Grain", ratios(rates, name, theirs), "x", least=4)
        table.add(f"{titles[name]} / read_all", ratios(rates, name, "read_all"), "x", least=0.7)


def zephon_records(folder, **knobs):
    """Records of Zephon's pipeline, decoded from JSON as ours are."""
    from zephon import Pipeline
    from zephon.io import Dataset
    from zephon.work import MixtureSpec, StaticMixtureWorkSource

    logging.disable(logging.WARNING)
    source = StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name, str(folder / name)) for name in ("short", "long")],
        mixture=MixtureSpec({"short": 0.8, "long": 0.2}),
        seed=1,
        **knobs,
    )
    return Pipeline(source).decode_text()


def decoded(folder, share=None):
    """Lines of both datasets in turn, a given share of them long; None for all as they are."""
    short, long = (
        itertools.chain.from_iterable(map(open, sorted((folder / name).iterdir())))
        for name in ("short", "long")
    )
    if share is None:
        yield from map(json.loads, itertools.chain(short, long))
        return
    for line in long:
        yield json.loads(line)
        yield from map(json.loads, itertools.islice(short, round(1 / share) - 1))


def jsonl(folder, table, rounds, quick):
    scale = 4 if quick else 1
    for name, count, size in (("short", 390_000, 215), ("long", 16_000, 6_500)):
        (folder / name).mkdir()
        for shard in range(4):
            write_jsonl(folder / name / f"{shard}.jsonl", count // scale // 4, size)
    datasets = [zx.Dataset.from_path(name, folder / name) for name in ("short", "long")]
    weights = {"short": 0.8, "long": 0.2}
    theirs = {"shuffle_within_shard": True, "shuffle_block_size": 8 * 97_500 // scale}
    contenders = {
        "loop": (lambda: decoded(folder), 406_000),
        "loop of the mixture": (lambda: decoded(folder, 0.2), 80_000),
        "zephon, default": (lambda: zephon_records(folder), 20_000 // scale),
        "lane, default": (lambda: lane(datasets, weights), 200_000 // scale),
        "zephon, within + block": (lambda: zephon_records(folder, **theirs), 3_000 // scale),
        "lane, within + block": (lambda: lane(datasets, weights, **SHUFFLED), 200_000 // scale),
    }
    rates = race(contenders, rounds)
    titles = {name: f"JSON Lines: {name}" for name in rates}
    titles["loop"] = "JSON Lines: bare json.loads over the files"
    titles["loop of the mixture"] = (
        "JSON Lines: the same with the mixture's share of long documents"
    )
    add_rates(table, rates, titles, "records/s")
    for kind, least in (("default", 8), ("within + block", 50)):
        one = f"lane, {kind}"
        table.add(
            f"{titles[one]} / Zephon", ratios(rates, one, f"zephon, {kind}"), "x", least=least
        )
        table.add(
            f"{titles[one]} / loop over the files", ratios(rates, one, "loop"), "x", least=0.4
        )
        same = ratios(rates, one, "loop of the mixture")
        table.add(f"{titles[one]} / loop over the same mixture (bytes too)", same, "x", least=0.4)


def parquet_rows(folder):
    """A plain scan of all rows in order."""
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()


def parquet(folder, table, rounds, quick):
    rows = 10_000 if quick else 50_000
    for shard in range(4):
        write_parquet(folder / f"{shard}.parquet", rows, lambda row: f"{row} " * 40, 10_000)
    dataset = zx.Dataset.from_path("rows", folder)

    contenders = {
        "scan": (lambda: parquet_rows(folder), 4 * rows),
        "lane": (lambda: lane([dataset], {"rows": 1}), 4 * rows),
    }
    rates = race(contenders, rounds)
    titles = {"scan": "Parquet: plain pyarrow scan", "lane": "Parquet: LaneIterDataset"}
    add_rates(table, rates, titles, "rows/s")
    table.add("Parquet: LaneIterDataset / scan", ratios(rates, "lane", "scan"), "x", least=0.6)


GROUPS = """
import itertools, json, math, sys
import numpy as np
import zephon_jax as zx
from zephon_jax.data.cache.decoded import decoded_blocks

folder, rows, groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def best(windows, room):  # Belady's rule with whole groups: what is used last goes.
    uses = [group for window in windows for group in sorted(set(window))]
    following, last = [0] * len(uses), {}
    for place in range(len(uses) - 1, -1, -1):
        following[place] = last.get(uses[place], math.inf)
        last[uses[place]] = place
    held, decoded = {}, 0
    for place, group in enumerate(uses):
        decoded += group not in held
        held[group] = following[place]
        if len(held) > room:
            del held[max(held, key=held.get)]
    return decoded

found = {}
for title, by, block in (("shards, blocks", "shards", "auto"), ("global", "files", "global")):
    dataset = zx.Dataset.from_path("rows", folder, row_groups=by)
    source = zx.StaticMixtureWorkSource([dataset], {"rows": 1}, chunk_size=512,
        shuffle_block_size=block, exhausted_policy="redistribute")
    windows, state = [], source.init()
    each = groups if by == "files" else 1
    while (step := source.next_chunk(state))[0] is not None:
        ids, state = step[0].order()[1], step[1]
        windows.append((ids[:, 1] * each + ids[:, 2] // rows).tolist())
    blocks = decoded_blocks()
    blocks.forget()
    blocks.bytes_decoded = blocks.num_decoded = 0
    num_bytes = sum(len(e["data"]["text"]) + 12 for e in zx.LaneIterDataset(source))
    ratio = blocks.bytes_decoded / num_bytes
    found[title] = ratio, blocks.num_decoded / best(windows, blocks.max_bytes // (rows * 2030))
print(json.dumps(found))
"""


def groups(folder, table, rounds, quick):
    """Rows of 2 KB in row groups of 10 and 40 MB, read in chunks of 512.

    Decoding is counted in a process that has room for blocks of 8 groups, or for 5 of all for a
    global shuffle; speed is that of groups as shards against a scan in order.
    """
    for size in (10, 40):
        rows, each = size * 500, 2 if quick else 5
        corpus = folder / str(size)
        corpus.mkdir()
        for shard in range(4):
            options = {"use_dictionary": False, "compression": "snappy"}
            text = np.random.default_rng(shard).bytes(rows * each * 1000).hex()

            def text_of(row, text=text):
                return text[2000 * row : 2000 * row + 2000]

            write_parquet(corpus / f"{shard}.parquet", rows * each, text_of, rows, **options)
        for title, room in (("shards, blocks", 9.5), ("global", 5.5)):
            budget = str(int(room * rows * 2030))
            command = [sys.executable, "-W", "ignore", "-c", GROUPS, str(corpus), str(rows)]
            output = subprocess.run(
                [*command, str(each)], capture_output=True, text=True, check=True,
                env={**os.environ, "ZEPHON_JAX_DECODED_BYTES": budget},
            ).stdout  # fmt: skip
            ratio, of_best = json.loads(output)[title]
            what = f"Parquet, groups of {size} MB, {title}"
            near = {"most": 2} if title != "global" else {}
            table.add(f"{what}: bytes decoded for each read", [ratio], "x", **near)
            table.add(f"{what}: groups decoded / ideal cache", [of_best], "x", most=1.2)
        by_group = zx.Dataset.from_path("rows", corpus, row_groups="shards")
        contenders = {
            "scan": (lambda corpus=corpus: parquet_rows(corpus), 4 * rows * each),
            "lane": (lambda d=by_group: lane([d], {"rows": 1}, chunk_size=512), 4 * rows * each),
        }
        rates = race(contenders, rounds)
        what = f"Parquet, groups of {size} MB as shards: LaneIterDataset / scan in order"
        table.add(what, ratios(rates, "lane", "scan"), "x", least=0.5)


def many(folder, table, rounds, quick):
    for shard in range(1000):
        write_array_record(folder / f"{shard}.array_record", [bytes(100)] * 20)

    def first_batch():
        dataset = zx.Dataset.from_path(f"many{time.time_ns()}", folder)
        elements = iter(lane([dataset], {dataset.name: 1}, **SHUFFLED))
        return list(itertools.islice(elements, 256))

    def open_files():
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if os.path.lexists(link)]
        return sum("array_record" in name for name in names)

    took = [seconds(first_batch) for _ in range(rounds)]
    table.add("1,000 files: first batch, first round", took[:1], "s", most=1)
    table.add("1,000 files: first batch", took, "s", most=1)
    table.add("1,000 files: files open", [open_files()], "files", most=128)


MEMORY = """
import re, sys
import orjson, pyarrow.parquet
from array_record.python import array_record_module
import zephon_jax as zx
from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.reader import default_reader

def peak():  # That of getrusage begins with the parent's.
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])

make_lane, make_source, before = zx.LaneIterDataset, zx.StaticMixtureWorkSource, peak()
dataset = zx.Dataset.from_path("corpus", sys.argv[1])
knobs = {} if dataset.format == "parquet" else {
    "shuffle_shards": True, "shuffle_within_shard": True, "shuffle_block_size": "auto"}
source = make_source([dataset], {"corpus": 1}, exhausted_policy="redistribute", **knobs)
count = sum(1 for _ in make_lane(source))
assert count == dataset.num_samples, count
kept = default_reader().window_bytes
if dataset.format == "parquet":
    kept += decoded_blocks().max_bytes
print(peak() - before, kept)
"""


def memory(folder, table, rounds, quick):
    """Growth of the peak while all of a corpus is read, each format in a process of its own.

    Shards are links to one file (Megatron: sparse files). Shuffled on all levels, but for Parquet,
    whose row groups would be decoded again and again.
    """
    rng = np.random.default_rng(0)
    links = 2 if quick else 16
    formats = ("array_record", "jsonl", "parquet", "megatron")
    for name in formats:
        corpus = folder / name
        corpus.mkdir()
        first = corpus / f"0.{name}"
        if name == "megatron":
            write_megatron(corpus, 5, 25_000 if quick else 250_000, 2048)
        else:
            if name == "array_record":
                write_array_record(first, (rng.bytes(8192) for _ in range(40_000)))
            elif name == "jsonl":
                write_jsonl(first, 160_000, 2_000)
            else:
                # As they are, so that a corpus of a size has that size in memory.
                options = {"compression": "NONE", "use_dictionary": False}
                write_parquet(first, 80_000, lambda row: f"{row:07d} " * 500, 4_000, **options)
            for link in range(1, links):
                os.link(first, corpus / f"{link}.{name}")
        total = sum(path.stat().st_size for path in corpus.iterdir()) / 1e9
        command = [sys.executable, "-c", MEMORY, str(corpus)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        grown, window = map(int, output.split())
        what = (
            f"Memory: {name}, {total:.1f} GB, peak beyond the {window / 1e6:.0f} MB that it keeps"
        )
        table.add(what, [(grown - window) / 1e6], "MB", most=150)


SECTIONS = {f.__name__: f for f in (arrayrecord, jsonl, parquet, groups, many, remote, memory)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round over little data")
    parser.add_argument("--only", nargs="*", choices=sorted(SECTIONS), default=list(SECTIONS))
    arguments = parser.parse_args(argv)
    table = Table()
    for section in arguments.only:
        with tempfile.TemporaryDirectory() as temporary:
            os.environ["ZEPHON_JAX_CACHE"] = os.path.join(temporary, ".cache")
            rounds = 1 if arguments.quick else arguments.rounds
            SECTIONS[section](pathlib.Path(temporary), table, rounds, arguments.quick)
    table.write(arguments.json)


if __name__ == "__main__":
    main()
