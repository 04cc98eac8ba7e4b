"""Functions of many elements, and tokenizers: the same stream as one by one, restored anywhere."""

from __future__ import annotations

import json

import grain
import numpy as np
import pytest
from grain.experimental import assert_equal_output_after_checkpoint

import zephon_jax as zx

TEXTS = [f"number {n} has {'many ' * (n % 7)}words" * (n % 5) for n in range(60)]


def lane_of(records, **settings):
    settings = {"chunk_size": 25, "exhausted_policy": "redistribute", **settings}
    source = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_source("a", records)], {"a": 1}, **settings
    )
    return zx.LaneIterDataset(source)


def plain(tokens):
    return [(e["sample_id"].tolist(), int(e["component_id"]), e["tokens"].tolist()) for e in tokens]


def expected(lane, encode, end=()):
    return [
        (e["sample_id"].tolist(), int(e["component_id"]), [*encode(e["data"]), *end]) for e in lane
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_map_batch_is_a_map(size):
    seen = []

    def tenfold(batch):
        seen.append(len(batch))
        return [10 * e["data"] for e in batch]

    lane = lane_of(list(range(60)))
    mapped = zx.map_batch(lane, tenfold, size)
    assert list(mapped) == [10 * e["data"] for e in lane]
    assert max(seen) == min(size, 60)
    assert_equal_output_after_checkpoint(mapped)
    flushed = zx.FlushIterDataset(lane, lambda lane: zx.map_batch(lane, tenfold, size), 1)
    assert list(flushed) == list(mapped)
    whole, iterator = list(mapped), iter(mapped)
    for step in range(61):
        again = iter(mapped)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        assert list(again) == whole[step:]
        next(iterator, None)


def test_an_error_of_the_function_loses_nothing():
    broken = True

    def fragile(batch):
        if broken and 11 in batch:
            raise OSError("no answer")
        return batch

    numbers = grain.MapDataset.range(30).to_iter_dataset()
    iterator, found = iter(zx.map_batch(numbers, fragile, 4)), []
    for _ in range(2):
        with pytest.raises(OSError, match="no answer"):
            found.extend(iterator)
    state = iterator.get_state()
    broken = False
    assert [*found, *iterator] == list(range(30))
    iterator.set_state(state)
    assert [*found, *iterator] == list(range(30))


@pytest.mark.parametrize("fails", ["the function", "the parent"])
def test_an_error_behind_a_restore_inside_a_batch_doubles_nothing(fails):
    """The elements of the batch that were handed out before stay handed out."""
    broken = False

    def fragile(batch):
        if broken and fails == "the function":
            raise OSError("no answer")
        return batch

    def read(number):
        if broken and fails == "the parent" and number % 4 == 3:
            raise OSError("no answer")
        return number

    numbers = grain.MapDataset.range(30).map(read).to_iter_dataset(grain.ReadOptions(0, 0))
    mapped = zx.map_batch(numbers, fragile, 4)
    for handed_out in range(13):
        broken, iterator = False, iter(mapped)
        found = [next(iterator) for _ in range(handed_out)]
        broken, again = True, iter(mapped)
        again.set_state(iterator.get_state())
        with pytest.raises(OSError, match="no answer"):
            next(again)
        broken, state = False, again.get_state()
        assert [*found, *again] == list(range(30))
        third = iter(mapped)
        third.set_state(json.loads(json.dumps(state)))
        assert [*found, *third] == list(range(30))


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda batch: batch[1:], ValueError, "sequence of 4 elements.*got 3"),
        (lambda batch: None, ValueError, "got NoneType"),
        (3, TypeError, "function must take a list of elements; got 3"),
    ],
)
def test_bad_functions(function, error, text):
    numbers = grain.MapDataset.range(30).to_iter_dataset()
    with pytest.raises(error, match=text):
        next(iter(zx.map_batch(numbers, function, 4)))


def hugging_face():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer, lambda text: tokenizer.encode(text).ids


