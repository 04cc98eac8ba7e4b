"""Tokens that are read but not predicted: a document's own mask in packed rows."""

import numpy as np
import pytest
from support.packing import LAYOUTS, METHODS, dataset_of

import zephon_jax as zx


def documents_with_masks(sizes, seed=0):
    """Documents of tokens that occur once; some have a mask, some have none."""
    rng, at, found = np.random.default_rng(seed), 1, []
    for n, size in enumerate(sizes):
        document = {"tokens": np.arange(at, at + size), "component_id": n % 3}
        if n % 4:
            document["loss_mask"] = rng.random(size) < 0.5
        found.append(document)
        at += size
    return found


def predicted_pairs(row, layout):
    """(token, token that it predicts) of the places that count in a trainer's loss."""
    if layout == "maxtext":
        counts = row["targets_segmentation"] > 0
        return zip(row["inputs"][counts].tolist(), row["targets"][counts].tolist(), strict=True)
    if layout == "torchtitan":
        counts = row["labels"] != -100
        return zip(row["input"][counts].tolist(), row["labels"][counts].tolist(), strict=True)
    counts = np.flatnonzero(row["loss_weight"])
    return zip(row["tokens"][counts].tolist(), row["tokens"][counts + 1].tolist(), strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", METHODS)
def test_only_masked_in_tokens_are_predicted(method, layout):
    sizes = np.random.default_rng(1).integers(0, 15, 300).tolist()
    documents = documents_with_masks(sizes)
    rows = list(zx.pack(dataset_of(documents), 16, layout=layout, method=method, num_bins=4))
    found = sorted(pair for row in rows for pair in predicted_pairs(row, layout))
    expected = sorted(
        (int(tokens[n]), int(tokens[n + 1]))
        for document in documents
        for tokens, mask in [(document["tokens"], document.get("loss_mask"))]
        for n in range(len(tokens) - 1)
        if mask is None or mask[n + 1]
    )
    if layout == "levanter" and method == "concat_then_split":
        # Its rows have no place for a target in the next row: where a document is cut, none counts.
        cut = {int(row["tokens"][-1]) for row in rows}
        expected = [pair for pair in expected if pair[0] not in cut]
    assert found == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_change_nothing_else(layout):
    documents = documents_with_masks([9, 1, 30, 4, 16, 2, 2, 11])
    bare = [{k: v for k, v in d.items() if k != "loss_mask"} for d in documents]
    changed = {"maxtext": "targets_segmentation", "torchtitan": "labels", "levanter": "loss_weight"}
    masked_rows = list(zx.pack(dataset_of(documents), 16, layout=layout))
    rows = list(zx.pack(dataset_of(bare), 16, layout=layout))
    assert len(masked_rows) == len(rows)
    for one, other in zip(masked_rows, rows, strict=True):
        assert set(one) == set(other)
        for name in set(one) - {changed[layout]}:
            np.testing.assert_array_equal(one[name], other[name])
    whole = [dict(d, loss_mask=np.ones(len(d["tokens"]), int)) for d in bare]
    for one, other in zip(zx.pack(dataset_of(whole), 16, layout=layout), rows, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("method", METHODS)
def test_masks_are_restored_at_every_row(method):
    documents = documents_with_masks(np.random.default_rng(2).integers(1, 40, 60).tolist(), seed=3)
    dataset = zx.pack(dataset_of(documents), 16, method=method, num_bins=3)
    iterator, states, rows = iter(dataset), [], []
    while True:
        states.append(iterator.get_state())
        row = next(iterator, None)
        if row is None:
            break
        rows.append(row["targets_segmentation"].tolist())
    for n, state in enumerate(states):
        again = iter(dataset)
        again.set_state(state)
        row = next(again, None)
        assert (None if row is None else row["targets_segmentation"].tolist()) == (
            rows[n] if n < len(rows) else None
        )


@pytest.mark.parametrize(
    "mask",
    [np.ones(3, bool), np.array([0.5, 1, 1, 0]), [0, 1, 2, 0], [[1], [1], [0], [1]], [-1] * 4],
)
def test_a_mask_that_does_not_fit_is_named(mask):
    document = {"tokens": np.arange(4), "component_id": 0, "loss_mask": mask}
    with pytest.raises(ValueError, match=r"'loss_mask' must be booleans.*4 tokens"):
        list(zx.pack(dataset_of([document]), 8))
