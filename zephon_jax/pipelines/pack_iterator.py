"""Packs a window of documents at a time: its place, its documents and its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grain
import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax.pipelines.layouts import LAYOUTS, fill
from zephon_jax.pipelines.packers import PACKERS, Window
from zephon_jax.pipelines.token_arrays import MOST_TOKEN, join_tokens, token_array

__all__ = ["PackIterator", "PackSettings", "Row"]

Row = dict[str, np.ndarray]

# Documents from one kept place of the parent to the next: a restore passes over fewer before its
# window. A place takes as long as a document or two, so that it costs next to nothing.
_EACH_PLACE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Settings of `pack`, checked."""

    length: int
    layout: str
    method: str
    num_bins: int
    max_segments: int
    tokens: str
    pad_id: int


class _Document(NamedTuple):
    """A document that waits, and its number in the stream."""

    number: int
    tokens: np.ndarray  # ints (n,)
    components: Any  # int, or ints (n,)
    loss_mask: np.ndarray | None  # bool (n,); None where all tokens are predicted
    sample_id: Any  # int64 (3,); None where it was not kept


class _Place(NamedTuple):
    """Where a window begins."""

    parent: dict[str, Any]  # the parent's state
    documents: int  # documents of the parent that are passed over
    tokens: int  # tokens of the one after them that are passed over


