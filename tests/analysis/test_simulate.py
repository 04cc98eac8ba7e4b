"""Simulation against stepping, and what it says in words."""

from __future__ import annotations

import csv
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import chunks_of, mixture
from support.sources import SOURCES, CountSource

import zephon_jax as zx
from zephon_jax.analysis.chunk_counts import count_chunks
from zephon_jax.analysis.shard_reads import shard_reads
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.analysis.simulation_sums import SimulationSums


def stepped(source, num_chunks, num_lanes):
    """The chunks of a run by stepping every lane, as (index, lane, counts, target), by index."""
    names = list(source.component_ids())
    found = []
    for lane in range(num_lanes):
        limit = None if num_chunks is None else num_chunks // num_lanes + 1
        for chunk in chunks_of(source, lane, num_lanes, limit=limit):
            counts = [len(chunk.components.get(name, ())) for name in names]
            target = [chunk.target_mixture.get(name, 0.0) for name in names]
            found.append((chunk.chunk_index, lane, counts, target))
    found.sort(key=lambda one: one[0])
    return [one for one in found if num_chunks is None or one[0] < num_chunks]


def assert_equal(run: Simulation, expected, num_lanes, num_components):
    assert run.num_chunks == len(expected)
    chunk = np.asarray([e[0] for e in expected], dtype=np.int64)
    lane = np.asarray([e[1] for e in expected], dtype=np.int64)
    counts = np.asarray([e[2] for e in expected], dtype=np.int64).reshape(-1, num_components)
    target = np.asarray([e[3] for e in expected]).reshape(-1, num_components)
    assert np.array_equal(run.lane_chunks, np.bincount(lane, minlength=num_lanes))
    for number in range(num_lanes):
        assert np.array_equal(run.lane_draws[number], counts[lane == number].sum(axis=0))
    for d in range(num_components):
        held = chunk[counts[:, d] > 0]
        assert run.first_draw[d] == (held[0] if held.size else -1)
        assert run.last_draw[d] == (held[-1] if held.size else -1)
    amounts = run.tokens if run.unit == "tokens" and run.stride == 1 else counts
    ahead = np.cumsum(amounts - target * amounts.sum(axis=1, keepdims=True), axis=0)
    rows = range(0, len(expected), run.stride)
    assert np.array_equal(run.chunk, chunk[:: run.stride])
    parts = [counts[n : n + run.stride].sum(axis=0) for n in rows]
    assert np.array_equal(run.draws, np.asarray(parts).reshape(-1, num_components))
    for n, row in enumerate(rows):
        part = ahead[row : row + run.stride]
        assert np.allclose(run.target_shares[n], target[row])
        if run.unit == "tokens" and run.stride > 1:
            continue  # tokens of single chunks are not in the record
        assert np.allclose(run.deviation[n], part[-1], atol=1e-6)
        assert np.allclose(run.deviation_low[n], part.min(axis=0), atol=1e-6)
        assert np.allclose(run.deviation_high[n], part.max(axis=0), atol=1e-6)
    if run.stride == 1:
        assert np.array_equal(run.lane, lane)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("num_lanes", "stride"), [(1, None), (3, None), (7, 4)])
def test_whole_run_equals_stepping(name, num_lanes, stride):
    source = SOURCES[name]()
    run = zx.simulate(source, None, num_lanes, stride=stride)
    expected = stepped(source, None, num_lanes)
    assert_equal(run, expected, num_lanes, len(source.component_ids()))
    assert run.ended
    if source.supports_indexing():
        assert run.num_samples == len(source)


@pytest.mark.parametrize("name", SOURCES)
def test_beginning_equals_stepping_and_knows_the_end(name):
    source = SOURCES[name]()
    whole = len(stepped(source, None, 2))
    for num_chunks in (0, 1, whole - 1, whole, whole + 5):
        run = zx.simulate(source, num_chunks, 2)
        assert_equal(run, stepped(source, num_chunks, 2), 2, len(source.component_ids()))
        assert run.ended == (num_chunks >= whole)