def tiktoken():
    package = pytest.importorskip("tiktoken")
    ranks = {bytes([n]): n for n in range(256)}
    for pair in (b"nu", b"mb", b"er", b"numb", b"number", b"wo", b"rd", b"word"):
        ranks[pair] = len(ranks)
    encoding = package.Encoding(
        "own", pat_str=r"\w+|\s+", mergeable_ranks=ranks, special_tokens={"<end>": 999}
    )
    return encoding, encoding.encode_ordinary


def function():
    def encode(text):
        return list(text.encode())

    return encode, encode


class Own:
    def encode(self, text):
        return np.frombuffer(text.encode(), np.uint8)


@pytest.mark.parametrize("kind", [hugging_face, tiktoken, function, lambda: (Own(), Own().encode)])
@pytest.mark.parametrize("end", [(), (999,)])
def test_tokenizers_agree_with_texts_one_by_one(kind, end):
    tokenizer, encode = kind()
    lane = lane_of(TEXTS)
    tokens = zx.tokenize(lane, tokenizer, end_id=end[0] if end else None, size=8)
    assert plain(tokens) == expected(lane, encode, end)
    assert {e["tokens"].dtype for e in tokens} == {np.dtype(np.int32)}
    assert all(sorted(e) == ["component_id", "sample_id", "tokens"] for e in tokens)
    assert_equal_output_after_checkpoint(tokens.map(lambda e: e["tokens"].tolist()))


@pytest.mark.parametrize("size", [1, 5, 64, 100])
def test_a_tokenizer_sees_as_many_texts_as_asked_for(size):
    """What a call takes in memory, and how well its threads are used, is the user's choice."""
    seen = []

    class Batches:
        def encode_batch(self, texts):
            seen.append(len(texts))
            return [list(text.encode()) for text in texts]

    tokens = list(zx.tokenize(lane_of(["a"] * 150), Batches(), size=size))
    assert [e["tokens"].tolist() for e in tokens] == [[97]] * 150
    assert seen == [size] * (150 // size) + [150 % size] * (150 % size > 0)


def test_bytes_and_fields():
    tokenizer, encode = hugging_face()
    texts = plain(zx.tokenize(lane_of(TEXTS), tokenizer))
    assert plain(zx.tokenize(lane_of([t.encode() for t in TEXTS]), tokenizer)) == texts
    records = [{"text": text, "n": n} for n, text in enumerate(TEXTS)]
    assert plain(zx.tokenize(lane_of(records), tokenizer, field="text")) == texts
    marked = zx.tokenize(zx.mark_exhausted(lane_of(TEXTS)), encode)
    assert "exhausted" in next(iter(marked))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_elastic_lanes_tokenize_and_pack(num_workers):
    tokenizer, encode = hugging_face()
    source = lane_of(TEXTS).source

    def pipeline(lane):
        return zx.pack(zx.tokenize(lane, tokenizer, end_id=299), 32, method="best_fit")

    dataset = zx.ElasticIterDataset(
        source, 1, pipeline, rows_per_sample=None, process_index=0, process_count=1,
        num_workers=num_workers,
    )  # fmt: skip
    found = sum(int((batch["targets_segmentation"] > 0).sum()) for batch in dataset)
    assert found == sum(len(encode(text)) for text in TEXTS)


@pytest.mark.parametrize(
    ("tokenizer", "settings", "text"),
    [
        (lambda text: [1.5], {}, r"token ids, integers \(n,\); got float64"),
        (lambda text: [-1], {}, r"in \[0, 2\^31\)"),
        (lambda text: text.lost, {}, "lost"),
        (3, {}, "must have encode_batch.*got int"),
        (len, {"field": "text"}, "field = 'text' names an entry of the records; got str"),
        (len, {"end_id": -1}, "end_id must be at least 0"),
    ],
)
def test_bad_tokenizers(tokenizer, settings, text):
    with pytest.raises((TypeError, ValueError, AttributeError), match=text) as caught:
        next(iter(zx.tokenize(lane_of(TEXTS), tokenizer, **settings)))
    if settings == {} and tokenizer != 3:
        assert "one of samples (0, 0," in caught.value.__notes__[0]
