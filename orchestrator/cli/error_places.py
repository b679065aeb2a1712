"""Places of errors as the user named them: the option of a value, and the file and line of a setting."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.sweeps.settings_file import find_lines, read_settings

# A noun that the code below the commands uses -> the options whose value it may mean
OPTIONS = {
    "method": ("--baselines",),
    "preset": ("--baselines",),
    "store": ("--store",),
    "sweep": ("--resume", "--sweep"),
    "videos": ("--gallery", "--videos"),
}


def name_option(error: ConfigError, words: Sequence[str]) -> ConfigError:
    """Return the error about a value of an option with the option's name; other errors are not changed.

    Args:
        error: an error of the code below the commands.
        words: all arguments after the program's name, as typed.
    """
    for option in OPTIONS.get(str(error.where), ()):
        value = _value_of(option, words)
        parts = re.split("([,@:])", value or "")
        is_meant = error.unknown in parts if error.unknown else option != "--baselines" and value is not None
        if not is_meant or (error.where == "videos" and not error.unknown and str(value) not in str(error)):
            continue
        write = tuple(
            f"{option} {''.join(word if part == error.unknown else part for part in parts)}"
            for word in error.write
            if error.unknown
        )
        return ConfigError(error.fault, option, error.got, error.remedy, write, (option,), error.unknown)
    return error


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """Return the value of an option in a command, or None."""
    for at, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(words):
            return words[at + 1]
    return None


def place_in_file(name: str, unknown: str, arguments: argparse.Namespace) -> str:
    """Return the file of --config, with the line, if a setting has its value from there, otherwise "".

    Args:
        name: the setting, as typed.
        unknown: the method, stream or setting that does not exist; "" if the error is another one.
        arguments: parsed arguments, with `config` and the typed `words`.
    """
    if not (file := getattr(arguments, "config", None)):
        return ""
    try:
        settings, words = read_settings(file), arguments.words
        is_typed = any(word.startswith(f"{name}=") for word in words) or (unknown != name and unknown in words)
        line = find_lines(file).get(name)
    except ConfigError:  # reported as a mistake of its own
        return ""
    place = f"--config {file}" + (f", line {line}" if line else "")
    return "" if is_typed or name not in settings else place
