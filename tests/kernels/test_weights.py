"""Weights: the decimal that was typed, exactly, and errors that name the culprit."""

import decimal
import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import oracles

import zephon_jax as zx
from zephon_jax.kernels import quota, weights

NAN, INF = float("nan"), float("inf")


def quietly(values):
    """Integer weights of plain numbers, without the warning about rounding."""
    exact = [weights.exact_weight(value, "weight") for value in values]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return weights.integer_weights(exact)


def source(mixture, names=("web", "toy"), **settings):
    datasets = [zx.Dataset.from_counts(name, [100]) for name in names]
    return zx.StaticMixtureWorkSource(datasets=datasets, mixture=mixture, chunk_size=10, **settings)


# Exact values


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.1, Fraction(1, 10)),
        (0.30000000000000004, Fraction(30000000000000004, 10**17)),
        (1e-9, Fraction(1, 10**9)),
        (1e9, Fraction(10**9)),
        (5e-324, Fraction(5, 10**324)),
        (1.7976931348623157e308, Fraction(17976931348623157 * 10**292)),
        (0.0, Fraction(0)),
        (-0.0, Fraction(0)),
        (3, Fraction(3)),
        (10**40, Fraction(10**40)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.1"), Fraction(1, 10)),
        (Decimal("1E-30"), Fraction(1, 10**30)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.int32(7), Fraction(7)),
        (np.uint64(2**64 - 1), Fraction(2**64 - 1)),
    ],
)
def test_a_number_is_what_was_typed(value, exact):
    assert weights.exact_weight(value, "weight") == exact


@settings(max_examples=300)
@given(st.floats(min_value=0, allow_infinity=False, allow_nan=False))
def test_a_float_is_its_shortest_decimal(value):
    with decimal.localcontext(decimal.Context(prec=400)):
        assert weights.exact_weight(value, "weight") == Fraction(Decimal(repr(value)))


def test_decimals_share_one_denominator():
    assert quietly([0.1, 0.2, 0.7]) == ([1, 2, 7], 10)
    assert quietly([0.7, 0.2999, 0.0001]) == ([7000, 2999, 1], 10_000)
    assert quietly([Fraction(1, 2), Fraction(1, 3)]) == ([3, 2], 5)
    assert quietly([6, 4, 0]) == ([3, 2, 0], 5)


def test_only_ratios_matter():
    same = [
        [0.1, 0.3],
        [1, 3],
        [Decimal("0.25"), Decimal("0.75")],
        [Fraction(1, 7), Fraction(3, 7)],
        [10**30, 3 * 10**30],
        [1e-300, 3e-300],
    ]
    assert {repr(quietly(values)) for values in same} == {"([1, 3], 4)"}


def test_a_mixture_is_exact_and_keeps_its_order():
    spec = zx.MixtureSpec({"web": 0.1, "code": 0.2, "off": 0})
    assert list(spec.fractions()) == ["web", "code", "off"]
    assert spec.fractions() == {"web": Fraction(1, 3), "code": Fraction(2, 3), "off": 0}


def test_a_mapping_and_a_sequence_mean_the_same():
    plain = quota.shares([0.7, 0.3], 64)
    for other in ({"web": 0.7, "toy": 0.3}, zx.MixtureSpec({"web": 0.7, "toy": 0.3})):
        again = quota.shares(other, 64)
        assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))


# Rounding to 2^29 units

ANY_WEIGHTS = {
    "kind": st.sampled_from(oracles.KINDS),
    "k": st.one_of(st.integers(1, 12), st.integers(1, 300)),
    "seed": st.integers(0, 10**6),
    "zeros": st.booleans(),
}


