"""Streams of records, and lanes whose records are uneven, for tests of `zx.ensure_mixture`."""

from __future__ import annotations

import zlib

import grain
import numpy as np

import zephon_jax as zx
from zephon_jax import ensure_mixture

NAMES = {"a": 0, "b": 1, "c": 2}


EVEN = dict.fromkeys(NAMES, 1)


def hashed(*words):
    return zlib.crc32(repr(words).encode())


def source_of(num_samples=400, weights=(1, 1, 1), sizes=None, **settings):
    datasets = [
        zx.Dataset.from_source(name, [(d, n) for n in range((sizes or [num_samples] * 3)[d])])
        for d, name in enumerate(NAMES)
    ]
    settings = {"chunk_size": 60, **settings}
    return zx.StaticMixtureWorkSource(datasets, dict(zip(NAMES, weights, strict=True)), **settings)


def keep(element):
    """Drops 90 % of the first component."""
    component, n = element["data"]
    return component != 0 or hashed(n, 5) % 10 == 0


class Split(grain.experimental.FlatMapTransform):
    """Makes 1 to 200 records of one."""

    max_fan_out = 200

    def __init__(self, most=200):
        self.most = most

    def flat_map(self, element):
        size = hashed(*element["data"]) % self.most + 1
        stamps = {"exhausted": element["exhausted"]} if "exhausted" in element else {}
        return [
            {"component_id": element["component_id"], "name": (*element["data"], n),
             "tokens": hashed(n, *element["data"]) % 50 + 1, **stamps}
            for n in range(size)
        ]  # fmt: skip


def uneven(lane, most=200):
    """After a filter that drops 90 % of one component, and a splitter."""
    return grain.experimental.FlatMapIterDataset(lane.filter(keep), Split(most))


def uneven_lane(num_samples, most=200, **settings):
    return uneven(zx.LaneIterDataset(source_of(num_samples, **settings)), most)


def worst_window(records, target, weigh, window=1000):
    """The largest distance of a component's share from its target in any window of records."""
    weights = np.array([weigh(record) for record in records])
    components = np.array([int(record["component_id"]) for record in records])
    of_each = (components[:, None] == np.arange(len(target))) * weights[:, None]
    sums = np.cumsum(np.concatenate([np.zeros((1, len(target))), of_each]), axis=0)
    inside = sums[window:] - sums[:-window]
    shares = inside / inside.sum(axis=1, keepdims=True)
    return float(np.abs(shares - np.array(target) / sum(target)).max())


def one(record):
    return 1


def tokens_of(record):
    return record["tokens"]


class Records(grain.IterDataset):
    """A list as a stream."""

    def __init__(self, records):
        super().__init__()
        self.records = records

    def __iter__(self):
        return RecordsIterator(self.records)


class RecordsIterator(grain.DatasetIterator):
    def __init__(self, records):
        super().__init__()
        self.records, self.place = records, 0

    def __next__(self):
        if self.place == len(self.records):
            raise StopIteration
        self.place += 1
        return self.records[self.place - 1]

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]


def all_parts(record):
    return record["parts"]


def dropping(records, target=None, **settings):
    """The order of a mixture without a bound, over windows of 8 elements."""
    mixed = ensure_mixture(
        Records(records), target or EVEN, component_ids=NAMES, max_buffer_size=None, max_replay=8,
        warn_tolerance=10, **settings,
    )  # fmt: skip
    return [record["n"] for record in mixed]
