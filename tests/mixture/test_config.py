"""Configuration files: the same source, and every mistake by name."""

from __future__ import annotations

import json
import random
import tomllib

import pytest
from support.sources import plain

import zephon_jax as zx
from zephon_jax.mixture.config import read_config_file
from zephon_jax.mixture.config_schema import TEMPLATE, schema

YAML = """
datasets:
  web: {counts: [60, 40]}
  toy: {counts: [30]}
mixture: {web: 3, toy: 1/2}
chunk_size: 10
seed: 7
shuffle_within_shard: {web: true, toy: false}
shuffle_block_size: auto
exhausted_policy: {web: redistribute, toy: repeat}
lane_assignment: modulo
allocation: virtual_time
run: {num_lanes: 8, num_chunks: 12, read: {mode: lattice}}
"""
TOML = """
chunk_size = 10
seed = 7
shuffle_within_shard = {web = true, toy = false}
shuffle_block_size = "auto"
exhausted_policy = {web = "redistribute", toy = "repeat"}
lane_assignment = "modulo"
allocation = "virtual_time"
[datasets]
web = {counts = [60, 40]}
toy = {counts = [30]}
[mixture]
web = 3
toy = "1/2"
[run]
num_lanes = 8
num_chunks = 12
read = {mode = "lattice"}
"""


@pytest.mark.parametrize(("suffix", "text"), [("yaml", YAML), ("yml", YAML), ("toml", TOML)])
def test_the_same_source_as_the_constructor(tmp_path, suffix, text):
    file = tmp_path / f"run.{suffix}"
    file.write_text(text)
    made = zx.StaticMixtureWorkSource(
        [zx.Dataset.from_counts("web", [60, 40]), zx.Dataset.from_counts("toy", [30])],
        {"web": 6, "toy": 1}, 10, 7, shuffle_within_shard={"web": True, "toy": False},
        shuffle_block_size="auto", exhausted_policy={"web": "redistribute", "toy": "repeat"},
        lane_assignment="modulo", allocation="virtual_time",
    )  # fmt: skip
    loaded = zx.load_config(file)
    assert zx.diff(made, loaded).proven
    state, other = made.init(1, 8), loaded.init(1, 8)
    assert zx.encode_state(state) == zx.encode_state(other)
    assert plain(made.next_chunk(state)[0]) == plain(loaded.next_chunk(other)[0])
    config = read_config_file(file)
    assert (config.num_lanes, config.num_chunks) == (8, 12)
    assert config.read == zx.MixtureReadConfig(mode="lattice")


def test_data_lies_relative_to_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "web"
    folder.mkdir(parents=True)
    for n in range(2):
        (folder / f"{n}.jsonl").write_text('{"a": 1}\n' * (n + 1))
    file = tmp_path / "run.yaml"
    monkeypatch.chdir("/")
    for path in ("data/web", "data/*/*.jsonl", str(folder), "[data/web/1.jsonl, data/web/0.jsonl]"):
        file.write_text(f"datasets: {{web: {path}}}\nmixture: {{web: 1}}\nchunk_size: 2\n")
        (dataset,) = zx.load_config(file).datasets_by_id.values()
        assert sorted(dataset.shard_counts.tolist()) == [1, 2]
    file.write_text(
        "datasets: {web: {path: data/web, format: parquet}}\nmixture: {web: 1}\nchunk_size: 2\n"
    )
    with pytest.raises(ValueError, match=r"run\.yaml: dataset 'web': there are no shards"):
        zx.load_config(file)


def test_tokens(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "datasets: {a: {counts: [90], num_bytes: [9000]}, b: {counts: [90], num_bytes: [900]}}\n"
        "mixture: {a: 1, b: 1}\nchunk_size: 11\ntoken_estimation: {ratios: {a: 0.25, b: 0.25}}\n"
    )
    chunk, _ = (source := zx.load_config(file)).next_chunk(source.init())
    assert chunk.counts.tolist() == [1, 10]


