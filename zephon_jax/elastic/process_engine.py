"""Lanes in worker processes, which hand rows over through shared memory.

Workers are spawned, never forked, and never touch an accelerator. Which lanes a worker runs and how
many there are is nobody's business but this module's: states go by lane.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from zephon_jax.elastic.lane_rows import LanePlan, LaneRows, RowBlock

__all__ = ["ProcessEngine"]

_ALIGN = 64
_SECONDS_TO_END = 5.0


@contextlib.contextmanager
def _for_workers() -> Iterator[None]:
    """The environment that workers start in: before they import JAX, only its CPU is left."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before


def _share(leaves: Sequence[np.ndarray]) -> tuple[str | None, list[Any]]:
    """Puts arrays into a block of shared memory: its name, and where each is.

    Objects travel as they are.
    """
    kept: list[Any] = []
    size = 0
    for leaf in leaves:
        if leaf.dtype.hasobject:
            kept.append(leaf)
        else:
            kept.append((size, leaf.shape, leaf.dtype))  # its name alone loses bfloat16
            size += -(-leaf.nbytes // _ALIGN) * _ALIGN
    if not size:
        return None, [leaf if isinstance(kept[n], tuple) else kept[n]
                      for n, leaf in enumerate(leaves)]  # fmt: skip
    block = SharedMemory(create=True, size=size)
    for leaf, place in zip(leaves, kept, strict=True):
        if isinstance(place, tuple):
            offset, shape, dtype = place
            np.ndarray(shape, dtype, block.buf, offset)[...] = leaf
    name = block.name
    block.close()
    return name, kept


def _take_shared(name: str | None, kept: Sequence[Any]) -> list[np.ndarray]:
    """Copies arrays out of a block and gives it back."""
    if name is None:
        return list(kept)
    block = SharedMemory(name=name)
    leaves = []
    for place in kept:
        if isinstance(place, tuple):
            offset, shape, dtype = place
            leaves.append(np.ndarray(shape, dtype, block.buf, offset).copy())
        else:
            leaves.append(place)
    block.close()
    block.unlink()
    return leaves


def _opened(packed: bytes) -> list[LaneRows]:
    import cloudpickle

    from zephon_jax.elastic.lane_rows import LaneRows

    plan, owned = cloudpickle.loads(packed)
    return [LaneRows(plan, lane) for lane in owned]


def _work(connection: Any, packed: bytes) -> None:
    """A worker: opens its lanes and takes rows as it is told, until the connection closes."""
    from zephon_jax.elastic.lane_rows import take_block

    lanes: list[LaneRows] = []
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            command, argument = connection.recv()
            try:
                if command == "go to":
                    lanes = lanes or _opened(packed)
                    for lane, state in zip(lanes, argument, strict=True):
                        lane.set_state(state)
                    answer: Any = None
                else:
                    part = take_block(lanes, argument)
                    columns = part.columns
                    shared = None if columns is None else (columns.tree, *_share(columns.leaves))
                    answer = shared, part.counts, part.states
            except Exception as error:
                connection.send(("error", _sendable(error)))
            else:
                connection.send(("done", answer))


def _sendable(error: Exception) -> Exception:
    """The error where it can travel, else one that says the same."""
    import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _packed(plan: LanePlan, owned: Sequence[int]) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((plan, owned))
    except Exception as error:
        raise TypeError(
            "the source and the pipeline go to worker processes, and something in them cannot be"
            f" pickled: {error}. Make it inside the pipeline, or leave num_workers at 0."
        ) from error


class ProcessEngine:
    """Lanes in worker processes, each with a contiguous share of them."""

    def __init__(self, plan: LanePlan, owned: Sequence[int], states: Sequence[Any], workers: int):
        self._plan, self._owned, self._states = plan, list(owned), list(states)
        bounds = np.linspace(0, len(owned), min(workers, len(owned)) + 1).astype(int).tolist()
        self._shares = list(itertools.pairwise(bounds))
        self._workers: list[tuple[Any, Any]] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        with _for_workers():
            for a, b in self._shares:
                mine, theirs = context.Pipe()
                packed = _packed(self._plan, self._owned[a:b])
                process = context.Process(
                    target=_work, args=(theirs, packed), name="zephon_jax lanes", daemon=True
                )
                process.start()
                theirs.close()
                self._workers.append((process, mine))
        self._ask("go to", [self._states[a:b] for a, b in self._shares])

    def go_to(self, states: Sequence[Any]) -> None:
        """Puts each lane at a state."""
        self._states = list(states)
        if self._workers:
            self._ask("go to", [self._states[a:b] for a, b in self._shares])

    def take(self, num_rows_each: int) -> RowBlock:
        """Takes rows from each lane."""
        from zephon_jax.elastic.columns import Columns
        from zephon_jax.elastic.lane_rows import RowBlock, join_blocks

        if not self._workers:
            self._start()
        answers = self._ask("take", [num_rows_each] * len(self._shares))
        parts = []
        for shared, counts, states in answers:
            columns = None
            if shared is not None:
                tree, name, kept = shared
                columns = Columns(tree, _take_shared(name, kept))
            parts.append(RowBlock(columns, counts, states))
        return join_blocks(parts)

    def _ask(self, command: str, arguments: Sequence[Any]) -> list[Any]:
        """Tells all workers at once; raises what the first of them raised, when all are done."""
        answers, failed, died = [], None, []
        for (_, connection), argument in zip(self._workers, arguments, strict=True):
            with contextlib.suppress(OSError):  # of one that died: said below
                connection.send((command, argument))
        for process, connection in self._workers:
            try:
                kind, answer = connection.recv()
            except (EOFError, OSError):
                died.append(process)
                continue
            if kind == "error":
                failed = failed or answer
            else:
                answers.append(answer)
        if (died or failed) and command == "take":
            for answer in answers:  # rows that nobody will see: give back their memory
                if answer[0] is not None:
                    _take_shared(*answer[0][1:])
        if died:
            raise self._death(died)
        if failed is not None:
            raise failed
        return answers

    def _death(self, died: Sequence[Any]) -> RuntimeError:
        """Ends the others, and says how these ended."""
        for process in died:
            process.join(_SECONDS_TO_END)
        codes = [process.exitcode for process in died]
        self.close()
        return RuntimeError(
            f"a worker process of lanes {self._owned[0]} to {self._owned[-1]} died (exit codes"
            f" {codes}); the next step starts new ones. A script must start its work under"
            " `if __name__ == '__main__':`."
        )

    def kill(self) -> bool:
        """Ends workers that do not answer; who waits for one of them is told that it died."""
        for process, _ in self._workers:
            process.kill()
        return True

    def close(self) -> None:
        """Ends the workers."""
        workers, self._workers = self._workers, []
        for _, connection in workers:
            connection.close()
        for process, _ in workers:
            process.join(_SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
