"""Texts of `ctvr methods`, generated from the code; search spaces of methods; presets that a stream recommends."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.methods.base import Override, Recipe
from ctvr.methods.plug_ins import installed
from ctvr.methods.settings import EXACT, Setting, groups_of, settings_of, variants_with_settings
from ctvr.orchestrator.config import Settings, flatten
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import GAIN, SEARCHED
from ctvr.orchestrator.on_ray.search_space import Condition
from ctvr.orchestrator.settings.experiment import GROUPS
from ctvr.orchestrator.settings.presets import get_method, presets_of, with_recipe
from ctvr.orchestrator.settings.resolve import resolve_method
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tables.verified import equals, of_method

_DEFAULTS: dict[str, Any] = {"FIXED": {}, "METRIC": GAIN, "MODE": "max", "CONDITIONS": {}}


def method_text(name: str) -> str:
    """Return a method's docstring, settings with defaults, and presets as text."""
    cls = get_method(name)
    module = inspect.getmodule(cls)
    equal = "; ".join(map(equals, of_method(name))) or "the equations of its paper (no code)"
    checked = [f"checked against: {equal}", ""] if name in {*EVERY_METHOD, *CONFIGURATIONS} else []
    lines = [(inspect.getdoc(module) or "").strip(), "", *checked, "settings"]
    facts = settings_of(cls.Config)
    exact: list[str] = []
    if dataclasses.fields(cls.Config):
        for setting, value in flatten(cls.Config(), "method").items():
            group, _, rest = setting.removeprefix("method.").partition(".")
            if rest not in {"", "name"}:
                continue  # belongs to the default variant, which is listed with the others
            known = facts.get(setting.removeprefix("method."))
            line = f"  {setting}={value}" + (f"  {known.doc}" if known else "")
            (exact if known and known.exact else lines).append(line)
            lines += _variants_text(group, groups_of(cls.Config)[group]) if rest else []
    if cls.wraps:
        lines.append("  base.*  settings of the wrapped retriever")
    lines += [f"settings {EXACT}", *exact] if exact else []
    defaults = flatten(cls.Config(), "method")
    for group, config in GROUPS.items():
        defaults |= flatten(config(), group)
    defaults |= cls.OPTIMIZER
    lines += ["optimizer of its rates, unless a recipe or stream sets another"] if cls.OPTIMIZER else []
    lines += [f"  {setting}={value}" for setting, value in cls.OPTIMIZER.items()]
    lines += ["on imported features of videos and captions"] if cls.ON_FEATURES else []
    lines += [f"  {setting}={value:g}" for setting, value in cls.ON_FEATURES.items()]
    presets = presets_of(name)
    for title, is_change in (
        ("recipes: choose one (default: the stream's recommendation)", False),
        ("changes: any number, on top of a recipe", True),
    ):
        of_kind = {preset: values for preset, values in presets.items() if isinstance(values, Override) == is_change}
        lines += [title] if of_kind else []
        for preset, values in of_kind.items():
            changed = [
                f"{k}={v}" + (f" (not {defaults[k]})" if defaults.get(k, v) != v else "") for k, v in values.items()
            ]
            lines.append(f"  {preset}: " + (", ".join(changed) or "the defaults above"))
    return "\n".join(lines)


def _variants_text(group: str, variants: Mapping[str, type]) -> list[str]:
    """Return lines with the settings of a group's variants, after a line with the values of `name` that select them."""
    lines = []
    for variant, names in variants_with_settings(variants):
        lines.append(f"  with method.{group}.name={'|'.join(names)}")
        for name, facts in settings_of(variant).items():
            value, note = flatten(variant())[name], f" ({EXACT})" if facts.exact else ""
            lines.append(f"    method.{group}.{name}={value}  {facts.doc}{note}")
    return lines


def preset_text(name: str, preset: str) -> str:
    """Return a text with the differences between a preset and the recommended settings, and their sources.

    The recommended settings are the settings of `ctvr run` on a stream that recommends the recipe `paper`.

    Raises:
        ConfigError: for an unknown method or preset.
    """
    recommended = resolve_method(name, {"preset": "paper"}).settings
    chosen = resolve_method(name, {"preset": "paper"}, (preset,)).settings
    values = presets_of(name).get(preset, {})
    sources = values.sources if isinstance(values, Recipe) else {}
    unsaid = "our default: not given by its recipe" if isinstance(values, Recipe) else ""
    release = values.release if isinstance(values, Recipe) else get_method(name).__module__
    differing = [key for key in chosen if chosen[key] != recommended.get(key)]
    width = min(48, max([len(f"{key}={chosen[key]}") for key in differing] or [0]))
    lines = [f"{name}, preset {preset}: {release}", "", "different from the recommended settings (in brackets)"]
    for key in differing:
        setting = f"{key}={chosen[key]}"
        lines.append(f"  {setting:<{width}}  ({recommended.get(key, 'not set')})  {sources.get(key, unsaid)}".rstrip())
    same = [f"{key}={chosen[key]}" for key in values if key not in differing]
    lines += ["", "set, with the recommended value: " + ", ".join(same)] if same else []
    if isinstance(values, Recipe) and values.ours:
        own = ", ".join(f"{key}={chosen[key]}" for key in values.ours)
        lines += ["", f"not stated by the release, so chosen here: {own}"]
    if isinstance(values, Recipe) and values.left_out:
        lines += ["", "options of the command without a counterpart here", *(f"  {text}" for text in values.left_out)]
    return "\n".join(lines)


