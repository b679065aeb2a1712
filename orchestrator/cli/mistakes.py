"""Detection of all mistakes in one command, each with a corrected command line.

`argparse` stops at the first mistake. The arguments are therefore checked here first. Invalid settings are removed and
the rest checked again, until no further mistake is found.
"""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctvr.orchestrator import memo
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.errors import ConfigError, Mistakes

_REMEDY = re.compile(r"(?:Write|Use) ([\w.]+=[^\s]+?)\.$")  # at the end of a message on a setting
_MEANT = re.compile(r"Did you mean '?([\w@.:-]+?)'?\?")
_UNKNOWN = re.compile(r"no (method|stream) called '([^']+)'")
MOST = 20  # mistakes that are looked for


@dataclass(frozen=True)
class Mistake:
    """One mistake: its description, the wrong arguments, and the corrected ones (None if unknown)."""

    text: str
    old: tuple[str, ...] = ()
    new: tuple[str, ...] | None = None


def tell(words: Sequence[str], found: Sequence[Mistake]) -> Mistakes:
    """Return the error that lists all mistakes, with the corrected command if it is known.

    Args:
        words: all arguments after the program's name, as typed.
        found: the mistakes.
    """
    lines = list(dict.fromkeys(mistake.text for mistake in found))
    corrected = _corrected(words, found)
    if corrected and len(lines) == 1:
        remedy = f" Write {' '.join(found[0].new or ())}."
        return Mistakes(f"{lines[0].removesuffix(remedy)} Write: {corrected}")
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
    """Return all settings of a command: those of its method, and of a search if it is a sweep.

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
    from ctvr.orchestrator.learning.resolve import get_method, settings_of

    try:
        return list(settings_of(get_method(method)))
    except ConfigError:  # a user's class that cannot be loaded
        return list(settings_of(get_method("clip4clip")))


def name_mistakes(arguments: argparse.Namespace) -> tuple[str, str, list[Mistake]]:
    """Return the method and the stream of a run or a sweep (empty if they cannot be used), and the mistakes in them."""
    from ctvr.orchestrator.cli.sweep import MAIN_JOB
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.sweeps.preflight import check_method
    from ctvr.orchestrator.tables.presets import preset_names

    default = MAIN_JOB if arguments.command == "sweep" else {}
    names = {name: getattr(arguments, name) or default.get(name, "") for name in ("method", "stream")}
    found = [Mistake(missing_name(name, **names)) for name, value in names.items() if not value]
    if _kind_of(names["method"], arguments.runs) == "stream" and _kind_of(names["stream"], arguments.runs) == "method":
        for name, other in (("method", "stream"), ("stream", "method")):
            text = f"--{name}: {names[name]!r} is a {other}. Write --{name} {names[other]}."
            found.append(Mistake(text, (f"--{name}", names[name]), (f"--{name}", names[other])))
        return names["stream"], names["method"], found
    try:
        check_method(names["method"] or "clip4clip")
    except ConfigError as error:
        found.append(_of_name(str(error), names["method"]))
        table = closest(names["method"], preset_names(), 0.8) if arguments.command == "sweep" else ""
        if table:
            found[-1] = replace(found[-1], new=(table,))
        names["method"] = "" if table else (found[-1].new or ("",))[0]  # the settings probably belong to this method
    try:
        load_stream(names["stream"] or "shapes-5", Path(arguments.runs).resolve(), arguments.videos, render=False)
    except ConfigError as error:
        found.append(_of_name(str(error), names["stream"]))
        names["stream"] = (found[-1].new or ("",))[0]
    return names["method"], names["stream"], found


def _kind_of(word: str, runs: Path) -> str:
    """Return whether a word is the name of a "method" or a "stream", or an empty string."""
    from ctvr.orchestrator.streams.load import BENCHMARKS, available_streams, is_embedded
    from ctvr.orchestrator.sweeps.preflight import is_method

    is_stream = is_embedded(word) or word in {*available_streams(runs), *BENCHMARKS}
    return "method" if is_method(word) else "stream" if is_stream else ""


def _of_another_kind(text: str, runs: Path) -> str:
    """Return an error about an unknown method or stream; the name of the other kind is called so."""
    unknown = _UNKNOWN.search(text)
    if unknown is None or not (kind := _kind_of(unknown[2], runs)) or kind == unknown[1]:
        return text
    said = f"{unknown[1]}: {unknown[2]!r} is a {kind}, not a {unknown[1]}."
    return f"{said} Give a {unknown[1]}; `ctvr {unknown[1]}s` lists them."


def setting_mistakes(arguments: argparse.Namespace, method: str, stream: str) -> list[Mistake]:
    """Return all mistakes in the presets and settings of a run or sweep of a method ("": any). Imports torch."""
    from ctvr.orchestrator.cli.options import settings_of, split_commas
    from ctvr.orchestrator.learning.resolve import get_method, resolve, with_recipe
    from ctvr.orchestrator.streams.load import load_stream
    from ctvr.orchestrator.sweeps.preflight import forbid_seed

    try:
        settings = settings_of(arguments)
        get_method(method or "zero_shot")
    except ConfigError as error:
        return [Mistake(str(error))]
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
            found.append(Mistake(str(error), (f"seed={settings.pop('seed')}",)))
    name, presets = method or "zero_shot", split_commas(arguments.preset) if method else ()
    try:
        chosen = with_recipe(name, presets, recommended)
    except ConfigError as error:
        found.append(_of_name(str(error), arguments.preset))
        chosen = with_recipe(name, (), recommended)
    return found + _peel(
        lambda kept: resolve({**kept, "method": name, "stream": stream or "any"}, recommended, chosen), settings
    )


def missing_name(name: str, method: str | None, stream: str | None) -> str:
    """Return the error message for a run without a method or a stream."""
    from ctvr.orchestrator.sweeps.preflight import is_method

    whole = f"ctvr run {method if method and is_method(method) else 'clip4clip'} {stream or 'shapes-5'}"
    return f"run: the {name} is missing; `ctvr {name}s` lists them. Write for example: {whole}"


def _of_name(text: str, name: str) -> Mistake:
    if row := re.search(r"is a row of a table. Write (\S+) --preset (\S+)\.$", text):
        return Mistake(text, (name,), (row[1], "--preset", row[2]))
    meant = _MEANT.search(text)
    return Mistake(text, (name,), (meant[1],) if meant else None)


def _of_value(text: str, settings: Mapping[str, Any]) -> Mistake:
    """Describe a wrong value of a setting, with the value that was probably meant (`clip4clip` for `Clip4Clip`)."""
    named = [name for name, value in settings.items() if f"{value!r}" in text]
    meant = _MEANT.search(text)
    if meant is None or len(named) != 1:
        return Mistake(text)
    return Mistake(text, (f"{named[0]}={settings[named[0]]}",), (f"{named[0]}={meant[1]}",))


def _peel(build: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> list[Mistake]:
    """Call `build` repeatedly, correct or drop the setting that it refuses, and return all mistakes found."""
    kept, found = dict(settings), list[Mistake]()
    typed = {name: name for name in kept}  # setting -> its name as typed
    for _ in range(MOST):
        try:
            build(kept)
            break
        except ConfigError as error:
            text = str(error)
        refused = [name for name in kept if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text)]
        first = min(refused, key=text.index, default=None)
        remedy = _REMEDY.search(text)
        if first is None:
            found.append(_of_value(text, kept))
            break
        value, name = kept.pop(first), typed[first]
        mistake = Mistake(text, (f"{name}={value}",), (remedy[1],) if remedy else None)
        if name != first:  # the setting that was probably meant also refuses the value
            mistake = Mistake(f"{name}: no such setting, and {text}", mistake.old, mistake.new)
            found = [each for each in found if each.old != mistake.old]
        found.append(mistake)
        meant = remedy[1].partition("=")[0] if remedy and ": no such setting" in text else first
        if meant not in typed:
            kept[meant], typed[meant] = value, name
        elif meant != first:
            given = settings[typed[meant]]
            said = f"{name}: no such setting, and {meant}, probably meant, is also given ({given!r} and {value!r})."
            found[-1] = Mistake(f"{said} Keep one of them.", mistake.old, () if given == value else None)
    return found


def all_mistakes(arguments: argparse.Namespace, error: ConfigError | None = None) -> list[Mistake]:
    """Return every mistake of a parsed command: those in its options, and those in the settings of a run or a sweep.

    Args:
        arguments: parsed, with `mistakes` of the options.
        error: the error that the command already raised. It is returned alone if the settings did not cause it.
    """
    from ctvr.orchestrator.cli.options import settings_of

    found: list[Mistake] = list(arguments.mistakes)
    if str(error).startswith(("--runs", "--config")):  # where names and settings are read
        return [*found, Mistake(str(error))]
    if getattr(arguments, "config", None):
        try:
            settings_of(arguments)  # it may contain the method and the stream
        except ConfigError as unreadable:
            return [*found, Mistake(str(unreadable))]
    is_table = getattr(arguments, "preset", "") and arguments.command == "sweep"
    wrong = list[Mistake]()
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
                    said = found[at].text.partition(". Write ")[0]
                    found[at] = replace(found[at], text=f"{said}, and {each.text}", new=each.new)
    name = str(error).partition(":")[0]
    is_known = any(
        str(error).endswith(each.text) or each.text.startswith(f"{name}: no such setting, and") for each in found
    )
    is_known |= bool(wrong and _UNKNOWN.search(str(error)))
    if error is not None and not is_known:
        words = getattr(arguments, "overrides", [])
        found.append(_of_value(str(error), dict(word.split("=", 1) for word in words if "=" in word)))
    names = " ".join(filter(None, (getattr(arguments, name, None) for name in ("method", "stream"))))
    vary = f"ctvr sweep {names}".strip() + " --vary"
    method = getattr(arguments, "name" if arguments.command == "check-method" else "method", "")
    schema = f"ctvr schema {method or 'METHOD'}"
    texts = [each.text.replace("ctvr sweep --vary", vary).replace("ctvr schema METHOD", schema) for each in found]
    runs = Path(getattr(arguments, "runs", "runs"))
    return [replace(each, text=_of_another_kind(text, runs)) for each, text in zip(found, texts)]
