"""Look-up of methods and of their presets: complete recipes, and changes (`Override`) that are applied to a recipe."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ctvr.methods import CONFIGURATIONS, UnknownMethod, UntrustedClass, find_method
from ctvr.methods.base import Method, Override, Recipe
from ctvr.orchestrator.config import Settings, closest, no_method, select_prefix
from ctvr.orchestrator.errors import ConfigError, UntrustedCode

UNTRAINED = "untrained"  # preset of every method: a control that is not trained and scores as the method does


def presets_of(method: str) -> dict[str, dict[str, Any]]:
    """Return a method's presets; `paper` (the defaults) and `untrained` always exist.

    Presets of a configuration include the settings that define it; presets that override these are excluded.
    """
    cls, own = get_method(method), CONFIGURATIONS.get(method, ("", ""))[1]
    known = {"paper": {}, **cls.PRESETS, UNTRAINED: Override({"optim.epochs": 0})}
    if not own:
        return known
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name.removeprefix(f"{own}-") for name in known if name != own):
        meant = copy.copy(known.get(f"{own}-{name}", known.get(name, {})))  # a copy of a recipe keeps its sources
        if isinstance(meant, Recipe) and "method.base" in known[own]:
            continue  # a recipe of the authors' command has another base than this configuration
        found[name] = meant
        meant.update({**known[own], **meant})
    return {name: settings for name, settings in found.items() if settings.items() >= known[own].items()}


def with_recipe(method: str, presets: Sequence[str], recommended: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the presets in the order in which they apply: one recipe first, then the changes on top of it.

    If `presets` contains no recipe, the stream's recommended recipe applies, or `paper` if the method lacks that
    recipe. It is skipped if its number of frames differs from the stream's recommended `data.num_frames`. If the stream
    does not recommend a recipe, no recipe applies.

    Args:
        method: name of a method or a configuration.
        presets: names as the user gave them.
        recommended: `Stream.settings`.

    Raises:
        ConfigError: for an unknown preset.
    """
    known = presets_of(method)
    every = {**presets_of(configured(method, presets)[0]), **known}
    for preset in presets:
        if preset not in every:
            raise _no_preset(method, preset, known)
    changes = tuple(preset for preset in presets if isinstance(every[preset], Override))
    if named := tuple(preset for preset in presets if preset not in changes):
        return (*named, *changes)
    recipe = _recommended_recipe(known, recommended)
    return changes if recipe is None else (recipe, *changes)


def _recommended_recipe(known: Mapping[str, Mapping[str, Any]], recommended: Mapping[str, Any]) -> str | None:
    frames, wanted = recommended.get("data.num_frames"), str(recommended.get("preset", ""))
    for name in (wanted, "paper") if wanted else ():
        settings = known.get(name)
        if settings is not None and (frames is None or settings.get("data.num_frames", frames) == frames):
            return name
    return None


