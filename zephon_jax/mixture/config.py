"""Runs described in a file: datasets, mixture and settings in YAML or TOML.

Keys are the constructor's arguments, so whoever knows one knows the other. Everything that is not
known is refused by name: a typing error in a file must not pass for a default.
"""

from __future__ import annotations

import difflib
import os
import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zephon_jax._arrays import as_int
from zephon_jax._text import short
from zephon_jax.data.dataset import Dataset
from zephon_jax.data.token_estimation import TokenEstimation
from zephon_jax.mixture.config_schema import (
    DATASET,
    NUMBER,
    READ,
    RUN,
    STAGE,
    TOKENS,
    TOP,
    UNTIL,
    Schema,
)
from zephon_jax.mixture.schedule import Stage, samples, tokens
from zephon_jax.mixture.scheduled import ScheduledMixtureWorkSource
from zephon_jax.mixture.static import StaticMixtureWorkSource
from zephon_jax.sources.read_order import MixtureReadConfig

if TYPE_CHECKING:
    import yaml

__all__ = ["SUFFIXES", "RunConfig", "load_config", "read_config_file"]

SUFFIXES = (".yaml", ".yml", ".toml")

_APART = ("datasets", "token_estimation", "run")  # keys that are no argument as they stand
_MERGE = "tag:yaml.org,2002:merge"  # the key `<<`
_MOST_DIGITS = 4000  # characters of a number: what Python reads without a limit of its own
_MOST_KEYS = 1_000_000  # keys that merges may bring in: a file of kilobytes can ask for 10^9

Entry = dict[str, Any]
"""A mapping of the file, its values not checked yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What a file says."""

    # Where it was read from.
    path: Path
    # Arguments of each dataset, by name.
    datasets: Mapping[str, Mapping[str, Any]]
    # The other arguments of `StaticMixtureWorkSource`, or of `ScheduledMixtureWorkSource`.
    settings: Mapping[str, Any]
    # Lanes of the run.
    num_lanes: int = 1
    # Chunks to look at, of all lanes together; None for the whole run.
    num_chunks: int | None = None
    # How chunks are read; None where the file does not say.
    read: MixtureReadConfig | None = None

    def source(self) -> StaticMixtureWorkSource | ScheduledMixtureWorkSource:
        """Finds the data and makes the source.

        Raises:
          FileNotFoundError: If data is not there.
          TypeError, ValueError: If a setting is not allowed, naming the file.
        """
        try:
            datasets = [_dataset(name, entry) for name, entry in self.datasets.items()]
            if "stages" in self.settings:
                return ScheduledMixtureWorkSource(datasets, **self.settings)
            return StaticMixtureWorkSource(datasets, **self.settings)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.path}: {error}") from error


def load_config(
    path: str | os.PathLike[str],
) -> StaticMixtureWorkSource | ScheduledMixtureWorkSource:
    """Makes the source that a configuration file describes: a schedule where it has `stages`.

    Args:
      path: A YAML (`.yaml`, `.yml`) or TOML (`.toml`) file. `zephon-jax config` prints one with
        every key explained.

    Returns:
      The same source as the constructor makes of the same arguments. Relative paths of data count
      from the file's folder.

    Raises:
      FileNotFoundError: If the file or data is not there.
      ImportError: If the file is YAML and PyYAML is not installed.
      TypeError, ValueError: If it cannot be read or says something that is not allowed, naming the
        key and the nearest one that there is.

    Example:
      >>> import pathlib, tempfile, zephon_jax as zx
      >>> text = '''
      ... chunk_size = 100
      ... [datasets]
      ... web = {counts = [600, 400]}
      ... toy = {counts = [50]}
      ... [mixture]
      ... web = 3
      ... toy = 1
      ... '''
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     file = pathlib.Path(folder, "run.toml")
      ...     _ = file.write_text(text)
      ...     zx.load_config(file)
      StaticMixtureWorkSource({'web': 0.75, 'toy': 0.25}, chunk_size=100, seed=42)
    """
    return read_config_file(path).source()


