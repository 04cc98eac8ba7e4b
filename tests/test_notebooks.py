"""Notebooks run as they are committed and print what they show."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in cells:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
        shown = "".join(line for out in cell["outputs"] for line in out["text"])
        assert printed.getvalue() == shown
    assert cells


def test_there_are_notebooks():
    assert NOTEBOOKS