POLICIES = ("stop", "repeat", "redistribute")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    weights=st.lists(st.sampled_from([0.001, 0.01, 0.1, 1, 3, 7, 50]), min_size=5, max_size=5),
    policies=st.lists(st.sampled_from(POLICIES), min_size=5, max_size=5),
    chunk_size=st.integers(1, 40),
    num_lanes=st.integers(1, 6),
    num_chunks=st.integers(0, 300),
    fixed=st.booleans(),
)
def test_drawn_mixtures_equal_stepping(
    sizes, weights, policies, chunk_size, num_lanes, num_chunks, fixed
):
    names = "abcde"[: len(sizes)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source = mixture(
                sizes, weights[: len(sizes)], chunk_size=chunk_size,
                exhausted_policy=dict(zip(names, policies, strict=False)),
                allocation="fixed" if fixed else "incremental",
            )  # fmt: skip
    except ValueError:
        return  # refused at construction, by name
    run = zx.simulate(source, num_chunks, num_lanes)
    assert_equal(run, stepped(source, num_chunks, num_lanes), num_lanes, len(sizes))


def test_many_chunks_of_rare_components_equal_stepping():
    """Over the seams of what is worked out together."""
    source = mixture([10**9, 10**9, 30], [5, 3, 0.0004], chunk_size=64, exhausted_policy="repeat")
    run = zx.simulate(source, 20_000)
    for g in (0, 1, 8191, 8192, 16_384, 19_999):
        state = source.seek(g)
        assert run.drawn[g].tolist() == source.next_chunk(state)[1].samples_drawn.tolist()


@pytest.mark.parametrize(
    ("rare", "num_chunks"),
    [(0.3, 300_000), (0.00003, 100_000), pytest.param(0.00003, 10**6, marks=pytest.mark.slow)],
)
def test_long_runs_take_seconds(rare, num_chunks):
    """A million chunks take a second, with a closed form or without."""
    weights = [5, 4, 3, 2, 1, 1.5, 0.7, rare]
    source = mixture([10**9] * 8, weights, chunk_size=1024, exhausted_policy="repeat")
    begin = time.perf_counter()
    run = zx.simulate(source, num_chunks, 64)
    assert time.perf_counter() - begin < 15  # a fraction of it, but on a machine that is busy
    assert run.num_samples == 1024 * num_chunks
    assert np.array_equal(run.lane_draws.sum(axis=0), source.seek(num_chunks).samples_drawn)
    assert -2 < run.deviation_low.min() <= run.deviation_high.max() < 1


def test_long_token_mixtures_take_seconds():
    """A million chunks take 3 s, and took 95 s when each was looked for on its own."""
    rng = np.random.default_rng(0)
    counts = {name: rng.integers(5000, 200_000, 40) for name in "abcdefgh"}
    totals = {name: (some * rng.integers(50, 2000, 40)).tolist() for name, some in counts.items()}
    source = mixture(
        [some.tolist() for some in counts.values()], range(1, 9), chunk_size=1024,
        exhausted_policy="repeat", token_estimation=zx.TokenEstimation.from_shard_totals(totals),
    )  # fmt: skip
    begin = time.perf_counter()
    run = zx.simulate(source, 100_000, 64)
    assert time.perf_counter() - begin < 4  # 0.3 s on a machine that does nothing else
    assert np.array_equal(run.lane_draws.sum(axis=0), source.eras.seek(100_000).drawn)
    had = run.tokens.sum(axis=0)
    assert np.abs(had - had.sum() * np.arange(1, 9) / 36).max() < 2 * 2000
    assert np.abs(run.deviation).max() < 2 * 2000  # tokens: two draws of the dearest shard


def test_many_components_take_seconds():
    """20,000 chunks of 1,000 components, half of them rare, take 4 s: a fifth of that here."""
    weights = (np.random.default_rng(1).pareto(1.2, 1000) + 0.01).tolist()
    source = mixture([10**8] * 1000, weights, chunk_size=4096, exhausted_policy="repeat")
    begin = time.perf_counter()
    run = zx.simulate(source, 4000, 64)
    assert time.perf_counter() - begin < 10
    drawn = run.lane_draws.sum(axis=0)
    assert np.array_equal(drawn, source.eras.seek(4000).drawn)
    exact = [4000 * 4096 * float(share) for share in source.settings.fractions]
    assert np.abs(drawn - exact).max() < 2
    assert set(run.lane_chunks.tolist()) == {62, 63}


def test_rows_are_put_together_when_there_are_too_many():
    source = SOURCES["many"]()
    whole = zx.simulate(source)
    num_components = len(source.component_ids())
    sums = SimulationSums(num_components=num_components, num_lanes=1, most_numbers=600)
    for dealt in count_chunks(source, None, 1):
        sums.add(dealt)
    rows = sums.rows()
    assert sums.stride == 4
    assert len(rows.chunk) == 8
    assert np.array_equal(rows.draws.sum(axis=0), whole.drawn[-1])
    assert rows.low.min() == whole.deviation_low.min()
    assert rows.high.max() == whole.deviation_high.max()
    assert (zx.simulate(source, stride=4).lane == -1).all()


def test_table_and_csv(tmp_path):
    run = zx.simulate(SOURCES["passes"](), num_lanes=2)
    table = run.to_table()
    assert {len(column) for column in table.values()} == {run.num_chunks}
    assert table["draws:a"].tolist() == run.draws[:, 0].tolist()
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.table(table).column_names == list(table)
    run.to_csv(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["drawn:c"]) for row in rows] == run.drawn[:, 2].tolist()
    assert [float(row["share:b"]) for row in rows] == run.shares[:, 1].tolist()


