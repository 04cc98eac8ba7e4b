"""The history of a mixture that was changed in mid-run, as states of the run keep it.

A state goes on with a source that was changed as its own was, or further. Whoever starts the run
again finds in the state what it takes to make that source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zephon_jax._text import short
from zephon_jax.elastic.lane_rows import LanePlan
from zephon_jax.elastic.plain_json import place_in
from zephon_jax.elastic.relane import read_up_to
from zephon_jax.pipelines.lane_dataset import LaneIterDataset
from zephon_jax.sources.checks import draw
from zephon_jax.sources.stateful_lane import state_from_dict, state_to_dict
from zephon_jax.sources.work_source import WorkSource

__all__ = ["check_changes", "check_not_read", "plain_changes"]


def plain_changes(source: WorkSource) -> list[list[object]]:
    """The changes of a source as plain JSON; empty where its mixture was never changed."""
    return [
        [list(part) if isinstance(part, Sequence) else part for part in change]
        for change in source.changes
    ]


def check_changes(state: Mapping[str, object], changes: Sequence[Sequence[object]]) -> None:
    """Checks that a source was changed as a state's run was; it may have been changed since.

    Args:
      state: The state of an elastic iterator.
      changes: Of the source that is to go on from it.

    Raises:
      ValueError: Naming the first change that differs.
    """
    kept = state.get("changes", ())
    if not isinstance(kept, (list, tuple)):
        raise ValueError(f"not the state of an elastic dataset: changes = {short(kept)}.")
    for number, change in enumerate(kept):
        mine = list(changes[number]) if number < len(changes) else None
        if mine == change:
            continue
        here = "does not have it" if mine is None else f"has {short(mine)} in its place"
        raise ValueError(
            f"the run's mixture was changed in mid-run: change {number} of {len(kept)} is"
            f" {short(change)} (first chunk; weights, shards and samples drawn by dataset), and"
            f" this source {here}. Make the source of the state by"
            " source.with_changes(zx.read_checkpoint(directory)['changes'], datasets=[...])."
        )


def check_not_read(plan: LanePlan, before: WorkSource, states: Mapping[int, object]) -> None:
    """Checks that no pipeline has read what is drawn otherwise since a state was saved.

    What a packer passes over after a restore is not in its lane's place: each lane goes on for a
    row as it was before, which shows how far it had read.

    Args:
      plan: The lanes as they are now.
      before: The source that the state was saved with.
      states: The states of lanes, as `LaneRows.get_state` gave them.

    Raises:
      ValueError: Naming the first lane that has.
    """
    earlier = plan._replace(source=before)
    for lane, state in states.items():
        kept, place = place_in(state), read_up_to(earlier, lane, state)
        if kept is not None and _is_next(kept, place, before):
            place = dict(kept)  # the pipeline holds nothing back: the row was the next sample
        try:
            LaneIterDataset(plan.source, lane, plan.num_lanes).check_place(place)
        except ValueError as error:
            raise ValueError(
                f"lane {lane}: {error} The boundary(state) of the dataset before the change is the"
                " first chunk that may change."
            ) from None


def _is_next(kept: Mapping[str, Any], place: Mapping[str, Any], source: WorkSource) -> bool:
    """True where a place is one sample after another one of the same lane."""
    if place["state"] == kept["state"]:
        return place["slot"] == kept["slot"] + 1
    decoded = state_from_dict(source, kept, (kept["lane"], kept["num_lanes"]))
    chunk, after = draw(source, decoded)
    ended = chunk is not None and kept["slot"] == len(chunk)
    return ended and place["slot"] == 1 and place["state"] == state_to_dict(after)["state"]
