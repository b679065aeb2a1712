"""Ranges contain the values of the released codes. They are read as text, since importing Ray Tune takes seconds."""

import ast

import pytest

from ctvr.orchestrator.tables.footnotes import FLOAT16
from tools.reference_pages import searched


def holds(method: str, setting: str, value: float) -> bool:
    """Return whether the method's SPACE has the value in a setting's range or among its choices."""
    domain = ast.parse(searched(method)[setting], mode="eval").body
    assert isinstance(domain, ast.Call)
    assert isinstance(domain.func, ast.Attribute)
    given = [ast.literal_eval(part) for part in domain.args]
    return bool(value in given[0] if domain.func.attr == "choice" else given[0] <= value <= given[1])


@pytest.mark.parametrize(
    ("method", "setting", "values"),
    [
        *(
            (method, f"method.{name}", (rate, 1e-5, 1e-4))
            for method, of in FLOAT16.items()
            for name, rate in of.items()
        ),
        ("dsl", "base.lr", (1e-7, 1e-5, 1e-4)),
        ("co2l", "method.weight", (0.14, 0.28)),  # 1 in its code: next to a mean of two directions, next to their sum
        ("zscl", "method.l2", (0.0, 1.0)),  # the paper, the command
    ],
)
def test_ranges_hold_released_values_and_rates_that_suit_float32(method, setting, values):
    assert all(holds(method, setting, value) for value in values)
