"""Trusted classes `module:Class`, addresses and architectures, named in a command, its --config file or Python.

Streams, models, records, plans and tables may come from third parties. So `methods.find_method` loads only trusted
classes, and addresses.py allows only trusted hosts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from ctvr.methods import named_classes, trust, trusted
from ctvr.methods.backbone.own_architecture import is_own
from ctvr.methods.user_code import place_in_user_code as place_in_user_code
from ctvr.orchestrator.addresses import is_address, name_addresses, named_addresses
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.sweeps.settings_file import read_settings

_ARCHITECTURE = re.compile(r"(?:^|[=\s])(?:backbone\.name|upgrade\.backbone)=(.+)")


def trust_typed(words: Iterable[str]) -> None:
    """Trust the classes that the arguments of a command name.

    An argument that is the name of an existing file is ignored, because a shell may have expanded `*` to it.
    """
    words = [word for word in words if not os.path.lexists(word)]
    trust(words)
    trust_architectures(words)


def trust_architectures(words: Iterable[str]) -> None:
    """Trust the files and folders of architectures in words such as `backbone.name=FILE.json`."""
    given = filter(None, (_ARCHITECTURE.search(word) for word in words))
    names = (name for match in given for name in re.split(r"[\s,\[\]'\"]+", match[1]))
    name_addresses((name for name in names if is_own(name)), by_trust=True)


def trust_named(names: Iterable[str]) -> None:
    """Trust the classes, hosts and folders that --trust names.

    Raises:
        ConfigError: for a name that is neither MODULE:CLASS nor an address.
    """
    for name in names:
        if is_address(name):
            name_addresses([name], by_trust=True)
        elif named_classes([name]) == [name]:
            trust([name])
        else:
            raise ConfigError(
                f"--trust: {name!r} is neither a class nor an address. Use MODULE:CLASS, SCHEME://HOST or a whole "
                "path, as in the error message."
            )


def trust_config(file: Path) -> None:
    """Trust the classes in a settings file that the user names.

    Raises:
        ConfigError: if the file cannot be read.
    """
    settings = read_settings(file)
    trust(settings.values())
    trust_architectures(f"{name}={value}" for name, value in settings.items())


def trust_options() -> list[str]:
    """Return the --trust options for the classes and addresses that this process trusts."""
    return [word for name in (*trusted(), *named_addresses(by_trust=True)) for word in ("--trust", name)]


def trust_text() -> str:
    """Return the --trust options as the end of a printed command; empty if there are none."""
    return "".join(f" {shlex.quote(word)}" for word in trust_options())


def resume_command(name: str) -> str:
    """Return the command that resumes a sweep."""
    return f"ctvr sweep --resume {name}{trust_text()}"
