"""A printed script is whole: it imports no part of ctvr, defines every name once, and copies ctvr's own rules."""

import ast
import importlib
import inspect
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.exporters.script import SCRIPTS, script_of, write_script
from ctvr.orchestrator.video import decode
from ctvr.orchestrator.video.sampling import choose_frames
from tests.orchestrator.video.clips import run_apart, write_video
from tests.refusing import refuses

NAMES = list(SCRIPTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_imports_no_part_of_ctvr_and_defines_every_name_once(name):
    tree = ast.parse(script_of(name))
    modules = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    modules += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [each for each in modules if each.partition(".")[0] == "ctvr"] == []
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    targets = [each for node in tree.body if isinstance(node, ast.Assign) for each in node.targets]
    defined += [node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
    assert [each for each, count in Counter(defined).items() if count > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_script_uses_no_name_that_it_does_not_define(name, tmp_path):
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    file = tmp_path / "script.py"
    write_script(script_of(name), file)
    done = subprocess.run([ruff, "check", "--isolated", "--select", "F,E9", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_script_selects_frames_by_the_text_of_our_own_rule():
    assert all(inspect.getsource(choose_frames) in script_of(name) for name in NAMES)


def read_all(module: Any, sampling: Any, folder: Path) -> dict[str, Any]:
    """Read videos by the `decode` of a module: name -> frames and times, or the text of the error."""
    found: dict[str, Any] = {}
    for file in sorted(folder.iterdir()):
        for segment in (None, (0.5, 1.5)):
            try:
                clip = module.decode(file, sampling, segment)
                found[f"{file.name} {segment}"] = clip.frames.tobytes(), clip.timestamps.tolist()
            except ValueError as error:  # VideoError
                found[f"{file.name} {segment}"] = str(error)
    return found


def read_twice(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Write videos, and read them by ctvr and by a script."""
    sys.path.insert(0, str(script.parent))
    theirs = importlib.import_module(script.stem)
    write_video(folder / "plain.mp4")
    write_video(folder / "uneven.mkv", times=[i * i // 8 + i for i in range(60)])
    write_video(folder / "other.webm", codec="libvpx")
    write_video(folder / "old.avi", codec="mpeg4")
    (folder / "cut.mp4").write_bytes((folder / "plain.mp4").read_bytes()[:4000])
    (folder / "empty.mp4").touch()
    return [read_all(each, each.Sampling(7, each.NATIVE), folder) for each in (decode, theirs)]


@pytest.mark.slow
def test_a_script_reads_the_frames_and_finds_the_errors_that_ctvr_does(tmp_path):
    script = tmp_path / "printed_script.py"
    write_script(script_of("open-clip"), script)
    (tmp_path / "videos").mkdir()
    ours, theirs = run_apart(read_twice, script, tmp_path / "videos")
    assert ours == theirs
    assert {name.split()[0] for name, each in ours.items() if isinstance(each, str)} == {"cut.mp4", "empty.mp4"}


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_the_script_unchanged_also_where_it_names_a_secret(name, capsys, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "argparse")
    assert main(["streams", "export-script", name]) == 0
    assert capsys.readouterr().out == script_of(name)


def test_an_unknown_name_is_refused_with_the_closest():
    with refuses("open_clip", "open-clip", where="NAME", got="open_clip", remedy=True):
        script_of("open_clip")


@pytest.mark.parametrize("name", ["torch.py", "open_clip.py", "numpy.py"])
def test_a_file_that_hides_an_imported_package_is_refused(name, tmp_path):
    with refuses(name, where="--out", remedy=True):
        write_script(script_of("open-clip"), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept(tmp_path):
    file = tmp_path / "embed.py"
    file.write_text("mine")
    with refuses(file, where="--out", remedy=True):
        write_script(script_of("open-clip"), file)
    assert file.read_text() == "mine"
