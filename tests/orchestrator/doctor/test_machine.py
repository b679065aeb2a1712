"""The line of `ctvr doctor` about the sandbox of children."""

import pytest

from ctvr.orchestrator.doctor import machine
from ctvr.sandbox.isolate import PERMIT


@pytest.mark.parametrize(("version", "permit", "level"), [(7, "", "ok"), (0, "1", "note"), (0, "", "warning")])
def test_doctor_names_landlock_or_the_variable_that_permits_reading_without_it(monkeypatch, version, permit, level):
    monkeypatch.setattr(machine, "landlock", lambda: version)
    monkeypatch.setenv(PERMIT, permit)
    (finding,) = machine.sandboxing()
    assert (finding.level, finding.subject) == (level, "sandboxing")
    assert f"Landlock {version} restricts" in finding.text or f"{PERMIT}=1" in finding.remedy
