"""Blocks of memory that workers write rows to: what somebody still looks at is not written over."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from zephon_jax.elastic.columns import Columns, Space, join, stack
from zephon_jax.elastic.shared_rows import Blocks, Layout, OpenBlocks

LEAVES = {
    "x": np.zeros((2, 3), np.int32),
    "half": np.zeros((2, 2, 5), jnp.bfloat16),
    "empty": np.zeros((2, 0), np.float64),
    "flag": np.zeros(2, bool),
    "text": np.asarray(["a", "b"], object),
}
LAYOUT = Layout.of(Columns("tree", list(LEAVES.values())))


def test_arrays_over_a_block_do_not_overlap_and_are_aligned():
    views = LAYOUT.views(bytearray(LAYOUT.size(7)), 7)
    assert [None if view is None else (view.dtype, view.shape) for view in views] == [
        None if leaf.dtype == object else (leaf.dtype, (7, *leaf.shape[1:]))
        for leaf in LEAVES.values()
    ]
    kept = [view for view in views if view is not None]
    begin = kept[0].ctypes.data
    assert all((view.ctypes.data - begin) % 64 == 0 for view in kept)
    for n, view in enumerate(kept):
        view[...] = n
    assert [np.unique(np.asarray(view, float)).tolist() for view in kept] == [[0], [1], [], [1]]


def test_a_block_comes_back_when_nothing_looks_into_it():
    blocks, opened = Blocks(2), OpenBlocks()

    def lent(value, size=4096):
        block, memory = blocks.lend(size)
        there = np.ndarray((size,), np.uint8, opened.open(block.path, size, block.number))
        there[...] = value
        block.unlink()
        return block.number, np.ndarray((size,), np.uint8, memory)

    first, a = lent(1)
    second, b = lent(2)
    part = a[7:9]
    del a
    none, c = lent(3)  # more than are kept
    assert (first, second, none) == (0, 1, None)
    assert [one.tolist()[0] for one in (part, b, c)] == [1, 2, 3]
    del b
    again, d = lent(4)
    assert again == second
    assert [one.tolist()[0] for one in (part, c, d)] == [1, 3, 4]
    del d
    larger, e = lent(5, 8192)
    assert larger == second
    assert (part.tolist(), e.sum()) == ([1, 1], 5 * 8192)


@pytest.mark.parametrize("put", [
    lambda rows, out: stack(rows, out),
    lambda rows, out: join([{k: v[None] for k, v in row.items()} for row in rows], out),
])  # fmt: skip
def test_rows_are_written_where_they_fit(put):
    import jax

    rows = [{"x": np.arange(3) + n, "y": np.float32(n)} for n in range(4)]
    rows = [{**row, "y": np.asarray(row["y"])} for row in rows]
    tree, plain = jax.tree.structure(rows[0]), put(rows, None)
    out = Space(tree, [np.zeros((4, 3), np.int64), np.zeros(4, np.float32)])
    found = put(rows, out)
    assert all(leaf is to for leaf, to in zip(found.leaves, out.leaves, strict=True))
    for other in (
        Space(tree, [np.zeros((5, 3), np.int64), np.zeros(4, np.float64)]),
        Space(jax.tree.structure([0, 0]), out.leaves),
        Space(tree, [None, None]),
    ):
        found = put(rows, other)
        assert not any(leaf is to for leaf, to in zip(found.leaves, other.leaves, strict=True))
        for leaf, expected in zip(found.leaves, plain.leaves, strict=True):
            np.testing.assert_array_equal(leaf, expected)
            assert leaf.dtype == expected.dtype
