"""States as bytes: msgpack with a version and a checksum, decoded without trusting a single one.

A state is any record whose leaves are integers, booleans, strings or arrays. Field names and
dtypes are not written: the source's own initial state says what must be there, so a length is
checked before anything is allocated, and nothing is ever executed. What is written is the name of
the record's class, or its `state_name` where it has one: a class with one may be renamed or moved,
and its states stay what they are.
"""

# msgpack gives values of any type, which are checked one by one.
# pyright: standard

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgpack
import numpy as np

from zephon_jax._arrays import is_jax
from zephon_jax.sources.checks import State, Stepped

__all__ = [
    "VERSION", "Decoded", "Plain", "decode", "decode_fields", "encode_state", "open_fields",
    "slot_check", "slot_checks", "state_name",
]  # fmt: skip

Plain: TypeAlias = "bool | int | str | bytes | list[Plain] | None"  # what msgpack holds

VERSION = 1
_CHECKSUM_BYTES = 8
# Types whose memory holds what is written: integers in the byte order of states, and booleans.
_AS_WRITTEN = frozenset(map(np.dtype, ("?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")))


def _encoded_none(record: type) -> bytes | None:
    """How fields of a record that are None are encoded: as None, or as what its class names."""
    given = getattr(record, "encoded_none", None)
    return given if isinstance(given, bytes) else None  # it may be the name of a field


def _pack_leaf(value: object, where: str) -> object:
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"state field {where} must fit into 64 bits; got {value}.")
        return value
    if isinstance(value, (np.ndarray, np.generic)) or is_jax(value):
        array = np.asarray(value)
        if array.dtype.kind not in "iub":
            raise TypeError(f"state field {where} must hold integers; got dtype {array.dtype}.")
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, dict):
        return [[key, _pack_leaf(value[key], f"{where}[{key!r}]")] for key in sorted(value)]
    if isinstance(value, (tuple, list)):
        absent = _encoded_none(type(value))
        return [
            item.tobytes()  # nearly all leaves
            if type(item) is np.ndarray and item.dtype in _AS_WRITTEN
            else absent
            if item is None
            else _pack_leaf(item, f"{where}[{i}]")
            for i, item in enumerate(value)
        ]
    raise TypeError(
        f"state field {where} must be an int, bool, str, bytes, None, an integer array or a tuple,"
        f" list or dict of those; got {type(value).__name__}."
    )


def _pack(value: object) -> bytes:
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def _checksum(body: bytes) -> bytes:
    digest = hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES, person=b"zephon_jax state")
    return digest.digest()


def state_name(record: type) -> str:
    """The name that states of a class have when they are encoded."""
    given = getattr(record, "state_name", None)
    return given if isinstance(given, str) else record.__name__  # it may be the name of a field


def encode_state(state: Any) -> bytes:
    """Encodes a state for a checkpoint.

    Args:
      state: A state record of any source: a NamedTuple, or another tuple.

    Returns:
      msgpack bytes: [version, checksum, body], a few hundred bytes.

    Raises:
      TypeError: If a leaf is not an integer, boolean, string or array of integers.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [100])
      >>> source = zx.StaticMixtureWorkSource(datasets=[toy], mixture={"toy": 1}, chunk_size=10)
      >>> data = zx.encode_state(source.init())
      >>> zx.decode_state(source, data).carry.tolist()
      [0]
    """
    if not isinstance(state, tuple):
        raise TypeError(f"a state must be a NamedTuple; got {type(state).__name__}.")
    body = _pack([state_name(type(state)), _pack_leaf(state, "state")])
    return _pack([VERSION, _checksum(body), body])


def slot_check(encoded: str, slot: int) -> int:
    """Ties a slot to the encoded state it belongs to, whose own checksum does not know it.

    Args:
      encoded: The state as text, as plain JSON holds it.
      slot: Samples read of the state's next chunk.
    """
    return slot_checks(encoded)(slot)


def slot_checks(encoded: str) -> Callable[[int], int]:
    """Returns `slot_check` of one state, for many slots: lanes ask for it with every row."""
    begin = zlib.crc32(f"{encoded}:".encode())
    return lambda slot: zlib.crc32(b"%d" % slot, begin)


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0, max_map_len=0)


