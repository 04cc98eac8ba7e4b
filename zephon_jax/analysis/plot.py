"""Pictures of schedules, drawn with matplotlib (`pip install "zephon-jax[plot]"`).

Each function returns a new `Figure`, which a notebook shows and `savefig` saves; nothing is kept in
pyplot. Colors are those of Okabe and Ito, and every line has a dash pattern or a marker too, so
that pictures stay readable in grey and to the color-blind.

References:
  M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.analysis.plot_data import Moves, batch_rows, lane_counts, moves_of, sources_by_level
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.data.dataset import Dataset
from zephon_jax.sources.checks import check_lane
from zephon_jax.sources.read_order import MixtureReadConfig
from zephon_jax.sources.work_source import WorkSource, check_source

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator
except ImportError as error:
    raise ImportError('zx.plot needs matplotlib: pip install "zephon-jax[plot]".') from error

__all__ = ["Picture", "deviation", "global_batch", "lane_map", "mixture", "passes", "positions"]

# Black is left to targets and bounds, yellow is hard to see on white.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (9, 2)), (0, (4, 1, 1, 1, 1, 1)),
)  # fmt: skip
_MARKERS = "osD^vP"
_SHOWN = 12  # components with a line of their own
_POINTS = 1200  # points of a line
_BINS = 300  # columns of a band
_DOTS = 6000  # points of a scatter


class Picture(Figure):
    """A matplotlib figure that notebooks show by themselves."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=110)
        return data.getvalue()


def _figure(width: float = 7.2, height: float = 3.6) -> Picture:
    return Picture(figsize=(width, height), layout="constrained")


def _dress(ax: Axes, xlabel: str, ylabel: str, title: str = "") -> None:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if title:
        ax.set_title(title, fontsize="medium", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


def _legend(ax: Axes) -> None:
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small",
              handlelength=3.2)  # fmt: skip


