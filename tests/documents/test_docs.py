"""The guide: its code runs and prints what it shows, its quotes are true, its links lead on."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys

import pytest
from support.markdown_pages import ROOT, run_page

import zephon_jax as zx
from zephon_jax.data.formats import FORMATS

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SCRIPTS = sorted((ROOT / "examples" / "guide").rglob("*.py"))
# Words that newcomers search for, each with a section that answers.
SOUGHT = {
    "data loader": "grain/",
    "deterministic": "guarantees/",
    "epoch": "configuration/#stop_after_passes",
    "loss spike": "inspecting/#locate",
    "preemption": "checkpoints/",
    "reproducible": "guarantees/",
    "resharding": "elastic/#another-number-of-lanes",
    "sampler": "concepts/#a-source-is-a-pure-function",
    "shuffle buffer": "configuration/#shuffle_block_size",
    "storage_options": "data/#remote-files",
    "validation": "evaluation/",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_blocks_run(page, tmp_path):
    printed = run_page(page, tmp_path)
    has_code = re.search(r"^ *```(python|console)", page.read_text(), re.M)
    assert bool(printed) == bool(has_code)


def test_site_builds(tmp_path):
    """Strict: broken links and unknown references are errors. Its search finds usual words."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "reference" / "index.html").read_text()
    for name in zx.__all__:
        value = getattr(zx, name)
        if not inspect.ismodule(value):
            assert f'id="{value.__module__}.{name}"' in reference
    search = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    sections = {part["location"]: f"{part['title']} {part['text']}" for part in search["docs"]}
    for word, location in SOUGHT.items():
        assert word in sections[location].lower(), word
    terms = " ".join(part["title"] for part in search["docs"] if "glossary/#" in part["location"])
    for word in SOUGHT.keys() - {"storage_options"}:
        assert word in terms.lower(), word


def test_scripts_run():
    """Each is a page's code block, and runs as it stands, with warnings as errors."""
    pages = "".join(page.read_text() for page in PAGES)
    assert len(SCRIPTS) >= 5
    for script in SCRIPTS:
        assert f"--8<--\n{script.relative_to(ROOT).as_posix()}\n--8<--" in pages
        command = [sys.executable, "-W", "error", str(script)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, cwd=script.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_every_setting_is_told():
    """The configuration reference has a section for each setting of a mixture and its reading."""
    told = set(re.findall(r"^#+ `(\w+)`", (DOCS / "configuration.md").read_text(), re.M))
    for settings in (zx.StaticMixtureWorkSource, zx.MixtureReadConfig):
        assert set(inspect.signature(settings).parameters) <= told
    cells = set(re.findall(r"`(\w+)`", (DOCS / "configuration.md").read_text()))
    assert set(inspect.signature(zx.ElasticIterDataset).parameters) - {"source"} <= cells
    named = re.findall(r"\$(ZEPHON_JAX_\w+)`", " ".join(_messages()))
    assert set(named) <= cells


def test_every_format_is_told():
    table = (DOCS / "data.md").read_text()
    assert all(f"| `{name}` |" in table for name in FORMATS)


def _messages():
    """Every string of the package; what is put in at run time is a null character."""
    for path in sorted((ROOT / "zephon_jax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                yield "".join(map(str, parts))


def test_quoted_messages_are_in_the_code():
    page = (DOCS / "troubleshooting.md").read_text()
    quotes = [re.sub(r"\n> ?", " ", q)[2:].strip() for q in re.findall(r"(?:^> .*\n)+", page, re.M)]
    assert len(quotes) >= 20
    messages = "\1".join(_messages())
    for quote in quotes:
        parts = [re.escape(part.strip()) for part in quote.rstrip("…").split("…")]
        assert re.search("[^\1]*?\0[^\1]*?".join(parts), messages), quote
