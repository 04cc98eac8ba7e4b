"""Every code block of the README runs as it stands, one after the other."""

from __future__ import annotations

import pathlib
import re

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_code_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert "WorkChunk(chunk_index=0" in capsys.readouterr().out
