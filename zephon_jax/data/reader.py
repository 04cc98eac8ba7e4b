"""Reads the records that a schedule names, in batches ordered by their place in the files.

One `Reader` serves a whole process: every lane, dataset and thread shares its open files. Which
records come back, and in which order, depends on nothing but the ids that were asked for.

Ids are permuted on their way. A chunk finds its samples by component and shard, near the order of
the files, and gives them in its reading order, mixed; a window of that order is what comes here.
`group_ids` sorts it by place again, because neighbors in a file are read by one call, a row group
is decoded once and a disk goes forward; the records go back to the places of their ids at the end.
The order of a window cannot be kept through both: it is cut from the mixed order, to bound the
bytes in memory, and which ids fall into one window is only known then.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from zephon_jax._process import PerProcess, from_environment
from zephon_jax.data.bad_records import Unreadable, read_records, with_names
from zephon_jax.data.cache.block_plan import BlockUse
from zephon_jax.data.cache.decoded import decoded_blocks
from zephon_jax.data.cache.stager import Shard, Stager, default_stager
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.formats import OpenShard, get_format
from zephon_jax.data.formats.base import named_error
from zephon_jax.data.id_groups import (
    IdGroup,
    as_ids,
    check_range,
    check_readable,
    group_ids,
    put_back,
)
from zephon_jax.data.open_files import OpenFiles
from zephon_jax.data.shard_store import SourceShards

__all__ = ["PROBE", "Reader", "default_reader"]

DEFAULT_OPEN_FILES = 64
DEFAULT_WINDOW_BYTES = 1 << 26

# Records in a window before it is known how large those of a dataset are.
PROBE = 256


class Reader:
    """Reads records by sample id. Safe to share between threads; a forked process may use it too.

    Args:
      max_open_files: Files that stay open between calls. More are open only while that many
        threads read different files at the same time.
      window_bytes: What `windows` keeps each window below.
      stager: Makes local copies of remote shards; None for the one that this process shares.
    """

    def __init__(
        self,
        *,
        max_open_files: int = DEFAULT_OPEN_FILES,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        stager: Stager | None = None,
    ):
        for name, value in (("max_open_files", max_open_files), ("window_bytes", window_bytes)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        self.window_bytes = window_bytes
        self._stager = stager
        self._files = PerProcess(functools.partial(OpenFiles, max_open_files))
        # Bytes that came back for bytes that were expected, by dataset name.
        self._ratios: dict[str, float] = {}

    @property
    def stager(self) -> Stager:
        """What makes local copies."""
        return self._stager or default_stager()  # The environment may name another folder now.

    def read(
        self, datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray, *, marked: bool = False
    ) -> list[Any]:
        """Returns the records of `sample_ids`, in their order.

        Args:
          datasets_by_id: Dataset of each dataset id.
          sample_ids: int64 (n, 3): dataset id, shard id, place in the shard. Any order, repeats
            allowed.
          marked: Put an `Unreadable` in the place of each record that cannot be read, instead of
            raising.

        Raises:
          ValueError: If a dataset is counts only or unknown, an id is out of range, or a shard
            is cut, corrupted or changed. Names dataset and shard.
          OSError: If a shard is gone or must not be read, the network failed too often, or the
            disk is full. Names dataset and shard.
        """
        sample_ids = as_ids(sample_ids)
        check_readable(datasets_by_id, sample_ids)
        groups, inverse = group_ids(sample_ids)
        for group in groups:
            check_range(datasets_by_id[group.dataset_id], group)
        records: list[Any] = []
        with self._fetching(datasets_by_id, groups):
            for group in groups:
                records += self._read_group(datasets_by_id[group.dataset_id], group, marked)
        return records if inverse is None else [records[place] for place in inverse.tolist()]

    def windows(
        self,
        datasets_by_id: Mapping[int, Dataset],
        sample_ids: np.ndarray,
        max_bytes: int | None = None,
        probe: int = PROBE,
    ) -> Iterator[tuple[int, int]]:
        """Cuts ids into runs whose records take at most `max_bytes`, to be read one by one.

        Sizes are those in the file where the format knows them (JSON Lines, Megatron, Parquet
        by row group), else the mean of the shard, corrected by what earlier reads of the dataset
        returned; the first window is short to find out. A single record that is larger makes a
        window by itself.

        Args:
          datasets_by_id: Dataset of each dataset id.
          sample_ids: int64 (n, 3).
          max_bytes: Bytes in each window; None for the reader's own setting.
          probe: Samples in a window at most while it is not known how large those of a dataset are.

        Yields:
          Start and stop of each window, in order.
        """
        sample_ids = as_ids(sample_ids)
        check_readable(datasets_by_id, sample_ids)
        budget = self.window_bytes if max_bytes is None else max_bytes
        sizes, guessed = self._sizes(datasets_by_id, sample_ids)
        start, ahead = 0, probe
        while start < len(sample_ids):
            # A few times as many as the last window had, so that many windows take linear time.
            limit = min(len(sample_ids), start + ahead)
            scaled = sizes[start:limit].copy()
            for dataset_id, where in guessed.items():
                ratio = self._ratios.get(datasets_by_id[dataset_id].name)
                if ratio is None:  # Compressed records may be far larger than the file tells.
                    limit = min(limit, start + probe)
                else:
                    scaled[where[start : start + ahead]] *= ratio
            stop = start + int(np.searchsorted(np.cumsum(scaled), budget, side="right"))
            if stop == start + ahead < len(sample_ids) and stop <= limit:
                ahead *= 4
                continue
            stop = max(min(stop, limit), start + 1)
            yield start, stop
            start, ahead = stop, max(probe, 2 * (stop - start))

    @contextmanager
    def opened(self, dataset: Dataset, shard_id: int) -> Iterator[OpenShard]:
        """Holds an open shard of a dataset that has files and is no part of another."""
        with self._files.get().opened(dataset.shard(shard_id), self._stager) as shard:
            yield shard

    def needs_plan(self, datasets_by_id: Mapping[int, Dataset]) -> bool:
        """True if some shards are remote or compressed, so that `plan` has something to do."""
        return any(dataset.store.staged for dataset in datasets_by_id.values())

    def plan(
        self,
        datasets_by_id: Mapping[int, Dataset],
        upcoming: np.ndarray | Sequence[Sequence[int]],
        owner: Hashable = None,
    ) -> None:
        """Says which shards come next, so that they are fetched before they are wanted.

        Costs next to nothing where no shard needs a local copy.

        Args:
          datasets_by_id: Dataset of each dataset id.
          upcoming: Integers (n, 2) or (n, 3): dataset id and shard id (what follows is ignored)
            in order of use, those in use now first. Repeats are fine.
          owner: Whose plan this is, a lane for instance; it replaces that owner's last plan.
            An empty plan forgets the owner.
        """
        pairs = np.asarray(upcoming, dtype=np.int64)
        pairs = pairs.reshape(-1, pairs.shape[-1] if pairs.ndim > 1 else 2)[:, :2]
        _, first = np.unique(pairs, axis=0, return_index=True)
        shards = [
            self._shard_of(datasets_by_id[int(dataset_id)], int(shard_id))
            for dataset_id, shard_id in pairs[np.sort(first)]
            if datasets_by_id[int(dataset_id)].store.staged
        ]
        if shards or self.needs_plan(datasets_by_id):
            self.stager.plan(("plan", owner), shards)

    def forget(self, owner: Hashable) -> None:
        """Lets go of an owner's plan, soon. A finalizer may call it: it waits for no work."""
        self.stager.forget(("plan", owner))

    def plans_blocks(self, datasets_by_id: Mapping[int, Dataset]) -> bool:
        """True if some shards are decoded in blocks, so that `block_uses` has something to say."""
        return any(
            dataset.format is not None and get_format(dataset.format).decodes_blocks
            for dataset in datasets_by_id.values()
        )

    def block_uses(
        self, datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray
    ) -> list[BlockUse]:
        """The decoded blocks that `read` of these ids takes, in its order.

        Those of shards that are not here yet, or cannot be opened, are left out.

        Args:
          datasets_by_id: Dataset of each dataset id.
          sample_ids: int64 (n, 3).
        """
        uses: list[BlockUse] = []
        for group in group_ids(as_ids(sample_ids))[0]:
            dataset = datasets_by_id[group.dataset_id]
            if not self.plans_blocks({0: dataset}):
                continue
            physical, shard_id, indices = dataset.resolve(group.shard_id, group.indices)
            shard = physical.shard(shard_id)
            if shard.needs_copy and self.stager.any_missing([shard]):
                continue
            with (
                contextlib.suppress(Exception),  # Who reads the shard gets the error.
                self._files.get().opened(shard, self._stager) as opened,
            ):
                uses += opened.block_uses(np.sort(indices))
        return uses

    def close(self) -> None:
        """Closes the files that nobody is reading, and drops what was decoded of them."""
        self._files.get().close()
        decoded_blocks().forget()

    def _shard_of(self, dataset: Dataset, shard_id: int) -> Shard:
        physical, physical_id, _ = dataset.resolve(shard_id, np.zeros(0, np.int64))
        return physical.shard(physical_id)

    @contextmanager
    def _fetching(
        self, datasets_by_id: Mapping[int, Dataset], groups: Sequence[IdGroup]
    ) -> Iterator[None]:
        """While a call that needs several copies reads the first, the others are made."""
        shards = [
            self._shard_of(datasets_by_id[group.dataset_id], group.shard_id)
            for group in groups
            if datasets_by_id[group.dataset_id].store.staged
        ]
        if len(shards) < 2 or not self.stager.any_missing(shards):
            yield
            return
        owner = ("read", threading.get_ident())
        try:
            self.stager.plan(owner, shards)
            yield
        finally:
            self.stager.plan(owner, ())

    def read_good(
        self, datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray
    ) -> tuple[np.ndarray, list[object]]:
        """Reads what can be read, as the datasets say: the ids that are left, and their records.

        Args and Raises are those of `read`; bad records of datasets that leave them out do not
        raise, and those that are replaced are left out too.
        """
        sample_ids = as_ids(sample_ids)
        if all(dataset.on_bad_record == "raise" for dataset in datasets_by_id.values()):
            return sample_ids, self.read(datasets_by_id, sample_ids)
        records = self.read(datasets_by_id, sample_ids, marked=True)
        bad = np.array([isinstance(record, Unreadable) for record in records], dtype=bool)
        for place in np.flatnonzero(bad).tolist():
            if datasets_by_id[int(sample_ids[place, 0])].on_bad_record == "raise":
                raise records[place].error
        return sample_ids[~bad], [records[place] for place in np.flatnonzero(~bad).tolist()]

    def _read_group(self, dataset: Dataset, group: IdGroup, marked: bool) -> Sequence[object]:
        try:
            physical, shard_id, indices = dataset.resolve(group.shard_id, group.indices)
            if physical is dataset:
                records = self._read_shard(dataset, shard_id, indices, marked)
            else:
                # The places of a part are spread over its shard by a permutation of their own.
                order = np.argsort(indices, kind="stable")
                found = self._read_shard(physical, shard_id, indices[order], marked)
                records = put_back(found, order)
        except Exception as error:
            raise named_error(error, dataset.describe_shard(group.shard_id)) from error
        return with_names(dataset, group, records) if marked else records

    def _read_shard(
        self, dataset: Dataset, shard_id: int, indices: np.ndarray, marked: bool
    ) -> Sequence[object]:
        store = dataset.store
        if isinstance(store, SourceShards):
            first = int(dataset.shard_counts[:shard_id].sum())

            def read_source(places: np.ndarray) -> Sequence[object]:
                return store.read((places + first).tolist(), dataset.num_samples)

            records = read_records(read_source, indices, marked)
        else:
            with self._files.get().opened(dataset.shard(shard_id), self._stager) as shard:
                records = read_records(shard.read, indices, marked)
        if store.files and records and isinstance(records[0], bytes):
            self._learn(dataset, shard_id, [one for one in records if isinstance(one, bytes)])
        return records

    def _learn(self, dataset: Dataset, shard_id: int, records: Sequence[bytes]) -> None:
        expected = len(records) * _mean_bytes(dataset, shard_id)
        ratio = sum(map(len, records)) / max(1.0, expected)
        self._ratios[dataset.name] = max(ratio, (self._ratios.get(dataset.name, ratio) + ratio) / 2)

    def _sizes(
        self, datasets_by_id: Mapping[int, Dataset], sample_ids: np.ndarray
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Bytes of each record, float64, and where in each dataset they are only a mean."""
        sizes = np.zeros(len(sample_ids))
        guessed: dict[int, np.ndarray] = {}
        groups, inverse = group_ids(sample_ids)
        # Where each sorted id stands in `sample_ids`.
        place = np.arange(len(sample_ids)) if inverse is None else np.argsort(inverse)
        begin = 0
        for group in groups:
            dataset = datasets_by_id[group.dataset_id]
            check_range(dataset, group)
            mine = place[begin : begin + len(group.indices)]
            begin += len(group.indices)
            physical, shard_id, indices = dataset.resolve(group.shard_id, group.indices)
            known = self._known_sizes(physical, shard_id, indices)
            if known is None:
                known = np.full(len(mine), _mean_bytes(physical, shard_id))
                where = guessed.setdefault(group.dataset_id, np.zeros(len(sample_ids), bool))
                where[mine] = True
            sizes[mine] = known
        return sizes, guessed

    def _known_sizes(
        self, dataset: Dataset, shard_id: int, indices: np.ndarray
    ) -> np.ndarray | None:
        """Sizes from the file, where that is here and knows them."""
        if not dataset.shards or dataset.format == "array_record":
            return None
        if dataset.store.staged and self.stager.any_missing([dataset.shard(shard_id)]):
            return None
        try:
            with self._files.get().opened(dataset.shard(shard_id), self._stager) as shard:
                return shard.num_bytes(indices)
        except Exception as error:
            raise named_error(error, dataset.describe_shard(shard_id)) from error


def _mean_bytes(dataset: Dataset, shard_id: int) -> float:
    if not dataset.shards:
        return 1024.0  # Nothing is known about what a source returns.
    return dataset.shards[shard_id].size / max(1, int(dataset.shard_counts[shard_id]))


def _make_reader(max_open_files: int, window_bytes: int) -> Reader:
    return Reader(max_open_files=max_open_files, window_bytes=window_bytes)


_default: PerProcess[Reader] = PerProcess(_make_reader)


def default_reader() -> Reader:
    """Returns the reader that this process shares, with the settings of the environment.

    `$ZEPHON_JAX_OPEN_FILES` (64) and `$ZEPHON_JAX_WINDOW_BYTES` (64 MiB) are the arguments of
    `Reader`. Processes that are started from this one inherit them; a forked one gets a reader of
    its own.
    """
    return _default.get(
        from_environment("OPEN_FILES", DEFAULT_OPEN_FILES, 1),
        from_environment("WINDOW_BYTES", DEFAULT_WINDOW_BYTES, 1),
    )