def _style(place: int) -> dict[str, object]:
    """Color, dashes and marker of a component: no two of the first 36 share all three."""
    num = len(_COLORS)
    return {
        "color": _COLORS[place % num],
        "linestyle": _DASHES[(place + place // num) % len(_DASHES)],
        "marker": _MARKERS[(place + place // num) % len(_MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.6,
    }


def _chosen(run: Simulation, components: Sequence[str] | None) -> list[int]:
    """The places of the components to show: those asked for, or the largest."""
    if components is not None:
        unknown = [name for name in components if name not in run.names]
        if unknown or not components or isinstance(components, str):
            raise ValueError(
                f"components must be a list of some of {list(run.names)}; got {short(components)}."
            )
        return [run.names.index(name) for name in components]
    drawn = run.lane_draws.sum(axis=0)
    active = np.flatnonzero((run.targets > 0).any(axis=0) | (drawn > 0))
    largest = active[np.argsort(-drawn[active], kind="stable")][:_SHOWN]
    return sorted(largest.tolist())


def _check_run(run: object) -> Simulation:
    if not isinstance(run, Simulation):
        raise TypeError(f"a run must be what zx.simulate returned; got {type(run).__name__}.")
    if not len(run.chunk):
        raise ValueError("the run has no chunk to show.")
    return run


def _panels(given: object, kind: type, what: str) -> dict[str, Any]:
    """What to draw by title: one thing of a kind, or several in a mapping."""
    panels = {"": given} if isinstance(given, kind) else given
    if not isinstance(panels, Mapping):
        raise TypeError(
            f"{what}, or a mapping of titles to several, is needed; got {short(given)}."
        )
    if not panels:
        raise ValueError(f"{what} is needed; got an empty mapping.")
    return dict(panels)


def _thinned(num_rows: int) -> np.ndarray:
    """Row numbers for a line, the last one always among them."""
    return np.unique(np.linspace(0, num_rows - 1, min(num_rows, _POINTS)).astype(np.int64))


def _line(ax: Axes, x: np.ndarray, y: np.ndarray, label: str, style: Mapping[str, Any]) -> None:
    # Markers tell lines apart in grey: a few are enough, each line's at places of its own.
    every = max(1, len(x) // 7)
    shift = sum(map(ord, label)) % every
    ax.plot(x, y, label=label, markevery=(shift, every), **style)


def mixture(
    run: Simulation, components: Sequence[str] | None = None, *, window: int | None = None
) -> Picture:
    """The share of each component over the run, with its target as a thin black line.

    Args:
      run: What `zx.simulate` returned.
      components: Names to show; by default the twelve with most samples.
      window: Rows to average over; by default a hundredth of the run, so that a single chunk's
        rounding does not hide the course.

    Example:
      >>> import zephon_jax as zx
      >>> sets = [zx.Dataset.from_counts(name, [500]) for name in ("web", "code")]
      >>> source = zx.StaticMixtureWorkSource(sets, {"web": 3, "code": 1}, chunk_size=50)
      >>> zx.plot.mixture(zx.simulate(source)).axes[0].get_ylabel()
      'share of samples (%)'
    """
    run = _check_run(run)
    fig = _figure()
    ax = fig.subplots()
    num_rows = len(run.chunk)
    window = max(1, num_rows // 100) if window is None else as_int(window, "window", 1)
    window = min(window, num_rows)
    drawn = np.concatenate([np.zeros_like(run.amounts[:1]), np.cumsum(run.amounts, axis=0)])
    moved = drawn[window:] - drawn[:-window]
    shares = 100 * moved / np.maximum(1, moved.sum(axis=1, keepdims=True))
    at = _thinned(len(shares))
    x = run.chunk[(window - 1) // 2 :][at]  # the middle of what the mean is over
    gone = (shares == 0) & (run.target_shares[window - 1 :] == 0)
    shares[gone] = np.nan  # no line where a component has left or not yet come
    for place, d in enumerate(_chosen(run, components)):
        steps = np.append(run.target_chunk, run.chunk[-1] + run.chunks[-1])
        target = 100 * np.append(run.targets[:, d], run.targets[-1, d])
        ax.step(steps, target, where="post", color="black", linewidth=0.7, zorder=1)
        _line(ax, x, shares[at, d], run.names[d], _style(place))
    ax.plot([], [], color="black", linewidth=0.7, label="target")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    over = f", mean of {window * run.stride:,} chunks" if window * run.stride > 1 else ""
    _dress(ax, "chunk (number in the run)", f"share of {run.unit} (%)", f"Mixture over time{over}")
    _legend(ax)
    return fig


def passes(run: Simulation, components: Sequence[str] | None = None) -> Picture:
    """How often each dataset has been gone through, over the samples of the run.

    Args:
      run: What `zx.simulate` returned.
      components: Names to show; by default the twelve with most samples.

    Raises:
      ValueError: If no shown component is a dataset of known size.
    """
    run = _check_run(run)
    shown = [d for d in _chosen(run, components) if run.totals[d]]
    if not shown:
        raise ValueError("passes need datasets of known size: the source's datasets_by_id.")
    fig = _figure()
    ax = fig.subplots()
    at = _thinned(len(run.chunk))
    samples = np.cumsum(run.draws.sum(axis=1))[at]
    made, used_up = run.passes[at], dict(run.exhausted)
    for place, d in enumerate(shown):
        style, end = _style(place), len(at) - 1
        if run.names[d] in used_up:
            end = np.searchsorted(run.chunk[at], used_up[run.names[d]], side="right") - 1
        _line(ax, samples[: end + 1], made[: end + 1, d], run.names[d], style)
        if run.names[d] in used_up:
            ax.plot(samples[end], made[end, d], "X", color=style["color"], markersize=10,
                    markeredgecolor="black", zorder=4)  # fmt: skip
    if any(run.names[d] in used_up for d in shown):
        ax.plot([], [], "X", color="white", markeredgecolor="black", markersize=9, label="used up")
    top = max(1.0, float(np.nanmax(made[-1, shown])))
    if top >= 2:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, top * 1.05)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    _dress(ax, "samples drawn, all components", "passes through the dataset", "Passes")
    _legend(ax)
    return fig


def deviation(run: Simulation, components: Sequence[str] | None = None) -> Picture:
    """How many samples each component is ahead of its target after each chunk, with the bound.

    Where the run is longer than the picture is wide, a band spans the least and the most.

    Args:
      run: What `zx.simulate` returned.
      components: Names to show; by default the twelve with most samples.
    """
    run = _check_run(run)
    shown = _chosen(run, components)
    fig = _figure(7.2, 1.1 + 0.75 * len(shown))
    axes = np.atleast_1d(fig.subplots(len(shown), sharex=True, sharey=True))
    num_rows = len(run.chunk)
    starts = np.unique(np.linspace(0, num_rows, min(num_rows, _BINS) + 1).astype(np.int64))[:-1]
    low = np.minimum.reduceat(run.deviation_low, starts)
    high = np.maximum.reduceat(run.deviation_high, starts)
    ends = np.append(run.chunk[starts], run.chunk[-1] + run.chunks[-1])
    for ax, place, d in zip(axes, range(len(shown)), shown, strict=True):
        style = _style(place)
        if len(starts) < num_rows or run.stride > 1:
            ax.stairs(high[:, d], ends, baseline=low[:, d], fill=True, facecolor=style["color"],
                      edgecolor=style["color"], linewidth=0.8)  # fmt: skip
        else:
            ax.plot(run.chunk, run.deviation[:, d], color=style["color"], marker=".", linewidth=1)
        for edge in run.bound or ():
            ax.axhline(edge, color="black", linewidth=1.0, linestyle="--")
        ax.axhline(0, color="black", linewidth=0.5)
        _dress(ax, "", "")
        ax.annotate(run.names[d], (1.01, 0.5), xycoords="axes fraction", va="center")
    bound = " (dashed: bound)" if run.bound is not None else ""
    axes[0].set_title(f"Prefix deviation{bound}", fontsize="medium", loc="left")
    axes[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[-1].set_xlabel("chunk (number in the run)")
    fig.supylabel(f"{run.unit} ahead of target", fontsize="medium")
    return fig


def lane_map(
    runs: Simulation | Mapping[str, Simulation], component: str, *, max_steps: int = 200
) -> Picture:
    """Which lanes get a component when: a map of lanes by the lane's chunks.

    Lanes that never get it are hatched; resonance between lanes and chunks shows as stripes.

    Args:
      runs: A run with lanes, or several by title, such as one of each `lane_assignment`.
      component: Name of the component.
      max_steps: Chunks of each lane to show.

    Raises:
      ValueError: If the component is not known, or a row of a run is more than one chunk.
    """
    panels = _panels(runs, Simulation, "a simulated run")
    most = as_int(max_steps, "max_steps", 1)
    maps = [lane_counts(_check_run(run), component, most) for run in panels.values()]
    fig = _figure(7.2, 1.0 + 2.2 * len(panels))
    axes = np.atleast_1d(fig.subplots(len(panels), sharex=True))
    top = max(1, *(int(np.nanmax(counts, initial=0)) for counts in maps))
    image = None
    for ax, (title, run), counts in zip(axes, panels.items(), maps, strict=True):
        image = ax.imshow(counts, aspect="auto", cmap="Blues", vmin=0, vmax=top, origin="lower",
                          interpolation="nearest")  # fmt: skip
        starved = np.flatnonzero(run.lane_draws[:, run.names.index(component)] == 0)
        for lane in starved.tolist():
            ax.axhspan(lane - 0.5, lane + 0.5, facecolor="none", edgecolor="#999999", hatch="///",
                       linewidth=0)  # fmt: skip
        said = f"{len(starved)} of {run.num_lanes} lanes never get {component!r}"
        said += " (hatched)" if len(starved) else ""
        ax.set_title(f"{title}: {said}" if title else said, fontsize="medium", loc="left")
        ax.set_ylabel("lane")
        ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.set_facecolor("#e0e0e0")  # past a lane's end
    axes[-1].set_xlabel("lane step (chunks that the lane had before)")
    assert image is not None
    bar = fig.colorbar(image, ax=list(axes), pad=0.02, aspect=30)
    bar.set_label(f"samples of {component!r} in the chunk")
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return fig


def positions(
    sources: WorkSource | Dataset | Mapping[str, WorkSource], component: str | None = None
) -> Picture:
    """How far a shuffle moves samples: where each one is stored against when it is read.

    Args:
      sources: A source, several by title, or a dataset, which is shown at every shuffle level.
      component: The dataset to look at; the first one by default.

    Example:
      >>> import zephon_jax as zx
      >>> fig = zx.plot.positions(zx.Dataset.from_counts("web", [100] * 10))
      >>> [ax.get_title(loc="left").splitlines()[0] for ax in fig.axes]
      ['no shuffle', 'shards', 'shards + within', 'shards + block', 'global']
    """
    if isinstance(sources, Dataset):
        panels = sources_by_level(sources)
    else:
        panels = _panels(sources, WorkSource, "a source")
    found = {title: moves_of(source, component) for title, source in panels.items()}
    columns = min(len(found), 3)
    lines = -(-len(found) // columns)
    fig = _figure(0.8 + 2.5 * columns, 0.6 + 2.6 * lines)
    grid = np.atleast_1d(fig.subplots(lines, columns, sharex=True, sharey=True, squeeze=False))
    for ax in grid.flat[len(found) :]:
        fig.delaxes(ax)
    for ax, (title, moves) in zip(grid.flat, found.items(), strict=False):
        _scatter(ax, title, moves)
        ax.tick_params(labelbottom=True)
    fig.supxlabel("position in the pass (samples)", fontsize="medium")
    fig.supylabel("place in storage (samples)", fontsize="medium")
    return fig


def _scatter(ax: Axes, title: str, moves: Moves) -> None:
    chosen = np.unique(np.linspace(0, len(moves.stored) - 1, _DOTS).astype(np.int64))
    for edge in moves.shard_starts if len(moves.shard_starts) <= 40 else ():
        ax.axhline(edge, color="#cccccc", linewidth=0.4, zorder=0)
    ax.plot(chosen, moves.stored[chosen], ".", color=_COLORS[0], markersize=1.4,
            rasterized=True)  # fmt: skip
    said = f"moved by {moves.mean_move:,.0f} on average" if moves.mean_move else "nothing moves"
    ax.set_title(f"{title}\n{said}" if title else said, fontsize="small", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    for axis, limit in ((ax.xaxis, ax.set_xlim), (ax.yaxis, ax.set_ylim)):
        limit(0, moves.total)
        axis.set_major_formatter(EngFormatter(sep=""))
        axis.set_major_locator(MaxNLocator(nbins=4))


def global_batch(
    source: WorkSource,
    num_lanes: int,
    rows_per_lane: int = 1,
    *,
    num_steps: int = 60,
    modes: Sequence[str] = ("smooth_weighted_round_robin", "lattice"),
) -> Picture:
    """Rows of each component in each global batch, for each way of reading chunks.

    Round robin starts the same way in every lane, so lanes hold the same component at the same
    time; the lattice spreads them.

    Args:
      source: Any source.
      num_lanes: Lanes that share a global batch.
      rows_per_lane: Rows that a lane gives to a batch.
      num_steps: Batches to show, from the run's first.
      modes: Modes of `MixtureReadConfig`, one panel each.
    """
    check_source(source)
    num_lanes = check_lane(0, num_lanes)[1]
    rows = as_int(rows_per_lane, "rows_per_lane", 1)
    num_steps = as_int(num_steps, "num_steps", 1)
    configs = [MixtureReadConfig(mode=mode) for mode in modes]
    if not configs:
        raise ValueError("modes must name at least one mode of MixtureReadConfig; got none.")
    counts = [batch_rows(source, num_lanes, rows, num_steps, config) for config in configs]
    names = list(source.component_ids())
    fig = _figure(7.2, 0.8 + 2.3 * len(configs))
    axes = np.atleast_1d(fig.subplots(len(configs), sharex=True, sharey=True))
    whole = num_lanes * rows
    for ax, config, (found, target) in zip(axes, configs, counts, strict=True):
        worst = float(np.abs(found - target * whole).max(initial=0))
        largest = np.argsort(-target, kind="stable")[:_SHOWN]
        for place, d in enumerate(sorted(largest.tolist())):
            ax.axhline(target[d] * whole, color="black", linewidth=0.7, zorder=1)
            _line(ax, np.arange(len(found)), found[:, d], names[d], _style(place))
        ax.plot([], [], color="black", linewidth=0.7, label="target")
        title = f"{config.mode}: off by up to {worst:.1f} of {whole} rows"
        _dress(ax, "", "rows in the batch", title)
    axes[-1].set_xlabel("step (global batches from the start)")
    _legend(axes[0])
    return fig
