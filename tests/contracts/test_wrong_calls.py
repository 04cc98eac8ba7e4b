"""What a wrong argument is told: no object is printed at length, whatever is given in its place."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import zephon_jax as zx

LONGEST = 1000  # characters of a message


class Frame:
    """As a DataFrame is: long to print, and neither true nor false."""

    def __repr__(self):
        return "   column\n" * 20_000

    def __len__(self):
        return 20_000

    def __bool__(self):
        raise ValueError("The truth value of a DataFrame is ambiguous.")

    def __eq__(self, other):
        return self

    __hash__ = object.__hash__


WRONG = {"numbers": [-1, *range(1, 20_000)], "frame": Frame(), "none": None, "typo": "wbe"}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Public constructors and functions, each with arguments that are right."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("wrong")
    web = zx.Dataset.from_source("web", list(range(80)))
    source = zx.StaticMixtureWorkSource([web], {"web": 1}, chunk_size=10)
    state, run, lane = source.init(), zx.simulate(source), zx.LaneIterDataset(source)
    data = zx.encode_state(state)
    elastic = {"num_lanes": 2, "pipeline": lambda one: one, "process_index": 0, "process_count": 1}
    iterator = iter(zx.ElasticIterDataset(source, **elastic))
    settings = {
        "chunk_size": 10, "seed": 1, "shuffle_shards": True, "shuffle_within_shard": False,
        "shuffle_block_size": None, "exhausted_policy": None, "reshuffle_on_repeat": True,
        "max_repeats": None, "stop_after_passes": 1, "lane_assignment": "permute",
        "allocation": "incremental", "token_estimation": None,
    }  # fmt: skip
    read = {"read_config": None}
    return [
        (zx.StaticMixtureWorkSource, {"datasets": [web], "mixture": {"web": 1}, **settings}),
        (zx.Dataset.from_source, {"name": "x", "source": [1, 2]}),
        (zx.Dataset.from_counts, {"name": "x", "counts": [1], "num_bytes": [2]}),
        (zx.Dataset.from_path, {"name": "x", "path": folder / "none", "format": "jsonl"}),
        (zx.MixtureSpec, {"weights": {"a": 1}}),
        (zx.MixtureReadConfig, {"mode": "lattice", "seed": 1, "shuffle_within_component": False}),
        (zx.TokenEstimation, {"tokenizer": len, "field": None, "samples_per_dataset": 5,
                              "max_shards": None, "tokenizer_name": None}),
        (zx.TokenEstimation.from_ratios, {"ratios": {"a": 1}}),
        (zx.TokenEstimation.from_shard_totals, {"totals": {"a": [1]}}),
        (zx.WorkChunk, {"components": {"a": [(0, 0, 0)]}, "seed": None, "target_mixture": None,
                        "source_exhausted": (), "chunk_index": 0, "slot": 0, "num_lanes": 1}),
        (zx.LaneIterDataset, {"source": source, "lane": 0, "num_lanes": 1, **read}),
        (zx.MixtureMapDataset, {"source": source, **read}),
        (zx.ElasticIterDataset, {"source": source, **elastic, "rows_per_sample": 1,
                                 "global_batch_size": None, "num_workers": 0, "num_threads": 1,
                                 "prefetch": 2, "timeout": 5.0, "pipeline_id": "", **read}),
        (zx.EnsureMixtureIterDataset, {"dataset": lane, "target_mixture": {"web": 1},
                                       "component_ids": {"web": 0}, "max_buffer_size": 10,
                                       "weigh": None, "max_replay": 10, "warn_tolerance": 0.1}),
        (zx.FlushIterDataset, {"lane": lane, "pipeline": lambda one: one, "num_chunks": 8}),
        (zx.StatefulLane, {"source": source, "lane_id": 0, "canonical_replicas": 1}),
        (zx.audit, {"source": source, "states": [state], "step": None, **read}),
        (zx.diff, {"first": source, "second": source.replace(seed=3), "num_chunks": 2,
                   "num_lanes": 1, **read, "second_read_config": None}),
        (zx.simulate, {"source": source, "num_chunks": 2, "num_lanes": 1, "stride": None,
                       "window": None, "cache_bytes": None}),
        (zx.encode_state, {"state": state}),
        (zx.decode_state, {"source": source, "data": data}),
        (zx.restore, {"source": source, "data": data}),
        (zx.relane, {"states": [state], "num_lanes": 2}),
        (zx.load_config, {"path": folder / "run.yaml"}),
        (zx.mark_exhausted, {"lane": lane}),
        (zx.pack, {"dataset": lane, "length": 8, "layout": "maxtext", "method": "first_fit",
                   "num_bins": 4, "tokens": "tokens", "pad_id": 0}),
        (zx.count_shard_tokens, {"datasets": [web], "tokenizer": lambda one: 1, "field": None,
                                 "progress": False, "num_threads": 1}),
        (zx.save_checkpoint, {"directory": folder, "iterator": iterator, "step": None,
                              "state": None, "keep": None, "storage_options": None}),
        (zx.restore_checkpoint, {"directory": folder, "iterator": iterator, "step": None,
                                 "storage_options": None}),
        (zx.use_backend, {"name": "numpy"}),
        (source.seek, {"chunk_index": 1, "lane": 0, "num_lanes": 1}),
        (source.init, {"lane": 0, "num_lanes": 1}),
        (source.locate, {"sample_id": (0, 0, 0), "num_lanes": 1, "up_to_chunk": 3, "origin": 0,
                         **read}),
        (source.replace, settings),
        (zx.quota.shares, {"weights": {"a": 1}, "chunk_size": 10}),
        (zx.permutation.make_key, {"seed": 1}),
        (zx.lanes.lane_of_chunk, {"chunk_index": 1, "num_lanes": 2, "seed": 1,
                                  "assignment": "permute"}),
        (zx.lattice.order, {"counts": np.asarray([1, 2]), "slot": 0, "num_lanes": 1}),
        (zx.plot.mixture, {"run": run, "components": None, "window": None}),
        (zx.plot.lane_map, {"runs": run, "component": "web", "max_steps": 5}),
        (zx.plot.positions, {"sources": source, "component": None}),
        (zx.plot.global_batch, {"source": source, "num_lanes": 1, "rows_per_lane": 1,
                                "num_steps": 2, "modes": ("lattice",)}),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_messages_are_short(calls, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    number = 0
    for call, right in calls:
        for argument in right:
            number += 1
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                try:
                    call(**{**right, argument: WRONG[kind]})
                except Exception as error:
                    said = [str(error)]
                else:
                    said = []
            for text in [*said, *(str(one.message) for one in warned)]:
                assert len(text) <= LONGEST, (call.__qualname__, argument, len(text))
    assert number > 120


def test_records_in_place_of_a_dataset_are_told_what_to_do():
    records = [{"text": "x" * 200}] * 20_000
    for datasets in (records, [records]):
        with pytest.raises(TypeError, match=r"zx\.Dataset.*Dataset\.from_source") as caught:
            zx.StaticMixtureWorkSource(datasets, {"web": 1})
        assert len(str(caught.value)) < 500
