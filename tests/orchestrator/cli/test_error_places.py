"""An error about a setting of --config names the file and the line."""

import pytest

from ctvr.orchestrator.cli.error_places import name_option
from ctvr.orchestrator.errors import ConfigError
from tests.orchestrator.cli.test_main import _logging_as_before, ctvr  # noqa: F401

COMMAND = ("run", "clip4clip", "shapes-5", "--config", "c.yaml")


@pytest.mark.wording
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data:\n  num_frames: 4\noptim:\n  epochs: 2 epochs\n", ["line 4: optim.epochs: is not", "epochs: 2."]),
        ("lr: 1\n", ["line 1: lr: no such setting. Set method.lr: 1."]),
        ("backbone: ViT-B-32\n", ["line 1: backbone: is the group", "Set backbone.name: ViT-B-32."]),
        ("evaluation:\n", ["line 1: evaluation: is the group of the settings split, select"]),
        ("optim.epochs:\n", ["line 1: optim.epochs: is not a whole number (got 'null')"]),
        ("optim.epochs: yes\n", ["line 1: optim.epochs: is not a whole number (got 'true')"]),
        ("optim: {name: sgd,\n  eps: 0.1}\n", ["line 2: optim.eps: is not read by optim.name=sgd"]),
    ],
)
def test_the_file_and_the_line_of_a_wrong_setting_are_named(text, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    status, _, said = ctvr(capsys, *COMMAND)
    assert status == 2
    assert said.startswith("ctvr: --config c.yaml, ")
    assert said.count("\n") == 1
    assert not [each for each in expected if each not in said]


def test_a_setting_that_the_command_line_overrides_is_not_of_the_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("optim.epochs: 2\n")
    status, _, said = ctvr(capsys, *COMMAND, "optim.epochs=x")
    assert status == 2
    assert "c.yaml, line" not in said


def test_a_broken_manifest_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text("{")
    for command in ("run", "sweep"):
        status, _, said = ctvr(capsys, command, "clip4clip", "m.json")
        lines = [line for line in said.splitlines() if not line.startswith("doctor: ")]
        assert (status, len(lines)) == (2, 1)
        assert lines[0].startswith("ctvr: m.json: line ")


@pytest.mark.parametrize(
    ("where", "unknown", "words", "option", "write"),
    [
        ("method", "clip", ["--baselines", "clip,clip4clip"], "--baselines", "--baselines lora,clip4clip"),
        ("method", "clip", ["--baselines=lwf,clip@er_ring"], "--baselines", "--baselines lwf,lora@er_ring"),
        ("method", "clip", ["clip", "--baselines", "clip4clip"], "method", "lora"),
        ("method", "", ["umt", "--baselines", "zero_shot"], "method", "lora"),  # the error is about the searched method
        ("videos", "", ["--gallery", "films", "--videos", "v"], "--videos", ""),
    ],
)
def test_an_error_names_the_option_that_has_its_value(where, unknown, words, option, write):
    named = name_option(ConfigError("v is wrong", where, write=("lora",), unknown=unknown), words)
    assert named.where == option
    assert named.write == ((write,) if write else ())
