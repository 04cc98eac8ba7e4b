"""The commands of `zephon-jax`: arguments to calls, and answers in words or as JSON.

Exit codes: 0 where all is well; 1 where the answer is no (`diff`: the orders differ; `audit`:
something is missing or read twice; `check`: a record cannot be read; `inspect --config`: it is
another run's); 2 where a command could not do its work.
"""

from __future__ import annotations

import dataclasses
import sys

import click

from zephon_jax import __version__
from zephon_jax._text import table
from zephon_jax.analysis.audit import audit as audit_states
from zephon_jax.analysis.diff import diff as diff_sources
from zephon_jax.analysis.inspect_state import Inspected, compare, inspect_states
from zephon_jax.analysis.saved_states import load_states
from zephon_jax.analysis.simulate import simulate as simulate_source
from zephon_jax.analysis.simulation import Simulation
from zephon_jax.cli.data_commands import check, describe, facts_of, index
from zephon_jax.cli.output import answer, as_json_option, bar, careful
from zephon_jax.cli.output_files import PICTURES, check_apart, check_file, check_picture, draw
from zephon_jax.cli.rewrite import rewrite
from zephon_jax.cli.show_batch import show
from zephon_jax.data.read_samples import datasets_of
from zephon_jax.mixture.config import SUFFIXES, RunConfig, read_config_file
from zephon_jax.mixture.config_schema import TEMPLATE, schema
from zephon_jax.mixture.configured import ConfiguredMixture
from zephon_jax.sources.chunk_spans import never_ends
from zephon_jax.sources.codec import encode_state
from zephon_jax.sources.read_order import check_read_config
from zephon_jax.sources.work_source import WorkSource

__all__ = ["cli"]

_lanes = click.option("--lanes", type=int, help="Lanes; by default what the configuration says.")
_step = click.option(
    "--step", type=int, help="Which checkpoint of a folder; the newest by default."
)
_chunks = click.option("--chunks", type=int, help="Chunks to look at, of all lanes together.")
_config = click.argument("config", type=click.Path())


