"""Another number of lanes in mid-run: lanes run up to a common block, then chunks are dealt anew.

What a pipeline holds back (a packer's rest) cannot be cut, so lanes end at the boundary and deliver
it as masked steps; the run goes on with fresh pipelines and loses or doubles no sample. A run can
be cut as often as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.elastic.lane_rows import LanePlan, LaneRows
from zephon_jax.elastic.plain_json import revive
from zephon_jax.mixture.relane import relane
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.checks import draw
from zephon_jax.sources.find_sample import Place
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.stateful_lane import state_from_dict
from zephon_jax.sources.stopped import SourcePart
from zephon_jax.sources.words import from_words
from zephon_jax.sources.work_source import WorkSource

__all__ = ["RelanedSource", "boundary_of", "read_up_to"]


class RelanedSource(SourcePart[MixtureState]):
    """A mixture that goes on from a chunk with another number of lanes.

    Args:
      source: The source so far, which may have been cut before.
      chunk_index: The chunk from which on chunks are dealt anew: a block boundary of the lanes so
        far, as `boundary_of` gives it. With it the same source can be made again for a restore.
      num_lanes: The new number of lanes.

    Raises:
      TypeError: If the source is not a mixture.

    Example:
      >>> import zephon_jax as zx
      >>> from zephon_jax.elastic.relane import RelanedSource
      >>> toy = zx.Dataset.from_counts("toy", [80])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> three = RelanedSource(source, 2, 3)  # two lanes have read a chunk each
      >>> sorted(three.next_chunk(three.init(lane, 3))[0].chunk_index for lane in range(3))
      [2, 3, 4]
    """

    def __init__(self, source: WorkSource[MixtureState], chunk_index: int, num_lanes: int):
        super().__init__(source.source if isinstance(source, RelanedSource) else source)
        chunk_index = as_int(chunk_index, "chunk_index", source.begin)
        self._states = relane([self.source.seek(chunk_index)], num_lanes)
        self.begin = from_words(self._states[0].origin)

    def _check_lanes(self, num_lanes: int) -> None:
        if num_lanes != len(self._states):
            raise ValueError(
                f"the run was cut into {len(self._states)} lanes; got num_lanes = {num_lanes}."
            )

    def init(self, lane: int = 0, num_lanes: int = 1) -> MixtureState:
        """The state in which a new lane begins.

        Raises:
          ValueError: For another number of lanes than it was cut into.
        """
        if (lane, num_lanes) == (0, 1):
            return self._states[0]  # the structure of a state, for decoding
        self._check_lanes(num_lanes)
        return self._states[lane]

    def _check_origin(self, origin: int) -> None:
        if as_int(origin, "origin", 0) not in (0, self.begin):
            raise ValueError(f"the run was cut at chunk {self.begin}; got origin = {origin}.")

    def seek(
        self, chunk_index: int, lane: int = 0, num_lanes: int = 1, *, origin: int = 0
    ) -> MixtureState:
        """The state whose next chunk is this lane's first at or after a chunk."""
        self._check_lanes(num_lanes)
        self._check_origin(origin)
        chunk_index = max(as_int(chunk_index, "chunk_index", 0), self.begin)
        return self.source.seek(chunk_index, lane, num_lanes, origin=self.begin)

    def lanes_of_chunks(
        self, chunk_index: np.ndarray, num_lanes: int, *, origin: int = 0
    ) -> np.ndarray | None:
        """The lane of each chunk from the cut on."""
        self._check_lanes(num_lanes)
        self._check_origin(origin)
        return self.source.lanes_of_chunks(chunk_index, num_lanes, origin=self.begin)

    def places_of(
        self,
        sample_id: Sequence[int],
        num_lanes: int = 1,
        up_to_chunk: int | None = None,
        *,
        origin: int = 0,
        read_config: MixtureReadConfig | None = None,
    ) -> Iterator[Place]:
        """Goes through the times that the run holds a sample from the cut on.

        Takes the arguments of `locate`; `origin` is the cut, and need not be given.
        """
        self._check_lanes(num_lanes)
        self._check_origin(origin)
        return self.source.places_of(
            sample_id, num_lanes, up_to_chunk, origin=self.begin, read_config=read_config
        )


def boundary_of(plan: LanePlan, state: Mapping[str, Any]) -> int:
    """The first chunk of the next block of which no pipeline has read anything.

    A state of lanes that were being run to such a chunk says which: they go on to the same one
    after a restart.

    Packers read ahead of what they hand out, and begin anew from an earlier place when restored; so
    each lane is restored and takes one row, which shows how far its pipeline reads.

    Args:
      plan: The lanes that the state belongs to.
      state: A state with all lanes: `checkpoint.from_files` of all files gives one.

    Raises:
      ValueError: If lanes are missing.
    """
    source, num_lanes = plan.source, plan.num_lanes
    missing = [lane for lane in range(num_lanes) if str(lane) not in state["lanes"]]
    if missing:
        raise ValueError(f"the boundary follows from all lanes; lanes {missing} are missing.")
    begin = source.begin
    if state.get("end") is not None:
        return _kept_end(state["end"], begin, num_lanes)
    blocks = [0]
    for lane in range(num_lanes):
        place = read_up_to(plan, lane, revive(state["lanes"][str(lane)]))
        decoded = state_from_dict(source, place, (lane, num_lanes))
        chunk, _ = draw(source, decoded)
        if chunk is not None and chunk.chunk_index is not None:
            begun = int(place["slot"]) > 0
            blocks.append((chunk.chunk_index - begin) // num_lanes + begun)
    return begin + max(blocks) * num_lanes


def read_up_to(plan: LanePlan, lane: int, state: Any) -> dict[str, Any]:
    """Where a lane stands that is restored and takes a row: how far its pipeline reads for it.

    Args:
      plan: The lanes.
      lane: The lane.
      state: Its own state, as `LaneRows.get_state` gave it.

    Raises:
      ValueError: If it does not fit the pipeline, or the pipeline reads in processes of its own.
    """
    rows = LaneRows(plan, lane)
    rows.set_state(state)
    rows.take(1)
    rows.close()  # first: a pipeline may read ahead on a thread
    return rows.read_up_to()


def _kept_end(end: object, begin: int, num_lanes: int) -> int:
    end = as_int(end, "the state's end", begin)
    if (end - begin) % num_lanes:
        raise ValueError(
            f"the state ends at chunk {end}, inside a block of {num_lanes} lanes from chunk"
            f" {begin}: it is of another cut."
        )
    return end