@pytest.mark.parametrize("block", [None, 8, "global"])
def test_token_mixtures_are_measured_in_tokens(block):
    """Shares, targets and what is ahead are tokens, by the costs that the draws were queued by."""
    sets = [zx.Dataset.from_counts(name, [20, 30]) for name in "ab"]
    tokens = zx.TokenEstimation.from_shard_totals({"a": [2000, 900], "b": [100, 600]})
    source = zx.StaticMixtureWorkSource(
        sets, {"a": 1, "b": 1}, chunk_size=7, stop_after_passes=3, token_estimation=tokens,
        shuffle_block_size=block,
    )  # fmt: skip
    run = zx.simulate(source, num_lanes=2)
    assert run.unit == "tokens"
    assert_equal_draws(run, stepped(source, None, 2))
    costs = source.eras.steps.rules.costs
    unit = costs[0].draw(50).before / 2900
    for d in range(2):
        spent = [costs[d].draw(int(n)).before / unit for n in run.drawn[:, d]]
        assert np.allclose(np.cumsum(run.tokens[:, d]), spent)
    ahead = np.cumsum(run.tokens - 0.5 * run.tokens.sum(axis=1, keepdims=True), axis=0)
    assert np.allclose(run.deviation, ahead)
    assert np.abs(run.deviation).max() < 2 * 100  # two draws, the dearest of which cost 100
    assert np.allclose(run.shares.sum(axis=1), 1)
    assert abs(run.tokens.sum(axis=0)[0] / run.tokens.sum() - 0.5) < 0.02
    assert "share of tokens" in str(run)
    merged = zx.simulate(source, stride=5)
    assert np.allclose(merged.tokens.sum(axis=0), run.tokens.sum(axis=0))


def assert_equal_draws(run, expected):
    assert run.draws.tolist() == [counts for _, _, counts, _ in expected]


@pytest.mark.parametrize("name", ["redistribute", "passes", "one dataset"])
@pytest.mark.parametrize(("window", "cache"), [(1, None), (4, 60), (3, 0)])
def test_reads_are_those_of_a_cache_of_shards(name, window, cache):
    source = SOURCES[name]()
    counts = [dataset.shard_counts.tolist() for dataset in source.datasets_by_id.values()]
    held, shards, fetched, number = [], [], [], []
    for g, chunk in enumerate(chunks_of(source)):
        if g % window == 0:
            shards.append([set() for _ in counts])
            fetched.append(0)
            number.append(0)
        for d, ids in enumerate(chunk.components.values()):
            order = list(dict.fromkeys((d, int(shard)) for shard in ids[:, 1]))
            shards[-1][d].update(order)
            for one in order:
                if one not in held:
                    fetched[-1] += counts[d][one[1]]
                    number[-1] += 1
                held = [other for other in held if other != one] + [one]
                while (
                    cache is not None
                    and len(held) > 1
                    and sum(counts[a][b] for a, b in held) > cache
                ):
                    held.pop(0)
    reads = zx.simulate(source, window=window, cache_bytes=cache).reads
    assert reads.shards.tolist() == [[len(one) for one in row] for row in shards]
    assert (reads.fetched.tolist(), reads.unit) == (fetched, "samples")
    assert reads.fetched_shards.tolist() == number
    assert reads.chunk.tolist() == list(range(0, reads.num_chunks, window))


