"""A source that grows while its run goes on: which shards belong to it from which chunk on.

Shards appear in folders whenever they are ready; hosts see them at other times. So nothing follows
from what is there: one process records it, at a chunk that nobody has read, and every host and
every restart makes the same source from what was recorded. A record is a file that is never
changed, and each names the one before it, so that two writers, or a lost file, are noticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec

from zephon_jax._arrays import as_int
from zephon_jax._checked_json import digest_of, unwrap, wrap
from zephon_jax._text import short
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.files import PathLike
from zephon_jax.data.recorded_shards import GrowingPlace, RecordedShard
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.mixture.scheduled import changed, replayed
from zephon_jax.mixture.settings import Weight

__all__ = ["ShardManifest"]

_KIND = "zephon_jax shard manifest"
_VERSION = 1

MakeSource = Callable[[list[Dataset]], ConfiguredMixture]


class _Record(NamedTuple):
    """Shards that were taken together, and the change of the run that they came with."""

    shards: Mapping[str, list[RecordedShard]]  # new ones, by dataset
    change: list[object] | None  # of `source.changes`; None for those that the run begins with
    digest: str


class ShardManifest:
    r"""Records which shards a run has, while more of them appear.

    One process calls `record`; all make their source by `source`. Shards that are recorded in
    mid-run come at a chunk boundary and are a generation of their own (see
    `ScheduledMixtureWorkSource.with_mixture`): what was drawn stays as it was, and each sample
    comes once in each pass.

    A shard counts when its file has its name and can be read to its end, so write it under another
    name, which the path does not match, and rename it when it is whole; object stores show only
    whole objects.

    Args:
      directory: Folder or URL (fsspec) of the records, which all hosts see; not one of the data's.
      paths: The folder or glob of each dataset, by name, in the order of their ids. One that is
        still empty comes in when its first shards are recorded.
      manifest_options: Arguments for the fsspec file system of `directory`.
      **settings: Further arguments of `Dataset.from_path` for all datasets: format,
        storage_options, columns, on_bad_record, max_bad_records, data_changed.

    Raises:
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> import pathlib, tempfile, zephon_jax as zx
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> (folder / "web").mkdir()
      >>> def arrives(n):
      ...     lines = "".join(f'{{"n": {100 * n + i}}}\n' for i in range(20))
      ...     _ = (folder / "web" / f"{n}.jsonl").write_text(lines)
      >>> manifest = zx.ShardManifest(folder / "manifest", {"web": folder / "web"})
      >>> def plan(datasets):
      ...     return zx.StaticMixtureWorkSource(
      ...         datasets, {"web": 1}, chunk_size=4, exhausted_policy="repeat")
      >>> arrives(0)
      >>> manifest.record()  # before the run begins
      1
      >>> source = manifest.source(plan)
      >>> arrives(1)  # nobody's concern yet
      >>> manifest.source(plan).datasets_by_id[0].num_shards
      1
      >>> manifest.record(source, at=3)  # one process, in mid-run
      1
      >>> grown = manifest.source(plan)  # every host, and every restart
      >>> grown.datasets_by_id[0].num_shards, grown.changes[0].first_chunk
      (2, 3)
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        directory: PathLike,
        paths: Mapping[str, PathLike],
        *,
        manifest_options: Mapping[str, object] | None = None,
        **settings: Any,
    ):
        if not isinstance(paths, Mapping) or not paths:
            raise TypeError(f"paths must map names of datasets to folders; got {short(paths)}.")
        fixed = sorted({"counts", "row_groups", "name", "path"} & settings.keys())
        if fixed:
            raise TypeError(f"a dataset that grows takes no {fixed}: its shards are recorded.")
        self._given = {
            "directory": directory, "paths": dict(paths), "manifest_options": manifest_options,
            **settings,
        }  # fmt: skip
        self._places = {name: GrowingPlace(name, path, settings) for name, path in paths.items()}
        self._fs, root = fsspec.core.url_to_fs(os.fspath(directory), **(manifest_options or {}))
        self.directory, self._root = directory, root.rstrip("/")

    def __getstate__(self) -> dict[str, object]:
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def __repr__(self) -> str:
        return f"ShardManifest({str(self.directory)!r}, datasets {list(self._places)})"

    # Records

    def _path(self, number: int) -> str:
        return f"{self._root}/record-{number:06d}.json"

    def _records(self) -> list[_Record]:
        """All records, in order.

        Raises:
          ValueError: If one is missing, damaged, or does not follow the one before it.
        """
        self._fs.invalidate_cache()
        try:
            names = sorted(self._fs.ls(self._root, detail=False))
        except FileNotFoundError:
            return []
        wanted = [name for name in names if name.rsplit("/", 1)[-1].startswith("record-")]
        wanted = [name for name in wanted if name.endswith(".json")]
        data = self._fs.cat(wanted) if wanted else {}
        found: list[_Record] = []
        for number, name in enumerate(wanted):
            if not name.endswith(self._path(number).rsplit("/", 1)[-1]):
                raise ValueError(f"{self._path(number)} is missing, and {name} comes after it.")
            found.append(self._read(name, data[name], found[-1].digest if found else ""))
        return found

    def _read(self, name: str, data: bytes, previous: str) -> _Record:
        body = unwrap(_KIND, name, data)
        if body.get("version") != _VERSION:
            raise ValueError(f"{name} has version {body.get('version')!r}; this reads {_VERSION}.")
        if body["previous"] != previous:
            raise ValueError(f"{name} does not follow the record before it: it is of another run.")
        unknown = sorted(body["shards"].keys() - self._places.keys())
        if unknown:
            raise ValueError(
                f"{name} has shards of {unknown}; paths= does not name these datasets."
            )
        shards = {d: [RecordedShard(*one) for one in new] for d, new in body["shards"].items()}
        return _Record(shards, body["change"], digest_of(data.decode()))

    def _write(self, number: int, body: Mapping[str, object]) -> None:
        """Writes a record, unless there is one of its number.

        Raises:
          RuntimeError: If another process was faster.
        """
        path, data = self._path(number), wrap(_KIND, {"version": _VERSION, **body})
        self._fs.makedirs(self._root, exist_ok=True)
        if getattr(self._fs, "local_file", False):
            mine = _created(path, data)
        else:
            mine = not self._fs.exists(path)
            if mine:
                self._fs.pipe_file(path, data)
                self._fs.invalidate_cache()
                mine = self._fs.cat_file(path) == data
        if not mine:
            raise RuntimeError(
                f"another process has written {path}: let one alone record the shards of a run."
            )

    # What users call

    def record(
        self,
        source: ConfiguredMixture | None = None,
        at: int | None = None,
        mixture: Mapping[str, Weight] | None = None,
        *,
        settle_seconds: float = 0.0,
    ) -> int:
        """Records the shards that have come since the last record. One process calls it.

        Args:
          source: What `source` returned, in mid-run; None before the run begins.
          at: The chunk from which on new shards are drawn, which no lane has read: an elastic
            dataset's `boundary(state)` says one.
          mixture: Weights from there on; as they are by default. A dataset that had no shards yet
            needs one.
          settle_seconds: Wait so long between listing new shards and looking at them again: one
            that has changed is left for the next time.

        Returns:
          How many shards were recorded. Without new shards nothing is written.

        Raises:
          TypeError, ValueError: If the run cannot go on so, saying why; then nothing is recorded.
          RuntimeError: If another process has recorded shards meanwhile.
        """
        records = self._records()
        if (source is None) == bool(records):
            raise ValueError(
                "the shards that a run begins with were recorded already: give source and at."
                if records else "nothing is recorded yet: call record() before the run begins."
            )  # fmt: skip
        known = self._shards_of(records)
        new = {
            name: place.new_shards(known.get(name, ()), settle_seconds)
            for name, place in self._places.items()
        }
        new = {name: shards for name, shards in new.items() if shards}
        if not new:
            if records:
                return 0
            raise ValueError(f"no dataset has a shard yet: {list(self._places)} are empty.")
        change = None
        if source is not None:
            change = self._change(records, source, at, mixture, new)
        body = {
            "previous": records[-1].digest if records else "",
            "shards": {name: [list(one) for one in shards] for name, shards in new.items()},
            "change": change,
        }
        self._write(len(records), body)
        return sum(map(len, new.values()))

    def _change(
        self,
        records: Sequence[_Record],
        source: ConfiguredMixture,
        at: int | None,
        mixture: Mapping[str, Weight] | None,
        new: Mapping[str, Sequence[RecordedShard]],
    ) -> list[object]:
        """The change of the run that new shards come with."""
        known = self._shards_of(records)
        recorded = [record.change for record in records[1:]]
        if json.loads(json.dumps(source.changes)) != recorded:
            raise ValueError(
                f"the source has {len(source.changes)} changes and the manifest {len(recorded)}, or"
                " others: give what manifest.source(...) returns now."
            )
        first = as_int(at, "at", 0)
        datasets = [
            self._places[name].dataset([*known.get(name, ()), *shards])
            for name, shards in new.items()
        ]
        weights = _weights_at(source, first) if mixture is None else mixture
        made = changed(source, weights, first, datasets, {})
        return json.loads(json.dumps(made.changes[-1]))

    @staticmethod
    def _shards_of(records: Sequence[_Record]) -> dict[str, list[RecordedShard]]:
        """All shards, by dataset, in the order in which they were recorded."""
        found: dict[str, list[RecordedShard]] = {}
        for record in records:
            for name, shards in record.shards.items():
                found.setdefault(name, []).extend(shards)
        return found

    def source(self, make: MakeSource) -> ConfiguredMixture:
        """The source of the run, with all shards that were recorded and no others.

        Args:
          make: Takes the datasets that the run began with and returns its source as planned, the
            same at each call.

        Raises:
          FileNotFoundError: If nothing is recorded yet.
          ValueError: If a shard is gone or was changed, or the records do not fit the source.
        """
        records = self._records()
        if not records:
            raise FileNotFoundError(
                f"{self.directory} holds no record of shards yet: one process calls record()"
                " before the run begins."
            )
        shards = self._shards_of(records)
        names = [name for name in self._places if name in shards]
        whole = {name: self._places[name].dataset(shards[name]) for name in names}
        began = {name: len(records[0].shards[name]) for name in names if name in records[0].shards}
        source = make([self._places[name].dataset(records[0].shards[name]) for name in began])
        if len(records) == 1:
            return source
        changes = [record.change for record in records[1:] if record.change is not None]
        grown = [d for d in whole.values() if d.num_shards != began.get(d.name)]
        return replayed(source, changes, grown, {})


def _weights_at(source: ConfiguredMixture, chunk: int) -> dict[str, int]:
    """The weights of a source from a chunk on, where no others are planned after it."""
    history = source.settings.history
    planned = [entry.first_chunk for entry in history if entry.first_chunk > chunk]
    if planned:
        raise ValueError(
            f"the weights change as planned at chunk {planned[0]}, after at = {chunk}, and a change"
            " in mid-run takes the place of what was planned: give mixture=, or a later chunk."
        )
    return dict(zip(source.settings.names, history[-1].units, strict=True))


def _created(path: str, data: bytes) -> bool:
    """Makes a local file at once and whole, unless it is there; returns whether it did."""
    beside = f"{path}.{os.getpid()}.partial"
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(beside)
    return True
