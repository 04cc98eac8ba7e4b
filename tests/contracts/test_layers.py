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
# Who may import whom: a folder imports itself and folders of a lower rank.
RANKS = {
    "kernels": 1,
    "data": 2,
    "sources": 2,
    "mixture": 3,
    "pipelines": 4,
    "elastic": 5,
    "analysis": 6,
    "cli": 7,
}
HELPERS = {
    "_arrays", "_atomic_file", "_bounded_cache", "_checked_json", "_compat", "_process", "_text",
    "_warn",
}  # fmt: skip
LIGHT = {"kernels", "data", "sources", "mixture"}  # neither JAX nor Grain at their top level
MODULES = sorted(PACKAGE.rglob("*.py"))


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


def test_commands_answer_without_waiting_for_jax_or_grain(tmp_path):
    """Importing both takes five times as long as answering."""
    (tmp_path / "run.yaml").write_text(
        "datasets: {a: {counts: [30]}, b: {counts: [9]}}\nmixture: {a: 2, b: 1}\nchunk_size: 3\n"
    )
    path = str(tmp_path / "run.yaml")
    commands = [["simulate", path], ["describe", path], ["diff", path, path], ["config", path]]
    loaded = run(
        "import sys, json, io, contextlib\n"
        "from zephon_jax.__main__ import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    for command in {commands!r}:\n"
        "        sys.argv = ['zephon-jax', *command]\n"
        "        with contextlib.suppress(SystemExit):\n"
        "            main()\n"
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


def folder_of(module):
    """The folder of a module's dotted name below the package; the module itself at its root."""
    return module.split(".")[1] if "." in module else ""


def imports_of(path, everywhere):
    """Dotted names that a module imports, at its top level or in its functions too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports name their package"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_between_folders_point_one_way(path):
    """Imports in functions too: one that is late to break a circle is an arrow all the same."""
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    ours = {folder_of(name) for name in imports_of(path, True) if name.startswith("zephon_jax.")}
    if own in HELPERS:
        assert ours <= HELPERS
        return
    lower = {room for room, rank in RANKS.items() if rank < RANKS[own]}
    assert ours <= {own, "__version__"} | lower | HELPERS


@pytest.mark.parametrize("room", sorted(LIGHT))
def test_schedules_and_data_import_neither_jax_nor_grain(room):
    for path in (PACKAGE / room).rglob("*.py"):
        tops = {name.split(".")[0] for name in imports_of(path, False)}
        assert not tops & {"jax", "grain"}, path


def test_every_room_says_what_it_is():
    for room in RANKS:
        tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
        assert len(ast.get_docstring(tree) or "") > 200, room
        assert not list(imports_of(PACKAGE / room / "__init__.py", True)), room
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(RANKS)


def test_all_is_complete():
    for path in MODULES:
        names = {
            target.id
            for node in ast.parse(path.read_text()).body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        assert "__all__" in names, path.name
    assert set(zephon_jax.__all__) <= set(dir(zephon_jax))
    for name in zephon_jax.__all__:
        assert getattr(zephon_jax, name) is not None
