"""Code blocks of Markdown pages: what they run, and what the page says that they print."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import tomllib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
_FENCE = re.compile(
    r"^( *)```([\w-]*)[^\n]*\n(.*?)^ *```$(?:\n+ *```text\n(.*?)^ *```$)?", re.M | re.S
)
_SNIPPET = re.compile(r"^--8<--\n(.+)\n--8<--$", re.M)


class Block(NamedTuple):
    """A fenced block and the block of text that follows it, which is what it prints."""

    language: str
    line: int  # of the opening fence
    code: str
    shown: str | None


def blocks_of(page: pathlib.Path) -> list[Block]:
    """The blocks of a page, files that are included in place of the lines that include them."""
    text = page.read_text()
    return [
        Block(
            language,
            text.count("\n", 0, match.start()) + 1,
            _SNIPPET.sub(lambda m: (ROOT / m[1]).read_text(), textwrap.dedent(code)),
            shown,
        )
        for match in _FENCE.finditer(text)
        for _, language, code, shown in [match.groups()]
    ]


def run_python(page: pathlib.Path, block: Block, names: dict[str, object]) -> str:
    """Runs a block among the page's names; returns what it prints, an error that is shown too."""
    printed = io.StringIO()
    code = compile("\n" * block.line + block.code, str(page), "exec")
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, names)
    except Exception as error:
        name = type(error).__name__
        if f"{name}:" not in (block.shown or ""):
            raise
        printed.write(f"{name}: {error}\n")
    return printed.getvalue()


def check_installation(line: str) -> None:
    """Checks a line that installs: its extras and the scripts that it goes on to are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"\[([\w,-]+)\]", line)
    assert set(",".join(extras).split(",")) - {""} <= set(project["optional-dependencies"]), line
    assert all((ROOT / script).exists() for script in re.findall(r"python (\S+\.py)", line)), line


def run_console(block: Block, folder: pathlib.Path) -> str:
    """Runs lines after a prompt; returns them and what they print. Installations are not run."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    modules = os.pathsep.join([str(ROOT), *sys.path[1:]])
    shown = []
    for line in block.code.splitlines():
        if line.startswith(("pip install", "$ pip install")):
            check_installation(line)
            shown.append(line)
        elif line.startswith("$ "):
            # The command of this tree, whatever the environment has installed.
            command = line[2:].replace("zephon-jax ", "python -m zephon_jax ")
            done = subprocess.run(
                command, shell=True, cwd=folder, text=True, timeout=120,
                env={**os.environ, "PATH": path, "PYTHONPATH": modules},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            shown += [line, done.stdout]
    return "\n".join(shown)


def same_text(left: str, right: str) -> bool:
    """Equal but for white space: pages break long lines."""
    return left.split() == right.split()


def run_page(page: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Runs a page's blocks one after the other in a folder; returns what each printed."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for block in blocks_of(page):
            if block.language == "python":
                out = run_python(page, block, names)
                wanted = block.shown
            elif block.language == "console":
                out = run_console(block, folder)
                wanted = block.code
            else:
                assert block.language in ("yaml", "toml", "text"), (page, block)
                if name := re.match(r"# (\S+\.(?:yaml|toml))\n", block.code):
                    (folder / name[1]).write_text(block.code)
                continue
            if wanted is not None:
                assert same_text(out, wanted), f"{page}:{block.line} printed\n{out}"
            printed.append(out)
    return printed