class PackIterator(grain.DatasetIterator):
    """Packs a window at a time; its state is the window's place and the number of the next row."""

    def __init__(self, documents: grain.DatasetIterator, settings: PackSettings):
        super().__init__(documents)
        self._settings, self._layout = settings, LAYOUTS[settings.layout]
        # Tokens of a document that have no place: its last, where targets have their own.
        self._shift = int(self._layout.has_targets)
        self._record: list[list[Any]] | None = None
        self._begin(_Place(self._parents[0].get_state(), 0, 0), 0)

    def record(self) -> list[list[Any]]:
        """Returns a list to which the sample ids of each row are added, from the next row on.

        An id is int64 (3,), one for each document of the row, in their order.
        """
        self._record = []
        return self._record

    def _begin(self, place: _Place, row: int) -> None:
        """Stands at a place without having read anything: the next call reads up to it."""
        self._place, self._row = place, row
        self._rows: list[Row] = []  # of the window
        self._pending: tuple[_Place, int] | None = (place, row)
        self._num_taken = 0  # documents that were taken from the parent since the oldest place
        # The parent's state, with the number of its next document.
        self._places: deque[tuple[int, dict[str, Any]]] = deque([(0, place.parent)])
        self._waiting: deque[_Document] = deque()
        self._num_tokens = 0  # with a place, in the documents that wait
        self._skip = 0  # tokens of the first of them that are used up
        self._element: Any = None  # one that was taken and not yet looked into
        self._ended = False

    def __next__(self) -> Row:
        self._assert_not_closed()
        if self._pending is not None:
            self._replay(*self._pending)
        if self._row >= len(self._rows):
            self._pack()
            if not self._rows:
                raise StopIteration
        row = self._rows[self._row]
        if self._record is not None:
            self._record.append(self._sample_ids(self._row))
        self._row += 1
        if self._row == len(self._rows):
            self._leave()
        return row

    def _replay(self, place: _Place, row: int) -> None:
        while self._num_taken < place.documents:
            if not self._take(keep=False):
                raise ValueError("the data ended before the documents that the state has seen.")
        self._skip = place.tokens
        if row or place.tokens:
            self._pack()
            if row >= max(1, len(self._rows)):
                raise ValueError(f"the state's window has {row} rows, and this one fewer.")
            self._row = row
        self._pending = None

    def _pack(self) -> None:
        """Packs the next window; one without rows at the end."""
        settings = self._settings
        waiting, shift = self._waiting, self._shift
        most_tokens = settings.num_bins * settings.length + self._skip
        most_documents = settings.num_bins * settings.max_segments
        while self._num_tokens < most_tokens and len(waiting) < most_documents:
            if self._ended or not self._take():
                break
        if waiting and self._skip >= len(waiting[0].tokens) - shift:
            raise ValueError(f"the state has used {self._skip} tokens of a document with fewer.")
        sizes = [len(document.tokens) - shift for document in waiting]
        if sizes:
            sizes[0] -= self._skip
        window = PACKERS[settings.method](
            sizes, settings.length, settings.num_bins, settings.max_segments
        )
        self._row, self._rows = 0, self._fill(window) if window.num_rows else []
        self._window = window
        self._following = window.num_documents, window.num_tokens

    def _fill(self, window: Window) -> list[Row]:
        settings, used = self._settings, list(self._waiting)
        del used[window.num_documents + (window.num_tokens > 0) :]
        parts = [slice(None)] * len(used)
        end = None
        if window.num_tokens:
            end = window.num_tokens + self._shift + (self._skip if len(used) == 1 else 0)
        parts[-1] = slice(end)
        parts[0] = slice(self._skip, end if len(used) == 1 else None)
        ids = [document.tokens for document in used]
        for n in {0, len(used) - 1}:
            ids[n] = ids[n][parts[n]]
        lengths = [len(part) for part in ids]
        components = _components(used, parts, lengths)
        tokens = join_tokens(ids, repr(settings.tokens))
        columns = fill(
            window, self._layout, settings.length, settings.pad_id, tokens, lengths, components,
            _loss_mask(used, parts, lengths),
        )  # fmt: skip
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def _sample_ids(self, row: int) -> list[object]:
        """The samples of a row of the window."""
        documents = {piece.document: None for piece in self._window.pieces if piece.row == row}
        ids = [self._waiting[document].sample_id for document in documents]
        if any(one is None for one in ids):
            raise ValueError("documents must keep 'sample_id' for rows to tell their samples.")
        return ids

    def _leave(self) -> None:
        """Goes on behind the window, all of whose rows were handed out."""
        num_documents, num_tokens = self._following
        for _ in range(num_documents):
            document = self._waiting.popleft()
            self._num_tokens -= len(document.tokens) - self._shift
            self._skip = 0
        self._skip += num_tokens
        number = self._waiting[0].number if self._waiting else self._num_taken
        while len(self._places) > 1 and self._places[1][0] <= number:
            self._places.popleft()
        first, parent = self._places[0]
        self._place = _Place(parent, number - first, self._skip)
        self._row, self._rows = 0, []

    def _take(self, keep: bool = True) -> bool:
        """Takes a document from the parent; returns False at the end."""
        if self._element is None:
            if self._num_taken - self._places[-1][0] >= _EACH_PLACE:
                self._keep_place(keep)
            try:
                self._element = next(self._parents[0])
            except StopIteration:
                self._ended = True
                return False
        if keep:
            document = _read_document(self._element, self._settings.tokens, self._num_taken)
            size = len(document.tokens) - self._shift
            if size > 0:
                self._waiting.append(document)
                self._num_tokens += size
        self._element = None
        self._num_taken += 1
        return True

    def _keep_place(self, may_begin: bool) -> None:
        """Keeps the parent's place; the window begins there where no document waits."""
        parent = self._parents[0].get_state()
        if may_begin and not self._waiting and not self._skip:
            self._places.clear()
            self._place = _Place(parent, 0, 0)
        self._places.append((self._num_taken, parent))

    def get_state(self) -> dict[str, object]:
        """The window's place and the next row, as plain JSON."""
        return {**self._place._asdict(), "row": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a place that `get_state` described; the next call packs its window again.

        Raises:
          ValueError: If it is not the state of a packer, or the parent refuses its part.
        """
        try:
            parent = state["parent"]
            documents, tokens, row = (
                as_int(state[name], name, 0) for name in ("documents", "tokens", "row")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the state of pack: {error!r}.") from None
        self._parents[0].set_state(parent)
        self._begin(_Place(parent, documents, tokens), row)

    def __str__(self) -> str:
        return f"PackIterator({self._settings.method}, {self._settings.layout})"


def _read_document(document: object, entry: str, number: int) -> _Document:
    """Returns the tokens of a document, and its component or that of each token.

    What takes longer to check is checked for all documents of a window together.
    """
    # `isinstance` asks an abstract class, which takes longer than all the rest.
    if (type(document) is not dict and not isinstance(document, Mapping)) or entry not in document:
        has = sorted(document) if isinstance(document, Mapping) else type(document).__name__
        raise ValueError(f"documents must be dicts with {entry!r}; got {has}.")
    tokens = token_array(document[entry], repr(entry))
    mask = _mask_of(document, tokens) if "loss_mask" in document else None
    if "component_ids" in document:
        components = np.asarray(document["component_ids"])
        if components.shape != tokens.shape:
            raise ValueError(f"'component_ids' must be {tokens.shape}; got {components.shape}.")
        return _Document(number, tokens, components, mask, document.get("sample_id"))
    if "component_id" not in document:
        raise ValueError(
            f"documents must keep 'component_id' (or 'component_ids'); got {sorted(document)}."
        )
    component = document["component_id"]
    if isinstance(component, np.ndarray):
        component = component.item()
    return _Document(number, tokens, component, mask, document.get("sample_id"))


def _mask_of(document: Mapping[str, object], tokens: np.ndarray) -> np.ndarray:
    mask = np.asarray(document["loss_mask"])
    if (
        mask.shape != tokens.shape
        or mask.dtype.kind not in "biu"
        or ((mask != 0) & (mask != 1)).any()
    ):
        raise ValueError(
            f"'loss_mask' must be booleans, or 0 and 1, one for each of {len(tokens)} tokens; got"
            f" {mask.dtype} {mask.shape}."
        )
    return mask.astype(bool)


def _components(
    documents: Sequence[_Document], parts: Sequence[slice], lengths: Sequence[int]
) -> np.ndarray:
    """The component of each document, or of each of their tokens where a document says those."""
    of = [document.components for document in documents]
    if any(isinstance(ids, np.ndarray) for ids in of):
        each = [
            ids[part] if isinstance(ids, np.ndarray) else np.full(length, ids)
            for ids, part, length in zip(of, parts, lengths, strict=True)
        ]
        found = np.concatenate(each)
    else:
        found = np.asarray(of)
    if found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= MOST_TOKEN:
        raise ValueError(f"component ids must be integers in [0, 2^31 - 1); got {found[:8]}.")
    return found


def _loss_mask(
    documents: Sequence[_Document], parts: Sequence[slice], lengths: Sequence[int]
) -> np.ndarray | None:
    """Which of the documents' tokens are to be predicted; None for all of them."""
    masks = [document.loss_mask for document in documents]
    if all(mask is None for mask in masks):
        return None
    return np.concatenate([
        np.ones(length, dtype=bool) if mask is None else mask[part]
        for mask, part, length in zip(masks, parts, lengths, strict=True)
    ])  # fmt: skip
