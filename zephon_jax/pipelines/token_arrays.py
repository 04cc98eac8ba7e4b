"""Token ids as arrays, checked: integers of one dimension, in the range of an int32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["MOST_TOKEN", "join_tokens", "token_array"]

MOST_TOKEN = (1 << 31) - 1  # rows are int32


def token_array(ids: object, what: str) -> np.ndarray:
    """Returns token ids as an array; their range is checked by `join_tokens`.

    Args:
      ids: A sequence of integers or an array (n,).
      what: What they are, for errors.

    Returns:
      Integers (n,), of the dtype that was given.

    Raises:
      ValueError: If they are no integers, or not of one dimension.
    """
    found = np.asarray(ids)
    if found.ndim == 1 and found.dtype.kind in "iu":
        return found
    if found.shape == (0,):
        return np.zeros(0, dtype=np.int32)
    raise ValueError(f"{what} must be token ids, integers (n,); got {found.dtype} {found.shape}.")


def join_tokens(ids: Sequence[np.ndarray], what: str) -> np.ndarray:
    """Returns tokens of documents one behind the other.

    Args:
      ids: Integers (n,) each, of any dtypes.
      what: What they are, for errors.

    Returns:
      Integers (sum of n,), each in [0, 2^31).

    Raises:
      ValueError: If one is not in that range.
    """
    dtype = ids[0].dtype
    if any(part.dtype != dtype for part in ids):
        ids = [join_tokens([part], what).astype(np.int32) for part in ids]
    joined = np.concatenate(ids)
    joined = joined.astype(joined.dtype.newbyteorder("="), copy=False)
    if joined.dtype.kind == "u" and joined.dtype.itemsize < 4:
        return joined
    # Without their sign negative ones are the largest: one pass over the tokens.
    most = int(joined.view(f"u{joined.dtype.itemsize}").max(initial=0))
    if most > min(MOST_TOKEN, np.iinfo(joined.dtype).max):
        raise ValueError(
            f"{what} must be in [0, 2^31), for rows are int32; got {joined.min()} to"
            f" {joined.max()}."
        )
    return joined
