"""Measures tokens per byte of datasets from some of their samples, or counts all their tokens.

Nothing here is random: which samples are read follows from a dataset's name and shard counts, so
two processes that prime a source get the same ratios.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zephon_jax._text import short
from zephon_jax.data.count_tokens import count_records
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.formats.base import named_error
from zephon_jax.data.id_groups import check_readable
from zephon_jax.data.reader import Reader, default_reader
from zephon_jax.data.shard_store import SourceShards
from zephon_jax.data.token_estimation import RATIO_UNIT, TokenEstimation, shard_costs
from zephon_jax.kernels.keys import fold, make_key
from zephon_jax.kernels.permutation import make_grids, permute_rows

__all__ = ["choose_samples", "count_shard_tokens", "measure"]

_NUM_THREADS = 8
_BATCH = 64  # samples that one thread reads and tokenizes at a time
_COUNT_BATCH = 4096  # the same, where all are counted
_TAG = "token samples"
_MOST_SHARDS = 64  # that samples come from, unless they are small

Task = TypeVar("Task")
Result = TypeVar("Result")


class _Sampled(NamedTuple):
    """What one batch of samples, all of one shard, came to."""

    tokens: np.ndarray  # int64 (n,)
    num_bytes: np.ndarray  # int64 (n,)
    shard: tuple[str, int]  # the file behind it
    data: int  # bytes of all records of the file, in the measure of num_bytes
    stored: int  # bytes of the file


def choose_samples(dataset: Dataset, num_samples: int, max_shards: int | None = None) -> np.ndarray:
    """Chooses samples that stand for a dataset: the same ones always, spread over its shards.

    The shards laid end to end are cut into equal stretches, and a keyed permutation of each, with
    a key from the dataset's name, gives one sample of it. Where there are more shards than
    `max_shards`, one sample of each of so many stretches chooses a shard first, and its samples
    then stand for the stretch.

    Args:
      dataset: The dataset.
      num_samples: How many, at least 1; all of them where there are no more. Fewer where shards
        that were chosen have fewer than their part.
      max_shards: Shards that they may come from, at least 1. None for 64, or for as many as have
        the samples where shards are of average size.

    Returns:
      int64 (n, 2): shard and place in it, sorted, each once.
    """
    counts = np.asarray(dataset.shard_counts, dtype=np.int64)
    key = make_key(0, _TAG, dataset.name)
    total, num_filled = int(counts.sum()), int((counts > 0).sum())
    if max_shards is None:
        max_shards = max(_MOST_SHARDS, -(-num_samples * num_filled // max(1, total)))
    if num_filled <= max_shards:
        return _in_shards(counts, np.arange(len(counts)), num_samples, key)
    drawn = _one_each(total, max_shards, make_key(0, _TAG, dataset.name, "shards"))
    # A large shard may be drawn more than once, and gives that many times the samples.
    shards, times = np.unique(
        np.searchsorted(np.cumsum(counts), drawn, side="right"), return_counts=True
    )
    ends = np.cumsum(times) * num_samples // max_shards
    shares = np.diff(ends, prepend=0).tolist()
    parts = [
        _in_shards(counts, np.asarray([shard]), share, fold(key, shard))
        for shard, share in zip(shards.tolist(), shares, strict=True)
    ]
    return np.concatenate(parts)


def _in_shards(counts: np.ndarray, shards: np.ndarray, number: int, key: np.ndarray) -> np.ndarray:
    """Samples spread over the places of some shards: int64 (n, 2)."""
    ends = np.cumsum(counts[shards])
    total = int(ends[-1])
    places = _one_each(total, min(number, total), key)
    which = np.searchsorted(ends, places, side="right")
    return np.stack([shards[which], places - (ends - counts[shards])[which]], axis=1)


def _one_each(total: int, number: int, key: np.ndarray) -> np.ndarray:
    """One place of each of so many equal stretches of [0, total): int64 (number,)."""
    if not number:
        return np.zeros(0, dtype=np.int64)
    # In Python's integers: the product may not fit 64 bits.
    cuts = np.asarray([n * total // number for n in range(number + 1)], dtype=np.int64)
    keys = fold(key, np.arange(number))
    return cuts[:-1] + permute_rows(
        np.zeros(number, np.int64), np.arange(number), make_grids(np.diff(cuts), keys)
    )


def measure(
    datasets: Sequence[Dataset],
    estimation: TokenEstimation,
    *,
    progress: bool = True,
    num_threads: int = _NUM_THREADS,
    reader: Reader | None = None,
) -> TokenEstimation:
    """Measures the ratios of datasets by tokenizing some of their samples.

    Args:
      datasets: What to measure. One without samples gets a ratio of 1.
      estimation: The tokenizer and how many samples to read.
      progress: Show a bar on a terminal when it takes a while.
      num_threads: Threads that read and tokenize.
      reader: What reads; None for the one that this process shares.

    Returns:
      The estimation with ratios, and their standard errors for printing.

    Raises:
      ValueError: If a dataset cannot be read or has no tokens in any sample that was read, or the
        tokenizer fails, naming the sample.
    """
    tokenizer = estimation.tokenizer
    if tokenizer is None:
        raise ValueError("measuring needs a tokenizer; this estimation has none any more.")
    reader = reader or default_reader()
    _check(datasets)
    for dataset in datasets:
        if dataset.shard_bytes is None:
            shard_costs(dataset, estimation.with_ratios({dataset.name: 1}))  # says what is missing
    chosen = [_chosen(d, estimation) for d in datasets]

    def sample(task: tuple[int, np.ndarray]) -> _Sampled:
        d, places = task
        return _sample(reader, datasets[d], d, places, tokenizer, estimation.field)

    found: list[list[_Sampled]] = [[] for _ in datasets]
    tasks = [(d, part) for d, places in enumerate(chosen) for part in _batches(places)]
    for (d, _), sampled in _in_parallel(sample, tasks, "measuring tokens", progress, num_threads):
        found[d].append(sampled)
    ratios = [_ratio(d, some) for d, some in zip(datasets, found, strict=True)]
    names = [dataset.name for dataset in datasets]
    return estimation.with_ratios(
        dict(zip(names, [ratio for ratio, _ in ratios], strict=True)),
        dict(zip(names, [error for _, error in ratios], strict=True)),
    )


def _check(datasets: Sequence[Dataset]) -> None:
    """Results are by name."""
    check_readable(dict(enumerate(datasets)))
    times = Counter(dataset.name for dataset in datasets)
    twice = [name for name, count in times.items() if count > 1]
    if twice:
        raise ValueError(f"dataset names must differ; got {short(twice[0])} more than once.")


def _chosen(dataset: Dataset, estimation: TokenEstimation) -> np.ndarray:
    return choose_samples(dataset, estimation.samples_per_dataset, estimation.max_shards)


def _batches(places: np.ndarray) -> Iterator[np.ndarray]:
    """Cuts chosen samples by shard, and into batches."""
    cuts = np.flatnonzero(np.diff(places[:, 0])) + 1
    for shard in np.split(places, cuts):
        for start in range(0, len(shard), _BATCH):
            yield shard[start : start + _BATCH]


def _sample(
    reader: Reader,
    dataset: Dataset,
    dataset_id: int,
    places: np.ndarray,
    tokenizer: Callable[[Any], object],
    field: str | None,
) -> _Sampled:
    shard_id = int(places[0, 0])
    ids = np.insert(places, 0, dataset_id, axis=1)
    ids, records = reader.read_good({dataset_id: dataset}, ids)
    places = ids[:, 1:]
    tokens = count_records(tokenizer, field, dataset, ids, records)
    physical, physical_id, indices = dataset.resolve(shard_id, places[:, 1])
    shard = (physical.name, physical_id)
    if isinstance(physical.store, SourceShards):
        count = int(physical.shard_counts[physical_id])
        return _Sampled(tokens, np.ones(len(tokens), dtype=np.int64), shard, count, count)
    try:
        with reader.opened(physical, physical_id) as opened:
            sizes, data = opened.measure_bytes(indices, records, field)
    except Exception as error:
        raise named_error(error, dataset.describe_shard(shard_id)) from error
    return _Sampled(tokens, sizes, shard, data, physical.shards[physical_id].size)


def _ratio(dataset: Dataset, found: Sequence[_Sampled]) -> tuple[int, float]:
    """Tokens per byte of the files, and the standard error as a fraction of it."""
    if not found:
        return RATIO_UNIT, 0.0
    tokens = np.concatenate([sampled.tokens for sampled in found])
    sizes = np.concatenate([sampled.num_bytes for sampled in found])
    total, num_bytes = int(tokens.sum()), int(sizes.sum())
    if not total:
        raise ValueError(
            f"dataset {dataset.name!r} has no tokens: the tokenizer found 0 in all {len(tokens)}"
            " samples that were read. Check the field that it takes, or leave the dataset out."
        )
    shards = {sampled.shard: (sampled.data, sampled.stored) for sampled in found}
    data, stored = (sum(pair[n] for pair in shards.values()) for n in (0, 1))
    if not num_bytes or not data:
        raise ValueError(f"dataset {dataset.name!r}: the samples that were read have no bytes.")
    ratio = Fraction(total, num_bytes) * Fraction(data, stored)
    return max(1, round(ratio * RATIO_UNIT)), _standard_error(dataset, found, total / num_bytes)


def _standard_error(dataset: Dataset, found: Sequence[_Sampled], ratio: float) -> float:
    """By linearization: the error of a ratio of sums is that of the sum of the residuals.

    Where samples come from some of the shards, it is those that were drawn, and samples of one
    shard are alike: residuals are summed by shard first (the estimate by ultimate clusters).
    """
    residuals = [sampled.tokens - sampled.num_bytes * ratio for sampled in found]
    of_shard: dict[tuple[str, int], float] = {}
    for sampled, own in zip(found, residuals, strict=True):
        of_shard[sampled.shard] = of_shard.get(sampled.shard, 0.0) + float(own.sum())
    drawn, whole = np.concatenate(residuals), dataset.num_samples
    num_filled = int((np.asarray(dataset.shard_counts) > 0).sum())
    if len(of_shard) < num_filled:
        drawn, whole = np.asarray(list(of_shard.values())), num_filled
    n = len(drawn)
    spread = float((drawn**2).sum()) * n / max(1, n - 1) * (1 - n / whole)
    return math.sqrt(max(0.0, spread)) / sum(int(sampled.tokens.sum()) for sampled in found)


def count_shard_tokens(
    datasets: Sequence[Dataset],
    tokenizer: Callable[[Any], object] | str,
    *,
    field: str | None = None,
    progress: bool = True,
    num_threads: int = _NUM_THREADS,
    reader: Reader | None = None,
) -> dict[str, np.ndarray]:
    """Counts the tokens of each shard by going through all the data.

    Args:
      datasets: What to count.
      tokenizer: As for `TokenEstimation`, or the name of a column that holds the number of tokens
        or the token ids of each record.
      field: For records that are dicts, the entry that the tokenizer takes; None for the record.
      progress: Show a bar on a terminal when it takes a while.
      num_threads: Threads that read and tokenize.
      reader: What reads; None for the one that this process shares.

    Returns:
      int64 (num_shards,) by dataset name, for `TokenEstimation.from_shard_totals`.

    Raises:
      ValueError: If a dataset cannot be read, two have one name, or the tokenizer fails, naming
        the sample.

    Example:
      >>> words = Dataset.from_source("words", ["a", "b c", "d e f"], shard_size=2)
      >>> count_shard_tokens([words], str.split)["words"].tolist()
      [3, 3]
    """
    if isinstance(tokenizer, str):
        if field is not None:
            raise ValueError(
                f"a column is named already: {tokenizer!r}; got field={short(field)} too."
            )
        field, counter = tokenizer, _itself
    else:
        counter = tokenizer
    reader = reader or default_reader()
    _check(datasets)
    tasks = [
        (d, shard_id, start)
        for d, dataset in enumerate(datasets)
        for shard_id, count in enumerate(dataset.shard_counts.tolist())
        for start in range(0, count, _COUNT_BATCH)
    ]

    def count(task: tuple[int, int, int]) -> int:
        d, shard_id, start = task
        dataset = datasets[d]
        indices = np.arange(start, min(start + _COUNT_BATCH, int(dataset.shard_counts[shard_id])))
        ids = np.stack(np.broadcast_arrays(d, shard_id, indices), axis=1)
        total = 0
        for a, b in reader.windows({d: dataset}, ids):
            found, records = reader.read_good({d: dataset}, ids[a:b])
            total += int(count_records(counter, field, dataset, found, records).sum())
        return total

    totals = [np.zeros(dataset.num_shards, dtype=np.int64) for dataset in datasets]
    for (d, shard_id, _), total in _in_parallel(
        count, tasks, "counting tokens", progress, num_threads
    ):
        totals[d][shard_id] += total
    return {dataset.name: total for dataset, total in zip(datasets, totals, strict=True)}


def _itself(value: object) -> object:
    return value


def _in_parallel(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    title: str,
    progress: bool,
    num_threads: int,
) -> Iterator[tuple[Task, Result]]:
    """Does the tasks on threads, and gives the results in the tasks' order."""
    with ThreadPoolExecutor(max(1, min(num_threads, len(tasks)))) as pool:
        try:
            results: Iterable[Result] = pool.map(work, tasks)
            if progress:
                from tqdm import tqdm

                results = tqdm(results, title, len(tasks), delay=2.0, leave=False, disable=None)
            yield from zip(tasks, results, strict=True)
        finally:
            pool.shutdown(cancel_futures=True)
