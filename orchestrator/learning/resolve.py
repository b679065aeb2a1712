"""Resolution of settings into an `Experiment`.

Settings come from the command line, presets and streams as flat `group.name` pairs; `resolve` fills in the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ctvr.methods import CONFIGURATIONS, UntrustedClass, find_method
from ctvr.methods.base import Capabilities, Method, Override, Recipe
from ctvr.orchestrator.config import Settings, build, flatten, select_prefix, suggest, unknown_setting
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.errors import ConfigError, UntrustedCode
from ctvr.orchestrator.learning.experiment import GROUPS, Experiment, RunConfig
from ctvr.orchestrator.setting_groups import known_settings, setting_names, settings_called
from ctvr.orchestrator.streams.stream import Stream

UNTRAINED = "untrained"  # preset of every method: a control that trains nothing and scores as the method does


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
            continue  # a recipe for the authors' command, with another base than the row's
        found[name] = meant
        meant.update({**known[own], **meant})
    return {name: settings for name, settings in found.items() if settings.items() >= known[own].items()}


def with_recipe(method: str, presets: Sequence[str], recommended: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the presets in the order in which they apply: one recipe first, then the changes on top of it.

    The recipe is the named one, else the one that the stream recommends, else `paper`. No recipe applies if the stream
    recommends none, or if the recipe's number of frames differs from the stream's recommended `data.num_frames`, which
    then applies.

    Args:
        method: name of a method or a configuration.
        presets: as the user named them.
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
    """Return the method of a configuration, and its presets: its defining preset first, then the others translated.

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
    return ConfigError(
        f"preset: {method} has none called {preset!r}.{suggest(preset, list(known))} Known: {', '.join(known)}."
    )


def _with_base(overrides: Mapping[str, Any]) -> dict[str, Any]:
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
    """Return the settings of presets: of a recipe, and of any number of changes on top (`ctvr.methods.base.Override`).

    A strategy's recipe contains settings of its default base. Where `overrides` or a change name another base,
    `base.*` comes from that base's recipe of the same name, if it has one. Where the strategy has no recipe of the
    name that the stream recommends, it comes from the base's recipe of that name.

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
            f"preset: {recipes[0]} and {recipes[1]} are both complete recipes of {method}. Name one of them"
            + (f"; changes that can be added to it: {others}." if others else ".")
        )
    recipe, changed = (recipes or [""])[0], _changed(known, changes)
    merged = dict(known.get(recipe, {}))
    if cls.wraps:
        own = merged.get("method.base", cls.Config().base)
        base = str(overrides.get("method.base", changed.get("method.base", own)))
        if base != own:
            merged = {key: value for key, value in merged.items() if not key.startswith("base.")}
            merged |= _of_base(base, recipe, known, recommended or {})
        if base != changed.get("method.base", base):
            changed = {key: value for key, value in changed.items() if not key.startswith("base.")}
    return {**merged, **changed}


def _changed(known: Mapping[str, Mapping[str, Any]], changes: Sequence[str]) -> Settings:
    """Return the combined settings of presets that are changes."""
    by: dict[str, str] = {}
    for change in changes:
        for name, value in known[change].items():
            if (other := by.setdefault(name, change)) != change and known[other][name] != value:
                raise ConfigError(
                    f"preset: {other} sets {name} to {known[other][name]}, but {change} sets it to {value}. "
                    "Name one of them."
                )
    return {name: known[change][name] for name, change in by.items()}


def _of_base(
    base: str, recipe: str, known: Mapping[str, Mapping[str, Any]], recommended: Mapping[str, Any]
) -> Settings:
    """Return `base.*` for a base that is not the default of the strategy whose presets are `known`."""
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
        UntrustedCode: for a class that the user has not named.
        ConfigError: for an unknown name; the message suggests the closest one.
    """
    try:
        return find_method(name)
    except UntrustedClass as error:
        raise UntrustedCode(error.place) from error
    except ValueError as error:
        raise ConfigError(f"method: {error}") from error


def stored_capabilities(settings: Settings) -> Capabilities:
    """Return the capabilities of a stored run's method; unknown settings of other versions are replaced by defaults.

    Raises:
        ConfigError: for a method that cannot be loaded here.
    """
    cls = get_method(str(settings["method"]))
    given = known_settings(cls.Config, select_prefix(settings, "method"))
    try:
        return cls.capabilities(build(cls.Config, given, "method"))
    except ConfigError:
        return cls.capabilities(build(cls.Config, {}, "method"))


@contextmanager
def named_in(place: str) -> Iterator[None]:
    """Add to an UntrustedCode error the file or record that names the class."""
    try:
        yield
    except UntrustedCode as error:
        inner = f": {error.place}" if error.place else ""
        raise UntrustedCode(error.name, f"{place}{inner}") from error


def check_domain(method: str, stream: Stream) -> None:
    """Check that a method is for the domain of a stream.

    Raises:
        ConfigError: if it is not; the message names both and their domains.
    """
    if (domain := get_method(method).domain) != stream.domain:
        remedy = {"videos": "clip4clip", "images": "image_finetune", "questions": "umt_qa"}[stream.domain]
        raise ConfigError(
            f"method: {method} is for {domain}, but stream {stream.name} has {stream.domain}. Choose a method for "
            f"{stream.domain}, such as {remedy}."
        )


