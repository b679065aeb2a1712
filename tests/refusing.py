"""Assertions that an input is refused with an error of one line, known by its fields and values, not by its wording."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ctvr.orchestrator.errors import ConfigError


def missing_from(text: str, *values: object) -> list[str]:
    """List the values that do not occur in a text as whole words."""
    return [v for v in map(str, values) if not re.search(rf"(?<!\w){re.escape(v)}(?!\w)", text)]


@contextmanager
def refuses(*values: object, kind: type[Exception] = ConfigError, **fields: object) -> Iterator[pytest.ExceptionInfo]:
    """Fail unless the block raises a one-line error of class `kind` with these values in its text and these fields.

    `where` may omit the folder of a file. `remedy=True`: the error has a remedy. `settings` of a SettingError are
    compared as its Config names them.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert "\n" not in str(error)
    assert not missing_from(str(error), *values), error
    found = {name: getattr(error, name) for name in fields}
    found = {name: each("") if callable(each) else each for name, each in found.items()}
    found = {name: list(each) if isinstance(each, tuple) else each for name, each in found.items()}
    expected = {name: list(each) if isinstance(each, tuple) else each for name, each in fields.items()}
    if "where" in fields and str(found["where"]).endswith(f"/{fields['where']}"):
        found["where"] = fields["where"]
    if "remedy" in fields:
        found["remedy"] = bool(found["remedy"])
    assert found == expected, found


def refused(call: Callable[[], object], *values: object, kind: type[Exception] = ConfigError, **fields: object) -> None:
    """Fail unless a call is refused; see `refuses`."""
    with refuses(*values, kind=kind, **fields):
        call()
