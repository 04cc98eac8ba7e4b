"""Encoded states: small, the same everywhere, and refused when a single byte is wrong."""

from __future__ import annotations

import json
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.encoded import wrapped
from support.helpers import chunks_of, mixture, state_after

import zephon_jax as zx


def eight(**settings):
    """Eight components with weights that have no short period."""
    weights = [0.31, 0.2203, 0.17, 0.113, 0.0807, 0.05, 0.03, 0.026]
    settings = {"exhausted_policy": "repeat", "shuffle_block_size": "auto", **settings}
    return mixture([[10**6] * 3] * 8, weights, **settings)


@pytest.mark.parametrize("chunk_size", [1, 1000, 16384, 2**20])
def test_state_is_small_at_any_point(chunk_size):
    source = eight(chunk_size=chunk_size)
    sizes = [
        len(zx.encode_state(source.seek(g, lane, num_lanes)))
        for g in (0, 1, 1000, 10**6, 10**9)
        for lane, num_lanes in ((0, 1), (511, 512))
    ]
    assert max(sizes) <= 300
    assert max(sizes) - min(sizes) <= 16


def test_states_list_their_counts_as_long_as_that_is_small():
    rng = np.random.default_rng(0)
    for num, most in ((8, 300), (300, 4000), (1024, 13_000), (1025, 300)):
        weights = (rng.random(num) + 0.01).tolist()
        source = mixture([10**6] * num, weights, chunk_size=64, exhausted_policy="repeat")
        assert len(zx.encode_state(source.init(3, 8))) <= most


def test_many_components_have_small_states():
    source = mixture([100] * 1100, chunk_size=64, exhausted_policy="repeat")
    for g in (0, 1, 12345):
        data = zx.encode_state(source.seek(g))
        assert len(data) <= 512
        state = zx.decode_state(source, data)
        (chunk,) = chunks_of(source, state=state, limit=1)
        assert chunk.chunk_index == g
    moved = source.seek(5)._replace(chunk=source.seek(6).chunk)
    with pytest.raises(ValueError, match="digest"):
        source.next_chunk(moved)


def small_source():
    return mixture([[40, 3], 90], [1, 2], chunk_size=16, exhausted_policy="redistribute")


SOURCE = small_source()
DATA = zx.encode_state(state_after(SOURCE, 4))


def decodes_or_refuses(data):
    """A changed state decodes to an equal one or raises ValueError, nothing else."""
    try:
        state = zx.decode_state(SOURCE, data)
    except ValueError:
        return
    assert zx.encode_state(state) == DATA


def test_every_cut_and_every_flip():
    for length in range(len(DATA)):
        with pytest.raises(ValueError, match="state"):
            zx.decode_state(SOURCE, DATA[:length])
    for place in range(len(DATA)):
        for flip in range(1, 256):
            changed = bytearray(DATA)
            changed[place] ^= flip
            decodes_or_refuses(bytes(changed))
    for tail in (b"\x00", b"\xc0", DATA):
        with pytest.raises(ValueError, match="state"):
            zx.decode_state(SOURCE, DATA + tail)


@given(st.binary(max_size=400))
def test_foreign_bytes(data):
    with pytest.raises(ValueError, match="state"):
        zx.decode_state(SOURCE, data)


FIELDS = msgpack.unpackb(msgpack.unpackb(DATA)[2])[1]


def with_field(name, value):
    place = zx.MixtureState._fields.index(name)
    return ["MixtureState", [*FIELDS[:place], value, *FIELDS[place + 1 :]]]


def words(*values):
    return np.asarray(values, dtype="<u4").tobytes()


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        ["MixtureState", []],
        ["Other", FIELDS],
        [1, FIELDS],
        ["MixtureState", [*FIELDS, b""]],
        with_field("lane", 1),
        with_field("lane", "lane"),
        with_field("lane", b"\x00" * 5),
        with_field("lane", words(1)),  # lane 1 of 1
        with_field("lane", words(2**32 - 1)),  # lane -1
        with_field("num_lanes", words(0)),  # of no lanes
        with_field("lag", words(2)),
        with_field("chunk", words(0, 2**31)),  # a negative chunk
        with_field("chunk", words(5, 0)),  # a chunk that the carry does not belong to
        with_field("origin", words(99, 0)),  # lanes cut after the chunk
        with_field("era", words(3, 0)),  # an era that began elsewhere
        with_field("carry", words(7, 0)),
        with_field("drawn", words(0, 0, 0, 0)),
        with_field("drawn", words(2**32 - 1, 2**32 - 1, 0, 0)),
        with_field("ledger", words(1, 1)),
        with_field("config", FIELDS[-1][:-4]),
        with_field("config", FIELDS[-1][12:] + FIELDS[-1][:12]),  # another order of its rows
        with_field("config", [[]] * 50),
    ],
)
def test_records_that_cannot_be(body):
    with pytest.raises(ValueError, match=r"state|lane"):
        zx.decode_state(SOURCE, wrapped(body))


