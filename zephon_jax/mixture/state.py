"""The state record of a mixture: where a lane stands, in 32-bit words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zephon_jax.kernels.keys import digest_words
from zephon_jax.mixture.fingerprint import without_data
from zephon_jax.sources.words import from_words

__all__ = [
    "MAX_LISTED",
    "MAX_LISTED_VIRTUAL",
    "MixtureState",
    "ledger_digest",
]

MAX_LISTED = 1024  # components whose carry and counts a state holds; above, a digest of them
# With virtual time a digest of the counts does above fewer components: they follow from the chunk
# alone, and the token ratios of 300 components already take more than half of 4 KB.
MAX_LISTED_VIRTUAL = 64


class MixtureState(NamedTuple):
    """Where one lane stands. Immutable; every leaf is an array of 32-bit words.

    A field that a source does not need is None, in each of its states. It has no leaf then:
    checkpoint libraries refuse to save arrays without items.
    """

    __module__ = "zephon_jax"
    state_name = "MixtureState"  # in every saved state
    encoded_none = b""  # in every saved state: no words

    lane: Any  # int32 ()
    num_lanes: Any  # int32 ()
    lag: Any  # int32 (), 1 where the lane has read its chunk of the block that `chunk` lies in
    chunk: Any  # uint32 (2,), low and high word: the lane's next chunk is its first from here on
    origin: Any  # uint32 (2,), chunk from which lanes are dealt, not 0 after they were cut anew
    era: Any  # uint32 (2,), chunk at which the set of active components last changed
    carry: Any  # int32 (k,), units of 1 / W; None with virtual time, or where there is a ledger
    drawn: Any  # uint32 (k, 2), samples drawn before `chunk`; None where there is a ledger
    ledger: Any  # uint32 (2,), digest of carry and drawn above MAX_LISTED components; else None
    ratios: Any  # uint32 (k, 2), tokens per byte in units of 2^-32; None if they do not matter
    config: Any  # uint32 (c, 3), the source's fingerprint: see `fingerprint`

    @property
    def chunk_index(self) -> int:
        """Global index of the chunk up to which this lane has read; its next one is not before."""
        return from_words(self.chunk)

    @property
    def samples_drawn(self) -> np.ndarray:
        """Samples of each component in the chunks before, of all lanes: int64 (k,).

        Empty where a digest of them is kept: above 1,024 components, or 64 under virtual time.
        """
        return from_words(np.zeros((0, 2), np.uint32) if self.drawn is None else self.drawn)

    def without_data(self) -> MixtureState:
        """The state without what its source knows of its data, which may grow in a run."""
        return self._replace(config=without_data(np.asarray(self.config)))


def ledger_digest(carry: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Digest of a carry (k,) and counts (k,): uint32 (2,)."""
    little = carry.astype("<i4").tobytes(), drawn.astype("<i8").tobytes()
    return digest_words(2, *little)
