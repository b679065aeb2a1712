"""Errors of a file are reported before it is decoded."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.container import container_of, what_is_missing
from ctvr.orchestrator.video.index import Limits
from ctvr.orchestrator.video.sampling import Sampling
from tests.orchestrator.video.clips import decode_apart, probe, write_video

SMALL = Sampling(4, 32)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    codecs = {"mp4": "libx264", "mkv": "libx264", "avi": "mpeg4"}
    return {ext: write_video(folder / f"video.{ext}", codec=codec) for ext, codec in codecs.items()}


@pytest.mark.parametrize("ext", ["mp4", "mkv", "avi"])
def test_a_film_cut_anywhere_is_refused(videos, ext, tmp_path):
    data = videos[ext].read_bytes()
    if ext == "avi":  # its index is the last chunk, and no frame is lost without it
        data = data[: data.rindex(b"idx1")]
    cut = tmp_path / f"cut.{ext}"
    for length in range(1, len(data), max(1, len(data) // 60)):
        cut.write_bytes(data[:length])
        with pytest.raises(VideoError):
            decode_apart(cut, SMALL)


def test_an_avi_that_lacks_only_its_index_has_all_frames(videos, tmp_path):
    data = videos["avi"].read_bytes()
    (tmp_path / "cut.avi").write_bytes(data[: data.rindex(b"idx1")])
    whole, cut = (decode_apart(video, SMALL) for video in (videos["avi"], tmp_path / "cut.avi"))
    np.testing.assert_array_equal(cut.frames, whole.frames)


@pytest.mark.parametrize("ext", ["mp4", "mkv", "avi"])
def test_a_cut_file_is_called_cut_short(videos, ext, tmp_path):
    cut = tmp_path / f"cut.{ext}"
    cut.write_bytes(videos[ext].read_bytes()[:-2000])
    with pytest.raises(VideoError, match="truncated"):
        decode_apart(cut, SMALL)


@pytest.mark.parametrize("ext", ["mp4", "mkv", "avi"])
def test_a_whole_film_is_not_missing_anything(videos, ext):
    assert what_is_missing(videos[ext], container_of(videos[ext])) is None


def test_bytes_after_a_complete_mp4_are_harmless(videos, tmp_path):
    longer = tmp_path / "longer.mp4"
    longer.write_bytes(videos["mp4"].read_bytes() + b"\0\0\1\0" + b"\xff" * 300)
    assert len(decode_apart(longer, SMALL).frames) == 4


REFUSED = [  # the name, the content (None: no such file), what is said of it
    ("playlist.m3u8", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "is a playlist"),
    ("a.mp4", b"#EXTM3U\n#EXT-X-VERSION:3\n", "`ffmpeg -i a.m3u8 -c copy OUT.mp4`"),
    ("concat.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n", "is not a video file"),
    ("dash.mp4", b"<?xml version='1.0'?><MPD></MPD>", "is not a video file"),
    ("text.mp4", b"not a video at all" * 100, "is not a video file"),
    ("page.mkv", b"<html>404 Not Found</html>", "is not a video file"),
    ("pointer.mp4", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "is not a video file"),
    ("zip.mp4", b"PK\x03\x04" + bytes(90), "is not a video file"),
    ("zeros.avi", bytes(4096), "contains only zeros at its start"),
    ("zeros.mp4", bytes(100_000), "contains only zeros at its start, like an unfinished download"),
    ("id3.mp4", b"ID3\4" + bytes(2000), "is a sound file without video"),
    ("wave.mp4", b"RIFF\0\0\0\0WAVEfmt ", "is a sound file without video"),
    ("avif.mp4", b"\0\0\0\x1cftypavif\0\0\0\0avifmif1" + b"\0\0\0\x08meta", "is an image (AVIF or HEIC)"),
    ("a.gif", b"GIF89a" + bytes(2000), "`ffmpeg -i a.gif -c:v libx264 OUT.mp4`"),
    ("b.webp", b"RIFF\0\0\0\0WEBP" + bytes(2000), "`magick b.webp -coalesce OUT.gif`"),
    ("c.nut", b"nut/multimedia container" + bytes(2000), "`ffmpeg -i c.nut -c:v libx264 OUT.mp4`"),
    ("boxes.mp4", struct.pack(">I4s", 8, b"free") * 200_000, "is truncated"),  # a header of endless boxes ends
    ("empty.mp4", b"", "is empty"),
    ("absent.mp4", None, "no such file"),
    ("\0.mp4", None, "no such file"),
    ("/dev/zero", None, "is not a regular file"),
    ("", None, "contains no frames"),
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED, ids=[name or "a folder" for name, *_ in REFUSED])
def test_only_video_containers_reach_a_decoder(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(VideoError) as caught:
        decode_apart(tmp_path / name, SMALL)
    assert caught.value.path == str(tmp_path / name)
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_limits_are_named_when_exceeded(videos):
    with pytest.raises(VideoError, match="160x96 exceed the limit max_pixels=1000"):
        decode_apart(videos["mp4"], SMALL, limits=Limits(max_pixels=1000))
    for ext in videos:
        with pytest.raises(VideoError, match="max_frames=59"):
            decode_apart(videos[ext], SMALL, limits=Limits(max_frames=59))
    with pytest.raises(VideoError, match="max_seconds"):
        decode_apart(videos["mp4"], SMALL, limits=Limits(max_seconds=1e-9))
    with pytest.raises(ValueError, match="max_frames must be > 0"):
        Limits(max_frames=0)


def test_probe_counts_frames_and_reads_rate_size_and_codec(videos):
    for ext, codec in [("mp4", "h264"), ("mkv", "h264"), ("avi", "mpeg4")]:
        info = probe(videos[ext])
        assert (info.frames, info.fps, info.width, info.height, info.codec) == (60, 25.0, 160, 96, codec)
        assert info.seconds == pytest.approx(2.4, abs=0.01)


def test_an_error_survives_pickling():
    error = pickle.loads(pickle.dumps(VideoError("a.mp4", "is empty")))
    assert (error.path, error.reason, str(error)) == ("a.mp4", "is empty", "a.mp4: is empty")


def test_a_damaged_index_of_mp4_never_raises_anything_else(videos, tmp_path):
    """Bits are flipped in the boxes around the pictures, which contain lengths, counts and codec parameters."""
    data = videos["mp4"].read_bytes()
    moov = data.index(b"moov")
    damaged = tmp_path / "damaged.mp4"
    refused: list[str] = []
    for i, offset in enumerate(range(moov, len(data), max(1, (len(data) - moov) // 100))):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << (i % 8)
        damaged.write_bytes(flipped)
        try:
            decode_apart(damaged, SMALL, decoder="pyav")
        except VideoError as error:
            refused.append(str(error))
    assert refused
    assert not any("\n" in line for line in refused)