def test_a_carry_that_no_number_of_chunks_leaves_is_refused():
    """Less by one unit, so that the samples drawn before the era come out the same."""
    source = mixture([9000] * 3, [3, 2, 1.37], chunk_size=40, exhausted_policy="repeat")
    state = source.seek(7)
    for component in range(3):
        carry = state.carry.copy()
        carry[component] -= 1
        changed = zx.encode_state(state._replace(carry=carry))
        with pytest.raises(ValueError, match="carry and counts do not belong to its chunk 7"):
            zx.decode_state(source, changed)


def with_row(code, digest=5):
    """The state's fields with one more setting, as a later version of the package may write it."""
    row = np.frombuffer(code.ljust(8, b"\0"), dtype="<u4").tolist()
    rows = np.frombuffer(FIELDS[-1], dtype="<u4").reshape(-1, 3).tolist()
    rows = sorted([*rows, [*row, digest]], key=lambda row: words(*row[:2]))
    return with_field("config", words(*np.ravel(rows)))


def test_settings_of_later_versions_are_named():
    with pytest.raises(ValueError, match=r"other 'schedule' \(which this version .* not know\)"):
        zx.decode_state(SOURCE, wrapped(with_row(b"schedule")))
    with pytest.raises(ValueError, match=r"other shuffle_within_shard\."):
        zx.decode_state(SOURCE, wrapped(with_row(b"within")))


def test_settings_with_their_default_leave_no_trace():
    """So one that is added later leaves older states valid."""
    plain = mixture([50, 90], chunk_size=16)
    given = mixture(
        [50, 90], chunk_size=16, shuffle_within_shard=False, lane_assignment="permute",
        stop_after_passes=1, exhausted_policy="repeat", allocation="incremental",
    )  # fmt: skip
    state = zx.decode_state(given, zx.encode_state(plain.seek(3)))
    assert {bytes(row[:2]).rstrip(b"\0") for row in state.config} == {
        b"bytes", b"chunk", b"counts", b"names", b"order", b"seed", b"weights"
    }  # fmt: skip
    for settings in ({"seed": 5}, {"lane_assignment": "modulo"}, {"stop_after_passes": 2}):
        (name,) = settings
        other = mixture([50, 90], chunk_size=16, **settings)
        for one, two in ((plain, other), (other, plain)):
            with pytest.raises(ValueError, match=rf"other {name}\. Restore"):
                zx.decode_state(one, zx.encode_state(two.init()))


class Sized:
    """A dataset that knows the bytes of its shards, or not."""

    name = "d0"
    shard_counts = np.asarray([50, 90])

    def __init__(self, sizes):
        self.shard_bytes = None if sizes is None else np.asarray(sizes)


def test_bytes_of_shards_are_compared_where_both_are_known():
    sources = [
        zx.StaticMixtureWorkSource([Sized(sizes)], {"d0": 1}, chunk_size=16)
        for sizes in (None, [700, 900], [700, 901])
    ]
    saved = [zx.encode_state(source.seek(2)) for source in sources]
    for here, source in enumerate(sources):
        for there, data in enumerate(saved):
            if here == there or 0 in (here, there):
                assert source.next_chunk(zx.decode_state(source, data))[0].chunk_index == 2
            else:
                with pytest.raises(ValueError, match=r"other shard bytes\."):
                    zx.decode_state(source, data)