def test_reads_in_bytes_and_of_the_beginning_of_a_long_run(tmp_path):
    for n in range(3):
        (tmp_path / f"{n}.jsonl").write_text('{"a": 1}\n' * 10 * (n + 1))
    dataset = zx.Dataset.from_path("web", tmp_path)
    source = zx.StaticMixtureWorkSource([dataset], {"web": 1}, chunk_size=10)
    run = zx.simulate(source, window=2)
    assert run.reads.unit == "bytes"
    assert run.reads.fetched.sum() == 60 * 9
    assert "540 bytes" in str(run)
    sets = [zx.Dataset.from_counts("a", [50, 50], num_bytes=[700, 300])]
    source = zx.StaticMixtureWorkSource(sets, {"a": 1}, chunk_size=10)
    reads = shard_reads(source, 10, 1, None, most_samples=60)
    assert (reads.num_chunks, int(reads.fetched.sum())) == (6, 1000)


# Words


def test_a_record_is_short_and_prints_its_table():
    run = zx.simulate(mixture([100] * 30, names=[f"{n:03}" * 50 for n in range(30)]), 5)
    for record in (run, zx.audit(run_source := mixture([20], chunk_size=20), run_source.init()),
                   zx.diff(run_source, run_source.replace(seed=3))):  # fmt: skip
        assert len(repr(record)) <= 200
        assert str(record) == record.summary()


def test_a_component_that_is_never_drawn_is_named():
    with pytest.warns(UserWarning, match="moved by more than a thousandth"):
        source = mixture([10, 10, 10], [1e-9, 0.5, 0.5], chunk_size=10)
    run = zx.simulate(source, 1)
    assert run.draws.tolist() == [[0, 5, 5]]
    assert any("'a' is not drawn in the run" in text for text in run.warnings)
    assert "! 'a' is not drawn in the run" in str(run)


def test_of_many_components_only_some_are_spoken_of():
    """A run of a thousand components once had 824 lines to look at."""
    source = mixture([1000] * 60, [10**6] + [1] * 59, chunk_size=10, exhausted_policy="repeat")
    said = zx.simulate(source, 1).warnings
    full = [text for text in said if "is not drawn in the run: its share" in text]
    assert [text[:5] for text in full] == ["'d1' ", "'d2' ", "'d3' ", "'d4' "]
    names = ", ".join(f"'d{n}'" for n in range(5, 13))
    assert said[4:] == (f"not drawn in the run either: {names} and 47 more.",)
    # One sample of each in one chunk each: every component reaches one lane alone.
    source = mixture([1000] * 60, chunk_size=1, exhausted_policy="repeat")
    said = zx.simulate(source, 60, 2).warnings
    assert [text.split(" never got ")[1][:4] for text in said[:4]] == [f"'d{n}'" for n in range(4)]
    names = ", ".join(f"'d{n}'" for n in range(4, 12))
    assert said[4:] == (f"uneven between lanes too: {names} and 48 more.",)


def test_the_dataset_that_ends_first_is_named():
    run = zx.simulate(mixture([100, 300], chunk_size=10, exhausted_policy="redistribute"))
    assert run.exhausted == (("a", 19), ("b", 39))
    assert any(text.startswith("'a' ends first, after chunk 19 of 40") for text in run.warnings)
    run = zx.simulate(mixture([100, 300], chunk_size=10, exhausted_policy="stop"))
    assert run.exhausted == (("a", 19),)
    text = "'a' ends the run, after chunk 19: by then 'b' has had 0.333 passes."
    assert text in run.warnings
    said = zx.simulate(SOURCES["policies"]()).warnings
    assert any(text.startswith("'a' ends first, after chunk") for text in said)
    assert any(text.startswith("'c' ends the run, after chunk") for text in said)
    assert not any("ends" in text for text in zx.simulate(SOURCES["passes"]()).warnings)
    assert not any("ends" in text for text in zx.simulate(CountSource()).warnings)


