"""Positional arguments of a command: names of a method, a stream and a table, and settings `name=value`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ctvr.orchestrator.cli.mistakes import Mistake, mistake_from_error
from ctvr.orchestrator.cli.option_mistakes import is_option
from ctvr.orchestrator.cli.other_words import correct
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.streams.load import is_embedded

_SETTING = re.compile(r"(?:method|base|optim|data|evaluation|backbone|tracking|search)\.\w+")
_WITH_COLON = re.compile(r"[/+-]*((?:seed|\w+\.\w+)):(-?[\d.][\w.+-]*|true|false)")  # no class of a module
_PLAIN_VALUE = re.compile(r"-?[\d.][\w.+-]*|true|false", re.IGNORECASE)


def _is_method(word: str) -> bool:
    from ctvr.orchestrator.sweeps.preflight import is_method

    return is_method(word)


# An option, a noun for its value, and a test whether a text is such a value
_BY_TYPE: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("--port", "a port", str.isdecimal),
    ("--html", "a page", lambda word: word.lower().endswith((".html", ".htm"))),
    ("--config", "a file of settings", lambda word: word.lower().endswith((".yaml", ".yml"))),
    ("--stream", "a stream", lambda word: names_stream(word, default_runs())),
    ("--model", "a model", _is_method),
)


def default_runs() -> Path:
    """Return the runs folder of a command without --runs."""
    return Path(os.environ.get("CTVR_RUNS") or "runs")


def move_arguments_first(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Put the arguments of a command before its options, because `argparse` ends a list of arguments at an option.

    Args:
        parser: parser of the command.
        words: the words after the command, with valid options. If they contain `--`, options are put first, because
            every word after `--` is an argument.
    """
    if any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
        return list(words)  # an action, which has its own options
    texts, options, at = list[str](), list[str](), 0
    while at < len(words) and words[at] != "--":
        size = 1
        if not is_option(words[at]):
            texts.append(words[at])
        else:
            action = parser._option_string_actions.get(words[at])
            if action is not None and action.nargs != 0:
                following = next((n for n, word in enumerate(words[at + 1 :]) if is_option(word)), len(words))
                size += following if action.nargs else 1
            options += words[at : at + size]
        at += size
    return [*options, "--", *texts, *words[at + 1 :]] if "--" in words else [*texts, *options]


