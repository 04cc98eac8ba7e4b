"""Texts into token ids, many at once where the tokenizer can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.pipelines.map_batch import map_batch
from zephon_jax.pipelines.token_arrays import MOST_TOKEN, join_tokens, token_array

__all__ = ["tokenize"]

Encode = Callable[[list[Any]], Sequence[Any]]


def tokenize(
    dataset: grain.IterDataset,
    tokenizer: object,
    *,
    field: str | None = None,
    end_id: int | None = None,
    size: int = 64,
) -> grain.IterDataset:
    """Replaces the text of a lane's elements by token ids, `size` texts in one call.

    Tokenizers that take a batch do so: `encode_batch` of Hugging Face `tokenizers` and
    `encode_ordinary_batch` of tiktoken work in threads of their own and release the GIL. Others are
    called text by text.

    Args:
      dataset: Elements with the entry "data", such as a lane.
      tokenizer: A `tokenizers.Tokenizer`, a `tiktoken.Encoding`, an object with `encode`, or a
        function of a text that returns its token ids. Tokenizers get text, also where records are
        bytes; functions get records as they are.
      field: The entry of a record that holds its text; None where the record is the text.
      end_id: A token that is put behind each document, as `pack` needs it; None for none.
      size: Texts in a call.

    Returns:
      The elements with "tokens", int32 (n,), in the place of "data", in the same order.

    Raises:
      TypeError, ValueError: If an argument is not allowed, or later a record or its tokens; notes
        of the error name the samples.

    Example:
      >>> import zephon_jax as zx
      >>> texts = zx.Dataset.from_source("texts", ["ab", "c"])
      >>> source = zx.StaticMixtureWorkSource([texts], {"texts": 1}, chunk_size=2)
      >>> lane = zx.tokenize(zx.LaneIterDataset(source), lambda text: list(text.encode()), end_id=0)
      >>> [element["tokens"].tolist() for element in lane]
      [[97, 98, 0], [99, 0]]
    """
    encode = _encoder(tokenizer)
    end = [] if end_id is None else [np.asarray([as_int(end_id, "end_id", 0, MOST_TOKEN)])]

    def tokenized(elements: list[Any]) -> list[dict[str, Any]]:
        try:
            texts = [_text(element, field) for element in elements]
            ids = [token_array(found, "what the tokenizer returned") for found in encode(texts)]
            if len(ids) != len(texts):
                raise ValueError(f"the tokenizer returned {len(ids)} results for {len(texts)}.")
            parts = [part for own in ids for part in (own, *end)]
            joined = join_tokens(parts, "token ids").astype(np.int32, copy=False)
        except Exception as error:
            error.add_note(f"raised for one of samples {_name(elements[0])} to "
                           f"{_name(elements[-1])}")  # fmt: skip
            raise
        ends = np.cumsum([len(own) + len(end) for own in ids]).tolist()
        found = []
        for element, a, b in zip(elements, [0, *ends], ends, strict=False):
            rest = {name: value for name, value in element.items() if name != "data"}
            found.append({**rest, "tokens": joined[a:b]})
        return found

    return map_batch(dataset, tokenized, size)


def _encoder(tokenizer: Any) -> Encode:
    """A function of many texts that returns the ids of each."""
    if hasattr(tokenizer, "encode_ordinary_batch"):  # tiktoken
        return lambda texts: tokenizer.encode_ordinary_batch(_decoded(texts))
    for name in ("encode_batch_fast", "encode_batch"):  # tokenizers; the first without offsets
        encode_batch = getattr(tokenizer, name, None)
        if encode_batch is not None:
            return lambda texts: [getattr(e, "ids", e) for e in encode_batch(_decoded(texts))]
    if callable(tokenizer):
        return lambda texts: [tokenizer(text) for text in texts]
    if hasattr(tokenizer, "encode"):
        return lambda texts: [tokenizer.encode(text) for text in _decoded(texts)]
    raise TypeError(
        "tokenizer must have encode_batch, encode_ordinary_batch or encode, or be a function of a"
        f" text; got {type(tokenizer).__name__}."
    )


def _decoded(texts: list[Any]) -> list[str]:
    return [text.decode() if isinstance(text, bytes) else text for text in texts]


def _text(element: object, field: str | None) -> object:
    if not isinstance(element, Mapping) or "data" not in element:
        has = sorted(element) if isinstance(element, Mapping) else type(element).__name__
        raise ValueError(f"elements must be dicts with 'data', as a lane gives them; got {has}.")
    record = element["data"]
    if field is None:
        return record
    if not isinstance(record, Mapping) or field not in record:
        has = sorted(record) if isinstance(record, Mapping) else type(record).__name__
        raise ValueError(f"field = {field!r} names an entry of the records; got {has}.")
    return record[field]


def _name(element: object) -> str:
    sample = element.get("sample_id") if isinstance(element, Mapping) else None
    return "?" if sample is None else str(tuple(np.asarray(sample).tolist()))
