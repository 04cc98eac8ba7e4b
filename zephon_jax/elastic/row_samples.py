"""Which samples are in the rows of a global batch: by arithmetic, or by a replay from a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.elastic.lane_rows import LanePlan, LaneRows, lane_dataset
from zephon_jax.elastic.plain_json import lane_state
from zephon_jax.elastic.steps import StepPosition, has_ended, rows_before
from zephon_jax.pipelines.lane_lengths import seek_sample
from zephon_jax.sources.checks import draw_of_lanes
from zephon_jax.sources.chunk_windows import ChunkWindow, windows_of

if TYPE_CHECKING:
    from zephon_jax.elastic.dataset import ElasticIterDataset

__all__ = ["RowSamples", "sample_ids_at"]

# Transformations that yield one row for each sample, in the order of the samples.
_IN_ORDER = (
    "BatchIterDataset", "MapBatchIterDataset", "MapIterDataset", "MapWithIndexIterDataset",
    "PrefetchIterDataset", "RandomMapIterDataset", "ThreadPrefetchIterDataset", "_Lane",
    "_MarkExhausted", "_MpContextIterDataset", "WithOptionsIterDataset", "_WithSeedIterDataset",
)  # fmt: skip
_LANES = 1 << 12  # looked up together


class RowSamples(NamedTuple):
    """The samples that are in a row of a global batch."""

    __module__ = "zephon_jax"

    lane: int
    row: int  # of the lane, from 0
    sample_ids: np.ndarray  # int64 (n, 3); none in a masked row


def sample_ids_at(
    dataset: ElasticIterDataset, step: int, state: Mapping[str, object] | None
) -> list[RowSamples]:
    """See `ElasticIterDataset.sample_ids_at`."""
    step = as_int(step, "step", 0)
    if state is not None:
        return _by_replay(dataset, step, state)
    if dataset.rows_per_sample is None:
        raise ValueError(
            "the samples of a step follow from its number where the pipeline yields one row for"
            " each; this one has rows_per_sample = None. Give the state of a checkpoint before the"
            " step: state=zx.read_checkpoint(folder)."
        )
    _check_in_order(dataset.plan)
    rules = dataset.rules()
    first, each = rows_before(rules, step), rules.rows_of(step)
    if has_ended(rules, StepPosition(step, first, [], ""), each):
        raise ValueError(f"step must be before the end of the run; got {step}.")
    found: list[RowSamples] = []
    for begin in range(0, dataset.num_lanes, _LANES):
        lanes = range(begin, min(begin + _LANES, dataset.num_lanes))
        for lane, ids in zip(lanes, _in_lanes(dataset.plan, lanes, first, each), strict=True):
            # Behind the end of a lane there are rows without a sample.
            found += [RowSamples(lane, first + n, ids[n : n + 1]) for n in range(each)]
    return found


def _check_in_order(plan: LanePlan) -> None:
    dataset: grain.IterDataset | grain.MapDataset = lane_dataset(plan, 0)[1]
    while True:
        name = type(dataset).__name__
        if name not in _IN_ORDER:
            raise ValueError(
                f"it is not known in which order {name} of the pipeline hands out samples. Give the"
                " state of a checkpoint before the step, and keep sample_id in the rows:"
                " state=zx.read_checkpoint(folder)."
            )
        if not dataset.parents:
            return
        (dataset,) = dataset.parents


def _in_lanes(plan: LanePlan, lanes: Sequence[int], first: int, count: int) -> list[np.ndarray]:
    """The ids of consecutive samples of some lanes: int64 (n, 3) each, fewer at a lane's end."""
    standing = [seek_sample(plan.source, lane, plan.num_lanes, first) for lane in lanes]
    states, slots = [state for state, _ in standing], [slot for _, slot in standing]
    found = [[np.zeros((0, 3), dtype=np.int64)] for _ in lanes]
    missing = dict.fromkeys(range(len(lanes)), count)
    while missing:
        drawn = draw_of_lanes(plan.source, [states[n] for n in missing])
        windows: dict[int, ChunkWindow] = {}
        for n, (chunk, after) in zip(list(missing), drawn, strict=True):
            if chunk is None:
                del missing[n]
                continue
            stop = min(len(chunk), slots[n] + missing[n])
            windows[n] = ChunkWindow(chunk, min(slots[n], stop), stop)
            states[n], slots[n] = after, max(0, slots[n] - len(chunk))
        ids = windows_of(list(windows.values()), plan.read_config)
        for n, (_, part) in zip(windows, ids, strict=True):
            found[n].append(part)
            missing[n] -= len(part)
        missing = {n: left for n, left in missing.items() if left}
    return [np.concatenate(parts) for parts in found]


def _by_replay(
    dataset: ElasticIterDataset, step: int, state: Mapping[str, Any]
) -> list[RowSamples]:
    """Runs the pipelines of all lanes that a state has from there up to the step."""
    rules, iterator = dataset.rules(), iter(dataset)
    position = iterator.read_state(state)
    iterator.close()
    if step < position.step:
        raise ValueError(f"the state must be of step {step} or before; got step {position.step}.")
    skipped = sum(rules.rows_of(n) for n in range(position.step, step))
    first, each = position.rows + skipped, rules.rows_of(step)
    found: list[RowSamples] = []
    for lane, saved in sorted((int(lane), saved) for lane, saved in state["lanes"].items()):
        rows = LaneRows(dataset.plan, lane)
        try:
            rows.set_state(lane_state(lane, saved))
            samples = _replayed(rows, saved["used"], skipped, each)
        finally:
            rows.close()
        found += [RowSamples(lane, first + n, ids) for n, ids in enumerate(samples)]
    if not any(len(row.sample_ids) for row in found):
        raise ValueError(f"step must be before the end of the run; got {step}.")
    return found


def _replayed(rows: LaneRows, used: int, skip: int, count: int) -> list[np.ndarray]:
    """The ids in rows of a lane that stands at a state, after some that are passed over.

    A batch of which some rows are `used` is made from its beginning.
    """
    packed = rows.record_packed()
    found = []
    for _ in range(skip):
        if not rows.take(1):
            break
    for n in range(used + skip, used + skip + count):
        taken = rows.take(1)
        if not taken:
            found.append(np.zeros((0, 3), dtype=np.int64))
        elif packed is None:
            found.append(_kept_id(taken[0]))
        else:
            found.append(np.asarray(packed[n], dtype=np.int64).reshape(-1, 3))
    return found


def _kept_id(row: object) -> np.ndarray:
    """The id that a row, or a batch of one row, has kept."""
    if not isinstance(row, Mapping) or "sample_id" not in row:
        has = sorted(row) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(
            "rows tell their samples where the pipeline keeps 'sample_id', or packs with zx.pack;"
            f" got {has}."
        )
    return np.asarray(row["sample_id"], dtype=np.int64).reshape(-1, 3)
