"""Schedules as JAX functions: the bits of `source.next_chunk`, under jit, scan and vmap."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import chunks_of, mixture
from support.sources import CountSource

import zephon_jax as zx

LATTICE = zx.MixtureReadConfig(mode="lattice")
FAST = {"xla_backend_optimization_level": 0}  # most of the time here is compilation


def scanned(order, states, num_chunks):
    """The next chunks of many states side by side, compiled once: (B, C, n) and (B, C, n, 3)."""

    def step(state, _):
        component, ids, state = order.next_chunk(state)
        return state, (component, ids)

    def run(state):
        return jax.lax.scan(step, state, length=num_chunks)[1]

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    compiled = jax.jit(jax.vmap(run)).lower(stacked).compile(compiler_options=FAST)
    component, ids = compiled(stacked)
    assert (component.dtype, ids.dtype) == (jnp.int32, jnp.int32)
    return np.asarray(component), np.asarray(ids)


def assert_same_bits(order, variants, *, num_lanes, config=None, most=10**6):
    """Variants (source, lane) of one traced function against their sources, past the end too."""
    wanted = [chunks_of(source, lane, num_lanes, limit=most) for source, lane in variants]
    wanted = [[c for c in chunks if c.chunk_index < order.num_chunks] for chunks in wanted]
    num_chunks = max(map(len, wanted)) + 1
    states = [order.init(lane, of=source) for source, lane in variants]
    component, ids = scanned(order, states, num_chunks)
    for row, chunks in enumerate(wanted):
        assert chunks
        for n, chunk in enumerate(chunks):
            assert list(chunk.names) == list(order.names)
            theirs = chunk.order(config)
            assert np.array_equal(component[row, n], theirs[0]), (row, n)
            assert np.array_equal(ids[row, n], theirs[1]), (row, n)
        assert (component[row, len(chunks) :] == -1).all()
        assert (ids[row, len(chunks) :] == -1).all()


SIZES = {"a": [9, 0, 17, 4], "b": [3], "c": [70, 110], "d": [1] * 30, "e": [200], "f": [0]}
KINDS = {  # a dataset for each shuffle setting, small ones and large ones
    "shuffle_within_shard": {name: name in "ac" for name in SIZES},
    "shuffle_block_size": dict(zip(SIZES, ("auto", None, 64, 7, "global", None), strict=True)),
    "shuffle_shards": {name: name != "c" for name in SIZES},
    "reshuffle_on_repeat": {name: name != "d" for name in SIZES},
}


def datasets():
    return [zx.Dataset.from_counts(name, counts) for name, counts in SIZES.items()]


def scheduled(*boundaries, **settings):
    """Weights that come and go at some chunks, with a ramp before the last of them."""
    weights = [(5, 1, 0, 2, 2, 0), (0, 2, 1, 1, 4, 0), (1, 1, 1.3, 1, 0.05, 0), (1, 0, 2, 1, 1, 0)]
    stages = [
        zx.Stage(
            until=until,
            mixture=dict(zip(SIZES, mix, strict=True)),
            ramp="linear" if until == boundaries[-1] else None,
        )
        for until, mix in zip([*boundaries, None], weights[: len(boundaries) + 1], strict=True)
    ]
    return zx.ScheduledMixtureWorkSource(
        datasets(), stages, chunk_size=29, exhausted_policy="repeat", **KINDS, **settings
    )


def test_seeds_weights_and_lanes_of_one_compiled_function():
    """Schedules too, of as many changes; weights that stay are one without any."""
    source = scheduled(5, 12, 21)
    order = zx.traced(source, num_chunks=40, num_lanes=3)
    assert len(order.init().weights.unit) > 8  # with the ramp's
    variants = [
        (source, 0), (source, 2), (source.replace(seed=-7), 1), (source.replace(seed=2**70), 2),
        (scheduled(2, 16, 25, seed=3), 0), (scheduled(1, 2, 11), 1),
    ]  # fmt: skip
    assert_same_bits(order, variants, num_lanes=3, most=20)
    with pytest.raises(ValueError, match="as often as the traced source"):
        order.init(of=scheduled(3))


def test_lattice_fixed_modulo_and_the_end_of_a_run():
    source = zx.StaticMixtureWorkSource(
        datasets(), {"a": 5, "b": 1, "c": 3.3, "d": 2, "e": 2, "f": 0}, chunk_size=16,
        exhausted_policy={name: "stop" if name == "c" else "repeat" for name in SIZES},
        allocation="fixed", lane_assignment="modulo", **KINDS,
    )  # fmt: skip
    order = zx.traced(source, num_lanes=2, read_config=LATTICE)
    assert order.num_chunks == len([*chunks_of(source)])
    variants = [(source, 0), (source, 1), (source.replace(seed=5), 1)]
    assert_same_bits(order, variants, num_lanes=2, config=LATTICE)


def drawn_source(rng):
    """A mixture of settings, sizes and weights that may be traced."""
    k = rng.choice((1, 2, 3, 6, 17))
    names = [f"d{d}" for d in range(k)]
    sizes = [
        [rng.choice((0, 1, 2, 5, 30, 64, 65, 500)) for _ in range(rng.randint(1, 12))] + [3]
        for _ in names
    ]

    def each(*choices):
        return {name: rng.choice(choices) for name in names}

    policy = rng.choice(("passes", "repeat", "stop", "capped"))
    block = each(None, None, 2, 64, 100, "auto", "global")
    within = {name: block[name] != "global" and rng.random() < 0.5 for name in names}
    settings = {
        "chunk_size": rng.choice((1, 7, 16, 33)),
        "seed": rng.getrandbits(80),
        "shuffle_within_shard": within,
        "shuffle_block_size": block,
        "shuffle_shards": each(True, True, False),
        "lane_assignment": rng.choice(("permute", "modulo")),
    }
    settings.update({
        "passes": {"stop_after_passes": rng.randint(1, 3)},
        "repeat": {"exhausted_policy": "repeat"},
        "stop": {"exhausted_policy": "stop"},
        "capped": {"max_repeats": rng.randint(0, 2)},
    }[policy])  # fmt: skip
    if policy != "stop" and any(settings["shuffle_shards"].values()):
        settings["reshuffle_on_repeat"] = each(True, True, False)
    if settings["chunk_size"] >= k and rng.random() < 0.2:
        settings["allocation"] = "fixed"
    weights = [rng.choice((1, 2, 3.7, 0.01, 10)) for _ in names]
    source = mixture(sizes, weights, names=names, **settings)
    if policy in ("stop", "capped") or rng.random() < 0.6:
        return source
    ends = [*sorted(rng.sample(range(1, 30), rng.randint(1, 4))), None]
    stages = []
    for end in ends:
        drawn = {name: rng.choice((0, 1, 3, 0.2)) for name in names}
        drawn[rng.choice(names)] = 1
        ramp = rng.choice(("step", "linear", "cosine")) if end else None
        stages.append(zx.Stage(until=end, mixture=drawn, ramp=ramp))
    return zx.ScheduledMixtureWorkSource([*source.datasets_by_id.values()], stages, **settings)


def check_drawn(seed):
    """Four configurations of one compiled function: seeds, weights and lanes of a drawn source."""
    rng = random.Random(seed)
    while True:
        try:
            source = drawn_source(rng)
        except ValueError:  # a dataset that cannot fill its first chunk
            continue
        if chunks_of(source, limit=1):
            break
    num_lanes = rng.choice((1, 1, 2, 5))
    config = rng.choice((None, LATTICE))
    variants = []
    while len(variants) < 4:
        names = source.settings.names
        weights = {name: rng.choice((1, 2, 5)) for name in names}
        free = {"mixture": weights} if isinstance(source, zx.StaticMixtureWorkSource) else {}
        try:
            other = source.replace(seed=rng.getrandbits(40), **free)
        except ValueError:
            other = source.replace(seed=rng.getrandbits(40))
        variants.append((other if variants else source, rng.randrange(num_lanes)))
    ends = [other.chunk_spans()[-1] for other, _ in variants]
    lengths = [end.first_chunk + end.num_chunks for end in ends if end.num_chunks is not None]
    num_chunks = min([40, *lengths])
    if not num_chunks:
        return
    variants = [(s, lane if num_chunks >= num_lanes else 0) for s, lane in variants]
    order = zx.traced(source, num_chunks=num_chunks, num_lanes=num_lanes, read_config=config)
    usable = [
        (other, lane)
        for other, lane in variants
        if any(c.chunk_index < num_chunks for c in chunks_of(other, lane, num_lanes, limit=1))
    ]
    if usable:
        assert_same_bits(order, usable, num_lanes=num_lanes, config=config, most=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_drawn_configurations_give_the_same_bits(seed):
    """Two hundred configurations, four to a compilation."""
    check_drawn(seed)


def test_next_chunk_under_jit_names_what_to_use():
    source = mixture([40], chunk_size=10)
    for one in (
        source,
        scheduled(3),
        zx.take(source, 2),
        zx.concatenate([zx.take(source, 2), CountSource()]),
        zx.interleave([source, source.replace(seed=1)], [1, 2]),
    ):
        match = rf"{type(one).__name__}\.next_chunk .* zx\.traced\(source, num_chunks=\.\.\.\)"
        state = one.init()
        with pytest.raises(TypeError, match=match):
            jax.jit(one.next_chunk)(state)
        with pytest.raises(TypeError, match=match):  # a part of the state is enough
            jax.jit(lambda lane, one=one, state=state: one.next_chunk(state._replace(lane=lane)))(0)
        assert one.next_chunk(state)[0] is not None  # what was traced left nothing behind


def test_what_cannot_be_traced_is_named():
    source = mixture([40, 30], [2, 1], chunk_size=10)
    tokens = zx.TokenEstimation.from_ratios({"a": 1, "b": 2})
    sized = [zx.Dataset.from_counts(n, [40], num_bytes=[900]) for n in "ab"]

    class Own(zx.StaticMixtureWorkSource):
        def next_chunk(self, state):
            return super().next_chunk(state)

    own = Own([zx.Dataset.from_counts("a", [40])], {"a": 1}, 10)
    random_mode = zx.MixtureReadConfig(mode="weighted_random")
    within = zx.MixtureReadConfig(shuffle_within_component=True)
    for call, kind, text in (
        (lambda: zx.traced(CountSource()), TypeError, "StaticMixtureWorkSource"),
        (lambda: zx.traced(own), TypeError, "on the host alone"),
        (lambda: zx.traced(source.replace(exhausted_policy="redistribute")), ValueError,
         r"'redistribute' of \['a', 'b'\] cannot be traced"),
        (lambda: zx.traced(source.replace(datasets=sized, token_estimation=tokens)), ValueError,
         "in tokens cannot be traced"),
        (lambda: zx.traced(source.replace(allocation="virtual_time")), ValueError, "virtual_time"),
        (lambda: zx.traced(source, read_config=random_mode), ValueError, "weighted_random"),
        (lambda: zx.traced(source, read_config=within), ValueError, "shuffle_within_component"),
        (lambda: zx.traced(source.replace(exhausted_policy="repeat")), ValueError, "num_chunks="),
        (lambda: zx.traced(source, num_chunks=99), ValueError, "at most the 9 chunks"),
        (lambda: zx.traced(source, num_chunks=0), ValueError, "num_chunks"),
        (lambda: zx.traced(source.replace(exhausted_policy="repeat"), num_chunks=2**30),
         ValueError, "at most 2.31 - 1 samples"),
        (lambda: zx.traced(mixture([2**31], chunk_size=8), num_chunks=5), ValueError,
         "dataset 'a'"),
        (lambda: zx.traced(source, num_lanes=3).init(3), ValueError, "lane"),
        (lambda: zx.traced(source).init(of=source.replace(chunk_size=5)), ValueError,
         "differs in chunk_size"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text):
            call()
