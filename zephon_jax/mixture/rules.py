"""The rules of exhaustion: settings and the sizes of the datasets, put together."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._warn import warn
from zephon_jax.kernels import quota
from zephon_jax.kernels.virtual_time import Cost
from zephon_jax.kernels.weights import warn_if_moved
from zephon_jax.mixture.generations import Growth
from zephon_jax.mixture.history import FAR, UNCAPPED, Weighing
from zephon_jax.mixture.positions import ExhaustionRules
from zephon_jax.mixture.settings import MAX_COUNT, MixtureSettings

__all__ = ["make_rules"]

_PASSES_A_CHUNK = 16  # of all data, from which on a chunk is surely too long
_CHUNKS_A_PASS = 16  # in the size that is named then


def _warn_without_effect(settings: MixtureSettings) -> None:
    """Warns of settings that cannot change anything."""
    said: list[str] = []
    repeating = [policy == "repeat" for policy in settings.exhausted_policy]
    for name, repeats, can in zip(settings.names, settings.max_repeats, repeating, strict=True):
        if repeats is not None and not can:
            said.append(f"max_repeats of {name!r}, whose exhausted_policy is not 'repeat'")
    both = zip(
        settings.names, settings.shuffle_block_size, settings.shuffle_within_shard, strict=True
    )
    for name, block, within in both:
        if block == "global" and within:
            said.append(f"shuffle_within_shard of {name!r}, whose shuffle_block_size is 'global'")
        elif block == 1:
            said.append(f"shuffle_block_size = 1 of {name!r}")
    shuffled = any(settings.shuffle_shards) or any(settings.shuffle_within_shard)
    shuffled = shuffled or any(block is not None for block in settings.shuffle_block_size)
    if not all(settings.reshuffle_on_repeat) and not (shuffled and any(repeating)):
        said.append("reshuffle_on_repeat, where nothing is shuffled or nothing repeats")
    for text in said[:8]:
        warn(f"this setting has no effect: {text}. Leave it out.")


def _warn_of_small_data(settings: MixtureSettings, totals: np.ndarray) -> None:
    """Warns where a single chunk goes through all data several times: runs end between chunks."""
    total, size = int(totals.sum()), settings.chunk_size
    if not 0 < total * _PASSES_A_CHUNK <= size or "repeat" not in settings.exhausted_policy:
        return
    warn(
        f"a chunk of {size:,} samples is {size / total:,.2f} times all data, {total:,} samples:"
        " chunks are given whole, so a run is at least as long, and each lane has as much. Give"
        f" chunk_size = {max(1, total // _CHUNKS_A_PASS)}, for {_CHUNKS_A_PASS} chunks a pass."
    )


def _check_sizes(settings: MixtureSettings, totals: np.ndarray) -> None:
    """Refuses runs whose counts would not fit into 64 bits."""
    passes = settings.stop_after_passes or 1
    for name, total, repeats in zip(
        settings.names, totals.tolist(), settings.max_repeats, strict=True
    ):
        times = max(passes, 1 if repeats is None else repeats + 1)
        if total * times > MAX_COUNT:
            raise ValueError(
                f"dataset {name!r} has {total} samples and may be gone through {times} times; the"
                f" product must be at most 2^60. Lower stop_after_passes or max_repeats."
            )


def make_rules(
    settings: MixtureSettings,
    totals: np.ndarray,
    costs: Sequence[Cost] | None,
    growths: Mapping[int, Growth],
) -> ExhaustionRules:
    """Puts settings and dataset sizes together into the rules of exhaustion.

    Args:
      settings: Checked settings.
      totals: int64 (k,), samples in a pass of each dataset.
      costs: Cost of each dataset's draws, under virtual time.
      growths: How datasets grew that got shards in mid-run, by dataset id.

    Raises:
      ValueError: If an active dataset has no samples, or can never give its first quota, or a
        fixed allocation has more active datasets than slots.
    """
    _warn_without_effect(settings)
    if len(settings.history) == 1:  # stages were looked at one by one
        warn_if_moved(settings.fractions, settings.names)
    _check_sizes(settings, totals)
    _warn_of_small_data(settings, totals)
    leaves = np.fromiter((p == "redistribute" for p in settings.exhausted_policy), dtype=bool)
    weighings = _weighings(settings, totals, growths)
    if settings.allocation == "fixed":
        drawn_from = ~(leaves & (totals == 0))
        most = max((w.weighted & drawn_from for w in weighings), key=np.count_nonzero)
        quota.fixed_shares_of(most.tolist(), settings.chunk_size)  # refuses more than the slots
    empty = np.flatnonzero(weighings[0].awaited & ~leaves & (totals == 0))
    if empty.size:
        raise ValueError(
            f"dataset {settings.names[empty[0]]!r} has no samples; a dataset with a positive weight"
            " needs some. Give it weight 0, or exhausted_policy 'redistribute'."
        )
    return ExhaustionRules(
        weighings=weighings,
        totals=totals,
        leaves=leaves,
        passes=settings.stop_after_passes,
        chunk_size=settings.chunk_size,
        fixed=settings.allocation == "fixed",
        costs=costs,
    )


class _Limits(NamedTuple):
    """Samples of each dataset at which something happens, int64 (k,), from a chunk on."""

    first_chunk: int
    first_pass: np.ndarray
    caps: np.ndarray
    ends: np.ndarray


def _limits(
    settings: MixtureSettings, totals: np.ndarray, growths: Mapping[int, Growth], chunk: int
) -> _Limits:
    """The limits with the shards that there are at a chunk."""

    def drawn_after(passes: np.ndarray) -> np.ndarray:
        drawn = passes * totals
        for d, growth in growths.items():
            number = bisect.bisect_right(growth.first_chunk, chunk)
            drawn[d] = growth.draws_at(number, int(passes[d]))
        return drawn

    once = np.ones_like(totals)
    caps = np.full_like(totals, UNCAPPED)
    times = once.copy()
    for d, repeats in enumerate(settings.max_repeats):
        times[d] = 1 if repeats is None else repeats + 1
    capped = drawn_after(times)
    for d, (policy, repeats) in enumerate(
        zip(settings.exhausted_policy, settings.max_repeats, strict=True)
    ):
        if policy == "stop" or (policy == "repeat" and repeats is not None):
            caps[d] = capped[d]
    ends = drawn_after(once * (settings.stop_after_passes or 1))
    return _Limits(chunk, drawn_after(once), caps, ends)


def _weighings(
    settings: MixtureSettings, totals: np.ndarray, growths: Mapping[int, Growth]
) -> tuple[Weighing, ...]:
    """The entries of the history, with what the policies make of them."""
    limits = [_limits(settings, totals, growths, 0)]
    for growth in growths.values():
        for chunk in growth.first_chunk[1:]:
            limits.append(_limits(settings, totals, growths, chunk))
    limits.sort(key=lambda one: one.first_chunk)
    found: list[Weighing] = []
    end, awaited = FAR, np.zeros(totals.shape, dtype=bool)
    for entry in reversed(settings.history):
        weighted = np.fromiter((unit > 0 for unit in entry.units), dtype=bool)
        if (weighted & ~awaited).any():
            awaited = awaited | weighted
        here = [one for one in limits if one.first_chunk <= entry.first_chunk][-1]
        found.append(
            Weighing(
                first_chunk=entry.first_chunk,
                end=end,
                units=entry.units,
                weighted=weighted,
                awaited=awaited,
                first_pass=here.first_pass,
                caps=here.caps,
                ends=here.ends,
            )
        )
        end = entry.first_chunk
    return tuple(reversed(found))
