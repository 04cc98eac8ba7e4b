"""How well mixtures hold in tokens, and what that costs: this library beside Zephon.

    python benchmarks/tokens.py [--rounds 3] [--quick] [--json FILE]

Corpora are drawn: documents have lognormal lengths (sigma 1.5), the mean length of shards drifts
by ten times over a dataset, and tokens per byte vary from document to document. What is compared
is the true share of tokens so far against the weights, as the distance of the two distributions:
half of the sum of all differences.
"""

from __future__ import annotations

import itertools
import statistics
from typing import NamedTuple

import numpy as np
from common import Table, clock, parse, seconds

import zephon_jax as zx
from zephon_jax.data.measure_tokens import choose_samples
from zephon_jax.kernels.quota import exact_weights
from zephon_jax.kernels.virtual_time import VirtualTime
from zephon_jax.mixture.token_costs import UnitCost

CHUNK_SIZE = 16_384
COMPONENTS = 8
SHARDS, SHARD_SIZE = 200, 2000
NOISE = 1.05  # two orders of one corpus differ by so much and more
SAMPLES = 1024  # that ratios are estimated from


class Corpus(NamedTuple):
    """Drawn datasets, with the tokens of each document."""

    weights: dict[str, float]
    tokens: dict[str, np.ndarray]  # int64 (SHARDS, SHARD_SIZE)
    num_bytes: dict[str, np.ndarray]  # int64 (SHARDS, SHARD_SIZE)

    @property
    def datasets(self) -> list[zx.Dataset]:
        return [
            zx.Dataset.from_counts(name, [SHARD_SIZE] * SHARDS, num_bytes=sizes.sum(axis=1))
            for name, sizes in self.num_bytes.items()
        ]

    def true_ratios(self) -> dict[str, float]:
        """Tokens per byte of all documents."""
        pairs = zip(self.tokens.items(), self.num_bytes.values(), strict=True)
        return {name: round(float(own.sum() / sizes.sum()), 9) for (name, own), sizes in pairs}

    def ratios(self) -> dict[str, float]:
        """Tokens per byte from as many samples as priming reads, the same ones."""
        found = {}
        for dataset in self.datasets:
            at = tuple(choose_samples(dataset, SAMPLES).T)
            chosen = self.tokens[dataset.name][at].sum() / self.num_bytes[dataset.name][at].sum()
            found[dataset.name] = round(float(chosen), 9)
        return found

    def shard_totals(self) -> dict[str, np.ndarray]:
        return {name: tokens.sum(axis=1) for name, tokens in self.tokens.items()}


def draw_corpus(seed: int) -> Corpus:
    rng = np.random.default_rng(seed)
    weights, tokens, num_bytes = {}, {}, {}
    for d in range(COMPONENTS):
        name = f"d{d}"
        drift = 10 ** rng.permutation(np.linspace(0, 1, SHARDS))[:, None]
        mean = 10 ** rng.uniform(2.0, 2.5)
        lengths = mean * drift * np.exp(rng.normal(0, 1.5, (SHARDS, SHARD_SIZE)))
        tokens[name] = np.maximum(1, lengths.astype(np.int64))
        per_token = rng.uniform(3, 5) * np.exp(rng.normal(0, 0.15, tokens[name].shape))
        num_bytes[name] = np.maximum(1, (tokens[name] * per_token).astype(np.int64))
        weights[name] = round(float(rng.uniform(0.2, 1)), 3)
    return Corpus(weights, tokens, num_bytes)


def ours(corpus: Corpus, estimation, block=None) -> zx.StaticMixtureWorkSource:
    return zx.StaticMixtureWorkSource(
        corpus.datasets,
        corpus.weights,
        chunk_size=CHUNK_SIZE,
        exhausted_policy="repeat",
        shuffle_block_size=block,
        token_estimation=estimation,
    )


def theirs(corpus: Corpus, ratios: dict[str, float], block=None):
    """Zephon with the same counts, bytes and ratios, one lane; None where it is not installed."""
    try:
        from zephon import Dataset
        from zephon.work import StaticMixtureWorkSource, TokenEstimation
    except ImportError:
        return None

    class Sized(Dataset):
        """Metadata alone, the bytes of shards included."""

        def raw_bytes(self):
            return corpus.num_bytes[self.name].sum(axis=1)

    ids = np.arange(SHARDS)
    counts = np.full(SHARDS, SHARD_SIZE)
    source = StaticMixtureWorkSource(
        [Sized(name, {}, None, ids, counts) for name in corpus.weights],
        corpus.weights,
        chunk_size=CHUNK_SIZE,
        seed=0,
        shuffle_block_size=block,
        exhausted_policy="repeat",
        token_estimation=TokenEstimation(primer=ratios),
    )
    if source.requires_token_priming:
        source.prime()
    return source.clone_for_lane(0, 1)


