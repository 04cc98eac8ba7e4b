"""Functions that take many elements at once, on streams that keep their order and place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grain

from zephon_jax._arrays import as_int
from zephon_jax._text import short

__all__ = ["MapBatchIterDataset", "map_batch"]

Function = Callable[[list[Any]], Sequence[Any]]


def map_batch(dataset: grain.IterDataset, function: Function, size: int = 64) -> grain.IterDataset:
    """Maps elements by a function that takes a list of them and returns as many, in their order.

    For work that costs less for many elements together: tokenizers with threads of their own,
    vectorized decoding, a call to a service. The stream is that of `dataset.map`, one element for
    each, and it is restored at any of them: a restore reads at most `size` elements again.

    Args:
      dataset: Elements, such as a lane.
      function: Takes a list of 1 to `size` elements and returns as many. What it makes of an
        element must not depend on the others in the list: the list begins anew after a restore at
        the end of one, and is shorter at the end of the data or of a flush.
      size: Elements in a list at most.

    Returns:
      The elements that the function returned, one by one.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or later the function does not return
        as many elements. After an error the next call meets the same elements.

    Example:
      >>> import grain
      >>> numbers = grain.MapDataset.range(5).to_iter_dataset()
      >>> list(map_batch(numbers, lambda batch: [10 * n for n in batch], 2))
      [0, 10, 20, 30, 40]
    """
    return MapBatchIterDataset(dataset, function, size)


class MapBatchIterDataset(grain.IterDataset):
    """Elements mapped by a function of many; made by `map_batch`."""

    def __init__(self, dataset: grain.IterDataset, function: Function, size: int = 64):
        if not isinstance(dataset, grain.IterDataset):
            raise TypeError(f"dataset must be a grain.IterDataset; got {type(dataset).__name__}.")
        if not callable(function):
            raise TypeError(f"function must take a list of elements; got {short(function)}.")
        super().__init__(dataset)
        self.elements, self.function, self.size = dataset, function, as_int(size, "size", 1)

    def __iter__(self) -> _MapBatchIterator:
        return _MapBatchIterator(iter(self.elements), self.function, self.size)

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"MapBatchIterDataset({name}, size={self.size})"


class _MapBatchIterator(grain.DatasetIterator):
    """Its place is the parent's before the batch, and how many of its elements were handed out."""

    def __init__(self, parent: grain.DatasetIterator, function: Function, size: int):
        super().__init__(parent)
        self._function, self._size = function, size
        self._forget(0)

    def _forget(self, element: int) -> None:
        self._before: dict[str, Any] | None = None  # the parent's state before the batch
        self._given: list[Any] = []  # what the function is to see next
        self._made: Sequence[Any] = ()
        self._element = 0  # the next of those it made
        self._skip = element  # of those that it will make

    def __next__(self) -> Any:
        self._assert_not_closed()
        if self._element >= len(self._made):
            self._make()
        self._element += 1
        return self._made[self._element - 1]

    def _make(self) -> None:
        parent = self._parents[0]
        if not self._given:
            self._before = parent.get_state()
        while len(self._given) < self._size:
            try:
                self._given.append(next(parent))
            except StopIteration:
                break
        if self._skip >= max(1, len(self._given)):
            raise ValueError(f"the state's batch has {self._skip} elements, and this one fewer.")
        if not self._given:
            raise StopIteration
        made = self._function(list(self._given))
        if not isinstance(made, Sequence) or len(made) != len(self._given):
            got = len(made) if isinstance(made, Sequence) else type(made).__name__
            raise ValueError(
                f"the function of map_batch must return a sequence of {len(self._given)} elements,"
                f" one for each that it was given; got {got}."
            )
        self._made, self._element, self._given = made, self._skip, []
        self._skip = 0

    def get_state(self) -> dict[str, object]:
        """The place as plain JSON."""
        if self._element < len(self._made):
            return {"parent": self._before, "element": self._element}
        if self._given:  # the function, or the parent, has raised
            return {"parent": self._before, "element": self._skip}
        return {"parent": self._parents[0].get_state(), "element": self._skip}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a place that `get_state` described; its batch is made again with the next call.

        Raises:
          ValueError: If it is not the state of `map_batch`, or the parent refuses its part.
        """
        try:
            parent, element = state["parent"], as_int(state["element"], "element", 0)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of map_batch: {error!r}.") from None
        self._parents[0].set_state(parent)
        self._forget(element)

    def __str__(self) -> str:
        return "MapBatchIterator"
