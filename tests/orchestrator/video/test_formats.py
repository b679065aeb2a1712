"""Frames are those of a whole decode, in order, whatever the container's metadata claims."""

import re
import struct
from pathlib import Path

import av
import numpy as np
import pytest

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video.container import ends_in_packet
from ctvr.orchestrator.video.counting import seconds_of
from ctvr.orchestrator.video.decoders import upright
from ctvr.orchestrator.video.sampling import NATIVE, Sampling, resize_and_crop
from tests.orchestrator.video.clips import decode_apart, probe, read_number, write_video

B_FRAMES = {"x264-params": "bframes=3:b-adapt=0:keyint=30:min-keyint=30:scenecut=0"}


def shown(path: Path) -> np.ndarray:
    """Return the frames of a whole decode, resized as in the product: (N, 96, 96, 3)."""
    with av.open(str(path)) as file:
        images = [frame.to_ndarray(format="rgb24") for frame in file.decode(file.streams.best("video"))]
    return np.stack([resize_and_crop(image, 96) for image in images])


def trimmed(path: Path, source: Path, first: int, container: str) -> Path:
    """Copy as `ffmpeg -ss T -i source -c copy path`: an edit list hides the part between the key frame and `first`."""
    with av.open(str(source)) as old, av.open(str(path), "w", format=container) as new:
        stream = old.streams.video[0]
        to = new.add_stream_from_template(stream)
        step = int(1 / (stream.average_rate * stream.time_base))
        packets = [packet for packet in old.demux(stream) if packet.dts is not None]
        begin = (stream.start_time or 0) + first * step
        key = max(packet.pts for packet in packets if packet.is_keyframe and packet.pts <= begin)
        for packet in packets:
            if packet.pts >= key:
                packet.pts, packet.dts, packet.stream = packet.pts - begin, packet.dts - begin, to
                new.mux(packet)
    return path


def repacked(path: Path, source: Path, **options: str) -> Path:
    """Copy as `ffmpeg -i source -c copy path`; times begin at 0."""
    with av.open(str(source)) as old, av.open(str(path), "w", options=options) as new:
        stream = old.streams.video[0]
        to = new.add_stream_from_template(stream)
        packets = [packet for packet in old.demux(stream) if packet.dts is not None]
        begin = min(packet.dts for packet in packets)
        for packet in packets:
            packet.pts, packet.dts, packet.stream = packet.pts - begin, packet.dts - begin, to
            new.mux(packet)
    return path


def joined(path: Path, source: Path) -> Path:
    """Join as `cat source source > path`: the parts of a stream that was downloaded in segments."""
    path.write_bytes(source.read_bytes() * 2)
    return path


def padded(path: Path, source: Path) -> Path:
    path.write_bytes(bytes(1000) + source.read_bytes())
    return path


def stuffed(path: Path, source: Path) -> Path:
    """Insert zero bytes before each picture, as constant-rate encoders do."""
    path.write_bytes(source.read_bytes().replace(b"\0\0\1\0", bytes(9) + b"\0\0\1\0"))
    return path


def cut(path: Path, source: Path, start: bytes, before: bytes = b"") -> Path:
    """Return a program stream from its first header of a kind on, like a recording that began later."""
    content = source.read_bytes()
    path.write_bytes(before + content[content.index(b"\0\0\1" + start) :])
    return path


def from_video_cd(path: Path, source: Path) -> Path:
    """Return the sectors of a Video CD in a RIFF file, as systems copy them."""
    content, size = source.read_bytes(), 2048  # of a pack
    parts = [content[i : i + size].ljust(2324, b"\0") for i in range(0, len(content), size)]
    sectors = b"".join(b"\0" + b"\xff" * 10 + b"\0" + b"\0\2\0\2" + bytes(8) + part + bytes(4) for part in parts)
    chunks = struct.pack("<4sI16x4sI", b"fmt ", 16, b"data", len(sectors))
    path.write_bytes(struct.pack("<4sI4s", b"RIFF", len(sectors) + 36, b"CDXA") + chunks + sectors)
    return path


