"""Lanes in worker processes, which write rows into shared memory.

Workers are spawned, never forked, and never touch an accelerator. Which lanes a worker runs and how
many there are is nobody's business but this module's: states go by lane.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zephon_jax.elastic.columns import Columns, Space
from zephon_jax.elastic.lane_rows import (
    LanePlan,
    LaneRows,
    RowBlock,
    join_blocks,
    take_block,
)
from zephon_jax.elastic.open_lanes import open_lanes
from zephon_jax.elastic.shared_rows import Block, Blocks, Layout, OpenBlocks

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

__all__ = ["ProcessEngine"]

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


class _Request(NamedTuple):
    """A step that all workers are asked for."""

    num_rows_each: int
    block: Block | None  # None where rows travel by themselves: their layout is not known yet
    views: list[np.ndarray | None]  # the block's arrays; None for leaves of objects


class _Answer(NamedTuple):
    """A worker's share of a step."""

    columns: Columns | None  # where rows travel by themselves
    objects: list[np.ndarray] | None  # where they are in the block: leaves that cannot be
    counts: list[int]
    states: bytes


class _PackedStates(Sequence[Any]):
    """States of lanes as workers sent them, unpacked when somebody looks."""

    def __init__(self, packed: Sequence[bytes]):
        self._packed = packed

    @functools.cached_property
    def _states(self) -> list[Any]:
        return [state for share in self._packed for state in pickle.loads(share)]

    def __getitem__(self, index: Any) -> Any:
        return self._states[index]

    def __len__(self) -> int:
        return len(self._states)


class _Share:
    """The lanes of one worker, at work."""

    def __init__(self, packed: bytes):
        self._packed = packed
        self._lanes: list[LaneRows] = []
        self._layout: Layout | None = None
        self._blocks = OpenBlocks()

    def go_to(self, states: Sequence[Any]) -> None:
        """Puts each lane at a state."""
        import cloudpickle

        if not self._lanes:
            plan, owned = cloudpickle.loads(self._packed)
            self._lanes = open_lanes(plan, owned)
        for lane, state in zip(self._lanes, states, strict=True):
            lane.set_state(state)

    def take(
        self, num_rows_each: int, begin: int, num_rows: int, layout: Layout | None, block: Any
    ) -> _Answer:
        """Takes rows, into a block of `num_rows` rows from `begin` on if there is one."""
        self._layout = layout or self._layout
        views, out = None, None
        if block is not None and self._layout is not None:
            views = self._layout.views(self._blocks.open(*block), num_rows)
            end = begin + num_rows_each * len(self._lanes)
            views = [None if view is None else view[begin:end] for view in views]
            out = Space(self._layout.tree, views)
        found = take_block(self._lanes, num_rows_each, out)
        columns, objects = found.columns, None
        if columns is not None and views is not None and all(
            view is None or leaf is view for leaf, view in zip(columns.leaves, views, strict=True)
        ):  # fmt: skip
            pairs = zip(columns.leaves, views, strict=True)
            columns, objects = None, [leaf for leaf, view in pairs if view is None]
        return _Answer(columns, objects, found.counts, pickle.dumps(found.states))


