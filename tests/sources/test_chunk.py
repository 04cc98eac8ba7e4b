"""What a chunk keeps alive."""

from __future__ import annotations

import gc
import weakref

import pytest
from support.helpers import state_after
from support.sources import SOURCES


@pytest.mark.parametrize("name", SOURCES)
def test_a_chunk_keeps_no_source_alive(name):
    source = SOURCES[name]()
    chunk, _ = source.next_chunk(state_after(source, 1, 1, 2))
    expected = chunk.order()[1].tolist()
    watched = [weakref.ref(source)]
    if hasattr(source, "run"):
        watched.append(weakref.ref(source.run))
    del source
    gc.collect()
    assert [one() for one in watched] == [None] * len(watched)
    assert chunk.order()[1].tolist() == expected
