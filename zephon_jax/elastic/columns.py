"""Rows of many lanes as one pytree of arrays, whatever the elements are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Columns",
    "Space",
    "join",
    "masked",
    "masked_row",
    "num_rows",
    "slice_rows",
    "spec_of",
    "stack",
    "tree_of",
]


class Columns(NamedTuple):
    """Rows as columns, one for each leaf."""

    tree: Any  # the structure of one element
    leaves: list[np.ndarray]  # (rows, ...) each


class Space(NamedTuple):
    """Arrays that rows may be written to."""

    tree: Any  # the structure of one element
    leaves: Sequence[np.ndarray | None]  # (rows, ...) each; None for leaves of objects


def _array(leaf: object) -> np.ndarray:
    """A leaf as an array; text and bytes are objects.

    As NumPy's own kinds they would lose trailing zeros, and rows of other lengths other dtypes.
    """
    if isinstance(leaf, (str, bytes)):
        array = np.empty((), dtype=object)
        array[()] = leaf
        return array
    array = np.asarray(leaf)
    return array.astype(object) if array.dtype.kind in "US" else array


def _flatten(elements: Sequence[object]) -> tuple[object, list[list[object]]]:
    import jax

    first, tree = jax.tree.flatten(elements[0])
    found = [first]
    for element in elements[1:]:
        leaves, other = jax.tree.flatten(element)
        if other != tree:
            raise ValueError(f"elements of one pipeline must be alike; got {tree} and {other}.")
        found.append(leaves)
    return tree, found


def _kind(leaf: object) -> str:
    return getattr(getattr(leaf, "dtype", None), "kind", "-")


def _stack(leaves: Sequence[object], out: np.ndarray | None = None) -> np.ndarray:
    text = isinstance(leaves[0], (str, bytes)) or _kind(leaves[0]) in "OUS"
    arrays = [leaf if type(leaf) is np.ndarray and not text else _array(leaf) for leaf in leaves]
    kind = arrays[0].dtype
    try:
        if all(array.dtype is kind or array.dtype == kind for array in arrays):
            if out is not None and not _takes(out, kind, (len(arrays), *arrays[0].shape)):
                out = None
            return np.stack(arrays, out=out)  # raises where shapes differ
    except ValueError:
        pass
    kinds = sorted({f"{a.dtype}{list(a.shape)}" for a in arrays})
    raise ValueError(
        f"rows of one batch must have one shape and dtype; got {', '.join(kinds)}. Pad or pack"
        " them in the pipeline."
    )


def _takes(out: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    return out.dtype == dtype and out.shape == shape


def _outs(out: Space | None, tree: object, num_leaves: int) -> Sequence[np.ndarray | None]:
    return [None] * num_leaves if out is None or out.tree != tree else out.leaves


def stack(rows: Sequence[Any], out: Space | None = None) -> Columns:
    """Puts rows on top of each other.

    Args:
      rows: Elements of pipelines.
      out: Arrays to write to, where they fit.

    Raises:
      ValueError: If they differ in structure, shape or dtype.
    """
    flat = _flat_names(rows[0])
    if flat is not None:
        try:
            if all(len(row) == len(flat[1]) for row in rows):
                outs = _outs(out, flat[0], len(flat[1]))
                return Columns(flat[0], [
                    _stack([row[name] for row in rows], to)
                    for name, to in zip(flat[1], outs, strict=True)
                ])  # fmt: skip
        except (KeyError, TypeError):
            pass  # rows that are not alike: said below
    tree, found = _flatten(rows)
    outs = _outs(out, tree, len(found[0]))
    leaves = zip(zip(*found, strict=True), outs, strict=True)
    return Columns(tree, [_stack(rows_of_leaf, to) for rows_of_leaf, to in leaves])


def _flat_names(row: object) -> tuple[object, list[str]] | None:
    """Structure and names of a plain dict of arrays, in the order of its leaves.

    The rows of most pipelines are such, and need not be flattened one by one.
    """
    import jax

    if type(row) is not dict or not row:
        return None
    if not all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in row.values()):
        return None
    return jax.tree.structure(row), sorted(row)


def join(batches: Sequence[object], out: Space | None = None) -> Columns:
    """Puts batches behind each other.

    Args:
      batches: Batches, or parts of them.
      out: Arrays to write to, where they fit.

    Raises:
      ValueError: If they differ in structure, shape or dtype.
    """
    tree, found = _flatten(batches)
    leaves = []
    outs = _outs(out, tree, len(found[0]))
    for parts, to in zip(zip(*found, strict=True), outs, strict=True):
        arrays = [_array(part) for part in parts]
        if any(a.shape[1:] != arrays[0].shape[1:] or a.dtype != arrays[0].dtype for a in arrays):
            kinds = sorted({f"{a.dtype}{list(a.shape)}" for a in arrays})
            raise ValueError(f"batches must have rows of one shape and dtype; got {kinds}.")
        shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
        if to is not None and _takes(to, arrays[0].dtype, shape):
            leaves.append(np.concatenate(arrays, out=to))
        else:
            leaves.append(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
    return Columns(tree, leaves)


def num_rows(batch: object) -> int:
    """Rows of a batch, of which each leaf has as many.

    Raises:
      ValueError: If leaves have none, or not the same number.
    """
    import jax

    leaves = jax.tree.leaves(batch)
    if not leaves or not all(map(np.ndim, leaves)):
        raise ValueError(
            "the pipeline yields elements without rows; pass batched=False where it does not batch."
        )
    rows = {len(leaf) for leaf in leaves}
    if len(rows) > 1:
        raise ValueError(
            f"all leaves of a batch must have as many rows; got {sorted(rows)}. Pass batched=False"
            " where the pipeline does not batch."
        )
    return rows.pop()


def slice_rows(batch: object, begin: int, end: int) -> object:
    """Rows begin to end of a batch, without copying."""
    import jax

    return jax.tree.map(lambda leaf: np.asarray(leaf)[begin:end], batch)


def spec_of(columns: Columns) -> str:
    """Names, dtypes and shapes of a row's leaves as one line of text."""
    import jax

    element = jax.tree.unflatten(columns.tree, columns.leaves)
    paths, _ = jax.tree.flatten_with_path(element)
    return " ".join(
        f"{jax.tree_util.keystr(path)}:{leaf.dtype}{list(leaf.shape[1:])}".replace(" ", "")
        for path, leaf in paths
    )