def read_config_file(path: str | os.PathLike[str]) -> RunConfig:
    """Reads and checks a configuration file, without looking at any data.

    Raises:
      As `load_config`.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: a configuration file ends in one of {SUFFIXES}.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors may begin with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; a configuration file is wanted.") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no configuration file {path}.") from None
    try:
        return _checked(path, _parse(path, text))
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply to be a configuration.") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from error


def _parse(path: Path, text: str) -> object:
    """What a text says, in mappings, lists and values."""
    if path.suffix.lower() == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"not TOML: {error}") from None
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f'{path} is YAML, and PyYAML is not installed: pip install "zephon-jax[cli]", or write'
            " the file as TOML."
        ) from error

    try:
        return yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's loader, without what it lets pass or versions of it do differently."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that is written twice, and merges that grow without end."""

        num_keys = 0  # brought in by merges so far

        def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            keys = Counter((key.tag, str(key.value)) for key, _ in node.value)
            for (_, key), times in keys.items():
                if times > 1:
                    line = node.start_mark.line + 1
                    raise ValueError(
                        f"the key {key!r} is there twice in the mapping at line {line}."
                    )
            return node

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            # As the standard says: versions of PyYAML differ in which mapping of a list wins.
            pairs = [pair for pair in node.value if pair[0].tag != _MERGE]
            for value in (value for key, value in node.value if key.tag == _MERGE):
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(one, yaml.MappingNode):
                        line = one.start_mark.line + 1
                        raise ValueError(f"'<<' at line {line} must bring in mappings.")
                    self.flatten_mapping(one)
                    self.num_keys += len(one.value)
                    if self.num_keys > _MOST_KEYS:
                        raise ValueError(f"'<<' brings in more than {_MOST_KEYS:,} keys in all.")
                    pairs = one.value + pairs
            # Each key once, or merges of merges grow: its first place, and its last value.
            node.value = list({(pair[0].tag, str(pair[0].value)): pair for pair in pairs}.values())

    return Loader


def _checked(path: Path, raw: object) -> RunConfig:
    top = _mapping(raw, "the file", TOP)
    if "datasets" not in top:
        raise ValueError(f"the key 'datasets' is missing; got {list(top)}.")
    if "mixture" not in top and "stages" not in top:
        raise ValueError(f"the key 'mixture' is missing, or 'stages'; got {list(top)}.")
    datasets = _mapping(top["datasets"], "datasets")
    if not datasets:
        raise ValueError("datasets must name at least one dataset.")
    settings = {key: value for key, value in top.items() if key not in _APART}
    if "stages" in top:
        if "mixture" in top:
            raise ValueError("'mixture' and 'stages' exclude each other: each stage has a mixture.")
        settings["stages"] = _stages(top["stages"])
    else:
        if "ramp" in top:
            raise ValueError("'ramp' goes with 'stages', and there are none.")
        settings["mixture"] = _numbers(top["mixture"], "mixture")
    if top.get("token_estimation") is not None:
        settings["token_estimation"] = _tokens(top["token_estimation"])
    run = _mapping(top.get("run", {}), "run", RUN)
    chunks, read = run.get("num_chunks"), run.get("read")
    return RunConfig(
        path=path,
        datasets={name: _entry(path.parent, name, entry) for name, entry in datasets.items()},
        settings=settings,
        num_lanes=as_int(run.get("num_lanes", 1), "run.num_lanes", 1),
        num_chunks=None if chunks is None else as_int(chunks, "run.num_chunks", 0),
        read=None if read is None else MixtureReadConfig(**_mapping(read, "run.read", READ)),
    )


def _mapping(raw: object, where: str, known: Schema | None = None) -> Entry:
    """A mapping by string whose keys are all known."""
    if not isinstance(raw, Mapping):
        what = "empty" if raw is None else reprlib.repr(raw)
        raise TypeError(f"{where} must be a mapping of names to values; it is {what}.")
    for key in raw:
        if not isinstance(key, str):
            raise TypeError(f"{where}: names must be strings; got {short(key)}. Put it in quotes.")
        if known is not None and key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {list(known)}."
            raise ValueError(f"unknown key {key!r} in {where}; {hint}")
    return dict(raw)


