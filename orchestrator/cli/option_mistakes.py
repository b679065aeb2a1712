"""Mistakes in the options of a command, found before argparse reads them and stops at the first mistake."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ctvr.orchestrator.cli.mistakes import Mistake, mistake_from_error
from ctvr.orchestrator.config import closest
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import nearest_name
from ctvr.orchestrator.setting_groups import likely_number

_NUMBER = re.compile(r"-?\.?\d.*")  # -1 is a value, not an option
UNITS = {"DAYS": "30", "HOURS": "2"}  # unit of a number -> an example
NAMES = ("NAME", "FOLDER", "FILE", "HOST", "MODEL", "PRESETS")
_GPU = "A run uses the GPU that torch finds; CUDA_VISIBLE_DEVICES chooses it. Omit it."
# Options of other tools that ctvr does not need -> the explanation
NEEDLESS = {
    **dict.fromkeys(("gpu", "gpus", "device", "devices", "cuda"), _GPU),
    **dict.fromkeys(("latex", "format"), "A table is always written as .tex, too. Omit it."),
}
# Options of other tools -> the option or the setting of ctvr
OF_OTHER_TOOLS = {
    **dict.fromkeys(("output-dir", "out-dir", "outdir", "save-dir", "log-dir", "logdir", "results-dir"), "--runs"),
    **dict.fromkeys(("num-epochs", "n-epochs", "max-epochs"), "optim.epochs="),
    **dict.fromkeys(("fp16", "amp", "mixed-precision"), "precision=bf16"),
    **dict.fromkeys(("top-k", "topk"), "-k"),
    "c": "--config",
    "learning-rate": "method.lr=",
    "num-workers": "data.prefetch_threads=",
    "wandb": "tracking.mirror=wandb",
    "tensorboard": "tracking.mirror=tensorboard",
}
KINDS: dict[Any, tuple[str, str]] = {int: ("a whole number", "3"), float: ("a number", "0.5")}


def is_option(word: str) -> bool:
    """Return whether a word of a command is an option; `-` and negative numbers are values."""
    return word[:1] == "-" != word and not _NUMBER.fullmatch(word)


def check_options(
    parser: argparse.ArgumentParser,
    words: Sequence[str],
    known: Callable[[], Sequence[str]],
    others: Mapping[str, argparse.ArgumentParser],
) -> Any:
    """Return the mistakes in a command's options, and the arguments without the wrong options.

    Args:
        parser: the parser of the command.
        words: the arguments after the command.
        known: function that returns the names of all settings of the command, called only for an unknown option.
        others: the parsers of all commands by name; an unknown option may belong to one of them.
    """
    found, words = _replace_dashes(words)
    kept: list[str] = []
    given = dict[str, str]()
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return found, [*kept, *words[place:]]
        following = words[place + 1] if place + 1 < len(words) else None
        if following is not None and is_option(following):
            following = None
        if not word and all(action.dest != "text" for action in parser._actions):
            fault = "'': is an empty argument, perhaps an unset variable"
            size, mistake = 1, Mistake(fault, ("",), (), "Omit it.")
        elif not is_option(word):
            size, mistake = 1, None
        else:
            size, mistake = _check_option(parser, word, following, known)
            name = word.partition("=")[0]
            owners = [command for command, other in others.items() if name in other._option_string_actions]
            mistake = mistake or _check_repetition(parser, words[place : place + size], given)
            if mistake and mistake.unknown and any(each in owners for each in words[place + size :]):
                moved = (*words[:place], *words[place + size :], *words[place : place + size])
                mistake = Mistake(f"{name}: must come after the command", tuple(words), moved)
            elif mistake and owners and mistake.unknown:
                fault = f"{name}: is an option of ctvr {', ctvr '.join(owners[:3])}, not of this command"
                mistake = replace(mistake, fault=fault, remedy="Omit it.")
        if mistake is None:
            kept += words[place : place + size]
        else:
            found.append(mistake)
        place += size
    return found, kept


def _replace_dashes(words: Sequence[str]) -> tuple[list[Mistake], list[str]]:
    """Replace long dashes (from a text editor) of options with hyphens; return the mistakes and the arguments."""
    found, kept = list[Mistake](), list[str]()
    for word in words:
        dashes = re.match("-*[\u2010-\u2014\u2212]-*(?=[a-z])", word)
        kept.append(f"--{word[dashes.end() :]}" if dashes else word)
        if dashes:
            found.append(Mistake(f"{word}: begins with a long dash", (word,), (kept[-1],)))
    return found, kept


def _check_repetition(parser: argparse.ArgumentParser, words: Sequence[str], given: dict[str, str]) -> Mistake | None:
    """Return the mistake of an option that is given twice with different values; `given` has the earlier values."""
    name, equals, inline = words[0].partition("=")
    action = parser._option_string_actions.get(name)
    if type(action) is not argparse._StoreAction or action.nargs is not None:
        return None
    value = inline if equals else words[1]
    if (first := given.setdefault(name, value)) != value:
        return Mistake(f"{name}: given twice, as {first!r} and {value!r}", remedy="Keep one of them.")
    return None


def _check_option(
    parser: argparse.ArgumentParser, word: str, following: str | None, known: Callable[[], Sequence[str]]
) -> tuple[int, Mistake | None]:
    """Return the number of arguments that an option takes, and the mistake in them, if any."""
    name, equals, inline = word.partition("=")
    options = parser._option_string_actions
    action = options.get(name)
    if action is None and not word.startswith("--") and word[:2] in options and len(word) > 2:
        name, equals, inline = word[:2], "=", word[2:]  # -k5
        action = options[name]
    whole = [each for each in options if action is None and len(name) > 3 and each.startswith(name)]
    if whole and name.lstrip("-") not in known():
        return _describe_abbreviation(options, name, whole, inline if equals else following, bool(equals))
    if action is None:
        value = inline if equals else following
        takes_settings = any(action.dest == "overrides" for action in parser._actions)
        found = _translate_option(options, name, value, word, takes_settings) or _positional(parser, name, value, word)
        return found or _unknown_option(options, name, value, bool(equals), known)
    if action.nargs == 0:
        return 1, Mistake(f"{name}: takes no value (got {inline!r})", (word,), (name,)) if equals else None
    if action.nargs is not None:
        return 1, None
    value = inline if equals else following
    size = 1 if equals or following is None else 2
    example = f"{name} {_example(action)}"
    if value is None:
        return 1, Mistake(f"{name}: has no value", remedy=f"Use {example}.")
    if not value and action.metavar in NAMES:  # for example from an unset shell variable
        return size, Mistake(f"{name}: its value is empty", remedy=f"Use {example}, or omit it.")
    old = (word,) if equals else (name, value)
    return size, _check_value(action, name, value, example, old)


def _describe_abbreviation(
    options: Mapping[str, argparse.Action], name: str, whole: Sequence[str], value: str | None, is_inline: bool
) -> tuple[int, Mistake]:
    """Return the number of arguments of an abbreviated option, and its mistake; `whole` are the matching options."""
    if len({id(options[each]) for each in whole}) > 1:
        fault = f"{name}: is the beginning of {' and '.join(whole)}"
        return 1 if is_inline or value is None else 2, Mistake(fault, remedy="Use one of them in full.")
    takes = options[whole[0]].nargs != 0 and value is not None
    old = (f"{name}={value}",) if is_inline else (name, str(value)) if takes else (name,)
    new = (whole[0], str(value)) if takes else (whole[0],)
    return len(old), Mistake(f"{name}: no such option", old, new)


def _check_value(action: argparse.Action, name: str, value: str, example: str, old: tuple[str, ...]) -> Mistake | None:
    """Return the mistake in an option's value, if any; `old` are the arguments with the option and its value."""
    if action.choices is not None and value not in action.choices:
        names = [str(each) for each in action.choices]
        meant = closest(value, names)
        fault = f"{name}: is not one of {', '.join(names)} (got {value!r:.80})"
        return Mistake(fault, old, (name, meant)) if meant else Mistake(fault, old, None, f"Use {name} {names[0]}.")
    try:
        typed = action.type(value) if callable(action.type) else None
        if isinstance(typed, float) and not math.isfinite(typed):
            raise ValueError
    except argparse.ArgumentTypeError as error:
        return Mistake(f"{name}: {error}")
    except ConfigError as error:  # an invalid name
        return mistake_from_error(error, old, (name, nearest_name(value)))
    except (ValueError, TypeError):
        what, unit = KINDS.get(action.type, ("a valid value", ""))[0], str(action.metavar or "")
        number = likely_number(value, action.type is int, unit) if action.type in KINDS else ""
        fault = f"{name}: is not {what}{f' of {unit.lower()}' * (unit in UNITS)} (got {value!r:.80})"
        return Mistake(fault, old, (name, number)) if number else Mistake(fault, old, None, f"Use {example}.")
    return None


