"""The example of token mixtures runs offline and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "token_mixture.py"


def test_script(tmp_path):
    cache, picture = tmp_path / "cache", tmp_path / "shares.png"
    command = [sys.executable, str(SCRIPT), "--steps", "100"]
    done = subprocess.run(
        [*command, "--cache-dir", str(cache), "--picture", str(picture)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    by_documents, by_tokens = done.stdout.split("weights of tokens\n")

    def last_shares(text):
        line = next(line for line in text.splitlines() if re.match(r" +100 ", line))
        percents = [float(share) for share in re.findall(r"([\d.]+)%", line)]
        return percents[::2], percents[1::2]  # of documents, of tokens

    documents, tokens = last_shares(by_documents)
    assert all(30 < share < 37 for share in documents)
    assert tokens[0] < 1
    assert tokens[2] > 60
    documents, tokens = last_shares(by_tokens)
    assert documents[0] > 95
    assert all(25 < share < 42 for share in tokens)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(cache.glob("unfinished-*"))
