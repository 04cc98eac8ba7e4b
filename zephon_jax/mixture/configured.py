"""A mixture source made of arguments: what `StaticMixtureWorkSource` and schedules share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np

from zephon_jax.data.decoding_costs import warn_of_decoding
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.mixture.base import MixtureSource
from zephon_jax.mixture.changes import as_before, state_after_change
from zephon_jax.mixture.dataset_order import block_size
from zephon_jax.mixture.fingerprint import differences, fingerprint
from zephon_jax.mixture.history import Change
from zephon_jax.mixture.lane_states import field_words, ratios_of_fields
from zephon_jax.mixture.run import MixtureRun, placed_in_tokens
from zephon_jax.mixture.settings import (
    MixtureArguments,
    check_datasets,
    make_settings,
)
from zephon_jax.sources.checks import ShardedDataset
from zephon_jax.sources.codec import Plain, decode, encode_state, open_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zephon_jax.data.dataset import Dataset

__all__ = ["ConfiguredMixture"]

# Attributes that follow from the arguments.
_BUILT = (
    "_datasets", "_arguments", "_settings", "_counts", "_by_id", "_ids", "_run", "_earlier",
    "_shown", "unit", "_placed",
)  # fmt: skip


_Mixture = TypeVar("_Mixture", bound="ConfiguredMixture")


class _EarlierForms(Sequence[_Mixture]):
    """A source before each of its changes: there may be thousands, of which one is asked for."""

    def __init__(self, source: _Mixture):
        self._source = source
        self._made: dict[int, _Mixture] = {}

    def __len__(self) -> int:
        return len(self._source.changes)

    @overload
    def __getitem__(self, index: int) -> _Mixture: ...

    @overload
    def __getitem__(self, index: slice) -> list[_Mixture]: ...

    def __getitem__(self, index: int | slice) -> _Mixture | list[_Mixture]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number not in self._made:
            self._made[number] = self._source._before_change(number)
        return self._made[number]


class ConfiguredMixture(MixtureSource):
    """A mixture that keeps its arguments, for pickles and for sources that differ in some."""

    _earlier: _EarlierForms[Self] | None

    def _build(
        self,
        datasets: tuple[ShardedDataset, ...],
        arguments: MixtureArguments,
        placed: tuple[int, ...] | None = None,
    ) -> None:
        """Makes everything that follows from the arguments.

        Args:
          datasets: The datasets.
          arguments: The arguments.
          placed: The chunks of stages that end after tokens, where somebody has looked for them.
        """
        self._datasets, self._arguments = datasets, arguments
        names = [dataset.name for dataset in datasets]
        self._counts = [np.asarray(d.shard_counts, dtype=np.int64) for d in datasets]
        self._settings, self._placed = make_settings(names, arguments, placed), placed
        if self._settings.token_points and not self.requires_token_priming:
            estimation = arguments.token_estimation
            assert estimation is not None
            self._placed = placed_in_tokens(datasets, self._settings, self._counts, estimation)
            self._settings = make_settings(names, arguments, self._placed)
        self._by_id = MappingProxyType(dict(enumerate(datasets)))
        self._ids = MappingProxyType({name: d for d, name in enumerate(names)})
        self.unit = "samples" if self.token_estimation is None else "tokens"
        self._earlier, self._shown = None, ""
        self._run = None  # not before all that decides the order is known
        if not self.requires_token_priming:
            self._run = MixtureRun(datasets, self._settings, self._counts, self.token_estimation)

    def _decoded(self) -> tuple[Sequence[object], Sequence[bool], list[int | str], int]:
        """What says whether reading this order decodes records more than once."""
        settings = self._settings
        pairs = zip(settings.shuffle_block_size, self._counts, strict=True)
        blocks = ["global" if one == "global" else block_size(one, c) for one, c in pairs]
        return self._datasets, settings.shuffle_within_shard, blocks, settings.chunk_size

    @property
    def arguments(self) -> MixtureArguments:
        """The arguments as they were given."""
        return self._arguments

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that were made while the run went on, in integers: see `with_mixture`."""
        return tuple(self._arguments.changes)

    def earlier_forms(self) -> Sequence[Self]:
        """This source as it was before each of its changes, in their order, made when asked for."""
        if self._earlier is None:
            self._earlier = _EarlierForms(self)
        return self._earlier

    def _before_change(self, number: int) -> Self:
        """This source as it was before one of its changes."""
        form = type(self).__new__(type(self))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, where the source was first made
            form._build(*as_before(self._datasets, self._arguments, number))
        return form

    def _form_of(self, fields: list[Plain]) -> tuple[Self, Change] | None:
        """What this source was when an encoded state was made, and the first change since.

        None where the state is of the source as it is now, or of none of its forms.
        """
        if not self._arguments.changes:
            return None
        config = field_words(fields, "config")
        if not config.size or not differences(self.run.config, config):
            return None
        for number in reversed(range(len(self._arguments.changes))):  # most often the last one
            form = self.earlier_forms()[number]
            if not differences(form.run.config, config):
                return form, self._arguments.changes[number]
        return None

    def _bring_up_to_date(self, fields: list[Plain]) -> None:
        found = self._form_of(fields)
        if found is not None:
            state = state_after_change(self, fields, found[1])
            fields[:] = open_fields(encode_state(state))[1]

    def check_slot(self, data: bytes, slot: int) -> None:
        """Refuses a state from before a change whose lane has read a part of a changed chunk."""
        found = self._form_of(open_fields(data)[1]) if slot else None
        if found is None:
            return
        form, change = found
        chunk, _ = form.next_chunk(decode(form, data))
        if chunk is not None and (chunk.chunk_index or 0) >= change.first_chunk:
            raise ValueError(
                f"the lane has read {slot} samples of chunk {chunk.chunk_index} by the weights"
                f" before chunk {change.first_chunk}, where the mixture was changed. Make the"
                " change at a later chunk."
            )

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
        settings = dict(self._arguments.items())
        placed = {} if self._placed is None else {"placed": self._placed}
        return {"datasets": self._datasets, "settings": settings, "own": own, **placed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once, where the source was first made
            arguments = MixtureArguments(**state["settings"])
            self._build(state["datasets"], arguments, state.get("placed"))
        vars(self).update(state["own"])

    def __repr__(self) -> str:
        if not self._shown:  # Grain asks each time that it opens a lane
            settings, stages = self._settings, len(self._settings.stage_starts)
            pairs = zip(settings.names[:8], settings.fractions, strict=False)
            shares = {name: round(float(share), 6) for name, share in pairs}
            more = "" if len(settings.names) <= 8 else f" and {len(settings.names) - 8} more"
            first = "" if stages == 1 else f"{stages} stages from "
            self._shown = (
                f"{type(self).__name__}({first}{shares}{more}, chunk_size={settings.chunk_size},"
                f" seed={settings.seed})"
            )
        return self._shown

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

    def primed_for(self, fields: list[Plain]) -> Self:
        """Returns a source with the ratios that a state was saved with.

        Raises:
          ValueError: If the state holds none for these datasets, or belongs to a source with other
            settings, naming them.
        """
        estimation = self.token_estimation
        assert estimation is not None
        mine = fingerprint(self._settings, self._counts, [], self._datasets)
        # Which chunks its stages end at follows from the tokens.
        free = ("changes of the weights", "number of changes of the weights")
        free = free if self._settings.token_points else ()
        ratios = ratios_of_fields(fields, mine, len(self._settings.names), free)
        measured = estimation.with_ratios(dict(zip(self._settings.names, ratios, strict=True)))
        return self.replace(token_estimation=measured)

    def with_chunk_size(self, chunk_size: int) -> Self | None:
        """The same mixture in chunks of another size; None where weights change at some chunks."""
        if len(self._settings.history) > 1:
            return None
        return self.replace(chunk_size=chunk_size)

    def replace(self, **settings: Any) -> Self:
        """A source with some arguments changed, named as in this class's constructor.

        One of a subclass stays one and keeps what the subclass has added; its own constructor is
        not called.

        Example:
          >>> import zephon_jax as zx
          >>> source = zx.StaticMixtureWorkSource([zx.Dataset.from_counts("a", [90])], {"a": 1}, 90)
          >>> source.replace(chunk_size=30).chunk_size_hint()
          30
        """
        made = type(self).__new__(type(self))
        vars(made).update(self.__getstate__()["own"])
        arguments = {"datasets": self._datasets, **dict(self._arguments.items()), **settings}
        datasets = check_datasets(arguments.pop("datasets"))
        made._build(datasets, MixtureArguments(**arguments))
        warn_of_decoding(*made._decoded())
        return made
