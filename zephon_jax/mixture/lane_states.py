"""Positions of a run as states of lanes, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zephon_jax._arrays import MAX_INDEX
from zephon_jax._bounded_cache import BoundedCache
from zephon_jax.data.token_estimation import RATIO_UNIT
from zephon_jax.mixture.changed_data import ChangedData
from zephon_jax.mixture.eras import Eras
from zephon_jax.mixture.fingerprint import differences, named_digests
from zephon_jax.mixture.lane_chunks import Lane
from zephon_jax.mixture.positions import Position
from zephon_jax.mixture.settings import MixtureSettings
from zephon_jax.mixture.state import (
    MAX_LISTED,
    MAX_LISTED_VIRTUAL,
    MixtureState,
    ledger_digest,
)
from zephon_jax.sources.codec import Plain
from zephon_jax.sources.words import from_words, to_words

__all__ = ["LaneStates", "Standing", "field_words", "ratios_of_fields"]

_KEPT_COMPONENTS = 1 << 19  # components of states remembered, 24 bytes each, over all of them
_SHOWN = 8  # ratios in an error
_CONFIG = MixtureState._fields.index("config")


def field_words(fields: list[Plain], name: str) -> np.ndarray:
    """An encoded field of 32-bit words, uint32 (n,); empty where it is none."""
    place = MixtureState._fields.index(name)
    raw = fields[place] if place < len(fields) else b""
    raw = raw if isinstance(raw, bytes) and len(raw) % 4 == 0 else b""
    return np.frombuffer(raw, dtype="<u4")


def _ratio_words(fields: list[Plain]) -> np.ndarray:
    """The encoded ratios of a state, uint32 (n, 2); none where half of one is missing."""
    words = field_words(fields, "ratios")
    return words[: 0 if words.size % 2 else None].reshape(-1, 2)


def _of_another(differs: list[str], shown: str = "") -> ValueError:
    return ValueError(
        f"the state belongs to a source with other {', '.join(differs)}{shown}. Restore it"
        " with the settings and data it was saved with, or start anew."
    )


def ratios_of_fields(
    fields: list[Plain], mine: np.ndarray, num_datasets: int, free: Sequence[str] = ()
) -> list[int]:
    """The token ratios that an encoded state holds, for a source that has none yet.

    Args:
      fields: The state's fields as they are encoded.
      mine: The source's fingerprint, uint32 (c, 3).
      num_datasets: Datasets of the source.
      free: What else follows from the ratios, by name.

    Raises:
      ValueError: If it holds none for these datasets, or belongs to a source with other settings,
        naming them.
    """
    differs = differences(mine, field_words(fields, "config"))
    if differs := [name for name in differs if name not in ("token_estimation", *free)]:
        raise _of_another(differs)
    ratios = from_words(_ratio_words(fields)).tolist()
    if len(ratios) != num_datasets or min(ratios, default=0) < 1:
        raise ValueError(
            "the state holds no token ratios for these datasets: it was saved without"
            f" token_estimation, with shard totals, or by a source of more than {MAX_LISTED}"
            " datasets. Prime the source, or give it the TokenEstimation it was saved with."
        )
    return ratios


class Standing(NamedTuple):
    """A state of this source together with the position and the lane that it describes."""

    state: MixtureState
    position: Position
    lane: Lane


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


_LAGS = tuple(_frozen(np.asarray(lag, dtype=np.int32)) for lag in (0, 1))


class LaneStates:
    """Makes and reads the states of one source. Immutable but for states that it remembers.

    A state is words for checkpoints and `jit`. Positions travel beside the states that were made
    here and come back as the same objects, so that nobody unpacks words that nobody changed.

    Args:
      eras: Positions of the run.
      settings: The settings of the source.
      config: The source's fingerprint, uint32 (c, 3).
      ratios: Tokens per byte of each dataset, int64 (k,) in units of 1 / RATIO_UNIT; (0,) where
        tokens do not matter, where they are known by shard, or above MAX_LISTED datasets.
      data: Says which data differs.
    """

    def __init__(
        self,
        eras: Eras,
        settings: MixtureSettings,
        config: np.ndarray,
        ratios: np.ndarray,
        data: ChangedData,
    ):
        self._eras, self._settings, self._config = eras, settings, config
        self._data = data
        k = len(settings.names)
        virtual = eras.steps.rules.costs is not None
        self._config_bytes = config.astype("<u4").tobytes()
        self._listed = k <= (MAX_LISTED_VIRTUAL if virtual else MAX_LISTED)
        self._carried = self._listed and not virtual
        zero = to_words(0)
        # What each field of a state looks like; the fields that never change are shared.
        self._like = MixtureState(
            lane=np.int32(0), num_lanes=np.int32(1), lag=_LAGS[0], chunk=zero, origin=zero,
            era=zero, carry=np.zeros(k, dtype=np.int32) if self._carried else None,
            drawn=np.zeros((k, 2), dtype=np.uint32) if self._listed else None,
            ledger=None if self._listed else zero,
            ratios=to_words(ratios) if ratios.size else None, config=config,
        )  # fmt: skip
        self._recent: BoundedCache[int, Standing] = BoundedCache(_KEPT_COMPONENTS // max(k, 1))

    def lane(self, lane: int, num_lanes: int, origin: int = 0) -> Lane:
        """A lane of this source's runs."""
        return Lane(lane, num_lanes, origin, self._settings.seed, self._settings.lane_assignment)

    def state(self, position: Position, lane: Lane) -> MixtureState:
        """The state of a lane that has read up to a position."""
        like = self._like._replace(
            lane=_frozen(np.asarray(lane.lane, dtype=np.int32)),
            num_lanes=_frozen(np.asarray(lane.num_lanes, dtype=np.int32)),
            origin=to_words(lane.origin),
        )
        return self._moved(like, position, lane)

    def after(self, standing: Standing, position: Position) -> MixtureState:
        """The state of the same lane at a later position."""
        return self._moved(standing.state, position, standing.lane)

    def _moved(self, like: MixtureState, position: Position, lane: Lane) -> MixtureState:
        digest = None
        if not self._listed:
            digest = _frozen(ledger_digest(position.carry, position.drawn))
        state = like._replace(
            lag=_LAGS[lane.lag(position.chunk_index)],
            chunk=to_words(position.chunk_index),
            era=to_words(position.era.first_chunk),
            carry=_frozen(position.carry) if self._carried else None,
            drawn=to_words(position.drawn) if self._listed else None,
            ledger=digest,
        )
        self._recent.put(id(state), Standing(state, position, lane))
        return state

    def known(self, state: MixtureState) -> Standing | None:
        """A state that was made or checked here, with its position; None for any other."""
        found = self._recent.get(id(state))
        return found if found is not None and found.state is state else None

    def standing(self, state: MixtureState) -> Standing:
        """A state that has been checked, with the position that it describes.

        Raises:
          ValueError: If what the state holds contradicts itself.
        """
        lane = self.lane(int(state.lane), int(state.num_lanes), from_words(state.origin))
        return self._stand(state, lane, from_words(state.chunk), from_words(state.era))

    def _stand(self, state: MixtureState, lane: Lane, chunk_index: int, era: int) -> Standing:
        found = Standing(state, self._position(state, chunk_index, era), lane)
        self._recent.put(id(state), found)
        return found

    def _position(self, state: MixtureState, chunk_index: int, era: int) -> Position:
        if self._listed:
            carry = np.array(state.carry if self._carried else (), dtype=np.int32)
            return self._eras.resume(chunk_index, era, carry, from_words(state.drawn))
        position = self._eras.seek(chunk_index)
        digest = ledger_digest(position.carry, position.drawn)
        found = position.chunk_index, position.era.first_chunk
        if found != (chunk_index, era) or not np.array_equal(digest, state.ledger):
            raise ValueError(
                "the state contradicts itself: its digest or its era does not belong to its"
                f" chunk {chunk_index}."
            )
        return position

    def check_fields(self, fields: list[Plain]) -> None:
        """Checks the settings that an encoded state belongs to, before anything is decoded.

        Raises:
          ValueError: Naming each thing that differs.
        """
        if len(fields) != len(self._like) or fields[_CONFIG] != self._config_bytes:
            self.check_config(field_words(fields, "config"), _ratio_words(fields))
            if len(fields) == len(self._like):  # What may differ is from here on as it is here.
                fields[_CONFIG] = self._config_bytes

    def check_config(self, config: np.ndarray, ratios: np.ndarray | None) -> None:
        """Checks the fingerprint (c, 3) and the ratios (n, 2) of a state.

        Raises:
          ValueError: Naming each thing that differs.
        """
        if config.tobytes() == self._config_bytes:
            return
        differs, shown = differences(self._config, config), ""
        if differs:
            names = named_digests(self._config), named_digests(config)
            differs, shown = self._data.explain(differs, *names)
        if not differs:
            return
        if "token_estimation" in differs and "dataset names" not in differs:
            shown = self._other_tokens(ratios) or shown
        raise _of_another(differs, shown)

    def _other_tokens(self, ratios: np.ndarray | None) -> str:
        """How the token ratios of a state differ from those of the source, for an error."""
        mine = self._like.ratios
        if mine is None or ratios is None or mine.shape != np.shape(ratios):
            return ""
        mine, other = from_words(mine), from_words(ratios)
        pairs = [
            f"{name!r}: {b / RATIO_UNIT} in the state, {a / RATIO_UNIT} here"
            for name, a, b in zip(self._settings.names, mine.tolist(), other.tolist(), strict=False)
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
        for name, leaf, like in zip(state._fields, state, self._like, strict=True):
            if type(leaf) is type(like) is np.ndarray and leaf.shape == like.shape:
                if leaf.dtype == like.dtype:
                    continue  # nearly all
            elif leaf is None and like is None:
                continue
            if like is None and leaf is not None:
                raise ValueError(
                    f"the state's field {name!r} must be None for this source; got"
                    f" {type(leaf).__name__}. States come from init, seek, next_chunk and"
                    " decode_state."
                )
            found = np.asarray(leaf)
            if like is not None and (found.shape != like.shape or found.dtype.kind not in "iu"):
                raise ValueError(
                    f"the state's field {name!r} must hold integers of shape {like.shape}; got"
                    f" {found.dtype} {found.shape}. States come from init, seek, next_chunk and"
                    " decode_state."
                )

    def check(self, state: MixtureState) -> None:
        """Checks what a state of this form and configuration holds.

        Raises:
          ValueError: Naming what in it is not possible.
        """
        chunk, era, origin = map(from_words, (state.chunk, state.era, state.origin))
        most = MAX_INDEX // self._settings.chunk_size
        lag, lane = int(state.lag), self.lane(int(state.lane), int(state.num_lanes), origin)
        possible = 0 <= origin <= chunk <= most and 0 <= era <= chunk
        if not possible or lag != lane.lag(chunk):
            raise ValueError(
                f"the state contradicts itself: chunk = {chunk}, origin = {origin}, era = {era},"
                f" lag = {lag}."
            )
        ratios = self._like.ratios
        if ratios is not None and not np.array_equal(state.ratios, ratios):
            raise ValueError(
                "the state belongs to a source with other token_estimation"
                f"{self._other_tokens(state.ratios)}. Restore it with the settings and"
                " data it was saved with, or start anew."
            )
        if self._listed:  # a ledger is looked at when the state is used: that takes a seek
            self._stand(state, lane, chunk, era)
