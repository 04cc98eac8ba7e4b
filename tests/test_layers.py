"""What importing costs and touches."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import zephon_jax

PACKAGE = pathlib.Path(zephon_jax.__file__).parent
LAYERS = [
    ["_xp", "per_process", "wording"],
    ["weights", "keys", "balance", "token_ratios"],
    [
        "quota",
        "rare",
        "swrr",
        "lattice",
        "permutation",
        "cursor",
        "runs",
        "draws",
        "lanes",
        "kernels",
        "backend",
    ],
    ["allocation", "costs", "virtual_many", "virtual_time"],
    [
        "reading",
        "chunk",
        "state",
        "codec",
        "places",
        "contract",
        "lane_shell",
        "source",
        "positions",
        "eras",
        "knobs",
        "relane",
    ],
    ["locate", "chunk_ids", "run_index", "lane_states"],
    ["mixture_run", "run_source", "static_mixture"],
    ["run_rows"],
    ["shard_reads", "simulation", "simulate_words", "simulate"],
    ["saved_states", "progress", "seen", "audit", "diff", "inspect_state"],
]


def run(code):
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(ran.stdout)


def test_schedules_need_neither_jax_nor_grain():
    """Building, stepping, saving and reading orders: no JAX module is even imported."""
    loaded = run(
        "import sys, json, zephon_jax as zx\n"
        "toy = zx.Dataset.from_counts('toy', [100, 50])\n"
        "source = zx.StaticMixtureWorkSource([toy], {'toy': 1}, chunk_size=10)\n"
        "chunk, state = source.next_chunk(source.init()); chunk.order(); source[3]; len(source)\n"
        "zx.decode_state(source, zx.encode_state(state))\n"
        "zx.simulate(source, num_lanes=2); source.locate((0, 0, 7)); zx.audit(source, [state])\n"
        "rare = source.replace(datasets=[toy, zx.Dataset.from_counts('rare', [9])],\n"
        "    mixture={'toy': 1, 'rare': 0.0001}, exhausted_policy='repeat')\n"
        "zx.simulate(rare, 5000)\n"
        "print(json.dumps([m for m in ('jax', 'grain', 'array_record') if m in sys.modules]))"
    )
    assert loaded == []


def test_no_jax_backend_is_initialized():
    """`jax.distributed.initialize` must still be possible after building and stepping."""
    started = run(
        "import json, jax, grain, zephon_jax as zx\n"
        "from zephon_jax import LaneIterDataset, MixtureMapDataset\n"
        "toy = zx.Dataset.from_source('toy', list(range(50)))\n"
        "source = zx.StaticMixtureWorkSource([toy], {'toy': 1}, chunk_size=10)\n"
        "chunk, state = source.next_chunk(source.init(1, 2)); chunk.order(); source[3]\n"
        "zx.decode_state(source, zx.encode_state(state))\n"
        "next(iter(LaneIterDataset(source))); MixtureMapDataset(source)[3]\n"
        "from jax._src import xla_bridge\n"
        "print(json.dumps(xla_bridge.backends_are_initialized()))"
    )
    assert started is False


def imports_of(module):
    """Modules of this package, jax and grain that a module imports at its top level."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "zephon_jax":
            found |= {f"zephon_jax.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("module", [m for layer in LAYERS for m in layer])
def test_modules_import_from_their_own_row_or_above(module):
    row = next(i for i, layer in enumerate(LAYERS) if module in layer)
    allowed = {f"zephon_jax.{m}" for layer in LAYERS[: row + 1] for m in layer}
    imported = imports_of(module)
    assert {m for m in imported if m.startswith("zephon_jax")} <= allowed
    assert not any(m.split(".")[0] in ("jax", "grain") for m in imported)


def test_all_is_complete():
    for path in PACKAGE.rglob("*.py"):
        names = {
            target.id
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assert "__all__" in names, path.name
    assert set(zephon_jax.__all__) <= set(dir(zephon_jax))
    for name in zephon_jax.__all__:
        assert getattr(zephon_jax, name) is not None