_EPILOG = (
    "Exit codes: 0 all is well; 1 the answer is no (diff: the orders differ; audit: something is"
    " missing or read twice; check: a record cannot be read; inspect --config: it is another"
    " run's); 2 the command could not do its work. Set ZEPHON_JAX_TRACEBACK=1 to see where an error"
    " comes from."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(__version__, prog_name="zephon-jax")
def cli() -> None:
    """Looks at training data orders before, during and after a run."""


for _command in (describe, check, index, rewrite, show):
    cli.add_command(_command)


@cli.command()
@_config
@_chunks
@_lanes
@click.option("--plot", type=click.Path(), help="Draw a picture to this file (.png, .pdf, .svg).")
@click.option("--picture", type=click.Choice(PICTURES),
              help=f"With --plot: which picture; {PICTURES[0]} by default.")  # fmt: skip
@click.option("--component", help="With --picture lanes: whose samples to show.")
@click.option("--window", type=int, help="Count the shards touched by windows of so many chunks.")
@click.option("--cache-bytes", type=int, help="With --window: what a cache of shards may hold.")
@click.option("--csv", type=click.Path(), help="Write the table of chunks to this file.")
@as_json_option
@careful
def simulate(
    config: str, chunks: int | None, lanes: int | None, plot: str | None, picture: str | None,
    component: str | None, window: int | None, cache_bytes: int | None, csv: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Works out what a run draws, without reading data, and says what to look at."""
    run, source = _asked(config, chunks, lanes)
    check_picture(plot, picture, component, source.component_ids())
    if csv is not None:
        check_file(csv, "--csv")
    check_apart({"CONFIG": config, "--csv": csv, "--plot": plot})
    with bar(run.num_chunks, "simulating", quiet=as_json) as shown:
        found = simulate_source(
            source, run.num_chunks, run.num_lanes, window=window, cache_bytes=cache_bytes,
            progress=shown.update,
        )  # fmt: skip
    if csv is not None:
        found.to_csv(csv)
    if plot is not None:
        draw(found, plot, picture, component)
    answer(as_json, found.summary(), _run_facts(found))


def _run_facts(run: Simulation) -> dict[str, object]:
    """A simulated run for programs."""
    components = {
        name: {
            "samples": int(run.lane_draws[:, d].sum()), "dataset_samples": int(run.totals[d]),
            "target": float(run.targets[0, d]) if len(run.targets) else None,
            "first_chunk": int(run.first_draw[d]), "last_chunk": int(run.last_draw[d]),
            "lane_samples": run.lane_draws[:, d],
        }
        for d, name in enumerate(run.names)
    }  # fmt: skip
    return {
        "num_chunks": run.num_chunks, "num_samples": run.num_samples, "num_lanes": run.num_lanes,
        "ended": run.ended, "warnings": run.warnings, "lane_chunks": run.lane_chunks,
        "exhausted": dict(run.exhausted), "reads": run.reads, "components": components,
    }  # fmt: skip


def _asked(
    config: str, chunks: int | None, lanes: int | None
) -> tuple[RunConfig, ConfiguredMixture]:
    """A configuration with what the command line says instead, and its source.

    Raises:
      ValueError: If the run never ends, and nothing says how far to look.
    """
    run = read_config_file(config)
    run = dataclasses.replace(
        run,
        num_chunks=run.num_chunks if chunks is None else chunks,
        num_lanes=run.num_lanes if lanes is None else lanes,
    )
    source = run.source()
    if run.num_chunks is None and never_ends(source):
        raise ValueError(
            "the run never ends: say how far to look with --chunks, or num_chunks in the"
            " configuration's 'run'."
        )
    return run, source


@cli.command()
@click.argument("state", type=click.Path())
@_step
@click.option("--config", type=click.Path(), help="Check it against this configuration.")
@as_json_option
@careful
def inspect(state: str, step: int | None, config: str | None, as_json: bool) -> None:
    """Says what is in a saved state or checkpoint."""
    if state.lower().endswith(SUFFIXES):
        raise ValueError(f"{state} is a configuration, not a state: use zephon-jax config {state}.")
    found = inspect_states(load_states(state, step))
    facts, text = {**found._asdict(), "missing": found.missing}, found.summary()
    differs: list[str] = []
    if config is not None:
        facts["differs"] = differs = _differs(found, read_config_file(config).source())
        other = f"! it belongs to a run with other {', '.join(differs)} than {config}"
        text += "\n" + (other if differs else f"it belongs to {config}")
    answer(as_json, text, facts)
    sys.exit(1 if differs else 0)


def _differs(found: Inspected, source: WorkSource) -> list[str]:
    """The settings in which states differ from a source."""
    mine = inspect_states(encode_state(source.init())).lanes[0].settings
    things = [t for lane in found.lanes for t in mine if lane.settings.get(t) != mine[t]]
    return list(dict.fromkeys(["kind of source"] * bool(found.others) + things))


@cli.command()
@_config
@click.argument("states", nargs=-1, required=True, type=click.Path())
@_step
@as_json_option
@careful
def audit(states: tuple[str, ...], config: str, step: int | None, as_json: bool) -> None:
    """Proves from states alone which samples have been read how often.

    STATES are a checkpoint's folder, or files of states, one for each lane. Where a lane stands
    inside a chunk, 'read' in the configuration's 'run' says how chunks are read.
    """
    read = read_config_file(config)
    loaded = [load_states(path, step) for path in states]
    result = audit_states(read.source(), loaded, read_config=read.read)
    names = ("whole_chunks", "lanes", "missing", "samples", "seen", "gaps", "doubles", "notes")
    answer(as_json, result.summary(), {name: getattr(result, name) for name in names})
    # Gaps are no trouble: a chunk of a lane that has a state is read when the lane comes to it.
    sys.exit(1 if result.missing or result.doubles else 0)


@cli.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@_chunks
@_lanes
@as_json_option
@careful
def diff(a: str, b: str, chunks: int | None, lanes: int | None, as_json: bool) -> None:
    """Compares two configurations or two states: what differs, and from which chunk on."""
    configs = [path.lower().endswith(SUFFIXES) for path in (a, b)]
    if all(configs):
        first, second = read_config_file(a), read_config_file(b)
        different = _diff_configs(first, second, chunks, lanes, as_json)
    elif any(configs):
        raise ValueError(
            "diff takes two configurations or two states; to see whether a state belongs to a"
            " configuration, use: zephon-jax inspect STATE --config FILE."
        )
    elif chunks is not None or lanes is not None:
        raise ValueError("--chunks and --lanes are for two configurations; these are states.")
    else:
        different = _diff_states(a, b, as_json)
    sys.exit(1 if different else 0)


def _diff_configs(
    first: RunConfig, second: RunConfig, chunks: int | None, lanes: int | None, as_json: bool
) -> bool:
    num_lanes = first.num_lanes if lanes is None else lanes
    if chunks is None:
        chunks = max(
            (c for c in (first.num_chunks, second.num_chunks) if c is not None), default=None
        )
    ways = [check_read_config(config.read) for config in (first, second)]
    found = diff_sources(
        first.source(), second.source(), chunks, num_lanes,
        read_config=ways[0], second_read_config=ways[1],
    )  # fmt: skip
    notes = [
        f"{name} differs: {one!r} against {other!r}"
        for name, one, other in (
            ("run.num_lanes", first.num_lanes, second.num_lanes),
            ("run.read", *ways),
        )
        if one != other
    ]
    answer(
        as_json, "\n".join([found.summary(), *notes]), {**dataclasses.asdict(found), "notes": notes}
    )
    return not found.same or (lanes is None and first.num_lanes != second.num_lanes)


def _diff_states(a: str, b: str, as_json: bool) -> bool:
    first, second = (inspect_states(load_states(path)) for path in (a, b))
    found = compare(first, second)
    text = found.summary() or "the states are at the same place of the same run"
    answer(as_json, text, {"same": not found.notes, **found._asdict()})
    return bool(found.notes)


@cli.command()
@_config
@click.argument("dataset")
@click.argument("shard", type=int)
@click.argument("sample", type=int)
@_chunks
@_lanes
@click.option("--origin", type=int, default=0,
              help="Where the run was cut anew into so many lanes: its chunk.")  # fmt: skip
@as_json_option
@careful
def locate(
    config: str, dataset: str, shard: int, sample: int, chunks: int | None, lanes: int | None,
    origin: int, as_json: bool,
) -> None:  # fmt: skip
    """Says when a run holds a sample: SAMPLE of SHARD of DATASET, by name."""
    run, source = _asked(config, chunks, lanes)
    ids = source.component_ids()
    if dataset not in ids:
        raise ValueError(f"there is no dataset {dataset!r} in {config}; it has {list(ids)}.")
    _check_any(source, origin, run.num_chunks)
    places = source.locate(
        (ids[dataset], shard, sample), run.num_lanes, run.num_chunks, origin=origin,
        read_config=run.read,
    )  # fmt: skip
    rows = [("pass", "chunk", "lane", "lane step", "slot")]
    rows += [tuple(f"{value:,}" for value in place) for place in places]
    answer(as_json, table(rows) if places else "never", places)


def _check_any(source: WorkSource, origin: int, chunks: int | None) -> None:
    """Refuses to look at no chunk at all: "never" would be true of any sample."""
    if chunks is not None and chunks <= origin:
        raise ValueError(
            f"there is nothing to look at: from chunk {origin:,} on (--origin) up to chunk"
            f" {chunks:,} (--chunks, or num_chunks in the configuration's 'run')."
        )
    if origin > 0 and source.next_chunk(source.seek(origin))[0] is None:
        raise ValueError(f"there is nothing to look at: the run ends before chunk {origin:,}.")


@cli.command(name="config")
@click.argument("file", required=False, type=click.Path())
@as_json_option
@careful
def config_(file: str | None, as_json: bool) -> None:
    """Prints a configuration with every key explained, or checks FILE.

    With --json and no FILE: the JSON schema.
    """
    if file is None:
        answer(as_json, TEMPLATE.rstrip(), schema())
        return
    source = read_config_file(file).source()
    facts = {
        "source": repr(source),
        "datasets": [facts_of(dataset) for dataset in datasets_of(source).values()],
    }
    answer(as_json, f"{file} is right: {source!r}", facts)
