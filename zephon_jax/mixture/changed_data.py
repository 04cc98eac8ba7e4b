"""Which data changed since a state was saved: the dataset, and the shard where it is one.

A state cannot hold the size of each shard. It holds a digest of all, which tells that something
changed, and three sums of the shards' values v(d, i), modulo a prime, which tell what: the sum of
all, of each shard's value times i + 1, and of each dataset's sum of those times d + 1. Where one
shard changed by x, the first two changed by x and by x (i + 1), and their quotient is its place;
where two shards of a dataset changed places, the first sum did not change at all.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._warn import warn
from zephon_jax.kernels.keys import digest_words
from zephon_jax.sources.checks import ShardedDataset

__all__ = ["DATA_CODES", "LOCATORS", "ChangedData", "data_rows"]

DATA_CODES: Mapping[str, str] = {
    "content": "shard contents",
    "datasum0": "sum of the shards",
    "datasum1": "sum of the shards by place",
    "datasum2": "sum of the datasets by place",
    "known": "datasets of known contents",
}
"""Codes of a fingerprint's rows that files add, as in `fingerprint.CODES`."""

LOCATORS = frozenset(DATA_CODES.values()) - {"shard contents"}
"""Rows that say where data differs, not that it does."""

_PRIME = 4_294_967_291  # the largest below 2^32
_SIZE, _DIGEST = 0x9E3779B1, 0x85EBCA77  # odd words that set sizes and digests apart


class _Values(NamedTuple):
    """What is known of the shards of a dataset of files."""

    dataset_id: int
    sizes: np.ndarray  # int64 (num_shards,)
    digests: np.ndarray | None  # int64 (num_shards,), of what is in them

    def sums(self) -> tuple[int, int]:
        """Of the shards' values, plain and by place, modulo the prime."""
        digests = 0 if self.digests is None else self.digests.astype(np.uint64)
        values = self.sizes.astype(np.uint64) % np.uint64(_PRIME) * np.uint64(_SIZE)
        values = values % np.uint64(_PRIME) + digests * np.uint64(_DIGEST) % np.uint64(_PRIME)
        values %= np.uint64(_PRIME)
        places = np.arange(1, len(values) + 1, dtype=np.uint64) % np.uint64(_PRIME)
        by_place = values * places % np.uint64(_PRIME)
        # Less than 2^32 terms of less than 2^32 each.
        return int(values.sum()) % _PRIME, int(by_place.sum()) % _PRIME


def _values(datasets: Sequence[ShardedDataset]) -> list[_Values]:
    found = []
    for d, dataset in enumerate(datasets):
        sizes = getattr(dataset, "shard_bytes", None)
        if sizes is not None and len(getattr(dataset, "shards", ())):
            digests = getattr(dataset, "shard_digests", None)
            found.append(_Values(d, np.asarray(sizes), digests))
    return found


def data_rows(datasets: Sequence[ShardedDataset]) -> dict[str, int]:
    """The digests of a fingerprint that datasets of files add, by code; none without files."""
    values = _values(datasets)
    if not values:
        return {}
    plain = by_place = by_dataset = 0
    for one in values:
        own, placed = one.sums()
        plain, by_place = (plain + own) % _PRIME, (by_place + placed) % _PRIME
        by_dataset = (by_dataset + placed * (one.dataset_id + 1)) % _PRIME
    known = [one for one in values if one.digests is not None]
    items = [x for v in known for x in (v.dataset_id, np.asarray(v.digests, "<i8").tobytes())]
    return {
        "content": int(digest_words(1, "content", *items)[0]),
        "datasum0": plain,
        "datasum1": by_place,
        "datasum2": by_dataset,
        "known": int(digest_words(1, "known", *[one.dataset_id for one in known])[0]),
    }


class ChangedData:
    """Says which data differs from that of a state, and lets it pass where a dataset says so.

    Args:
      datasets: The datasets of the source.
    """

    def __init__(self, datasets: Sequence[ShardedDataset]):
        self._datasets = datasets

    @functools.cached_property
    def _files(self) -> set[int]:
        """Ids of the datasets of files: looked for where something differs, not at each start."""
        return {one.dataset_id for one in _values(self._datasets)}

    def explain(
        self, differs: list[str], mine: Mapping[str, int], other: Mapping[str, int]
    ) -> tuple[list[str], str]:
        """Returns what still differs, and where the data does, for an error.

        Args:
          differs: Names of what differs.
          mine: The digests of the source, by name.
          other: Those of the state.
        """
        data = [name for name in differs if name in ("shard bytes", "shard contents")]
        if not data:
            return differs, ""
        dataset_id, shard_id, what = self._locate(mine, other)
        where = ""
        if dataset_id is not None:
            shard = "" if shard_id is None else f", shard {shard_id}"
            where = f" (dataset {self._datasets[dataset_id].name!r}{shard}: {what})"
        lenient = {
            d for d in self._files
            if getattr(self._datasets[d], "data_changed", "raise") == "warn"
        }  # fmt: skip
        passes = lenient >= (self._files if dataset_id is None else {dataset_id})
        if not lenient or not passes:
            return differs, where
        warn(
            f"the state was saved with other {' and '.join(data)}{where}. The run goes on with the"
            " data that is there now, because data_changed = 'warn'."
        )
        return [name for name in differs if name not in data], ""

    def _locate(
        self, mine: Mapping[str, int], other: Mapping[str, int]
    ) -> tuple[int | None, int | None, str]:
        """The dataset and the shard that differ, None where there are several, and in words how."""
        names = [DATA_CODES[code] for code in ("datasum0", "datasum1", "datasum2")]
        known = DATA_CODES["known"]
        if any(name not in mine or name not in other for name in names) or mine[known] != other.get(
            known
        ):
            return None, None, ""
        plain, by_place, by_dataset = ((mine[n] - other[n]) % _PRIME for n in names)
        dataset_id = _quotient(by_dataset, by_place)
        if dataset_id not in self._files:
            return None, None, ""
        if plain == 0:
            return dataset_id, None, "its shards are in another order"
        shard_id = _quotient(by_place, plain)
        if shard_id is not None and shard_id < len(self._datasets[dataset_id].shard_counts):
            return dataset_id, shard_id, "it was written anew"
        return dataset_id, None, "several of its shards were written anew"


def _quotient(product: int, factor: int) -> int | None:
    """The place n for which product = factor (n + 1) modulo the prime; None for no such."""
    if factor == 0:
        return None
    return (product * pow(factor, -1, _PRIME) - 1) % _PRIME
