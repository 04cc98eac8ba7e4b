"""Reading speed, memory and waiting, side by side with other readers in one run.

    python benchmarks/reading.py [--rounds 5] [--only arrayrecord jsonl parquet many remote memory]

Each line is a median over the rounds and, where there is one, its ratio to the reference.
Data is made in a temporary folder (about 1.3 GB) and removed.
"""

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

import grain
import numpy as np

import zephon_jax as zx

HERE = pathlib.Path(__file__).parent


def timed(call):
    """Seconds of a call, and what it returned."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def race(contenders, rounds):
    """Median records a second of each, taking turns so that all meet the same machine.

    Args:
      contenders: Name -> (makes an iterable, records to take at most).
      rounds: Turns.
    """
    rates = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (make, limit) in contenders.items():
            elements = iter(make())
            if str(name).startswith("Zephon"):
                next(elements)  # Its start, with the index of the files, costs it nothing.
            taken = timed(lambda e=elements, n=limit: sum(1 for _ in itertools.islice(e, n)))
            rates[name].append(taken[1] / taken[0])
    return {name: statistics.median(found) for name, found in rates.items()}


def show(name, value, unit, reference=None, target=None):
    ratio = "" if reference is None else f"{value / reference:8.2f} x"
    want = "" if target is None else f"  (wanted: {target})"
    print(f"  {name:52s} {value:12,.1f} {unit:10s} {ratio}{want}", flush=True)


def lane(datasets, weights, **knobs):
    source = zx.StaticMixtureWorkSource(datasets=datasets, mixture=weights, seed=1, **knobs)
    return zx.LaneIterDataset(source, 0, 1)


SHUFFLED = {"shuffle_shards": True, "shuffle_within_shard": True, "shuffle_block_size": "auto"}


def write_array_record(path, records):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def arrayrecord(folder, rounds):
    from array_record.python.array_record_module import ArrayRecordReader

    rng = np.random.default_rng(0)
    paths = {name: [] for name in "ab"}
    for name, shard in itertools.product("ab", range(4)):
        path = folder / f"{name}-{shard}.array_record"
        write_array_record(path, (rng.bytes(4096) for _ in range(25_000)))
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

    print("ArrayRecord, 2 x 4 x 25,000 records of 4 KB, shards + within + block shuffle")
    contenders = {"read_all": (read_all, 200_000)}
    for threads in (0, 4, 16):
        contenders[threads] = (lambda t=threads: mixed(t), 10_000)
    contenders["lane"] = (lambda: lane(datasets, weights, **SHUFFLED), 200_000)
    contenders["map"] = (batches, 200_000)
    found = race(contenders, rounds)
    best = max(found[threads] for threads in (0, 4, 16))
    show("plain read_all", found["read_all"], "records/s")
    for threads in (0, 4, 16):
        show(f"Grain shuffle + mix, {threads} threads", found[threads], "records/s", best)
    for name, title in (("lane", "LaneIterDataset"), ("map", "MixtureMapDataset, 4,096 a batch")):
        show(f"{title} / best of Grain", found[name], "records/s", best, ">= 4")
        show(f"{title} / read_all", found[name], "records/s", found["read_all"], ">= 0.7")


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


def jsonl(folder, rounds):
    words = "lorem ipsum dolor sit amet consectetur "
    for name, count, size in (("short", 390_000, 215), ("long", 16_000, 6_500)):
        (folder / name).mkdir()
        text = (words * (size // len(words) + 1))[:size]
        for shard in range(4):
            with open(folder / name / f"{shard}.jsonl", "w") as file:
                for index in range(count // 4):
                    file.write(json.dumps({"id": index, "text": text}) + "\n")
    datasets = [zx.Dataset.from_path(name, folder / name) for name in ("short", "long")]
    weights = {"short": 0.8, "long": 0.2}

    def bare():
        for path in sorted(folder.rglob("*.jsonl")):
            with open(path) as file:
                for line in file:
                    yield json.loads(line)

    print("JSON Lines, 192 MB, 390,000 short and 16,000 long documents, weights .8 / .2")
    theirs = {"shuffle_within_shard": True, "shuffle_block_size": 8 * 97_500}
    contenders = {
        "loop": (bare, 406_000),
        "Zephon 0.2.0, default shuffle": (lambda: zephon_records(folder), 20_000),
        "default shuffle": (lambda: lane(datasets, weights), 200_000),
        "Zephon 0.2.0, within + block shuffle": (lambda: zephon_records(folder, **theirs), 3_000),
        "within + block shuffle": (lambda: lane(datasets, weights, **SHUFFLED), 200_000),
    }
    found = race(contenders, rounds)
    show("bare json.loads loop", found["loop"], "records/s")
    for title, target in (("default shuffle", ">= 8"), ("within + block shuffle", ">= 50")):
        reference = found[f"Zephon 0.2.0, {title}"]
        show(f"Zephon 0.2.0, {title}", reference, "records/s")
        show(f"LaneIterDataset, {title} / Zephon", found[title], "records/s", reference, target)
        show(f"LaneIterDataset, {title} / loop", found[title], "records/s", found["loop"], ">= 0.4")
    print("  (the mixture takes 5 times as many long documents as the loop meets)")


def parquet(folder, rounds):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 50_000
    for shard in range(4):
        table = pa.table({"id": range(rows), "text": [f"{i} " * 40 for i in range(rows)]})
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=10_000)
    dataset = zx.Dataset.from_path("rows", folder)

    def scan():
        for path in sorted(folder.glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches():
                yield from batch.to_pylist()

    print("Parquet, 4 x 50,000 rows, default shuffle, rows as dicts")
    contenders = {
        "scan": (scan, 4 * rows),
        "lane": (lambda: lane([dataset], {"rows": 1}), 4 * rows),
    }
    found = race(contenders, rounds)
    show("plain pyarrow scan", found["scan"], "rows/s")
    show("LaneIterDataset", found["lane"], "rows/s", found["scan"], ">= 0.6")


def many(folder, rounds):
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

    print("1,000 small ArrayRecord files")
    seconds = [timed(first_batch)[0] for _ in range(rounds)]
    show("time to first batch, first round", seconds[0], "s", target="< 1")
    show("time to first batch, median", statistics.median(seconds), "s", target="< 1")
    show("files open", float(open_files()), "files", target="<= 128")


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


def remote(folder, rounds):
    import fsspec

    command = [sys.executable, str(HERE.parent / "tests" / "s3_server.py"), "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            options = {
                "key": "k",
                "secret": "s",
                "client_kwargs": {"endpoint_url": url},
                "use_listings_cache": False,
            }
            _remote(folder, rounds, fsspec.filesystem("s3", **options), options, url)
        finally:
            server.kill()


def _remote(folder, rounds, fs, options, url):
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
        start, waited, warm_from = time.perf_counter(), 0.0, 2 * per_shard
        warm = due = start
        for number in range(shards * per_shard):
            asked = time.perf_counter()
            next(elements)
            if pace:
                now = time.perf_counter()
                if number < warm_from:
                    warm = due = now
                else:
                    # Less than a millisecond is work on the element, not waiting for data.
                    waited += now - asked if now - asked > 1e-3 else 0.0
                    due = max(due, now) + size / pace  # Works on it before it asks for more.
                    if due - now > 0.01:
                        time.sleep(due - now)
        end = time.perf_counter()
        share = waited / (end - warm) if pace else 0.0
        return end - start, share, fetched() - before, watch.stop()

    print(f"Remote, {shards} shards of {shard_bytes / 1e6:.1f} MB, 50 ms a request")
    rounds = min(rounds, 3)
    whole = statistics.median(timed(download)[0] for _ in range(rounds))
    runs = [consume(f"a{number}") for number in range(rounds)]
    rates = [shards * shard_bytes / 1e6 / run[0] for run in runs]
    reference = shards * shard_bytes / 1e6 / whole
    show("whole-object download", reference, "MB/s")
    show("unpaced LaneIterDataset", statistics.median(rates), "MB/s", reference, ">= 0.8")
    most = max(run[2] for run in runs) / (shards * shard_bytes)
    show("bytes fetched / bytes of the shards", most, "", target="<= 1.05")
    over = (max(run[3] for run in runs) - budget) / shard_bytes
    show("cache over its budget, at most", over, "shards", target="<= 1")
    _, share, _, _ = consume("paced", 20e6)
    show("waiting at 20 MB/s once warm", 100 * share, "%", target="<= 1")


MEMORY = """
import resource, sys, itertools
import zephon_jax as zx
from zephon_jax.reader import default_reader
dataset = zx.Dataset.from_path("tokens", sys.argv[1])
source = zx.StaticMixtureWorkSource(datasets=[dataset], mixture={"tokens": 1}, seed=1,
    shuffle_shards=True, shuffle_within_shard=True, shuffle_block_size="auto")
