"""Methods by their names: what `ctvr methods` prints of them, their search spaces, the presets a stream recommends.

What is printed is read from the code itself.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
from collections.abc import Sequence
from typing import Any

from ctvr.methods import CONFIGURATIONS, EVERY_METHOD
from ctvr.methods.base import Override, Recipe
from ctvr.orchestrator import renamed
from ctvr.orchestrator.catalog.setting_docs import field_docs
from ctvr.orchestrator.config import Settings, flatten
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.learning.experiment import GROUPS
from ctvr.orchestrator.learning.resolve import configured, get_method, presets_of, resolve, with_recipe
from ctvr.orchestrator.on_ray.plan import GAIN, SEARCHED
from ctvr.orchestrator.streams.stream import Stream


def method_text(name: str) -> str:
    """A method's settings with defaults and presets."""
    cls = get_method(name)
    module = inspect.getmodule(cls)
    lines = [(inspect.getdoc(module) or "").strip(), "", "settings"]
    meanings = field_docs(cls.Config)
    if dataclasses.fields(cls.Config):
        for setting, value in flatten(cls.Config(), "method").items():
            note = meanings.get(setting.removeprefix("method."), "")
            lines.append(f"  {setting}={value}" + (f"  {note}" if note else ""))
    if cls.wraps:
        lines.append("  base.*  settings of the wrapped retriever")
    defaults = flatten(cls.Config(), "method")
    for group, config in GROUPS.items():
        defaults |= flatten(config(), group)
    presets = presets_of(name)
    for title, is_change in (
        ("recipes: one of them; unless one is named, the one that the stream recommends", False),
        ("changes: any of them, on top of a recipe", True),
    ):
        found = {preset: values for preset, values in presets.items() if isinstance(values, Override) == is_change}
        lines += [title] if found else []
        for preset, values in found.items():
            changed = [
                f"{k}={v}" + (f" (not {defaults[k]})" if defaults.get(k, v) != v else "") for k, v in values.items()
            ]
            lines.append(f"  {preset}: " + (", ".join(changed) or "the defaults above"))
    return "\n".join(lines)


def preset_text(name: str, preset: str) -> str:
    """What a preset makes different from the recommended settings, line by line, each with its source.

    Recommended is what `ctvr run` takes on a stream that recommends the recipe `paper`.

    Raises:
        ConfigError: for an unknown method or preset.
    """
    plain = {"method": name, "stream": "any"}
    recommended = resolve(plain, {}, with_recipe(name, (), {"preset": "paper"})).settings
    chosen = resolve(plain, {}, with_recipe(name, (preset,), {"preset": "paper"})).settings
    values = presets_of(name).get(preset, {})
    sources = values.sources if isinstance(values, Recipe) else {}
    unsaid = "our default: its recipe does not say" if isinstance(values, Recipe) else ""
    release = values.release if isinstance(values, Recipe) else f"methods/{configured(name, ())[0]}.py"
    differing = [key for key in chosen if chosen[key] != recommended.get(key)]
    width = min(48, max([len(f"{key}={chosen[key]}") for key in differing] or [0]))
    lines = [f"{name}, preset {preset}: {release}", "", "different from what is recommended (in brackets)"]
    for key in differing:
        setting = f"{key}={chosen[key]}"
        lines.append(f"  {setting:<{width}}  ({recommended.get(key, 'not set')})  {sources.get(key, unsaid)}".rstrip())
    same = [f"{key}={chosen[key]}" for key in values if key not in differing]
    lines += ["", "set, and the same in both: " + ", ".join(same)] if same else []
    if isinstance(values, Recipe) and values.left_out:
        lines += ["", "of the command, but without a counterpart here", *(f"  {text}" for text in values.left_out)]
    return "\n".join(lines)


def cost_text() -> str:
    """Multiply-adds and parameters of the towers at the papers' sizes, beside the printed figures."""
    from ctvr.orchestrator.learning import cost

    return cost.cost_table()


def search_space(method: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """FIXED, SPACE and PAPER of search_spaces/<method>.py; a configuration has its own in its method's file.

    Raises:
        ConfigError: if the method has no search space.
    """
    found = _search_file(method)
    return dict(found["FIXED"]), dict(found["SPACE"]), dict(found.get("PAPER", {}))


def default_metric(method: str, protocol: str) -> Settings:
    """`metric` and `mode` of a search that was not told: METRIC and MODE of the method's search space.

    The gain over zero-shot is in the union of all galleries. The CVLM protocol searches each task's own, so there a
    search goes by the mean R@1 that its table shows; with images it goes by the mean accuracy.

    Raises:
        ConfigError: if the method has no search space.
    """
    found = _search_file(method)
    metric = SEARCHED[protocol] if found["METRIC"] == GAIN else found["METRIC"]
    return {"metric": metric, "mode": found["MODE"]}


def depth_settings(method: str) -> tuple[str, ...]:
    """DEPTHS of the method's search space: settings that count blocks of the vision tower."""
    return tuple(_search_file(method).get("DEPTHS", ()))


def upper_bounds(method: str) -> dict[str, str]:
    """UPPER_BOUNDS of the method's search space: setting -> the setting that it must not exceed."""
    return dict(_search_file(method).get("UPPER_BOUNDS", {}))


def later_task_settings(method: str) -> tuple[str, ...]:
    """LATER_TASKS of the method's search space: settings that no task before the second reads."""
    return tuple(_search_file(method).get("LATER_TASKS", ()))


def _search_file(method: str) -> dict[str, Any]:
    method, asked = CONFIGURATIONS.get(method, (method, ""))[0], method
    if method not in EVERY_METHOD:
        return _plugin_search_space(method)
    try:
        module = importlib.import_module(f"ctvr.search_spaces.{method}")
    except ModuleNotFoundError as error:
        if error.name != f"ctvr.search_spaces.{method}":
            raise
        raise ConfigError(f"method: {method} has nothing to search (no search_spaces/{method}.py).") from error
    return {**vars(module), **getattr(module, "CONFIGURATIONS", {}).get(asked, {})}


def _plugin_search_space(method: str) -> dict[str, Any]:
    """What a method of another package searches: SPACE and what else a file of search_spaces/ has.

    It is a module of its own, so that running the method does not load Ray: what the entry point
    `ctvr.search_spaces` of the method's name says, else `<module of the class>_space`, else that module itself.
    """
    own = inspect.getmodule(get_method(method))
    points = {point.name: point.value for point in importlib.metadata.entry_points(group="ctvr.search_spaces")}
    name = points.get(method, f"{own.__name__}_space" if own else "")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name or method in points:
            raise ConfigError(f"method: the search space {name} of {method} cannot be imported ({error}).") from error
        module = own or inspect  # no SPACE
    found = {"FIXED": {}, "METRIC": GAIN, "MODE": "max", **renamed.search_space(vars(module))}
    if not isinstance(found.get("SPACE"), dict):
        raise ConfigError(
            f"method: {method} has nothing to search. Write {name} with SPACE (see search_spaces/), or --space."
        )
    return found


def default_presets(method: str, stream: Stream, asked: Sequence[str]) -> tuple[str, ...]:
    """The presets asked for, on top of the recipe that the stream recommends unless they name one themselves."""
    return with_recipe(method, asked, stream.settings)
