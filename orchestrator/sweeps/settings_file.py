"""Settings of a YAML file (`--config`), read within limits of size and depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.text_files import read_text

YAML_BYTES, YAML_VALUES, YAML_LEVELS, YAML_DIGITS = 1 << 20, 10_000, 50, 100  # limits, with all aliases expanded


def read_settings(path: Path) -> Settings:
    """Read the settings of a YAML file, flat and dotted: `optim.epochs: 8`, or `optim:` with `epochs: 8` below it.

    `method` is a name, or a mapping of the method's settings with its `name` among them.

    Raises:
        ConfigError: if the file cannot be read, is not a mapping, gives a setting twice, or exceeds the limits on size.
    """
    import yaml

    try:
        found = _parse_yaml(read_text(path, YAML_BYTES))
        settings = _unique(_flat(found)) if isinstance(found, dict) else None
    except ConfigError as error:
        raise ConfigError(f"--config {error}", settings=("--config",)) from error
    except RecursionError as error:
        raise ConfigError(
            "is nested too deeply", f"--config {path}", remedy="Write lines such as optim.epochs: 8."
        ) from error
    # e.g. a number of 5000 digits, a date in month 13, text that does not fit its tag (`!!bool perhaps`)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(
            f"cannot be read as YAML ({reason[:300]})", f"--config {path}", remedy="Correct it."
        ) from error
    if settings is None:
        raise ConfigError("holds no settings", f"--config {path}", remedy="Write lines such as optim.epochs: 8.")
    return settings


def _unique(pairs: Iterable[tuple[str, Any]]) -> Settings:
    settings: Settings = {}
    for name, value in pairs:
        name = "method" if name == "method.name" else name
        if name in settings:
            raise ValueError(f"{name} is given twice")
        settings[name] = value
    return settings


def _parse_yaml(text: str) -> Any:
    """Parse a YAML document, with limits on the expansion of its aliases."""
    loader = _bounded_loader()(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _bounded_loader() -> Any:
    """Return PyYAML's safe loader with limits.

    An alias expands to everything below its anchor, so ten lines can expand to 10^9 values or contain themselves.
    """
    import yaml
    from yaml.composer import ComposerError
    from yaml.events import AliasEvent, CollectionStartEvent

    class Loader(yaml.SafeLoader):
        depth = 0

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.open: set[str] = set()  # anchors of nodes that are not complete yet
            self.sizes: dict[int, tuple[int, int]] = {}  # id of a node -> expanded nodes and levels below it

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            anchor, mark = getattr(event, "anchor", None), cast(Any, event).start_mark
            if isinstance(event, AliasEvent) and anchor in self.open:
                raise ComposerError(None, None, f"*{anchor[:60]} is inside its own anchor", mark)
            self.depth += 1
            if self.depth > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_LEVELS} levels", mark)
            self.open |= {anchor} if anchor and isinstance(event, CollectionStartEvent) else set()
            node = super().compose_node(parent, index)
            self.open.discard(anchor)
            self.depth -= 1
            self.measure(node, mark)
            return node

        def measure(self, node: Any, mark: Any) -> None:
            below = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
            if node.tag.endswith(":int") and len(node.value) > YAML_DIGITS:  # 0xfff... and 59:59:... have no limit
                raise ComposerError(None, None, f"a number of more than {YAML_DIGITS} digits", mark)
            if isinstance(node, yaml.MappingNode):
                names = Counter(key.value for key, _ in below if isinstance(key, yaml.ScalarNode))
                if twice := next((name for name, count in names.items() if count > 1 and name != "<<"), None):
                    raise ComposerError(None, None, f"{twice[:60]!r} is given twice", mark)
                below = [each for pair in below for each in pair]
            sizes = [self.sizes[id(each)] for each in below]
            found = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
            if found[0] > YAML_VALUES or found[1] > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_VALUES} values or {YAML_LEVELS} levels", mark)
            self.sizes[id(node)] = found

    return Loader


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
