"""Detection of all mistakes in one command, each with a corrected command line.

`argparse` stops at the first mistake, so the arguments are checked here first. Invalid settings are removed and the
rest is checked again, until no further mistake is found.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctvr.orchestrator import memo
from ctvr.orchestrator.cli.error_places import name_option, place_in_file
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.errors import ConfigError, Mistakes

MAX_MISTAKES = 20  # maximum number of mistakes in settings that are looked for


@dataclass(frozen=True)
class Mistake:
    """A mistake in a command line.

    Attributes:
        fault: description of the mistake, without the remedy.
        old: the wrong arguments.
        new: the corrected arguments; None if unknown.
        remedy: a whole sentence; "" if the remedy is to use `new`.
        where: the setting or the option that is wrong; "" for another argument.
        unknown: the method, the stream or the setting that does not exist.
    """

    fault: str
    old: tuple[str, ...] = ()
    new: tuple[str, ...] | None = None
    remedy: str = ""
    where: str = ""
    unknown: str = ""

    @property
    def text(self) -> str:
        """The mistake and its remedy in one line."""
        remedy = self.remedy or (f"Use {' '.join(self.new)}." if self.new else "")
        return f"{self.fault}. {remedy}" if remedy else self.fault


def mistake_from_error(error: ConfigError, old: Sequence[str] = (), new: Sequence[str] | None = None) -> Mistake:
    """Return the mistake that an error describes; `new` defaults to the arguments that the error suggests."""
    corrected = (tuple(new) if new is not None else error.write or None) if old else None
    remedy = error.remedy
    if error.write and not remedy and corrected != error.write:
        remedy = f"Use {' '.join(error.write)}."
    return Mistake(error.described, tuple(old), corrected, remedy, error.settings[0], error.unknown)


def tell(words: Sequence[str], found: Sequence[Mistake]) -> Mistakes:
    """Return the error that lists all mistakes, with the corrected command if it is known.

    Args:
        words: all arguments after the program's name, as typed.
        found: the mistakes.
    """
    lines = list(dict.fromkeys(mistake.text for mistake in found))
    corrected = _corrected(words, found)
    if corrected and len(lines) == 1:
        said = found[0].text if found[0].remedy else found[0].fault
        return Mistakes(f"{said}{'' if said.endswith(('.', '?')) else '.'} Run: {corrected}")
    return Mistakes(*lines, *([f"all corrected: {corrected}"] if corrected else []))


def _corrected(words: Sequence[str], found: Sequence[Mistake]) -> str:
    changed = list(words)
    for mistake in found:
        size = len(mistake.old)
        places = [at for at in range(len(changed)) if size and tuple(changed[at : at + size]) == mistake.old]
        if mistake.new is None or not places:
            return ""
        changed[places[0] : places[0] + size] = mistake.new
    return shlex.join(["ctvr", *changed])


def setting_names(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of all settings of a command: settings of its method and, for a sweep, of the search.

    Imports torch unless the result is cached.

    Args:
        arguments: `command` and `method` as typed.
    """
    from ctvr.orchestrator.sweeps.preflight import is_method, search_settings

    method = str(arguments.get("method") or "clip4clip")
    method = method if is_method(method) else "clip4clip"
    ask = functools.partial(_settings_of, method)
    names = ask() if ":" in method else memo.remembered(["settings of", method], ask)
    return [*names, *(search_settings() if arguments.get("command") == "sweep" else ())]


def _settings_of(method: str) -> list[str]:
    from ctvr.orchestrator.settings.presets import get_method
    from ctvr.orchestrator.settings.resolve import settings_of

    try:
        return list(settings_of(get_method(method)))
    except ConfigError:  # a user's class that cannot be loaded
        return list(settings_of(get_method("clip4clip")))


def name_mistakes(arguments: argparse.Namespace) -> tuple[str, str, list[Mistake]]:
    """Return the method and the stream of a run or a sweep ("" if unusable), and the mistakes in the two names."""
    from ctvr.orchestrator.cli.sweep import MAIN_JOB
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.sweeps.preflight import check_method
    from ctvr.orchestrator.tables.presets import preset_names

    default = MAIN_JOB if arguments.command == "sweep" else {}
    names = {name: getattr(arguments, name) or default.get(name, "") for name in ("method", "stream")}
    found = [mistake_from_error(missing_name(name, **names)) for name, value in names.items() if not value]
    if _kind_of(names["method"], arguments.runs) == "stream" and _kind_of(names["stream"], arguments.runs) == "method":
        for name, other in (("method", "stream"), ("stream", "method")):
            fault = f"--{name}: {names[name]!r} is a {other}"
            found.append(Mistake(fault, (f"--{name}", names[name]), (f"--{name}", names[other]), where=name))
        return names["stream"], names["method"], found
    try:
        check_method(names["method"] or "clip4clip")
    except ConfigError as error:
        found.append(mistake_from_error(_name_kind(error, arguments.runs), (names["method"],)))
        table = closest(names["method"], preset_names(), 0.8) if arguments.command == "sweep" else ""
        if table:
            found[-1] = replace(found[-1], new=(table,))
        names["method"] = "" if table else (found[-1].new or ("",))[0]  # the settings probably belong to this method
    try:
        load_stream(names["stream"] or "shapes-5", Path(arguments.runs).resolve(), arguments.videos, render=False)
    except ConfigError as error:
        found.append(mistake_from_error(_name_kind(error, arguments.runs), (names["stream"],)))
        names["stream"] = (found[-1].new or ("",))[0]
    return names["method"], names["stream"], found


