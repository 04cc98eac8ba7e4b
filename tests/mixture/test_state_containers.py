"""States in the containers that people have: Orbax, flax, device memory, pickles, JSON trees."""

import pickle

import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import zephon_jax as zx


def datasets(number, num_bytes=None):
    return [zx.Dataset.from_counts(f"d{n}", [300, 200], num_bytes=num_bytes) for n in range(number)]


def sources():
    some, weights = datasets(3), {"d0": 5, "d1": 2, "d2": 1}
    plain = zx.StaticMixtureWorkSource(some, weights, 16)
    many = zx.StaticMixtureWorkSource(
        datasets(1_100), {f"d{n}": 1 + n % 7 for n in range(1_100)}, 2_000
    )
    tokens = zx.StaticMixtureWorkSource(
        datasets(2, [9_000, 7_000]), {"d0": 1, "d1": 1}, 16,
        token_estimation=zx.TokenEstimation.from_ratios({"d0": 0.25, "d1": 0.75}),
    )  # fmt: skip
    later = {"d0": 0, "d1": 3, "d2": 1}
    stages = [zx.Stage(until=2, mixture=weights), zx.Stage(until=None, mixture=later)]
    return {
        "plain": plain,
        "virtual time": plain.replace(allocation="virtual_time"),
        "a digest of many components": many,
        "tokens": tokens,
        "scheduled": zx.ScheduledMixtureWorkSource(some, stages, chunk_size=16),
        "combined": zx.concatenate([zx.take(plain, 2), zx.skip(tokens, 3)]),
    }


SOURCES = sources()


def through_orbax(save, restore):
    def trip(state, like, folder):
        with ocp.CheckpointManager(folder) as manager:
            manager.save(1, args=ocp.args.Composite(data=save(state)))
            manager.wait_until_finished()
            return manager.restore(1, args=ocp.args.Composite(data=restore(like)))["data"]

    return trip


def through_flax(state, like, folder):
    del folder
    return flax.serialization.from_bytes(like, flax.serialization.to_bytes(state))


CONTAINERS = {
    "Orbax StandardSave": through_orbax(ocp.args.StandardSave, ocp.args.StandardRestore),
    "Orbax PyTreeSave": through_orbax(ocp.args.PyTreeSave, ocp.args.PyTreeRestore),
    "flax.serialization": through_flax,
    "device memory": lambda state, like, folder: jax.device_put(state),
    "a tree of leaves": lambda state, like, folder: jax.tree.unflatten(
        jax.tree.structure(like), list(map(np.asarray, jax.tree.leaves(state)))
    ),
    "a pickle": lambda state, like, folder: pickle.loads(pickle.dumps(state)),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", SOURCES)
def test_states_go_through_containers(kind, container, tmp_path):
    source = SOURCES[kind]
    state = source.init(1, 2)
    for _ in range(2):
        _, state = source.next_chunk(state)
    back = CONTAINERS[container](state, source.init(1, 2), tmp_path.absolute())
    assert type(back) is type(state)
    assert zx.encode_state(back) == zx.encode_state(state)
    (chunk, _), (same, _) = source.next_chunk(state), source.next_chunk(back)
    assert chunk.chunk_index == same.chunk_index
    for mine, other in zip(chunk.order(), same.order(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("kind", SOURCES)
def test_no_leaf_of_a_state_is_empty(kind):
    """Checkpoint libraries refuse to save arrays without items."""
    for leaf in jax.tree.leaves(SOURCES[kind].init()):
        assert np.size(leaf) > 0


def test_fields_that_a_source_does_not_have_are_refused():
    plain = SOURCES["plain"]
    state = plain.init()
    with pytest.raises(ValueError, match="field 'ledger' must be None"):
        plain.next_chunk(state._replace(ledger=np.zeros(2, np.uint32)))
    with pytest.raises(ValueError, match="field 'carry' must hold integers"):
        plain.next_chunk(state._replace(carry=None))
