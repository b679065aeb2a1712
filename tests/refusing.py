"""A bad input is refused in one line. The fields of its error and the values in its text name it, not its words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ctvr.orchestrator.errors import ConfigError


def missing_from(text: str, *values: object) -> list[str]:
    """List the values that a text lacks: numbers, names or paths, each without a space and not within a word."""
    return [v for v in map(str, values) if not re.search(rf"(?<!\w){re.escape(v)}(?!\w)", text)]


@contextmanager
def refuses(*values: object, kind: type[Exception] = ConfigError, **fields: object) -> Iterator[pytest.ExceptionInfo]:
    """Fail unless the block raises an error of one line, of a kind, with these values in its text and these fields.

    `where` is the end of the place: a file without its folder. `remedy=True` requires any. `settings` of a SettingError
    are compared as its Config names them.
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