def _kind_of(word: str, runs: Path) -> str:
    """Return whether a word is the name of a "method" or a "stream", or an empty string."""
    from ctvr.orchestrator.streams.load import BENCHMARKS, available_streams, is_embedded
    from ctvr.orchestrator.sweeps.preflight import is_method

    is_stream = is_embedded(word) or word in {*available_streams(runs), *BENCHMARKS}
    return "method" if is_method(word) else "stream" if is_stream else ""


def _name_kind(error: ConfigError, runs: Path) -> ConfigError:
    """Return the error about a method or a stream, which states if a stream was given as a method or vice versa."""
    kind = _kind_of(error.unknown, runs) if error.unknown and error.where in ("method", "stream") else ""
    if not kind or kind == error.where:
        return error
    remedy = f"Use a {error.where}; `ctvr {error.where}s` lists them."
    said = f"{error.unknown!r} is a {kind}, not a {error.where}"
    return ConfigError(said, error.where, remedy=remedy, unknown=error.unknown)


def setting_mistakes(arguments: argparse.Namespace, method: str, stream: str) -> list[Mistake]:
    """Return all mistakes in the presets and settings of a run or sweep. Imports torch.

    If `method` is "", the settings of a method are not checked.
    """
    from ctvr.orchestrator.cli.options import settings_of, split_commas
    from ctvr.orchestrator.settings.presets import get_method, with_recipe
    from ctvr.orchestrator.settings.resolve import resolve
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.sweeps.preflight import forbid_seed

    try:
        settings = settings_of(arguments)
        get_method(method or "zero_shot")
    except ConfigError as error:
        return [mistake_from_error(error)]
    of_method = () if method else ("method.", "base.")
    settings = {name: value for name, value in settings.items() if not name.startswith(("search.", *of_method))}
    recommended: Mapping[str, Any] = {}
    if stream:
        recommended = load_stream(stream, Path(arguments.runs).resolve(), arguments.videos, render=False).settings
    found = []
    if arguments.command == "sweep" and "seed" in settings:
        try:
            forbid_seed(settings)
        except ConfigError as error:
            found.append(mistake_from_error(error, (f"seed={settings.pop('seed')}",)))
    name, presets = method or "zero_shot", split_commas(arguments.preset) if method else ()
    try:
        chosen = with_recipe(name, presets, recommended)
    except ConfigError as error:
        named = [error.write[0] if each == error.unknown else each for each in presets] if error.write else []
        fixed = ",".join(dict.fromkeys(named))
        found.append(mistake_from_error(error, (arguments.preset,), (fixed,) if fixed else None))
        chosen = with_recipe(name, (), recommended)
    return found + _peel(
        lambda kept: resolve({**kept, "method": name, "stream": stream or "any"}, recommended, chosen), settings
    )


def missing_name(name: str, method: str | None, stream: str | None) -> ConfigError:
    """Return the error for a run without a method or a stream."""
    from ctvr.orchestrator.sweeps.preflight import is_method

    whole = f"ctvr run {method if method and is_method(method) else 'clip4clip'} {stream or 'shapes-5'}"
    fault = f"the {name} is missing; `ctvr {name}s` lists them"
    return ConfigError(fault, "run", remedy=f"Run, for example: {whole}", settings=(name,))


