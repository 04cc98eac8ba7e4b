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
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from typing import NamedTuple

import grain
import numpy as np

import zephon_jax as zx

HERE = pathlib.Path(__file__).parent
SHUFFLED = {"shuffle_shards": True, "shuffle_within_shard": True, "shuffle_block_size": "auto"}


class Row(NamedTuple):
    """One measured line."""

    what: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None


class Table:
    """Prints lines as they are measured, in Markdown."""

    def __init__(self):
        self.rows = []
        print("| what | value | unit | goal | met |\n|---|---|---|---|---|", flush=True)

    def add(self, what, value, unit, *, least=None, most=None):
        goal = f">= {least}" if least is not None else f"<= {most}" if most is not None else ""
        met = None
        if goal:
            met = bool(value >= least) if least is not None else bool(value <= most)
        self.rows.append(Row(what, float(value), unit, goal, met))
        number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
        told = {None: "", True: "yes", False: "NO"}[met]
        print(f"| {what} | {number} | {unit} | {goal} | {told} |", flush=True)


def timed(call):
    """Seconds of a call, and what it returned."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


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
            seconds, taken = timed(
                lambda e=elements, n=limit: sum(1 for _ in itertools.islice(e, n))
            )
            rates[name].append(taken / seconds)
    return rates


def ratio(rates, one, other):
    """Median over the rounds of one rate by the best of the others."""
    others = [other] if isinstance(other, str) else other
    best = [max(found) for found in zip(*(rates[name] for name in others), strict=True)]
    return statistics.median(a / b for a, b in zip(rates[one], best, strict=True))


def add_rates(table, rates, titles, unit):
    for name, title in titles.items():
        table.add(title, statistics.median(rates[name]), unit)


def lane(datasets, weights, **knobs):
    source = zx.StaticMixtureWorkSource(datasets=datasets, mixture=weights, seed=1, **knobs)
    return zx.LaneIterDataset(source, 0, 1)


def write_array_record(path, records):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_jsonl(path, count, size):
    words = "lorem ipsum dolor sit amet consectetur "
    text = (words * (size // len(words) + 1))[:size]
    with open(path, "w") as file:
        for index in range(count):
            file.write(json.dumps({"id": index, "text": text}) + "\n")


def write_parquet(path, rows, text, group, **options):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": range(rows), "text": [text(row) for row in range(rows)]})
    pq.write_table(table, path, row_group_size=group, **options)


def write_megatron(folder, shards, per_shard, tokens):
    """Sparse shards: token ids are zeros that take no room."""
    for shard in range(shards):
        lengths = np.full(per_shard, tokens, "<i4")
        pointers = np.arange(per_shard, dtype="<i8") * tokens * 2
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, per_shard, 1)
        (folder / f"{shard}.idx").write_bytes(
            head + lengths.tobytes() + pointers.tobytes() + bytes(8)
        )
        with open(folder / f"{shard}.bin", "wb") as file:
            file.truncate(per_shard * tokens * 2)


def arrayrecord(folder, table, rounds, quick):
    from array_record.python.array_record_module import ArrayRecordReader

    per_shard = 5_000 if quick else 25_000
    rng = np.random.default_rng(0)
    paths = {name: [] for name in "ab"}
    for name, shard in itertools.product("ab", range(4)):
        path = folder / f"{name}-{shard}.array_record"
        write_array_record(path, (rng.bytes(4096) for _ in range(per_shard)))
        paths[name].append(str(path))
    datasets = [zx.Dataset.from_path(name, paths[name]) for name in "ab"]

    def read_all():
        for path in paths["a"] + paths["b"]:
            reader = ArrayRecordReader(path)
            yield from reader.read_all()
            reader.close()

    def mixed(threads):
        parts = [
            grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths[name])).shuffle(
                seed=1
            )
            for name in "ab"
        ]
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500 if threads else 0)
        return grain.MapDataset.mix(parts, [0.5, 0.5]).to_iter_dataset(options)

    weights = {"a": 1, "b": 1}
    source = zx.StaticMixtureWorkSource(datasets=datasets, mixture=weights, seed=1, **SHUFFLED)
    by_index = zx.MixtureMapDataset(source)

    def batches():
        for start in range(0, len(by_index), 4096):
            yield from by_index.__getitems__(list(range(start, min(start + 4096, len(by_index)))))

    total = 8 * per_shard
    contenders = {"read_all": (read_all, total)}
    for threads in (0, 4, 16):
        contenders[f"grain {threads}"] = (lambda t=threads: mixed(t), 10_000)
    contenders["lane"] = (lambda: lane(datasets, weights, **SHUFFLED), total)
    contenders["map"] = (batches, total)
    rates = race(contenders, rounds)
    theirs = [name for name in rates if name.startswith("grain")]
    titles = {"read_all": "ArrayRecord: plain read_all"}
    titles |= {name: f"ArrayRecord: {name} threads, shuffle and mix" for name in theirs}
    titles |= {"lane": "ArrayRecord: LaneIterDataset", "map": "ArrayRecord: MixtureMapDataset"}
    add_rates(table, rates, titles, "records/s")
    for name in ("lane", "map"):
        table.add(f"{titles[name]} / best of Grain", ratio(rates, name, theirs), "x", least=4)
        table.add(f"{titles[name]} / read_all", ratio(rates, name, "read_all"), "x", least=0.7)


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


def jsonl(folder, table, rounds, quick):
    scale = 4 if quick else 1
    for name, count, size in (("short", 390_000, 215), ("long", 16_000, 6_500)):
        (folder / name).mkdir()
        for shard in range(4):
            write_jsonl(folder / name / f"{shard}.jsonl", count // scale // 4, size)
    datasets = [zx.Dataset.from_path(name, folder / name) for name in ("short", "long")]
    weights = {"short": 0.8, "long": 0.2}

    def loop(share):
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

    theirs = {"shuffle_within_shard": True, "shuffle_block_size": 8 * 97_500 // scale}
    contenders = {
        "loop": (lambda: loop(None), 406_000),
        "loop of the mixture": (lambda: loop(0.2), 80_000),
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
        table.add(f"{titles[one]} / Zephon", ratio(rates, one, f"zephon, {kind}"), "x", least=least)
        table.add(f"{titles[one]} / loop over the files", ratio(rates, one, "loop"), "x", least=0.4)
        same = ratio(rates, one, "loop of the mixture")
        table.add(f"{titles[one]} / loop over the same mixture (bytes too)", same, "x", least=0.4)


def parquet(folder, table, rounds, quick):
    import pyarrow.parquet as pq

    rows = 10_000 if quick else 50_000
    for shard in range(4):
        write_parquet(folder / f"{shard}.parquet", rows, lambda row: f"{row} " * 40, 10_000)
    dataset = zx.Dataset.from_path("rows", folder)

    def scan():
        for path in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches():
                yield from batch.to_pylist()

    contenders = {
        "scan": (scan, 4 * rows),
        "lane": (lambda: lane([dataset], {"rows": 1}), 4 * rows),
    }
    rates = race(contenders, rounds)
    titles = {"scan": "Parquet: plain pyarrow scan", "lane": "Parquet: LaneIterDataset"}
    add_rates(table, rates, titles, "rows/s")
    table.add("Parquet: LaneIterDataset / scan", ratio(rates, "lane", "scan"), "x", least=0.6)


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

    seconds = [timed(first_batch)[0] for _ in range(rounds)]
    table.add("1,000 files: first batch, first round", seconds[0], "s", most=1)
    table.add("1,000 files: first batch, median", statistics.median(seconds), "s", most=1)
    table.add("1,000 files: files open", open_files(), "files", most=128)


class Watch(threading.Thread):
    """Keeps the largest value of a measure that it saw."""

    def __init__(self, measure):
        super().__init__(daemon=True)
        self.measure, self.most, self.going = measure, 0, True
        self.start()

    def run(self):
        while self.going:
            self.most = max(self.most, self.measure())
            time.sleep(0.05)

    def stop(self):
        self.going = False
        self.join()
        return self.most


def remote(folder, table, rounds, quick):
    import fsspec

    # The server stands for another machine, so it gets what the reader leaves of this one.
    command = ["nice", "-n", "15", sys.executable, str(HERE.parent / "tests" / "s3_server.py")]
    command += ["--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            options = {
                "key": "k",
                "secret": "s",
                "client_kwargs": {"endpoint_url": url},
                "use_listings_cache": False,
            }
            fs = fsspec.filesystem("s3", **options)
            _remote(folder, table, 1 if quick else min(rounds, 3), fs, options, url)
        finally:
            server.kill()


def _remote(folder, table, rounds, fs, options, url):
    from zephon_jax.staging import default_stager

    shards, per_shard, size = 12, 4096, 4096
    fs.mkdir("bucket")
    rng = np.random.default_rng(0)
    for shard in range(shards):
        path = folder / f"{shard}.array_record"
        write_array_record(path, (rng.bytes(size) for _ in range(per_shard)))
        fs.put_file(str(path), f"bucket/data/{shard}.array_record")
    shard_bytes = path.stat().st_size
    budget = 6 * shard_bytes
    counts = [per_shard] * shards

    def fetched():
        with urllib.request.urlopen(url + "/__stats__") as answer:
            return json.load(answer)[1]

    def download():
        for shard in range(shards):
            fs.cat_file(f"bucket/data/{shard}.array_record")

    def consume(number, pace=None):
        """Reads everything from a cold cache; returns seconds, share of waiting, bytes, peak."""
        os.environ["ZEPHON_JAX_CACHE"] = str(folder / f"cache{number}")
        os.environ["ZEPHON_JAX_CACHE_BYTES"] = str(budget)
        before = fetched()
        dataset = zx.Dataset.from_path(
            "far", "s3://bucket/data", storage_options=options, counts=counts
        )
        watch = Watch(default_stager().cache.num_bytes)
        elements = iter(lane([dataset], {"far": 1}, chunk_size=2048))
        start, waited = time.perf_counter(), 0.0
        warm = due = start
        for number in range(shards * per_shard):
            asked = time.perf_counter()
            next(elements)
            if pace:
                now = time.perf_counter()
                if number < 2 * per_shard:
                    warm = now
                elif now - asked > 1e-3:  # Less is work on the element, not waiting for data.
                    waited += now - asked
                due = max(due, now) + size / pace  # Works on it before it asks for more.
                if due - now > 0.01:
                    time.sleep(due - now)
        end = time.perf_counter()
        share = waited / (end - warm) if pace else 0.0
        return end - start, share, fetched() - before, watch.stop()

    total = shards * shard_bytes
    whole, runs = [], []
    for number in range(rounds):
        whole.append(total / 1e6 / timed(download)[0])
        runs.append(consume(number))
    rates = [total / 1e6 / run[0] for run in runs]
    table.add("Remote, 50 ms a request: whole-object download", statistics.median(whole), "MB/s")
    table.add("Remote: LaneIterDataset, unpaced", statistics.median(rates), "MB/s")
    share = statistics.median(a / b for a, b in zip(rates, whole, strict=True))
    table.add("Remote: LaneIterDataset / download", share, "x", least=0.8)
    table.add("Remote: bytes fetched / bytes", max(run[2] for run in runs) / total, "x", most=1.05)
    over = (max(run[3] for run in runs) - budget) / shard_bytes
    table.add("Remote: cache over its budget", over, "shards", most=1)
    paced = statistics.median(consume(f"paced{n}", 20e6)[1] for n in range(rounds))
    table.add("Remote: waiting at 20 MB/s once warm", 100 * paced, "%", most=1)


MEMORY = """
import re, sys
import orjson, pyarrow.parquet
from array_record.python import array_record_module
import zephon_jax as zx
from zephon_jax.reader import default_reader

def peak():  # That of getrusage begins with the parent's.
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])

make_lane, make_source, before = zx.LaneIterDataset, zx.StaticMixtureWorkSource, peak()
dataset = zx.Dataset.from_path("corpus", sys.argv[1])
knobs = {} if dataset.format == "parquet" else {
    "shuffle_shards": True, "shuffle_within_shard": True, "shuffle_block_size": "auto"}
source = make_source([dataset], {"corpus": 1}, exhausted_policy="redistribute", **knobs)
count = sum(1 for _ in make_lane(source))
assert count == dataset.num_samples, count
print(peak() - before, default_reader().window_bytes)
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
        what = f"Memory: {name}, {total:.1f} GB, peak beyond the window of {window / 1e6:.0f} MB"
        table.add(what, (grown - window) / 1e6, "MB", most=150)


SECTIONS = {f.__name__: f for f in (arrayrecord, jsonl, parquet, many, remote, memory)}


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
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([row._asdict() for row in table.rows], file, indent=2)


if __name__ == "__main__":
    main()
