"""Real text that every Python brings along, and folders that appear when they are whole."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from pydoc_data.topics import topics


def module_texts(root):
    """The source files beneath a folder, but for tests and installed packages."""
    skipped = {"test", "tests", "site-packages", "dist-packages", "pydoc_data"}
    for path in sorted(Path(root).rglob("*.py")):
        if path.is_file() and not skipped & set(path.relative_to(root).parts):
            yield path.read_text("utf-8", errors="replace")


def reference_texts():
    """The language reference, as `help()` shows it."""
    yield from (text for _, text in sorted(topics.items()))


@contextlib.contextmanager
def whole(folder):
    """A folder to fill, that gets its name at the end: half of it is never seen there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="unfinished-"))
    try:
        yield unfinished
        os.rename(unfinished, folder)
    except OSError:
        if not folder.exists():  # else another process was faster, and its files are the same
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
