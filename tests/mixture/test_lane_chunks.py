"""Which chunks a lane gets, looked up for many lanes together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_jax._arrays import MAX_INDEX
from zephon_jax.kernels import lanes
from zephon_jax.mixture import lane_chunks
from zephon_jax.mixture.lane_chunks import Lane


@given(
    num_lanes=st.integers(1, 200) | st.sampled_from([4096, 65536]),
    lane=st.integers(0, 1 << 16),
    origin=st.integers(0, 1000),
    since=st.integers(0, 1 << 20) | st.just(MAX_INDEX - 300_000),
    assignment=st.sampled_from(lanes.ASSIGNMENTS),
)
def test_the_next_chunk_of_a_lane_is_the_first_that_the_kernel_gives_to_it(
    num_lanes, lane, origin, since, assignment
):
    lane %= num_lanes
    found = Lane(lane, num_lanes, origin, 7, assignment).chunk_from(origin + since)
    assert origin + since <= found < origin + since + 2 * num_lanes
    between = np.arange(origin + since, found + 1)
    owners = lanes.lane_of_chunk(between, num_lanes, 7, assignment, origin=origin)
    assert np.flatnonzero(owners == lane).tolist() == [between.size - 1]


def test_lanes_that_stand_in_the_same_block_are_looked_up_together():
    lane_chunks._page.cache_clear()
    for lane in range(256):
        Lane(lane, 256, 0, 3, "permute").chunk_from(0)
    assert lane_chunks._page.cache_info().misses == 4
