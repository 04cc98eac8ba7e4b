"""Reading from an object store that answers 50 ms late, beside downloading the same objects."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any, NamedTuple

import numpy as np
from common import Table, seconds
from corpora import write_array_record

import zephon_jax as zx

SERVER = pathlib.Path(__file__).parents[1] / "tests" / "support" / "s3_server.py"
NUM_SHARDS, PER_SHARD, RECORD_BYTES = 12, 4096, 4096
BUCKET = "bucket/data"
PACE = 20e6  # bytes a second
LEAST_WAIT = 1e-3  # seconds; less is work on the element, not waiting for data


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


class Store(NamedTuple):
    """A store with shards in it."""

    fs: Any
    options: dict[str, Any]  # for fsspec
    url: str
    shard_bytes: int

    def num_bytes(self):
        """Bytes that it has sent so far."""
        with urllib.request.urlopen(self.url + "/__stats__") as answer:
            return json.load(answer)[1]

    def download(self):
        for shard in range(NUM_SHARDS):
            self.fs.cat_file(f"{BUCKET}/{shard}.array_record")


class Run(NamedTuple):
    """What reading everything from a cold cache took."""

    seconds: float
    waited: float  # share of the time, once look-ahead is warm
    num_bytes: int  # fetched
    most_held: int  # bytes in the cache


def fill(folder, url) -> Store:
    import fsspec

    options = {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": url},
        "use_listings_cache": False,
    }
    fs = fsspec.filesystem("s3", **options)
    fs.mkdir("bucket")
    rng = np.random.default_rng(0)
    path = folder / "made.array_record"
    for shard in range(NUM_SHARDS):
        write_array_record(path, (rng.bytes(RECORD_BYTES) for _ in range(PER_SHARD)))
        fs.put_file(str(path), f"{BUCKET}/{shard}.array_record")
    return Store(fs, options, url, path.stat().st_size)


def go_through(elements, pace):
    """Takes all elements, at some bytes a second, and returns the share of waiting for them."""
    warm = due = time.perf_counter()
    waited = 0.0
    for number in range(NUM_SHARDS * PER_SHARD):
        asked = time.perf_counter()
        next(elements)
        if pace is None:
            continue
        now = time.perf_counter()
        if number < 2 * PER_SHARD:
            warm = now
        elif now - asked > LEAST_WAIT:
            waited += now - asked
        due = max(due, now) + RECORD_BYTES / pace  # Works on it before it asks for more.
        if due - now > 0.01:
            time.sleep(due - now)
    return waited / (time.perf_counter() - warm)


def consume(store, cache, budget, pace=None) -> Run:
    from zephon_jax.data.cache.stager import default_stager

    os.environ["ZEPHON_JAX_CACHE"], os.environ["ZEPHON_JAX_CACHE_BYTES"] = str(cache), str(budget)
    before = store.num_bytes()
    dataset = zx.Dataset.from_path(
        "far", f"s3://{BUCKET}", storage_options=store.options, counts=[PER_SHARD] * NUM_SHARDS
    )
    source = zx.StaticMixtureWorkSource([dataset], {"far": 1}, 2048, seed=1)
    watch = Watch(default_stager().cache.num_bytes)
    begin = time.perf_counter()
    waited = go_through(iter(zx.LaneIterDataset(source)), pace)
    took = time.perf_counter() - begin
    return Run(took, waited, store.num_bytes() - before, watch.stop())


def remote(folder, table: Table, rounds, quick):
    # The server stands for another machine, so it gets what the reader leaves of this one.
    command = ["nice", "-n", "15", sys.executable, str(SERVER), "--latency", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            store = fill(folder, server.stdout.readline().strip())
            compare(folder, table, 1 if quick else min(rounds, 3), store)
        finally:
            server.kill()


def compare(folder, table, rounds, store):
    total, budget = NUM_SHARDS * store.shard_bytes, 6 * store.shard_bytes
    whole, runs = [], []
    for number in range(rounds):
        whole.append(total / 1e6 / seconds(store.download))
        runs.append(consume(store, folder / f"cache{number}", budget))
    rates = [total / 1e6 / run.seconds for run in runs]
    table.add("Remote, 50 ms a request: whole-object download", whole, "MB/s")
    table.add("Remote: LaneIterDataset, unpaced", rates, "MB/s")
    shares = [a / b for a, b in zip(rates, whole, strict=True)]
    table.add("Remote: LaneIterDataset / download", shares, "x", least=0.8)
    fetched = max(run.num_bytes for run in runs) / total
    table.add("Remote: bytes fetched / bytes, most", [fetched], "x", most=1.05)
    over = (max(run.most_held for run in runs) - budget) / store.shard_bytes
    table.add("Remote: cache over its budget, most", [over], "shards", most=1)
    paced = [consume(store, folder / f"paced{n}", budget, PACE) for n in range(rounds)]
    waited = [100 * run.waited for run in paced]
    table.add("Remote: waiting at 20 MB/s once warm", waited, "%", most=1)
