"""Every code block of the README runs as it stands, one after the other."""

from __future__ import annotations

import re

from support.markdown_pages import ROOT, run_page

README = ROOT / "README.md"


def test_code_blocks_run(tmp_path):
    printed = run_page(README, tmp_path)
    assert len(printed) >= 3
    assert any("WorkChunk(chunk_index=0" in out for out in printed)


def test_what_it_names_is_there():
    """Paths in code font, and the targets of links, exist."""
    text = README.read_text()
    named = re.findall(
        r"`((?:docs|examples|notebooks|benchmarks|tests|zephon_jax)/[\w./-]*)`", text
    )
    named += [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
