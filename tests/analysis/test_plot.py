"""Pictures: what they show, in numbers; how they look is for eyes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from IPython.core.formatters import PNGFormatter
from support.helpers import chunks_of, mixture
from support.sources import SOURCES

import zephon_jax as zx

pytest.importorskip("matplotlib")


def run_of(num_lanes=1, **settings):
    source = mixture([[40] * 5, 90, 30], [4, 3, 1], names=["web", "code", "math"], **settings)
    return zx.simulate(source, num_lanes=num_lanes)


REDISTRIBUTE = {"chunk_size": 8, "exhausted_policy": "redistribute"}


def labels(fig):
    return [(ax.get_xlabel(), ax.get_ylabel()) for ax in fig.axes]


def lines(ax):
    """Lines with a name, as (x, y) by name."""
    return {
        line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in ax.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def test_mixture_shows_shares_and_targets():
    run = run_of(**REDISTRIBUTE)
    (ax,) = zx.plot.mixture(run, window=1).axes
    assert labels(ax.figure) == [("chunk (number in the run)", "share of samples (%)")]
    shown = lines(ax)
    assert list(shown) == ["web", "code", "math", "target"]
    assert np.array_equal(shown["web"][0], run.chunk)
    last = dict(run.exhausted)["code"]
    assert np.allclose(shown["code"][1][: last + 1], 100 * run.shares[: last + 1, 1])
    assert np.isnan(shown["code"][1][last + 1 :]).all()
    steps = [line for line in ax.get_lines() if line.get_drawstyle() == "steps-post"]
    assert [line.get_ydata()[0] for line in steps] == pytest.approx([50, 37.5, 12.5])
    assert len(steps[0].get_xdata()) == len(run.target_chunk) + 1


def test_mixture_mean_is_the_mean_of_the_samples():
    run = run_of(**REDISTRIBUTE)
    (ax,) = zx.plot.mixture(run, ["math"], window=5).axes
    x, y = lines(ax)["math"]
    expected = [
        100 * run.draws[n : n + 5, 2].sum() / run.draws[n : n + 5].sum()
        for n in range(len(run.chunk) - 4)
    ]
    assert np.allclose(np.nan_to_num(y), expected)
    assert x[0] == 2


def test_passes_end_where_a_dataset_is_used_up():
    run = run_of(**REDISTRIBUTE)
    (ax,) = zx.plot.passes(run).axes
    x, y = lines(ax)["math"]
    assert y[-1] == 1
    end = dict(run.exhausted)["math"]
    assert x[-1] == run.draws[: end + 1].sum()
    assert "used up" in lines(ax)
    assert "used up" not in lines(zx.plot.passes(run_of(chunk_size=8)).axes[0])


def test_deviation_shows_bounds_and_extremes():
    run = run_of(chunk_size=7, stop_after_passes=30)
    fig = zx.plot.deviation(run)
    assert len(fig.axes) == 3
    for d, ax in enumerate(fig.axes):
        (band,) = ax.patches
        values, edges, baseline = band.get_data()
        assert values.max() == run.deviation_high[:, d].max()
        assert baseline.min() == run.deviation_low[:, d].min()
        assert edges[-1] == run.num_chunks
        dashed = [line.get_ydata()[0] for line in ax.get_lines() if line.get_linestyle() == "--"]
        assert dashed == [-2, 1]
    few = zx.plot.deviation(zx.simulate(mixture([50, 50], chunk_size=9), 4), ["b"])
    assert not few.axes[0].patches
    assert len(few.axes[0].get_lines()[0].get_xdata()) == 4


def test_lane_map_is_lanes_by_steps():
    source = mixture([10**6] * 2, [5, 1], chunk_size=1, exhausted_policy="repeat",
                     lane_assignment="modulo")  # fmt: skip
    run = zx.simulate(source, 43, 8)
    fig = zx.plot.lane_map({"modulo": run}, "b")
    image = np.asarray(fig.axes[0].get_images()[0].get_array().filled(np.nan))
    assert image.shape == (8, 6)
    for lane in range(8):
        got = [int(c.counts[1]) for c in chunks_of(source, lane, 8, limit=6)]
        known = ~np.isnan(image[lane])
        assert image[lane][known].tolist() == got[: known.sum()]
        assert known.sum() == (43 - lane + 7) // 8
    assert fig.axes[0].get_title(loc="left") == "modulo: 4 of 8 lanes never get 'b' (hatched)"
    assert fig.axes[-1].get_ylabel() == "samples of 'b' in the chunk"
    assert zx.plot.lane_map(run, "a", max_steps=2).axes[0].get_images()[0].get_size() == (8, 2)


def test_positions_are_those_of_the_order():
    dataset = zx.Dataset.from_counts("web", [30, 20, 50])
    fig = zx.plot.positions(dataset)
    assert len(fig.axes) == 5
    for ax in fig.axes:
        dots = ax.get_lines()[-1]
        assert sorted(dots.get_ydata()) == list(range(100))
    assert "nothing moves" in fig.axes[0].get_title(loc="left")
    source = SOURCES["one dataset"]()
    starts = [0, 40, 47, 47, 80]
    stored = [starts[s.shard_id] + s.sample_index for s in map(source.sample_id_at, range(80))]
    fig = zx.plot.positions({"mine": source}, "a")
    assert fig.axes[0].get_lines()[-1].get_ydata().tolist() == stored
    assert fig.axes[0].get_title(loc="left").startswith("mine\nmoved by ")


def test_global_batch_counts_rows():
    source = mixture([10**5] * 3, [5, 3, 1], chunk_size=640, exhausted_policy="repeat")
    fig = zx.plot.global_batch(source, 8, 2, num_steps=30)
    for ax, mode in zip(fig.axes, ("smooth_weighted_round_robin", "lattice"), strict=True):
        config = zx.MixtureReadConfig(mode=mode)
        orders = [chunks_of(source, n, 8, limit=1)[0].order(config)[0] for n in range(8)]
        shown = lines(ax)
        for d, name in enumerate("abc"):
            expected = [
                sum(int((o[2 * n : 2 * n + 2] == d).sum()) for o in orders) for n in range(30)
            ]
            assert shown[name][1].tolist() == expected
        assert ax.get_ylabel() == "rows in the batch"
    worst = [float(ax.get_title(loc="left").split("up to ")[1].split()[0]) for ax in fig.axes]
    assert worst[1] < 2 < worst[0]


def test_every_axis_has_a_label_or_shares_one():
    run = run_of(num_lanes=4, **REDISTRIBUTE)
    source = mixture([500, 500], chunk_size=50)
    for fig in (
        zx.plot.mixture(run), zx.plot.passes(run), zx.plot.deviation(run),
        zx.plot.lane_map(run, "math"), zx.plot.positions(source), zx.plot.global_batch(source, 4),
    ):  # fmt: skip
        x = [ax.get_xlabel() for ax in fig.axes] + [fig.get_supxlabel()]
        y = [ax.get_ylabel() for ax in fig.axes] + [fig.get_supylabel()]
        assert any(x), fig
        assert any(y), fig
        assert PNGFormatter()(fig).startswith(b"\x89PNG")  # as a notebook shows it


def test_many_components_show_the_largest_with_styles_of_their_own():
    source = mixture([100] * 30, list(range(1, 31)), names=[f"d{i}" for i in range(30)],
                     chunk_size=500)  # fmt: skip
    (ax,) = zx.plot.mixture(zx.simulate(source, 5)).axes
    named = [line for line in ax.get_lines() if str(line.get_label()).startswith("d")]
    assert [line.get_label() for line in named] == [f"d{i}" for i in range(18, 30)]
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in named}
    assert len(styles) == 12


def test_bad_input_is_named():
    run = run_of(**REDISTRIBUTE)
    source = mixture([500, 500], chunk_size=50)
    for call, error, text in (
        (lambda: zx.plot.mixture(source), TypeError, "what zx.simulate returned"),
        (lambda: zx.plot.mixture(zx.simulate(source, 0)), ValueError, "no chunk"),
        (lambda: zx.plot.mixture(run, ["wbe"]), ValueError, "wbe"),
        (lambda: zx.plot.lane_map(run, "wbe"), ValueError, "wbe"),
        (lambda: zx.plot.lane_map(zx.simulate(source, stride=2), "a"), ValueError, "2 chunks"),
        (lambda: zx.plot.positions(source, "z"), ValueError, "component must be one of"),
        (lambda: zx.plot.passes(zx.simulate(SOURCES["custom"]())), ValueError, "known size"),
        (lambda: zx.plot.deviation(run, []), ValueError, "components must be a list"),
        (lambda: zx.plot.lane_map(run, "a", max_steps=0), ValueError, "max_steps must be at least"),
        (lambda: zx.plot.lane_map({}, "a"), ValueError, "a simulated run is needed"),
        (lambda: zx.plot.lane_map(5, "a"), TypeError, "a simulated run, or a mapping of titles"),
        (lambda: zx.plot.positions({}), ValueError, "a source is needed; got an empty mapping"),
        (lambda: zx.plot.positions(5), TypeError, "a source, or a mapping of titles"),
        (lambda: zx.plot.positions({"a": 5}), TypeError, "must be a zx.WorkSource"),
        (lambda: zx.plot.global_batch(source, 0), ValueError, "num_lanes must be at least 1"),
        (lambda: zx.plot.global_batch(5, 2), TypeError, "must be a zx.WorkSource"),
        (lambda: zx.plot.global_batch(source, 2, modes=()), ValueError, "at least one mode"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_without_matplotlib_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import zephon_jax as zx\n"
        "try:\n    zx.plot\nexcept ImportError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == 'zx.plot needs matplotlib: pip install "zephon-jax[plot]".\n'
