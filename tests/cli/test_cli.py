"""Every command with right and wrong arguments."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zx

pytest.importorskip("click")
from click.testing import CliRunner

from zephon_jax.cli.commands import cli
from zephon_jax.data.cache.decoded import decoded_blocks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with data, a configuration, states and checkpoints, which is also the current."""
    for name, shards, each in (("web", 3, 40), ("code", 1, 60)):
        place = tmp_path / "corpora" / name
        place.mkdir(parents=True)
        for shard in range(shards):
            lines = [json.dumps({"n": n}) for n in range(each)]
            (place / f"part-{shard}.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "run.yaml").write_text(
        "datasets: {web: corpora/web, code: corpora/code}\nmixture: {web: 3, code: 1}\n"
        "chunk_size: 8\nexhausted_policy: repeat\nrun: {num_lanes: 4, num_chunks: 40}\n"
    )
    (tmp_path / "whole.yaml").write_text(
        "datasets: {web: corpora/web, code: corpora/code}\nmixture: {web: 3, code: 1}\n"
        "chunk_size: 8\nexhausted_policy: redistribute\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    source = zx.load_config("run.yaml")
    for lane, chunk in enumerate((8, 8, 8, 12)):
        (tmp_path / f"lane{lane}.state").write_bytes(zx.encode_state(source.seek(chunk, lane, 4)))
    dataset = zx.ElasticIterDataset(
        source, 4, lambda lane: lane.map(lambda row: row["sample_id"]).batch(2),
        process_index=0, process_count=1,
    )  # fmt: skip
    iterator = iter(dataset)
    for _ in range(2):
        for _ in range(3):
            next(iterator)
        zx.save_checkpoint(tmp_path / "saved", iterator)
    return tmp_path


def run(*args, code=0):
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code < 2 else result.stderr


def as_json(*args, code=0):
    return json.loads(run(*args, "--json", code=code))


def test_describe(folder):
    text = run("describe", "corpora/web", "run.yaml")
    assert [line.split()[:4] for line in text.splitlines()[1:]] == [
        ["corpora/web", "jsonl", "3", "120"], ["web", "jsonl", "3", "120"],
        ["code", "jsonl", "1", "60"],
    ]  # fmt: skip
    (facts,) = as_json("describe", "corpora/web/*.jsonl")
    size = sum(path.stat().st_size for path in (folder / "corpora" / "web").iterdir())
    assert (facts["samples"], facts["shards"], facts["bytes"]) == (120, 3, size)
    (folder / "corpora" / "web" / "part-9.jsonl").write_text("")
    assert "1 shard without samples" in run("describe", "corpora/web")
    pq.write_table(pa.table({"n": list(range(30))}), folder / "rows.parquet", row_group_size=10)
    said = "rows.parquet: 3 row groups of about"
    assert said in run("describe", "rows.parquet")
    (facts,) = as_json("describe", "rows.parquet")
    assert facts["decoded_budget"] == decoded_blocks().max_bytes


def test_index(folder):
    (facts,) = as_json("index", "corpora/web")
    assert facts["samples"] == 120
    assert (folder / facts["index"]).stat().st_size > 0
    assert f"kept in {facts['index']}" in run("index", "corpora/web")
    before = (folder / facts["index"]).stat().st_mtime_ns
    run("index", "corpora/web")
    assert (folder / facts["index"]).stat().st_mtime_ns == before
    (folder / "toy.yaml").write_text("datasets: {a: {counts: [5]}}\nmixture: {a: 1}\n")
    assert "'a' has no files to index" in run("index", "toy.yaml", code=2)


def test_rewrite(folder):
    rows = pa.table({"n": list(range(30_000))})
    pq.write_table(rows, folder / "rows.parquet")
    text = run("rewrite", "rows.parquet", "cut.parquet", "--row-group-size", "64KiB")
    assert "cut.parquet" in text
    size = pq.read_metadata(folder / "rows.parquet").row_group(0).total_byte_size
    assert f"1 to {-(-size // 65_536)}" in text
    assert pq.read_table(folder / "cut.parquet").equals(rows)
    (facts,) = as_json("rewrite", "*.parquet", "both", "--row-group-size", "0.1MB")[:1]
    assert (facts["num_rows"], facts["path"]) == (30_000, "both/cut.parquet")
    again = run("rewrite", "rows.parquet", "cut.parquet", "--row-group-size", "1MiB", code=2)
    assert "cut.parquet is there already" in again
    for size in ("1XB", "-1MB", "0", "MiB", "1ib", ""):
        said = run("rewrite", "rows.parquet", "x.parquet", f"--row-group-size={size}", code=2)
        assert f"--row-group-size {size!r} is no size" in said
    said = run("rewrite", "corpora/web", "x", "--row-group-size", "1MiB", code=2)
    assert "is jsonl: only Parquet files" in said
    assert not (folder / "x").exists()


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_check(folder, processes):
    good = folder / "good.jsonl"
    good.write_text("1\n2\n")
    found = run("check", good, *processes)
    assert found == "2 samples in 1 shard: 0 records cannot be read, 0 shards not to its end\n"
    many = folder / "many"
    many.mkdir()
    (many / "0.jsonl").write_text("1\n2\n" + "{bad\n" * 130)
    (many / "1.jsonl").write_text("3\n")
    found = run("check", many, *processes, code=1)
    assert found.startswith("133 samples in 2 shards: 130 records cannot be read, 0 shards")
    assert f"! dataset '{many}', shard 0 ({many}/0.jsonl): record 2 (line 3) is not valid" in found
    assert "and 30 more" in found
    broken = json.loads(run("check", many, *processes, "--json", code=1))
    assert [(one["shard_id"], one["num_bad"], len(one["bad"])) for one in broken] == [(0, 130, 100)]


def test_simulate(folder):
    text = run("simulate", "run.yaml")
    assert text.startswith("40 chunks, 320 samples, 4 lanes (the run goes on)")
    facts = as_json("simulate", "whole.yaml", "--lanes", 2)
    expected = zx.simulate(zx.load_config("whole.yaml"), num_lanes=2)
    assert facts["num_chunks"] == expected.num_chunks
    assert facts["warnings"] == list(expected.warnings)
    assert facts["components"]["web"]["lane_samples"] == expected.lane_draws[:, 0].tolist()
    assert as_json("simulate", "run.yaml", "--chunks", 7)["num_chunks"] == 7
    run("simulate", "run.yaml", "--csv", "out.csv")
    with open("out.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 40


def test_simulate_draws_every_picture(folder):
    pytest.importorskip("matplotlib")
    for picture in ("mixture", "passes", "deviation", "lanes"):
        name = f"{picture}.png"
        component = ["--component", "web"] if picture == "lanes" else []
        run("simulate", "run.yaml", "--plot", name, "--picture", picture, *component)
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    run("simulate", "run.yaml", "--plot", "same.png")
    assert (folder / "same.png").read_bytes() == (folder / "mixture.png").read_bytes()


def test_files_and_options_are_looked_at_before_the_run(folder, monkeypatch):
    """What cannot be written, and an option that does nothing, is told at once."""
    pytest.importorskip("matplotlib")
    (folder / "taken.png").mkdir()
    (folder / "link.png").symlink_to("run.yaml")
    (folder / "link").symlink_to(".")

    def called(*args, **kwargs):
        raise AssertionError("the run was worked out")

    monkeypatch.setattr("zephon_jax.cli.commands.simulate_source", called)
    for args, text in (
        (["--plot", "out.xyz"], "out.xyz cannot be written: its name must end in one of"),
        (["--plot", "out"], "out cannot be written"),
        (["--plot", "none/out.png"], "--plot none/out.png: there is no folder none"),
        (["--plot", "taken.png"], "--plot taken.png is a folder"),
        (["--csv", "none/out.csv"], "--csv none/out.csv: there is no folder none"),
        (["--csv", "."], "--csv . is a folder"),
        (["--csv", ""], "--csv needs the name of a file; got ''"),
        (["--plot", ""], "--plot needs the name of a file; got ''"),
        (["--csv", "a.png", "--plot", "./a.png"], "--csv and --plot are one file, ./a.png"),
        (["--csv", "run.yaml"], "CONFIG and --csv are one file, run.yaml"),
        (["--plot", "link.png"], "CONFIG and --plot are one file, link.png"),
        (["--csv", "link/run.yaml"], "CONFIG and --csv are one file, link/run.yaml"),
        (["--plot", "a.png", "--picture", "lanes"], "--picture lanes needs --component"),
        (["--plot", "a.png", "--picture", "lanes", "--component", "wbe"], "no component 'wbe'"),
        (["--picture", "passes"], "--picture passes does nothing without --plot"),
        (["--plot", "a.png", "--component", "web"], "--component web does nothing without"),
    ):
        assert text in run("simulate", "run.yaml", *args, code=2)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("zephon_jax.analysis.simulate.count_chunks", called)
    for args, text in (
        (["--cache-bytes", "9"], "cache_bytes says nothing without window"),
        (["--window", "0"], "window must be at least 1"),
    ):
        assert text in run("simulate", "run.yaml", *args, code=2)


def test_options_that_do_nothing_are_refused(folder):
    for args, text in (
        (["describe", "--format", "jsonl", "run.yaml"], "--format is for paths"),
        (["index", "--format", "jsonl", "run.yaml"], "--format is for paths"),
        (["inspect", "lane0.state", "--step", "3"], "is a file: it has no steps to choose from"),
        (["audit", "run.yaml", "lane0.state", "--step", "3"], "has no steps to choose"),
        (["diff", "lane0.state", "lane1.state", "--chunks", "3"], "--chunks and --lanes are for"),
        (["diff", "saved", "saved", "--lanes", "3"], "these are states"),
    ):
        assert text in run(*args, code=2)


def test_one_is_said_as_one(folder):
    (folder / "one.yaml").write_text(
        "datasets: {a: {counts: [1]}}\nmixture: {a: 1}\nchunk_size: 1\n"
    )
    text = run("simulate", "one.yaml", "--window", 1)
    assert text.startswith("1 chunk, 1 sample, 1 lane (the whole run)")
    assert "first 1 chunk, by windows of 1: up to 1 shard in a window; 1 shard fetched" in text
    source = zx.load_config("one.yaml")
    (folder / "one.state").write_bytes(zx.encode_state(source.seek(1)))
    text = run("audit", "one.yaml", "one.state")
    assert text.startswith("1 lane has read 1 sample: the first 1 chunk\n  a: 1 sample; of the")
    (folder / "two.yaml").write_text((folder / "one.yaml").read_text() + "seed: 1\n")
    assert "no difference in the first 1 chunk\n" in run("diff", "one.yaml", "two.yaml", code=0)


def test_a_state_of_another_kind_of_source_belongs_to_no_configuration(folder):
    from support.sources import CountSource

    (folder / "own.state").write_bytes(zx.encode_state(CountSource().init()))
    said = run("inspect", "own.state", "--config", "run.yaml", code=1)
    assert "it belongs to a run with other kind of source than run.yaml" in said


def test_inspect(folder):
    text = run("inspect", "saved")
    assert "the state of an elastic iterator at step 6" in text
    assert "lanes: 4 of 4" in text
    assert "it belongs to run.yaml" in run("inspect", "saved", "--step", 3, "--config", "run.yaml")
    said = run("inspect", "saved", "--config", "whole.yaml", code=1)
    assert "! it belongs to a run with other exhausted_policy than whole.yaml\n" in said
    facts = as_json("inspect", "lane3.state")
    assert facts["lanes"][0]["chunk"] == zx.load_config("run.yaml").seek(12, 3, 4).chunk_index
    assert facts["missing"] == [0, 1, 2]
    assert "lane 3 of 4" in run("inspect", "lane3.state")


def test_audit(folder):
    text = run("audit", "run.yaml", "saved")
    assert text.startswith("4 lanes have read 48 samples")
    facts = as_json("audit", "run.yaml", "saved", "--step", 3)
    assert sum(facts["samples"].values()) == 24
    states = [f"lane{lane}.state" for lane in range(4)]
    facts = as_json("audit", "run.yaml", *states)
    assert facts["gaps"]  # which the lanes that lag behind will read yet
    twice = as_json("audit", "run.yaml", *states, "saved", code=1)
    assert twice["doubles"]
    assert facts["seen"]["web"]["0"] > 0
    assert as_json("audit", "run.yaml", *states[:2], code=1)["missing"] == [2, 3]
    assert "other exhausted_policy" in run("audit", "whole.yaml", "saved", code=2)


def test_audit_reads_chunks_as_the_configuration_says(folder):
    """Elastic states by lattice only where the file does not say otherwise."""
    text = (folder / "run.yaml").read_text()
    source = zx.load_config("run.yaml")
    dataset = zx.ElasticIterDataset(
        source, 4, lambda lane: lane.map(lambda row: row["sample_id"]), global_batch_size=4,
        process_index=0, process_count=1,
    )  # fmt: skip
    iterator = iter(dataset)
    next(iterator)
    zx.save_checkpoint(folder / "rows", iterator)
    iterator.close()
    # Round robin begins with the larger component in every lane, the lattice in three of four.
    for mode, web in (("lattice", 3), ("smooth_weighted_round_robin", 4), (None, 3)):
        said = text if mode is None else text.replace("40}", f"40, read: {{mode: {mode}}}}}")
        (folder / "read.yaml").write_text(said)
        facts = as_json("audit", "read.yaml", "rows")
        assert facts["samples"] == {"web": web, "code": 4 - web}, mode


def test_diff(folder):
    assert "the order is the same" in run("diff", "run.yaml", "run.yaml")
    facts = as_json("diff", "run.yaml", "whole.yaml", code=1)
    assert facts["settings"] == ["exhausted_policy"]
    source = zx.load_config("run.yaml")
    assert facts["chunk"] == zx.diff(source, zx.load_config("whole.yaml")).chunk
    assert "run.num_lanes differs: 4 against 1" in run("diff", "run.yaml", "whole.yaml", code=1)
    assert "at the same place" in run("diff", "saved", "saved")
    text = run("diff", "saved/step_0000000003", "saved/step_0000000006", code=1)
    assert text.count("slot") == 8
    text = run("diff", "lane0.state", "lane1.state", code=1)
    assert "only one of them has: 0, 1" in text
    assert "zephon-jax inspect" in run("diff", "run.yaml", "lane0.state", code=2)


def test_diff_reads_each_run_as_its_configuration_says(folder):
    text = (folder / "run.yaml").read_text()
    for name, said in (
        ("lattice", "num_chunks: 40, read: {mode: lattice}"), ("short", "num_chunks: 3"),
        ("long", "num_chunks: 50"),
    ):  # fmt: skip
        (folder / f"{name}.yaml").write_text(text.replace("num_chunks: 40", said))
    found = run("diff", "run.yaml", "lattice.yaml", code=1)
    assert "settings that differ: read_config\nthe order differs from chunk 0 on, slot" in found
    assert "the order is the same" not in found
    for chunks, expected in (("short", 3), ("long", 50)):
        plain = (folder / f"{chunks}.yaml").read_text() + "shuffle_shards: false\n"
        (folder / "first.yaml").write_text((folder / "short.yaml").read_text() + "seed: 7\n"
                                           "shuffle_shards: false\n")  # fmt: skip
        (folder / "second.yaml").write_text(plain)
        facts = as_json("diff", "first.yaml", "second.yaml", "--lanes", 1)
        assert (facts["num_chunks"], facts["same"], facts["proven"]) == (expected, True, False)
    assert (
        as_json("diff", "first.yaml", "second.yaml", "--lanes", 1, "--chunks", 2)["num_chunks"] == 2
    )


def test_diff_says_no_where_lanes_alone_differ(folder):
    """The order is the same, and each lane reads others of its chunks."""
    (folder / "two.yaml").write_text(
        (folder / "run.yaml").read_text().replace("lanes: 4", "lanes: 2")
    )
    assert "run.num_lanes differs: 4 against 2" in run("diff", "run.yaml", "two.yaml", code=1)
    facts = as_json("diff", "run.yaml", "two.yaml", code=1)
    assert facts["same"] is True
    assert as_json("diff", "run.yaml", "two.yaml", "--lanes", 4)["same"] is True


def test_locate(folder):
    source = zx.load_config("run.yaml")
    places = source.locate((1, 0, 7), 4, 40)
    found = as_json("locate", "run.yaml", "code", 0, 7)
    assert [tuple(place.values()) for place in found] == [tuple(place) for place in places]
    assert len(run("locate", "run.yaml", "code", 0, 7).splitlines()) == len(places) + 1
    unread = next(n for n in range(60) if not source.locate((1, 0, n), 4, 3))
    assert run("locate", "run.yaml", "code", 0, unread, "--chunks", 3) == "never\n"
    for args in (["--chunks", 0], ["--origin", 40], ["--chunks", 50, "--origin", 100]):
        said = run("locate", "run.yaml", "code", 0, 7, *args, code=2)
        assert "there is nothing to look at" in said
    end = zx.simulate(zx.load_config("whole.yaml")).num_chunks
    said = run("locate", "whole.yaml", "code", 0, 7, "--origin", end, code=2)
    assert f"the run ends before chunk {end}" in said
    last = as_json("locate", "whole.yaml", "code", 0, 7, "--origin", end - 1)
    assert all(place["chunk"] == end - 1 for place in last)
    places = source.locate((1, 0, 7), 3, 40, origin=8)
    found = as_json("locate", "run.yaml", "code", 0, 7, "--lanes", 3, "--origin", 8)
    assert [tuple(place.values()) for place in found] == [tuple(place) for place in places]
    said = run("locate", "run.yaml", "cod", 0, 7, code=2)
    assert "no dataset 'cod'" in said


def test_config(folder):
    run("config").index("chunk_size: 16384")
    assert as_json("config")["required"] == ["datasets"]
    assert run("config", "run.yaml").startswith("run.yaml is right: StaticMixtureWorkSource(")
    (folder / "bad.yaml").write_text("datsets: {}\n")
    assert "did you mean 'datasets'?" in run("config", "bad.yaml", code=2)


@pytest.mark.parametrize("args", [
    ["describe"], ["describe", "nothing"], ["index", "nothing"], ["simulate"],
    ["simulate", "nothing.yaml"], ["simulate", "run.yaml", "--lanes", "0"],
    ["simulate", "run.yaml", "--lanes", "x"],
    ["simulate", "run.yaml", "--chunks", "-1"],
    ["inspect"], ["inspect", "nothing"], ["inspect", "run.yaml"], ["inspect", "corpora"],
    ["inspect", "corpora/web/part-0.jsonl"], ["inspect", "saved", "--step", "9"],
    ["audit", "saved"], ["audit", "run.yaml", "nothing"],
    ["diff", "run.yaml"], ["diff", "run.yaml", "nothing.yaml"], ["diff", "nothing", "saved"],
    ["config", "nothing.yaml"], ["config", "corpora"], ["locate", "run.yaml", "web"],
    ["locate", "run.yaml", "web", "0", "999"], ["frobnicate"], ["--frobnicate"],
])  # fmt: skip
def test_mistakes_are_named_without_a_traceback(folder, args):
    said = run(*args, code=2)
    assert said.strip()
    assert "rror" in said


def test_runs_that_never_end_ask_for_a_number_of_chunks(folder):
    text = (folder / "run.yaml").read_text().replace(", num_chunks: 40", "")
    (folder / "endless.yaml").write_text(text)
    for args in (["simulate", "endless.yaml"], ["locate", "endless.yaml", "web", "0", "0"]):
        said = run(*args, code=2)
        assert "say how far to look with --chunks" in said


def test_damaged_states_are_told_from_whole_ones(folder):
    """Whatever is done to a file, the answer is words, and never that it is whole."""
    (file,) = (folder / "saved" / "step_0000000006").glob("lanes-*.json")
    whole = file.read_bytes()
    plain = json.loads(whole)["body"]
    state = folder / "state.json"
    state.write_text(json.dumps(plain))
    assert run("inspect", "state.json").startswith("the state of an elastic iterator at step 6")
    wrong = [None, 5, -1, "x", [], {}, [{}], "AAAA", {"0": 5}]
    places = [(), ("lanes",), ("num_lanes",), ("step",), ("lanes", "0"), ("lanes", "0", "pipeline")]
    places += [("lanes", "0", "pipeline", key) for key in ("lane", "num_lanes", "state", "slot")]
    for place in places:
        for value in wrong:
            changed = json.loads(json.dumps(plain))
            if place:
                inside = changed
                for key in place[:-1]:
                    inside = inside[key]
                inside[place[-1]] = value
            else:
                changed = value
            state.write_text(json.dumps(changed))
            for args in (["inspect", "state.json"], ["audit", "run.yaml", "state.json"],
                         ["diff", "state.json", "lane0.state"]):  # fmt: skip
                result = CliRunner().invoke(cli, args)
                assert result.exit_code in (0, 1, 2), (place, value, args)
                assert result.exception is None or isinstance(result.exception, SystemExit), (
                    place, value, args, result.exception,
                )  # fmt: skip
    for cut in (0, 1, 50, len(whole) - 2):
        file.write_bytes(whole[:cut])
        for args in (["inspect", "saved"], ["audit", "run.yaml", "saved"]):
            assert "lanes [0, 1, 2, 3]" in run(*args, "--step", "6", code=2)
            passed_over = CliRunner().invoke(cli, args)
            assert passed_over.exit_code == 0
            assert "warning: step 3 is taken instead of a later one" in passed_over.stderr
            assert f"{file.name} (lanes [0, 1, 2, 3])" in passed_over.stderr


class Locked(Exception):
    """What a storage's client raises: none of the errors that Python knows."""


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (
            Locked("Unable to locate\ncredentials"),
            "error: Locked: Unable to locate credentials\n",
            2,
        ),
        (MemoryError(), "error: MemoryError\n", 2),
        (RecursionError("too deep"), "error: RecursionError: too deep\n", 2),
        (KeyError("x"), "error: KeyError: 'x'\n", 2),
        (AssertionError(), "error: AssertionError\n", 2),
        (ValueError("wrong"), "error: wrong\n", 2),
        (OSError(), "error: OSError\n", 2),
        (KeyboardInterrupt(), "error: interrupted\n", 130),
    ],
)
def test_no_error_passes_for_an_answer(folder, monkeypatch, error, said, code):
    """1 says that the answer is no, and Python exits with it on its own."""

    def raises(*args):
        raise error

    monkeypatch.setattr("zephon_jax.cli.commands.load_states", raises)
    for args in (["inspect", "s3://x/y"], ["audit", "run.yaml", "s3://x/y"]):
        monkeypatch.delenv("ZEPHON_JAX_TRACEBACK", raising=False)
        result = CliRunner().invoke(cli, args)
        assert (result.exit_code, result.stdout, result.stderr) == (code, "", said)
        monkeypatch.setenv("ZEPHON_JAX_TRACEBACK", "1")
        result = CliRunner().invoke(cli, args)
        assert result.exit_code == code
        assert code != 2 or "Traceback" in result.stderr


