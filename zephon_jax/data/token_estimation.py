"""How many tokens the bytes of a dataset make: what a mixture in tokens rests on.

Either a ratio for each dataset, tokens per byte of its files, or the true totals of its shards.
Both are integers, so that the order of a run that follows from them is the same everywhere.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int, exact_number
from zephon_jax._text import short

__all__ = ["MAX_COST", "RATIO_UNIT", "TOKEN_UNIT", "TokenEstimation", "shard_costs"]

TOKEN_UNIT = 1024  # a cost is an integer, in units of 1 / TOKEN_UNIT token
RATIO_UNIT = 1 << 32  # a ratio is an integer, in units of 1 / RATIO_UNIT token per byte
MAX_COST = 1 << 62  # of a whole dataset
_MAX_RATIO = 1 << 16  # tokens per byte
_SHOWN = 8  # names in an error

Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class TokenEstimation:
    """What is known, or how to find out, about the tokens in each dataset.

    A source that is given a tokenizer has to be primed before it is used: `source.prime()` reads
    some samples of each dataset and measures tokens per byte. `from_ratios` and
    `from_shard_totals` give what is known already.

    Args:
      tokenizer: Takes a record (or its `field`) and returns a number of tokens or a sequence of
        token ids. Called from several threads.
      field: For records that are dicts, the entry that the tokenizer takes; None for the record.
      samples_per_dataset: Samples that priming reads of each dataset, at least 1.
      max_shards: Shards that they come from at most, at least 1: a remote or compressed shard is
        fetched or unpacked whole. None for 64, or more where that many do not hold the samples.
      tokenizer_name: Tells estimations apart that rest on other tokenizers; it is not saved with
        states, which carry ratios alone. By default the name of the function, or the type of the
        object and what it calls itself.

    Raises:
      TypeError, ValueError: If a setting is not allowed.

    Example:
      >>> def count_words(text: bytes) -> int:
      ...     return len(text.split())
      >>> TokenEstimation(count_words).primed
      False
      >>> TokenEstimation.from_ratios({"web": 0.25, "code": 0.4}).ratios["web"] == RATIO_UNIT // 4
      True
    """

    __module__ = "zephon_jax"

    # Not part of what makes two estimations equal: another process has another object.
    tokenizer: Callable[[Any], Any] | None = dataclasses.field(default=None, compare=False)
    field: str | None = dataclasses.field(default=None, kw_only=True)
    samples_per_dataset: int = dataclasses.field(default=1024, kw_only=True)
    max_shards: int | None = dataclasses.field(default=None, kw_only=True)
    tokenizer_name: str | None = dataclasses.field(default=None, kw_only=True)
    # Name and ratio of each dataset, sorted by name.
    ratio_items: tuple[tuple[str, int], ...] | None = dataclasses.field(default=None, kw_only=True)
    # Name and totals of each dataset, int64 as little-endian bytes, sorted by name.
    total_items: tuple[tuple[str, bytes], ...] | None = dataclasses.field(
        default=None, kw_only=True, repr=False
    )
    # Name and standard error of each measured ratio, as a fraction of it. For printing only.
    error_items: tuple[tuple[str, float], ...] = dataclasses.field(
        default=(), kw_only=True, compare=False
    )

    def __post_init__(self) -> None:
        if self.tokenizer is None and not self.primed:
            raise ValueError(
                "TokenEstimation needs a tokenizer; got None. Where the ratios or the tokens of"
                " each shard are known, use TokenEstimation.from_ratios or .from_shard_totals."
            )
        if self.tokenizer is not None and not callable(self.tokenizer):
            raise TypeError(f"tokenizer must be callable; got {short(self.tokenizer)}.")
        for name in ("field", "tokenizer_name"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a string; got {short(value)}.")
        for name in ("samples_per_dataset", "max_shards"):
            value = getattr(self, name)
            if value is not None or name != "max_shards":
                object.__setattr__(self, name, as_int(value, name, 1))
        if self.tokenizer_name is None and self.tokenizer is not None:
            object.__setattr__(self, "tokenizer_name", _name_of(self.tokenizer))

    @classmethod
    def from_ratios(
        cls, ratios: Mapping[str, Any], *, tokenizer_name: str | None = None
    ) -> TokenEstimation:
        """Takes ratios that are known: tokens per byte of the files, by dataset.

        Args:
          ratios: ints, `Fraction`, `Decimal` or floats (taken as the decimal that was typed),
            above 0. Held in units of 2^-32.
          tokenizer_name: What they were measured with.

        Raises:
          TypeError, ValueError: If a ratio is not a number above 0, naming the dataset.
        """
        exact = {
            name: exact_number(value, f"ratios[{name!r}]", above=0, high=_MAX_RATIO)
            for name, value in _items(ratios)
        }
        units = {name: max(1, round(value * RATIO_UNIT)) for name, value in exact.items()}
        return cls(ratio_items=_sorted(units.items()), tokenizer_name=tokenizer_name)

    @classmethod
    def from_shard_totals(
        cls, totals: Mapping[str, object], *, tokenizer_name: str | None = None
    ) -> TokenEstimation:
        """Takes the true number of tokens in each shard, by dataset.

        Args:
          totals: For each dataset integers, one for each shard, not negative and not all 0.
            `count_shard_tokens` finds them.
          tokenizer_name: What they were counted with.

        Raises:
          TypeError, ValueError: If a total is not allowed, naming dataset and shard.
        """
        packed = [(name, _pack_totals(name, value)) for name, value in _items(totals)]
        return cls(total_items=_sorted(packed), tokenizer_name=tokenizer_name)

    def with_ratios(
        self, ratios: Mapping[str, int], errors: Mapping[str, float] | None = None
    ) -> TokenEstimation:
        """Returns the same settings with measured ratios, and without the tokenizer.

        Its name stays. What is left is small, and goes to worker processes with its source.

        Args:
          ratios: Integers in units of 1 / RATIO_UNIT token per byte, at least 1.
          errors: Standard error of each, as a fraction of it.
        """
        most = _MAX_RATIO * RATIO_UNIT
        units = [(n, as_int(r, f"ratios[{n!r}]", 1, most)) for n, r in _items(ratios)]
        return dataclasses.replace(
            self,
            tokenizer=None,
            ratio_items=_sorted(units),
            total_items=None,
            error_items=_sorted((errors or {}).items()),
        )

    @property
    def primed(self) -> bool:
        """True where ratios or totals are there, so that a source can use it."""
        return self.ratio_items is not None or self.total_items is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets that it knows of; none before it is primed."""
        return tuple(name for name, _ in (self.ratio_items or self.total_items or ()))

    @property
    def ratios(self) -> dict[str, int] | None:
        """Tokens per byte in units of 1 / RATIO_UNIT, by dataset; None where totals are given."""
        return None if self.ratio_items is None else dict(self.ratio_items)

    @property
    def shard_totals(self) -> dict[str, np.ndarray] | None:
        """Tokens of each shard by dataset, int64 and read-only; None where ratios are given."""
        if self.total_items is None:
            return None
        return {name: np.frombuffer(data, "<i8") for name, data in self.total_items}

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard error of each measured ratio, as a fraction of it."""
        return dict(self.error_items)

    def check_names(self, names: Iterable[str]) -> None:
        """Checks that it speaks of just these datasets.

        Raises:
          ValueError: Naming those that are unknown or missing.
        """
        if not self.primed:
            raise ValueError(_UNPRIMED)
        wanted, known = dict.fromkeys(names), set(self.names)
        kind = "ratios" if self.ratio_items is not None else "shard totals"
        unknown = [name for name in self.names if name not in wanted]
        if unknown:
            raise ValueError(
                f"token_estimation has {kind} for unknown datasets {unknown[:_SHOWN]}; datasets are"
                f" {list(wanted)[:_SHOWN]}. Leave them out."
            )
        missing = [name for name in wanted if name not in known]
        if missing:
            raise ValueError(
                f"token_estimation has no {kind} for datasets {missing[:_SHOWN]}. Give them, or"
                " prime the source anew."
            )

    def table(self) -> str:
        """The ratios, or the totals, as a small table."""
        if self.ratio_items is not None:
            errors = self.standard_errors
            rows = [("dataset", "tokens per byte", "standard error")]
            for name, ratio in self.ratio_items:
                error = f"{100 * errors[name]:.2f} %" if name in errors else ""
                rows.append((name, f"{ratio / RATIO_UNIT:.5f}", error))
        elif self.total_items is not None:
            rows = [("dataset", "tokens", "shards")]
            for name, totals in (self.shard_totals or {}).items():
                rows.append((name, f"{int(totals.sum()):,}", f"{len(totals):,}"))
        else:
            return f"not primed; tokenizer {self.tokenizer_name}"
        width = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{a:<{width[0]}}  {b:>{width[1]}}  {c:>{width[2]}}".rstrip() for a, b, c in rows]
        return "\n".join(lines)


_UNPRIMED = (
    "the tokens of the datasets are not known yet. Use the source that source.prime() returns, or"
    " give TokenEstimation.from_ratios or .from_shard_totals."
)


def shard_costs(dataset: Any, estimation: TokenEstimation) -> np.ndarray:
    """Returns what each shard of a dataset costs, in units of 1 / TOKEN_UNIT token.

    True totals where there are some, else the bytes of the shard's file (as it is stored,
    compressed or not) times the dataset's ratio, rounded down. A sample costs at least one unit.

    Args:
      dataset: A `Dataset`.
      estimation: A primed estimation that knows the dataset.

    Returns:
      int64 (num_shards,), 0 for shards without samples.

    Raises:
      ValueError: If the dataset is not known, its bytes are not, there are totals for another
        number of shards, or the costs sum to more than 2^62. Names the dataset.
    """
    counts = np.asarray(dataset.shard_counts, dtype=np.int64)
    shift = 0
    if estimation.total_items is not None:
        totals = np.frombuffer(_of(dataset, estimation.total_items), "<i8")
        costs, unit = _checked_totals(dataset, totals), TOKEN_UNIT
    elif estimation.ratio_items is not None:
        costs, unit = _bytes_of(dataset), _of(dataset, estimation.ratio_items)
        shift = (RATIO_UNIT // TOKEN_UNIT).bit_length() - 1
    else:
        raise ValueError(_UNPRIMED)
    if int(costs.max(initial=0)) * unit >= 1 << 63:  # Python's integers, for this once
        costs = np.minimum(costs.astype(object) * unit >> shift, (1 << 63) - 1).astype(np.int64)
    else:
        costs = costs * unit >> shift
    costs = np.where(counts > 0, np.maximum(costs, counts), 0)
    if float(costs.sum(dtype=float)) > MAX_COST:
        raise ValueError(
            f"dataset {dataset.name!r} has {float(costs.sum(dtype=float)) / TOKEN_UNIT:.3g} tokens;"
            f" at most {MAX_COST // TOKEN_UNIT} are possible."
        )
    return costs


def _of(dataset: Any, items: Pairs) -> Any:
    """The value of a dataset among sorted pairs."""
    place = bisect.bisect_left(items, (dataset.name,))
    if place == len(items) or items[place][0] != dataset.name:
        raise ValueError(
            f"token_estimation does not know dataset {dataset.name!r}; it knows"
            f" {[name for name, _ in items[:_SHOWN]]}."
        )
    return items[place][1]


def _bytes_of(dataset: Any) -> np.ndarray:
    if dataset.shard_bytes is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no known bytes, and a ratio says tokens per byte. Give"
            " the tokens of its shards with TokenEstimation.from_shard_totals (count_shard_tokens"
            " finds them), or its bytes with Dataset.from_counts(..., num_bytes=)."
        )
    if dataset.num_samples and not dataset.shard_bytes.any():
        raise ValueError(
            f"dataset {dataset.name!r} has {dataset.num_samples} samples in files of 0 bytes: the"
            " file system does not tell sizes. Give the tokens of its shards with"
            " TokenEstimation.from_shard_totals."
        )
    return dataset.shard_bytes


def _checked_totals(dataset: Any, totals: np.ndarray) -> np.ndarray:
    if len(totals) != dataset.num_shards:
        raise ValueError(
            f"dataset {dataset.name!r} has {dataset.num_shards} shards; its shard totals have"
            f" {len(totals)} entries. Give one total for each shard, in order."
        )
    stray = np.flatnonzero((totals > 0) & (np.asarray(dataset.shard_counts) == 0))
    if len(stray):
        raise ValueError(
            f"dataset {dataset.name!r}, shard {stray[0]} has no samples; its total is"
            f" {totals[stray[0]]} tokens."
        )
    return totals


def _items(values: object) -> list[tuple[str, Any]]:
    if not isinstance(values, Mapping):
        raise TypeError(f"a mapping by dataset name is needed; got {type(values).__name__}.")
    if not values:
        raise ValueError("no dataset is named; got an empty mapping.")
    for name in values:
        if not isinstance(name, str):
            raise TypeError(f"datasets are named by strings; got {short(name)}.")
    return list(values.items())


def _sorted(items: Iterable[tuple[str, Any]]) -> Any:
    return tuple(sorted(items))


def _pack_totals(name: str, totals: object) -> bytes:
    if not isinstance(totals, (Sequence, np.ndarray)) or isinstance(totals, (str, bytes)):
        raise TypeError(
            f"dataset {name!r}: shard totals must be a list of integers; got {short(totals)}."
        )
    if not isinstance(totals, np.ndarray) or totals.dtype == object:
        most = MAX_COST // TOKEN_UNIT
        label = f"dataset {name!r}: the total of shard"
        for shard, total in enumerate(totals):
            as_int(total, f"{label} {shard}", 0, most)
    array = np.asarray(totals)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(
            f"dataset {name!r}: shard totals must be a flat list of integers; got"
            f" {array.dtype} {array.shape}."
        )
    if array.size and array.min() < 0:
        shard = int(array.argmin())
        raise ValueError(
            f"dataset {name!r}: the total of shard {shard} must be at least 0; got {array[shard]}."
        )
    if array.size and int(array.max()) > MAX_COST // TOKEN_UNIT:
        shard = int(array.argmax())
        raise ValueError(
            f"dataset {name!r}: the total of shard {shard} must be at most"
            f" {MAX_COST // TOKEN_UNIT}; got {array[shard]}."
        )
    if not array.any():
        raise ValueError(
            f"dataset {name!r} has no tokens in any of its {len(array)} shards. Leave it out, or"
            " count its tokens anew."
        )
    return array.astype("<i8").tobytes()


def _name_of(tokenizer: Any) -> str:
    """What tells a tokenizer from others, in this and in other processes."""
    function = getattr(tokenizer, "func", tokenizer)  # of a functools.partial
    kind = function if hasattr(function, "__qualname__") else type(function)
    name = f"{getattr(kind, '__module__', None) or 'builtins'}.{kind.__qualname__}"
    owner = getattr(function, "__self__", function)  # the tokenizer whose method this is
    for attribute in ("name_or_path", "name"):
        own = getattr(owner, attribute, None)
        if isinstance(own, str) and own:
            return f"{name} {own}"
    return name
