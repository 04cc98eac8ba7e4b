"""Encoded states of sources of one's own: names, and damage anywhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from support.sources import CountSource

import zephon_jax as zx


class LongState(NamedTuple):
    lane: int
    num_lanes: int
    step: int
    table: np.ndarray


class LongSource(CountSource):
    def init(self, lane=0, num_lanes=1):
        return LongState(lane, num_lanes, 0, np.arange(60))


def test_every_flip_of_a_long_state_is_refused():
    """The checksum is over all of it: whatever the source's own checks leave to it."""
    source = LongSource()
    state = source.next_chunk(source.init(1, 2))[1]
    data = zx.encode_state(state)
    assert len(data) > 500
    assert zx.decode_state(source, data).step == 1
    for place in range(len(data)):
        for bit in (1, 128):
            flipped = bytearray(data)
            flipped[place] ^= bit
            with pytest.raises(ValueError, match="state"):
                zx.decode_state(source, bytes(flipped))


class Named(NamedTuple):
    lane: int
    num_lanes: int
    step: int
    state_name = "counts"


class Renamed(NamedTuple):
    lane: int
    num_lanes: int
    step: int
    state_name = "counts"


def test_a_class_of_states_may_be_renamed_where_it_has_a_name_of_its_own():
    class Of(CountSource):
        state_class = Named

        def init(self, lane=0, num_lanes=1):
            return self.state_class(lane, num_lanes, 0)

    source = Of()
    data = zx.encode_state(source.seek(5))
    source.state_class = Renamed
    assert zx.decode_state(source, data) == Renamed(0, 1, 5)
    with pytest.raises(ValueError, match=r"is a counts; this source's states are CountState"):
        zx.decode_state(CountSource(), data)
