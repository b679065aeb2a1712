"""The two kinds of presets of a method: a whole recipe, and a change of some settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Override(dict[str, Any]):
    """A preset that changes some settings of a recipe, as an ablation does.

    Any other preset is a whole recipe: its values on the method's defaults and the stream's own settings. A run has one
    recipe (the named one, else the one that the stream recommends) and any number of changes on top of it.
    """


class Recipe(dict[str, Any]):
    """A whole recipe as in an authors' command, each value with its place in the release.

    `sources` maps settings to places; `left_out` lists parts of the command without a counterpart here.
    """

    def __init__(self, release: str, values: Mapping[str, tuple[Any, str]], left_out: Iterable[str] = ()) -> None:
        """Build a recipe.

        Args:
            release: owner/name@commit.
            values: dotted setting -> (value, place: a file of the release, a flag of a command).
            left_out: sentences on each omitted part, and the reason.
        """
        super().__init__({name: value for name, (value, _) in values.items()})
        self.release, self.left_out = release, tuple(left_out)
        self.sources = {name: place for name, (_, place) in values.items()}
