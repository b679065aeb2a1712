"""Checks of the values in a plan.json, which a user may have edited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ctvr.orchestrator.errors import ConfigError

REMEDY = "Correct the file, or start a new sweep."
_EXPECTED = {  # pydantic's error -> the expected type
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "tuple_type": "a list",
    "path_type": "a text",
}
_OF_BUILD = ("value_error", "missing", "unexpected_keyword_argument")  # pydantic's errors that `build` reports


def check_types(cls: type[Any], data: Any, file: Path, key: str) -> None:
    """Refuse JSON data whose types differ from the types of a dataclass and its nested dataclasses.

    Types are not converted: the number 5 is not a string, and true is not a number.

    Args:
        cls: the dataclass.
        data: the parsed JSON of its fields.
        file: the file, for the message.
        key: dotted path of `data` in the file.

    Raises:
        ConfigError: for the first wrong value, with its path in the file.
    """
    try:
        TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        wrong = next((each for each in error.errors() if each["type"] not in _OF_BUILD), None)
        if wrong is None:
            return
        expected = wrong.get("ctx", {}).get("expected") or _EXPECTED.get(wrong["type"], "")
        place = ".".join(map(str, (key, *wrong["loc"])))
        raise wrong_value(f"is not {expected}" if expected else wrong["msg"], file, place, wrong["input"]) from None


def wrong_value(fault: str, file: Path, key: str, value: Any) -> ConfigError:
    """Return the error for a wrong value of a plan file; its message contains the value as JSON."""
    return ConfigError(f"{fault} (got {json.dumps(value):.100})", f"{file}: {key}", remedy=REMEDY)


@contextmanager
def naming_plan(file: Path) -> Iterator[None]:
    """Add the name of the plan file to errors of a `with` block that uses the file's values.

    The remedy is to correct the file, because the values cannot be given as options of `--resume`.
    """
    try:
        yield
    except ConfigError as error:
        if type(error) is not ConfigError:  # for example an untrusted class
            raise
        where = f"{file}: {error.where:.100}" if error.where else file
        raise ConfigError(f"{error.fault:.300}", where, error.got, error.remedy or REMEDY) from error
    except ValueError as error:  # a NUL byte, or a character that no path can have
        raise ConfigError(f"contains an invalid path ({error!s:.200})", file, remedy=REMEDY) from error
