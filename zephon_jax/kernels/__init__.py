"""Integer functions of arrays: what decides an order, bit for bit.

Each routine takes NumPy or JAX arrays, works under `jit`, `vmap` and `lax.scan`, and gives the same
bits everywhere. Weights become integers here, once, on the host (`weights`); `quota` says how many
samples of each component a chunk draws, `virtual_time` which component draws next, `swrr` and
`lattice` in what order a chunk is read (`lattice_windows` a part of it alone), `permutation`
shuffles without a table, `lanes` deals chunks to lanes, `keys` folds a seed with coordinates.
`backend` compiles them on request.

Imports NumPy alone at its top level, and nothing else of the package but the private helpers.
"""

__all__: list[str] = []
