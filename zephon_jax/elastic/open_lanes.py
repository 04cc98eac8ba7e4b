"""All lanes of a process, opened at once."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_jax.elastic.lane_rows import LanePlan, LaneRows
from zephon_jax.pipelines.lane_group import LaneGroup

__all__ = ["open_lanes"]

# Lanes of a process from which on they are read together: below, each has windows that are long
# enough for the threads to read them side by side.
_READ_TOGETHER = 128


def open_lanes(plan: LanePlan, lanes: Sequence[int]) -> list[LaneRows]:
    """Opens the lanes that one process runs; many lanes are read together."""
    group = None
    if len(lanes) >= _READ_TOGETHER:
        group = LaneGroup(plan.source, plan.read_config, len(lanes))
    starts = plan.source.init_lanes(lanes, plan.num_lanes)
    opened: list[LaneRows] = []
    for lane, start in zip(lanes, starts, strict=True):
        like = opened[0].pipeline if opened else None
        opened.append(LaneRows(plan, lane, start, group, like))
    return opened
