"""Each setting declares the part of a method that it changes; other values of it change that part at most."""

from typing import get_type_hints

import pytest

from ctvr.methods import METHODS, find_method
from ctvr.methods.settings import settings_of
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.method_checks.setting_sensitivity import COUNTS
from ctvr.orchestrator.method_checks.subject import Subject
from tests.orchestrator.method_checks.setting_parts import changes

EXPECTED = {
    "rank": "forward",
    "ffa_mix": "forward",
    "ffa_init": "forward",
    "dropout": "forward",
    "beta": "loss",
    "loss_reduction": "loss",
    "reference_source": "loss",
    "logit_scale": "loss",
    "lr_text": "recipe",
}


@pytest.mark.slow
def test_a_probe_finds_the_part_that_a_setting_changes():
    subject, seen = Subject.of("framefusion_moe"), {}
    declared = settings_of(find_method("framefusion_moe").Config)
    assert {name: declared[name].part for name in EXPECTED} == EXPECTED
    for name, part in EXPECTED.items():
        found = [changes(subject, name, each, seen) == COUNTS for each in ("forward", "loss")]
        assert found[0] == (part == "forward"), name
        assert any(found) == (part != "recipe"), name


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_setting_changes_more_than_its_declared_part(name):
    try:
        subject, seen = Subject.of(name), {}
        subject.make()
    except (ConfigError, ValueError) as error:
        pytest.skip(f"does not run on the small backbone: {error}")
    declared, hints = settings_of(find_method(name).Config), get_type_hints(find_method(name).Config)
    for setting in declared:
        if hints.get(setting) in (str, str | None):  # the name of a base or a file
            continue
        part = declared[setting].part
        for other in {"forward": (), "loss": ("forward",), "recipe": ("forward", "loss")}[part]:
            assert changes(subject, setting, other, seen) != COUNTS, f"{setting} is declared {part}"
