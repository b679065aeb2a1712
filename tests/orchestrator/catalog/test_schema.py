"""The schema of settings accepts the groups of a method, and only the settings of the chosen variant."""

from typing import Any

import jsonschema
import pytest

from ctvr.orchestrator.catalog.schema import schema


def is_valid(settings: dict[str, Any]) -> bool:
    return not list(jsonschema.Draft202012Validator(schema("lora")).iter_errors(settings))


@pytest.mark.parametrize(
    ("settings", "valid"),
    [
        ({"method.reducer.name": "evit", "method.reducer.keep_rate": 0.5}, True),
        ({"method": {"name": "lora", "reducer": {"name": "evit", "keep_rate": 0.5}}}, True),
        ({"method": {"name": "lora", "reducer": {"name": "tome_shared", "r": [1, 2]}}}, True),
        ({"method": {"name": "lora", "reducer": {"name": "tempme", "keep_rate": 0.5}}}, False),
        ({"method": {"name": "lora", "reducer": {"keep_rate": 0.5}}}, False),
        ({"method.reducer.name": "evitt"}, False),
        ({"method.reducer.r": "many"}, False),
        ({"method.reducer.keep": 1}, False),
    ],
)
def test_a_group_is_valid_as_names_and_as_a_mapping(settings: dict[str, Any], valid: bool) -> None:
    assert is_valid(settings) is valid


def test_a_setting_of_several_reducers_has_the_text_of_each() -> None:
    texts = [each["description"] for each in schema("lora")["properties"]["method.reducer.stages"]["anyOf"]]
    assert [text.partition(":")[0] for text in texts] == [
        "with method.reducer.name=evit",
        "with method.reducer.name=sta",
        "with method.reducer.name=testa",
    ]
