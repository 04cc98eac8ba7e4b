"""`zephon-jax show`: the records of a global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from zephon_jax._text import counted, short, table, visible
from zephon_jax.cli.output import answer, as_json_option, careful
from zephon_jax.data.read_samples import read
from zephon_jax.mixture.config import read_config_file
from zephon_jax.sources.work_source import WorkSource

if TYPE_CHECKING:
    from zephon_jax.elastic.row_samples import RowSamples

__all__ = ["show"]

_ROWS = 16  # rows of a batch that are shown where nothing else is said


@click.command()
@click.argument("config", type=click.Path())
@click.option("--step", type=int, required=True, help="The global batch, from 0.")
@click.option("--batch-size", type=int,
              help="Rows of a global batch; by default one of each lane.")  # fmt: skip
@click.option("--lanes", type=int, help="Lanes; by default what the configuration says.")
@click.option("--rows", default=_ROWS, show_default=True, type=click.IntRange(1),
              help="Rows to show.")  # fmt: skip
@as_json_option
@careful
def show(
    config: str, step: int, batch_size: int | None, lanes: int | None, rows: int, as_json: bool
) -> None:
    """Shows the records of a global batch of the run that CONFIG describes.

    For runs of an ElasticIterDataset with one row for each sample, read by "lattice" unless the
    configuration says otherwise. Where a run packs or filters, ask dataset.sample_ids_at.
    """
    # It rests on Grain and JAX, and the other commands answer without waiting for these.
    from zephon_jax.elastic.dataset import ElasticIterDataset

    run = read_config_file(config)
    source = run.source()
    dataset = ElasticIterDataset(
        source, run.num_lanes if lanes is None else lanes, lambda lane: lane, process_index=0,
        process_count=1, global_batch_size=batch_size, read_config=run.read, pad=True,
    )  # fmt: skip
    batch = dataset.sample_ids_at(step)
    facts = [_facts(source, row) for row in batch[:rows]]
    lines = [("row", "lane", "dataset", "shard", "sample", "record")]
    for n, one in enumerate(facts):
        if one["dataset"] is None:
            lines.append((str(n), str(one["lane"]), "-", "-", "-", "(masked)"))
            continue
        lines.append((
            str(n), str(one["lane"]), visible(one["dataset"]), str(one["shard"]),
            str(one["sample"]), visible(one["record"]),
        ))  # fmt: skip
    text = table(lines)
    if len(batch) > rows:
        text += f"\n{counted(len(batch) - rows, 'more row')}: --rows {len(batch)} shows all"
    answer(as_json, text, facts)


def _facts(source: WorkSource, row: RowSamples) -> dict[str, Any]:
    facts: dict[str, Any] = {"lane": row.lane, "lane_row": row.row, "dataset": None}
    if len(row.sample_ids):
        dataset, shard, sample = row.sample_ids[0].tolist()
        found = source.datasets_by_id[dataset]
        (record,) = read(source, row.sample_ids)
        facts.update(dataset=found.name, shard=shard, sample=sample, record=short(record))
    return facts