def our_chunks(source, limit):
    state = source.init()
    for _ in range(limit):
        chunk, state = source.next_chunk(state)
        ids = chunk.order()[1]
        yield ids[:, 0], ids[:, 1], ids[:, 2]


def their_chunks(source, limit):
    """The same from Zephon's chunks, whose samples are tuples by component."""
    for _ in range(limit):
        chunk = source.next_chunk()
        rows = np.asarray(
            [
                (int(name[1:]), int(shard), offset)
                for name, samples in chunk.components.items()
                for _, shard, offset in samples
            ]
        )
        yield rows[:, 0], rows[:, 1], rows[:, 2]


class Errors(NamedTuple):
    """Distances of true shares of tokens from the weights."""

    so_far: dict[int, float]  # of all tokens after so many chunks
    chunk: float  # of one chunk's tokens, on average


def share_errors(corpus: Corpus, chunks, marks) -> Errors:
    target = np.asarray(list(corpus.weights.values()))
    target = target / target.sum()
    tokens = np.stack(list(corpus.tokens.values()))
    had, found, single = np.zeros(len(target)), {}, []
    for n, at in enumerate(chunks, 1):
        given = np.bincount(at[0], tokens[at], minlength=len(target))
        had += given
        single.append(distance(given, target))
        if n in marks:
            found[n] = distance(had, target)
    return Errors(found, statistics.mean(single))


def distance(had, target) -> float:
    return float(np.abs(had / had.sum() - target).sum() / 2)


def errors_of(corpus: Corpus, ratios, estimation) -> tuple[Errors, Errors | None]:
    """Ours and Zephon's with the same ratios."""
    mine = share_errors(corpus, our_chunks(ours(corpus, estimation(ratios)), 64), {64})
    peer = theirs(corpus, ratios)
    other = None if peer is None else share_errors(corpus, their_chunks(peer, 64), {64})
    return mine, other


def seconds_a_chunk(step, chunks: int) -> float:
    step()
    start = clock()
    for _ in range(chunks):
        step()
    return (clock() - start) / chunks


def our_speed(source, chunks: int) -> float:
    place = [source.init()]

    def step():
        chunk, place[0] = source.next_chunk(place[0])
        chunk.order()

    return seconds_a_chunk(step, chunks)


def their_speed(source, chunks: int) -> float:
    def step():
        for _ in source.next_chunk().iter_samples():
            pass

    return seconds_a_chunk(step, chunks)


KINDS = {
    **{f"equal, {k}": [1.0] * k for k in (2, 8, 32, 128)},
    **{f"harmonic, {k}": [1 / (d + 1) for d in range(k)] for k in (2, 8, 32, 128)},
    **{f"geometric, {k}": [0.7**d for d in range(k)] for k in (4, 16)},
    "one against a hundred": [1.0] * 100 + [100.0],
    "nine to one": [0.9, 0.1],
    "rare": [0.7, 0.2999, 0.0001],
    "primes": [2, 3, 5, 7, 11, 13, 17, 19],
    **{
        f"Pareto, {k}, seed {seed}": (np.random.default_rng(seed).pareto(0.7, k) + 1).tolist()
        for seed, k in ((0, 8), (1, 8), (2, 42), (3, 42))
    },
    **{
        f"drawn, {k}": np.random.default_rng(k).dirichlet(np.full(k, 2.0)).round(6).tolist()
        for k in (8, 64)
    },
}


class PrefixErrors(NamedTuple):
    """How far components are from their shares, in draws."""

    worst: float  # of any component at any prefix
    mean: float  # of the component that is drawn, right before and right after its draw
    of_bound: float  # the worst as a fraction of what is promised: 1 + share * components


