"""Trusted classes `module:Class`: those that the user names in a command, its --config file, --trust or Python.

`methods.find_method` loads no others, because streams, models, records, plans and tables may come from third parties.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from ctvr.methods import named_classes, trust, trusted
from ctvr.methods.user_code import place_in_user_code as place_in_user_code
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.sweeps.settings_file import read_settings


def trust_typed(words: Iterable[str]) -> None:
    """Trust the classes in the arguments of a command.

    An argument that is the name of an existing file is ignored, because it may come from a shell's `*`.
    """
    trust(word for word in words if not os.path.lexists(word))


def trust_named(names: Iterable[str]) -> None:
    """Trust the classes that --trust names.

    Raises:
        ConfigError: for a name that is not MODULE:CLASS.
    """
    for name in names:
        if named_classes([name]) != [name]:
            raise ConfigError(f"--trust: {name!r} is not a class. Write MODULE:CLASS, as in the error message.")
        trust([name])


def trust_config(file: Path) -> None:
    """Trust the classes in a settings file that the user names.

    Raises:
        ConfigError: if it cannot be read.
    """
    trust(read_settings(file).values())


def trust_options() -> list[str]:
    """Return the --trust options for the classes that this process trusts."""
    return [word for name in trusted() for word in ("--trust", name)]


def trust_text() -> str:
    """Return the --trust options as the end of a printed command; empty if there are none."""
    return "".join(f" {shlex.quote(word)}" for word in trust_options())


def resume_command(name: str) -> str:
    """Return the command that resumes a sweep."""
    return f"ctvr sweep --resume {name}{trust_text()}"