def masked_row(columns: Columns, padding: Mapping[str, int]) -> Columns:
    """Returns one row that is masked: padding by name, and zeros in leaves without one.

    Zeros are empty text or bytes where rows have those, None for other objects.

    Args:
      columns: Rows of the same kind, at least one.
      padding: What leaves of a dict hold where they are padded.
    """
    import jax

    names = jax.tree.unflatten(columns.tree, range(len(columns.leaves)))
    known = names if isinstance(names, dict) else {}
    values = {
        d: padding[name] for name, d in known.items() if name in padding and isinstance(d, int)
    }
    leaves = []
    for d, leaf in enumerate(columns.leaves):
        if leaf.dtype == object:
            kind = type(leaf.flat[0]) if leaf.size else None
            zero = kind() if kind in (str, bytes) else None
        else:
            zero = values.get(d, 0)
        leaves.append(np.full((1, *leaf.shape[1:]), zero, dtype=leaf.dtype))
    return Columns(columns.tree, leaves)


def masked(columns: Columns | None, counts: Sequence[int], each: int, like: Columns) -> Columns:
    """Spreads rows over lanes that should have `each`, with `like` where a lane has fewer."""
    given = (np.arange(each) < np.asarray(counts)[:, None]).ravel()
    leaves = []
    for d, leaf in enumerate(like.leaves):
        out = np.repeat(leaf, len(given), axis=0)
        if columns is not None:
            out[given] = columns.leaves[d]
        leaves.append(out)
    return Columns(like.tree, leaves)


def tree_of(columns: Columns, row_mask: np.ndarray | None = None) -> object:
    """The columns as a pytree like one element, with the mask as one more leaf.

    Raises:
      TypeError: If there is a mask and the elements are not dicts, or have that leaf already.
    """
    import jax

    batch = jax.tree.unflatten(columns.tree, columns.leaves)
    if row_mask is None:
        return batch
    if not isinstance(batch, dict) or "row_mask" in batch:
        raise TypeError(
            "pad=True adds a leaf 'row_mask', so the pipeline must yield dicts without it; got"
            f" {type(batch).__name__}."
        )
    return {**batch, "row_mask": row_mask}
