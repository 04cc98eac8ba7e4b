"""The name of a run, by which states of another are refused before any pipeline is built."""

from __future__ import annotations

from zephon_jax.kernels.keys import digest_words
from zephon_jax.sources.checks import first_state
from zephon_jax.sources.codec import encode_state
from zephon_jax.sources.work_source import WorkSource

__all__ = ["run_id_of"]


def run_id_of(source: WorkSource, num_lanes: int) -> str:
    """Names a run: a digest of the source's settings and the number of lanes."""
    state = first_state(source, 0, num_lanes)
    without_data = getattr(state, "without_data", None)
    if callable(without_data):  # What is known of data may grow in a run.
        state = without_data()
    return digest_words(2, "run", num_lanes, encode_state(state)).tobytes().hex()
