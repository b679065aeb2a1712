"""Covers are not videos, and a GIF is one, with its delays."""

from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from PIL import Image

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.sampling import NATIVE, Sampling
from tests.orchestrator.video.clips import decode_apart, probe


def with_sound(path: Path, cover: bool, film: bool) -> Path:
    """Write a second of silence, with a picture, a film of 10 frames, or both."""
    with av.open(str(path), "w") as file:
        sound = file.add_stream("aac", rate=48000, layout="mono")
        streams = [file.add_stream("mjpeg", rate=1)] if cover else []
        if cover:
            streams[0].disposition = Disposition.attached_pic
        streams += [file.add_stream("libx264", rate=25)] if film else []
        for stream in streams:
            stream.width, stream.height = 160, 96
            stream.pix_fmt = "yuvj420p" if stream.codec_context.name == "mjpeg" else "yuv420p"
        for stream in streams:
            for i in range(10 if stream.codec_context.name == "libx264" else 1):
                frame = av.VideoFrame.from_ndarray(np.full((96, 160, 3), 4 * i, np.uint8), format="rgb24")
                frame.pts = i
                file.mux(stream.encode(frame))
            file.mux(stream.encode())
        for i in range(47):
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 48000, 1024 * i
            file.mux(sound.encode(silence))
        file.mux(sound.encode())
    return path


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])  # Matroska does not keep the mark of a cover picture
def test_a_cover_picture_is_not_a_video(tmp_path, name):
    for cover in (False, True):
        with pytest.raises(VideoError) as error:
            probe(with_sound(tmp_path / name, cover=cover, film=False))
        assert error.value.reason == "has no video stream that can be decoded"
        assert probe(with_sound(tmp_path / name, cover=cover, film=True)).frames == 10


def write_gif(path: Path, delays: int | list[int] = 80) -> Path:
    """Write six pictures with delays in ms."""
    images = [Image.new("RGB", (64, 48), (40 * i, 0, 0)) for i in range(6)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=delays)
    return path


def test_a_gif_has_the_times_of_its_delays(tmp_path):
    delays = [20, 100, 500, 0, 80, 10]  # ms
    clip = decode_apart(write_gif(tmp_path / "a.gif", delays), Sampling(6, NATIVE))
    assert clip.timestamps.round(2).tolist() == [0, 0.02, 0.12, 0.62, 0.72, 0.8]
    with av.open(str(tmp_path / "a.gif")) as file:
        truth = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    np.testing.assert_array_equal(clip.frames, truth)


def test_a_gif_without_its_end_is_refused_with_a_repair(tmp_path):
    video = write_gif(tmp_path / "a.gif")
    data = video.read_bytes()
    video.write_bytes(data + b"after the trailer")
    assert probe(video).frames == 6
    for length in (5, 12, len(data) // 2, len(data) - 1):
        video.write_bytes(data[:length])
        with pytest.raises(VideoError) as error:
            probe(video)
        assert "a.gif" in error.value.reason
