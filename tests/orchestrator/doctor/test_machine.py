"""The report of `ctvr doctor` about the sandbox of children."""

import pytest

from ctvr.orchestrator.doctor import machine
from ctvr.sandbox.isolate import Isolation
from ctvr.sandbox.measure import ALWAYS, COUNT, Measured


@pytest.mark.parametrize(
    ("isolation", "ways", "level", "words"),
    [
        (Isolation("Landlock 7", True, True), ALWAYS, "ok", ["Landlock 7, an own network, a filter of system calls"]),
        (Isolation("mounts", True, True), ("bpf", *ALWAYS), "note", ["isolated by mounts", "open: bpf"]),
        (
            Isolation("", False, False),
            ("read a file", "TCP"),
            "note",
            ["isolated by no mechanism of the kernel", "open: read a file, TCP"],
        ),
    ],
)
def test_the_line_on_sandboxing_names_the_means_and_every_way_that_is_open(monkeypatch, isolation, ways, level, words):
    monkeypatch.setattr(machine, "measure", lambda: Measured(isolation, tuple(ways)))
    (finding,) = machine.sandboxing()
    assert finding.level == level
    assert all(word in finding.text for word in [*words, f"{COUNT} escapes tried"])
    assert bool(finding.remedy) == (level == "note")
    assert ("x86_64 or aarch64" in finding.remedy) == (not isolation.calls)


def test_on_other_systems_limits_alone_are_promised(monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    (finding,) = machine.sandboxing()
    assert (finding.level, finding.subject) == ("note", "sandboxing")
    assert "darwin" in finding.text
