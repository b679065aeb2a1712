"""Reader of settings in a YAML file (`--config`), with limits of size and depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.text_files import YAML_BYTES, parse_yaml, read_text


def read_settings(path: Path) -> Settings:
    """Read the settings of a YAML file by dotted name.

    A file has `optim.epochs: 8`, or `optim:` with `epochs: 8` below it. `method` is a name, or a mapping
    with `name` and the method's settings.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, gives a setting twice, or exceeds the limits on size.
    """
    try:
        text = read_text(path, YAML_BYTES)
    except ConfigError as error:
        raise ConfigError(f"--config {error}", settings=("--config",)) from error
    found = parse_yaml(text, f"--config {path}")
    if not isinstance(found, dict):
        raise ConfigError("does not contain settings", f"--config {path}", remedy="Add lines such as optim.epochs: 8.")
    return _collect_unique(_flatten(found), path)


def find_lines(path: Path) -> dict[str, int]:
    """Return the line number of each setting of a file that `read_settings` can read, from 1."""
    import yaml

    found: dict[str, int] = {}

    def collect(node: Any, prefix: str) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            found.setdefault(f"{prefix}{key.value}", key.start_mark.line + 1)
            collect(value, f"{prefix}{key.value}.")

    collect(yaml.compose(read_text(path, YAML_BYTES), yaml.SafeLoader), "")
    return {("method" if name == "method.name" else name): line for name, line in found.items()}


def _collect_unique(pairs: Iterable[tuple[str, Any]], path: Path) -> Settings:
    settings: Settings = {}
    for name, value in pairs:
        name = "method" if name == "method.name" else name
        if name in settings:
            raise ConfigError(f"{name} is given twice", f"--config {path}", remedy="Keep one.")
        settings[name] = value
    return settings


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
