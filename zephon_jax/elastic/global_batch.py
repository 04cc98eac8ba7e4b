"""Each host's rows as global JAX arrays, on the devices ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_jax.elastic.checkpoint.lane_files import load_files, to_files, write_files
from zephon_jax.elastic.iterator import ElasticIterator
from zephon_jax.elastic.row_sharding import row_sharding

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

    from zephon_jax.elastic.checkpoint.folder import Checkpoint

__all__ = ["GlobalBatches", "all_hosts", "synchronized", "to_global"]

_HOST_ONLY = ("sample_id",)


def to_global(
    batch: object, sharding: NamedSharding, *, host_only: Sequence[str] = _HOST_ONLY
) -> Any:
    """Puts this host's rows where they belong in a global batch.

    Args:
      batch: A pytree of arrays (rows, ...): the rows of the lanes that `for_sharding` gave to this
        host, in lane order.
      sharding: `jax.sharding.NamedSharding` of the largest leaves; leaves with fewer axes take as
        much of its spec as they have axes.
      host_only: Names of dict entries that stay on the host as they are. Text, bytes and other
        objects always do.

    Returns:
      The pytree with `jax.Array` leaves of the global shape.

    Raises:
      ValueError: If an integer does not fit into the 32 bits that JAX keeps without x64.

    Example:
      >>> import jax, numpy as np, zephon_jax as zx
      >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
      >>> zx.to_global({"x": np.arange(4, dtype=np.int32)}, sharding)["x"].shape
      (4,)
    """
    import jax

    shares: dict[Any, tuple[int, int]] = {}

    def place(path: Any, leaf: Any) -> Any:
        names = {getattr(key, "key", getattr(key, "name", None)) for key in path}
        array = np.asarray(leaf)
        if names & set(host_only) or array.dtype.kind in "OUSMm":
            return leaf
        _check_fits(jax.tree_util.keystr(path), array)
        spec = jax.sharding.PartitionSpec(*sharding.spec[: array.ndim])
        own = jax.sharding.NamedSharding(sharding.mesh, spec)
        if spec not in shares:
            shares[spec] = _share_of_rows(own)
        parts, mine = shares[spec]
        if array.ndim and array.shape[0] % mine:
            raise ValueError(
                f"this host's devices hold {mine} of the {parts} parts of a batch; got"
                f" {array.shape[0]} rows in {jax.tree_util.keystr(path)}, which do not divide."
            )
        rows = array.shape[:1] and (array.shape[0] // mine * parts,)
        return jax.make_array_from_process_local_data(own, array, (*rows, *array.shape[1:]))

    with jax.profiler.TraceAnnotation("zephon_jax.to_global"):
        return jax.tree.map_with_path(place, batch)


def _share_of_rows(sharding: NamedSharding) -> tuple[int, int]:
    """Parts that the first axis is cut into, and how many of them this host holds."""
    by_rows, _, num_parts = row_sharding(sharding)
    held = by_rows.addressable_devices_indices_map((num_parts,)).values()
    return num_parts, len({index[0].start for index in held if index is not None})


def _check_fits(name: str, array: np.ndarray) -> None:
    import jax

    if array.dtype.kind not in "iu" or array.dtype.itemsize < 8 or not array.size:
        return
    if jax.config.read("jax_enable_x64"):
        return
    bounds = np.iinfo(np.int32 if array.dtype.kind == "i" else np.uint32)
    low, high = int(array.min()), int(array.max())
    if low < bounds.min or high > bounds.max:
        raise ValueError(
            f"leaf {name} is {array.dtype} and holds {low if low < bounds.min else high}, which"
            " JAX would wrap to 32 bits in silence. Keep it on the host (host_only=), split it in"
            " the pipeline, or set jax_enable_x64."
        )


class GlobalBatches:
    """Global batches on the devices, a few ahead; the state is of the last one handed out.

    Args:
      iterator: The iterator of an `ElasticIterDataset`.
      sharding: As for `to_global`.
      prefetch: Batches that are under way to the devices while one is in use; 1 is double
        buffering.
      host_only: As for `to_global`.
      synchronized: Where rows_per_sample=None: all hosts agree before each step, as with
        `zx.synchronized`.

    Example:
      >>> import jax, zephon_jax as zx
      >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
      >>> sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
      >>> numbers = zx.Dataset.from_source("numbers", list(range(16)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
      >>> lanes = zx.ElasticIterDataset.for_sharding(
      ...     source, 4, lambda lane: lane.map(lambda e: {"x": e["data"]}), sharding)
      >>> batches = zx.GlobalBatches(iter(lanes), sharding)
      >>> [batch["x"].shape for batch in batches]
      [(4,), (4,), (4,), (4,)]
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        iterator: ElasticIterator,
        sharding: NamedSharding,
        *,
        prefetch: int = 1,
        host_only: Sequence[str] = _HOST_ONLY,
        synchronized: bool = False,
    ):
        self.iterator, self._sharding, self._synchronized = iterator, sharding, bool(synchronized)
        self._ahead, self._host_only = max(0, int(prefetch)), tuple(host_only)
        self._forget()

    @property
    def num_lanes(self) -> int:
        """Lanes of the run."""
        return self.iterator.num_lanes

    @property
    def owned_lanes(self) -> tuple[int, ...]:
        """Lanes that this host runs."""
        return self.iterator.owned_lanes

    @property
    def written_lanes(self) -> tuple[int, ...]:
        """Lanes that this host saves."""
        return self.iterator.written_lanes

    @property
    def restored_from(self) -> Checkpoint | None:
        """The abandoned checkpoint that the next save goes on from."""
        return self.iterator.restored_from

    @restored_from.setter
    def restored_from(self, checkpoint: Checkpoint | None) -> None:
        self.iterator.restored_from = checkpoint

    def _forget(self) -> None:
        self._ready: deque[tuple[Any, Any]] = deque()  # (batch, place after it)
        self._local: Any = None  # this host's next part, where it is not placed yet
        self._place = self.iterator.place
        self._ended: Exception | None = None
        self._steps = self._from_here()

    def _from_here(self) -> Iterator[object]:
        return synchronized(self.iterator) if self._synchronized else self.iterator

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> Any:
        self._fill(1)
        if not self._ready:
            assert self._ended is not None
            ended = self._ended
            if not isinstance(ended, StopIteration):
                self._ended = None  # the next call tries again
                self._steps = self._from_here()  # a generator that raised has ended
            raise ended
        batch, self._place = self._ready.popleft()
        self._fill(self._ahead)
        return batch

    def _fill(self, wanted: int) -> None:
        while len(self._ready) < wanted and self._ended is None:
            try:
                if self._local is None:
                    self._local = next(self._steps)
                batch = to_global(self._local, self._sharding, host_only=self._host_only)
            except Exception as error:
                self._ended = error
            else:
                self._ready.append((batch, self.iterator.place))
                self._local = None

    def get_state(self) -> dict[str, Any]:
        """The place after the last batch handed out: a snapshot that later steps do not change."""
        return self.iterator.state_at(self._place)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a place that `get_state` described on any number of hosts."""
        self.iterator.set_state(state)
        self._forget()

    def checked_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """A snapshot as `get_state` returned it, after all checks that need no pipeline."""
        return self.iterator.checked_state(state)

    async def save(self, directory: object) -> Awaitable[None]:
        """Saves itself with Orbax v1: takes the state now and returns what writes it later."""
        return write_files(directory, to_files(self.get_state(), self.written_lanes))

    async def load(self, directory: object) -> Awaitable[None]:
        """Loads itself with Orbax v1, whatever hosts saved it."""
        return load_files(directory, self)

    def metrics(self) -> dict[str, int | float]:
        """Numbers for logs, as `ElasticIterator.metrics`: after the last batch that was placed."""
        return self.iterator.metrics()

    def seek(self, step: int) -> None:
        """Goes to a step without a checkpoint, where the pipeline is one-to-one."""
        self.iterator.seek(step)
        self._forget()

    def peek_error(self) -> Exception | None:
        """Makes the next step and keeps it; returns what goes wrong with it, if anything does."""
        return None if self._ready else self.iterator.peek_error()

    def close(self) -> None:
        """Ends threads and worker processes."""
        self.iterator.close()


_ENDED, _GOING, _FAILED, _BARE = range(4)
_STATUS_BITS, _STEP_BITS, _RUN_BITS = 2, 14, 15  # of a word, 31 bits together


def _place_of(iterator: ElasticIterator) -> int:
    """What hosts of one run at one step have in common: the other bits of their words."""
    run = int(iterator.run_id[:8], 16) % (1 << _RUN_BITS)
    step = iterator.place.step % (1 << _STEP_BITS)
    return (run << _STEP_BITS | step) << _STATUS_BITS


def _check_places(words: Sequence[int]) -> None:
    """Checks that all hosts are at one step of one run.

    Raises:
      RuntimeError: If not, naming the processes.
    """
    places = [word >> _STATUS_BITS for word in words]
    if len(set(places)) == 1:
        return
    steps = [place % (1 << _STEP_BITS) for place in places]
    runs = [place >> _STEP_BITS for place in places]
    what = f"at steps {steps} (modulo {1 << _STEP_BITS:,})" if len(set(runs)) == 1 else (
        f"in runs {[f'{run:04x}' for run in runs]} (digests of their settings)"
    )  # fmt: skip
    raise RuntimeError(
        f"hosts must be at the same step of the same run; processes 0, 1, ... are {what}. Restore"
        " all of them from one checkpoint."
    )


def _word_of(iterator: ElasticIterator) -> int:
    """How this host stands: "bare" where it has ended and cannot make masked rows."""
    if iterator.peek_error() is not None:
        return _FAILED
    if not iterator.at_end():
        return _GOING
    return _BARE if iterator.pads and not iterator.can_mask() else _ENDED


def all_hosts(word: int) -> list[int]:
    """A number below 2^31 from every host, by process: an all-gather that all must call.

    Returns:
      The numbers, this host's included.
    """
    import jax

    if jax.process_count() == 1:
        return [word]
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(np.asarray(word, dtype=np.int32))
    return [int(one) for one in np.asarray(gathered).reshape(-1)]


def synchronized(
    iterator: ElasticIterator, agree: Callable[[int], Sequence[int]] = all_hosts
) -> Iterator[Any]:
    """Batches of an iterator whose end is not known beforehand, the same number on all hosts.

    Before each step the hosts agree by an all-gather of a word of each that says how it stands, its
    step and its run. Without padding all end when one has ended; with it, hosts that have ended
    give masked rows until the last has. An error on one host ends
    the others with an error too, so that no host waits for ever.

    Args:
      iterator: The iterator of an `ElasticIterDataset` with rows_per_sample=None.
      agree: Takes a number below 2^31 and returns those of all hosts; `all_hosts` by default.

    Raises:
      RuntimeError: If another host failed, or is at another step or in another run, naming the
        processes.

    Example:
      >>> import zephon_jax as zx
      >>> numbers = zx.Dataset.from_source("numbers", list(range(16)))
      >>> source = zx.StaticMixtureWorkSource([numbers], {"numbers": 1}, chunk_size=4)
      >>> lanes = zx.ElasticIterDataset(
      ...     source, 4, lambda lane: lane.filter(lambda e: e["data"] % 2), rows_per_sample=None,
      ...     process_index=0, process_count=1)
      >>> [batch["data"].tolist() for batch in zx.synchronized(iter(lanes))]
      [[9, 5, 1, 13], [11, 7, 3, 15]]
    """
    padded = iterator.pads
    while True:
        word = _word_of(iterator)
        words = agree(_place_of(iterator) | word)
        _check_places(words)
        words = [other & _BARE for other in words]
        if word != _FAILED:
            if _FAILED in words:
                raise RuntimeError("another host failed to make its rows; see its error.")
            if _GOING not in words if padded else _ENDED in words:
                return
            if _BARE in words and word != _BARE:
                raise RuntimeError(
                    "the lanes of another host have ended without a row, so it cannot make masked"
                    " ones; see its error."
                )
        yield iterator.masked_step() if word in (_ENDED, _BARE) else next(iterator)
