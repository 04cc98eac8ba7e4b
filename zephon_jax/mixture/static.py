"""A mixture with weights that stay: the source most runs need."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from zephon_jax.data.decoding_costs import warn_of_decoding
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.mixture.base import MixtureSource
from zephon_jax.mixture.dataset_order import block_size
from zephon_jax.mixture.fingerprint import fingerprint, shard_sizes
from zephon_jax.mixture.lane_states import ratios_of_fields
from zephon_jax.mixture.run import MixtureRun
from zephon_jax.mixture.settings import (
    AllocationName,
    Assignment,
    BlockSize,
    MixtureArguments,
    MixtureDataset,
    Policy,
    Weight,
    check_datasets,
    make_settings,
)

if TYPE_CHECKING:
    from zephon_jax.data.dataset import Dataset

__all__ = ["StaticMixtureWorkSource"]

# Attributes that follow from the arguments.
_BUILT = ("_datasets", "_arguments", "_settings", "_counts", "_by_id", "_ids", "_run", "unit")


class StaticMixtureWorkSource(MixtureSource):
    """Draws from datasets by weights that do not change. Immutable and picklable.

    Args:
      datasets: Named lists of shards; a dataset's id is its place here, and each is a component.
      mixture: Weight of each dataset: `MixtureSpec` or a mapping by name. Only ratios matter.
      chunk_size: Samples in a chunk, 1 to 2^28.
      seed: Any int. Decides every shuffle and the lanes.
      shuffle_shards: Go through the shards in a random order.
      shuffle_within_shard: Go through each shard in a random order.
      shuffle_block_size: Shuffle blocks of so many consecutive samples of the resulting sequence;
        "auto" is 8 times the largest shard, "global" shuffles the whole dataset at once (the
        first two levels are then not applied), None leaves the sequence as it is.
      exhausted_policy: What happens when a dataset has been gone through: "stop" ends the run
        before the chunk it cannot fill, "repeat" starts it again, "redistribute" gives its share
        to the others. Every dataset repeats by default.
      reshuffle_on_repeat: Give each pass an order of its own.
      max_repeats: Caps "repeat" at so many passes after the first; the run then ends as with
        "stop".
      stop_after_passes: End the run at the first chunk boundary where every active dataset has
        been gone through so often. 1 unless a policy or `max_repeats` is given.
      lane_assignment: How chunks are dealt to lanes: "permute" or "modulo".
      allocation: "incremental" carries fractions of samples from chunk to chunk; "fixed" gives
        every chunk the same counts, at least one sample of each component; "virtual_time" deals
        draws out one by one by weighted fair queueing, a closed form that carries nothing.
      token_estimation: Makes the weights shares of tokens, not of samples, and allocation
        "virtual_time". Unless it knows ratios or totals the source has to be primed: see `prime`.

    The shuffle and policy settings take one value for all datasets or a mapping that names every
    dataset.

    Raises:
      TypeError, ValueError: If a setting is not allowed, naming it and what is.

    Example:
      >>> import zephon_jax as zx
      >>> web, toy = zx.Dataset.from_counts("web", [600, 400]), zx.Dataset.from_counts("toy", [50])
      >>> source = zx.StaticMixtureWorkSource(
      ...     datasets=[web, toy], mixture={"web": 3, "toy": 1}, chunk_size=100, seed=0)
      >>> chunk, state = source.next_chunk(source.init())
      >>> {name: len(ids) for name, ids in chunk.components.items()}
      {'web': 75, 'toy': 25}
      >>> len(source), source[999] == source.sample_id_at(999)
      (1400, True)
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        datasets: Sequence[MixtureDataset],
        mixture: Mapping[str, Weight],
        chunk_size: int = 16384,
        seed: int = 42,
        shuffle_shards: bool | Mapping[str, bool] = True,
        shuffle_within_shard: bool | Mapping[str, bool] = False,
        shuffle_block_size: BlockSize | Mapping[str, BlockSize] = None,
        exhausted_policy: Policy | Mapping[str, Policy] | None = None,
        reshuffle_on_repeat: bool | Mapping[str, bool] = True,
        max_repeats: int | Mapping[str, int | None] | None = None,
        stop_after_passes: int | None = None,
        lane_assignment: Assignment = "permute",
        allocation: AllocationName = "incremental",
        token_estimation: TokenEstimation | None = None,
    ):
        arguments = MixtureArguments(
            mixture=mixture,
            chunk_size=chunk_size,
            seed=seed,
            shuffle_shards=shuffle_shards,
            shuffle_within_shard=shuffle_within_shard,
            shuffle_block_size=shuffle_block_size,
            exhausted_policy=exhausted_policy,
            reshuffle_on_repeat=reshuffle_on_repeat,
            max_repeats=max_repeats,
            stop_after_passes=stop_after_passes,
            lane_assignment=lane_assignment,
            allocation=allocation,
            token_estimation=token_estimation,
        )
        self._build(check_datasets(datasets), arguments)
        settings = self._settings
        blocks = [
            block if block == "global" else block_size(block, counts)
            for block, counts in zip(settings.shuffle_block_size, self._counts, strict=True)
        ]
        warn_of_decoding(self._datasets, settings.shuffle_within_shard, blocks, settings.chunk_size)

    def _build(self, datasets: tuple[MixtureDataset, ...], arguments: MixtureArguments) -> None:
        """Makes everything that follows from the arguments."""
        self._datasets, self._arguments = datasets, arguments
        names = [dataset.name for dataset in datasets]
        self._settings = make_settings(names, arguments)
        self._counts = [np.asarray(d.shard_counts, dtype=np.int64) for d in datasets]
        self._by_id = MappingProxyType(dict(enumerate(datasets)))
        self._ids = MappingProxyType({name: d for d, name in enumerate(names)})
        self.unit = "samples" if self.token_estimation is None else "tokens"
        self._run = None  # not before all that decides the order is known
        if not self.requires_token_priming:
            self._run = MixtureRun(datasets, self._settings, self._counts, self.token_estimation)

    @property
    def run(self) -> MixtureRun:
        """Everything that the run's chunks follow from.

        Raises:
          RuntimeError: If the source has not been primed.
        """
        if self._run is None:
            raise RuntimeError(
                "this source weighs by tokens and has not been primed. Use the source that"
                " source.prime() returns, zx.restore(source, data) to go on from a state, or give"
                " TokenEstimation.from_ratios or TokenEstimation.from_shard_totals."
            )
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        # What a subclass adds travels as it is; the rest follows from the arguments.
        own = {name: value for name, value in vars(self).items() if name not in _BUILT}
        return {"datasets": self._datasets, "settings": dict(self._arguments.items()), "own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, where the source was first made
            self._build(state["datasets"], MixtureArguments(**state["settings"]))
        vars(self).update(state["own"])

    def __repr__(self) -> str:
        settings = self._settings
        shares = {
            n: round(float(f), 6)
            for n, f in zip(settings.names[:8], settings.fractions, strict=False)
        }
        more = "" if len(settings.names) <= 8 else f" and {len(settings.names) - 8} more"
        return (
            f"{type(self).__name__}({shares}{more}, chunk_size={settings.chunk_size},"
            f" seed={settings.seed})"
        )

    @property
    def token_estimation(self) -> TokenEstimation | None:
        """What is known of the tokens in the data, where weights are shares of tokens."""
        return self._arguments.token_estimation

    @property
    def requires_token_priming(self) -> bool:
        """True where tokens have to be measured before use: see `prime`."""
        return self.token_estimation is not None and not self.token_estimation.primed

    def prime(self, **settings: Any) -> Self:
        """Returns a source that has measured the tokens per byte of its datasets.

        A choice of samples of each dataset, always the same, is read and tokenized.
        `source.token_estimation.table()` shows what came out. A source that is primed, or does
        not weigh by tokens, is returned as it is.

        Args:
          **settings: Passed on to `zephon_jax.data.measure_tokens.measure`: `progress`,
            `num_threads`, `reader`.

        Raises:
          ValueError: If a dataset cannot be read or has no tokens, or the tokenizer fails, naming
            the sample.
        """
        estimation = self.token_estimation
        if estimation is None or estimation.primed:
            return self
        from zephon_jax.data.measure_tokens import measure

        datasets = cast("Sequence[Dataset]", self._datasets)  # those that are read have files

        return self.replace(token_estimation=measure(datasets, estimation, **settings))

    def primed_for(self, fields: list[Any]) -> Self:
        """Returns a source with the ratios that a state was saved with.

        Raises:
          ValueError: If the state holds none for these datasets, or belongs to a source with other
            settings, naming them.
        """
        estimation = self.token_estimation
        assert estimation is not None
        mine = fingerprint(self._settings, self._counts, [], shard_sizes(self._datasets))
        ratios = ratios_of_fields(fields, mine, len(self._settings.names))
        measured = estimation.with_ratios(dict(zip(self._settings.names, ratios, strict=True)))
        return self.replace(token_estimation=measured)

    def with_chunk_size(self, chunk_size: int) -> Self:
        """The same mixture in chunks of another size."""
        return self.replace(chunk_size=chunk_size)

    def replace(self, **settings: Any) -> Self:
        """A source with some arguments changed, named as in this class's constructor.

        One of a subclass stays one and keeps what the subclass has added; its own constructor is
        not called.

        Example:
          >>> import zephon_jax as zx
          >>> source = zx.StaticMixtureWorkSource([zx.Dataset.from_counts("a", [90])], {"a": 1})
          >>> source.replace(chunk_size=30).chunk_size_hint()
          30
        """
        made = type(self).__new__(type(self))
        vars(made).update(self.__getstate__()["own"])
        arguments: dict[str, Any] = {"datasets": self._datasets, **dict(self._arguments.items())}
        StaticMixtureWorkSource.__init__(made, **{**arguments, **settings})
        return made
