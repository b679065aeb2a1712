"""The first commands of the tutorial and of the pages on own methods end above zero-shot, on the embedded stream."""

import re
import shlex
from pathlib import Path

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.streams.metric_names import GAIN
from tests.test_commands import ROOT, blocks_of, lines_of

LEAST_GAIN = 1.0  # points of R@1 above zero-shot; the pages report 3.5, 4.0 and 2.9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the rendered and decoded videos of shapes-5."""
    folder = tmp_path_factory.mktemp("own") / "runs"
    assert main(["run", "zero_shot", "shapes-5", "--runs", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_tutorial_learns_from_the_sample(runs, tmp_path, monkeypatch, capsys):
    """Its first commands are run as printed, up to the first trained method."""
    page = ROOT / "docs/tutorial.md"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(blocks_of(page, "yaml")[0])
    trained = "ctvr run clip4clip mine"
    for line in lines_of(page.read_text(encoding="utf-8")):
        words = shlex.split(line, comments=True)
        if words[1] == "run":
            gain = gain_of(line, runs, capsys)
        elif words[1] == "streams" and "sample" in line:
            assert main([*words[1:], "--runs", str(runs)]) == 0
        if line.startswith(trained):
            break
    assert line.startswith(trained)
    assert gain > LEAST_GAIN


def gain_of(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Run a command; return the gain over zero-shot from MLflow, which the printed result repeats."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["ctvr", "run"]
    assert main([*words[1:], "--runs", str(runs)]) == 0
    printed = float(re.findall(r"^gain ([+-]\d+\.\d\d):", capsys.readouterr().out, flags=re.MULTILINE)[0])
    found = ExecutionConfig(runs=runs).existing_tracker().find_runs(tags={"ctvr.complete": "true"})
    (run,) = [run for run in found if (run.tags["ctvr.method"], run.tags["ctvr.stream"]) == (words[2], words[3])]
    gain: float = run.last(GAIN)[1]
    assert printed == round(gain, 2)
    return gain


@pytest.mark.slow
@pytest.mark.parametrize(("page", "module"), [("new-method.md", "my_method.py"), ("own-loss.md", "own_loss.py")])
def test_the_first_command_of_the_page_learns(page, module, runs, tmp_path, monkeypatch, capsys):
    path = ROOT / "docs" / page
    text = path.read_text(encoding="utf-8")
    (tmp_path / module).write_text(blocks_of(path, "python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    gain = gain_of(next(iter(lines_of(text))), runs, capsys)
    assert gain > LEAST_GAIN


@pytest.mark.slow
def test_the_unchanged_package_of_a_new_method_learns(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["methods", "new", "fresh_idea"]) == 0
    (command,) = re.findall(r"ctvr run .*", capsys.readouterr().out)[:1]
    monkeypatch.syspath_prepend(str(tmp_path / "fresh_idea"))
    monkeypatch.chdir("fresh_idea")
    assert gain_of(command, runs, capsys) > LEAST_GAIN
