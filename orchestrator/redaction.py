"""Secrets are kept out of what is said, logged and recorded."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY", re.IGNORECASE)
_POINTER_NAME = re.compile(r"_(?:PATH|FILE|DIR|URI|URL|MODE)$", re.IGNORECASE)  # says where, not what
_IN_ADDRESS = re.compile(r"(:/{1,2})[^\s/@\"'<>]{1,512}@")  # one slash: what pathlib makes of an address


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables whose values are secrets: by their name, and long enough not to turn up by chance."""
    return {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and not _POINTER_NAME.search(name) and _is_telling(value)
    }


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with `***` for every secret value of the environment, and for user and password in an address."""
    found = secret_values(os.environ if environment is None else environment)
    for value in sorted(set(found.values()), key=len, reverse=True):
        text = text.replace(value.strip(), "***")
    return _IN_ADDRESS.sub(r"\1***@", text) if "@" in text else text


def hide_secrets() -> None:
    """From now on no log line of this process, of whatever library, holds what `redact` removes."""
    make = logging.getLogRecordFactory()
    if getattr(make, "hides_secrets", False):
        return

    def make_redacted(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        try:
            said = record.getMessage()
        except (TypeError, ValueError):  # a mistake of its caller, which logging reports
            return record
        shown = redact(said)
        if shown != said:
            record.msg, record.args = shown, ()
        return record

    make_redacted.hides_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_redacted)


def _is_telling(value: str) -> bool:
    value = value.strip()
    return len(value) >= 12 or (len(value) >= 8 and not value.isalpha() and not value.isdigit())
