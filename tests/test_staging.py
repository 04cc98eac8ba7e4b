"""Copies that are made ahead of need: which comes next, and what finding it costs."""

import gzip

from helpers import wait_until

from zephon_jax.cache import Entry
from zephon_jax.catalog import Dataset
from zephon_jax.look_ahead import _Plan
from zephon_jax.staging import Stager


def test_nearest_missing_copy_is_first():
    plan = _Plan([Entry(name, 1, True, lambda target: None) for name in "abcdef"])
    there, busy = {"a", "c"}, {"b"}

    def first(before=99):
        found = plan.first(before, busy.__contains__, there.__contains__)
        return None if found is None else (found[0], found[1].name)

    assert first() == (3, "d")
    assert first() == (3, "d")  # Nobody has begun it.
    assert first(before=3) is None
    busy.add("d")
    assert first() == (4, "e")
    busy.clear()  # Both failed and may be tried again.
    assert first() == (1, "b")
    there.update("bd")
    assert first() == (4, "e")
    there.update("ef")
    assert first() is None
    there.clear()
    assert first() is None  # What was there is not looked for until it is planned anew.


def test_looks_grow_with_the_number_of_shards_not_its_square(tmp_path, monkeypatch):
    """Look-ahead asks the cache about each planned copy a few times at most."""
    num_shards, looks = 120, []
    (tmp_path / "data").mkdir()
    for shard in range(num_shards):
        (tmp_path / "data" / f"{shard}.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    dataset = Dataset.from_path("packed", tmp_path / "data", counts=[1] * num_shards)
    shards = [dataset.shard(shard) for shard in range(num_shards)]
    stager = Stager(tmp_path / "cache")
    has = stager.cache.has

    def look(name):
        looks.append(name)
        return has(name)

    monkeypatch.setattr(stager.cache, "has", look)
    stager.plan("lane", shards)
    names = [stager.entries(shard)[0].name for shard in shards]
    wait_until(lambda: all(map(has, names)))
    stager.close()
    assert set(looks) == set(names)
    assert len(looks) <= 4 * num_shards
