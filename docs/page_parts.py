"""Puts into pages what is kept elsewhere: public names, and the pictures of notebooks."""

import json
import pathlib
import re
import types

import zephon_jax

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"


def public_names():
    """An entry for every public name but the modules, so that none is forgotten."""
    values = {name: getattr(zephon_jax, name) for name in sorted(zephon_jax.__all__)}
    return "\n".join(
        f"::: {value.__module__}.{name}\n"
        for name, value in values.items()
        if not isinstance(value, types.ModuleType)
    )


def picture(match):
    """The n-th picture of a notebook, as it was committed, with words for those who see none."""
    notebook, number, words = match.groups()
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text())["cells"]
    outputs = [out.get("data", {}) for cell in cells for out in cell.get("outputs", [])]
    found = [data["image/png"] for data in outputs if "image/png" in data]
    data = "".join(found[int(number)]).replace("\n", "")
    return f'<img alt="{words}" src="data:image/png;base64,{data}">'


def on_page_markdown(markdown, **kwargs):
    """Replaces the comments that ask for something."""
    markdown = markdown.replace("<!-- every public name -->", public_names())
    return re.sub(r"<!-- picture (\w+) (\d+): (.+?) -->", picture, markdown)