def test_measured_ratios_are_the_same_from_a_file(tmp_path):
    """What priming measured, written down, is the same number to the last bit."""
    toy = zx.Dataset.from_source("toy", ["a", "b c", "d e f"] * 50)
    tokens = zx.TokenEstimation(str.split)
    measured = zx.StaticMixtureWorkSource([toy], {"toy": 1}, 10, token_estimation=tokens).prime()
    ratios = measured.token_estimation.ratios
    file = tmp_path / "run.yaml"
    base = BASE.replace("[60]", "[60], num_bytes: [600]")
    for ratio in (*ratios.values(), 1, 2**32, 2**48, 1431655765, 123456789012345):
        file.write_text(base + f"token_estimation: {{ratios: {{web: {ratio / 2**32!r}}}}}\n")
        assert zx.load_config(file).token_estimation.ratios == {"web": ratio}
    file.write_text(base + "token_estimation: {ratios: {web: 1/3}}\n")
    assert zx.load_config(file).token_estimation.ratios == {"web": round(2**32 / 3)}


def test_merge_keys(tmp_path):
    """What `<<` brings in may be overridden, also where that is brought in again, or in a list."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "datasets:\n"
        "  a: &small {counts: [60], num_bytes: [6]}\n"
        "  b: &large {<<: *small, counts: [90]}\n"
        "  c: {<<: *large, num_bytes: [5]}\n"
        "  d: {<<: [{counts: [7]}, *large]}\n"
        "mixture: {<<: {<<: {a: 1, b: 9, c: 3}, b: 2}, d: 4, a: 5}\n"
        "chunk_size: 5\n"
    )
    source = zx.load_config(file)
    sets = source.datasets_by_id.values()
    assert [dataset.num_samples for dataset in sets] == [60, 90, 90, 7]
    assert [dataset.shard_bytes.tolist() for dataset in sets] == [[6], [6], [5], [6]]
    assert [float(share * 14) for share in source.settings.fractions] == [5, 2, 3, 4]


def test_weights_are_what_was_typed(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "datasets: {a: {counts: [9]}, b: {counts: [9]}, c: {counts: [9]}}\n"
        "mixture: {a: 1e-1, b: 1/3, c: 0.2}\nchunk_size: 3\n"
    )
    fractions = zx.load_config(file).settings.fractions
    assert [str(one / fractions[0]) for one in fractions] == ["1", "10/3", "2"]


def options_of(file, lines):
    """What some lines of YAML say, where any mapping may be: as storage options."""
    lines = ["datasets:", "  web:", "    path: x", "    storage_options:"] + [
        f"      {line}" for line in lines
    ]
    file.write_text("\n".join([*lines, "mixture: {web: 1}"]))
    return read_config_file(file).datasets["web"]["storage_options"]


def test_merges_do_not_grow_beyond_their_keys(tmp_path):
    """Ten of ten of ten, eight levels deep: ten keys, as each is there once."""
    file, ten = tmp_path / "run.yaml", ", ".join(f"k{n}: 1" for n in range(10))
    lines = [f"x0: &x0 {{{ten}}}"]
    lines += [f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}" for n in range(1, 9)]
    assert options_of(file, lines)["x8"] == {f"k{n}": 1 for n in range(10)}
    chain = ["x0: &x0 {k0: 1}"]
    chain += [f"x{n}: &x{n} {{<<: *x{n - 1}, k{n}: 1}}" for n in range(1, 2000)]
    with pytest.raises(ValueError, match="'<<' brings in more than 1,000,000 keys in all"):
        options_of(file, chain)


def test_what_is_merged_keeps_its_place(tmp_path):
    """The order of datasets breaks ties: the first place of a key, and the last of its values."""
    lines = ["a: &a {x: 1, y: 2, z: 3}", "b: {<<: [{y: 5, w: 4}, *a], z: 9, v: 0}"]
    found = options_of(tmp_path / "run.yaml", lines)["b"]
    assert list(found.items()) == [("x", 1), ("y", 5), ("z", 9), ("w", 4), ("v", 0)]


@pytest.mark.parametrize(("suffix", "text"), [("yaml", YAML), ("toml", TOML)])
def test_a_mark_at_the_beginning_is_no_part_of_the_text(tmp_path, suffix, text):
    file = tmp_path / f"run.{suffix}"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list(zx.load_config(file).component_ids()) == ["web", "toy"]


BASE = "datasets: {web: {counts: [60]}}\nmixture: {web: 1}\nchunk_size: 5\n"
WRONG = {
    "an unknown key": ("chunk_sise: 4\n" + BASE, "unknown key 'chunk_sise' in the file; did you"),
    "nothing near": ("zzz: 4\n" + BASE, "unknown key 'zzz' in the file; known keys are"),
    "in a dataset": ("datasets: {web: {count: [1]}}\nmixture: {web: 1}\n", "did you mean 'counts'"),
    "in run": (BASE + "run: {lanes: 4}\n", "unknown key 'lanes' in run; did you mean 'num_lanes'"),
    "in read": (BASE + "run: {read: {mod: lattice}}\n", "unknown key 'mod' in run.read; did you"),
    "a key twice": (BASE + "seed: 1\nseed: 2\n", "key 'seed' is there twice"),
    "no mixture": ("datasets: {web: {counts: [60]}}\n", "key 'mixture' is missing"),
    "no datasets": ("mixture: {web: 1}\n", "key 'datasets' is missing"),
    "nothing": ("", "the file must be a mapping"),
    "a list": ("- 1\n", "the file must be a mapping"),
    "broken": ("datasets: [\n", "not YAML"),
    "no data": ("datasets: {web: {}}\nmixture: {web: 1}\n", "needs a 'path', or 'counts'"),
    "both": (
        "datasets: {web: {path: x, num_bytes: [1]}}\nmixture: {web: 1}\n", "goes with 'counts'",
    ),
    "format": (
        "datasets: {web: {counts: [1], format: jsonl}}\nmixture: {web: 1}\n", "need a 'path'",
    ),
    "a number for a path": ("datasets: {web: {path: 5}}\nmixture: {web: 1}\n", "must be text"),
    "no path": ("datasets: {web: {path: ''}}\nmixture: {web: 1}\n", "web.path is empty; for the"),
    "no path alone": ("datasets: {web: ''}\nmixture: {web: 1}\n", "datasets.web.path is empty"),
    "no path in a list": ("datasets: {web: [x, '']}\nmixture: {web: 1}\n", "web.path is empty"),
    "a number for a name": ("datasets: {5: {counts: [1]}}\nmixture: {web: 1}\n", "in quotes"),
    "a weight": (BASE.replace("web: 1}", "web: lots}"), "a number or a fraction such as '1/3'"),
    "a negative weight": (BASE.replace("web: 1}", "web: -1}"), r"mixture\['web'\] = -1"),
    "another name": (BASE.replace("web: 1}", "web: 1, wbe: 2}"), "mixture names"),
    "a setting": (BASE + "lane_assignment: sideways\n", "must be one of"),
    "a combination": (BASE + "stop_after_passes: 1\nmax_repeats: 2\n", "cannot be combined"),
    "a mode": (BASE + "run: {read: {mode: zigzag}}\n", "mode must be one of"),
    "lanes": (BASE + "run: {num_lanes: 0}\n", "run.num_lanes must be"),
    "a merge of nothing": (BASE.replace("{counts", "{<<: 3, counts"), "must bring in mappings"),
    "two merges": (BASE.replace("{counts", "{<<: {}, <<: {}, counts"), "key '<<' is there twice"),
    "deep lists": ("x: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    "deep mappings": ("x: " + "{a: " * 3000 + "}" * 3000, "nested too deeply"),
    "a huge weight": (BASE.replace("web: 1}", "web: 1e999999999}"), "300; got '1e999999999'"),
    "a tiny weight": (BASE.replace("web: 1}", "web: 1e-301}"), "-300 and 300; got '1e-301'"),
    "storage options": (
        "datasets: {web: {path: x, storage_options: 3}}\nmixture: {web: 1}\n",
        "datasets.web.storage_options must be a mapping of names to values; it is 3",
    ),
    "ratios": (BASE + "token_estimation: {ratios: 3}\n", "ratios must be a mapping of names"),
    "a ratio": (BASE + "token_estimation: {ratios: {web: x}}\n", "ratios.web must be a number"),
    "a tokenizer": (BASE + "token_estimation: {tokenizer: os.system}\n", "unknown key 'tokenizer'"),
    "tokens": (BASE + "token_estimation: {tokenizer_name: x}\n", "must give either 'ratios'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_the_file(tmp_path, name):
    text, said = WRONG[name]
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises((TypeError, ValueError), match=r"run\.yaml: ") as caught:
        zx.load_config(file)
    assert caught.match(said)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "bad.toml").write_text("x = = 1")
    (tmp_path / "deep.toml").write_text("x = " + "[" * 3000 + "]" * 3000)
    for name, error, text in (
        ("none.yaml", FileNotFoundError, "no configuration file"),
        ("run.json", ValueError, "ends in one of"),
        ("folder.yaml", ValueError, "is a folder"),
        ("bytes.yaml", ValueError, "not UTF-8"),
        ("bad.toml", ValueError, "not TOML"),
        ("deep.toml", ValueError, "nested too deeply"),
    ):
        with pytest.raises(error, match=text):
            zx.load_config(tmp_path / name)


def test_without_pyyaml_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "run.yaml").write_text(BASE)
    (tmp_path / "run.toml").write_text(TOML)
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(ImportError, match=r'pip install "zephon-jax\[cli\]", or write'):
        zx.load_config(tmp_path / "run.yaml")
    assert len(zx.load_config(tmp_path / "run.toml").datasets_by_id) == 2


def tokens_of(known):
    kinds = known["token_estimation"]["anyOf"][0]["oneOf"]
    return {key for kind in kinds for key in kind["properties"]}


def test_the_template_is_right_and_explains_every_key(tmp_path):
    for folder in ("corpora/web", "corpora/code"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "corpora" / "web" / "0.jsonl").write_text('{"a": 1}\n' * 90)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"text": [str(n) for n in range(50)]})
    parquet.write_table(table, tmp_path / "corpora" / "code" / "0.parquet")
    (tmp_path / "run.yaml").write_text(TEMPLATE)
    source = zx.load_config(tmp_path / "run.yaml")
    assert list(source.component_ids()) == ["web", "code", "toy"]
    assert source.chunk_size_hint() == 16384
    known = schema()["properties"]
    for key in (*known, *known["run"]["properties"], *tokens_of(known)):
        if key not in ("tokenizer_name",):
            assert f"{key}:" in TEMPLATE or key in TEMPLATE, key


def test_stages(tmp_path):
    lines = [
        "datasets: {web: {counts: [90]}, toy: {counts: [30]}}",
        "chunk_size: 10",
        "ramp: linear",
        "stages:",
        "- {mixture: {web: 1/3, toy: 0}, until: 3, ramp: step}",
        "- {mixture: {web: 1, toy: 0}, until: 7}",
        "- {mixture: {web: 1, toy: 1}}",
    ]
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    source = zx.load_config(tmp_path / "run.yaml")
    datasets = [zx.Dataset.from_counts("web", [90]), zx.Dataset.from_counts("toy", [30])]
    made = [
        zx.Stage(until=3, mixture={"web": 1, "toy": 0}, ramp="step"),
        zx.Stage(until=7, mixture={"web": 1, "toy": 0}, ramp="linear"),
        zx.Stage(mixture={"web": 1, "toy": 1}),
    ]
    expected = zx.ScheduledMixtureWorkSource(datasets, made, chunk_size=10)
    assert zx.encode_state(source.seek(5)) == zx.encode_state(expected.seek(5))
    assert source.boundaries == (0, 3, 7)
    lines[4] = lines[4].replace("3, ramp", "{samples: 34}, ramp")
    lines[5] = lines[5].replace("until: 7", "until: {samples: 70}")
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    assert zx.load_config(tmp_path / "run.yaml").boundaries == (0, 3, 7)
    lines[4] = lines[4].replace("{samples: 34}", "{tokens: 580}")
    lines[5] = lines[5].replace("{samples: 70}", "{tokens: 1400}")
    lines.append("token_estimation: {shard_totals: {web: [1800], toy: [900]}}")
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    boundaries = zx.load_config(tmp_path / "run.yaml").boundaries
    assert boundaries[:2] == (0, 3)  # 200 tokens a chunk of web, somewhat more of toy
    assert boundaries[2] in (6, 7)
    lines[5] = lines[5].replace("{tokens: 1400}", "{tokens: 1400, samples: 3}")
    (tmp_path / "run.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"stages\[1\].until must give chunks, 'samples' or"):
        zx.load_config(tmp_path / "run.yaml")


def test_the_schema_is_plain_json():
    found = schema()
    assert json.loads(json.dumps(found)) == found
    assert tomllib.loads(TOML).keys() <= found["properties"].keys()
    assert set(found["required"]) <= found["properties"].keys()


ANYTHING = [None, {}, [], "", 0, 1, -1, 2**61, True, False, "x", 0.5, [1], [None], {"web": None},
            {"web": 1, "toy": 2}, {"": 1}, [[]], {"web": {}, "toy": {}}]  # fmt: skip
FITTING = {
    ("datasets", "web"): ["data", ["data"], {"path": "data"}, {"counts": [1, 2]}],
    ("datasets", "web", "counts"): [[5, 0], [0, 3, 2]],
    ("datasets", "web", "num_bytes"): [[5, 6]],
    ("datasets", "data", "path"): ["data", ["data"]],
    ("datasets", "data", "format"): ["jsonl", "nothing"],
    ("datasets", "data", "columns"): [],
    ("datasets", "data", "storage_options"): [{"auto_mkdir": False}],
    ("datasets", "data", "counts"): [[2]],
    ("mixture", "web"): [
        "1/3", "1/0", "1e300", "1e301", ".5", "5.", ".", "1e", "-1/2", " 3 ", "+2",
    ],
    ("chunk_size",): [7, 2**28, 2**28 + 1],
    ("seed",): [-5, 2**70],
    ("shuffle_shards",): [{"web": True, "toy": False, "data": True}],
    ("shuffle_within_shard",): [],
    ("shuffle_block_size",): ["auto", "global", {"web": None, "toy": "auto", "data": 4}, 2**60],
    ("exhausted_policy",): ["stop", {"web": "stop", "toy": "repeat", "data": "redistribute"}],
    ("reshuffle_on_repeat",): [],
    ("max_repeats",): [3, {"web": None, "toy": 1, "data": 0}],
    ("stop_after_passes",): [3, 2**31, 2**31 + 1],
    ("lane_assignment",): ["permute", "modulo"],
    ("allocation",): ["fixed", "incremental", "virtual_time"],
    ("token_estimation",): [
        {"shard_totals": {"web": [9, 9], "toy": [2], "data": [7]}, "tokenizer_name": None},
        {"ratios": {"web": 1, "toy": "1/2", "data": 0.25}, "tokenizer_name": "t"},
        {"ratios": {"web": 0, "toy": 1, "data": 1}}, {"tokenizer_name": "t"}, {"ratios": None},
        {"ratios": {"web": 1, "toy": 1, "data": 1}, "shard_totals": None},
    ],
    ("run",): [{"num_lanes": 4}],
    ("run", "num_lanes"): [], ("run", "num_chunks"): [], ("run", "read"): [],
    ("run", "read", "mode"): ["lattice"], ("run", "read", "seed"): [],
    ("run", "read", "shuffle_within_component"): [],
    ("datasets",): [], ("mixture",): [], ("unknown",): [],
    ("stages",): [[{"mixture": {"web": 1, "toy": 1, "data": 1}}]], ("ramp",): ["step"],
}  # fmt: skip
STAGED = {
    ("stages",): [[]], ("stages", 0): [], ("stages", 0, "until"): [
        7, {"samples": 30}, {"samples": -1}, {"samples": 2.5}, {"chunks": 3},
        {"tokens": 30}, {"tokens": "x"}, {"samples": 3, "tokens": 4}, {}, 2**62, 2**63,
    ],
    ("stages", 0, "ramp"): ["cosine", "step"], ("stages", 0, "mixture"): [],
    ("stages", 0, "mixture", "web"): ["1/3", "1/0"], ("stages", 0, "unknown"): [],
    ("ramp",): ["linear"], ("mixture",): [{"web": 1, "toy": 1, "data": 1}],
}  # fmt: skip
# What joins several keys, or names and data: a schema has nothing to say of it.
ACROSS = (
    "must name every dataset and no other", "must give every dataset a weight",
    "Give one for each shard", "does not exist", "until is missing", "ascending order",
    "must have a positive weight", "until must be at most", "needs a mixture in tokens",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_schema_and_the_loader_agree(tmp_path, monkeypatch):
    """About every key with every kind of value, and a value of each kind in the place of each."""
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.jsonl").write_text('{"a": 1}\n' * 2)
    monkeypatch.setenv("ZEPHON_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    validator = jsonschema.Draft202012Validator(schema())
    yaml = pytest.importorskip("yaml")
    file, rng, taken = tmp_path / "run.yaml", random.Random(0), set()
    cases = [((place, value),) for place in FITTING for value in [*FITTING[place], *ANYTHING]]
    for _ in range(100):
        two = rng.sample(list(FITTING), 2)
        cases.append(tuple((p, rng.choice([*FITTING[p], *ANYTHING])) for p in two))
    staged = len(cases)
    cases += [((place, value),) for place in STAGED for value in [*STAGED[place], *ANYTHING[::3]]]
    for number, case in enumerate(cases):
        raw = {
            "datasets": {
                "web": {"counts": [5, 5], "num_bytes": [9, 9]},
                "toy": {"counts": [5], "num_bytes": [9]}, "data": {"path": "data"},
            },
            "mixture": {"web": 3, "toy": 1, "data": 1}, "chunk_size": 5, "run": {"read": {}},
        }  # fmt: skip
        if number >= staged:
            mix = raw.pop("mixture")
            raw["stages"] = [{"mixture": dict(mix), "until": 4}, {"mixture": mix}]
        for place, value in case:
            inside = raw
            for key in place[:-1]:
                within = isinstance(inside, (dict, list)) and (key == 0 or key in inside)
                inside = inside[key] if within else None
            if isinstance(inside, (dict, list)):
                inside[place[-1]] = value
        file.write_text(yaml.safe_dump(raw, sort_keys=False))
        try:
            zx.load_config(file)
        except (TypeError, ValueError, OSError) as error:
            said = str(error)
        else:
            said = ""
        allowed = validator.is_valid(raw)
        if said and allowed:
            assert any(text in said for text in ACROSS), (case, said)
        else:
            assert allowed == (not said), (case, said)
        taken.add((allowed, not said))
    assert taken == {(True, True), (True, False), (False, False)}
