"""A mixture whose weights change while the run goes on: a curriculum, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zephon_jax.data.decoding_costs import warn_of_decoding
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.mixture.schedule import Ramp, Stage
from zephon_jax.mixture.settings import (
    AllocationName,
    Assignment,
    BlockSize,
    MixtureArguments,
    MixtureDataset,
    Policy,
    check_datasets,
)

__all__ = ["ScheduledMixtureWorkSource"]


class ScheduledMixtureWorkSource(ConfiguredMixture):
    """Draws from datasets by weights that change at planned chunks. Immutable and picklable.

    The order stays a pure function of settings, seed and chunk: any chunk is found at once, on any
    host. Whatever a component is owed when the weights change is carried over, in exact fractions
    of a sample, so that its draws stay close to the sum of its shares over the whole run; a
    dataset's samples go on where they were, without a gap or a repeat. With one stage it is the
    same as `StaticMixtureWorkSource`, whose states it reads.

    Args:
      datasets: Named lists of shards, all that any stage draws from; a dataset's id is its place
        here, and each is a component from the start.
      stages: What the weights are, and until when. Each stage's mixture names every dataset; 0
        declares one without drawing from it. Stages end at chunk boundaries; those given in
        samples at the nearest one: `boundaries` says where.
      ramp: How weights go from a stage's mixture to the next stage's: "step" changes them where
        the next stage begins, "linear" and "cosine" move all through the stage, in at most 64
        steps of whole chunks, each with the exact weights of the ramp at its beginning. A stage
        may name a ramp of its own.
      chunk_size: As in `StaticMixtureWorkSource`, and so are the arguments that follow.
      seed: Any int.
      shuffle_shards: Go through the shards in a random order.
      shuffle_within_shard: Go through each shard in a random order.
      shuffle_block_size: Shuffle blocks of so many samples.
      exhausted_policy: What happens when a dataset has been gone through. "stop" counts while the
        dataset has weight; "redistribute" ends the run where a stage has nobody left to draw from.
      reshuffle_on_repeat: Give each pass an order of its own.
      max_repeats: Caps "repeat".
      stop_after_passes: End the run at the first chunk boundary where every dataset that is drawn
        in this stage or a later one has been gone through so often.
      lane_assignment: How chunks are dealt to lanes: "permute" or "modulo".
      allocation: "incremental" or "fixed"; "virtual_time" carries nothing over and is refused.
      token_estimation: Refused for the same reason, with more than one stage or ramp.

    Raises:
      TypeError, ValueError: If a setting or a stage is not allowed, naming it.

    Example:
      >>> import zephon_jax as zx
      >>> web, code = zx.Dataset.from_counts("web", [600]), zx.Dataset.from_counts("code", [400])
      >>> source = zx.ScheduledMixtureWorkSource(
      ...     datasets=[web, code], chunk_size=100, stages=[
      ...         zx.Stage(until=2, mixture={"web": 1, "code": 0}),
      ...         zx.Stage(until=6, mixture={"web": 1, "code": 0}, ramp="linear"),
      ...         zx.Stage(mixture={"web": 1, "code": 1})])
      >>> source.boundaries
      (0, 2, 6)
      >>> zx.simulate(source, 8).draws[:, 1].tolist()
      [0, 0, 0, 12, 25, 38, 50, 50]
    """

    __module__ = "zephon_jax"

    def __init__(
        self,
        datasets: Sequence[MixtureDataset],
        stages: Sequence[Stage],
        ramp: Ramp = "step",
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
            stages=stages,
            ramp=ramp,
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

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The first chunk of each stage."""
        return self._settings.stage_starts
