"""What fixes an order, as short digests by name: a state's proof that it belongs to its source.

A fingerprint is a table of 32-bit words, one row for each setting or fact that fixes the order: a
code of up to eight letters, and a digest of the value. Rows are sorted by code. A setting has no
row where it has the value that it had before it existed, so a setting that a later version adds
leaves the fingerprints of older states as they were; and since rows carry their code in letters,
a version that does not know one can still say which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from zephon_jax.kernels.keys import digest_words
from zephon_jax.mixture.changed_data import DATA_CODES, LOCATORS, data_rows
from zephon_jax.mixture.dataset_order import block_size
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.sources.checks import ShardedDataset

__all__ = [
    "CODES",
    "differences",
    "differing",
    "fingerprint",
    "named_digests",
    "without_data",
]

ORDER_VERSION = 1
_ROW = 3  # words: two of letters, one of the digest

# Codes are in saved states: a code never changes, nor the value without a row in `_values`.
CODES: Mapping[str, str] = {
    "order": "order version",
    "names": "dataset names",
    "counts": "shard counts",
    "bytes": "shard bytes",
    "weights": "mixture weights",
    "changes": "number of changes of the weights",
    "history": "changes of the weights",
    "grown": "shards that were added",
    "chunk": "chunk_size",
    "seed": "seed",
    "shards": "shuffle_shards",
    "within": "shuffle_within_shard",
    "blocks": "shuffle_block_size",
    "policy": "exhausted_policy",
    "reshuf": "reshuffle_on_repeat",
    "repeats": "max_repeats",
    "passes": "stop_after_passes",
    "lanes": "lane_assignment",
    "alloc": "allocation",
    "tokens": "token_estimation",
    **DATA_CODES,
}
"""What each code stands for, in the order in which differences are told."""

_UNKNOWN = 0  # digest of what a source cannot tell: equal to any


def _values(
    settings: MixtureSettings, counts: Sequence[np.ndarray], costs: Sequence[np.ndarray]
) -> dict[str, Sequence[int | str | bytes]]:
    """The values that have a row, by code, as what is hashed."""
    # What a setting comes to: "auto" is another block size when shards grow.
    blocks = [
        str(block if block == "global" else block_size(block, c))
        for block, c in zip(settings.shuffle_block_size, counts, strict=True)
    ]
    values: dict[str, Sequence[int | str | bytes]] = {
        "order": [ORDER_VERSION],
        "names": settings.names,
        "counts": [c.astype("<i8").tobytes() for c in counts],
        "weights": [str(share) for share in settings.fractions],
        "chunk": [settings.chunk_size],
        "seed": [settings.seed],
    }
    changes = [f"{one.first_chunk}:{one.units}" for one in settings.history[1:]]
    grown = [
        f"{change.first_chunk}:{change.num_shards}:{change.drawn}"
        for change, after in zip(settings.changes, _shards_after(settings, counts), strict=True)
        if change.num_shards != after[: len(change.num_shards)]
    ]
    optional: dict[str, tuple[Sequence[object], object]] = {  # with the value that has no row
        "shards": (settings.shuffle_shards, True),
        "within": (settings.shuffle_within_shard, False),
        "blocks": (blocks, "0"),
        "policy": (settings.exhausted_policy, "repeat"),
        "reshuf": (settings.reshuffle_on_repeat, True),
        "repeats": (settings.max_repeats, None),
        "passes": ([settings.stop_after_passes], 1),
        "lanes": ([settings.lane_assignment], "permute"),
        "alloc": ([settings.allocation], "incremental"),
        "history": (changes, None),
        "grown": (grown, None),
        "tokens": ([c.astype("<i8").tobytes() for c in costs], None),
    }
    for code, (given, without) in optional.items():
        if any(value != without for value in given):
            values[code] = [v if isinstance(v, bytes) else str(v) for v in given]
    return values


def _shards_after(settings: MixtureSettings, counts: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """How many shards each dataset had after each change."""
    before = [change.num_shards for change in settings.changes]
    return [*before[1:], tuple(len(own) for own in counts)][: len(before)]


def fingerprint(
    settings: MixtureSettings,
    counts: Sequence[np.ndarray],
    costs: Sequence[np.ndarray],
    datasets: Sequence[ShardedDataset],
) -> np.ndarray:
    """The fingerprint of a source: uint32 (c, 3), read-only.

    Args:
      settings: Checked settings.
      counts: Samples of each shard of each dataset, int64 (num_shards,) each.
      costs: What the shards cost, int64 (num_shards,) each, in a mixture of tokens; else empty.
      datasets: The datasets; what they know of the bytes in their shards is in it.
    """
    values = _values(settings, counts, costs)
    digests = {code: digest_words(1, code, *values[code])[0] for code in values}
    if settings.history[1:]:  # a length says more than its digest
        digests["changes"] = np.uint32(len(settings.history) - 1)
    sizes = [getattr(dataset, "shard_bytes", None) for dataset in datasets]
    known = [(d, size) for d, size in enumerate(sizes) if size is not None]
    digests["bytes"] = np.uint32(_UNKNOWN)
    if known:
        rows = [item for d, size in known for item in (d, size.astype("<i8").tobytes())]
        digests["bytes"] = np.maximum(digest_words(1, "bytes", *rows)[0], np.uint32(1))
    digests.update((code, np.uint32(word)) for code, word in data_rows(datasets).items())
    table = np.asarray(
        [[*_letters(code), digests[code]] for code in sorted(digests)], dtype=np.uint32
    )
    table.setflags(write=False)
    return table


def _letters(code: str) -> list[int]:
    return np.frombuffer(code.encode().ljust(8, b"\0"), dtype="<u4").tolist()


def named_digests(table: np.ndarray) -> dict[str, int]:
    """The digests of a fingerprint by what they are of; an unknown code stands for itself.

    Args:
      table: uint32 (c, 3), or its words in a row (3 * c,).

    Raises:
      ValueError: If it is no fingerprint.
    """
    codes: list[str] = []
    digests: list[int] = []
    if table.dtype.kind in "iu" and table.size % _ROW == 0:
        rows = np.ascontiguousarray(table, dtype="<u4").reshape(-1, _ROW)
        codes = [row[:2].tobytes().rstrip(b"\0").decode("ascii", "replace") for row in rows]
        digests = rows[:, 2].tolist()
    if not codes or codes != sorted(set(codes)) or not all(code.isalnum() for code in codes):
        raise ValueError(
            "the state's field 'config' must hold what fixes its source's order, as rows of a code"
            f" and a digest; got {table.dtype} {table.shape}."
        )
    return dict(zip((CODES.get(code, code) for code in codes), digests, strict=True))


def differing(one: Mapping[str, int], other: Mapping[str, int]) -> list[str]:
    """The names whose digests differ, or that only one has; of the data what both know.

    Args:
      one: Digests by name, as `named_digests` gives them.
      other: The same of another source.
    """
    known = list(CODES.values())
    names = [*known, *sorted((one.keys() | other.keys()) - set(known))]
    differ = [name for name in names if one.get(name) != other.get(name)]
    if _UNKNOWN in (one.get("shard bytes", _UNKNOWN), other.get("shard bytes", _UNKNOWN)):
        differ = [name for name in differ if name != "shard bytes"]
    alike = DATA_CODES["known"]
    if alike not in one or one.get(alike) != other.get(alike):
        differ = [name for name in differ if name != "shard contents"]
    return [name for name in differ if name not in LOCATORS]


def differences(mine: np.ndarray, other: np.ndarray) -> list[str]:
    """What differs between two sources by their fingerprints, uint32 (c, 3) or flat, by name.

    Raises:
      ValueError: If the other one is no fingerprint.
    """
    if mine.dtype == other.dtype and mine.tobytes() == other.tobytes():  # as states come back
        return []
    if np.array_equal(mine.ravel(), np.ravel(other)):
        return []
    known = set(CODES.values())
    return [
        name if name in known else f"{name!r} (which this version of zephon_jax does not know)"
        for name in differing(named_digests(mine), named_digests(other))
    ]


def without_data(table: np.ndarray) -> np.ndarray:
    """A fingerprint without the rows that files add: the same whatever is known of their contents.

    Args:
      table: uint32 (c, 3).
    """
    added = {tuple(_letters(code)) for code in DATA_CODES}
    return table[[tuple(row[:2]) not in added for row in table.tolist()]]
