"""Where `EnsureMixtureIterDataset` stands: what it gave out, and which elements are gone."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from zephon_jax._arrays import as_int

__all__ = ["MixturePlace", "MixtureRules"]


class MixtureRules(NamedTuple):
    """What a place has to fit."""

    __module__ = "zephon_jax"

    name: str  # for errors
    num_components: int
    max_replay: int
    digest: int  # of all that decides the order


class MixturePlace(NamedTuple):
    """A place in a reordered stream, but for that of the parent."""

    num_elements: int  # since the oldest that is held
    gone: int  # a bit for each of the elements
    emitted: list[int]
    active: list[bool]
    used_up: list[bool]
    largest: int
    drifting: bool
    num_dropped: int
    in_vain: int  # records dropped in a row

    def to_json(self, rules: MixtureRules) -> dict[str, object]:
        """The place as plain JSON, of constant shape."""
        gone = self.gone.to_bytes(-(-rules.max_replay // 8), "little")
        return {
            "num_elements": self.num_elements,
            "taken": base64.b64encode(gone).decode("ascii"),
            "emitted": list(self.emitted),
            "active": _flags(self.active),
            "used_up": _flags(self.used_up),
            "largest": self.largest,
            "drifting": int(self.drifting),
            "num_dropped": self.num_dropped,
            "in_vain": self.in_vain,
            "mixture": f"{rules.digest:016x}",
        }

    @classmethod
    def of(cls, state: Any, rules: MixtureRules) -> MixturePlace:
        """Reads what `to_json` made.

        Raises:
          ValueError: If it is something else, or of another mixture.
        """
        if not isinstance(state, Mapping) or "mixture" not in state:
            raise ValueError(f"not the state of EnsureMixtureIterDataset: {str(state)[:80]!r}.")
        if state["mixture"] != f"{rules.digest:016x}":
            raise ValueError(
                "the state was saved with another target_mixture, or other component_ids, weigh,"
                f" max_buffer_size or max_replay than {rules.name} has. Use those, or start anew."
            )
        try:
            num_elements = as_int(state["num_elements"], "num_elements", 0, rules.max_replay)
            gone = int.from_bytes(base64.b64decode(state["taken"], validate=True), "little")
            emitted = [as_int(n, "emitted", 0) for n in state["emitted"]]
            active, used_up = (
                [bool("01".index(c)) for c in state[name]] for name in ("active", "used_up")
            )
            drifting = as_int(state["drifting"], "drifting", 0, 1)
            largest, num_dropped, in_vain = (
                as_int(state[name], name, 0) for name in ("largest", "num_dropped", "in_vain")
            )
            if gone & 1 or gone >> num_elements:
                raise ValueError(f"'taken' is not of {num_elements} elements")
            if {*map(len, (emitted, active, used_up))} != {rules.num_components}:
                raise ValueError(f"there are {rules.num_components} components")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of EnsureMixtureIterDataset: {error!r}.") from None
        return cls(
            num_elements, gone, emitted, active, used_up, largest, bool(drifting), num_dropped,
            in_vain,
        )  # fmt: skip


def _flags(values: list[bool]) -> str:
    return "".join("01"[value] for value in values)