def resolve(
    overrides: Mapping[str, Any], recommended: Mapping[str, Any] | None = None, presets: Sequence[str] = ()
) -> Experiment:
    """Check a configuration and fill in defaults.

    Later sources override earlier ones: defaults, `Method.OPTIMIZER`, the stream's recommended settings, the recipe and
    the changes among the presets, the overrides. `with_recipe` adds the stream's recipe; here it must be in `presets`.

    Args:
        overrides: flat dotted settings as the user gave them; must contain `method` and `stream`.
        recommended: `Stream.settings`.
        presets: names from the method's PRESETS.

    Raises:
        ConfigError: for an unknown method, preset or setting, or a value outside its range.
    """
    if "method" not in overrides:
        raise ConfigError("method: no method was given. Add --method NAME; `ctvr methods` lists them.")
    name, presets = configured(str(overrides["method"]), presets)
    overrides = {**_with_base(overrides), "method": name}
    cls = get_method(name)
    recommended = recommended or {}
    chosen = {**preset_settings(name, presets, overrides, recommended), **overrides}
    merged: Settings = {key: value for key, value in {**recommended, **chosen}.items() if key != "preset"}
    merged = {**_optimizer_of(cls, merged), **merged}
    _refuse_unknown_names(cls, merged)
    run = build(RunConfig, {key: value for key, value in merged.items() if "." not in key})
    groups: dict[str, Any] = {
        group: build(config, select_prefix(merged, group), group) for group, config in GROUPS.items()
    }
    method: Any = _build_method(cls, merged, groups["data"], "method")
    base: Any = None
    if cls.wraps and "method.base" in merged and "method.base" not in chosen:
        with named_in(f"stream {overrides.get('stream')}"):
            get_method(method.base)
    if cls.wraps:
        base = _build_base(name, method, merged, groups["data"])
    elif select_prefix(merged, "base"):
        raise ConfigError(
            f"base.{next(iter(select_prefix(merged, 'base')))}: {name} does not wrap another method. Omit it."
        )
    if groups["data"].batch_size % run.workers:
        raise ConfigError(
            f"data.batch_size: {groups['data'].batch_size} pairs cannot be split evenly over workers={run.workers}. "
            f"Use a multiple of it."
        )
    settings = flatten(run)
    for group, value in groups.items():
        settings.update(flatten(value, group))
    settings.update(flatten(method, "method"))
    if base is not None:
        settings.update(flatten(base, "base"))
    return Experiment(run, **groups, method=method, base=base, settings=settings, presets=tuple(presets))


def _optimizer_of(cls: type[Method], settings: Settings) -> Settings:
    """Return the defaults of `optim.*` that a method, or the retriever that it wraps, declares for its rates."""
    if not cls.wraps:
        return dict(cls.OPTIMIZER)
    try:
        return dict(get_method(str(settings.get("method.base", cls.Config().base))).OPTIMIZER)
    except (UntrustedCode, ConfigError):  # refused later, with the place that names it
        return {}


def _build_method(cls: type[Method], settings: Settings, data: DataConfig, prefix: str) -> Any:
    """Build the settings of a method; `num_frames`, if it has one, defaults to `data.num_frames`."""
    values = select_prefix(settings, prefix)
    frames = settings_called("num_frames", cls.Config, values)
    made: Any = build(cls.Config, {**dict.fromkeys(frames, data.num_frames), **values}, prefix)
    known: Capabilities = cls.capabilities(made)
    if known.required_num_frames not in {None, data.num_frames}:
        raise ConfigError(
            f"{prefix}.{frames[0] if frames else 'num_frames'}: {known.required_num_frames} differs from "
            f"data.num_frames={data.num_frames}. Omit it, or change data.num_frames."
        )
    if data.sampling == "one_per_second" and not cls.wraps and not known.masks_missing_frames:
        remedy = f"{prefix}.mask_missing=true, or " if hasattr(made, "mask_missing") else ""
        raise ConfigError(
            "data.sampling: one_per_second leaves frame slots of short videos empty, but this retriever reads all. "
            f"Use {remedy}data.sampling=segments or linspace."
        )
    return made


def _build_base(name: str, method: Any, settings: Settings, data: DataConfig) -> Any:
    """Build the settings of the base that strategy `name` wraps; raise ConfigError if it cannot wrap it."""
    wrapped = get_method(method.base)
    if wrapped.wraps:
        raise ConfigError(
            f"method.base: {name} cannot wrap {method.base}, which is a strategy itself; base.* holds the settings of "
            "one retriever only. Name a retriever, such as clip4clip."
        )
    base = _build_method(wrapped, settings, data, "base")
    try:
        get_method(name).check_base(method, wrapped, base)
    except ValueError as error:
        raise ConfigError(f"method.base: {name} cannot wrap {method.base}: {error}") from error
    return base


def _refuse_unknown_names(method: type[Method], settings: Mapping[str, Any]) -> None:
    """Refuse a setting that does not exist; settings of a wrapped retriever are checked later."""
    known = settings_of(method)
    for name, value in settings.items():
        if name not in known and not name.startswith("base."):
            raise unknown_setting(name, value, known)


def settings_of(method: type[Method]) -> list[str]:
    """List the dotted settings of a method's run, the method's own first, without those of a wrapped retriever."""
    groups: dict[str, Any] = {"method": method.Config, **GROUPS}
    return [
        *(field.name for field in fields(RunConfig)),
        *(f"{group}.{name}" for group, config in groups.items() for name in setting_names(config)),
    ]
