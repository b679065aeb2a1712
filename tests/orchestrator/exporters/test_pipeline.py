"""Exports continue after a kill with the same bytes, leave bad videos out on request, and refuse wrong input."""

import shutil

import numpy as np
import pytest

from ctvr.orchestrator.cli.main import main
from tests.orchestrator.exporters.running import FRAMES, captions_of, run_script
from tests.orchestrator.exporters.tiny_models import open_clip_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(table, tmp_path_factory):
    """Return a folder with an export that was not interrupted, and the words of its command without --out."""
    folder = tmp_path_factory.mktemp("place")
    words = ["--model", open_clip_folder(folder / "tiny"), "--table", str(table[0]), "--videos", str(table[1])]
    words += ["--num-frames", str(FRAMES), "--batch-size", str(2 * FRAMES)]
    done = run_script("open-clip", folder, *words, "--out", "whole")
    assert done.returncode == 0, done.stderr
    return folder, words


def contents(folder):
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("stop", [1, 5])
def test_a_killed_export_continues_to_the_same_bytes(place, stop):
    folder, words = place
    out = folder / f"killed-{stop}"
    killed = run_script("open-clip", folder, *words, "--out", out, stop=stop)
    assert killed.returncode == 9
    assert not (out / "texts.npy").exists()
    done = run_script("open-clip", folder, *words, "--out", out)
    assert done.returncode == 0, done.stderr
    expected, found = contents(folder / "whole"), contents(out)
    assert found.keys() == expected.keys()
    for name in expected.keys() - {"canaries.npz"}:  # a .npz contains the time
        assert found[name] == expected[name], name


def test_a_bad_video_is_one_line_and_can_be_left_out(place, table, capsys):
    folder, words = place
    videos = folder / "videos"
    shutil.copytree(table[1], videos)
    first = min(videos.glob("*train*.mp4"))
    first.write_bytes(first.read_bytes()[:700])
    words = [str(videos) if each == str(table[1]) else each for each in words]
    bad = run_script("open-clip", folder, *words, "--out", "bad")
    assert bad.returncode == 1
    assert [line for line in bad.stderr.splitlines() if first.stem in line and str(first) in line]
    assert "--skip-bad" in bad.stderr
    assert "Traceback" not in bad.stderr
    done = run_script("open-clip", folder, *words, "--out", "bad", "--skip-bad")
    assert done.returncode == 0, done.stderr
    out = folder / "bad"
    assert not (out / f"{first.stem}.npy").exists()
    assert len(np.load(out / "texts.npy")) == len(captions_of(out / "table.csv")) < len(captions_of(table[0]))
    given = [f"table={out / 'table.csv'}", f"features={out}", f"text={out / 'texts.npy'}"]
    assert main(["streams", "import", "features", *given, "--name", "left", "--runs", str(folder / "runs")]) == 0


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--out", "whole", "--num-frames", "2"], "features.yaml"),
        (["--out", "new", "--prompt", "a video"], "--prompt"),
        (["--out", "new", "--table", "none.csv"], "none.csv"),
        (["--out", "new", "--videos", "none"], "none"),
        (["--out", "new", "--model", "none"], "--model"),
        (["--out", "new", "--device", "nope"], "--device"),
    ],
)
def test_wrong_input_is_refused_in_one_line_before_anything_is_written(place, more, named):
    folder, words = place
    before = contents(folder / "whole")
    done = run_script("open-clip", folder, *words, *more)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert named in lines[0]
    assert "Traceback" not in done.stderr
    assert not (folder / "new").exists()
    assert contents(folder / "whole") == before
