"""Keys: two 32-bit words that choose one permutation.

A root key comes from the seed and from names by a hash of the standard library, on the host.
Below it, keys are folded with coordinates (pass, block, shard) by integer mixing alone, so a
kernel derives the key of any coordinate by itself. No generator is carried anywhere: the same
coordinates give the same key on every machine, in NumPy and in JAX.
"""

# Callers may not be typed.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import hashlib

import numpy as np

from zephon_jax._arrays import Array, Namespace, as_int, namespace

__all__ = ["digest_words", "fold", "make_key", "mix32"]

# Path elements are tagged by type and framed by length, so ("a", "b"), ("ab",) and (1, "1") differ.
_TAGS = {int: b"i", str: b"s", bytes: b"b"}


def _encode(value: int | str | bytes) -> bytes:
    if isinstance(value, str):
        body = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        body = value
    else:
        value = as_int(value, "an element of a key's path")
        body = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    tag = next(tag for kind, tag in _TAGS.items() if isinstance(value, kind))
    return tag + len(body).to_bytes(8, "little") + body


def digest_words(num_words: int, *values: int | str | bytes) -> np.ndarray:
    """Returns a BLAKE2b digest of the values as `num_words` 32-bit words.

    Example:
      >>> digest_words(2, "shuffle", 42).dtype
      dtype('uint32')
    """
    digest = hashlib.blake2b(digest_size=4 * num_words, person=b"zephon_jax")
    for value in values:
        digest.update(_encode(value))
    return np.frombuffer(digest.digest(), dtype="<u4").astype(np.uint32)


def make_key(seed: int, *path: int | str | bytes) -> np.ndarray:
    """Derives a key from a seed and a path of names or numbers.

    Args:
      seed: Any Python int, negative and larger than 64 bits included.
      *path: What the key is for: strings, bytes and ints.

    Returns:
      uint32 array of shape (2,).

    Raises:
      TypeError: If the seed is not an integer, or a path element is of another type.

    Example:
      >>> make_key(42, "web", "blocks").shape
      (2,)
    """
    return digest_words(2, as_int(seed, "seed"), *path)


def mix32(x: Array) -> Array:
    """Mixes 32-bit words: a bijection whose output bits all depend on all input bits.

    Args:
      x: uint32 array, at least 1-D (NumPy scalars would warn when they wrap).

    References:
      Chris Wellons, "Prospecting for Hash Functions" (2018), the function lowbias32.
    """
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def _words(xp: Namespace, value: Array) -> tuple[Array, Array]:
    """Low and high 32-bit words of an integer that is not negative."""
    value = xp.atleast_1d(xp.asarray(value))
    low = (value & 0xFFFFFFFF if value.dtype.itemsize > 4 else value).astype(xp.uint32)
    if value.dtype.itemsize > 4:
        return low, (value >> 32).astype(xp.uint32)
    return low, xp.zeros_like(low)


def fold(key: Array, coordinate: Array) -> Array:
    """Folds a coordinate into a key.

    For one key, different coordinates always give different keys, and for one coordinate
    different keys do, because each step is a bijection of its word.

    Args:
      key: uint32 array (..., 2).
      coordinate: Integers below 2^63, not negative; the shape broadcasts with `key.shape[:-1]`.

    Returns:
      uint32 array (..., 2), at least 2-D when the coordinate is an array.

    Example:
      >>> import numpy as np
      >>> fold(make_key(0, "web"), np.arange(3)).shape
      (3, 2)
    """
    xp = namespace(key, coordinate)
    key = xp.asarray(key)
    low, high = _words(xp, coordinate)
    first = mix32(key[..., 0] + low)
    second = mix32(key[..., 1] ^ high ^ first)
    first = mix32(first + second)
    folded = xp.stack(xp.broadcast_arrays(first, second), axis=-1)
    return folded[0] if np.ndim(coordinate) == 0 and key.ndim == 1 else folded