def configured(method: str, presets: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return a configuration's method, and the presets by their names in that method, the defining preset first.

    A method that is not a configuration is returned with unchanged presets.

    Raises:
        ConfigError: for a preset that the configuration does not have.
    """
    if method not in CONFIGURATIONS:
        return method, tuple(presets)
    (name, own), its = CONFIGURATIONS[method], presets_of(method)
    known, meant = get_method(name).PRESETS, [own]
    for preset in presets:
        if preset not in its and preset != own and not preset.startswith(f"{own}-"):
            raise _no_preset(method, preset, its)
        meant.append(f"{own}-{preset}" if f"{own}-{preset}" in known else preset)
    return name, tuple(dict.fromkeys(meant))


def _no_preset(method: str, preset: str, known: Iterable[str]) -> ConfigError:
    names = list(known)
    meant = closest(preset, names)
    remedy = f"Did you mean {meant!r}? " if meant else ""
    return ConfigError(
        f"{method} has no preset called {preset!r}",
        "preset",
        remedy=f"{remedy}Known: {', '.join(names)}.",
        write=(meant,) if meant else (),
        unknown=preset,
    )


def with_base_method(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides in which a configuration named by `method.base` is replaced by its method and settings."""
    base = str(overrides.get("method.base", ""))
    if base not in CONFIGURATIONS:
        return dict(overrides)
    method, own = CONFIGURATIONS[base]
    settings = select_prefix(get_method(method).PRESETS[own], "method")
    return {**{f"base.{name}": value for name, value in settings.items()}, **overrides, "method.base": method}


def preset_settings(
    method: str, presets: Sequence[str], overrides: Mapping[str, Any], recommended: Mapping[str, Any] | None = None
) -> Settings:
    """Return the combined settings of presets: at most one recipe, and changes of it (`ctvr.methods.base.Override`).

    A strategy's recipe contains settings of its default base. If `overrides` or a change names another base, `base.*`
    comes from that base's recipe of the same name, if it has one. If the strategy lacks the recipe that the stream
    recommends, `base.*` comes from the base's recipe of that name.

    Raises:
        ConfigError: for an unknown preset, for two recipes, or for two changes of one setting.
    """
    method, presets = configured(method, presets)
    cls, known = get_method(method), presets_of(method)
    for preset in presets:
        if preset not in known:
            raise _no_preset(method, preset, known)
    changes = [preset for preset in presets if isinstance(known[preset], Override)]
    recipes = [preset for preset in dict.fromkeys(presets) if preset not in changes]
    if len(recipes) > 1:
        others = ", ".join(name for name, settings in known.items() if isinstance(settings, Override))
        raise ConfigError(
            f"preset: {recipes[0]} and {recipes[1]} are both complete recipes of {method}. Use one of them"
            + (f"; changes that can be added to it: {others}." if others else ".")
        )
    recipe, changed = (recipes or [""])[0], _merge_changes(known, changes)
    merged = dict(known.get(recipe, {}))
    if cls.wraps:
        own = merged.get("method.base", cls.Config().base)
        base = str(overrides.get("method.base", changed.get("method.base", own)))
        if base != own:
            merged = {key: value for key, value in merged.items() if not key.startswith("base.")}
            merged |= _base_settings(base, recipe, known, recommended or {})
        if base != changed.get("method.base", base):
            changed = {key: value for key, value in changed.items() if not key.startswith("base.")}
    return {**merged, **changed}


def _merge_changes(known: Mapping[str, Mapping[str, Any]], changes: Sequence[str]) -> Settings:
    """Return the combined settings of presets that are changes.

    Raises:
        ConfigError: if two of them set different values.
    """
    by: dict[str, str] = {}
    for change in changes:
        for name, value in known[change].items():
            if (other := by.setdefault(name, change)) != change and known[other][name] != value:
                raise ConfigError(
                    f"{other} sets {name} to {known[other][name]}, but {change} sets it to {value}",
                    "preset",
                    remedy="Use one of them.",
                )
    return {name: known[change][name] for name, change in by.items()}


def _base_settings(
    base: str, recipe: str, known: Mapping[str, Mapping[str, Any]], recommended: Mapping[str, Any]
) -> Settings:
    """Return `base.*` and `optim.*` from the recipe of a base that is not the strategy's default.

    Args:
        base: name of the base.
        recipe: name of the strategy's recipe.
        known: the strategy's presets.
        recommended: `Stream.settings`.
    """
    of_base = presets_of(base)
    if recipe == "paper" and recommended.get("preset") not in known:
        recipe = _recommended_recipe(of_base, recommended) or recipe
    settings = of_base.get(recipe, {})
    if isinstance(settings, Override):
        return {}
    optimizer = {key: value for key, value in settings.items() if key in get_method(base).OPTIMIZER}
    return {**{f"base.{key}": value for key, value in select_prefix(settings, "method").items()}, **optimizer}


def get_method(name: str) -> type[Method]:
    """Return the class of a method.

    Raises:
        UntrustedCode: for a class that the user does not trust.
        ConfigError: for an unknown name; the message suggests the closest one.
    """
    try:
        return find_method(name)
    except UntrustedClass as error:
        raise UntrustedCode(error.place) from error
    except UnknownMethod as error:
        raise no_method(*error.args) from error
    except ValueError as error:
        raise ConfigError(error, "method") from error
