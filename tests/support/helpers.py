"""What several tests need: sources by short names, and the whole of a run."""

from __future__ import annotations

import time

import grain

import zephon_jax as zx
from zephon_jax import quota


def mixture(sizes, weights=None, *, names=None, shards=None, **settings):
    """A source over datasets 'a', 'b', ... of counts only; a size may be a list of shard counts."""
    names = names or [chr(97 + d) if len(sizes) <= 26 else f"d{d}" for d in range(len(sizes))]
    datasets = [
        zx.Dataset.from_counts(name, size if isinstance(size, (list, tuple)) else [size])
        for name, size in zip(names, sizes, strict=True)
    ]
    weights = [1] * len(sizes) if weights is None else weights
    return zx.StaticMixtureWorkSource(datasets, dict(zip(names, weights, strict=True)), **settings)


def scheduled(sizes, stages, ramp="step", **settings):
    """A schedule over datasets 'a', 'b', ...; stages are (until, weights) or with a ramp after."""
    datasets = [
        zx.Dataset.from_counts(chr(97 + d), size if isinstance(size, (list, tuple)) else [size])
        for d, size in enumerate(sizes)
    ]
    made = []
    for until, weights, *own in stages:
        # Datasets that come with a change have no weight in what was planned before.
        mix = {dataset.name: w for dataset, w in zip(datasets, weights, strict=False)}
        made.append(zx.Stage(until=until, mixture=mix, ramp=own[0] if own else None))
    return zx.ScheduledMixtureWorkSource(datasets, made, ramp, **settings)


def stepped(shares, num_chunks):
    """The carries after 0, 1, 2 ... chunks, one step of the quotas after another."""
    carries = [quota.init_carry(shares)]
    for _ in range(num_chunks):
        carries.append(quota.step(shares, carries[-1])[1])
    return carries


def chunks_of(source, lane=0, num_lanes=1, *, state=None, limit=None):
    """The chunks of a lane from a state on."""
    state = source.init(lane, num_lanes) if state is None else state
    found = []
    while limit is None or len(found) < limit:
        chunk, after = source.next_chunk(state)
        if chunk is None:
            assert after is state
            break
        found.append(chunk)
        state = after
    return found


def state_after(source, num_chunks, lane=0, num_lanes=1):
    """The state after so many of a lane's chunks."""
    state = source.init(lane, num_lanes)
    for _ in range(num_chunks):
        chunk, state = source.next_chunk(state)
        assert chunk is not None
    return state


def samples_of(chunks):
    """Sample ids and component names in reading order."""
    return [item for chunk in chunks for item in chunk]


def draws(chunks, num_components):
    """Samples of each component, in all."""
    return [sum(int(chunk.counts[d]) for chunk in chunks) for d in range(num_components)]


def wait_until(true, seconds=30):
    """Waits for a condition that threads or other processes bring about."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class _FlatMap(grain.experimental.FlatMapTransform):
    max_fan_out = 1 << 30  # what Grain warns of is its own limit for random access

    def __init__(self, function):
        self._function = function

    def flat_map(self, element):
        return self._function(element)


def flat_mapped(dataset, function):
    """A Grain dataset of all elements that a function makes of each element."""
    return grain.experimental.FlatMapIterDataset(dataset, _FlatMap(function))
