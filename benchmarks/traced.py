"""How fast a schedule is inside `lax.scan`: ids a second, beside NumPy and compiled kernels.

python benchmarks/traced.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys

import mixtures
from common import Measured, Table, run, seconds
from schedule import chunks

import zephon_jax as zx

COMPONENTS = (2, 8, 32)
SIDE_BY_SIDE = 16  # seeds under vmap


def of_ours(quick):
    num = 16 if quick else 48
    return {str(k): chunks(mixtures.ours(k), num) for k in COMPONENTS}


def compiled(quick):
    zx.use_backend("jax")
    return of_ours(quick)


def traced(quick):
    """Seconds a chunk in one scan, of one seed and of many; the first call's is for compiling."""
    import jax
    import jax.numpy as jnp

    num, figures = 4 if quick else 16, {}
    for k in COMPONENTS:
        source = mixtures.ours(k)
        order = zx.traced(source, num_chunks=1000)

        def step(state, _, order=order):
            component, ids, state = order.next_chunk(state)
            return state, component[-1] + ids[-1].sum()  # all of it is computed, little is kept

        def scan(state, step=step):
            return jax.lax.scan(step, state, length=num)

        states = [order.init(of=source.replace(seed=seed)) for seed in range(SIDE_BY_SIDE)]
        many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        for name, function, given, by in (
            (str(k), scan, states[0], num),
            (f"{k} side by side", jax.vmap(scan), many, num * SIDE_BY_SIDE),
        ):
            jitted = jax.jit(function)

            def call(function=jitted, given=given):
                jax.block_until_ready(function(given))

            figures[f"{name}, compiling"] = seconds(call)
            figures[name] = seconds(call, 3) / by
    return figures


PEERS = {"NumPy": of_ours, "compiled": compiled, "traced": traced}


def report(table: Table, found: Measured) -> None:
    for k in COMPONENTS:
        for peer, name in (
            ("NumPy", str(k)), ("compiled", str(k)), ("traced", str(k)),
            ("traced", f"{k} side by side"),
        ):  # fmt: skip
            rates = [mixtures.CHUNK_SIZE / 1e6 / took for took in found.of(peer, name)]
            label = f"{SIDE_BY_SIDE} seeds side by side" if "side" in name else "one seed"
            table.add(f"{k} components, {peer}, {label}", rates, "million ids/s")
        table.add(f"{k} components, compiling a scan", found.of("traced", f"{k}, compiling"), "s")


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
