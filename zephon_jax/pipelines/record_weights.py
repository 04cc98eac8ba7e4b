"""What a record counts for the components of a mixture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.data.count_tokens import count_tokens
from zephon_jax.pipelines.reorder_buffer import Weights

__all__ = ["TOKENS", "RecordWeights"]

TOKENS = "tokens"  # the entry that holds a record's tokens, or their number


class RecordWeights:
    """Weighs records, and knows components by their ids.

    Args:
      component_ids: The id of each component, by name.
      weigh: A function of the record that returns an int, or a mapping of component ids to ints;
        or the name of the entry that holds its tokens or their number. None counts the tokens of
        rows by their `component_ids`, and those of other records in the entry "tokens".
    """

    __module__ = "zephon_jax"

    def __init__(
        self, component_ids: Mapping[str, int], weigh: str | Callable[[Any], object] | None
    ):
        if not isinstance(component_ids, Mapping):
            raise TypeError(
                "component_ids must map names to ids, as source.component_ids() does; got"
                f" {type(component_ids).__name__}."
            )
        if not (weigh is None or isinstance(weigh, str) or callable(weigh)):
            raise TypeError(
                f"weigh must be a function or the name of an entry; got {short(weigh)}."
            )
        self.names, self.weigh = tuple(component_ids), weigh
        ids = [as_int(id_, f"component_ids[{name!r}]", 0) for name, id_ in component_ids.items()]
        self._index_of = {id_: d for d, id_ in enumerate(ids)}
        if len(self._index_of) < len(ids):
            raise ValueError(f"component_ids must differ from each other; got {component_ids}.")
        self.ids = tuple(ids)

    def index_of(self, id_: object, what: str) -> int:
        """The index of a component by its id.

        Raises:
          TypeError, ValueError: If there is none; `what` says where the id stood.
        """
        found = self._index_of.get(as_int(id_, what))
        if found is None:
            raise ValueError(
                f"{what} is {id_}, of no component; known ids are {list(self.ids[:8])}."
            )
        return found

    def of(self, record: object) -> Weights:
        """What a record counts, by component index; nothing where it is empty."""
        if not isinstance(record, Mapping):
            raise ValueError(
                f"records must be dicts with 'component_id'; got {type(record).__name__}."
            )
        parts = []
        for id_, weight in self._parts(record).items():
            index = self.index_of(id_, "the component of a record")
            weight = as_int(weight, "the weight of a record", 0)
            if weight:
                parts.append((index, weight))
        return parts

    def _parts(self, record: Mapping[str, object]) -> Mapping[object, object]:
        if self.weigh is None and "component_ids" in record:
            ids, counts = np.unique(np.asarray(record["component_ids"]), return_counts=True)
            counted = zip(ids.tolist(), counts.tolist(), strict=True)
            return {id_: count for id_, count in counted if id_ != -1}
        if callable(self.weigh):
            found = self.weigh(record)
            return found if isinstance(found, Mapping) else {_component(record): found}
        return {_component(record): _tokens(record, self.weigh or TOKENS)}


def _component(record: Mapping[str, object]) -> int:
    if "component_id" not in record:
        raise ValueError(
            f"records must keep 'component_id' (or 'component_ids'); got {sorted(record)}."
        )
    return as_int(record["component_id"], "the component of a record")


def _tokens(record: Mapping[str, object], name: str) -> int:
    if name not in record:
        raise ValueError(
            f"weigh = {name!r} names the entry that holds a record's tokens or their number; got"
            f" {sorted(record)}. Name another, or give a function."
        )
    return count_tokens(record[name], f"the entry {name!r} of a record holds")
