"""Rows for trainers: no token is lost or doubled, and they resume anywhere, through JSON."""

from __future__ import annotations

import json

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint
from support.packing import METHODS, dataset_of, documents_of

import zephon_jax as zx
from zephon_jax.pipelines.packing import IGNORED, pack

LENGTH = 16


def documents(num=40, seed=0, *, longest=3 * LENGTH):
    sizes = np.random.default_rng(seed).integers(0, longest, num).tolist()
    sizes[:3] = [LENGTH + 1, 1, LENGTH]  # rows that are just filled are a case of their own
    return documents_of(sizes)


def component_of(docs):
    """The component of each token."""
    return {int(t): int(doc["component_id"]) for doc in docs for t in doc["tokens"]}


def pairs_of(docs):
    """Each token with the one after it in its document."""
    return sorted((int(a), int(a) + 1) for doc in docs for a in doc["tokens"][:-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("longest", [LENGTH // 2, 5 * LENGTH])
def test_no_token_is_lost_or_doubled(method, longest):
    docs = documents(100, longest=longest)
    rows = list(pack(dataset_of(docs), LENGTH, method=method, num_bins=4))
    found, components = [], component_of(docs)
    for row in rows:
        assert all(column.shape == (LENGTH,) for column in row.values())
        assert all(column.dtype == np.int32 for column in row.values())
        real = row["inputs_segmentation"] > 0
        assert np.array_equal(row["inputs_segmentation"], row["targets_segmentation"])
        assert np.array_equal(row["inputs_position"], row["targets_position"])
        found += zip(row["inputs"][real].tolist(), row["targets"][real].tolist(), strict=True)
        assert row["component_ids"][real].tolist() == [
            components[t] for t in row["targets"][real].tolist()
        ]
        for name, pad in (("inputs", 0), ("targets", 0), ("component_ids", -1)):
            assert set(row[name][~real].tolist()) <= {pad}
        for segment in range(1, row["inputs_segmentation"].max() + 1):
            mine = row["inputs_segmentation"] == segment
            tokens, places = row["inputs"][mine], row["inputs_position"][mine]
            assert places.tolist() == list(range(len(places)))
            assert (np.diff(tokens) == 1).all()  # one document, in its order
    assert sorted(found) == pairs_of(docs)
    filled = len(found) / (LENGTH * len(rows))
    assert filled > (0.97 if method == "concat_then_split" else 0.75)


@pytest.mark.parametrize("method", METHODS)
def test_torchtitan_rows_are_the_same_with_other_names(method):
    docs = documents()
    plain = list(pack(dataset_of(docs), LENGTH, method=method, num_bins=4))
    rows = list(pack(dataset_of(docs), LENGTH, method=method, num_bins=4, layout="torchtitan"))
    for row, other in zip(rows, plain, strict=True):
        assert sorted(row) == ["component_ids", "input", "labels", "positions"]
        real = other["targets_segmentation"] > 0
        assert np.array_equal(row["input"], other["inputs"])
        assert np.array_equal(row["positions"], other["inputs_position"])
        assert np.array_equal(row["labels"], np.where(real, other["targets"], IGNORED))
        assert all(column.dtype == np.int32 for column in row.values())


@pytest.mark.parametrize("method", METHODS)
def test_levanter_rows_hold_each_token_once(method):
    docs = documents()
    rows = list(pack(dataset_of(docs), LENGTH, method=method, num_bins=4, layout="levanter"))
    tokens, components = [], component_of(docs)
    ends = {int(doc["tokens"][-1]) for doc in docs if len(doc["tokens"])}
    for row in rows:
        assert sorted(row) == ["component_ids", "loss_weight", "segment_ids", "tokens"]
        assert row["loss_weight"].dtype == np.float32
        real = row["segment_ids"] >= 0
        mine = row["tokens"][real].tolist()
        tokens += mine
        assert row["component_ids"][real].tolist() == [components[t] for t in mine]
        assert set(row["component_ids"][~real].tolist()) <= {-1}
        # A token is asked for the one after it where that is in the row and in its document.
        following = np.append(row["tokens"][1:] == row["tokens"][:-1] + 1, False)
        same = np.append(row["segment_ids"][1:] == row["segment_ids"][:-1], False)
        is_end = np.isin(row["tokens"], list(ends))
        assert np.array_equal(row["loss_weight"] > 0, real & following & same & ~is_end)
    assert sorted(tokens) == sorted(component_of(docs))


def test_padding_and_documents_of_several_components():
    docs = [
        {"ids": [7, 8, 9], "component_ids": [0, 1, 1]},
        {"ids": np.array([5, 6]), "component_id": 4},
    ]
    (row,) = pack(dataset_of(docs), 5, tokens="ids", pad_id=99)
    assert row["inputs"].tolist() == [7, 8, 5, 99, 99]
    assert row["targets"].tolist() == [8, 9, 6, 99, 99]
    assert row["component_ids"].tolist() == [1, 1, 4, -1, -1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("layout", "columns"),
    [("maxtext", ("inputs", "targets")), ("torchtitan", ("input",)), ("levanter", ("tokens",))],
)
def test_token_0_stays_where_another_one_pads(method, layout, columns):
    docs = [{"tokens": [0, 5, 0, 0], "component_id": 1}]
    (row,) = pack(dataset_of(docs), 6, method=method, layout=layout, pad_id=99)
    expected = {
        "inputs": [0, 5, 0, 99, 99, 99],
        "targets": [5, 0, 0, 99, 99, 99],
        "input": [0, 5, 0, 99, 99, 99],
        "tokens": [0, 5, 0, 0, 99, 99],
    }
    assert {name: row[name].tolist() for name in columns} == {n: expected[n] for n in columns}
    if layout == "torchtitan":
        assert row["labels"].tolist() == [5, 0, 0, IGNORED, IGNORED, IGNORED]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", ["maxtext", "levanter"])
def test_checkpoints_at_every_step(method, layout):
    rows = pack(dataset_of(documents(14)), LENGTH, method=method, num_bins=3, layout=layout)
    assert_equal_output_after_checkpoint(rows)
    iterator, states = iter(rows), []
    for _ in (expected := list(rows)):
        states.append(json.dumps(iterator.get_state()))
        next(iterator)
    for step, state in enumerate(states):
        again = iter(rows)
        again.set_state(json.loads(state))
        np.testing.assert_equal(list(again), expected[step:])


def text_source(**settings):
    rng = np.random.default_rng(0)
    texts = {
        name: [bytes(rng.integers(97, 123, n).astype(np.uint8)) for n in rng.integers(1, 60, 40)]
        for name in ("web", "code")
    }
    datasets = [zx.Dataset.from_source(name, lines) for name, lines in texts.items()]
    settings = {"chunk_size": 8, **settings}
    return zx.StaticMixtureWorkSource(datasets, {"web": 1, "code": 2}, **settings)


def tokenize(element):
    tokens = np.frombuffer(element["data"], np.uint8)
    return {"tokens": tokens, "component_id": element["component_id"]}


@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize("method", METHODS)
def test_elastic_lanes_resume_at_other_host_counts(method):
    source, num_lanes = text_source(), 4

    def hosts(count):
        return [
            iter(
                zx.ElasticIterDataset(
                    source, num_lanes, lambda lane: pack(lane.map(tokenize), 32, method=method),
                    process_index=h, process_count=count, rows_per_sample=None, global_batch_size=8,
                )
            )
            for h in range(count)
        ]  # fmt: skip

    def batch_of(iterators):
        parts = [next(iterator, None) for iterator in iterators]
        if any(part is None for part in parts):
            return None
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def to_end(iterators):
        found = []
        while (batch := batch_of(iterators)) is not None:
            found.append(batch)
        return found

    expected = to_end(hosts(1))
    assert len(expected) >= 4
    assert expected[0]["inputs"].shape == (8, 32)
    for saving, restoring in ((1, 4), (4, 2), (2, 1)):
        iterators = hosts(saving)
        for step in range(0, len(expected) - 1, 2):
            states = [json.loads(json.dumps(it.get_state())) for it in iterators]
            lanes = {lane: state for one in states for lane, state in one["lanes"].items()}
            others = hosts(restoring)
            for other in others:
                other.set_state({**states[0], "lanes": lanes})
            np.testing.assert_equal(to_end(others), expected[step:])
            np.testing.assert_equal(
                [batch_of(iterators) for _ in range(2)], expected[step : step + 2]
            )


def all_together(lane):
    """Stamped, mixed anew, packed, and flushed every other chunk."""

    def document(element):
        return {**tokenize(element), "exhausted": element["exhausted"]}

    def pipeline(lane):
        documents = zx.mark_exhausted(lane).map(document)
        mixed = zx.EnsureMixtureIterDataset(
            documents, {"web": 1, "code": 2}, component_ids={"web": 0, "code": 1}
        )
        return pack(mixed, 32)

    return zx.FlushIterDataset(lane, pipeline, 2)


def resume_together(saving, restoring):
    """Batches of a run that is saved after 3 steps and goes on, and of one that is not."""

    def opened(num_workers):
        return iter(
            zx.ElasticIterDataset(
                text_source(exhausted_policy="redistribute"), 4, all_together, process_index=0,
                process_count=1, rows_per_sample=None, global_batch_size=8, num_workers=num_workers,
            )
        )  # fmt: skip

    first, second, whole = opened(saving), opened(restoring), opened(0)
    expected = list(whole)
    found = [next(first) for _ in range(3)]
    second.set_state(json.loads(json.dumps(first.get_state())))
    found += list(second)
    for iterator in (first, second, whole):
        iterator.close()
    return found, expected


@pytest.mark.filterwarnings("ignore:.*are dropped")
def test_all_transforms_together_resume():
    found, expected = resume_together(0, 0)
    assert len(expected) > 5
    np.testing.assert_equal(found, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are dropped")
@pytest.mark.parametrize(("saving", "restoring"), [(2, 0), (0, 2), (1, 2)])
def test_all_transforms_together_resume_in_worker_processes(saving, restoring):
    found, expected = resume_together(saving, restoring)
    np.testing.assert_equal(found, expected)


class _EndsOnce(grain.IterDataset):
    """Documents; whoever asks for more after their end is told off."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements

    def __iter__(self):
        return _EndsOnceIterator(self.elements)


class _EndsOnceIterator(grain.DatasetIterator):
    def __init__(self, elements):
        super().__init__()
        self.elements, self.at, self.ended = elements, 0, False

    def __next__(self):
        assert not self.ended, "asked again after the end"
        if self.at == len(self.elements):
            self.ended = True
            raise StopIteration
        self.at += 1
        return self.elements[self.at - 1]

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at, self.ended = state["at"], False


@pytest.mark.parametrize("method", METHODS)
def test_the_end_of_the_documents_is_met_once(method):
    """Some of Grain's iterators go on after their end; the rows left then make several windows."""
    rows = pack(_EndsOnce(documents()), LENGTH, num_bins=1, method=method)
    iterator = iter(rows)
    assert len(list(iterator)) > 3
    with pytest.raises(StopIteration):
        next(iterator)


def test_component_tokens():
    rows = list(pack(dataset_of(documents()), LENGTH, num_bins=4))
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    counts = zx.component_tokens(batch, 5)
    ids = batch["component_ids"]
    assert counts.tolist() == [int((ids == d).sum()) for d in range(5)]
    assert int(counts.sum()) == int((batch["targets_segmentation"] > 0).sum())
    count = jax.jit(zx.component_tokens, static_argnums=1)
    for given in (batch, ids):
        compiled = count(jax.tree.map(jnp.asarray, given), 5)
        assert (compiled.dtype, compiled.tolist()) == (jnp.int32, counts.tolist())
    each = jax.vmap(lambda row: zx.component_tokens(row, 5))(jnp.asarray(ids))
    assert each.sum(axis=0).tolist() == counts.tolist()
    assert zx.component_tokens(np.full((2, 3), -1), 2).tolist() == [0, 0]
    with pytest.raises(ValueError, match="num_components must be at least 1"):
        zx.component_tokens(ids, 0)
    with pytest.raises(ValueError, match=r"in \[-1, num_components = 3\); got 4"):
        zx.component_tokens(np.array([0, 4, -1]), 3)
    with pytest.raises(ValueError, match=r"num_components = 3\); got -2"):
        zx.component_tokens(np.array([0, -2]), 3)
    assert zx.component_tokens(jnp.array([0, 4, -2]), 3).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"length": 0}, ValueError, "length must be at least 1; got 0"),
        ({"num_bins": 0}, ValueError, "num_bins must be at least 1"),
        ({"layout": "keras"}, ValueError, "layout must be one of .*; got 'keras'"),
        ({"method": "last_fit"}, ValueError, "method must be one of .*; got 'last_fit'"),
        ({"dataset": [1]}, TypeError, r"grain\.IterDataset; got list"),
        ({"tokens": "ids"}, ValueError, r"dicts with 'ids'; got \['component_id', 'tokens'\]"),
        ({"docs": [{"tokens": [1.5]}]}, ValueError, r"integers \(n,\); got float64"),
        ({"docs": [{"tokens": [[1]]}]}, ValueError, r"integers \(n,\); got int64 \(1, 1\)"),
        ({"docs": [{"tokens": [1]}]}, ValueError, "must keep 'component_id'"),
        ({"docs": [{"tokens": [1], "component_ids": [1, 2]}]}, ValueError, r"must be \(1,\)"),
        ({"docs": [3]}, ValueError, "dicts with 'tokens'; got int"),
    ],
)
def test_bad_input(settings, error, text):
    docs = settings.pop("docs", documents())
    settings = {"dataset": dataset_of(docs), "length": LENGTH, **settings}
    with pytest.raises(error, match=text):
        next(iter(pack(**settings)))
