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


def rate(make, rounds, limit):
    """Median records a second over `limit` records, iterators made anew in each round."""

    def run():
        return sum(1 for _ in itertools.islice(iter(make()), limit))

    rates = []
    for _ in range(rounds):
        seconds, count = timed(run)
        rates.append(count / seconds)
    return statistics.median(rates)


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
    plain = rate(read_all, rounds, 200_000)
    others = {threads: rate(lambda t=threads: mixed(t), rounds, 10_000) for threads in (0, 4, 16)}
    ours = rate(lambda: lane(datasets, weights, **SHUFFLED), rounds, 200_000)
    best = max(others.values())
    show("plain read_all", plain, "records/s")
    for threads, value in others.items():
        show(f"Grain shuffle + mix, {threads} threads", value, "records/s", best)
    show("LaneIterDataset / best of Grain", ours, "records/s", best, ">= 4")
    show("LaneIterDataset / read_all", ours, "records/s", plain, ">= 0.7")
    indexed = rate(batches, rounds, 200_000)
    show("MixtureMapDataset, 4,096 at a time / best of Grain", indexed, "records/s", best, ">= 4")
    show("MixtureMapDataset, 4,096 at a time / read_all", indexed, "records/s", plain)


def zephon_rate(folder, rounds, limit, **knobs):
    """The clock starts at the first record, so that Zephon's start costs it nothing."""
    from zephon import Pipeline
    from zephon.io import Dataset
    from zephon.work import MixtureSpec, StaticMixtureWorkSource

    logging.disable(logging.WARNING)
    rates = []
    for _ in range(rounds):
        source = StaticMixtureWorkSource(
            datasets=[Dataset.from_path(name, str(folder / name)) for name in ("short", "long")],
            mixture=MixtureSpec({"short": 0.8, "long": 0.2}),
            seed=1,
            **knobs,
        )
        records = iter(Pipeline(source).decode_text())
        next(records)
        seconds, count = timed(lambda r=records: sum(1 for _ in itertools.islice(r, limit)))
        rates.append(count / seconds)
        del records
    logging.disable(logging.NOTSET)
    return statistics.median(rates)


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
    loop = rate(bare, rounds, 406_000)
    # Bytes for bytes: the mixture reads long documents more often than the loop meets them.
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    mean_loop = num_bytes / 406_000
    long_bytes, short_bytes = datasets[1].shards[0].size / 4000, datasets[0].shards[0].size / 97_500
    mean_mixed = 0.2 * long_bytes + 0.8 * short_bytes
    show("bare json.loads loop", loop, "records/s")
    show("bare json.loads loop", loop * mean_loop / 1e6, "MB/s")
    for title, knobs, target, limit in (
        ("default shuffle", {}, ">= 8", 20_000),
        ("within + block shuffle", SHUFFLED, ">= 50", 3_000),
    ):
        theirs_knobs = {**knobs, "shuffle_block_size": 8 * 97_500} if knobs else {}
        theirs = zephon_rate(folder, min(rounds, 3), limit, **theirs_knobs)
        ours = rate(lambda k=knobs: lane(datasets, weights, **k), rounds, 200_000)
        show(f"Zephon 0.2.0, {title}", theirs, "records/s")
        show(f"LaneIterDataset, {title} / Zephon", ours, "records/s", theirs, target)
        show(f"LaneIterDataset, {title} / bare loop", ours, "records/s", loop, ">= 0.4")
        show("  the same in MB/s", ours * mean_mixed / 1e6, "MB/s", loop * mean_loop / 1e6)


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
    plain = rate(scan, rounds, 4 * rows)
    ours = rate(lambda: lane([dataset], {"rows": 1}), rounds, 4 * rows)
    show("plain pyarrow scan", plain, "rows/s")
    show("LaneIterDataset", ours, "rows/s", plain, ">= 0.6")


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
                    waited += now - asked
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
