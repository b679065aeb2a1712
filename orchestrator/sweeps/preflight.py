"""Checks of a sweep's arguments, which a command runs before it imports torch and Ray.

Only `check_settings` imports torch. `plan_sweep` begins with `check_search_arguments` or `check_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ctvr.methods import is_place, place_of, unknown_method
from ctvr.methods.settings import SettingError
from ctvr.orchestrator.config import Settings, build, check_value, no_method, unknown_setting
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray.plan import SearchConfig, read_plan
from ctvr.orchestrator.on_ray.search_space import parse_values
from ctvr.orchestrator.tables.presets import TablePreset, parse_preset

MAX_HOURS = 10_000  # more than a year


def check_search_arguments(
    search: Settings, space: Sequence[str], overrides: Iterable[str], top: int = 1, seeds: int = 0
) -> None:
    """Check the search settings, the search space, --top and --seeds of a search of one method.

    Raises:
        ConfigError: for the first invalid argument.
    """
    build(SearchConfig, search, "search", dotted=False)
    given, listed = list(overrides), [parse_values(word)[0] for word in space]
    forbid_seed([*given, *listed])
    if twice := next((name for name in listed if name in given or listed.count(name) > 1), None):
        raise ConfigError(f"--space {twice}: is given twice. List all values once, and omit {twice}=VALUE.")
    if top < 1:
        raise ConfigError(f"must be >= 1, got {top}", "--top", remedy="Use --top 1.")
    if seeds < 0:
        raise ConfigError(f"must be >= 0, got {seeds}", "--seeds", remedy="Use --seeds 3.")


def check_methods(words: Sequence[str]) -> None:
    """Check that methods exist; `words` are names, or rows `method:preset` or `method@strategy` as in --baselines.

    Raises:
        ConfigError: for the first unknown method; the message suggests the closest name.
    """
    for number, word in enumerate(words):
        if any(":" in earlier and not is_place(earlier) for earlier in words[:number]):
            break  # after the first, a word may be a preset of the preceding row
        row, _, strategy = word.partition("@")
        try:
            for each in (row, strategy) if strategy else (row,):
                place_of(each if is_place(each) else each.partition(":")[0])
        except ValueError as error:
            raise no_method(*unknown_method(word).args) from error


def check_method(name: str) -> None:
    """Check that a name is a known method.

    Raises:
        ConfigError: for an unknown method, with the closest name, and for a row `method:preset` of a table.
    """
    check_methods([name])
    if ":" in name and not is_place(name):
        method, _, preset = name.partition(":")
        if not preset:
            raise no_method(name, f"Did you mean {method}? All: `ctvr methods`.", method)
        raise ConfigError(f"{name!r} is a row of a table", "method", write=(method, "--preset", preset))


def is_method(name: str) -> bool:
    """Return whether a text is the name of a method, or has the form `module:Class`; methods are not imported."""
    try:
        place_of(name)
    except ValueError:
        return False
    return True


def search_settings() -> list[str]:
    """Return the dotted names of all settings of a search."""
    return [f"search.{field.name}" for field in fields(SearchConfig)]


@dataclass(frozen=True)
class _Trials:
    trials: int

    def __post_init__(self) -> None:
        if self.trials < 0:
            raise SettingError(
                f"<trials> must be >= 0, got {self.trials}", "Use 0 to rerun only the recommended presets."
            )


def check_table(search: Settings, seeds: int, names: Iterable[str]) -> tuple[SearchConfig, int]:
    """Return the search settings of a table's rows, and the number of trials of each row (0 without a search).

    Args:
        search: settings of SearchConfig; `trials` may also be 0.
        seeds: number of seeds of the rerun.
        names: names of the given settings.

    Raises:
        ConfigError: for the first invalid argument.
    """
    if seeds < 0:
        raise ConfigError(f"must be >= 0, got {seeds}", "--seeds", remedy="Use --seeds 3.")
    trials = build(_Trials, {"trials": search.get("trials", SearchConfig().trials)}, "search", dotted=False).trials
    if not trials and not seeds:
        raise ConfigError("--trials 0 and --seeds 0 leave nothing to run", "table", remedy="Use --seeds 3.")
    forbid_seed(names)
    made = build(SearchConfig, {**search, "trials": trials or 1}, "search", dotted=False)
    if len(made.metrics) > 1:
        raise ConfigError(
            f"{made.metric} are several objectives, but a table selects by one",
            "search.metric",
            remedy="Use one metric, or search a single method.",
        )
    if made.searcher == "grid":
        raise ConfigError(
            "grid is not applicable, because all rows of a table get the same number of trials",
            "search.searcher",
            remedy="Use tpe or random.",
        )
    return made, trials


def check_settings(method: str, settings: Mapping[str, Any], space: Sequence[str]) -> None:
    """Check names and types of settings of a method and of its data. Imports torch, but not Ray.

    The settings of a wrapped retriever are not checked, because the search space may determine the retriever.

    Raises:
        ConfigError: for the first unknown setting, or value of a wrong type.
    """
    from ctvr.orchestrator.settings.experiment import GROUPS, RunConfig
    from ctvr.orchestrator.settings.presets import get_method
    from ctvr.orchestrator.settings.resolve import settings_of

    cls = get_method(method)
    groups: dict[str, Any] = {**GROUPS, "method": cls.Config}
    known = settings_of(cls)
    listed = [(name, value, values) for name, values in map(parse_values, space) for value in values]
    for name, value, values in [*((*pair, None) for pair in settings.items()), *listed]:
        group, dot, rest = name.partition(".")
        if name in ("method", "stream") or group == "base":
            continue
        if name not in known:
            raise unknown_setting(name, value if values is None else values, known)
        check_value(groups[group] if dot else RunConfig, rest if dot else name, value, group if dot else "")


def ablation_preset(method: str, presets: Sequence[str], baselines: Sequence[str], words: Sequence[str]) -> TablePreset:
    """Build the table of `ctvr sweep --vary`: a method, its baselines, and a row for each value of each setting.

    Args:
        method: the method.
        presets: presets of the method.
        baselines: rows `method:preset` whose settings are not varied.
        words: arguments `name=v1,v2` of --vary.

    Raises:
        ConfigError: for a setting or a row that is listed twice.
    """
    values: dict[str, list[Any]] = {}
    for word in words:
        name, listed = parse_values(word, "--vary")
        if name in values:
            raise ConfigError(f"{name} is listed twice", f"--vary {word}", remedy="List all its values once.")
        values[name] = listed
    row = {"name": ":".join([method, ",".join(presets)]) if presets else method, "searched": False}
    rows = [row, *({"name": each, "searched": False} for each in baselines)]
    title = (
        f"{method}, one of {', '.join(values)} at a time" if len(values) > 1 else f"{method} over {next(iter(values))}"
    )
    return parse_preset(
        {"title": title, "protocol": "any", "stream": "shapes-5", "search": {"trials": 0}, "rows": rows, "vary": values}
    )


def check_resumable(name: str, runs: Path) -> None:
    """Check that the runs folder contains the sweep to resume.

    Raises:
        ConfigError: if it does not; the message lists the sweeps in the folder.
    """
    read_plan(runs.resolve() / "sweeps" / name, name)


def check_hours(hours: float | None) -> None:
    """Check the range of a time limit in hours; None means no limit.

    Raises:
        ConfigError: if the limit is out of range; the message states the range.
    """
    if hours is not None and not 0 < hours < MAX_HOURS:
        raise ConfigError(f"must be > 0 and < {MAX_HOURS}, got {hours:g}.", "--budget-hours")


def forbid_seed(words: Iterable[str]) -> None:
    """Check that `seed` is neither fixed nor searched, since a search must not select a seed and reruns use new seeds.

    Raises:
        ConfigError: if `seed` is among `words`, the names of the settings.
    """
    if "seed" in words:
        raise ConfigError(
            "not applicable, because all trials have seed 0 and reruns use new seeds",
            "seed",
            remedy="Omit it; --seeds sets the number of seeds.",
        )
