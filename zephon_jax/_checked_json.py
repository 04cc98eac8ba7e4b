"""Small files of JSON behind a checksum: torn and changed ones are told from whole ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["digest_of", "unwrap", "wrap"]


def _canonical(body: object) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def digest_of(text: str) -> str:
    """A short digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def wrap(kind: str, body: Mapping[str, object]) -> bytes:
    """A file of a kind: a body in JSON behind its checksum."""
    text = _canonical({"format": kind, **body})
    return f'{{"checksum":"{digest_of(text)}","body":{text}}}\n'.encode()


def unwrap(kind: str, name: str, data: bytes) -> dict[str, Any]:
    """The body of a file.

    Raises:
      ValueError: If it is of another kind, or was cut or changed.
    """
    try:
        wrapped = json.loads(data)
        body = wrapped["body"]
        whole = wrapped["checksum"] == digest_of(_canonical(body)) and body["format"] == kind
    except (ValueError, TypeError, KeyError):
        whole, body = False, {}
    if not whole:
        raise ValueError(f"{name} is not a file of {kind}, or it was cut or changed.")
    return body