def _work(connection: Connection, packed: bytes) -> None:
    """A worker: opens its lanes and takes rows as it is told, until the connection closes."""
    share = _Share(packed)
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            command, arguments = connection.recv()
            try:
                answer = share.go_to(*arguments) if command == "go to" else share.take(*arguments)
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
    """Lanes in worker processes, each with a contiguous share of them.

    Workers are asked for steps ahead, so that none waits for the slowest share of a step, nor for
    this process.

    Args:
      plan: The run's lanes.
      owned: The lanes to run.
      states: Their states.
      workers: Number of processes, at most.
      ahead: Steps that workers are asked for beyond the one that is waited for.
      keep: Blocks of shared memory to use again and again.
    """

    def __init__(
        self, plan: LanePlan, owned: Sequence[int], states: Sequence[Any], workers: int,
        *, ahead: int = 2, keep: int = 8,
    ):  # fmt: skip
        self._plan, self._owned, self._states = plan, list(owned), states
        self.ahead, self._keep = ahead, keep
        bounds = np.linspace(0, len(owned), min(workers, len(owned)) + 1).astype(int).tolist()
        self._shares = list(itertools.pairwise(bounds))
        self._workers: list[tuple[BaseProcess, Connection]] = []
        self._forget()

    def _forget(self) -> None:
        self._asked: deque[_Request] = deque()
        self._moved = True  # where the workers' lanes are not at the states, or after them
        self._layout: Layout | None = None
        self._told = False  # whether the workers know the layout
        self._blocks = Blocks(self._keep)

    def _start(self) -> None:
        self._forget()
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

    def go_to(self, states: Sequence[Any]) -> None:
        """Puts each lane at a state, when the next rows are taken."""
        self._states, self._moved = states, True

    def take(self, num_rows_each: int, following: Sequence[int] = ()) -> RowBlock:
        """Takes rows from each lane, and asks for those of the following steps."""
        if not self._workers:
            self._start()
        if self._moved:
            self._move()
        for each in (num_rows_each, *following)[len(self._asked) :]:
            self._ask_for(each)
        if self._asked[0].num_rows_each != num_rows_each:
            raise ValueError("global_batch_size must give the same size whenever it is asked.")
        request = self._asked.popleft()
        answers: list[_Answer] = self._answers()
        if request.block is not None:
            request.block.unlink()  # all have opened it
        return self._joined(request, answers)

    def _move(self) -> None:
        """Tells workers the states of their lanes, after what they were asked for before."""
        while self._asked:
            self._asked.popleft()
            with contextlib.suppress(Exception):  # of steps that nobody is to have
                self._answers()
        if not self._workers:  # one died meanwhile
            self._start()
        self._send("go to", [(list(self._states[a:b]),) for a, b in self._shares])
        self._answers()
        self._moved = False

    def _ask_for(self, each: int) -> None:
        """Asks all workers for a step."""
        num_rows = each * len(self._owned)
        block, views = None, []
        if self._layout is not None and (size := self._layout.size(num_rows)):
            block, memory = self._blocks.lend(size)
            views = self._layout.views(memory, num_rows)
        told = None if self._told else self._layout
        where = None if block is None else (block.path, block.size, block.number)
        self._send("take", [(each, a * each, num_rows, told, where) for a, _ in self._shares])
        self._told = self._layout is not None
        self._asked.append(_Request(each, block, views))

    def _joined(self, request: _Request, answers: Sequence[_Answer]) -> RowBlock:
        """The step of all shares: a view of its block where all of them are in there."""
        states = _PackedStates([answer.states for answer in answers])
        counts = [count for answer in answers for count in answer.counts]
        if self._layout is not None and all(answer.objects is not None for answer in answers):
            objects = zip(*(answer.objects or () for answer in answers), strict=True)
            leaves = [
                np.concatenate(next(objects)) if view is None else view for view in request.views
            ]
            return RowBlock(Columns(self._layout.tree, leaves), counts, states)
        shares = zip(self._shares, answers, strict=True)
        columns = join_blocks([
            RowBlock(self._columns(request, share, answer), answer.counts, [])
            for share, answer in shares
        ]).columns  # fmt: skip
        if self._layout is None and columns is not None:
            self._layout = Layout.of(columns)
        return RowBlock(columns, counts, states)

    def _columns(
        self, request: _Request, share: tuple[int, int], answer: _Answer
    ) -> Columns | None:
        """The rows of one share, wherever they are."""
        if answer.objects is None or self._layout is None:
            return answer.columns
        begin, end = (lanes * request.num_rows_each for lanes in share)
        objects = iter(answer.objects)
        return Columns(self._layout.tree, [
            next(objects) if view is None else view[begin:end] for view in request.views
        ])  # fmt: skip

    def _send(self, command: str, arguments: Sequence[object]) -> None:
        for (_, connection), argument in zip(self._workers, arguments, strict=True):
            with contextlib.suppress(OSError):  # of one that died: said where its answer is due
                connection.send((command, argument))

    def _answers(self) -> list[Any]:
        """An answer of each worker; raises what the first of them raised, when all have come."""
        answers, failed, died = [], None, []
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
        if died:
            raise self._death(died)
        if failed is not None:
            raise failed
        return answers

    def _death(self, died: Sequence[BaseProcess]) -> RuntimeError:
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
        self._asked.clear()
        for _, connection in workers:
            connection.close()
        for process, _ in workers:
            process.join(_SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
