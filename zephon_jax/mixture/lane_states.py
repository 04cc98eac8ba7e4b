"""Positions of a run as states of lanes, and back."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from zephon_jax._process import PerProcess
from zephon_jax.data.token_estimation import RATIO_UNIT
from zephon_jax.kernels import lanes
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.fingerprint import differences
from zephon_jax.mixture.positions import MAX_SAMPLES, Position
from zephon_jax.mixture.settings import Knobs
from zephon_jax.mixture.state import (
    MAX_LISTED,
    MAX_LISTED_VIRTUAL,
    MixtureState,
    from_words,
    ledger_digest,
    to_words,
)

__all__ = ["LaneStates", "ratios_of_fields"]

_PAGE = 64  # blocks whose place in the lanes is looked up at once
_KEPT_COMPONENTS = 1 << 16  # components of positions remembered, over all of them
_SHOWN = 8  # ratios in an error


@functools.lru_cache(maxsize=1024)
def _lane_page(
    page: int, lane: int, num_lanes: int, seed: int, assignment: str, origin: int
) -> list[int]:
    """The lane's chunks in _PAGE consecutive blocks: one call costs as much as one chunk's."""
    steps = np.arange(page * _PAGE, (page + 1) * _PAGE)
    return lanes.chunk_of_lane(steps, lane, num_lanes, seed, assignment, origin=origin).tolist()


def _words(fields: list[Any], name: str) -> np.ndarray:
    """An encoded field of 32-bit words, uint32 (n,); empty where it is none."""
    place = MixtureState._fields.index(name)
    raw = fields[place] if place < len(fields) else b""
    whole = isinstance(raw, bytes) and len(raw) % 4 == 0
    return np.frombuffer(raw if whole else b"", dtype="<u4")


def _ratio_words(fields: list[Any]) -> np.ndarray:
    """The encoded ratios of a state, uint32 (n, 2); none where half of one is missing."""
    words = _words(fields, "ratios")
    return words[: 0 if words.size % 2 else None].reshape(-1, 2)


def _of_another(differs: list[str], shown: str = "") -> ValueError:
    return ValueError(
        f"the state belongs to a source with other {', '.join(differs)}{shown}. Restore it"
        " with the settings and data it was saved with, or start anew."
    )


def ratios_of_fields(fields: list[Any], mine: np.ndarray, num_datasets: int) -> list[int]:
    """The token ratios that an encoded state holds, for a source that has none yet.

    Args:
      fields: The state's fields as they are encoded.
      mine: The source's fingerprint, uint32 (c, 3).
      num_datasets: Datasets of the source.

    Raises:
      ValueError: If it holds none for these datasets, or belongs to a source with other settings,
        naming them.
    """
    differs = differences(mine, _words(fields, "config"))
    if differs := [name for name in differs if name != "token_estimation"]:
        raise _of_another(differs)
    ratios = from_words(_ratio_words(fields)).tolist()
    if len(ratios) != num_datasets or min(ratios, default=0) < 1:
        raise ValueError(
            "the state holds no token ratios for these datasets: it was saved without"
            f" token_estimation, with shard totals, or by a source of more than {MAX_LISTED}"
            " datasets. Prime the source, or give it the TokenEstimation it was saved with."
        )
    return ratios


class LaneStates:
    """Makes and reads the states of one source. Immutable but for recent positions that it keeps.

    Args:
      eras: Positions of the run.
      knobs: The settings of the source.
      config: The source's fingerprint, uint32 (c, 3).
      ratios: Tokens per byte of each dataset, int64 (k,) in units of 1 / RATIO_UNIT; (0,) where
        tokens do not matter, where they are known by shard, or above MAX_LISTED datasets.
    """

    def __init__(self, eras: Eras, knobs: Knobs, config: np.ndarray, ratios: np.ndarray):
        self._eras, self._knobs, self._config = eras, knobs, config
        self._ratios = to_words(ratios)
        k = len(knobs.names)
        virtual = eras.rules.costs is not None
        self._listed = listed = k <= (MAX_LISTED_VIRTUAL if virtual else MAX_LISTED)
        none = k if listed and not virtual else 0
        # What each field of a state looks like.
        self._shapes = MixtureState(
            lane=(), num_lanes=(), lag=(), chunk=(2,), origin=(2,), era=(2,), carry=(none,),
            drawn=(k if listed else 0, 2), ledger=(0 if listed else 2,),
            ratios=self._ratios.shape, config=config.shape,
        )  # fmt: skip
        self._recent: OrderedDict[int, Position] = OrderedDict()
        self._lock = PerProcess(threading.RLock)

    def lane_chunk(self, chunk_index: int, lane: int, num_lanes: int, origin: int) -> int:
        """The lane's first chunk at or after this one."""
        if num_lanes == 1:
            return chunk_index
        block = (chunk_index - origin) // num_lanes
        for step in (block, block + 1):
            page, place = divmod(step, _PAGE)
            knobs = self._knobs
            chunks = _lane_page(page, lane, num_lanes, knobs.seed, knobs.lane_assignment, origin)
            if chunks[place] >= chunk_index:
                return chunks[place]
        raise AssertionError("a lane has one chunk in each block")

    def _lag(self, chunk_index: int, lane: int, num_lanes: int, origin: int) -> int:
        """Blocks from the one that holds a chunk to that of the lane's next chunk: 0 or 1.

        A lane that has read its chunk of the block in which the run ends stands at the end, as one
        does whose chunk would have come later: only this tells them apart.
        """
        next_chunk = self.lane_chunk(chunk_index, lane, num_lanes, origin)
        return (next_chunk - origin) // num_lanes - (chunk_index - origin) // num_lanes

    def state(self, position: Position, lane: int, num_lanes: int, origin: int) -> MixtureState:
        """The state of a lane that has read up to a position."""
        self._remember(position)
        listed = self._listed
        none = np.zeros((0, 2), dtype=np.uint32)
        lag = self._lag(position.chunk_index, lane, num_lanes, origin)
        state = MixtureState(
            lane=np.asarray(lane, dtype=np.int32),
            num_lanes=np.asarray(num_lanes, dtype=np.int32),
            lag=np.asarray(lag, dtype=np.int32),
            chunk=to_words(position.chunk_index),
            origin=to_words(origin),
            era=to_words(position.era.first_chunk),
            carry=position.carry if listed else np.zeros(0, dtype=np.int32),
            drawn=to_words(position.drawn) if listed else none,
            ledger=none[:, 0] if listed else ledger_digest(position.carry, position.drawn),
            ratios=self._ratios,
            config=self._config,
        )
        for leaf in state:
            leaf.setflags(write=False)
        return state

    def _remember(self, position: Position) -> None:
        with self._lock.get():
            self._recent[position.chunk_index] = position
            crowded = len(self._recent) * len(self._knobs.names) > _KEPT_COMPONENTS
            if crowded and len(self._recent) > 2:
                self._recent.popitem(last=False)

    def position(self, state: MixtureState) -> Position:
        """The position that a state of this source describes.

        Raises:
          ValueError: If what the state holds contradicts itself.
        """
        chunk_index = from_words(state.chunk)
        known = self._recent.get(chunk_index)
        if np.asarray(state.ledger).size:
            position = known or self._eras.seek(chunk_index)
            digest = ledger_digest(position.carry, position.drawn)
            found = position.chunk_index, position.era.first_chunk
            wanted = chunk_index, from_words(state.era)
            if found != wanted or not np.array_equal(digest, state.ledger):
                raise ValueError(
                    "the state contradicts itself: its digest or its era does not belong to its"
                    f" chunk {chunk_index}."
                )
            return position
        carry, drawn = np.array(state.carry, dtype=np.int32), from_words(state.drawn)
        if (
            known is not None
            and known.era.first_chunk == from_words(state.era)
            and np.array_equal(known.carry, carry)
            and np.array_equal(known.drawn, drawn)
        ):
            return known
        return self._eras.resume(chunk_index, from_words(state.era), carry, drawn)

    def check_fields(self, fields: list[Any]) -> None:
        """Checks the settings that an encoded state belongs to, before anything is decoded.

        Raises:
          ValueError: Naming each thing that differs.
        """
        self.check_config(_words(fields, "config"), _ratio_words(fields))

    def check_config(self, config: np.ndarray, ratios: np.ndarray) -> None:
        """Checks the fingerprint (c, 3) and the ratios (n, 2) of a state.

        Raises:
          ValueError: Naming each thing that differs.
        """
        differs, shown = differences(self._config, config), ""
        if not differs:
            return
        if "token_estimation" in differs and "dataset names" not in differs:
            shown = self._other_tokens(ratios)
        raise _of_another(differs, shown)

    def _other_tokens(self, ratios: np.ndarray) -> str:
        """How the ratios of a state differ from those of the source, for an error."""
        if not self._ratios.size or self._ratios.shape != ratios.shape:
            return ""
        mine, other = from_words(self._ratios), from_words(ratios)
        pairs = [
            f"{name!r}: {b / RATIO_UNIT} in the state, {a / RATIO_UNIT} here"
            for name, a, b in zip(self._knobs.names, mine.tolist(), other.tolist(), strict=False)
            if a != b
        ]
        if not pairs:
            return " (tokens per byte are the same, the bytes of the shards are not)"
        more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        return f" (tokens per byte of {'; '.join(pairs[:_SHOWN])}{more})"

    def check_form(self, state: MixtureState) -> None:
        """Checks that each field of a state holds as many integers as it should.

        Raises:
          ValueError: Naming the field.
        """
        for name, leaf, shape in zip(state._fields, state, self._shapes, strict=True):
            if getattr(leaf, "shape", None) == shape and leaf.dtype.kind in "iu":
                continue
            found = np.asarray(leaf)
            if found.shape != shape or found.dtype.kind not in "iu":
                raise ValueError(
                    f"the state's field {name!r} must hold integers of shape {shape}; got"
                    f" {found.dtype} {found.shape}. States come from init, seek, next_chunk and"
                    " decode_state."
                )

    def check(self, state: MixtureState) -> None:
        """Checks what a state of this form and configuration holds.

        Raises:
          ValueError: Naming what in it is not possible.
        """
        chunk, origin, era = (from_words(w) for w in (state.chunk, state.origin, state.era))
        most = MAX_SAMPLES // self._knobs.chunk_size
        lag = int(state.lag)
        possible = 0 <= origin <= chunk <= most and 0 <= era <= chunk
        if not possible or lag != self._lag(chunk, int(state.lane), int(state.num_lanes), origin):
            raise ValueError(
                f"the state contradicts itself: chunk = {chunk}, origin = {origin}, era = {era},"
                f" lag = {lag}."
            )
        if not np.array_equal(state.ratios, self._ratios):
            raise ValueError(
                "the state belongs to a source with other token_estimation"
                f"{self._other_tokens(np.asarray(state.ratios))}. Restore it with the settings and"
                " data it was saved with, or start anew."
            )
        if not np.asarray(state.ledger).size:
            self.position(state)
