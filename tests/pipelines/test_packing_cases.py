"""Cases of packing that went wrong for people with other loaders, with the right values.

Each test names where the case was reported; expected values follow from counting.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.packing import LAYOUTS, METHODS, dataset_of, documents_of

import zephon_jax as zx

PAIRS = {"maxtext": ("inputs", "targets"), "torchtitan": ("input", "labels")}
MASKED = {
    "maxtext": dict.fromkeys(
        [
            f"{name}{end}"
            for name in ("inputs", "targets")
            for end in ("_segmentation", "_position")
        ],
        0,
    ),
    "torchtitan": {"positions": 0, "labels": -100},
    "levanter": {"loss_weight": 0.0, "segment_ids": -1},
}
TOKENS = {"maxtext": ("inputs", "targets"), "torchtitan": ("input",), "levanter": ("tokens",)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_target_is_of_another_document(layout, method):
    """Case 76. torchtitan PR4075, Cortex#28: documents without an end predicted the next one."""
    docs = documents_of([7, 3, 30, 1, 2, 12, 8, 8, 40, 5])
    document = {t: n for n, d in enumerate(docs) for t in d["tokens"].tolist()}
    for row in zx.pack(dataset_of(docs), 8, method=method, layout=layout, num_bins=2):
        if layout == "levanter":
            asked = np.flatnonzero(row["loss_weight"])
            tokens, targets = row["tokens"][asked], row["tokens"][asked + 1]
        else:
            real = row["component_ids"] >= 0
            tokens, targets = (row[name][real] for name in PAIRS[layout])
        assert np.array_equal(targets, tokens + 1)
        assert [document[t] for t in tokens] == [document[t] for t in targets]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", ["maxtext", "torchtitan"])
def test_positions_restart_at_each_document(layout, method):
    """Case 77. torchtitan PR2560, nanoVLM#201: positions went on, or began amid a row."""
    docs = documents_of([7, 3, 30, 1, 2, 12, 8, 8, 40, 5])
    first = {d["tokens"][0] for d in docs}
    name = {"maxtext": "inputs_position", "torchtitan": "positions"}[layout]
    for row in zx.pack(dataset_of(docs), 8, method=method, layout=layout, num_bins=2):
        tokens, positions = row[PAIRS[layout][0]], row[name]
        for place in np.flatnonzero(row["component_ids"] >= 0).tolist():
            begins = place == 0 or tokens[place] in first  # where a row cuts a document, too
            assert positions[place] == (0 if begins else positions[place - 1] + 1)


def byte_source(**settings):
    texts = {"web": [b"w" * n for n in (9, 17, 5, 14)], "code": [b"c" * 10] * 6}
    data = [zx.Dataset.from_source(name, lines) for name, lines in texts.items()]
    settings = {"chunk_size": 3, "exhausted_policy": "redistribute", **settings}
    return zx.StaticMixtureWorkSource(data, {"web": 4, "code": 6}, **settings)


def tokenized(element):
    tokens = np.frombuffer(element["data"], np.uint8)
    return {"tokens": tokens, "component_id": element["component_id"]}


def lanes_of(source, num_lanes, pipeline, **settings):
    return zx.ElasticIterDataset(
        source, num_lanes, pipeline, rows_per_sample=None, pad=True, process_index=0,
        process_count=1, **settings,
    )  # fmt: skip


@pytest.mark.parametrize(("layout", "num_workers", "flush"), [
    *((layout, 0, flush) for layout in LAYOUTS for flush in (False, True)),
    ("maxtext", 1, True), pytest.param("levanter", 1, False, marks=pytest.mark.slow),
    pytest.param("torchtitan", 1, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_masked_rows_are_padding_in_every_column(layout, num_workers, flush):
    """Case 78. axolotl PR2227: rows that fill up a batch counted as tokens, with labels of 0."""

    def rows(lane):
        return zx.pack(lane.map(tokenized), 16, layout=layout, pad_id=7)

    def pipeline(lane):
        return zx.FlushIterDataset(lane, rows, 2) if flush else rows(lane)

    batches = list(lanes_of(byte_source(), 2, pipeline, num_workers=num_workers))
    batch = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    masked = ~batch.pop("row_mask")
    assert masked.any()
    assert not masked.all()
    expected = {**dict.fromkeys(TOKENS[layout], 7), **MASKED[layout], "component_ids": -1}
    assert sorted(expected) == sorted(batch)
    for name, column in batch.items():
        assert set(column[masked].ravel().tolist()) == {expected[name]}
    # 45 and 60 tokens, of which each document's first is predicted by none but in Levanter's rows.
    totals = [45, 60] if layout == "levanter" else [45 - 4, 60 - 6]
    assert zx.component_tokens(batch, 2).tolist() == totals


@pytest.mark.parametrize("num_lanes", [1, 2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_each_pair_once_and_no_batch_of_padding_alone(method, num_lanes):
    """Case 79. Energon#114, bergson PR188, SAELens PR611, fairseq2 PR1246: empty documents."""
    sizes = np.random.default_rng(5).integers(0, 31, 60).tolist()
    docs = [d["tokens"].tolist() for d in documents_of(sizes)]
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_source("a", docs)], {"a": 1}, chunk_size=5, shuffle_shards=False
    )

    def pipeline(lane):
        return zx.pack(
            lane.map(lambda e: {"tokens": e["data"], "component_id": 0}), 16, method=method
        )

    found = Counter()
    for batch in lanes_of(source, num_lanes, pipeline):
        real = batch["component_ids"] >= 0
        assert real.any()
        found.update(
            zip(batch["inputs"][real].tolist(), batch["targets"][real].tolist(), strict=True)
        )
    assert found == Counter((t, t + 1) for doc in docs for t in doc[:-1])


@pytest.mark.parametrize("method", METHODS)
def test_empty_documents_alone_give_no_row(method):
    """pytorch-stream-dataloader#3: a loader that found nothing to give never came back."""
    docs = documents_of([0, 1] * 200)
    assert list(zx.pack(dataset_of(docs), 8, method=method)) == []
    rows = zx.pack(dataset_of([*docs, *documents_of([5])]), 8, method=method)
    iterator, again = iter(rows), iter(rows)
    assert next(iterator)["inputs"].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    again.set_state(iterator.get_state())
    assert next(iterator, None) is next(again, None) is None


@pytest.mark.parametrize("method", METHODS)
def test_segments_of_a_row_are_bounded(method):
    """Case 80. grain PR1215, maxtext PR2774: Transformer Engine takes rows of few segments only."""
    docs = documents_of(np.random.default_rng(1).integers(2, 9, 200).tolist())

    def most(**settings):
        rows = zx.pack(dataset_of(docs), 64, method=method, **settings)
        return max(int(row["inputs_segmentation"].max()) for row in rows)

    assert most() > 10
    for bound in (1, 2, 5):
        assert most(max_segments=bound) == bound
    with pytest.raises(ValueError, match="max_segments must be at least 1; got 0"):
        most(max_segments=0)
