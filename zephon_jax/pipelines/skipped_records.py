"""How many bad records a lane has left out, as its state says: the same on any number of hosts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from zephon_jax._arrays import as_int
from zephon_jax.data.bad_records import Unreadable, settle
from zephon_jax.data.dataset import Dataset
from zephon_jax.sources.checks import ShardedDataset

__all__ = ["SKIPPED", "SkippedRecords", "checked_counts", "skipped_records"]

SKIPPED = "skipped"
"""The key of the counts in a lane's state; there only where a dataset leaves bad records out."""


class SkippedRecords:
    """Bad records that a lane has left out or replaced, counted up to a place.

    Args:
      datasets: The datasets of the lane's source.
      counts: Counts by dataset where the lane stands; none for a lane that begins.
    """

    def __init__(self, datasets: Iterable[ShardedDataset], counts: Mapping[str, int] | None = None):
        counts = counts or {}
        self._before = {
            dataset.name: counts.get(dataset.name, 0)
            for dataset in datasets
            if getattr(dataset, "on_bad_record", "raise") != "raise"
        }
        # Of the window that is delivered, by dataset: slots, ascending.
        self._slots: dict[str, list[int]] = {name: [] for name in self._before}

    def before(self, slot: int) -> dict[str, int]:
        """Counts by dataset up to a slot of the window."""
        if not self._before:  # nearly always, and lanes ask with every row
            return {}
        return {
            name: count + bisect_left(self._slots[name], slot)
            for name, count in self._before.items()
        }

    def pass_on(self, slot: int) -> None:
        """Goes on to another window; `slot` ends the last one."""
        self._before = self.before(slot)
        self._slots = {name: [] for name in self._before}

    def settle(self, dataset: Dataset, record: Unreadable, slot: int) -> list[object]:
        """What is delivered in a slot whose record is bad: an error to raise, a record, or none."""
        if dataset.on_bad_record == "raise":
            return [record]
        slots = self._slots[dataset.name]
        count, most = self._before[dataset.name] + len(slots), dataset.max_bad_records
        if most is not None and count >= most:
            error = ValueError(
                f"{record.error} This lane has left out {count} bad records of the dataset, as"
                f" many as max_bad_records = {most} allows."
            )
            return [record._replace(error=error)]
        try:
            found = settle(record, dataset.on_bad_record)
        except Exception as error:  # of the dataset's own function
            return [record._replace(error=error)]
        slots.append(slot)
        return found


def checked_counts(counts: object) -> dict[str, int]:
    """Returns the counts in a state.

    Raises:
      TypeError, ValueError: If they are no counts by dataset.
    """
    if not isinstance(counts, Mapping):
        raise ValueError(f"not the state of a lane, or damaged: skipped = {counts!r}.")
    return {str(name): as_int(count, f"skipped[{name!r}]", 0) for name, count in counts.items()}


def skipped_records(state: object) -> dict[str, int]:
    """Counts the bad records that the lanes in a state have left out or replaced.

    A state says it whatever host saved it. Put together from all hosts (`read_checkpoint`), a state
    of an `ElasticIterDataset` has all lanes.

    Args:
      state: What `get_state` of an iterator returned; the lanes in it are found wherever they lie.

    Returns:
      Counts by dataset, of those datasets whose `on_bad_record` is not "raise".

    Example:
      >>> skipped_records({"lanes": [{"lane": 0, "skipped": {"web": 2}}, {"skipped": {"web": 1}}]})
      {'web': 3}
    """
    found: dict[str, int] = {}
    stack = [state]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            for name, count in checked_counts(part.get(SKIPPED, {})).items():
                found[name] = found.get(name, 0) + count
            stack += [value for key, value in part.items() if key != SKIPPED]
        elif isinstance(part, (list, tuple)):
            stack += part
    return found
