"""Notebooks run as they are committed, print what they show, and hold their pictures.

After a change: `jupyter execute --inplace notebooks/*.ipynb`, and look at them.
"""

from __future__ import annotations

import os
import pathlib
import sys

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STRICT = "import warnings; warnings.simplefilter('error')"
LENIENT = "warnings.resetwarnings()"  # for the kernel's own end


def outputs_of(notebook):
    """What each cell of code printed, and how many pictures it drew."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            printed = "".join(out.text for out in cell.outputs if out.output_type == "stream")
            pictures = sum("image/png" in out.get("data", {}) for out in cell.outputs)
            found.append((cell.source, printed, pictures))
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path[1:]]))
    shown = outputs_of(nbformat.read(path, as_version=4))
    notebook = nbformat.read(path, as_version=4)
    before, after = map(nbformat.v4.new_code_cell, (STRICT, LENIENT))
    notebook.cells = [before, *notebook.cells, after]
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    ran = outputs_of(client.execute())[1:-1]
    for (source, printed, pictures), expected in zip(ran, shown, strict=True):
        assert (printed, pictures) == expected[1:], source
    assert sum(pictures for _, _, pictures in ran) > 0


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 5