def open_fields(data: Any) -> tuple[str, list[Plain]]:
    """Checks the wrapping and returns the record's type name and its raw fields."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"an encoded state must be bytes; got {type(data).__name__}.")
    data = bytes(data)
    try:
        wrapped = _unpack(data)
        version, checksum, body = wrapped
        whole = (
            isinstance(wrapped, list)
            and type(version) is int
            and isinstance(checksum, bytes)
            and isinstance(body, bytes)
        )
        whole = whole and checksum == _checksum(body)
        # Only the one canonical form is read: a state has one encoding.
        whole = whole and _pack([version, checksum, body]) == data
        name, fields = _unpack(body) if whole else (None, None)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"not an encoded state, or a damaged one: {error}") from None
    if not whole or not isinstance(name, str) or not isinstance(fields, list):
        raise ValueError("not an encoded state, or a damaged one: its checksum does not match.")
    if version != VERSION:
        raise ValueError(
            f"the state has version {version}; this version of zephon_jax reads version {VERSION}."
        )
    return name, fields


def _fit_array(raw: object, like: np.ndarray, where: str) -> np.ndarray:
    if not isinstance(raw, bytes) or len(raw) != like.nbytes:
        got = len(raw) if isinstance(raw, bytes) else type(raw).__name__
        raise ValueError(
            f"state field {where} must be {like.nbytes} bytes ({like.dtype} {like.shape}); got"
            f" {got}. The state belongs to a source with other components."
        )
    array = np.frombuffer(raw, dtype=like.dtype.newbyteorder("<")).reshape(like.shape)
    array = array.astype(like.dtype)
    array.setflags(write=False)
    return array


def _fit(raw: object, like: object, where: str) -> object:
    """Brings raw fields into the structure of a state that is known to be right."""
    if isinstance(like, (tuple, list, dict)):
        if not isinstance(raw, list) or len(raw) != len(like):
            raise ValueError(f"state field {where} must hold {len(like)} items.")
        if isinstance(like, dict):
            keys = sorted(like)
            pairs = all(isinstance(item, list) and len(item) == 2 for item in raw)
            if not pairs or [item[0] for item in raw] != keys:
                raise ValueError(f"state field {where} must hold the keys {keys}.")
            return {
                k: _fit(item[1], like[k], f"{where}[{k!r}]")
                for k, item in zip(keys, raw, strict=True)
            }
        names = getattr(like, "_fields", None) or range(len(like))
        items: list[Any] = []
        absent = _encoded_none(type(like))
        for item, part, name in zip(raw, like, names, strict=True):
            plain = type(part) is np.ndarray and part.dtype in _AS_WRITTEN
            if plain and type(item) is bytes and len(item) == part.nbytes:
                # Nearly all leaves. The array is of the bytes themselves, which nobody can write.
                items.append(np.ndarray(part.shape, part.dtype, item))
            elif part is None and type(item) is type(absent) and item == absent:
                items.append(None)
            else:
                items.append(_fit(item, part, f"{where}.{name}"))
        return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
    if isinstance(like, (np.ndarray, np.generic)) or is_jax(like):
        return _fit_array(raw, np.asarray(like), where)
    if type(raw) is not type(like):
        raise ValueError(
            f"state field {where} must be {type(like).__name__}; got {type(raw).__name__}."
        )
    return raw


def decode_fields(
    like: Any, data: bytes, check: Callable[[list[Plain]], None] | None = None
) -> Any:
    """Decodes bytes into a record of the same structure, shapes and dtypes as `like`.

    Args:
      like: The record that is known to be right.
      data: What `encode_state` returned.
      check: Looks at the encoded fields of a record of the same name before they are decoded.

    Raises:
      TypeError: If `data` is not bytes.
      ValueError: If the bytes are cut, changed, foreign or of another structure.
    """
    name, fields = open_fields(data)
    mine = state_name(type(like))
    if name != mine:
        raise ValueError(
            f"the state is a {name}; this source's states are {mine}. It belongs to another kind of"
            " source."
        )
    if check is not None:
        check(fields)
    return _fit(fields, like, "state")


class Decoded(Stepped[State], Protocol[State]):
    """What decoding a state needs of its source."""

    def check_encoded(self, fields: list[Plain]) -> None:
        """Checks an encoded state's fields before they are decoded."""
        ...

    def check_state(self, state: State) -> None:
        """Checks a decoded state."""
        ...


def decode(source: Decoded[State], data: bytes) -> State:
    """Decodes a state and checks that it belongs to a source.

    Raises:
      TypeError: If `data` is not bytes.
      ValueError: If it is damaged, or belongs to another source, naming what differs.
    """
    state = decode_fields(source.init(), data, source.check_encoded)
    source.check_state(state)
    return state