def unpacked(path: Path, source: Path) -> Path:
    """Return the packets of a video one after another, without a container."""
    with av.open(str(source)) as file:
        path.write_bytes(b"".join(bytes(packet) for packet in file.demux(file.streams.video[0])))
    return path


MAKERS = {
    "trimmed.mp4": lambda folder: trimmed(folder / "a.mp4", write_video(folder / "s.mp4", g="30", bf="0"), 10, "mp4"),
    "trimmed.mov": lambda folder: trimmed(folder / "a.mov", write_video(folder / "s.mp4", g="30", bf="0"), 41, "mov"),
    "trimmed_b.mp4": lambda folder: trimmed(folder / "a.mp4", write_video(folder / "s.mp4", **B_FRAMES), 10, "mp4"),
    "h264_b.avi": lambda folder: write_video(folder / "a.avi", **B_FRAMES),
    "h264.avi": lambda folder: write_video(folder / "a.avi", bf="0"),
    "mpeg4_b.avi": lambda folder: write_video(folder / "a.avi", codec="mpeg4", bf="2"),
    "mpeg4_b.mkv": lambda folder: write_video(folder / "a.mkv", codec="mpeg4", bf="2"),
    "repacked.avi": lambda folder: repacked(folder / "a.avi", write_video(folder / "s.mp4", codec="mpeg4")),
    "ffv1.mkv": lambda folder: write_video(folder / "a.mkv", codec="ffv1"),
    "vp8.webm": lambda folder: write_video(
        folder / "a.webm", codec="libvpx", **{"auto-alt-ref": "1", "lag-in-frames": "9"}
    ),
    "vp9.webm": lambda folder: write_video(folder / "a.webm", codec="libvpx-vp9", **{"lag-in-frames": "9"}),
    "mpeg2_b.ts": lambda folder: write_video(folder / "a.ts", codec="mpeg2video", bf="2"),
    "mpeg2_b.mpg": lambda folder: write_video(folder / "a.mpg", codec="mpeg2video", bf="2"),
    "h264.ts": lambda folder: write_video(folder / "a.ts", **B_FRAMES),
    "h264.flv": lambda folder: write_video(folder / "a.flv", **B_FRAMES),
    "wmv.wmv": lambda folder: write_video(folder / "a.wmv", codec="wmv2"),
    "hevc.mp4": lambda folder: write_video(folder / "a.mp4", codec="libx265", **{"x265-params": "log-level=none"}),
    "joined.ts": lambda folder: joined(folder / "a.ts", write_video(folder / "s.ts", **B_FRAMES)),
    "padded.ts": lambda folder: padded(folder / "a.ts", write_video(folder / "s.ts", bf="0")),
    "padded.mpg": lambda folder: padded(folder / "a.mpg", write_video(folder / "s.mpg", codec="mpeg2video")),
    "headless.mpg": lambda folder: cut(folder / "a.mpg", write_video(folder / "s.mpg", codec="mpeg1video"), b"\xbb"),
    "packets.mpg": lambda folder: cut(folder / "a.mpg", write_video(folder / "s.mpg", codec="mpeg2video"), b"\xe0"),
    "late.mpg": lambda folder: cut(
        folder / "a.mpg", write_video(folder / "s.mpg", codec="mpeg2video"), b"\xba", b"rest of a packet"
    ),
    "cd.mpg": lambda folder: from_video_cd(folder / "a.mpg", write_video(folder / "s.mpg", codec="mpeg1video")),
    "stuffed.m1v": lambda folder: stuffed(folder / "a.m1v", write_video(folder / "s.m1v", codec="mpeg1video")),
    "stuffed.m2v": lambda folder: stuffed(folder / "a.m2v", write_video(folder / "s.m2v", codec="mpeg2video")),
    "h264_b.h264": lambda folder: write_video(folder / "a.h264", **B_FRAMES),
    "hevc.hevc": lambda folder: write_video(folder / "a.hevc", codec="libx265", **{"x265-params": "log-level=none"}),
    "mpeg1_b.m1v": lambda folder: write_video(folder / "a.m1v", codec="mpeg1video", bf="2"),
    "mpeg2_b.m2v": lambda folder: write_video(folder / "a.m2v", codec="mpeg2video", bf="2"),
    "mpeg4.m4v": lambda folder: unpacked(folder / "a.m4v", write_video(folder / "s.avi", codec="mpeg4")),
    "png.mov": lambda folder: write_video(folder / "a.mov", pixels="rgb24", codec="png"),
    "utvideo.avi": lambda folder: write_video(folder / "a.avi", codec="utvideo"),
    "svq1.mov": lambda folder: write_video(folder / "a.mov", pixels="yuv410p", codec="svq1"),
    "cinepak.avi": lambda folder: write_video(folder / "a.avi", frames=20, pixels="rgb24", codec="cinepak"),
    "msvideo1.avi": lambda folder: write_video(folder / "a.avi", pixels="rgb555le", codec="msvideo1"),
    "zmbv.avi": lambda folder: write_video(folder / "a.avi", pixels="bgr0", codec="zmbv"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_frames_are_those_of_a_whole_decode(name, tmp_path):
    video = MAKERS[name](tmp_path)
    truth = shown(video)
    assert len(truth) >= 19
    whole = decode_apart(video, Sampling(len(truth), 96))
    np.testing.assert_array_equal(whole.frames, truth)
    assert (np.diff(whole.timestamps) > 0).all()
    for count in (1, 12):
        edges = np.linspace(0, len(truth), count + 1).astype(int)
        middles = (edges[:-1] + edges[1:] - 1) // 2
        np.testing.assert_array_equal(decode_apart(video, Sampling(count, 96)).frames, truth[middles])
    part = decode_apart(video, Sampling(1, 96), (float(whole.timestamps[5]), float(whole.timestamps[6])))
    np.testing.assert_array_equal(part.frames[0], truth[5])


def test_recording_begins_at_its_first_key_frame(tmp_path):
    video = write_video(tmp_path / "a.ts", **B_FRAMES)
    data = video.read_bytes()
    with av.open(str(video)) as file:
        places = [packet.pos for packet in file.demux(video=0) if packet.pos]
    (tmp_path / "cut.ts").write_bytes(data[: 188 * 3] + data[places[8] :])
    truth = shown(tmp_path / "cut.ts")
    assert [read_number(image) for image in truth] == list(range(30, 60))
    np.testing.assert_array_equal(decode_apart(tmp_path / "cut.ts", Sampling(30, 96)).frames, truth)


def test_avchd_packets_of_192_bytes_are_a_transport_stream(tmp_path):
    plain = write_video(tmp_path / "a.ts", **B_FRAMES)
    data = plain.read_bytes()
    video = tmp_path / "a.mts"
    video.write_bytes(b"".join(bytes(4) + data[i : i + 188] for i in range(0, len(data), 188)))
    clip = decode_apart(video, Sampling(60, 96))
    assert [read_number(image) for image in clip.frames] == list(range(60))


def test_a_box_that_claims_too_much_is_no_loss_while_all_frames_are_there(tmp_path):
    video = write_video(tmp_path / "a.mp4")
    data = bytearray(repacked(tmp_path / "b.mp4", video, movflags="faststart").read_bytes())
    place = data.index(b"mdat") - 4
    size = int.from_bytes(data[place : place + 4], "big")
    data[place : place + 4] = (size + 500).to_bytes(4, "big")
    (tmp_path / "long.mp4").write_bytes(data)
    clip = decode_apart(tmp_path / "long.mp4", Sampling(60, 96))
    assert [read_number(image) for image in clip.frames] == list(range(60))
    (tmp_path / "cut.mp4").write_bytes(data[:-1500])
    with pytest.raises(VideoError, match="is truncated: box 'mdat'"):
        decode_apart(tmp_path / "cut.mp4", Sampling(4, 32))


def test_text_after_a_whole_video_is_no_loss_and_a_cut_fragment_is_one(tmp_path):
    video = write_video(tmp_path / "a.mp4")
    (tmp_path / "tail.mp4").write_bytes(video.read_bytes() + b"mp4 made by a recorder")
    clip = decode_apart(tmp_path / "tail.mp4", Sampling(60, 96))
    assert [read_number(image) for image in clip.frames] == list(range(60))
    data = repacked(tmp_path / "f.mp4", video, movflags="frag_keyframe+empty_moov").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: data.rindex(b"moof") + 20])
    with pytest.raises(VideoError, match="is truncated: box 'moof'"):
        decode_apart(tmp_path / "cut.mp4", Sampling(4, 32))


