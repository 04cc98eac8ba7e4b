"""A mixture with weights that stay: the source most runs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zephon_jax.data.decoding_costs import warn_of_decoding
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.mixture.scheduled import ScheduledMixtureWorkSource, changed, replayed
from zephon_jax.mixture.settings import (
    AllocationName,
    Assignment,
    BlockSize,
    MixtureArguments,
    Policy,
    Weight,
    check_datasets,
)
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.checks import ShardedDataset

__all__ = ["StaticMixtureWorkSource"]


class StaticMixtureWorkSource(ConfiguredMixture):
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
        datasets: Sequence[ShardedDataset],
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
        warn_of_decoding(*self._decoded())

    def with_mixture(
        self,
        mixture: Mapping[str, Weight],
        at: int | MixtureState | Sequence[MixtureState],
        *,
        datasets: Sequence[ShardedDataset] = (),
        **settings: object,
    ) -> ScheduledMixtureWorkSource:
        """A source that equals this one before a chunk, and goes on from there by other weights.

        Takes the arguments of `ScheduledMixtureWorkSource.with_mixture`.
        """
        return changed(self, mixture, at, datasets, settings)

    def with_changes(
        self,
        changes: Sequence[Sequence[object]],
        *,
        datasets: Sequence[ShardedDataset] = (),
        **settings: object,
    ) -> ScheduledMixtureWorkSource:
        """This source with the changes that its run went through, to go on from a saved state.

        Takes the arguments of `ScheduledMixtureWorkSource.with_changes`.
        """
        return replayed(self, changes, datasets, settings)
