"""Golden files: what was computed once, by name, and must come out the same for ever."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable


class Golden:
    """A JSON file of values by name, and the function that computes each anew.

    Args:
      path: The file.
      names: The names of all that must be in it.
      make: Computes the value of a name.
    """

    def __init__(self, path: pathlib.Path, names: Iterable[str], make: Callable[[str], object]):
        self.path, self.names, self.make = path, list(names), make

    def known(self):
        return json.loads(self.path.read_text())

    def check(self, name):
        assert self.make(name) == self.known()[name]

    def check_names(self):
        """Each name has a value, each value a name, and no two are equal."""
        known = self.known()
        assert set(known) == set(self.names)
        assert len({json.dumps(value) for value in known.values()}) == len(known)

    def add_missing(self):
        """Writes what is not there yet. It never replaces anything."""
        known = self.known() if self.path.exists() else {}
        missing = {name: self.make(name) for name in self.names if name not in known}
        text = json.dumps({**missing, **known}, indent=2, sort_keys=True)
        self.path.write_text(text + "\n")