def _example(action: argparse.Action) -> str:
    if action.choices is not None:
        return str(next(iter(action.choices)))
    default = action.default if isinstance(action.default, (int, float)) else None
    kind, name = KINDS.get(action.type), str(action.metavar or action.dest.upper())
    return f"{default:g}" if default is not None else UNITS.get(name, kind[1]) if kind else name


def _translate_option(
    options: Mapping[str, argparse.Action], name: str, value: str | None, word: str, takes_settings: bool
) -> tuple[int, Mistake] | None:
    """Return the mistake for an option of another tool, with its replacement; None if the option is unknown."""
    typed = name.lstrip("-").replace("_", "-").lower()
    here, why = OF_OTHER_TOOLS.get(typed, ""), NEEDLESS.get(typed, "")
    if why == _GPU and not takes_settings:
        why = ""
    if not why and not (here in options or (here and takes_settings and not here.startswith("-"))):
        return None
    takes = value is not None and typed != "latex" and (bool(why) or here in options or here.endswith("="))
    old = (word,) if "=" in word or not takes else (name, str(value))
    if why:
        return len(old), Mistake(f"{name}: no such option", old, (), why)
    what, new = "no such option", [here, value or "FOLDER"]
    if here not in options:
        what, new = "is a setting, not an option", [f"{here}{value or 'VALUE'}" if here[-1] == "=" else here]
    is_whole = takes or (here not in options and here[-1] != "=")
    remedy = "" if is_whole else f"Use {' '.join(new)}."
    return len(old), Mistake(f"{name}: {what}", old, tuple(new) if is_whole else None, remedy)