def test_starved_lanes_are_named():
    source = {
        assignment: mixture(
            [10**6] * 2, [5, 1], chunk_size=1, exhausted_policy="repeat", lane_assignment=assignment
        )
        for assignment in ("modulo", "permute")
    }
    said = zx.simulate(source["modulo"], 480, 8).warnings
    assert any("lanes 0, 2, 4, 6 of 8 never got 'b'" in text for text in said)
    assert any("lane_assignment='permute'" in text for text in said)
    assert zx.simulate(source["permute"], 480, 8).warnings == ()
    run = zx.simulate(mixture([20], chunk_size=10), num_lanes=4)
    empty = ", ".join(str(lane) for lane in range(4) if not run.lane_chunks[lane])
    assert run.warnings[0].startswith(f"lanes {empty} of 4 got no chunk: the run has 2 chunks.")


def test_a_shared_seed_is_named():
    class Careless(CountSource):
        def next_chunk(self, state):
            chunk, after = super().next_chunk(state)
            return chunk and zx.WorkChunk(chunk.components, seed=5), after

    said = zx.simulate(Careless()).warnings
    assert any("30 chunks share seed 5 and have no chunk_index" in text for text in said)
    assert zx.simulate(CountSource()).warnings == ()


def test_two_datasets_of_one_place_are_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' * 20)
    sets = [zx.Dataset.from_path(name, tmp_path) for name in ("a", "b")]
    with pytest.warns(UserWarning, match="read the same place"):
        source = zx.StaticMixtureWorkSource(sets, {"a": 1, "b": 1}, chunk_size=4)
    assert any("'a', 'b' read the same place" in text for text in zx.simulate(source).warnings)


# Bad input


def test_endless_runs_need_a_number_of_chunks():
    source = mixture([10], chunk_size=10, exhausted_policy="repeat")
    with pytest.raises(ValueError, match="never ends: say how far to look with num_chunks="):
        zx.simulate(source)

    class Endless(CountSource):
        def next_chunk(self, state):
            return zx.WorkChunk({"odd": [(0, 0, 1)]}), state._replace(step=state.step + 1)

    with pytest.raises(ValueError, match="Endless did not end within 100 chunks"):
        list(count_chunks(Endless(), None, 1, most_walked=100))
    assert zx.simulate(Endless(), 40).num_chunks == 40


def test_arguments_are_checked():
    source = SOURCES["stop"]()
    for call, error, text in (
        (lambda: zx.simulate("web"), TypeError, "must be a zx.WorkSource"),
        (lambda: zx.simulate(source, -1), ValueError, "num_chunks"),
        (lambda: zx.simulate(source, 1.5), TypeError, "num_chunks"),
        (lambda: zx.simulate(source, 5, 0), ValueError, "num_lanes"),
        (lambda: zx.simulate(source, 5, stride=0), ValueError, "stride"),
        (lambda: zx.simulate(source, 5, stride=2**63), ValueError, "stride"),
        (
            lambda: zx.simulate(source, 5, 2**31 - 1),
            ValueError,
            "num_lanes = 2147483647 and 2 comp",
        ),
        (lambda: zx.simulate(CountSource(), 5, 2**31 - 1), ValueError, "Simulate fewer lanes"),
        (lambda: zx.simulate(CountSource(), 5, 2**21), ValueError, "at most 1,048,576 of them"),
        (lambda: zx.simulate(source, 2**63), ValueError, "num_chunks"),
        (lambda: zx.simulate(source, 5, window=0), ValueError, "window"),
        (lambda: zx.simulate(source, 5, cache_bytes=9), ValueError, "without window"),
        (lambda: zx.simulate(source, 5, window=1, cache_bytes=-1), ValueError, "cache_bytes"),
        (lambda: zx.simulate(CountSource(), window=1), ValueError, "shards are not known"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_the_bound_holds_wherever_it_is_given():
    """Against the deviations, of runs that stop before, in and after a chunk that is cut short."""
    given = 0
    for policy in ("redistribute", "stop", "repeat"):
        sets = [zx.Dataset.from_counts("a", [130]), zx.Dataset.from_counts("b", [45])]
        source = zx.StaticMixtureWorkSource(
            sets, {"a": 5, "b": 1}, chunk_size=100, exhausted_policy=policy
        )
        for num_chunks in (1, 2, 3):
            run = zx.simulate(source, num_chunks)
            if run.bound is not None:
                given += 1
                assert run.deviation_low.min() >= run.bound[0]
                assert run.deviation_high.max() <= run.bound[1]
            elif policy == "redistribute":
                assert num_chunks > 1
    assert given == 1 + 3 + 3