def cost_text(tasks: int | None = None) -> str:
    """Return a table of multiply-adds and parameters at the papers' sizes, next to the papers' values.

    Args:
        tasks: if given, return instead a table of the bytes that methods keep after this number of tasks.
    """
    from ctvr.orchestrator.catalog import cost_table

    return cost_table.cost_table() if tasks is None else cost_table.growth_table(tasks)


def search_space(method: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the fixed settings of a search, the Ray Tune domains of the searched settings, and the first point.

    The first point has the values of PAPER, and defaults for other settings. search_spaces/ has a file for each family.

    Raises:
        ConfigError: if the method has no search space.
    """
    found = _search_file(method)
    fixed, space = dict(found["FIXED"]), dict(found["SPACE"])
    defaults = resolve_method(method, {}, (), fixed).settings
    first = {**defaults, **found.get("PAPER", {})}
    return fixed, space, {name: first[name] for name in space if name in first}


def default_metric(method: str, protocol: str) -> Settings:
    """Return the default `metric` and `mode` of a search, from METRIC and MODE of the method's search space.

    The gain over zero-shot is defined on the union of all galleries. The CVLM protocol uses each task's own gallery, so
    its searches use the mean R@1 over tasks; searches on images use the mean accuracy.

    Raises:
        ConfigError: if the method has no search space.
    """
    found = _search_file(method)
    metric = SEARCHED[protocol] if found["METRIC"] == GAIN else found["METRIC"]
    return {"metric": metric, "mode": found["MODE"]}


def search_conditions(method: str) -> dict[str, Condition]:
    """Map each conditional setting to the setting that it depends on, and the values with which it applies."""
    return {name: (other, list(values)) for name, (other, values) in _search_file(method)["CONDITIONS"].items()}


def depth_settings(method: str) -> tuple[str, ...]:
    """Return the names of the settings that count blocks of the vision tower."""
    own = [name for name, facts in _facts(method).items() if facts.depth]
    return (*own, *_search_file(method).get("DEPTHS", ()))


def upper_bounds(method: str) -> dict[str, str]:
    """Map each setting with an upper bound to the setting that is the bound."""
    own = {name: f"method.{facts.at_most}" for name, facts in _facts(method).items() if facts.at_most}
    return {**own, **_search_file(method).get("UPPER_BOUNDS", {})}


def later_task_settings(method: str) -> tuple[str, ...]:
    """Return the names of the settings that only the second and later tasks read."""
    own = [name for name, facts in _facts(method).items() if facts.later]
    return (*own, *_search_file(method).get("LATER_TASKS", ()))


def _facts(method: str) -> dict[str, Setting]:
    """Map each setting of the method's Config to its declared properties."""
    owner = CONFIGURATIONS.get(method, (method, ""))[0]
    return {f"method.{name}": facts for name, facts in settings_of(get_method(owner).Config).items()}


def _search_file(method: str) -> dict[str, Any]:
    method, asked = CONFIGURATIONS.get(method, (method, ""))[0], method
    if method not in EVERY_METHOD:
        return _plugin_search_space(method)
    from ctvr.search_spaces import SPACES  # imports Ray Tune

    if method not in SPACES:
        fault = f"{method} has no search space (a file in search_spaces/)"
        raise ConfigError(fault, "method", remedy="Use `ctvr run`.")
    return {**_DEFAULTS, **SPACES[method], **SPACES.get(asked, {})}


def _plugin_search_space(method: str) -> dict[str, Any]:
    """Return the search space of a plug-in method: SPACE, FIXED, PAPER, METRIC, MODE and CONDITIONS of a module.

    The module is the entry point of the method's name in the group `ctvr.search_spaces`; without it,
    `<module of the class>_space`, or the class's own module. A separate module keeps a plain run from importing Ray.

    Raises:
        ConfigError: if the module cannot be imported, or lacks SPACE.
    """
    own = inspect.getmodule(get_method(method))
    point = installed("search_spaces").get(method)
    name = point.value if point else f"{own.__name__}_space" if own else ""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or point:
            raise ConfigError(
                f"the search space {name} of {method} cannot be imported ({error})", "method", remedy="Correct it."
            ) from error
        module = own or inspect  # the module lacks SPACE
    found = {**_DEFAULTS, **vars(module)}
    if not isinstance(found.get("SPACE"), dict):
        raise ConfigError(
            f"{method} has no search space",
            "method",
            remedy=f"Add a module {name} with SPACE (see `ctvr methods new`), or use --space.",
        )
    return found


def default_presets(method: str, stream: Stream, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the requested presets, with the stream's recommended recipe if they do not include a recipe."""
    return with_recipe(method, asked, stream.settings)
