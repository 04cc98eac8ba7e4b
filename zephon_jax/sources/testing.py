"""Checks of a source of one's own, to be called in a test: `zx.testing.check_source`."""

# A source under test may be of any kind.
# pyright: standard

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import counted
from zephon_jax.sources.checks import State
from zephon_jax.sources.laws import BrokenLaw, Subject, along_a_lane
from zephon_jax.sources.laws_of_runs import of_runs
from zephon_jax.sources.work_source import WorkSource
from zephon_jax.sources.work_source import check_source as check_is_source

__all__ = ["check_source"]

_SHOWN = 4  # laws in a message
_LONGEST = 220  # characters of each
_SECONDS = 120


def check_source(
    source: WorkSource[State] | Callable[[], WorkSource[State]],
    *,
    num_chunks: int = 64,
    lanes: Sequence[int] = (2, 3, 7),
    exactly_once: bool = False,
    other_process: bool = True,
) -> None:
    """Checks that a source keeps the laws of a source. For a test of one's own source.

    The laws: components are declared; states have one structure, encode and come back; a state
    always gives the same chunk and is never changed; the end is for ever; lanes have each chunk
    once; a seek goes on as stepping does; what the source says in advance (sizes, lengths, lanes,
    counts, samples by index) is true; a pass holds each sample once; and another process, which
    the source is pickled for and whose hashes of strings are others, draws the same.

    Args:
      source: A source, small enough to be gone through many times, or a function that makes it.
        With a function each process makes its own, as runs do that are started anew: that finds
        what differs from process to process when a source is made, too.
      num_chunks: Chunks of the run that are looked at, at least 2. A source that ends should end
        within them.
      lanes: Numbers of lanes to try.
      exactly_once: Claims that the whole run holds each sample of its datasets exactly once.
      other_process: Start another process, which takes seconds. Left out where a law is broken.

    Raises:
      AssertionError: Naming each law that is broken, and how.
      TypeError, ValueError: If an argument is not allowed.

    Example:
      >>> import zephon_jax as zx
      >>> toy = zx.Dataset.from_counts("toy", [40])
      >>> source = zx.StaticMixtureWorkSource([toy], {"toy": 1}, chunk_size=10)
      >>> zx.testing.check_source(source, exactly_once=True, other_process=False)
    """
    made = _make(source)
    check_is_source(made)
    num_chunks = as_int(num_chunks, "num_chunks", 2)
    counts = tuple(as_int(n, "lanes", 1, 1 << 20) for n in lanes)
    if not counts:
        raise ValueError("lanes must hold at least one number of lanes; got none.")
    subject = Subject(made, num_chunks, counts, exactly_once)
    broken: dict[str, str] = {}
    for name, law in {**along_a_lane, **of_runs}.items():
        try:
            law(subject)
        except BrokenLaw as error:
            broken[name] = str(error)
        except Exception as error:  # whatever a source raises is a finding
            broken[name] = _raised(error)
    if not broken and other_process:
        try:
            _same_elsewhere(subject, source)
        except BrokenLaw as error:
            broken["another process"] = str(error)
    if broken:
        raise AssertionError(_report(made, broken))


def _make(made: WorkSource[State] | Callable[[], WorkSource[State]]) -> WorkSource[State]:
    """A source, made where it is given as a function."""
    return made() if not isinstance(made, WorkSource) and callable(made) else made


def _raised(error: Exception) -> str:
    """An exception of a source, and the line that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return f"{type(error).__name__} at {place}: {error}"


def _report(source: WorkSource[State], broken: dict[str, str]) -> str:
    lines = [
        f"- {name}: {text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}"
        for name, text in list(broken.items())[:_SHOWN]
    ]
    rest = list(broken)[_SHOWN:]
    more = [f"- and {', '.join(rest)}, which may follow from these."] if rest else []
    kind = type(source).__name__
    return "\n".join([f"{kind} breaks {counted(len(broken), 'law')} of a source:", *lines, *more])


def digests(
    made: WorkSource[State] | Callable[[], WorkSource[State]], num_chunks: int
) -> list[str]:
    """A digest of each of the first chunks of a source in reading order."""
    source = _make(made)
    found: list[str] = []
    for drawn in Subject(source, num_chunks, (1,), False).run:
        component, ids = drawn.chunk.order()
        body = hashlib.sha256(repr(drawn.chunk.names).encode())
        for array in (component, ids):
            body.update(np.ascontiguousarray(array).tobytes())
        found.append(body.hexdigest()[:16])
    return found


def _same_elsewhere(
    subject: Subject, made: WorkSource[State] | Callable[[], WorkSource[State]]
) -> None:
    """Another process draws the same chunks.

    Raises:
      BrokenLaw: If it does not, or the source cannot be pickled.
    """
    import cloudpickle

    most = subject.num_chunks
    try:
        packed: bytes = cloudpickle.dumps((made, most))
    except Exception as error:
        raise BrokenLaw(
            f"the source cannot be pickled, as worker processes need: {error}"
        ) from None
    wanted = digests(subject.source, most)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "import json, pickle; from zephon_jax.sources.testing import digests\n"
        "print(json.dumps(digests(*pickle.loads(sys.stdin.buffer.read()))))"
    )
    # An order that rests on hash() is another one with another seed.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    ran = subprocess.run(
        [sys.executable, "-c", code], input=packed, capture_output=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": seed}, timeout=_SECONDS,
    )  # fmt: skip
    if ran.returncode:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BrokenLaw(f"in another process it fails: {' '.join(last)}")
    found: list[str] = json.loads(ran.stdout.decode().splitlines()[-1])
    if found != wanted:
        pairs = enumerate(zip(wanted, found, strict=False))
        first = next((g for g, (a, b) in pairs if a != b), min(len(wanted), len(found)))
        raise BrokenLaw(
            f"in another process chunk {first} is another one. An order must not rest on hash(), on"
            " the order of a set, on time, or on what else a process has of its own."
        )