@settings(max_examples=600)
@given(**ANY_WEIGHTS)
def test_integer_weights_equal_the_oracle(kind, k, seed, zeros):
    drawn = oracles.draw_weights(kind, k, seed, zeros)
    numerators, denominator = quietly(drawn)
    assert (numerators, denominator) == oracles.units(drawn)
    assert sum(numerators) == denominator <= 2**29
    assert all((n > 0) == (w > 0) for n, w in zip(numerators, drawn, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        # At the limit: exact at 2^29, rounded at 2^29 + 1.
        [1, 2**29 - 1],
        [1, 2**29],
        # Units that come from nothing are taken from the largest, one at a time.
        [1e-9] * 299 + [1e9],
        [1e-12] * 100 + [1e9, 1e9],
        [1e-12] * 101 + [1e9, 1e9],
        [1e9, 1e-12, 1e9, 1e-12, 1e9, 1e-12],
        [1e9 + 1, 1e-12, 1e9, 1e-12, 1e9 + 2],
        # Ties of remainders go to the earlier.
        [Fraction(1, 2**30)] * 3 + [Fraction(2**30 - 3, 2**30)],
        [1] * 7 + [2**31],
        # Three equal thirds of a number that three does not divide, and an awkward fourth.
        [1.0000000001, 1.0000000001, 1.0000000001, 1e-10],
    ],
)
def test_rounding_equals_the_oracle(values):
    assert quietly(values) == oracles.units(values)


def test_rounding_by_hand():
    """Largest remainder first, then zeros raised to one, then one at a time from the largest."""
    unit = 2**29
    numerators, denominator = quietly([1, 2**31, 1])
    assert denominator == unit
    # 2^31 + 2 parts on 2^29 units: the ones have a quarter of a unit each and are raised to one;
    # the large one has 2^29 - 1/2, is rounded up to 2^29 by largest remainder, and pays for both.
    assert numerators == [1, unit - 2, 1]


def test_units_are_taken_in_turn_from_equal_largest():
    numerators, _ = quietly([1e9, 1e9] + [1e-12] * 5)
    assert numerators[0] == numerators[1] - 1  # five taken from two: the earlier gives three
    assert numerators[2:] == [1] * 5


def test_a_warning_names_what_rounding_moves():
    with pytest.warns(UserWarning, match="tiny") as caught:
        quota.shares({"tiny": 1e-9, "web": 1.0}, 64)
    assert len(caught) == 1
    assert "web" not in str(caught[0].message).split("tiny")[0]


def test_no_warning_below_a_thousandth():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # 342 units: half a unit at most is moved by more than a thousandth only below 500, and
        # pi with its 16 digits leaves it at a thirtieth of a unit here.
        quota.shares({"small": 2e-6, "web": math.pi}, 64)
        quota.shares([1, 2**29 - 1], 64)
        quota.shares([Fraction(1, 3), Fraction(1, 7), Fraction(1, 11)], 64)


