"""A mixture's run as a Grain dataset with random access."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.data.bad_records import Unreadable, settle
from zephon_jax.data.read_samples import datasets_of
from zephon_jax.data.reader import default_reader
from zephon_jax.sources.read_order import MixtureReadConfig, check_read_config
from zephon_jax.sources.work_source import WorkSource, check_source

__all__ = ["MixtureMapDataset"]

_MOST_AHEAD = 1024  # elements that a loop over indices has read ahead
_MOST_BYTES = 1 << 18  # of them together
_SLACK = 64  # indices by which threads that share a loop are apart


class _Ahead:
    """Elements of a `MixtureMapDataset` that a loop over indices is about to ask for.

    Each is handed out once, so that nobody holds what another one changes. Copies start anew.
    """

    __module__ = "zephon_jax"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.elements: dict[int, dict[str, Any]] = {}
        self.following = 0  # the index that continues the loop
        self.size = 1
        self.num_read = 0  # elements of the last reading ahead

    def goes_on_with(self, index: int) -> bool:
        """True where a loop continues here: threads that share it are a little out of order."""
        gap = index - self.following
        if 4 * len(self.elements) > self.num_read:  # a stride, which leaves most of what is read
            self.elements, self.num_read, self.following, self.size = {}, 0, index + 1, 1
            return False
        if 0 <= gap <= _SLACK:
            self.size = min(2 * self.size, _MOST_AHEAD)
            return True
        if not -_SLACK <= gap < 0:
            self.following, self.size = index + 1, 1
        return False

    def __reduce__(self) -> tuple[object, ...]:
        return _Ahead, ()


class MixtureMapDataset(grain.MapDataset):
    """A whole run by index: a `grain.MapDataset` with random access at any point.

    Elements are dicts: "data" is the record, "component_id" an int32 and "sample_id" an int64
    array (3,). Element i is the i-th sample of the one-lane run. An index past the length belongs
    to epoch `index // len`, which has as many samples of each dataset in another order. Batches
    of indices are read shard by shard. An element whose record is bad is None where its dataset
    skips such records; Grain's own filters leave the same behind.

    Args:
      source: A source that supports indexing and ends.
      read_config: How chunks are read; smooth weighted round robin by default.

    Raises:
      TypeError: If the source does not support indexing, or never ends.

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(100)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=10)
      >>> dataset = zx.MixtureMapDataset(source)
      >>> len(dataset), sorted(dataset[i]["data"] for i in range(100)) == list(range(100))
      (100, True)
    """

    __module__ = "zephon_jax"

    def __init__(self, source: WorkSource, read_config: MixtureReadConfig | None = None):
        super().__init__()
        check_source(source)
        if not source.supports_indexing():
            raise TypeError(
                f"MixtureMapDataset needs a source with random access; {type(source).__name__}"
                " does not support indexing. Use LaneIterDataset."
            )
        self._source, self._read_config = source, check_read_config(read_config)
        self._length = len(source)
        names = {d: dataset.name for d, dataset in source.datasets_by_id.items()}
        ids = source.component_ids()
        apart = [name for name in names.values() if name not in ids]
        if apart:
            raise TypeError(
                f"MixtureMapDataset stamps a component on each sample by its dataset; datasets"
                f" {apart} of {type(source).__name__} are no components. Use LaneIterDataset."
            )
        self._components = {d: np.int32(ids[name]) for d, name in names.items()}
        self._ahead = _Ahead()

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return f"MixtureMapDataset({self._source!r})"

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            element = self._ahead.elements.pop(index, None)
            return self._next(index) if element is None else element
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _next(self, index: int) -> dict[str, object]:
        """An element that was not read ahead; in a loop over indices it brings those after it."""
        ahead = self._ahead
        # Nobody waits for another thread: one that a fork left behind would never let go.
        if 0 <= index < self._length and ahead.lock.acquire(blocking=False):
            try:
                if ahead.goes_on_with(index):
                    with contextlib.suppress(Exception):  # It may be of an element further on.
                        ahead.elements = self._read_ahead(index)
                    element = ahead.elements.pop(index, None)
                    if element is not None:
                        return element
            finally:
                ahead.lock.release()
        return self._getitems([index])[0]

    def _read_ahead(self, index: int) -> dict[int, dict[str, object]]:
        """The next elements of a loop, as many as take little memory."""
        ahead = self._ahead
        stop = min(index + ahead.size, self._length)
        ids = self._source.sample_ids_at(np.arange(index, stop), read_config=self._read_config)
        by_id = datasets_of(self._source)
        _, num = next(default_reader().windows(by_id, ids, _MOST_BYTES))
        ahead.following, ahead.num_read = index + num, num
        return dict(zip(range(index, index + num), self._read(ids[:num]), strict=True))

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, object]]:
        """Elements at several indices, read together."""
        if not len(indices):
            return []
        epochs, places = self._split(indices)
        ids = np.empty((len(places), 3), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            ids[mine] = self._source.sample_ids_at(
                places[mine], epoch=epoch, read_config=self._read_config
            )
        return self._read(ids)

    def _read(self, ids: np.ndarray) -> list[dict[str, object]]:
        by_id = datasets_of(self._source)
        records = default_reader().read(by_id, ids, marked=True)
        components = self._components
        stamped = map(components.__getitem__, ids[:, 0].tolist())
        elements: list[Any] = [
            {"data": record, "component_id": component_id, "sample_id": sample_id}
            for record, component_id, sample_id in zip(records, stamped, ids, strict=True)
        ]
        if Unreadable in set(map(type, records)):
            for place, record in enumerate(records):
                if type(record) is Unreadable:
                    found = settle(record, by_id[int(ids[place, 0])].on_bad_record)
                    elements[place] = {**elements[place], "data": found[0]} if found else None
        return elements

    __getitems__ = _getitems

    def _split(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and places within them; negative indices count from the end of the first."""
        array = np.asarray([as_int(index, "index") for index in indices], dtype=np.int64)
        low = int(array.min())
        if not self._length or low < -self._length:
            raise IndexError(f"index {low} is out of range for {self._length} elements.")
        array = np.where(array < 0, array + self._length, array)
        epochs, places = np.divmod(array, self._length)
        return epochs, places