def _positional(parser: argparse.ArgumentParser, name: str, value: str | None, word: str) -> tuple[int, Mistake] | None:
    """Return the mistake of an option that is a positional argument of the command, or None."""
    own = [action for action in parser._actions if not action.option_strings and action.dest != "overrides"]
    typed = name.removeprefix("--")
    named = [action for action in own if typed in (action.dest, str(action.metavar).lower())]
    if value is None or not (named or any(action.metavar == "name=FILE" for action in own)):
        return None
    new = value if named else f"{typed}={value}"
    old = (word,) if "=" in word else (name, value)
    return len(old), Mistake(f"{name}: is an argument, not an option", old, (new,))


def _unknown_option(
    options: Mapping[str, argparse.Action],
    name: str,
    value: str | None,
    is_inline: bool,
    known: Callable[[], Sequence[str]],
) -> tuple[int, Mistake]:
    """Return the number of arguments of an unknown option, and its mistake, which suggests what was probably meant."""
    from ctvr.orchestrator.config import closest_setting

    typed = name.lstrip("-")
    option = closest(name, [each for each in options if each.startswith("--")], 0.8)
    takes = bool(option) and options[option].nargs != 0
    settings = known()
    ends = {*(each.rpartition(".")[2].replace("_", "") for each in settings)}
    bare = {each for each in ends if each != "name"} | {*settings}
    is_setting = typed.replace("-", "").replace("_", "").lower() in bare or typed in settings
    setting = closest_setting(typed.replace("-", "_"), settings) if is_setting or not option else ""
    if setting and not is_setting and not closest(typed, [setting, setting.rpartition(".")[2]], 0.8):
        setting = ""
    if typed == "name":  # prefer the run's own setting to that of the optimizer or the backbone
        setting = ""
    size = 1 if is_inline or value is None or (option and not takes and not is_setting) or "=" in value else 2
    given = value if size == 2 or is_inline else None
    old = (f"{name}={value}",) if is_inline else (name, *([value] if size == 2 and value is not None else []))
    if setting:
        new = f"{setting}={given if given is not None else 'VALUE'}"
        remedy = "" if given else f"Use {new}."
        return size, Mistake(f"{name}: is a setting, not an option", old, (new,) if given else None, remedy)
    if option:
        fixed = (option, *([given] if given is not None and takes else []))
        return size, Mistake(f"{name}: no such option", old, fixed)
    remedy = "`--help` lists the options of this command."
    return size, Mistake(f"{name}: no such option", old, None, remedy, unknown=name)
