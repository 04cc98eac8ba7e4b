"""Stages that end after so many tokens: at the nearest chunk boundary, as a walk finds it."""

from __future__ import annotations

import pickle
import random
import warnings

import numpy as np
import pytest
from support.helpers import chunks_of, samples_of, scheduled

import zephon_jax as zx


def tokens_before(source, num_chunks):
    """Tokens before each of the first chunks, and after the last one there is."""
    found, first = [0.0], 0
    while first < num_chunks:
        part = source.chunk_counts(first, num_chunks - first)
        found += (found[-1] + np.cumsum(part.tokens.sum(axis=1))).tolist()
        first += len(part.counts)
        if part.ended:
            break
    return found


class Drawn:
    """A drawn schedule whose stages end after tokens."""

    def __init__(self, seed):
        rnd = random.Random(seed)
        k, self.chunk_size = rnd.choice([1, 2, 3, 4]), rnd.choice([1, 3, 7, 20])
        self.sizes = [[rnd.randint(1, 90) for _ in range(rnd.choice([1, 3]))] for _ in range(k)]
        self.totals = {
            "abcd"[d]: [size * rnd.randint(1, 30) for size in sizes]
            for d, sizes in enumerate(self.sizes)
        }
        few = rnd.randint(1, 4)
        self.ends = sorted(rnd.sample(range(50 * self.chunk_size, 1000 * self.chunk_size), few))
        self.mixes = []
        for _ in range(few + 1):
            weights = [0]
            while not any(weights):
                weights = [rnd.choice([0, 0, 1, 2, rnd.randint(1, 99)]) for _ in range(k)]
            self.mixes.append(weights)
        self.settings = rnd.choice(
            [
                {"exhausted_policy": "repeat"},
                {"exhausted_policy": "redistribute"},
                {"stop_after_passes": 2},
            ]
        )

    def source(self, ends, ramp="step"):
        tokens = zx.TokenEstimation.from_shard_totals(self.totals)
        stages = list(zip([*ends, None], self.mixes, strict=False))
        settings = {"chunk_size": self.chunk_size, "token_estimation": tokens, **self.settings}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of data that one chunk goes through
            return scheduled(self.sizes, stages, ramp, **settings)


def check(seed):
    drawn = Drawn(seed)
    try:
        source = drawn.source([zx.tokens(end) for end in drawn.ends])
    except ValueError as error:
        assert "is nearest to chunk" in str(error)  # noqa: PT017
        return 0
    starts = source.boundaries
    planned = drawn.source(starts[1:])
    assert source.settings.history == planned.settings.history
    for n, end in enumerate(drawn.ends):  # as if its stage went on
        before = tokens_before(drawn.source(starts[1 : n + 1]), starts[n + 1] + 2)
        if len(before) <= starts[n + 1]:  # the run ends before
            assert before[-1] <= end
            assert max(starts[n] + 1, len(before)) == starts[n + 1]
            continue
        off = [abs(one - end) for one in before]
        first = starts[n]
        assert off[starts[n + 1]] == min(off[first:]), (seed, n)
    return 1


def test_stages_end_at_the_nearest_boundary():
    assert sum(check(seed) for seed in range(25)) > 15


@pytest.mark.slow
def test_stages_end_at_the_nearest_boundary_long():
    assert sum(check(seed) for seed in range(100, 1000)) > 600


@pytest.mark.parametrize("ramp", ["linear", "cosine"])
def test_ramps_move_by_tokens(ramp):
    sizes, totals = [[900], [900]], {"a": [900], "b": [18_000]}
    tokens = zx.TokenEstimation.from_shard_totals(totals)
    stages = [(zx.tokens(64_000), [1, 0], ramp), (None, [0, 1])]
    settings = {"chunk_size": 10, "exhausted_policy": "repeat", "token_estimation": tokens}
    source = scheduled(sizes, stages, **settings)
    history = source.settings.history
    assert len(history) == 65
    before = tokens_before(source, history[-1].first_chunk)
    for part, entry in enumerate(history):
        assert abs(before[entry.first_chunk] - 1000 * part) <= 100  # half a chunk of the longer one
    # Shares of tokens move evenly with tokens: half of each overall.
    drawn = source.drawn_before(history[-1].first_chunk)
    assert abs(int(drawn[0]) - 32_500) < 200
    assert abs(20 * int(drawn[1]) - 31_500) < 200


def test_states_pickles_and_priming():
    datasets = [
        zx.Dataset.from_source(name, [text] * 90) for name, text in (("a", "x y"), ("b", "x"))
    ]
    made = [
        zx.Stage(until=zx.tokens(300), mixture={"a": 1, "b": 0}, ramp="linear"),
        zx.Stage(mixture={"a": 1, "b": 1}),
    ]
    settings = {"chunk_size": 4, "exhausted_policy": "repeat"}
    source = zx.ScheduledMixtureWorkSource(
        datasets, made, token_estimation=zx.TokenEstimation(str.split), **settings
    )
    with pytest.raises(RuntimeError, match="has not been primed"):
        _ = source.boundaries
    primed = source.prime(progress=False)
    first = primed.boundaries[1]
    assert 37 <= first <= 60
    again = pickle.loads(pickle.dumps(primed))
    assert again.boundaries == primed.boundaries
    assert again.settings == primed.settings
    restored, state = zx.restore(source, zx.encode_state(primed.seek(first)))
    assert restored.boundaries == primed.boundaries
    assert list(restored.next_chunk(state)[0]) == list(primed.next_chunk(primed.seek(first))[0])
    changed = primed.with_mixture({"a": 0, "b": 1}, at=first + 3)
    assert changed.boundaries == (0, first, first + 3)
    assert samples_of(chunks_of(changed, limit=first + 3)) == samples_of(
        chunks_of(primed, limit=first + 3)
    )
    earlier = primed.with_mixture({"a": 0, "b": 1}, at=5)
    assert earlier.boundaries == (0, 5)


def test_bad_ends_are_named():
    tokens = zx.TokenEstimation.from_shard_totals({"a": [900], "b": [900]})
    settings = {"chunk_size": 100, "exhausted_policy": "repeat", "token_estimation": tokens}
    for stages, says in (
        ([(zx.tokens(900), [1, 1]), (zx.tokens(800), [1, 2]), (None, [1, 1])], "is token 800"),
        ([(zx.tokens(900), [1, 1]), (zx.samples(1000), [1, 2]), (None, [1, 1])], "counts samples"),
        ([(zx.tokens(900), [1, 1]), (zx.tokens(920), [1, 2]), (None, [1, 1])],
         r"stages\[1\].until = .* is nearest to chunk 1, "),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            scheduled([[90], [90]], stages, **settings)
    with pytest.raises(ValueError, match=r"stages\[0\].until = 900 tokens needs a mixture in"):
        scheduled([[90], [90]], [(zx.tokens(900), [1, 1]), (None, [1, 2])], chunk_size=10)
