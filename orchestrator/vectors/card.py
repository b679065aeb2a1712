"""The card of a feature set, `features.yaml`: which embedder computed the vectors, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctvr.orchestrator.config import suggest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.text_files import YAML_BYTES, parse_yaml, read_text

CARD = "features.yaml"
NORMALISATIONS = ("unit", "none")
# Key of the file -> its meaning; `embedder` is required
KEYS = {
    "embedder": "name of the model, such as its name on a hub",
    "revision": "version or commit of the weights; for an embedder of open_clip its tag, such as openai",
    "weights": "digest of the weights, such as sha256:...",
    "libraries": "a mapping of library to version",
    "frames": "rule that selects frames, such as `12, uniform`",
    "pooling": "how frames become one vector, such as mean",
    "normalisation": "unit or none",
    "prompt": "text around each caption, such as `a video of {}`",
    "dtype": "type in which the vectors were computed, such as float16",
    "width": "number of dimensions of a vector",
    "licence": "license of the vectors",
    "made_by": "author of the set",
}


@dataclass(frozen=True)
class Card:
    """A card as read.

    Attributes:
        path: the file.
        values: the given keys except `libraries`, as text.
        libraries: library -> version.
    """

    path: Path
    values: Mapping[str, str]
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedder(self) -> str:
        """Return the name of the embedder."""
        return self.values["embedder"]

    @property
    def width(self) -> int | None:
        """Return the number of dimensions of a vector, or None if the card does not state it."""
        return int(self.values["width"]) if "width" in self.values else None

    @property
    def is_unit(self) -> bool:
        """Return whether the card states that vectors have length 1."""
        return self.values.get("normalisation") == "unit"

    def lines(self) -> list[str]:
        """Return a line for each stated key, in the order of KEYS, and a line with the missing keys."""
        texts = dict(self.values)
        if self.libraries:
            texts["libraries"] = ", ".join(f"{name} {version}" for name, version in self.libraries.items())
        missing = [key for key in KEYS if key not in texts]
        lines = [f"{key}: {texts[key]}" for key in KEYS if key in texts]
        return lines + ([f"not stated: {', '.join(missing)}"] if missing else [])

    def differences(self, other: Card) -> dict[str, tuple[str, str]]:
        """Return the keys that both cards state differently, with both values; a library is `libraries.NAME`."""
        ours, theirs = ({**each.values, **_dotted(each.libraries)} for each in (self, other))
        both = [key for key in ours if key in theirs and key not in ("licence", "made_by")]
        return {key: (ours[key], theirs[key]) for key in both if ours[key].casefold() != theirs[key].casefold()}


def _dotted(libraries: Mapping[str, str]) -> dict[str, str]:
    return {f"libraries.{name}": version for name, version in libraries.items()}


def read_card(path: Path) -> Card:
    """Read a card: a YAML mapping of KEYS to plain values.

    Raises:
        ConfigError: if the file cannot be read, has an unknown key, lacks `embedder`, or has a value of another type.
    """
    found = parse_yaml(read_text(path, YAML_BYTES), str(path))
    if not isinstance(found, dict):
        raise ConfigError("is not a card", path, remedy="Add lines such as `embedder: NAME`.")
    for key in found:
        if key not in KEYS:
            hint = suggest(str(key), KEYS).strip() or f"Keys: {', '.join(KEYS)}."
            raise ConfigError("unknown key", path, str(key), remedy=hint)
    if found.get("embedder") in (None, ""):
        raise ConfigError("does not name its embedder", path, remedy="Add `embedder: NAME`.")
    libraries = found.pop("libraries", None) or {}
    if not isinstance(libraries, dict):
        raise ConfigError("libraries is not a mapping", path, libraries, remedy="Add `NAME: VERSION` below it.")
    values = {key: _text(path, key, value) for key, value in found.items() if value is not None}
    given = values.get("normalisation", "none")
    if given not in NORMALISATIONS:
        raise ConfigError("normalisation is not unit or none", path, given, remedy="Use one of them.")  # prose: allow
    if "width" in values and not (values["width"].isascii() and values["width"].isdigit() and int(values["width"])):
        raise ConfigError("width is not a number of dimensions", path, values["width"], remedy="Use for example 512.")
    return Card(path, values, {str(key): _text(path, f"libraries: {key}", value) for key, value in libraries.items()})


def _text(path: Path, key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{key} is neither a string nor a number", path, value, remedy="Put it in quotes.")
    text = str(value).strip("\n")
    if not text.isprintable() or len(text) > 1000:
        raise ConfigError(f"{key} is not one line of at most 1000 characters", path, text, remedy="Shorten it.")
    return text


def is_same_name(first: str, second: str) -> bool:
    """Return whether two names mean one embedder: equal except for case, an owner before `/`, and `_` for `-`."""
    plain = [name.casefold().replace("_", "-").rpartition("/")[2].strip() for name in (first, second)]
    return plain[0] == plain[1]