def test_nested_and_long_records_end_quickly():
    deep = b"\x91" * 100_000
    for data in (deep, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(ValueError, match="state"):
            zx.decode_state(SOURCE, data)


def test_wrong_types_and_versions():
    for wrong in (None, 5, "text", [1], {}):
        with pytest.raises(TypeError, match="bytes"):
            zx.decode_state(SOURCE, wrong)
    version, checksum, body = msgpack.unpackb(DATA)
    with pytest.raises(ValueError, match="version 2"):
        zx.decode_state(SOURCE, msgpack.packb([version + 1, checksum, body]))
    for wrong in (5, None, {"lane": 0}):
        with pytest.raises(TypeError, match="NamedTuple"):
            zx.encode_state(wrong)


def test_states_of_other_sources_are_refused():
    class OtherState(NamedTuple):
        lane: int
        num_lanes: int

    with pytest.raises(ValueError, match="OtherState"):
        zx.decode_state(SOURCE, zx.encode_state(OtherState(0, 1)))
    three = mixture([40, 90, 1], chunk_size=16)
    with pytest.raises(ValueError, match="other dataset names"):
        zx.decode_state(SOURCE, zx.encode_state(three.init()))


class RichState(NamedTuple):
    lane: int
    num_lanes: int
    name: str
    flags: tuple
    table: dict
    counts: np.ndarray


def test_custom_states_of_any_shape():
    state = RichState(0, 1, "ü", (True, None, [1, -5]), {"b": 2, "a": b"x"}, np.arange(3))

    class Rich(zx.WorkSource):
        def init(self, lane=0, num_lanes=1):
            return state

        def next_chunk(self, state):
            return None, state

        def component_ids(self):
            return {"only": 0}

    back = zx.decode_state(Rich(), zx.encode_state(state))
    assert back[:5] == state[:5]
    assert np.array_equal(back.counts, state.counts)
    for bad, error in (
        (state._replace(lane=2**63), ValueError),
        (state._replace(name=0.5), TypeError),
        (state._replace(counts=np.zeros(3)), TypeError),
        (state._replace(flags=(object(),)), TypeError),
    ):
        with pytest.raises(error, match="state field"):
            zx.encode_state(bad)
    with pytest.raises(ValueError, match="flags"):
        zx.decode_state(Rich(), zx.encode_state(state._replace(flags=(1, None, [1, 2]))))
    with pytest.raises(ValueError, match="keys"):
        zx.decode_state(Rich(), zx.encode_state(state._replace(table={"b": 2, "c": b"x"})))


def test_shell_state_is_plain_json():
    shell = eight().clone_for_lane(3, 4)
    saved = json.loads(json.dumps(shell.state_dict()))
    expected = shell.next_chunk()
    fresh = eight().clone_for_lane(3, 4)
    fresh.load_state_dict(saved)
    assert list(fresh.next_chunk())[:100] == list(expected)[:100]


def test_restore_does_not_walk(monkeypatch):
    """A restore costs the same at chunk 10 and at chunk 10 million: nothing is walked through."""
    from zephon_jax.kernels import quota, quota_coalescence
    from zephon_jax.kernels import quota_fast_forward as rare

    # A component below one sample a chunk, and no short period: nothing has a closed form.
    weights = [0.52203, 0.4779699, 0.0000001]
    walked = {"chunks": 0}
    step, forward = quota.step, rare.forward

    def counted_step(shares, carry):
        walked["chunks"] += 1
        return step(shares, carry)

    def counted_forward(shares, carry, start, stop):
        walked["chunks"] += stop - start
        return forward(shares, carry, start, stop)

    def make():
        return mixture([10**9] * 3, weights, chunk_size=1000, exhausted_policy="repeat")

    source = make()
    assert not source.eras.steps.start().era.allocation.closed
    saved = [zx.encode_state(source.seek(g)) for g in (10, 103_457)]
    monkeypatch.setattr(quota, "step", counted_step)
    monkeypatch.setattr(rare, "forward", counted_forward)
    costs = []
    for data in saved:
        fresh = make()
        walked["chunks"] = 0
        chunk, _ = fresh.next_chunk(zx.decode_state(fresh, data))
        assert chunk is not None
        costs.append(walked["chunks"])
    assert 1 <= costs[0] == costs[1] <= 3
    walked["chunks"] = 0
    monkeypatch.setattr(quota_coalescence, "coalesced", lambda *_: None)
    make().seek(103_457)
    assert walked["chunks"] > 3  # the count counts


def test_state_says_where_it_is():
    state = eight().seek(10**6, 3, 8)
    assert state.chunk_index >= 10**6
    assert state.samples_drawn.sum() == state.chunk_index * 16384
    assert mixture([100] * 1100, chunk_size=1200).init().samples_drawn.shape == (0,)