def without_start(data: bytes) -> bytes:
    return data[data.index(b"moof") - 4 :]


def all_hidden(data: bytes) -> bytes:
    place = data.index(b"elst") + 16  # after version, count and duration: the media time
    return data[:place] + (1 << 30).to_bytes(4, "big") + data[place + 4 :]


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("packets.ts", lambda data: data[: 188 * 20] + data[188 * 24 :], r"is damaged: packet \d+ is corrupt"),
        ("parameters.ts", lambda data: data.replace(b"\0\0\1\x67", b"\0\0\1\x6c"), "the size of its frames"),
        ("start.m4s", without_start, "is a segment of a stream .*cat INIT SEGMENT > OUT.mp4"),
        ("sidx.m4s", lambda data: b"\0\0\1\x08sidx" + bytes(0x100) + without_start(data), "is a segment of a stream"),
        ("hidden.mp4", all_hidden, "has no frames .* its edit list hides every packet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_video_without_a_part_says_which(tmp_path, name, change, reason):
    source = write_video(tmp_path / f"a.{'ts' if name.endswith('ts') else 'mp4'}", **B_FRAMES)
    if name.endswith("m4s"):
        source = repacked(tmp_path / "b.mp4", source, movflags="frag_keyframe+empty_moov")
    data = source.read_bytes()
    (tmp_path / name).write_bytes(change(data))
    assert (tmp_path / name).read_bytes() != data
    with pytest.raises(VideoError) as error:
        decode_apart(tmp_path / name, Sampling(4, 32))
    assert re.search(reason, error.value.reason)


def test_avi_with_a_fine_time_base_keeps_frame_times_and_rate(tmp_path):
    video = repacked(tmp_path / "b.avi", write_video(tmp_path / "a.mp4", codec="mpeg4", bf="2"))
    with av.open(str(video)) as file:
        assert file.streams.video[0].average_rate > 100
    clip = decode_apart(video, Sampling(60, 32))
    np.testing.assert_allclose(clip.timestamps, np.arange(60) / 25, atol=1 / 600)
    assert clip.info.fps == pytest.approx(25)
    assert clip.info.seconds == pytest.approx(60 / 25, abs=0.01)


def test_the_native_size_and_the_facts_of_a_film_come_with_its_frames(tmp_path):
    video = write_video(tmp_path / "a.avi", codec="mpeg4")
    clip = decode_apart(video, Sampling(3, NATIVE))
    assert clip.frames.shape == (3, 96, 160, 3)
    assert clip.info == probe(video)
    assert (clip.info.container, clip.info.frames) == ("avi", 60)
    assert clip.info.counted
    assert not probe(write_video(tmp_path / "a.mp4")).counted


def test_frame_times_are_sorted_and_missing_ones_interpolated():
    np.testing.assert_allclose(seconds_of([1, 4, 3, 5, 2], 0.04, 25), np.arange(5) * 0.04)
    np.testing.assert_allclose(seconds_of([10, None, 14, 14, 18], 0.5, 1), [0, 1, 2, 3, 4])
    np.testing.assert_allclose(seconds_of([None, None, None], 0.5, 2), [0, 0.5, 1])
    restart = seconds_of([*range(40), *range(40)], 0.1, 10)
    assert (np.diff(restart) > 0).all()


ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ((ONE, 0, 0, ONE), lambda image: image),
        ((-ONE, 0, 0, ONE), lambda image: image[:, ::-1]),
        ((ONE, 0, 0, -ONE), lambda image: image[::-1]),
        ((-ONE, 0, 0, -ONE), lambda image: np.rot90(image, 2)),
        ((0, ONE, -ONE, 0), lambda image: np.rot90(image, -1)),  # a quarter clockwise
        ((0, -ONE, ONE, 0), lambda image: np.rot90(image, 1)),
        ((0, ONE, ONE, 0), lambda image: image.swapaxes(0, 1)),
        ((0, 0, 0, 0), lambda image: image),
    ],
)
def test_a_display_matrix_turns_and_mirrors(matrix, expected):
    image = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    a, b, c, d = matrix
    np.testing.assert_array_equal(upright(image, (a, b, 0, c, d, 0, 0, 0, 1 << 30)), expected(image))


