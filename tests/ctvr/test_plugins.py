"""Another package adds a method and a stream without changes to ours."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

import ctvr
from ctvr import methods
from ctvr.orchestrator.learning.run_key import code_digests

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "text_shift"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as an installer leaves it: its module, with its entry points next to it."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    site = tmp_path_factory.mktemp("site")
    shutil.copy(EXAMPLE / "text_shift.py", site)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    dist = site / "ctvr_text_shift-0.1.0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n{name} = {value}"
        for group, found in project["entry-points"].items()
        for name, value in found.items()
    ]
    (dist / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@pytest.fixture
def _on_path(installed: Path, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("TWO_COLOURS", str(learned / "small" / "small.json"))
    monkeypatch.delitem(sys.modules, "text_shift", raising=False)


@pytest.mark.usefixtures("_on_path")
def test_a_method_and_a_stream_of_another_package_run_and_are_asked(learned, tmp_path):
    assert len((EXAMPLE / "text_shift.py").read_text().splitlines()) < 60
    assert "text_shift" in ctvr.list_methods()
    assert "two_colours" in ctvr.list_streams(runs=tmp_path)
    execution = {"runs": tmp_path, "store": str(shutil.copytree(learned / "store", tmp_path / "store"))}
    run = ctvr.run("text_shift", "two_colours", settings={"optim.epochs": 1, "method.lr": 0.1}, **execution)
    assert (run.method, run.stream, run.settings["method.lr"]) == ("text_shift", "small", 0.1)
    model = ctvr.load("text_shift", **execution)
    assert model.trained.method.shift.abs().max() > 0
    zero = ctvr.load("zero_shot", runs=learned)
    assert not torch.equal(model.encode_text("a red star"), zero.encode_text("a red star"))
    assert len(model.search("a red star", k=3)) == 3


@pytest.mark.usefixtures("_on_path")
def test_its_sources_are_part_of_a_runs_key(installed):
    before = code_digests("text_shift")
    assert code_digests("text_shift:TextShift")["code of text_shift:TextShift"] == before["code of text_shift"]
    assert before["code of the method"] != code_digests("zero_shot")["code of the method"]
    file = installed / "text_shift.py"
    text = file.read_text()
    try:
        file.write_text(text + "# another version\n")
        assert code_digests("text_shift")["code of text_shift"] != before["code of text_shift"]
    finally:
        file.write_text(text)


def test_a_name_of_ours_wins_and_what_is_no_method_is_one_line(tmp_path, monkeypatch):
    dist = tmp_path / "thief-1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: thief\nVersion: 1\n")
    (dist / "entry_points.txt").write_text(
        "[ctvr.methods]\nlwf = thief:Thing\ntome = thief:Thing\nthing = thief:Thing\n"
    )
    (tmp_path / "thief.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"lwf", "tome"}.isdisjoint(methods.plugins())
    assert methods.find_method("lwf").__module__ == "ctvr.methods.lwf"
    for name, message in (
        ("thing", "method: thing: Thing of thief is not a ctvr.Method with a dataclass Config."),
        ("thief:Other", "method: thief:Other: Other of thief is not a ctvr.Method"),
        ("no_pkg.mod:Thing", "method: no_pkg.mod:Thing: no_pkg.mod cannot be imported (No module named 'no_pkg')."),
        ("thng", "method: no method called 'thng'. Did you mean thing?"),
    ):
        with pytest.raises(ctvr.ConfigError) as caught:
            ctvr.run(name)
        assert str(caught.value).startswith(message)


def test_a_record_of_an_earlier_version_names_our_classes_unless_the_user_has_such_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry and not (Path(entry) / "methods").exists()])
    assert methods.place_of("ctvr.methods.lwf:LwF") == "ctvr.methods.lwf:LwF"
    assert methods.find_method("ctvr.methods.lwf:LwF") is methods.find_method("lwf")
    assert code_digests("ctvr.methods.lwf:LwF") == code_digests("ctvr.methods.lwf:LwF") == code_digests("lwf")
    assert methods.place_of("ctvr.methods.lwf:Other") == "ctvr.methods.lwf:Other"
    (tmp_path / "methods.py").write_text("")
    assert methods.place_of("ctvr.methods.lwf:LwF") == "ctvr.methods.lwf:LwF"