def test_storage_without_credentials(folder, monkeypatch):
    pytest.importorskip("s3fs")
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(folder))
    for args in (["inspect", "s3://x/y"], ["audit", "run.yaml", "s3://x/y"]):
        said = run(*args, code=2)
        assert said.startswith("error: ")
        assert said.count("\n") == 1


def test_whoever_stops_reading_gets_the_exit_code(folder):
    """A closed pipe is no trouble: the code still says the answer, and nothing else is said."""
    (folder / "other.yaml").write_text((folder / "run.yaml").read_text() + "seed: 9\n")
    for args, code in (
        (["diff", "run.yaml", "other.yaml"], 1), (["diff", "run.yaml", "run.yaml"], 0),
        (["simulate", "run.yaml", "--json"], 0),
    ):  # fmt: skip
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [sys.executable, "-m", "zephon_jax", *args], stdout=writing, stderr=subprocess.PIPE,
            text=True, timeout=120,
        )  # fmt: skip
        os.close(writing)
        assert (done.returncode, done.stderr) == (code, ""), args


def test_the_real_command(folder):
    """In a process of its own: words on one stream, errors and warnings on the other."""
    command = [sys.executable, "-m", "zephon_jax"]

    def real(*args):
        return subprocess.run([*command, *args], capture_output=True, text=True, timeout=120)

    shown = real("--version")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert zx.__version__ in shown.stdout
    done = real("simulate", "run.yaml", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["num_chunks"] == 40
    wrong = real("simulate", "nothing.yaml")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: there is no configuration file nothing.yaml.\n"
    (folder / "same.yaml").write_text(
        "datasets: {a: corpora/web, b: corpora/web}\nmixture: {a: 1, b: 1}\nchunk_size: 8\n"
    )
    warned = real("config", "same.yaml")
    assert warned.returncode == 0
    assert warned.stderr.startswith("warning: datasets 'a' and 'b' read the same place")
    code = "import sys; sys.modules['click'] = None; from zephon_jax.__main__ import main; main()"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert bare.returncode == 2
    assert bare.stderr == 'zephon-jax needs click: pip install "zephon-jax[cli]".\n'


def test_names_that_would_break_a_line_are_escaped(folder):
    (folder / "odd.yaml").write_text(
        'datasets: {"a\\nb": {counts: [30]}, c: {counts: [9]}}\nmixture: {"a\\nb": 2, c: 1}\n'
        "chunk_size: 3\n"
    )
    source = zx.load_config("odd.yaml")
    (folder / "odd.state").write_bytes(zx.encode_state(source.seek(3)))
    for args, lines in (
        (["describe", "odd.yaml"], 3),
        (["simulate", "odd.yaml", "--chunks", "9"], 4),
        (["audit", "odd.yaml", "odd.state"], 3),
    ):
        said = run(*args).splitlines()
        assert len([line for line in said if not line.startswith("!")]) == lines
        assert sum("a\\nb" in line for line in said) >= 1


def test_show(folder):
    """The records of a batch are those that the run itself hands out there."""
    source = zx.load_config("whole.yaml")
    lanes = zx.ElasticIterDataset(
        source, 4, lambda lane: lane, process_index=0, process_count=1, global_batch_size=12,
        pad=True,
    )  # fmt: skip
    batches = list(lanes)
    for step in (0, 5, len(batches) - 1):
        shown = as_json("show", "whole.yaml", "--step", step, "--lanes", 4, "--batch-size", 12)
        batch = batches[step]
        for row, ids, record, real in zip(
            shown, batch["sample_id"], batch["data"]["n"], batch["row_mask"], strict=True
        ):
            if real:
                name = source.datasets_by_id[int(ids[0])].name
                assert (row["dataset"], row["shard"], row["sample"]) == (name, *ids[1:].tolist())
                assert row["record"] == repr({"n": int(record)})
            else:
                assert row["dataset"] is None
    text = run("show", "run.yaml", "--step", 2, "--batch-size", 8, "--rows", 3)
    assert text.splitlines()[0].split() == ["row", "lane", "dataset", "shard", "sample", "record"]
    assert len(text.splitlines()) == 5
    assert text.endswith("5 more rows: --rows 8 shows all\n")
    said = run("show", "whole.yaml", "--step", 10_000, code=2)
    assert "before the end of the run" in said