def test_any_other_angle_turns_the_picture_in_its_frame():
    half = round(ONE * 0.5**0.5)
    image = np.full((20, 20, 3), 200, np.uint8)
    turned = upright(image, (half, half, 0, -half, half, 0, 0, 0, 1 << 30))
    assert turned.shape == image.shape
    assert turned[10, 10].tolist() == [200] * 3
    assert turned[0, 0].tolist() == [0] * 3


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_transport_stream_cut_inside_a_group_shows_what_is_left_and_says_that_it_is_cut(tmp_path, codec):
    """Frames equal those of the whole recording; an incomplete last picture is reported."""
    whole = write_video(tmp_path / "a.ts", frames=40, codec=codec, bf="2")
    data, cut = whole.read_bytes(), tmp_path / "cut.ts"
    with av.open(str(whole)) as file:
        pictures = {frame.pts: frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)}
    said = set()
    for length in (*(len(data) - 188 * n for n in range(16)), len(data) - 100, len(data) - 188 * 20 - 7):
        cut.write_bytes(data[:length])
        try:
            clip = decode_apart(cut, Sampling(40, NATIVE))
        except VideoError as error:
            said.add(error.reason)
            continue
        with av.open(str(cut)) as file:
            shown = [frame.pts for frame in file.decode(video=0)]
        assert clip.info is not None
        assert clip.info.frames == len(shown)
        for image, pts in zip(clip.frames, shown):
            np.testing.assert_array_equal(image, pictures[pts])
        is_said = clip.info.counted.endswith("; the file is truncated: it ends inside a packet")
        assert is_said == (length % 188 != 0)
        said.add("shown")
    assert "shown" in said
    assert len(said) > 1
    assert all("the file is truncated there. `ffmpeg -i cut.ts" in reason for reason in said - {"shown"})


def test_the_end_of_packets_of_192_bytes_and_of_a_file_that_begins_inside_one_is_found(tmp_path):
    data = write_video(tmp_path / "a.ts", **B_FRAMES).read_bytes()
    cards = b"".join(bytes(4) + data[i : i + 188] for i in range(0, len(data), 188))
    for content, is_cut in ((data[50:], False), (data[50:-1], True), (cards, False), (cards[:-9], True)):
        (tmp_path / "b.ts").write_bytes(content)
        assert ends_in_packet(tmp_path / "b.ts", "mpegts") == is_cut
    assert not ends_in_packet(tmp_path / "b.ts", "mpeg")