def move_action_first(command: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Put the action of a command before options that precede it: `--runs X show NAME` -> `show --runs X NAME`.

    Args:
        command: parser of a command; if it has no actions, the words are unchanged.
        words: the words after the command.
    """
    actions = next((a.choices for a in command._actions if isinstance(a, argparse._SubParsersAction)), None) or {}
    at = 0
    while at < len(words) and is_option(words[at]):
        known = (parser._option_string_actions.get(words[at]) for parser in (command, *actions.values()))
        option = next((each for each in known if each is not None), None)
        at += 1 if option is None or option.nargs == 0 else 2
    if at == 0 or at >= len(words) or words[at] not in actions:
        return list(words)
    return [words[at], *words[:at], *words[at + 1 :]]


def with_usual_action(command: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Insert the default action of a command if none is given: `methods clip4clip` -> `methods show clip4clip`.

    Args:
        command: parser of a command.
        words: the command and the words after it.
    """
    usual = command.get_default("usual_action")
    if not usual or words[1:2] in (["-h"], ["--help"]) or correct(words) is not None:
        return list(words)
    actions = next(a.choices for a in command._actions if isinstance(a, argparse._SubParsersAction)) or {}
    if words[1:2] and (words[1] in actions or (closest(words[1], actions) and not _is_method(words[1]))):
        return list(words)
    return [words[0], usual, *words[1:]]


def place_names(arguments: argparse.Namespace) -> list[Mistake]:
    """Assign arguments without `=` in `arguments.overrides` to the command's positional arguments; return the mistakes.

    A command's parser lists them as `places`, ("method", "stream") for `ctvr run METHOD STREAM`. Streams are recognized
    by name, so the order does not matter.
    """
    places: tuple[str, ...] = getattr(arguments, "places", ())
    rest, bare, found = [], list[str](), list[Mistake]()
    given = _drop_split_settings(arguments.overrides, found)
    for at, word in enumerate(given):
        is_value = at > 0 and "=" not in word and _SETTING.fullmatch(given[at - 1])
        if re.fullmatch(r"[\w.]+=\S+(\s+[\w.]+=\S+)+", word):
            parts = tuple(word.split())
            found.append(Mistake(f"{word!r}: is several settings in quotes", (word,), parts))
        elif "=" in word:
            rest.append(word)
        elif is_value:
            continue
        elif colon := _WITH_COLON.fullmatch(word):
            new = f"{colon[1]}={colon[2]}"
            found.append(Mistake(f"{word}: is a setting with a colon", (word,), (new,)))
        elif _SETTING.fullmatch(word):
            value = given[at + 1] if at + 1 < len(given) and "=" not in given[at + 1] else ""
            new = f"{word}={value or 'VALUE'}"
            old = (word, value) if value else (word,)
            remedy = "" if value else f"Use {new}."
            found.append(Mistake(f"{word}: has no value", old, (new,) if value else None, remedy))
        else:
            bare.append(word)
    for word in list(rest):  # `method=clip4clip` also gives the name
        name, _, value = word.partition("=")
        if name in ("method", "stream") and name in places and not getattr(arguments, name):
            setattr(arguments, name, value)
            rest.remove(word)
    arguments.overrides = rest
    for word in [word for word in bare if not _place(word, places, arguments)]:
        found.append(_describe_surplus_name(word, places, arguments))
    for name, _, value in (word.partition("=") for word in rest):
        named = getattr(arguments, name, None) if name in places else None
        if named not in (None, "", value):
            found.append(Mistake(f"{name}: given twice, as {named!r} and {value!r}", remedy="Keep one of them."))
    return found


def _drop_split_settings(words: Sequence[str], found: list[Mistake]) -> list[str]:
    """Return the arguments without settings such as `name = 2`, `name= 2` or `name: 2`, which are added to `found`."""
    kept, at = list[str](), 0
    while at < len(words):
        bare = words[at].rstrip("=:")
        size = 3 if words[at + 1 : at + 2] == ["="] else 2
        value = "".join(words[at + 1 : at + size]).lstrip("=")
        is_split = words[at] != bare or words[at + 1 : at + 2] == ["="]
        if words[at].endswith(":") and "." not in bare and not _PLAIN_VALUE.fullmatch(value):
            is_split = bare in ("method", "stream", "precision")  # not a name with a colon, as in `clip4clip: shapes-5`
        if is_split and value and "=" not in value and re.fullmatch(r"\w+(\.\w+)*", bare):
            old = tuple(words[at : at + size])
            found.append(
                Mistake(
                    f"{' '.join(old)}: is a setting that is split into several arguments", old, (f"{bare}={value}",)
                )
            )
            at += size
        else:
            kept.append(words[at])
            at += 1
    return kept


def names_stream(word: str, runs: Path) -> bool:
    """Report whether a text is the name of a stream or a benchmark, with or without suffixes, or a manifest's path."""
    from ctvr.orchestrator.streams.load import BENCHMARKS, available_streams, plain_name

    name = plain_name(word)
    return name in {*available_streams(runs), *BENCHMARKS} or is_embedded(name) or word.endswith((".json", ".csv"))


def _kind(word: str, places: Sequence[str], arguments: argparse.Namespace) -> str:
    """Return the positional argument that a text is a name for, "method" or "stream"; "" if it is unknown."""
    from ctvr.orchestrator.sweeps.preflight import is_method

    if "method" in places and is_method(word):
        return "method"
    return "stream" if "stream" in places and names_stream(word, arguments.runs) else ""


def _place(word: str, places: Sequence[str], arguments: argparse.Namespace) -> bool:
    """Assign a text without `=` to its positional argument; return False if that argument already has a value."""
    from ctvr.orchestrator.sweeps.preflight import is_method

    free = [name for name in places if not getattr(arguments, name)]
    if "preset" in free:
        from ctvr.orchestrator.tables.presets import names_table

        is_manifest = word.endswith(".json") and bool(getattr(arguments, "method", None))  # a table has its own methods
        if names_table(word) and not is_manifest:
            arguments.preset = word
            return True
    free = [name for name in free if name != "preset"]
    kind = _kind(word, places, arguments)
    taken = getattr(arguments, kind) if kind else None
    if taken and (is_method(taken) if kind == "method" else names_stream(taken, arguments.runs)):
        return False
    place = "stream" if kind == "stream" and kind in free else next(iter(free), "")
    if place:
        setattr(arguments, place, word)
    return bool(place)


def _describe_surplus_name(word: str, places: Sequence[str], arguments: argparse.Namespace) -> Mistake:
    """Describe a surplus text without `=`: a second method or stream, or one argument too many."""
    given = {name: getattr(arguments, name) for name in places if name != "preset" and getattr(arguments, name)}
    kind = _kind(word, places, arguments)
    other, example = ("stream", "shapes-5") if kind == "method" else ("method", "clip4clip")
    if kind in given and other not in given and arguments.command == "run":
        setattr(arguments, other, example)  # the name that is missing, too
        fault = f"{given[kind]!r} and {word!r}: are two {kind}s, but a {kind} and a {other} are needed"
        return Mistake(fault, (word,), (example,))
    if kind == "method" and kind in given and getattr(arguments, "baselines", "") is None:
        fault = f"{word!r}: is a second method after {given[kind]}, which is searched"
        return Mistake(fault, (word,), ("--baselines", word))
    if kind in given:
        return Mistake(f"{word!r}: is a second {kind} after {given[kind]}", (word,), (), "Omit it.")
    if given:
        names = ", ".join(f"{name} {value}" for name, value in given.items())
        fault = f"{word!r}: is one argument too many after {names}"
        return Mistake(fault, (word,), (), "Omit it, or use name=value.")
    remedy = "Use name=value, for example optim.epochs=8."
    return Mistake(f"{word!r} is not a setting", (word,), remedy=remedy)


def unquoted(texts: Sequence[str]) -> list[Mistake]:
    """Return the mistake if three or more queries have one ASCII word each, since one query lacks its quotes then."""
    if len(texts) < 3 or not all(text.isascii() and len(text.split()) == 1 for text in texts):
        return []
    whole = " ".join(texts)
    return [
        Mistake(
            f"{len(texts)} queries of one word each", tuple(texts), (whole,), "For one query, put the text in quotes."
        )
    ]


def missing_value(error: ConfigError, kept: Sequence[str]) -> Mistake:
    """Describe a missing argument. If an option is missing, suggest it for a value that is given without the option.

    That value is the only argument, or the last argument if it has the type of the option. For example, `--model` is
    missing in `ctvr serve clip4clip` and in `ctvr search 'a red box' clip4clip`.
    """
    option = error.settings[0]
    last = kept[-1] if kept and not kept[-1].startswith("-") else ""
    is_typed = any(option == each and fits(last) for each, _, fits in _BY_TYPE)
    if not last or not option.startswith("--") or not (len(kept) == 1 or is_typed):
        return mistake_from_error(error)
    return Mistake(error.described, (last,), (option, last))


def surplus(word: str, words: Sequence[str], parser: argparse.ArgumentParser) -> Mistake:
    """Describe a surplus argument: the rest of a list with a space in it, or an option without its dashes."""
    before = words[words.index(word) - 1]
    if before.endswith(","):
        return Mistake(f"{before} {word}: is a list with a space", (before, word), (before + word,))
    options = parser._option_string_actions
    if f"--{word}" in options:
        return Mistake(f"{word!r}: is an option", (word,), (f"--{word}",))
    for option, what, fits in _BY_TYPE:
        is_given = any(each == option or each.startswith(f"{option}=") for each in words)
        if option in options and not is_given and fits(word):
            return Mistake(f"{word!r}: is {what}", (word,), (option, word))
    return Mistake(f"{word!r}: is one argument too many", (word,), (), "Omit it.")


def usage(parser: argparse.ArgumentParser) -> str:
    """Return the required part of a command line: the command, its arguments and its required options."""
    needed = [action for action in parser._actions if action.required or not action.option_strings]
    shown = []
    for action in needed:
        name = str(action.metavar or action.dest.upper())
        if action.option_strings:
            shown.append(f"{action.option_strings[0]} {name}")
        elif action.nargs not in ("*", "?"):
            shown.append(name)
    return " ".join([parser.prog, *shown])
