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
_SETTING = re.compile(r"(?:method|base|optim|data|evaluation|backbone|tracking|search)\.\w+")
_WITH_COLON = re.compile(r"[/+-]*((?:seed|\w+\.\w+)):(-?[\d.][\w.+-]*|true|false)")  # no class of a module
_PLAIN_VALUE = re.compile(r"-?[\d.][\w.+-]*|true|false", re.IGNORECASE)
_MEANT = re.compile(r"Did you mean '?([\w@.:-]+?)'?\?")
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


# --------------------------------------------------------------------------------- names and settings


def place_names(arguments: argparse.Namespace) -> list[Mistake]:
    """Assign arguments without `=` in `arguments.overrides` to the command's positional arguments; return the mistakes.

    A command's parser lists them as `places`, ("method", "stream") for `ctvr run METHOD STREAM`. Streams are recognised
    by name, so the order does not matter.
    """
    places: tuple[str, ...] = getattr(arguments, "places", ())
    rest, bare, found = [], list[str](), list[Mistake]()
    given = _joined(arguments.overrides, found)
    for at, word in enumerate(given):
        is_value = at > 0 and "=" not in word and _SETTING.fullmatch(given[at - 1])
        if re.fullmatch(r"[\w.]+=\S+(\s+[\w.]+=\S+)+", word):
            parts = tuple(word.split())
            found.append(Mistake(f"{word!r}: is several settings in quotes. Write {' '.join(parts)}.", (word,), parts))
        elif "=" in word:
            rest.append(word)
        elif is_value:
            continue
        elif colon := _WITH_COLON.fullmatch(word):
            new = f"{colon[1]}={colon[2]}"
            found.append(Mistake(f"{word}: is a setting with a colon. Write {new}.", (word,), (new,)))
        elif _SETTING.fullmatch(word):
            value = given[at + 1] if at + 1 < len(given) and "=" not in given[at + 1] else ""
            new = f"{word}={value or 'VALUE'}"
            old = (word, value) if value else (word,)
            found.append(Mistake(f"{word}: has no value. Write {new}.", old, (new,) if value else None))
        else:
            bare.append(word)
    for word in list(rest):  # `method=clip4clip` gives the name, too
        name, _, value = word.partition("=")
        if name in ("method", "stream") and name in places and not getattr(arguments, name):
            setattr(arguments, name, value)
            rest.remove(word)
    arguments.overrides = rest
    for word in bare:
        place = _place_of(word, places, arguments)
        if place:
            setattr(arguments, place, word)
            continue
        is_taken = [name for name in places if name != "preset" and getattr(arguments, name)]
        if is_taken:
            names = ", ".join(f"{name} {getattr(arguments, name)}" for name in is_taken)
            found.append(
                Mistake(f"{word!r}: is one argument too many after {names}. Omit it, or write name=value.", (word,), ())
            )
        else:
            found.append(Mistake(f"{word!r} is not a setting. Write name=value, for example optim.epochs=8.", (word,)))
    for name, _, value in (word.partition("=") for word in rest):
        named = getattr(arguments, name, None) if name in places else None
        if named not in (None, "", value):
            found.append(Mistake(f"{name}: given twice, as {named!r} and {value!r}. Keep one of them."))
    return found


def _joined(words: Sequence[str], found: list[Mistake]) -> list[str]:
    """Drop settings such as `name = 2`, `name= 2` or `name: 2` from the arguments, and append their mistakes."""
    kept, at = list[str](), 0
    while at < len(words):
        bare = words[at].rstrip("=:")
        size = 3 if words[at + 1 : at + 2] == ["="] else 2
        value = "".join(words[at + 1 : at + size]).lstrip("=")
        is_split = words[at] != bare or words[at + 1 : at + 2] == ["="]
        if words[at].endswith(":") and "." not in bare and not _PLAIN_VALUE.fullmatch(value):
            is_split = bare in ("method", "stream", "precision")  # and no name with a colon: `clip4clip: shapes-5`
        if is_split and value and "=" not in value and re.fullmatch(r"\w+(\.\w+)*", bare):
            old = tuple(words[at : at + size])
            found.append(
                Mistake(f"{' '.join(old)}: is a setting in parts. Write {bare}={value}.", old, (f"{bare}={value}",))
            )
            at += size
        else:
            kept.append(words[at])
            at += 1
    return kept


