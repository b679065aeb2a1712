"""`ctvr streams frames`: the frames of a video as training reads them, and which videos of a folder can be read."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.pool import Decoder
from ctvr.orchestrator.video.sampling import NATIVE
from tests.orchestrator.video.clips import read_number, write_video
from tests.refusing import missing_from


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two videos, a truncated one, and files that a scan skips."""
    folder = tmp_path_factory.mktemp("videos")
    content = write_video(folder / "good.mp4").read_bytes()
    for hidden in ("._good.mp4", ".AppleDouble/good.mp4"):
        (folder / hidden).parent.mkdir(exist_ok=True)
        (folder / hidden).write_bytes(b"nothing")
    (folder / "below").mkdir()
    (folder / "below" / "bad\n\x1b[31mred.mp4").write_bytes(content[:3000])
    write_video(folder / "below" / "counted.avi", codec="mpeg4", bf="2")
    (folder / "notes.txt").write_text("of two videos")
    os.symlink("nowhere", folder / "link.mp4")
    return folder


def test_only_a_file_of_frames_needs_the_memory_of_frames_at_their_own_size(videos, tmp_path, monkeypatch, capsys):
    decode = Decoder.decode

    def limited(self, path, sampling, segment=None):
        if sampling.size == NATIVE and sampling.num_frames > 1:
            raise VideoError(str(path), "needs more memory than the limit memory_bytes")
        return decode(self, path, sampling, segment)

    monkeypatch.setattr(Decoder, "decode", limited)
    words = ["streams", "frames", str(videos / "good.mp4")]
    assert main(words) == 0
    assert "160x96; 60 frames" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "x.npz")]) == 2
    assert not missing_from(capsys.readouterr().err, "memory", "--num-frames")
    assert main([*words, "--num-frames", "1", "--out", str(tmp_path / "x.npz")]) == 0


def test_arrays_hold_the_frames_at_their_own_size_and_their_seconds(videos, tmp_path, capsys):
    out = tmp_path / "clip.npz"
    out.write_bytes(b"an older file is replaced")
    assert main(["streams", "frames", str(videos / "good.mp4"), "--num-frames", "4", "--out", str(out)]) == 0
    said = capsys.readouterr()
    facts = "MP4/MOV/3GP, h264, 160x96; 60 frames, 25 frames/s, 2.40 s; decoder pyav"
    assert said.out == f"{videos / 'good.mp4'}: {facts}\n"
    assert said.err == f"written: {out}\n"
    with np.load(out) as found:
        assert found["frames"].shape == (4, 96, 160, 3)
        assert found["frames"].dtype == np.uint8
        numbers = [read_number(frame) for frame in found["frames"]]
        np.testing.assert_allclose(found["seconds"], np.asarray(numbers) / 25)
    assert numbers == [7, 22, 37, 52]
    assert os.listdir(tmp_path) == ["clip.npz"]


def test_short_segment_repeats_its_last_frame(videos, tmp_path, capsys):
    out = tmp_path / "clip.npz"
    words = ["streams", "frames", str(videos / "good.mp4"), "--num-frames", "4", "--out", str(out)]
    assert main([*words, "--start", "1", "--end", "1.08"]) == 0
    assert capsys.readouterr().out.endswith("; 2 of 4 frames are distinct, the last repeats\n")
    with np.load(out) as found:
        assert [read_number(frame) for frame in found["frames"]] == [25, 26, 26, 26]
    assert main([*words, "--start", "2.3"]) == 0
    with np.load(out) as found:
        assert [read_number(frame) for frame in found["frames"]] == [57, 58, 59, 59]


def test_the_reason_for_a_complete_decode_is_reported(videos, capsys):
    assert main(["streams", "frames", str(videos / "below/counted.avi")]) == 0
    assert "; decoded completely, since its container does not store presentation times" in capsys.readouterr().out


def test_the_facts_of_a_gif_are_printed(tmp_path, capsys):
    video = write_video(tmp_path / "a.gif", frames=3, codec="gif", pixels="gray")
    assert main(["streams", "frames", str(video)]) == 0
    assert "GIF, gif, 160x96; 3 frames, 25 frames/s" in capsys.readouterr().out


def test_a_sheet_shows_every_frame_in_rows(videos, tmp_path):
    out = tmp_path / "sheet.png"
    assert main(["streams", "frames", str(videos / "good.mp4"), "--num-frames", "6", "--out", str(out)]) == 0
    with Image.open(out) as sheet:
        whole = np.asarray(sheet)
    middles = [read_number(whole[22 + row * 118 :, 6 + column * 166 :][:96, :160]) for row, column in np.ndindex(2, 4)]
    assert middles[:6] == [4, 14, 24, 34, 44, 54]
    assert (whole[-90:, -160:] == 255).all()


def test_a_folder_is_counted_and_what_is_refused_is_named_in_one_line(videos, capsys):
    assert main(["streams", "frames", str(videos)]) == 0
    head, *refused = capsys.readouterr().out.splitlines()
    assert head == f"{videos}: 2 of 4 videos can be read; 1 other file does not have a video's suffix"
    assert [line.split(": ")[1] for line in refused] == ["is truncated", "no such file"]
    assert refused[0].startswith(f"{videos}/below/bad\\n\\x1b[31mred.mp4: ")


def test_a_recording_that_is_cut_short_is_read_and_named(tmp_path, capsys):
    whole = write_video(tmp_path / "a.ts", bf="0")
    (tmp_path / "b.ts").write_bytes(whole.read_bytes()[:-50])
    assert main(["streams", "frames", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}: 2 of 2 videos can be read",
        f"{tmp_path}/b.ts: can be read; the file is truncated: it ends inside a packet",
    ]


def test_a_name_with_a_line_break_is_printed_in_one_line(videos, capsys):
    assert main(["streams", "frames", str(videos / "below/bad\n\x1b[31mred.mp4")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["good.mp4", "--num-frames", "0"], "--num-frames 1 10000 0"),
        (
            ["good.mp4", "--num-frames", "500", "--out", "a.png"],
            "400 500",
        ),
        (["good.mp4", "--start", "2", "--end", "2"], "--end --start 2"),
        (["good.mp4", "--start", "nan"], "--start 'nan' 0.5"),
        (["good.mp4", "--end", "-1"], "--end 0 -1"),
        (["good.mp4", "--out", "a.jpg"], "--out a.jpg"),
        (["good.mp4", "--out", "absent/a.npz"], "--out"),
        (["good.mp4", "--out", "folder.npz"], "--out folder.npz"),
        (["absent.mp4"], "absent.mp4"),
        ([".", "--out", "a.npz"], "--out"),
        (["folder.npz"], "folder.npz 0 mp4"),
    ],
)
def test_a_mistake_is_one_line(words, values, videos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    os.symlink(videos / "good.mp4", "good.mp4")
    assert main(["streams", "frames", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert not missing_from(said.err, *values.split())