def prefix_errors(weights, num_draws, window=1_000_000) -> PrefixErrors:
    """Goes through all draws: a component is furthest off right before or after one of its own."""
    exact = exact_weights(weights)
    shares = np.asarray([float(w / sum(exact)) for w in exact])
    bounds = 1 + shares * len(shares)
    allocation = VirtualTime(
        exact, 1, [UnitCost()] * len(exact), np.zeros(len(exact), dtype=np.int64)
    )
    most, total = np.zeros(len(shares)), 0.0
    for start in range(0, num_draws, window):
        drawn = allocation.order(start, min(window, num_draws - start))
        places = np.argsort(drawn, kind="stable")
        component = drawn[places]
        own = np.arange(len(drawn)) - np.searchsorted(component, component)
        had = np.asarray(allocation.draws_after(start))[component] + own
        before = had - (start + places) * shares[component]
        off = np.maximum(np.abs(before), np.abs(before + 1 - shares[component]))
        np.maximum.at(most, component, off)
        total += float(off.sum())
    end = np.asarray(allocation.draws_after(num_draws)) - num_draws * shares
    most = np.maximum(most, np.abs(end))
    return PrefixErrors(float(most.max()), total / num_draws, float((most / bounds).max()))


def add_shares(table: Table, corpora: list[Corpus]) -> None:
    """Distances of true shares with estimated ratios, and with true ones, beside Zephon's."""
    estimation = zx.TokenEstimation.from_ratios
    near = [errors_of(corpus, corpus.ratios(), estimation) for corpus in corpora]
    fair = [errors_of(corpus, corpus.true_ratios(), estimation) for corpus in corpora]
    off = [mine.so_far[64] for mine, _ in near]
    table.add("ratios from 1,024 samples, 64 chunks, worst", [max(off)], "distance", most=0.02)
    for title, pairs in (("ratios from 1,024 samples", near), ("true ratios", fair)):
        for what, pick in (("64 chunks", lambda e: e.so_far[64]), ("a chunk", lambda e: e.chunk)):
            mine = statistics.mean(pick(mine) for mine, _ in pairs)
            others = [pick(other) for _, other in pairs if other is not None]
            table.add(f"{title}, {what}, mean", [mine], "distance")
            if others:
                ratio = mine / statistics.mean(others)
                table.add(f"{title}, {what}, mean", [ratio], "x Zephon", most=NOISE)


def add_true_totals(table: Table, corpora: list[Corpus], long: int) -> None:
    found = []
    for n, corpus in enumerate(corpora):
        source = ours(corpus, zx.TokenEstimation.from_shard_totals(corpus.shard_totals()))
        marks = {64} if n else {64, long}
        found.append(share_errors(corpus, our_chunks(source, max(marks)), marks).so_far)
    off = max(so_far[64] for so_far in found)
    table.add("true totals of shards, 64 chunks, worst", [off], "distance", most=0.003)
    most = 0.0002 if long >= 2000 else None
    table.add(f"true totals of shards, {long} chunks", [found[0][long]], "distance", most=most)


def add_speed(table: Table, corpus: Corpus, rounds: int, chunks: tuple[int, int]) -> None:
    ratios = corpus.ratios()
    estimation = zx.TokenEstimation.from_ratios(ratios)
    if theirs(corpus, ratios) is not None:
        times = [
            their_speed(theirs(corpus, ratios, "auto"), chunks[0])
            / our_speed(ours(corpus, estimation, "auto"), chunks[1])
            for _ in range(rounds)
        ]
        table.add("speed in tokens, 8 components", times, "x Zephon", least=20)
    source = ours(corpus, zx.TokenEstimation.from_shard_totals(corpus.shard_totals()))
    places = itertools.count(1_000_000)
    cold, *warm = [1e3 * seconds(lambda: source.seek(next(places))) for _ in range(2 + rounds)]
    table.add("seek to chunk 1,000,000, first", [cold], "ms")
    table.add("seek there, warm", warm, "ms", most=50)


def main(argv: list[str] | None = None) -> None:
    given = parse(argv, __doc__, {})
    long, chunks = (100, (3, 8)) if given.quick else (2000, (8, 64))
    corpora = [draw_corpus(seed) for seed in range(min(given.rounds, 3))]
    table = Table()
    add_shares(table, corpora)
    add_true_totals(table, corpora, long)
    add_speed(table, corpora[0], given.rounds, chunks)
    num_draws = 100_000 if given.quick else 10_000_000
    for name, weights in KINDS.items():
        errors = prefix_errors(weights, num_draws)
        title = f"prefixes of {num_draws:,} draws, {name}"
        table.add(f"{title}, worst error", [errors.worst], "draws")
        table.add(f"{title}, mean error at draws", [errors.mean], "draws")
        table.add(f"{title}, worst error", [errors.of_bound], "of the bound", most=1)
    table.write(given.json)


if __name__ == "__main__":
    main()
