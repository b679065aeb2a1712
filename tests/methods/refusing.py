"""A bad input is refused in one line, and the fields of its error name it."""

from collections.abc import Callable

import pytest

from ctvr.orchestrator.errors import ConfigError


def refused(call: Callable[[], object], said: str = "", kind: type[Exception] = ConfigError, **fields: object) -> None:
    """Fail unless a call raises an error of one line, of a kind, with these fields and a short word of its fault.

    `settings` of a SettingError are compared as its Config names them.
    """
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in str(error.value)
    assert said in str(error.value), error.value
    found = {name: getattr(error.value, name) for name in fields}
    found = {name: each("") if callable(each) else each for name, each in found.items()}
    assert found == fields, found