def _peel(build: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> list[Mistake]:
    """Call `build` until it succeeds, with each refused setting corrected or dropped; return all mistakes."""
    kept, found = dict(settings), list[Mistake]()
    typed = {name: name for name in kept}  # setting -> its name as typed
    for _ in range(MAX_MISTAKES):
        try:
            build(kept)
            break
        except ConfigError as caught:
            error = caught
        first = next((name for name in error.settings if name in kept), None)
        if first is None and error.unknown in kept.values():  # the name of a method, as the value of a setting
            first = next((name for name, value in kept.items() if value == error.unknown != ""), None)
            error = error.at(first) if first else error
        if first is None:
            found.append(mistake_from_error(error))
            break
        value, name = kept.pop(first), typed[first]
        mistake = mistake_from_error(error, (f"{name}={value}",))
        if name != first:  # the setting that was probably meant also refuses the value
            mistake = replace(mistake, fault=f"{name}: no such setting, and {mistake.fault}", unknown=name)
            found = [each for each in found if each.old != mistake.old]
        found.append(mistake)
        meant = error.write[0].partition("=")[0] if error.write and error.unknown else first
        if meant not in typed:
            kept[meant], typed[meant] = value, name
        elif meant != first:
            given = settings[typed[meant]]
            fault = f"{name}: no such setting, and {meant}, probably meant, is also given ({given!r} and {value!r})"
            new = () if given == value else None
            found[-1] = replace(mistake, fault=fault, remedy="Keep one of them.", new=new)
    return found


def all_mistakes(arguments: argparse.Namespace, error: ConfigError | None = None) -> list[Mistake]:
    """Return every mistake in the options of a parsed command, and in the settings of a run or a sweep.

    Args:
        arguments: parsed arguments, with the mistakes in options as `mistakes`.
        error: the error that the command already raised. It is returned alone if the settings did not cause it.
    """
    from ctvr.orchestrator.cli.options import settings_of

    found: list[Mistake] = list(arguments.mistakes)
    if error is not None and error.settings[0].partition(" ")[0] in ("--runs", "--config"):  # where settings are read
        return [*found, mistake_from_error(error)]
    if getattr(arguments, "config", None):
        try:
            settings_of(arguments)  # it may contain the method and the stream
        except ConfigError as unreadable:
            return [*found, mistake_from_error(unreadable)]
    is_table = getattr(arguments, "preset", "") and arguments.command == "sweep"
    if arguments.command in ("run", "sweep") and not is_table and not getattr(arguments, "resume", None):
        method, stream, wrong = name_mistakes(arguments)
        found += wrong
        asked = {each.new[0]: at for at, each in enumerate(found) if each.new and "=" in each.new[0]}  # --lr 1: lr=1
        arguments.overrides = [*arguments.overrides, *asked]
        if arguments.overrides or arguments.config or arguments.preset:
            for each in setting_mistakes(arguments, method, stream):
                at = asked.get(each.old[0], -1) if each.old else -1
                if at < 0:
                    found.append(each)
                else:  # the value of the option is wrong, too
                    fault = f"{found[at].fault}, and {each.fault}"
                    found[at] = replace(found[at], fault=fault, new=each.new, remedy=each.remedy)
    if error is not None and not any(_is_same(each, error) for each in found):
        typed = dict(word.split("=", 1) for word in getattr(arguments, "overrides", []) if "=" in word)
        place = error.settings[0]
        old = (f"{place}={typed[place]}",) if place in typed else ()
        error = name_option(error, arguments.words)
        found.append(mistake_from_error(_name_kind(error, _runs(arguments)), old))
    return [_fill_names(_name_file(each, arguments), arguments) for each in found]


def _name_file(mistake: Mistake, arguments: argparse.Namespace) -> Mistake:
    """Return the mistake in a setting of --config with the file and the line; other mistakes are not changed."""
    name = mistake.old[0].partition("=")[0] if mistake.old and "=" in mistake.old[0] else mistake.where
    if not (place := place_in_file(name, mistake.unknown, arguments)):
        return mistake
    meant = ", ".join(word.replace("=", ": ", 1) for word in mistake.new or () if "=" in word)
    remedy = mistake.remedy or (f"Set {meant}." if meant else "")
    return replace(mistake, fault=f"{place}: {mistake.fault}", old=(), new=None, remedy=remedy)


def _is_same(mistake: Mistake, error: ConfigError) -> bool:
    """Return whether an error is about the same argument as a mistake."""
    if error.unknown and error.unknown == mistake.unknown:
        return True
    if mistake.fault in error.described:  # a check of `ctvr doctor` repeats the whole error
        return True
    return error.settings[0] != "" and os.path.abspath(mistake.where) == os.path.abspath(str(error.settings[0]))


def _runs(arguments: argparse.Namespace) -> Path:
    return Path(getattr(arguments, "runs", None) or "runs")


def _fill_names(mistake: Mistake, arguments: argparse.Namespace) -> Mistake:
    """Replace METHOD and STREAM in a mistake's remedy with the method and the stream of the command."""
    method = getattr(arguments, "name" if arguments.command == "methods" else "method", "")
    known = {"METHOD": method, "STREAM": getattr(arguments, "stream", "")}
    remedy = mistake.remedy
    for word, name in known.items():
        remedy = remedy.replace(f" {word}", f" {name}") if isinstance(name, str) and name else remedy
    return replace(mistake, remedy=remedy)