elements = iter(zx.LaneIterDataset(source, 0, 1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in elements)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, (after - before) * 1024, default_reader().window_bytes)
"""


def memory(folder, rounds):
    del rounds
    shards, per_shard, tokens = 5, 250_000, 2048
    for shard in range(shards):
        lengths = np.full(per_shard, tokens, "<i4")
        pointers = np.arange(per_shard, dtype="<i8") * tokens * 2
        head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, per_shard, 1)
        (folder / f"{shard}.idx").write_bytes(
            head + lengths.tobytes() + pointers.tobytes() + bytes(8)
        )
        with open(folder / f"{shard}.bin", "wb") as file:
            file.truncate(per_shard * tokens * 2)
    command = [sys.executable, "-c", MEMORY, str(folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count, grown, window = map(int, output.split())
    print(f"Memory, {count * tokens * 2 / 1e9:.1f} GB of Megatron shards (sparse), all shuffles")
    show("growth of the peak while reading all", grown / 1e6, "MB")
    show("beyond the window setting", (grown - window) / 1e6, "MB", target="<= 150")


SECTIONS = {f.__name__: f for f in (arrayrecord, jsonl, parquet, many, remote, memory)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=sorted(SECTIONS), default=list(SECTIONS))
    arguments = parser.parse_args()
    for section in arguments.only:
        with tempfile.TemporaryDirectory() as temporary:
            os.environ["ZEPHON_JAX_CACHE"] = os.path.join(temporary, ".cache")
            SECTIONS[section](pathlib.Path(temporary), arguments.rounds)
