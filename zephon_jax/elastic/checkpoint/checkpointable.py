"""What a checkpoint is taken of: an elastic iterator, or something that stands on one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from zephon_jax.elastic.checkpoint.folder import Checkpoint

__all__ = ["Checkpointable", "check_iterator"]


@runtime_checkable
class Checkpointable(Protocol):
    """Stands at a step of a run of lanes, some of which are this host's."""

    @property
    def restored_from(self) -> Checkpoint | None:
        """The abandoned checkpoint that it goes on from, which the next save takes up again."""
        ...

    @restored_from.setter
    def restored_from(self, checkpoint: Checkpoint | None) -> None: ...

    @property
    def num_lanes(self) -> int:
        """Lanes of the run."""
        ...

    @property
    def owned_lanes(self) -> tuple[int, ...]:
        """Lanes that this host runs."""
        ...

    @property
    def written_lanes(self) -> tuple[int, ...]:
        """Lanes that this host saves."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Where it stands, of the lanes that this host owns."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to a state; on an error nothing has changed."""
        ...

    def checked_state(self, state: Mapping[str, object]) -> dict[str, object]:
        """A state after all checks that need no pipeline."""
        ...


def check_iterator(iterator: object) -> Checkpointable:
    """Checks that something is the iterator of an elastic dataset, or stands on one.

    Raises:
      TypeError: If it is not.
    """
    if not isinstance(iterator, Checkpointable):
        raise TypeError(
            "checkpoints are of the iterator of an ElasticIterDataset, or of GlobalBatches; got"
            f" {type(iterator).__name__}."
        )
    return iterator
