"""Encoded states that were not written by the package, with a checksum that is right."""

from __future__ import annotations

import hashlib

import msgpack

VERSION = 1


def wrapped(body):
    """Bytes of a body, which any value is: what somebody who knows the format could write."""
    packed = msgpack.packb(body)
    checksum = hashlib.blake2b(packed, digest_size=8, person=b"zephon_jax state").digest()
    return msgpack.packb([VERSION, checksum, packed])