def _stages(raw: object) -> list[Stage]:
    if not isinstance(raw, list):
        raise TypeError(f"stages must be a list of mappings; it is {reprlib.repr(raw)}.")
    found: list[Stage] = []
    for n, one in enumerate(raw):
        where = f"stages[{n}]"
        entry = _mapping(one, where, STAGE)
        if "mixture" not in entry:
            raise ValueError(f"{where}: the key 'mixture' is missing; got {list(entry)}.")
        until = entry.get("until")
        if isinstance(until, Mapping):
            until = _mapping(until, f"{where}.until", UNTIL)
            if len(until) != 1:
                raise ValueError(
                    f"{where}.until must give chunks, 'samples' or 'tokens', one of them; got"
                    f" {list(until)}."
                )
            ((unit, number),) = until.items()
            entry["until"] = samples(number) if unit == "samples" else tokens(number)
        entry["mixture"] = _numbers(entry["mixture"], f"{where}.mixture")
        found.append(Stage(**entry))
    return found


def _numbers(raw: object, where: str) -> dict[str, object]:
    """Numbers by name."""
    return {name: _number(one, f"{where}.{name}") for name, one in _mapping(raw, where).items()}


def _number(value: object, where: str) -> object:
    """A number; text is taken as the one that it spells, such as 1/3 or 1e-3."""
    if not isinstance(value, str):
        return value
    # Fractions are exact: one of a large exponent would be written out, digit by digit.
    if len(value) <= _MOST_DIGITS and re.search(NUMBER, value, re.ASCII):
        return Fraction(value)
    raise ValueError(
        f"{where} must be a number or a fraction such as '1/3', with an exponent between -300 and"
        f" 300; got {reprlib.repr(value)}."
    )


def _tokens(raw: object) -> TokenEstimation:
    entry = _mapping(raw, "token_estimation", TOKENS)
    name = entry.pop("tokenizer_name", None)
    if len(entry) != 1:
        raise ValueError(
            "token_estimation must give either 'ratios', tokens per byte by dataset, or"
            f" 'shard_totals', tokens of each shard by dataset; got {list(entry)}. A file cannot"
            " name a tokenizer, since reading one runs no code: prime the source in Python, and"
            " write down the ratios that it measured."
        )
    if "ratios" in entry:
        ratios = _numbers(entry["ratios"], "token_estimation.ratios")
        return TokenEstimation.from_ratios(ratios, tokenizer_name=name)
    totals = _mapping(entry["shard_totals"], "token_estimation.shard_totals")
    return TokenEstimation.from_shard_totals(totals, tokenizer_name=name)


def _entry(folder: Path, name: str, raw: object) -> Entry:
    """One dataset's arguments: a path alone, or a mapping."""
    where = f"datasets.{name}"
    entry = _mapping({"path": raw} if isinstance(raw, (str, list)) else raw, where, DATASET)
    if "path" not in entry:
        if "counts" not in entry:
            raise ValueError(
                f"{where} needs a 'path', or 'counts' to simulate without data; got {list(entry)}."
            )
        if extra := [key for key in entry if key not in ("counts", "num_bytes")]:
            raise ValueError(f"{where}: {extra} need a 'path' to data.")
        return entry
    if "num_bytes" in entry:
        raise ValueError(f"{where}: 'num_bytes' goes with 'counts', not with 'path'.")
    path = entry["path"]
    paths = path if isinstance(path, list) else [path]
    if not paths or not all(isinstance(one, str) for one in paths):
        raise TypeError(f"{where}.path must be text or a list of texts; got {short(path)}.")
    if "" in paths:
        raise ValueError(f"{where}.path is empty; for the configuration's own folder write '.'.")
    if entry.get("storage_options") is not None:
        entry["storage_options"] = _mapping(entry["storage_options"], f"{where}.storage_options")
    placed = [_placed(folder, one) for one in paths]
    return {**entry, "path": placed if isinstance(path, list) else placed[0]}


def _placed(folder: Path, path: str) -> str:
    """A path that counts from a folder, unless it is absolute or a URL."""
    if "://" in path:
        return path
    path = os.path.expanduser(path)
    return path if os.path.isabs(path) else os.path.join(folder, path)


def _dataset(name: str, entry: Mapping[str, Any]) -> Dataset:
    if "path" in entry:
        return Dataset.from_path(name, **entry)
    return Dataset.from_counts(name, entry["counts"], num_bytes=entry.get("num_bytes"))