def _place_of(word: str, places: Sequence[str], arguments: argparse.Namespace) -> str:
    """Return the positional argument that a text without `=` is for: stream, method, table, or none."""
    from ctvr.orchestrator.streams.load import BENCHMARKS, available_streams, is_embedded, plain_name
    from ctvr.orchestrator.sweeps.preflight import is_method

    free = [name for name in places if not getattr(arguments, name)]
    if "preset" in free:
        from ctvr.orchestrator.tables.presets import names_table

        is_manifest = word.endswith(".json") and bool(getattr(arguments, "method", None))  # a table names its methods
        if names_table(word) and not is_manifest:
            return "preset"
    free = [name for name in free if name != "preset"]
    if "stream" in free and not is_method(word):
        streams = {*available_streams(arguments.runs), *BENCHMARKS}
        name = plain_name(word)
        if name in streams or is_embedded(name) or word.endswith((".json", ".csv")):
            return "stream"
    return free[0] if free else ""


def setting_names(arguments: Mapping[str, Any]) -> list[str]:
    """Return all settings of a command: those of its method, and of a search if it is a sweep.

    Imports torch for a method that no command has asked about before.

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
    try:
        check_method(names["method"] or "clip4clip")
    except ConfigError as error:
        found.append(_of_name(str(error), names["method"]))
        table = closest(names["method"], preset_names(), 0.8) if arguments.command == "sweep" else ""
        if table:
            found[-1] = replace(found[-1], new=(table,))
        names["method"] = "" if table else (found[-1].new or ("",))[0]  # its settings are probably those meant
    try:
        load_stream(names["stream"] or "shapes-5", Path(arguments.runs).resolve(), arguments.videos, render=False)
    except ConfigError as error:
        found.append(_of_name(str(error), names["stream"]))
        names["stream"] = (found[-1].new or ("",))[0]
    return names["method"], names["stream"], found


def setting_mistakes(arguments: argparse.Namespace, method: str, stream: str) -> list[Mistake]:
    """Return all mistakes in the presets and settings of a run or sweep of a method ("": any). Imports torch."""
    from ctvr.orchestrator.cli.options import settings_of, split_commas
    from ctvr.orchestrator.learning.resolve import get_method, resolve, with_recipe
    from ctvr.orchestrator.streams.load import load_stream

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
    whole = f"ctvr run {method or 'clip4clip'} {stream or 'shapes-5'}"
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
        if name != first:  # the setting that was probably meant refuses the value, too
            mistake = Mistake(f"{name}: no such setting, and {text}", mistake.old, mistake.new)
            found = [each for each in found if each.old != mistake.old]
        found.append(mistake)
        meant = remedy[1].partition("=")[0] if remedy and ": no such setting" in text else first
        if meant not in typed:
            kept[meant], typed[meant] = value, name
        elif meant != first:
            given = settings[typed[meant]]
            said = f"{name}: no such setting, and {meant}, which it may mean, is given too ({given!r} and {value!r})."
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
    if error is not None and not is_known:
        words = getattr(arguments, "overrides", [])
        found.append(_of_value(str(error), dict(word.split("=", 1) for word in words if "=" in word)))
    names = " ".join(filter(None, (getattr(arguments, name, None) for name in ("method", "stream"))))
    vary = f"ctvr sweep {names}".strip() + " --vary"
    schema = f"ctvr schema {getattr(arguments, 'method', '') or 'METHOD'}"
    texts = [each.text.replace("ctvr sweep --vary", vary).replace("ctvr schema METHOD", schema) for each in found]
    return [replace(each, text=text) for each, text in zip(found, texts)]