@settings(max_examples=200)
@given(numerator=st.integers(1, 10**7), extra=st.integers(1, 10**6))
def test_the_warning_appears_where_a_weight_moves_by_a_thousandth(numerator, extra):
    values = [Fraction(numerator, 10**12), 1 + Fraction(extra, 10**9 + 7)]
    exact = oracles.fractions(values)
    moved = max(
        abs(a / e - 1) for a, e in zip(oracles.effective(values), exact, strict=True) if e > 0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quota.shares(values, 64)
    assert bool(caught) == (moved > Fraction(1, 1000))


# Bad values: found before a file is opened, and named


@pytest.mark.parametrize(
    ("mixture", "name"),
    [
        ({"web": -1, "toy": 2}, "web"),
        ({"web": 2, "toy": -1e-300}, "toy"),
        ({"web": NAN, "toy": 1}, "web"),
        ({"web": 1, "toy": INF}, "toy"),
        ({"web": -INF, "toy": 1}, "web"),
        ({"web": Decimal("NaN"), "toy": 1}, "web"),
        ({"web": 1, "toy": Decimal("Infinity")}, "toy"),
        ({"web": np.float32("nan"), "toy": 1}, "web"),
        ({"web": 1, "toy": Fraction(-1, 3)}, "toy"),
    ],
)
def test_weights_that_are_no_weights_are_refused(mixture, name):
    """trl #6981, KempnerForge #53: found after the download, or silently made uniform."""
    for build in (zx.MixtureSpec, source, lambda m: quota.shares(m, 10)):
        with pytest.raises(ValueError, match=r"finite|negative") as error:
            build(mixture)
        assert repr(name) in str(error.value)
    with pytest.raises(ValueError, match=r"finite|negative") as error:
        quota.shares(list(mixture.values()), 10)
    assert str(list(mixture).index(name)) in str(error.value)


@pytest.mark.parametrize("mixture", [{"web": 0, "toy": 0}, {"web": 0.0, "toy": -0.0}])
def test_all_zero_is_refused(mixture):
    for build in (zx.MixtureSpec, source, lambda m: quota.shares(m, 10)):
        with pytest.raises(ValueError, match=r"positive|zero|0"):
            build(mixture)


def test_nothing_at_all_is_refused():
    for build in (zx.MixtureSpec, source, lambda m: quota.shares(m, 10)):
        with pytest.raises(ValueError, match=r"empty|least one|no "):
            build({})
    with pytest.raises(ValueError, match=r"positive|empty"):
        quota.shares([], 10)
    with pytest.raises(ValueError, match="dataset"):
        zx.StaticMixtureWorkSource(datasets=[], mixture={"web": 1}, chunk_size=10)


def test_unknown_and_missing_names_are_refused():
    with pytest.raises(ValueError, match="other"):
        source({"web": 1, "toy": 1, "other": 1})
    with pytest.raises(ValueError, match="toy"):
        source({"web": 1})
    with pytest.raises(ValueError, match=r"'[Ww]eb'"):
        source({"Web": 1, "toy": 1})


def test_bad_weights_are_found_before_a_file_is_opened(tmp_path, monkeypatch):
    """A dataset that names a file is enough: nothing is read to find a bad weight."""
    path = tmp_path / "part.jsonl"
    path.write_text('{"a": 1}\n' * 20)
    dataset = zx.Dataset.from_path("web", str(path))
    path.unlink()
    with pytest.raises(ValueError, match="web"):
        zx.StaticMixtureWorkSource(datasets=[dataset], mixture={"web": -1}, chunk_size=4)


@pytest.mark.parametrize(
    "value", [True, False, "1", "0.5", b"1", None, [1], (1,), {}, 1 + 0j, np.bool_(True)]
)
def test_other_types_are_no_numbers(value):
    """Zephon 0.2.0: strings and bools passed as numbers."""
    for build in (zx.MixtureSpec, source, lambda m: quota.shares(m, 10)):
        with pytest.raises(TypeError, match="web"):
            build({"web": value, "toy": 1})
    with pytest.raises(TypeError, match="0"):
        quota.shares([value, 1], 10)


@pytest.mark.parametrize("name", [1, None, b"web", ("web",), True])
def test_names_are_strings(name):
    """Zephon 0.2.0: keys 1 and "1" merged."""
    with pytest.raises(TypeError, match=r"name|str"):
        zx.MixtureSpec({name: 1, "toy": 1})
    with pytest.raises(TypeError, match=r"name|str"):
        source({name: 1, "toy": 1})


def test_a_number_and_its_text_are_not_one_name():
    with pytest.raises(TypeError, match="1"):
        zx.MixtureSpec({1: 1, "1": 3})


def test_duplicate_dataset_names_are_refused():
    """Zephon 0.2.0: failed late with an internal message."""
    with pytest.raises(ValueError, match="web"):
        source({"web": 1}, names=("web", "web"))


def test_weight_zero_is_declared_and_not_drawn():
    idle = source({"web": 1, "toy": 0})
    assert idle.component_ids() == {"web": 0, "toy": 1}
    chunk, _ = idle.next_chunk(idle.init())
    assert len(chunk.components.get("toy", ())) == 0
    assert len(chunk) == 10


def test_a_mixture_cannot_be_changed():
    mixture = {"web": 1, "toy": 1}
    spec = zx.MixtureSpec(mixture)
    mixture["web"] = 5
    assert spec.fractions()["web"] == Fraction(1, 2)
    with pytest.raises((AttributeError, TypeError)):
        spec.weights = {}
    with pytest.raises((AttributeError, TypeError)):
        spec["web"] = 5
