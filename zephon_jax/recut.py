"""Another number of lanes in mid-run: lanes run up to a common block, then chunks are dealt anew.

What a pipeline holds back (a packer's rest) cannot be cut, so lanes end at the boundary and deliver
it as masked steps; the run goes on with fresh pipelines and loses or doubles no sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zephon_jax._xp import as_int
from zephon_jax.chunk import WorkChunk
from zephon_jax.elastic import ElasticIterDataset
from zephon_jax.elastic_iterator import revive
from zephon_jax.lane_rows import LaneRows
from zephon_jax.relane import relane
from zephon_jax.source import WorkSource, state_from_dict

__all__ = ["RecutSource", "StoppedSource", "boundary_of"]


class _Wrapper(WorkSource):
    """A source that is another one but for where it begins or ends."""

    def __init__(self, source: WorkSource):
        self.source = source

    def init(self, lane: int = 0, num_lanes: int = 1) -> Any:
        """The source's own first state."""
        return self.source.init(lane, num_lanes)

    def next_chunk(self, state: Any) -> tuple[WorkChunk | None, Any]:
        """The source's own next chunk."""
        return self.source.next_chunk(state)

    def component_ids(self) -> Mapping[str, int]:
        """The source's component ids."""
        return self.source.component_ids()

    @property
    def datasets_by_id(self) -> Mapping[int, Any]:
        """The source's datasets."""
        return self.source.datasets_by_id

    @property
    def seed(self) -> int | None:
        """The source's seed, for the pipelines' own."""
        chunk, _ = self.source.next_chunk(self.source.init())
        return None if chunk is None else chunk.seed

    def chunk_size_hint(self) -> int | None:
        """Samples in a whole chunk."""
        return self.source.chunk_size_hint()

    def check_state(self, state: Any) -> None:
        """Checks that a state belongs to the source."""
        self.source.check_state(state)


class StoppedSource(_Wrapper):
    """A source that ends before a chunk, so that its lanes end at a common block boundary.

    Args:
      source: Any source that numbers its chunks.
      chunk_index: The first chunk that is not delivered.
    """

    def __init__(self, source: WorkSource, chunk_index: int):
        super().__init__(source)
        self.end = as_int(chunk_index, "chunk_index", 0)

    def next_chunk(self, state: Any) -> tuple[WorkChunk | None, Any]:
        """The lane's next chunk, or None from the end on."""
        chunk, after = self.source.next_chunk(state)
        if chunk is None or (chunk.chunk_index is not None and chunk.chunk_index >= self.end):
            return None, state
        return chunk, after


class RecutSource(_Wrapper):
    """A mixture that goes on from a block boundary with another number of lanes.

    Args:
      source: The source so far.
      states: One state of each lane so far, all at one block boundary: see `zx.relane`.
      num_lanes: The new number of lanes.

    Example:
      >>> import zephon_jax as zx
      >>> from zephon_jax.recut import RecutSource
      >>> toy = zx.Dataset.from_counts("toy", [80])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> two = [source.next_chunk(source.init(lane, 2))[1] for lane in range(2)]
      >>> three = RecutSource(source, two, 3)
      >>> sorted(three.next_chunk(three.init(lane, 3))[0].chunk_index for lane in range(3))
      [2, 3, 4]
    """

    def __init__(self, source: WorkSource, states: Sequence[Any], num_lanes: int):
        super().__init__(source)
        self._states = relane(states, num_lanes)

    def init(self, lane: int = 0, num_lanes: int = 1) -> Any:
        """The state in which a new lane begins.

        Raises:
          ValueError: For another number of lanes than it was cut into.
        """
        if num_lanes != len(self._states):
            if (lane, num_lanes) == (0, 1):
                return self._states[0]  # the structure of a state, for decoding
            raise ValueError(
                f"the run was cut into {len(self._states)} lanes; got num_lanes = {num_lanes}."
            )
        return self._states[lane]


def boundary_of(dataset: ElasticIterDataset, state: Mapping[str, Any]) -> int:
    """The first chunk of the next block of which no pipeline has read anything.

    Packers read ahead of what they hand out, and begin anew from an earlier place when restored; so
    each lane is restored and takes one row, which shows how far its pipeline reads.

    Args:
      dataset: The elastic dataset that the state belongs to; lanes were not cut before.
      state: A state with all lanes: `checkpoint.from_files` of all files gives one.

    Raises:
      ValueError: If lanes are missing.
    """
    source, num_lanes = dataset.source, dataset.num_lanes
    missing = [lane for lane in range(num_lanes) if str(lane) not in state["lanes"]]
    if missing:
        raise ValueError(f"the boundary follows from all lanes; lanes {missing} are missing.")
    blocks = [0]
    for lane in range(num_lanes):
        rows = LaneRows(dataset.plan, lane)
        rows.set_state(revive(state["lanes"][str(lane)]))
        rows.take(1)
        place = rows.read_up_to()
        decoded = state_from_dict(source, place, (lane, num_lanes))
        chunk, _ = source.next_chunk(decoded)
        if chunk is not None and chunk.chunk_index is not None:
            slot = int(place["slot"])
            begun = (slot > 0) + (slot >= len(chunk))
            blocks.append(chunk.chunk_index // num_lanes + begun)
        rows.close()
    return max(blocks) * num_lanes
