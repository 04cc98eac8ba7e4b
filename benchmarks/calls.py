"""How many Python calls the ways of the data take inside the package, counted by the interpreter.

Counts do not depend on the machine or on what else runs on it, and show what timings hide: work
that is done twice. Threads are counted too.

python benchmarks/calls.py [--rounds 1] [--quick] [--json FILE]
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from common import Measured, Table, run

import zephon_jax as zx
from zephon_jax.data.reader import Reader

PACKAGE = str(pathlib.Path(zx.__file__).parent)
GOALS = {"next_chunk, warm": 30, "source[i], another chunk": 200, "restore, 4 lanes": 300}


class Counter:
    """Calls of functions whose code lies in the package, generators that go on among them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls += 1

    def of(self, call: Callable[[], Any]) -> int:
        self.calls = 0
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self.calls


def make(datasets=None) -> zx.StaticMixtureWorkSource:
    sizes = ([10_000, 7_000], [9_000] * 3, [5_000])
    counted = [zx.Dataset.from_counts(f"d{d}", size) for d, size in enumerate(sizes)]
    return zx.StaticMixtureWorkSource(
        datasets or counted, {"d0": 3, "d1": 1.7, "d2": 0.63}, chunk_size=128, seed=3,
        exhausted_policy="repeat", shuffle_within_shard=True, shuffle_block_size="auto",
    )  # fmt: skip


def of_a_source(count: Counter) -> dict[str, float]:
    figures: dict[str, float] = {}
    source = make()
    figures["next_chunk, cold"] = count.of(lambda: source.next_chunk(source.init()))
    state = source.init()
    for _ in range(20):
        chunk, state = source.next_chunk(state)
        chunk.order()
    warm = []
    for _ in range(40):
        before = state
        warm.append(count.of(lambda: source.next_chunk(before)))  # noqa: B023
        chunk, state = source.next_chunk(before)
        again = chunk
        figures["order, round robin"] = count.of(lambda: again.order())  # noqa: B023
    figures["next_chunk, warm"] = sorted(warm)[len(warm) // 2]
    lattice = zx.MixtureReadConfig(mode="lattice")
    figures["order, lattice"] = count.of(lambda: chunk.order(lattice))
    fresh = make()
    fresh[0], fresh[1], fresh[2]
    figures["source[i], same chunk"] = count.of(lambda: fresh[5])
    figures["source[i], another chunk"] = count.of(lambda: fresh[10_000])
    figures["seek"] = count.of(lambda: fresh.seek(100))
    data = zx.encode_state(fresh.seek(100))
    figures["decode_state"] = count.of(lambda: zx.decode_state(fresh, data))
    return figures


def lines(folder: str) -> list[zx.Dataset]:
    root = pathlib.Path(folder)
    for name, num in (("d0", 17_000), ("d1", 27_000), ("d2", 5_000)):
        text = "".join(f'{{"text": "{name} {n}"}}\n' for n in range(num))
        (root / f"{name}.jsonl").write_text(text)
    return [zx.Dataset.from_path(f"d{d}", str(root / f"d{d}.jsonl")) for d in range(3)]


def of_lanes(count: Counter, folder: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    source = make(lines(folder))

    def elastic() -> zx.ElasticIterDataset:
        return zx.ElasticIterDataset(
            source, 4, lambda lane: lane.batch(2), process_index=0, process_count=1
        )

    dataset = elastic()
    iterators: list[Any] = []
    figures["iter(elastic), 4 lanes"] = count.of(lambda: iterators.append(iter(dataset)))
    figures["first next, 4 lanes"] = count.of(lambda: next(iterators[0]))
    figures["second next, 4 lanes"] = count.of(lambda: next(iterators[0]))
    state = iterators[0].get_state()
    other = iter(elastic())
    figures["restore, 4 lanes"] = count.of(lambda: other.set_state(state))
    ids = [(0, 0, 5), (1, 0, 9), (2, 0, 7), (0, 0, 11)]
    reader = Reader()
    reader.read(source.datasets_by_id, ids)
    figures["read, 4 ids"] = count.of(lambda: reader.read(source.datasets_by_id, ids))
    return figures


def ours(quick: bool) -> dict[str, float]:
    count = Counter()
    with tempfile.TemporaryDirectory() as folder:
        return {**of_a_source(count), **of_lanes(count, folder)}


PEERS = {"ours": ours}


def report(table: Table, found: Measured) -> None:
    for name in found.rounds["ours"][0]:
        table.add(name, found.of("ours", name), "calls", most=GOALS.get(name))


def main(argv: list[str] | None = None) -> None:
    run(argv, __doc__ or "", __file__, PEERS, report)


if __name__ == "__main__":
    main(sys.argv[1:])
