"""Reading orders of chunks with many components."""

from __future__ import annotations

import numpy as np
import pytest

import zephon_jax as zx
from zephon_jax.sources.read_order import MODES


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_components", [255, 256, 257, 300, 512, 513, 65_536, 65_537, 70_000])
def test_the_component_of_a_slot_is_that_of_its_sample(mode, num_components):
    """Components are kept in narrow words, whose ends lie at 2^8 and 2^16."""
    last = num_components - 1
    held = {0: 3, 1: 2, 44: 1, 254: 4, 255 % num_components: 2, 256 % num_components: 3, last: 5}
    components = {str(d): [(d, 0, i) for i in range(held.get(d, 0))] for d in range(num_components)}
    chunk = zx.WorkChunk(components, seed=3, chunk_index=1)
    config = zx.MixtureReadConfig(mode=mode)
    for _ in range(2):  # the second time as it is remembered
        component, ids = chunk.order(config)
        assert component.tolist() == ids[:, 0].tolist()
    assert np.bincount(component)[[0, 254, last]].tolist() == [held[0], held[254], held[last]]
    assert len(ids) == sum(held.values())
