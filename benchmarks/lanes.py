"""What a lane's own chunk costs among many lanes: it must not pay for those of the others.

python benchmarks/lanes.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys

import mixtures
from common import Measured, Table, clock, run

import zephon_jax as zx
from zephon_jax.kernels import backend

LANES = (1, 512)
GOALS = {"compiled": 1.3, "NumPy": 2.5, "virtual time": 1.2}


def own_chunks(source, num_lanes, num) -> float:
    """Mean seconds for one chunk of lane 0 in reading order."""
    state = source.init(0, num_lanes)
    for _ in range(48):
        chunk, state = source.next_chunk(state)
        chunk.order()
        backend.finish_compiling()
    begin = clock()
    for _ in range(num):
        chunk, state = source.next_chunk(state)
        chunk.order()
    return (clock() - begin) / num


def of_ours(**settings):
    def figures(quick):
        num = 32 if quick else 64
        return {str(n): own_chunks(mixtures.ours(8, **settings), n, num) for n in LANES}

    return figures


def compiled(quick):
    zx.use_backend("jax")
    return of_ours()(quick)


def zephon(quick):
    figures = {}
    for num_lanes in (1, 16 if quick else 64):
        lane = mixtures.zephons(8).clone_for_lane(0, num_lanes)
        lane.next_chunk()
        begin = clock()
        for _ in lane.next_chunk().iter_samples():
            pass
        figures[str(num_lanes)] = clock() - begin
    return figures


PEERS = {
    "compiled": compiled,
    "NumPy": of_ours(),
    "virtual time": of_ours(allocation="virtual_time"),
    "zephon": zephon,
}


def report(table: Table, found: Measured) -> None:
    for peer, goal in GOALS.items():
        for num_lanes in LANES:
            own = found.of(peer, str(num_lanes), 1e3)
            table.add(f"own chunk, {num_lanes} lanes, {peer}", own, "ms")
        apart = [r["512"] / r["1"] for r in found.rounds[peer]]
        table.add(f"own chunk, 512 lanes over 1, {peer}", apart, "x", most=goal)
    for num_lanes in ("1", "16", "64"):
        table.add(f"own chunk, {num_lanes} lanes, Zephon", found.of("zephon", num_lanes, 1e3), "ms")


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
