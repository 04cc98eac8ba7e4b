"""Datasets: a name, the number of samples in each shard, and where the shards are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.data.bad_records import OnBadRecord, check_policy
from zephon_jax.data.cache.stager import Shard
from zephon_jax.data.dataset_arguments import (
    DataChanged,
    RowGroups,
    check_data_changed,
    checked_counts,
    checked_name,
    checked_row_groups,
    frozen_counts,
)
from zephon_jax.data.file_shards import file_shards
from zephon_jax.data.files import File, PathLike, is_local
from zephon_jax.data.find_shards import describe_shard, find_shards, location_of
from zephon_jax.data.formats import get_format
from zephon_jax.data.formats.base import named_error
from zephon_jax.data.memory_sources import as_records
from zephon_jax.data.part_shards import PartShards, by_row_groups
from zephon_jax.data.shard_store import (
    CountedShards,
    FileShards,
    RandomAccess,
    ShardStore,
    SourceShards,
)
from zephon_jax.data.split import SplitRule, split_samples, split_shards

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named list of shards. Immutable and picklable; built by the `from_*` constructors.

    Example:
      >>> toy = Dataset.from_counts("toy", [1000, 500])
      >>> toy.num_shards, toy.num_samples, toy.readable
      (2, 1500, False)
    """

    __module__ = "zephon_jax"

    # What the mixture calls it.
    name: str
    # Samples in each shard, int64 (num_shards,), read-only.
    shard_counts: np.ndarray
    # Where the shards are.
    store: ShardStore = field(default_factory=CountedShards)
    # What is done about records that cannot be read.
    on_bad_record: OnBadRecord = "raise"
    # Bad records that a lane leaves out before it raises; None for no bound.
    max_bad_records: int | None = None
    # What is done where a state was saved with other data in the shards.
    data_changed: DataChanged = "raise"

    def __post_init__(self) -> None:
        check_policy(self.name, self.on_bad_record, self.max_bad_records)
        check_data_changed(self.name, self.data_changed)
        object.__setattr__(self, "shard_counts", frozen_counts(self.name, self.shard_counts))

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.shard_counts.flags.writeable = False  # Pickle forgets it.

    def __repr__(self) -> str:
        where = "counts only" if self.location is None else repr(self.location)
        return (
            f"Dataset({self.name!r}, {self.num_samples} samples in {self.num_shards} shards, "
            f"{where})"
        )

    @property
    def num_shards(self) -> int:
        """Number of shards, empty ones included."""
        return len(self.shard_counts)

    @property
    def num_samples(self) -> int:
        """Samples in all shards together."""
        return int(self.shard_counts.sum(dtype=np.int64))

    @property
    def readable(self) -> bool:
        """False where only the counts are known, so that reading would fail."""
        return self.store.readable

    @property
    def shards(self) -> tuple[File, ...]:
        """The files in shard order; empty where there are none."""
        return self.store.files

    @property
    def format(self) -> str | None:
        """The word for the format of its files."""
        return self.store.format

    @property
    def location(self) -> str | None:
        """Where it comes from, None where only the counts are known. Equal for equal data."""
        return self.store.location

    @property
    def whole(self) -> Dataset:
        """The dataset that this one is a part of, at last; itself if it is none."""
        dataset = self
        while isinstance(dataset.store, PartShards):
            dataset = dataset.store.whole
        return dataset

    @property
    def shard_bytes(self) -> np.ndarray | None:
        """Bytes of each shard's file as it is stored, int64 (num_shards,); None where not known.

        A shard of a part has the bytes of the whole shard in proportion to its samples. Of a
        source in memory nobody knows the bytes, and each sample counts as one.
        """
        return self.store.num_bytes(self.shard_counts)

    @property
    def shard_digests(self) -> np.ndarray | None:
        """A digest of what is in each shard, int64 (num_shards,); None where not known.

        Counting finds it in Parquet footers and in the places of JSON Lines. It is the same for a
        copy of the data elsewhere.
        """
        store = self.store
        if isinstance(store, PartShards):
            digests = store.whole.shard_digests
            return None if digests is None else digests[store.rule.shard_ids]
        return None if store.digests is None else np.asarray(store.digests, dtype=np.int64)

    def describe_shard(self, shard_id: int) -> str:
        """Names a shard for an error."""
        return describe_shard(self.name, self.shards, shard_id)

    def shard(self, shard_id: int) -> Shard:
        """Returns what it takes to read a shard that is a file, made once."""
        shards: dict[int, Shard] = self.__dict__.setdefault("_shards", {})
        if shard_id not in shards:
            store = self.store
            assert isinstance(store, FileShards)
            file, fmt = store.files[shard_id], get_format(str(store.format))
            shards[shard_id] = Shard(
                file,
                fmt,
                store.storage_options,
                columns=store.columns,
                location=store.location,
                num_samples=int(self.shard_counts[shard_id]),
                needs_copy=not is_local(file.path) or fmt.unpacker(file) is not None,
                added=() if store.added_columns is None else store.added_columns[shard_id],
            )
        return shards[shard_id]

    def resolve(self, shard_id: int, indices: np.ndarray) -> tuple[Dataset, int, np.ndarray]:
        """Follows parts to the dataset that holds the data: its shard, and places in that."""
        dataset = self
        while isinstance(dataset.store, PartShards):
            whole, rule = dataset.store.whole, dataset.store.rule
            shard_id, indices = rule.resolve(shard_id, indices, whole.shard_counts)
            dataset = whole
        return dataset, shard_id, indices

    def split(
        self, *, seed: int, by: str = "sample", **fractions: float | Fraction
    ) -> dict[str, Dataset]:
        """Splits into named parts whose members never change.

        Membership follows from the seed, the shard numbers and the shard counts: it is the same
        for every pass, host and shuffle.

        Args:
          seed: Chooses the members.
          by: "sample" gives each part its fraction of every shard; "shard" gives whole shards,
            for samples that must not be torn apart, such as a sorted or grouped corpus.
          **fractions: Fraction of each part, above 0. What they leave out is in no part.

        Returns:
          The parts by name.

        Raises:
          ValueError: If a fraction is not above 0, their sum is above 1, or a part gets no shard.

        Example:
          >>> parts = Dataset.from_counts("web", [1000, 500]).split(seed=0, train=0.9, held=0.1)
          >>> parts["train"].num_samples, parts["held"].num_samples
          (1350, 150)
        """
        if by not in ("sample", "shard"):
            raise ValueError(
                f"dataset {self.name!r}: by must be 'sample' or 'shard'; got {short(by)}."
            )
        rule = split_samples if by == "sample" else split_shards
        try:
            parts = rule(self.shard_counts, fractions, seed)
        except (TypeError, ValueError) as error:
            raise named_error(error, f"dataset {self.name!r}") from None
        return {name: self._part(name, part) for name, part in parts.items()}

    def _part(self, name: str, rule: SplitRule) -> Dataset:
        if self.readable:
            store = PartShards(
                self,
                rule,
                location=f"{self.location}#{name}",
                files=tuple(self.shards[i] for i in rule.shard_ids) if self.shards else (),
                format=self.format,
                staged=self.store.staged,
            )
            return replace(self, name=name, shard_counts=rule.counts, store=store)
        given = self.shard_bytes
        shared = None if given is None else rule.share_bytes(given, self.shard_counts)
        return Dataset(name, rule.counts, CountedShards(shared))

    @classmethod
    def from_counts(
        cls,
        name: str,
        counts: Sequence[int] | np.ndarray,
        num_bytes: Sequence[int] | np.ndarray | None = None,
    ) -> Dataset:
        """Declares a dataset by its sample counts alone, to simulate a schedule.

        Args:
          name: What the mixture calls it.
          counts: Samples in each shard, at least 0.
          num_bytes: Bytes of each shard, for mixtures in tokens.

        Raises:
          TypeError: If the name is not a string, or a count is not an integer.
          ValueError: If the name is empty, a count is negative, or there are no shards.
        """
        name, counts = checked_name(name), checked_counts(name, counts)
        if num_bytes is not None:
            num_bytes = frozen_counts(name, checked_counts(name, num_bytes, "num_bytes"))
            if len(num_bytes) != len(counts):
                raise ValueError(
                    f"dataset {name!r}: num_bytes has {len(num_bytes)} entries for {len(counts)}"
                    " shards. Give one for each shard."
                )
        return cls(name, counts, CountedShards(num_bytes))

    @classmethod
    def from_source(
        cls,
        name: str,
        source: RandomAccess,
        shard_size: int | None = None,
        on_bad_record: OnBadRecord = "raise",
        max_bad_records: int | None = None,
    ) -> Dataset:
        """Wraps an object with `__len__` and `__getitem__`.

        A list, a Hugging Face dataset, a TFDS data source, a Bagz reader. Where it has
        `__getitems__` or `_getitems`, one call reads many records. Tables of pandas, Polars and
        Arrow are read by row, as dicts of Python values, and their columns by value.

        Args:
          name: What the mixture calls it.
          source: The object. It is pickled with the dataset; a memory-mapped array by its file.
          shard_size: Samples to a shard, so that there are shards to shuffle. None for one shard.
          on_bad_record: As for `from_path`.
          max_bad_records: As for `from_path`.

        Raises:
          TypeError: If the object has not the two methods, or is text or a mapping, or if
            `shard_size` is no integer.
          ValueError: If `shard_size` is below 1.

        Example:
          >>> Dataset.from_source("letters", list("abcde"), shard_size=2).shard_counts.tolist()
          [2, 2, 1]
        """
        name = checked_name(name)
        kind = f"{type(source).__module__}.{type(source).__qualname__}"
        location = f"<{kind} at {id(source):#x}>"
        source = as_records(name, source)
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise TypeError(
                f"dataset {name!r}: a source needs __len__ and __getitem__; got {short(source)}."
            )
        if isinstance(source, (str, bytes)):
            raise TypeError(
                f"dataset {name!r}: a source gives records; got {short(source)}. Files are named"
                " with Dataset.from_path."
            )
        if isinstance(source, Mapping):
            raise TypeError(
                f"dataset {name!r}: a source is indexed by numbers; got a"
                f" {type(source).__name__} of {sorted(map(str, source))}. Choose one of them."
            )
        total = len(source)
        label = f"dataset {name!r}: shard_size"
        size = max(1, total) if shard_size is None else as_int(shard_size, label, 1)
        starts = np.arange(0, max(1, total), size)
        store = SourceShards(source, location)
        counts = np.minimum(total - starts, size)
        return cls(name, counts, store, on_bad_record, max_bad_records)

    @classmethod
    def from_path(
        cls,
        name: str,
        path: PathLike | Sequence[PathLike],
        format: str | None = None,
        storage_options: Mapping[str, object] | None = None,
        columns: Sequence[str] | None = None,
        counts: Sequence[int] | np.ndarray | None = None,
        row_groups: RowGroups = "files",
        on_bad_record: OnBadRecord = "raise",
        max_bad_records: int | None = None,
        data_changed: DataChanged = "raise",
    ) -> Dataset:
        """Finds the shards of a dataset and counts their samples.

        Shards are in natural order of their paths (`part-9` before `part-10`), so the order of
        the data does not depend on how a file system lists them.

        Args:
          name: What the mixture calls it.
          path: A file, a folder (with all folders inside), a glob, a URL, or a list of these.
          format: One of `zephon_jax.data.formats.FORMATS`; None to tell by suffix or first bytes.
          storage_options: Arguments for the fsspec file system.
          columns: Columns to read, for Parquet; None for all.
          counts: Samples in each shard in natural order, where they are known already: then no
            shard is opened to count.
          row_groups: "shards" makes each row group of a Parquet file a shard of its own, so that
            shuffles of shards, and within shards, stay inside groups that are decoded once.
            "files", the default, makes each file one shard.
          on_bad_record: What is done about a record that cannot be read, such as a line that is no
            JSON: "raise" an error in its place, "skip" it, or a function of a `BadRecord` that
            returns the record to take, None to skip it. The order of all others stays.
          max_bad_records: Bad records that a lane leaves out or replaces before it raises; None
            for no bound.
          data_changed: "raise" refuses states that were saved while the shards, with the same
            counts, held other data, as their sizes and the digests of counting tell; "warn" lets
            them pass.

        Raises:
          FileNotFoundError: If a path does not exist.
          ValueError: If there are no shards, formats are mixed or unknown, Parquet files have
            different columns, or a shard is broken. The error names the dataset and the shard.
        """
        name = checked_name(name)
        check_policy(name, on_bad_record, max_bad_records)
        files, fmt = find_shards(name, path, format, storage_options)
        by_group = checked_row_groups(name, row_groups, fmt.name, counts is not None)
        checked, store, facts = file_shards(
            name, files, fmt, location_of(path), storage_options, columns, counts
        )
        dataset = cls(name, checked, store, on_bad_record, max_bad_records, data_changed)
        parts = by_row_groups(dataset, [one["rows"] for one in facts]) if by_group else None
        if parts is None:
            return dataset
        return replace(dataset, shard_counts=parts.rule.counts, store=parts)
