"""An exception in a user's own code is one line with its place, and a file with the whole traceback."""

from pathlib import Path

import pytest

from ctvr import methods
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.on_ray.failures import attach_traceback, one_line

METHOD = """from dataclasses import dataclass
import helper_of_{name}
from ctvr.methods.clip4clip import Clip4Clip


class Broken(Clip4Clip):
    @dataclass(frozen=True)
    class Config(Clip4Clip.Config):
        pass

    def losses(self, batch):
        return helper_of_{name}.total({{}})
"""
HELPER = """def total(losses):
    return losses["nothing"]
"""


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a method whose loss raises in another file of the user; return the name of its module."""
    name = f"faulty_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(METHOD.format(name=name))
    (tmp_path / f"helper_of_{name}.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "_trusted", set())
    return name


def test_an_exception_in_training_names_its_line_and_keeps_the_traceback(name, tmp_path, manifest, runs, capsys):
    assert main(["run", f"{name}:Broken", manifest, "--runs", str(runs)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ctvr: ")]
    said, _, kept = line.partition(" The whole traceback: ")
    place = tmp_path / f"helper_of_{name}.py"
    assert said == f"ctvr: {place}, line 2: raised KeyError: 'nothing'. Correct that line and run the command again."
    assert Path(kept).parent == runs
    assert Path(kept).read_text().startswith("Traceback (most recent call last):\n")


def test_a_developer_gets_the_traceback_on_the_screen(name, manifest, runs, capsys, monkeypatch):
    monkeypatch.setenv("CTVR_TRACEBACK", "1")
    assert main(["run", f"{name}:Broken", manifest, "--runs", str(runs)]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last):\n" in said
    assert said.endswith("CTVR_TRACEBACK printed the traceback above.\n")
    assert list(runs.glob("traceback-*")) == []


def test_a_plug_in_that_raises_before_anything_is_written_leaves_no_runs_folder(tmp_path, monkeypatch, capsys):
    """The stream of another package; its traceback is in the folder of temporary files."""
    dist = tmp_path / "odd-1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (dist / "entry_points.txt").write_text("[ctvr.streams]\nodd-videos = odd_streams:manifest\n")
    (tmp_path / "odd_streams.py").write_text("def manifest():\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert main(["streams", "check", "odd-videos"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "odd_streams.py, line 2: raised ZeroDivisionError: division by zero. Correct" in said
    assert list((tmp_path / "work").iterdir()) == []
    (kept,) = (tmp_path / "temporary").glob("traceback-*.txt")
    assert str(kept) in said


def test_the_reason_of_a_failed_trial_names_the_line(name, tmp_path):
    methods.trust([f"{name}:Broken"])
    cls = methods.find_method(f"{name}:Broken")
    with pytest.raises(KeyError) as caught:
        cls.losses(None, None)
    expected = f"{tmp_path / f'helper_of_{name}.py'}, line 2: KeyError: 'nothing'"
    assert one_line(caught.value) == expected
    attach_traceback(caught.value)
    assert one_line(caught.value.with_traceback(None)) == expected  # as in another process
