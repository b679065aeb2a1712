"""Settings of the optimization: those that the chosen optimizer does not read."""

from dataclasses import fields, replace

import pytest

from ctvr.orchestrator.settings.optim_config import OptimConfig, refuse_unread
from tests.refusing import refuses

SGD = OptimConfig(name="sgd", betas=(0.8, 0.9))


def test_a_given_setting_that_the_optimizer_does_not_read_is_refused():
    with refuses("is not read by optim.name=sgd", where="optim.betas"):
        refuse_unread(SGD, {"optim.name", "optim.betas"})


@pytest.mark.parametrize("given", [{"optim.name"}, {f"optim.{field.name}" for field in fields(OptimConfig)}])
def test_settings_of_a_preset_and_of_the_record_of_a_run_are_not(given):
    refuse_unread(SGD, given)
    refuse_unread(replace(SGD, betas=OptimConfig().betas), {"optim.betas"})
