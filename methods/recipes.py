"""Classes of a method's presets: whole training recipes, and changes of some settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ALWAYS = ("name", "epochs", "weight_decay", "schedule", "warmup", "grad_clip")
_ENDS = ("least", "final_share", "final_lr")  # any of them states where a falling rate ends
_STATES_ITS_END = {"constant", "first_epoch", "cosine_to_zero", "cosine_by_epoch"}


class Override(dict[str, Any]):
    """A preset that changes some settings of a recipe, as an ablation does.

    Any preset of another class is a whole recipe: its values replace the method's defaults and the stream's settings. A
    run has one recipe, either one that the user names or the one that the stream recommends, and any number of changes.
    """


class Recipe(dict[str, Any]):
    """A whole recipe that reproduces a command of the authors, with the source of each value in their release.

    `sources` maps settings to sources; `left_out` lists the parts of the command that have no counterpart here.
    """

    def __init__(self, release: str, values: Mapping[str, tuple[Any, str]], left_out: Iterable[str] = ()) -> None:
        """Build a recipe.

        Args:
            release: owner/name@commit.
            values: dotted setting -> (value, source: a file of the release or a flag of a command).
            left_out: one phrase for each part of the command that is omitted, with the reason.
        """
        super().__init__({name: value for name, (value, _) in values.items()})
        self.release, self.left_out = release, tuple(left_out)
        self.sources = {name: place for name, (_, place) in values.items()}

    def extended(self, values: Mapping[str, tuple[Any, str]]) -> Recipe:
        """Return a copy of the recipe with changed or additional `values`, in the constructor's format."""
        own = {name: (value, self.sources[name]) for name, value in self.items()}
        return Recipe(self.release, {**own, **values}, self.left_out)

    @property
    def ours(self) -> tuple[str, ...]:
        """Return the settings `optim.*` that affect the training but are not in the recipe; we chose their values."""
        return tuple(name for name in (f"optim.{part}" for part in self._parts()) if name not in self)

    def _parts(self) -> Iterator[str]:
        """Yield the names, without `optim.`, of the settings that determine how this recipe updates the weights."""
        if self.get("optim.epochs") == 0:
            return
        yield from _ALWAYS
        if self.get("optim.weight_decay") != 0:
            yield "decay_parameters"
        yield from ("momentum",) if self.get("optim.name") == "sgd" else ("betas", "eps")
        if self.get("optim.warmup") != 0 and self.get("optim.schedule") != "cosine_by_epoch":
            yield "warmup_from"
        if self.get("optim.schedule") not in _STATES_ITS_END and not any(f"optim.{end}" in self for end in _ENDS):
            yield _ENDS[0]


EMBEDDED = "shapes"  # the recipe that the embedded streams recommend; its values were chosen by hand


class Tuned(dict[str, Any]):
    """A recipe for the embedded streams, with the number of trials by hand after which its values were chosen.

    Tables add this number to the trials of a search. For a preset EMBEDDED of another class it is unknown.
    """

    def __init__(self, values: Mapping[str, Any], trials: int, unrecorded: Iterable[str] = ()) -> None:
        """Build a recipe.

        Args:
            values: dotted setting -> value.
            trials: number of trials on validation videos; several seeds of the same settings are one trial.
            unrecorded: names of settings that were chosen by further trials without a record.
        """
        super().__init__(values)
        self.trials, self.unrecorded = trials, tuple(unrecorded)


def trials_by_hand(presets: Iterable[Mapping[str, Any] | None]) -> str:
    """Return the number of trials by hand as tables show it: `7`, `7?` if some are unrecorded, or `?` if all are.

    Args:
        presets: presets EMBEDDED of a run's method and of the retriever that it wraps; None if there is no such preset.
    """
    used = [preset for preset in presets if preset is not None]
    known = sum(preset.trials for preset in used if isinstance(preset, Tuned))
    is_whole = all(isinstance(preset, Tuned) and not preset.unrecorded for preset in used)
    return f"{known or ''}{'' if is_whole else '?'}"
