"""The record of a simulated run: arrays, a table, and a summary in words."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from zephon_jax._text import counted, table
from zephon_jax.analysis.shard_reads import ShardReads

__all__ = ["Simulation"]

_SHOWN = 24  # components listed in a summary


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Simulation:
    """What `zx.simulate` found out. R rows, k components, L lanes.

    A row is one chunk, or `stride` consecutive ones where a run is so long that a row for each
    would take too much memory. Extremes, first and last draws and sums are exact all the same.
    """

    __module__ = "zephon_jax"

    # Component names, in component order.
    names: tuple[str, ...]
    # Lanes that the chunks are dealt to.
    num_lanes: int
    # Chunks gone through, of all lanes together.
    num_chunks: int
    # True where the run ends after these chunks.
    ended: bool
    # Chunks in a row.
    stride: int
    # First chunk of each row, int64 (R,).
    chunk: np.ndarray
    # Chunks in each row, int64 (R,).
    chunks: np.ndarray
    # Lane of each row's chunk, int64 (R,); -1 where a row is more than one chunk.
    lane: np.ndarray
    # Samples of each component in each row, int64 (R, k).
    draws: np.ndarray
    # What weights are shares of: "samples" or "tokens".
    unit: str
    # Tokens of each component in each row, as far as they are known, float64 (R, k); (R, 0) where
    # weights are shares of samples.
    tokens: np.ndarray
    # Units ahead of the target at each row's end, float64 (R, k).
    deviation: np.ndarray
    # The least and the most of it after any chunk of the row, float64 (R, k).
    deviation_low: np.ndarray
    deviation_high: np.ndarray
    # Chunks at which the target shares change, int64 (E,), and the shares from there on, (E, k).
    target_chunk: np.ndarray
    targets: np.ndarray
    # Chunks and samples of each component that each lane gets, int64 (L,) and (L, k).
    lane_chunks: np.ndarray
    lane_draws: np.ndarray
    # First and last chunk that holds a component, int64 (k,); -1 where none does.
    first_draw: np.ndarray
    last_draw: np.ndarray
    # Samples in one pass of each component's dataset, int64 (k,); 0 where not known.
    totals: np.ndarray
    # Components that are used up, or end the run, with the last chunk before, in order.
    exhausted: tuple[tuple[str, int], ...]
    # Units that a component may be ahead of its target, (low, high), where that is bounded.
    bound: tuple[float, float] | None
    # Shards touched and bytes fetched, where `window` asked for them.
    reads: ShardReads | None
    # What to look at before a run like this one, in words.
    warnings: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Samples in all chunks together."""
        return int(self.lane_draws.sum())

    @property
    def drawn(self) -> np.ndarray:
        """Samples of each component up to each row's end: int64 (R, k)."""
        return np.cumsum(self.draws, axis=0)

    @property
    def passes(self) -> np.ndarray:
        """Passes of each dataset up to each row's end: float64 (R, k), NaN where not known."""
        return self.drawn / np.where(self.totals > 0, self.totals, np.nan)

    @property
    def amounts(self) -> np.ndarray:
        """What weights are shares of, in each row: `draws` or `tokens`, (R, k)."""
        return self.tokens if self.unit == "tokens" else self.draws

    @property
    def shares(self) -> np.ndarray:
        """Share of each component in each row's samples (or tokens): float64 (R, k)."""
        total = self.amounts.sum(axis=1, keepdims=True)
        return self.amounts / np.where(total > 0, total, 1)

    @property
    def target_shares(self) -> np.ndarray:
        """Target share of each component at each row's first chunk: float64 (R, k)."""
        if not len(self.chunk):
            return np.zeros(self.draws.shape)
        return self.targets[np.searchsorted(self.target_chunk, self.chunk, side="right") - 1]

    def to_table(self) -> dict[str, np.ndarray]:
        """The rows as columns by name, which `pandas.DataFrame` and `pyarrow.table` take.

        Columns: `chunk`, `chunks`, `lane`, `samples`, and for each component `draws:name`,
        `drawn:name`, `share:name`, `target:name`, `passes:name` and `deviation:name`.
        """
        table = {
            "chunk": self.chunk,
            "chunks": self.chunks,
            "lane": self.lane,
            "samples": self.draws.sum(axis=1),
        }
        kinds = {
            "draws": self.draws, "drawn": self.drawn, "share": self.shares,
            "target": self.target_shares, "passes": self.passes, "deviation": self.deviation,
        }  # fmt: skip
        for kind, values in kinds.items():
            for d, name in enumerate(self.names):
                table[f"{kind}:{name}"] = values[:, d]
        return table

    def to_csv(self, path: str | os.PathLike[str] | TextIO) -> None:
        """Writes `to_table()` as comma-separated values with a header.

        Args:
          path: A path, or a file that is open for text.
        """
        if not hasattr(path, "write"):
            with open(path, "w", newline="", encoding="utf-8") as file:  # type: ignore[arg-type]
                self.to_csv(file)
            return
        table = self.to_table()
        writer = csv.writer(path)  # type: ignore[arg-type]
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))

    def summary(self) -> str:
        """The run in words: how long, what of each component, and what to look at."""
        lines = [
            self._size(),
            *_table_lines(self),
            *([self.reads.summary()] if self.reads is not None else []),
            *(f"! {text}" for text in self.warnings),
        ]
        return "\n".join(lines)

    def _size(self) -> str:
        return (
            f"{counted(self.num_chunks, 'chunk')}, {counted(self.num_samples, 'sample')},"
            f" {counted(self.num_lanes, 'lane')}"
            f" ({'the whole run' if self.ended else 'the run goes on'})"
        )

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<Simulation: {self._size()}; print it for its table>"


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _table_lines(record: Simulation) -> list[str]:
    """A line for each component, in columns."""
    drawn = record.lane_draws.sum(axis=0)
    amounts = record.amounts.sum(axis=0)
    total = max(1, amounts.sum())
    target = record.targets[0] if len(record.targets) else np.zeros(len(drawn))
    share = "share" if record.unit == "samples" else f"share of {record.unit}"
    rows = [("component", "target", share, "samples", "passes", "first chunk", "last chunk")]
    for d, name in enumerate(record.names[:_SHOWN]):
        size = int(record.totals[d])
        never = record.first_draw[d] < 0
        rows.append((
            name, _percent(target[d]), _percent(amounts[d] / total), f"{drawn[d]:,}",
            f"{drawn[d] / size:.3f}" if size else "-",
            "never" if never else f"{record.first_draw[d]:,}",
            "never" if never else f"{record.last_draw[d]:,}",
        ))  # fmt: skip
    more = len(record.names) - _SHOWN
    return [table(rows), *([f"and {counted(more, 'more component')}"] if more > 0 else [])]
