"""What a state costs: bytes, and the time to encode and decode it.

python benchmarks/checkpoint.py [--rounds 5] [--quick] [--json FILE]
"""

from __future__ import annotations

import sys

import mixtures
from common import Measured, Table, clock, run

import zephon_jax as zx


def numpy(quick):
    figures = {}
    for k in (8, 128):
        source = mixtures.ours(k)
        for place in (0, 10**7):
            state = source.seek(place, 3, 16)
            data = zx.encode_state(state)
            num = 100 if quick else 1000
            zx.decode_state(source, data)
            begin = clock()
            for _ in range(num):
                zx.decode_state(source, zx.encode_state(state))
            name = f"{k} components, chunk {place:.0e}"
            figures[f"{name}: bytes"] = float(len(data))
            figures[f"{name}: seconds"] = (clock() - begin) / num
    return figures


PEERS = {"NumPy": numpy}


def report(table: Table, found: Measured) -> None:
    for k in (8, 128):
        for place in (0, 10**7):
            name = f"{k} components, chunk {place:.0e}"
            goals = {"most": 320} if k == 8 else {}
            table.add(f"encoded state, {name}", found.of("NumPy", f"{name}: bytes"), "B", **goals)
            goals = {"most": 50} if k == 8 else {}
            both = found.of("NumPy", f"{name}: seconds", 1e6)
            table.add(f"encode and decode, {name}", both, "us", **goals)


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
