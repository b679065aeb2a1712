"""Rendered files have equal bytes, and are verified, repaired and safe with a second process."""

import json
import multiprocessing
import os
import subprocess
import sys

import av
import numpy as np
import pytest

from ctvr.orchestrator.synthetic import stream as shapes
from ctvr.orchestrator.synthetic import video_files as shapes_files
from ctvr.orchestrator.synthetic.video_files import encode, render_files
from tests.refusing import refuses


@pytest.fixture
def clips():
    return [clip for clip, _ in shapes.plan(0)[:4]]


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.mp4"))}


def test_a_rendered_file_plays_back_what_was_painted(tmp_path, clips):
    render_files(tmp_path, clips[:1], workers=1, progress=False)
    painted = clips[0].scene.render(clips[0].backward)
    with av.open(str(tmp_path / clips[0].path)) as container:
        stream = container.streams.video[0]
        played = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
        assert stream.average_rate == 12
    assert played.shape == painted.shape == (24, 96, 96, 3)
    assert np.abs(played.astype(float) - painted).mean() < 6  # color is stored at half resolution, crf 28


def test_equal_frames_give_equal_bytes(clips):
    frames = clips[0].scene.render(False)
    assert encode(frames) == encode(frames.copy())


def test_a_second_use_renders_nothing(tmp_path, clips, monkeypatch):
    digest = render_files(tmp_path, clips, workers=1, progress=False)
    monkeypatch.setattr(shapes_files, "render_one", lambda *_: pytest.fail("rendered again"))
    assert render_files(tmp_path, clips, workers=1, progress=False) == digest


def test_missing_and_damaged_files_are_made_again_and_only_those(tmp_path, clips, monkeypatch):
    digest = render_files(tmp_path, clips, workers=1, progress=False)
    whole = contents(tmp_path)
    (tmp_path / clips[0].path).unlink()
    (tmp_path / clips[2].path).write_bytes(b"half a vid")
    rendered, render_one = [], shapes_files.render_one
    monkeypatch.setattr(
        shapes_files,
        "render_one",
        lambda f, c, video_format: (rendered.append(c.path), render_one(f, c, video_format))[1],
    )
    assert render_files(tmp_path, clips, workers=1, progress=False) == digest
    assert rendered == [clips[0].path, clips[2].path]
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"format": 1, "plan": "x"}', "\x00\x01", "[" * 100_000])
def test_a_damaged_record_is_created_again(tmp_path, clips, damage):
    render_files(tmp_path, clips, workers=1, progress=False)
    record = json.loads((tmp_path / "digest.json").read_text())
    (tmp_path / "digest.json").write_text(damage)
    render_files(tmp_path, clips, workers=1, progress=False)
    assert json.loads((tmp_path / "digest.json").read_text()) == record


def test_a_record_that_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "digest.json")
    assert shapes_files._read_records(tmp_path / "digest.json", "plan") == {}


def test_a_render_that_was_killed_leaves_no_record_and_is_finished_later(tmp_path, clips, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    render_files(tmp_path / "whole", clips, workers=1, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            render_files(tmp_path / "cut", clips, workers=1, progress=False)
    assert not [path for path in (tmp_path / "cut").rglob("*") if path.is_file() and path.name != ".lock"]
    render_files(tmp_path / "cut", clips, workers=1, progress=False)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_a_folder_that_cannot_be_written_is_named(tmp_path, clips):
    (tmp_path / "file").write_text("")
    with refuses("file/stream", where="stream"):
        render_files(tmp_path / "file" / "stream", clips, workers=1, progress=False)


def _render(folder, clips):
    render_files(folder, clips, workers=1, progress=False)


@pytest.mark.slow
def test_processes_that_render_at_once_do_not_disturb_each_other(tmp_path, clips):
    render_files(tmp_path / "alone", clips, workers=1, progress=False)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_render, args=(tmp_path / "shared", clips)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


@pytest.mark.slow
def test_several_workers_render_as_one_for_an_unguarded_script(tmp_path):
    clips = [clip for clip, _ in shapes.plan(0)[:20]]
    one = render_files(tmp_path / "one", clips, workers=1, progress=False)
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib; from ctvr.orchestrator.synthetic import video_files, stream\n"
        "clips = [clip for clip, _ in stream.plan(0)[:20]]\n"
        f"print(video_files.render_files(pathlib.Path({str(tmp_path / 'two')!r}), clips, workers=2, progress=False))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=True)
    assert (done.stdout, done.stderr) == (f"{one}\n", "")  # and not once more for each child
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_without_child_processes_the_rendering_goes_on_here(tmp_path, monkeypatch):
    def broken(*_):
        raise shapes_files.BrokenProcessPool("no children here")
        yield

    monkeypatch.setattr(shapes_files, "_render_in_processes", broken)
    clips = [clip for clip, _ in shapes.plan(0)[:16]]
    render_files(tmp_path, clips, workers=2, progress=False)
    assert len(contents(tmp_path)) == 16
