"""A mixture whose weights change while the run goes on: a curriculum, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zephon_jax._text import short
from zephon_jax.data.decoding_costs import warn_of_decoding
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.kernels.weights import common_units
from zephon_jax.mixture.changes import (
    boundary_of,
    check_settings,
    checked_changes,
    with_datasets,
)
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.mixture.history import Change
from zephon_jax.mixture.schedule import Ramp, Stage
from zephon_jax.mixture.settings import (
    AllocationName,
    Assignment,
    BlockSize,
    MixtureArguments,
    Policy,
    Weight,
    check_datasets,
    weights_of,
)
from zephon_jax.mixture.state import MixtureState
from zephon_jax.sources.checks import ShardedDataset

__all__ = ["ScheduledMixtureWorkSource", "changed", "replayed"]


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
        samples or tokens at the nearest one: `boundaries` says where.
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
      allocation: "incremental", "fixed" or "virtual_time".
      token_estimation: Makes the weights of all stages shares of tokens. What a component has
        beyond its share of the tokens, or less, goes on where weights change.
      changes: What was changed while the run went on: `changes` of the source that had it. The
        datasets are then those after all changes, and stages name those that were there before.

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
        datasets: Sequence[ShardedDataset],
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
        changes: Sequence[Change] = (),
    ):
        datasets = check_datasets(datasets)
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
            changes=checked_changes(changes, datasets),
        )
        self._build(datasets, arguments)
        warn_of_decoding(*self._decoded())

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The first chunk of each stage.

        Raises:
          RuntimeError: If stages end after tokens and the source has not been primed.
        """
        if self._settings.token_points:
            _ = self.run
        return self._settings.stage_starts

    def with_mixture(
        self,
        mixture: Mapping[str, Weight],
        at: int | MixtureState | Sequence[MixtureState],
        *,
        datasets: Sequence[ShardedDataset] = (),
        **settings: object,
    ) -> ScheduledMixtureWorkSource:
        """A source that equals this one before a chunk, and goes on from there by other weights.

        What was planned from that chunk on is dropped. The change becomes part of the source's
        history: states, seeks and audits from before and after it belong to the new source, and
        states that this source saved go on with it, as long as their lanes have not read past it.

        Args:
          mixture: Weight of each dataset that there is from then on; 0 stops drawing from one.
          at: The chunk: on many lanes one that no lane has passed. Or states of the lanes: see
            `boundary_of` for where that is.
          datasets: Datasets that are new, which come after the others, or that have more shards
            than before, after those that they had. The pass that a dataset is in goes on with its
            new shards when it has come through the old ones; later passes hold both.
          **settings: Shuffle and policy settings that are mappings by dataset, with the new ones
            added.

        Raises:
          TypeError, ValueError: If the run cannot go on so, saying why.

        Example:
          >>> import zephon_jax as zx
          >>> web, code = (zx.Dataset.from_counts(name, [900]) for name in ("web", "code"))
          >>> source = zx.StaticMixtureWorkSource([web], {"web": 1}, chunk_size=10)
          >>> saved = zx.encode_state(source.seek(40))
          >>> changed = source.with_mixture({"web": 1, "code": 1}, at=40, datasets=[code])
          >>> chunk, _ = changed.next_chunk(zx.decode_state(changed, saved))
          >>> {name: len(ids) for name, ids in chunk.components.items()}
          {'web': 5, 'code': 5}
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

        The script that starts a run again makes its source as it was planned, and gives it the
        changes that the last checkpoint holds. From the same datasets it is the source of the run,
        bit for bit; a state of another history is refused.

        Args:
          changes: `changes` of the source that the run had, or of a state that it saved:
            `zx.read_checkpoint(directory).get("changes", [])`.
          datasets: As they are after all changes: those that are new, and those with more shards.
          **settings: As in `with_mixture`.

        Raises:
          TypeError, ValueError: If they are not changes of this source, naming the first.

        Example:
          >>> import zephon_jax as zx
          >>> web, code = (zx.Dataset.from_counts(name, [900]) for name in ("web", "code"))
          >>> source = zx.StaticMixtureWorkSource([web], {"web": 1}, chunk_size=10)
          >>> changed = source.with_mixture({"web": 1, "code": 1}, at=40, datasets=[code])
          >>> again = source.with_changes(changed.changes, datasets=[code])
          >>> zx.encode_state(again.seek(50)) == zx.encode_state(changed.seek(50))
          True
        """
        return replayed(self, changes, datasets, settings)


def changed(
    source: ConfiguredMixture,
    mixture: Mapping[str, Weight],
    at: int | MixtureState | Sequence[MixtureState],
    datasets: Sequence[ShardedDataset],
    settings: Mapping[str, object],
) -> ScheduledMixtureWorkSource:
    """`ScheduledMixtureWorkSource.with_mixture` of any mixture."""
    first = boundary_of(at)
    if source.changes and first <= source.changes[-1].first_chunk:
        raise ValueError(
            f"the mixture was changed at chunk {source.changes[-1].first_chunk}, and the next"
            f" change must come later; got at = {first}. Make another change from the source"
            " before that one."
        )
    position = source.eras.seek(first)
    if position.chunk_index < first:
        raise ValueError(
            f"the run ends at chunk {position.chunk_index} and cannot be changed at {first}."
        )
    before = tuple(source.datasets_by_id.values())
    after = with_datasets(before, check_datasets(datasets) if datasets else ())
    change = Change(
        first_chunk=first,
        units=tuple(common_units(weights_of(mixture, [dataset.name for dataset in after]))),
        num_shards=tuple(len(dataset.shard_counts) for dataset in before),
        drawn=tuple(position.drawn.tolist()),
    )
    return _with_changes(source, after, (*source.changes, change), settings)


def replayed(
    source: ConfiguredMixture,
    changes: Sequence[Sequence[object]],
    datasets: Sequence[ShardedDataset],
    settings: Mapping[str, object],
) -> ScheduledMixtureWorkSource:
    """`ScheduledMixtureWorkSource.with_changes` of any mixture."""
    before = tuple(source.datasets_by_id.values())
    after = with_datasets(before, check_datasets(datasets) if datasets else ())
    kept = checked_changes(changes, after)
    for number, (mine, other) in enumerate(zip(source.changes, kept, strict=False)):
        if mine != other:
            raise ValueError(
                f"changes[{number}] is {short(other)}, and the source has {short(mine)}: give the"
                " changes of this run, from the first on."
            )
    if len(kept) < len(source.changes):
        raise ValueError(
            f"changes has {len(kept)} entries, and the source was changed {len(source.changes)}"
            " times: a run does not take changes back."
        )
    return _with_changes(source, after, kept, settings)


def _with_changes(
    source: ConfiguredMixture,
    datasets: Sequence[ShardedDataset],
    changes: tuple[Change, ...],
    settings: Mapping[str, object],
) -> ScheduledMixtureWorkSource:
    """A source with other changes and the datasets that there are after them."""
    arguments = {"ramp": "step", **dict(source.arguments.items()), **settings}
    own = arguments.pop("mixture", None)
    if "stages" not in arguments:
        arguments["stages"] = [Stage(mixture=own)]
    arguments["changes"] = changes
    made = ScheduledMixtureWorkSource(datasets, **arguments)
    check_settings(source.settings, made.settings)
    return made
