"""Redaction of secrets in everything that is printed, logged or recorded.

Three kinds of text count as secrets: values of environment variables, parameters, settings and headers whose names
suggest a secret; user names and passwords in addresses; tokens of a known form (AWS, Hugging Face, GitHub, JSON web
tokens, private keys).
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import quote, unquote, urlsplit

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL|AUTHORIZATION|"
    r"(?:^|_)(?:PASS|SAS|COOKIE)$|_PWD$",
    re.IGNORECASE,
)
_POINTER_NAME = re.compile(r"_(?:PATH|FILE|DIR|URI|URL|MODE)$", re.IGNORECASE)  # the value is the location of a secret
_IN_ADDRESS = re.compile(  # pathlib leaves one slash, JSON may escape them; a password may contain @, / and '
    r"(:(?:\\?/){1,2})"
    r"(?:[^\s/\"'<>]{1,512}|[^\s/\"'<>:@]{0,256}:(?!\d{1,5}/)(?:[^\s\"'<>@]|'(?![\s,)\]};:>])){1,256})@"
)
_IN_ENCODED_ADDRESS = re.compile(r"(%3a%2f%2f)(?:(?!%2f)[^\s&\"'<>/]){1,512}?(?=%40)", re.IGNORECASE)
_WORD = (
    r"(?:token|secret|passwd|password|passphrase|pwd|api[_-]?key|access[_-]?key(?:[_-]?id)?|"
    r"secret[_-]?key|private[_-]?key|account[_-]?key|accesskeyid|accessid|credentials?|signature|authorization|jwt)"
)
_KEY = rf"(?:[\w.-]{{0,64}}[_.-])?{_WORD}"
_PLAIN = r"(?:\d{1,6}|true|false|none|null|\*\*\*)"  # a value that is not a secret
_HEADER = r"authorization\b[\"']?\s*[:=,]\s*b?[\"']?"  # in text, a dictionary or a list of pairs
_NAMED = (
    re.compile(rf"([?&;](?:{_KEY}|sig|auth|key|pass)=)[^\s&;#\"'<>)\]]+", re.IGNORECASE),  # in an address
    re.compile(rf"(?<![\w.-])((?:--)?{_KEY}(?:=|(?<==)|\s=\s)[\"']?)(?!{_PLAIN}\b)[^\s\"'<>,;&}})\]]+", re.IGNORECASE),
    re.compile(rf"((?<![\w-])--{_KEY}\s+)[^\s-]\S*", re.IGNORECASE),
    re.compile(rf"(([\"']){_KEY}\2\s*:\s*([\"']))(?:\\.|(?!\3)[^\\])+", re.IGNORECASE),  # in JSON and reprs
    re.compile(rf"((?<![\w.-]){_KEY}:\s)(?=\S*\d)(?=\S*[a-z])[\w+][\w+/.=~-]{{7,}}", re.IGNORECASE),
    re.compile(rf"({_WORD}%3d)(?:(?!%26)[^\s&\"'<>])+", re.IGNORECASE),  # in an address within an address
    re.compile(
        rf"((?<![\w-])(?=[\w-]){_KEY}(?:=|(?:\\+[\"'])?\s*:\s)(\\*[\"'])(?!{_PLAIN}\2))(?:(?!\2|\n).){{6,}}(?=\2)",
        re.IGNORECASE,
    ),
    re.compile(r"(\bpass(?:word|wd)\s+(?:is\s+)?[\"']?)(?=\S*\d)(?=\S*[a-z])[^\s\"'<>]{6,}", re.IGNORECASE),
    re.compile(rf"(\b{_HEADER}digest\s+)(?:=\s?\"[^\"\n]*\"|\\.|[^\"'\n\\])+", re.IGNORECASE),
    re.compile(
        rf"(\b{_HEADER}(?:(?:basic|bearer|token)\s+|[a-z][\w-]{{1,20}}\s+(?=\S*[\d=])))[\w.~+/=-]+", re.IGNORECASE
    ),
    re.compile(r"(\bauthorization[\"']\s*,\s*b?[\"'])[^\"'\s]+(?=[\"'])", re.IGNORECASE),
    re.compile(r"(\bcookie[\"']?\s*[:,]\s*b?[\"']?)(?=[\w.-]+=)[^\"'\n]+", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)(?=[\w~+/.-]*[\d._=])[\w.~+/=-]{6,}|(\bbasic\s+)[\w+/]{11,}={1,2}", re.IGNORECASE),
)
_PICTURE = re.compile(r"(?<=data:image/jpeg;base64,)[A-Za-z0-9+/]{256,}={0,2}")  # an image embedded in a page
_HINTS = (
    "token",
    "secret",
    "pass",
    "pwd",
    "key",
    "access",
    "credential",
    "signature",
    "auth",
    "cookie",
    "jwt",
    "sig=",
    "bearer",
    "basic",
)
_FORM_HINTS = (
    *("AKIA", "ASIA", "AROA", "AIDA", "AGPA", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("sk-", "xox", "AIza", "ya29.", "pypi-", "eyJ", "PRIVATE KEY"),
)
_FORMS = re.compile(
    r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA)[A-Z0-9]{16}\b|"  # AWS
    r"\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|"
    r"\bsk-[\w-]{20,}|\bxox[abeoprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}|\bpypi-[\w-]{32,}|"
    r"\beyJ[\w-]{6,1024}\.[\w-]{6,}(?:\.[\w-]*)?|"  # a JSON web token
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)",
    re.DOTALL,
)


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables whose name suggests a secret and whose value is too long to occur by chance."""
    return {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and not _points(name, value) and _is_telling(value)
    }


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Replace the secrets that this module recognizes in a text by `***`."""
    for value in _wanted(tuple((os.environ if environment is None else environment).items())):
        text = text.replace(value, HIDDEN)
    if "@" in text:
        text = _IN_ADDRESS.sub(rf"\1{HIDDEN}@", text)
    if "%40" in text:
        text = _IN_ENCODED_ADDRESS.sub(rf"\1{HIDDEN}", text)
    pictures = _PICTURE.findall(text) if "data:image/jpeg;base64," in text and "\0" not in text else []
    if pictures:  # the patterns need a second for a million characters
        places = count()
        text = _PICTURE.sub(lambda _: f"\0{next(places)}\0", text)
    if any(hint in text.lower() for hint in _HINTS):  # most texts contain none, and some have millions of characters
        text = "".join(map(_redact_line, text.splitlines(keepends=True)))
    text = _FORMS.sub(HIDDEN, text) if any(hint in text for hint in _FORM_HINTS) else text
    return re.sub(r"\0(\d+)\0", lambda found: pictures[int(found[1])], text) if pictures else text


def _redact_line(line: str) -> str:
    lower = line.lower()
    if any(hint in lower for hint in _HINTS):
        for pattern in _NAMED:
            line = pattern.sub(lambda found: (found[1] or found[found.lastindex or 0]) + HIDDEN, line)
    return line


def redact_data(value: Any, name: str = "") -> Any:
    """Redact the strings in JSON-serializable data; `name` is the key of the value."""
    if isinstance(value, dict):
        return {key: redact_data(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        found = [redact_data(each, name) for each in value]
        return tuple(found) if type(value) is tuple else found
    if isinstance(value, bytes):
        return redact(value.decode("latin-1")).encode("latin-1")
    if not isinstance(value, str):
        return value
    if re.fullmatch(_KEY, name, re.IGNORECASE) and _is_telling(value):
        return HIDDEN
    return redact(value)


def redact_error(error: BaseException) -> None:
    """Redact the texts of an exception and its causes before it is sent to another process or a log."""
    for each in _chain(error):
        each.args = tuple(redact_data(arg) for arg in each.args)
        if isinstance(each, OSError) and isinstance(each.filename, str):
            each.filename = redact(each.filename)
        for name, value in list(vars(each).items()):  # `__notes__` is a list
            if isinstance(value, (str, dict, list)):
                setattr(each, name, redact_data(value))


def hide_secrets() -> None:
    """Redact all log records, warnings and uncaught tracebacks of this process, including those of libraries."""
    make = logging.getLogRecordFactory()
    if getattr(make, "hides_secrets", False):
        return

    def make_redacted(*args: Any, **more: Any) -> logging.LogRecord:
        return _without_secrets(make(*args, **more))

    make_redacted.hides_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)
    shown = warnings.formatwarning
    warnings.formatwarning = lambda *given, **more: redact(shown(*given, **more))
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_redacted
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = lambda end: _print_redacted(end.exc_type, end.exc_value, end.exc_traceback)


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception, redacted."""
    return redact("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    """Redact a record: its message, the traceback of its exception, its stack."""
    try:
        said = record.getMessage()
    except (TypeError, ValueError, KeyError):  # bad arguments, which logging would print unredacted
        said = f"{record.msg} {record.args!r}"
        record.msg, record.args = said, ()
    shown = redact(said)
    if shown != said:
        record.msg, record.args = shown, ()
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        hidden = redact(text)
        if hidden != text:  # a handler prints `exc_text` if `exc_info` is None
            record.exc_text, record.exc_info = hidden, None
    if record.stack_info:
        record.stack_info = redact(record.stack_info)
    return record


def _print_redacted(kind: Any, error: BaseException | None, trace: Any) -> None:
    """Print an uncaught exception as Python does, redacted."""
    if kind is not SystemExit and sys.stderr is not None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
            yield each


@lru_cache(maxsize=4)
def _wanted(environment: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the texts to search for, longest first: secret values verbatim, in JSON, in a URL, and line by line."""
    found: set[str] = set()
    values = [value.strip() for value in secret_values(dict(environment)).values()]
    values += [password for _, value in environment if "@" in value and (password := _password(value))]
    for value in values:
        found |= {
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            *(quote(value, safe) for safe in ("", "/")),
        }
        found |= {line for line in map(str.strip, value.splitlines()) if _is_telling(line)}
    return sorted(found, key=len, reverse=True)


def _password(address: str) -> str:
    """Return the password in a variable that holds an address, if it is long enough to search for."""
    try:
        password = unquote(urlsplit(address).password or "")
    except ValueError:
        return ""
    return password if _is_telling(password) else ""


def _points(name: str, value: str) -> bool:
    """Return whether a variable holds the location of a secret, such as GOOGLE_APPLICATION_CREDENTIALS (a path)."""
    return bool(_POINTER_NAME.search(name)) or ("CREDENTIAL" in name.upper() and value.startswith(("/", "~")))


def _is_telling(value: str) -> bool:
    value = value.strip()
    return len(value) >= 12 or (len(value) >= 8 and not value.isalpha() and not value.isdigit())
