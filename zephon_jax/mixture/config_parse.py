"""YAML and TOML, without what they let pass in silence."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["parse"]

_MERGE = "tag:yaml.org,2002:merge"  # the key `<<`
_MOST_MERGED = 1_000_000


def parse(path: Path, text: str) -> Any:
    """What a text says, in mappings, lists and values.

    Args:
      path: The file that it comes from, whose name says what it is.
      text: YAML or TOML.

    Raises:
      ImportError: If it is YAML and PyYAML is not installed.
      ValueError: If it is neither, or there are keys twice in a mapping.
    """
    try:
        return _toml(text) if path.suffix.lower() == ".toml" else _yaml(path, text)
    except RecursionError:
        raise ValueError("it is nested too deeply to be a configuration.") from None


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f'{path} is YAML, and PyYAML is not installed: pip install "zephon-jax[cli]", or write'
            " the file as TOML."
        ) from error

    try:
        return yaml.load(text, _loader(yaml))
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise ValueError(f"not YAML: {said}") from None


def _loader(yaml: Any) -> type:
    """A loader that refuses what PyYAML takes in silence, and merges as YAML says."""

    class Loader(yaml.SafeLoader):
        merged = 0  # keys that were brought in so far

        def compose_mapping_node(self, anchor: Any) -> Any:
            # As they are written: what `<<` brings in may be overridden.
            node = super().compose_mapping_node(anchor)
            keys = Counter((key.tag, str(key.value)) for key, _ in node.value)
            for (_, key), times in keys.items():
                if times > 1:
                    where = f"the mapping at line {node.start_mark.line + 1}"
                    raise ValueError(f"the key {key!r} is there twice in {where}.")
            return node

        def flatten_mapping(self, node: Any) -> None:
            # Versions of PyYAML differ in what wins: a later `<<` of a list, and short names.
            parts = [[pair for pair in node.value if pair[0].tag != _MERGE]]
            for value in (value for key, value in node.value if key.tag == _MERGE):
                listed = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for one in listed:
                    if not isinstance(one, yaml.MappingNode):
                        line = one.start_mark.line + 1
                        raise ValueError(f"'<<' at line {line} must bring in mappings.")
                    self.flatten_mapping(one)
                    self.merged += len(one.value)
                    if self.merged > _MOST_MERGED:
                        raise ValueError(f"'<<' brings in more than {_MOST_MERGED:,} keys in all.")
                    parts.append(one.value)
            # A key that is brought in again keeps its place, and is not there twice.
            whole = {
                (pair[0].tag, str(pair[0].value)): pair for part in parts[::-1] for pair in part
            }
            node.value = list(whole.values())

    return Loader
