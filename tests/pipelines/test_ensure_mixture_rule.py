"""`zx.ensure_mixture` against its rule told again, and resumed anywhere."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mixed_records import NAMES, Records, all_parts

from zephon_jax import ensure_mixture


class Endless(Exception):
    """A wait that drops too many records."""


class Expected:
    """The rule told again, with fractions and plain lists."""

    def __init__(self, weights, size, replay):
        self.weights, self.size, self.replay = weights, size, replay
        self.active = {d for d, weight in enumerate(weights) if weight}
        self.given_out = dict.fromkeys(range(3), 0)

    def furthest(self, those):
        """Who of some components is furthest behind its share of what these were given."""

        def behind(d):
            total = sum(self.given_out[other] for other in those)
            share = Fraction(self.weights[d], sum(self.weights[other] for other in those))
            return share * max(1, total) - self.given_out[d], -d

        return max(those, key=behind, default=None)

    def waits_for(self, parts):
        """The component that a row has most of for its target; of equals the one named first."""
        wanted = {d: weight for d, weight in parts.items() if weight and self.weights[d]}
        return max(wanted, key=lambda d: Fraction(wanted[d], self.weights[d]), default=None)

    def find(self, held, best):
        """Place in the buffer of the oldest that waits for a component."""
        return next((n for n, parts in enumerate(held) if self.waits_for(parts) == best), None)

    def order(self, records):
        held, out, place, used_up, ended, in_vain = [], [], 0, set(), False, 0

        def give_out(n):
            record = records[held.pop(n)]
            for d, weight in record["parts"].items():
                self.given_out[d] += weight
            out.append(record["n"])
            return 0

        def drop(n):
            if in_vain >= 16 * self.replay:
                raise Endless
            held.pop(n)
            return in_vain + 1

        while True:
            parts = [records[h]["parts"] for h in held]
            nobodys = self.find(parts, None)
            if nobodys is not None:
                pass_on = self.size is not None or not any(parts[nobodys].values())
                in_vain = give_out(nobodys) if pass_on else drop(nobodys)
                continue
            present = {self.waits_for(p) for p in parts}
            best = self.furthest(self.active)
            ends = ended and self.size is not None
            if best is not None and best not in present and (ends or best in used_up):
                self.active -= {d for d in self.active - present if ends or d in used_up}
                best = self.furthest(self.active)
            window = place - held[0] if held else 0
            full = held and (window >= self.replay or len(held) >= (self.size or len(records) + 1))
            if best is not None and best in present:
                in_vain = give_out(self.find(parts, best))
            elif not (ended or full):
                if place == len(records):
                    ended = True  # known only when one more is wanted
                    continue
                record = records[place]
                used_up |= set(record.get("exhausted", ()))
                self.active |= {self.waits_for(record["parts"])} - {None}
                held.append(place)
                place += 1
            elif not held or (ended and self.size is None):
                return out
            elif self.size is None:
                in_vain = drop(0)
            elif window >= self.replay:
                in_vain = give_out(0)
            else:
                in_vain = give_out(self.find(parts, self.furthest(present & self.active)))


@given(
    parts=st.lists(
        st.dictionaries(st.integers(0, 2), st.integers(0, 5), max_size=2)
        | st.builds(lambda d, n: {d: n}, st.integers(0, 2), st.integers(1, 5)),
        max_size=60,
    ),
    weights=st.tuples(*[st.integers(0, 3)] * 3).filter(any),
    size=st.none() | st.integers(1, 8),
    replay=st.sampled_from([1, 2, 3, 7, 12]),
    stamped=st.sampled_from(["never", "right", "too early"]),
    data=st.data(),
)
@settings(max_examples=1000)
def test_order_is_the_rule_and_resumes_anywhere(parts, weights, size, replay, stamped, data):
    """Records of one component and rows of several, of no weight, and of components stamped off."""
    replay = max(replay, 2) if size is None else replay
    records = []
    for n, own in enumerate(parts):
        later = {other for row in parts[n + 7 * (stamped == "too early") :] for other in row}
        stamp = {} if stamped == "never" else {"exhausted": sorted({0, 1, 2} - later)}
        records.append({"parts": own, "n": n, **stamp})
    mixed = ensure_mixture(
        Records(records), dict(zip(NAMES, weights, strict=True)), component_ids=NAMES,
        weigh=all_parts, max_buffer_size=size, max_replay=replay, warn_tolerance=10,
    )  # fmt: skip
    try:
        expected = Expected(weights, size, replay).order(records)
    except Endless:
        with pytest.raises(ValueError, match="records in a row were dropped to wait for"):
            list(mixed)
        return
    assert [record["n"] for record in mixed] == expected
    if size is not None:
        assert sorted(expected) == list(range(len(records)))
    step = data.draw(st.integers(0, len(expected)))
    iterator, again = iter(mixed), iter(mixed)
    for _ in range(step):
        next(iterator)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert [record["n"] for record in again] == expected[step:]
