"""Checks of addresses in files (records, plans, manifests, models, databases): whether a command may use them.

A file from elsewhere may contain any host or path, and a library that opens it sends the user's credentials there. An
address from a file is used only in two cases. It is local and below the runs folder (links resolved). Or the command
itself names its host by an option, by --trust or by a variable of `VARIABLES`. SECURITY.md lists the readers of
addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ctvr.orchestrator.errors import ConfigError

Place = str | Path
VARIABLES = ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "CTVR_STORE", "CTVR_STORAGE", "CTVR_VIDEOS")
_ORIGIN = re.compile(r"(?:[^/@\s]*@)?(?P<host>[\w.-]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:[/?#].*)?", re.I)
_PORTS = {"http": "80", "https": "443"}
_named: dict[str, bool] = {}  # address or folder that the user named -> whether --trust named it


def name_addresses(words: Iterable[object], by_trust: bool = False) -> None:
    """Allow the hosts and folders that the user names.

    Args:
        words: values of options, such as --store; None and "" are skipped.
        by_trust: whether they are values of --trust.
    """
    for word in map(str, filter(None, words)):
        _named[word if origin_of(word) else os.path.abspath(os.path.expanduser(word))] = by_trust


def named_addresses(by_trust: bool = False) -> tuple[str, ...]:
    """Return the addresses that `name_addresses` has allowed; with `by_trust`, only the values of --trust."""
    return tuple(sorted(word for word, is_trusted in _named.items() if is_trusted or not by_trust))


def is_address(word: str) -> bool:
    """Return whether a word is an address with a scheme, or an absolute path."""
    return word.startswith("/") or "://" in word


def origin_of(address: str) -> str:
    """Return SCHEME://HOST:PORT of a remote address, or SCHEME://BUCKET; empty for a local address.

    An address of another form, such as `models:/name/1`, is returned unchanged.
    """
    scheme, separator, rest = address.partition("://")
    scheme = scheme.lower()
    if separator and scheme in ("file", "sqlite"):
        return "" if urlsplit(address).hostname in (None, "localhost") else address
    if not separator:
        if re.fullmatch(r"(?!file:)[a-z][\w+.-]+:(?!\d+$).*", address, re.I | re.S):  # scheme:path
            return address
        if "/" in address or ":" not in address:
            return ""
        scheme, rest = "ray", address  # HOST:PORT
    if scheme == "mlflow-artifacts":  # MLflow replaces the scheme by that of its server
        scheme = urlsplit(os.environ.get("MLFLOW_TRACKING_URI", "")).scheme or "http"
    found = _ORIGIN.fullmatch(rest)
    if found is None:
        return address
    port = found["port"] or _PORTS.get(scheme, "")
    return f"{scheme}://{found['host'].lower()}{f':{port}' if port else ''}"


def is_allowed(address: str, *places: Place) -> bool:
    """Return whether a command may use an address that a file contains.

    Args:
        address: a path or an address.
        places: folders and addresses of this command, such as its runs folder and the address of its MLflow server.
    """
    given = [*map(str, places), *_named, *(os.environ[name] for name in VARIABLES if os.environ.get(name))]
    if origin := origin_of(address):
        return origin in map(origin_of, given)
    path, folders = _path_of(address), (place for place in given if "/" in place and not origin_of(place))
    return any(path.is_relative_to(_path_of(folder, is_ours=True)) for folder in folders)


def require_allowed(address: str, source: str, *places: Place, option: str = "--trust") -> None:
    """Refuse an address that a file contains and that this command may not use.

    Args:
        address, places: see `is_allowed`.
        source: the file or record that contains the address, for the message.
        option: the option that would allow the address, for the remedy.

    Raises:
        ConfigError: one line with the source, the host or path, and the option.
    """
    if not is_allowed(address, *places):
        origin = origin_of(address)
        named = origin or str(_path_of(address))
        what = "a host that this command does not name" if origin else "outside the runs folder"
        raise ConfigError(f"refers to {named}, {what}", source, remedy=f"To use it, add {option} {named}.")


def require_own(path: Path, *others: int, remedy: str = "Remove it, or set TMPDIR to a folder of yours") -> None:
    """Refuse a file or folder with a predictable name that another user may have made.

    Args:
        path: the file or folder, which may be absent.
        others: ids of other users who are trusted.
        remedy: the remedy in the message.

    Raises:
        ConfigError: if it is a link, or belongs to another user.
    """
    try:
        found = path.lstat()
    except OSError:
        return
    if path.is_symlink() or found.st_uid not in (os.getuid(), *others):
        why = "is a link" if path.is_symlink() else f"belongs to another user ({found.st_uid})"
        raise ConfigError(f"{why}, so it is not used. {remedy}.", path)


def _path_of(address: Place, is_ours: bool = False) -> Path:
    """Return the path of a local address, with links resolved. With `is_ours`, an SQLite address gives its folder."""
    text = str(address)
    if text.startswith("sqlite:///"):
        return Path(text.removeprefix("sqlite:///")).resolve().parent if is_ours else Path(text)
    if text.lower().startswith("file:"):
        text = unquote(urlsplit(text).path)
    return Path(text).expanduser().resolve() if is_ours else Path(text).resolve()
