"""The choice of frames, their resizing, and the agreement of the decoders."""

import importlib.util
import itertools
import random
import re
import sys

import numpy as np
import pytest
from PIL import Image

from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.errors import ConfigError, VideoError
from ctvr.orchestrator.video import decoders
from ctvr.orchestrator.video.decode import decoder_version
from ctvr.orchestrator.video.index import Limits
from ctvr.orchestrator.video.sampling import NATIVE, Sampling, choose_frames, missing_frame, resize_and_crop
from tests.in_subprocess import in_subprocess
from tests.orchestrator.video.clips import decode_apart, needs, probe, read_number, write_video
from tests.refusing import missing_from, refuses

HAS_DECORD = "decord" in decoder_version("auto")
DECODERS = ["pyav", "decord", "torchcodec"]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("videos") / "video.mp4")


def released_rule(num_frames, length, first=0):
    """Choose frames by the published code of the benchmark (frozen-in-time, `sampling='uniform'`)."""
    parts = min(num_frames, length)
    points = np.linspace(start=0, stop=length, num=parts + 1).astype(int)
    frames = [first + (a + b - 1) // 2 for a, b in itertools.pairwise(points)]
    return frames + [frames[-1]] * (num_frames - parts)


@pytest.mark.parametrize("length", [1, 2, 11, 12, 13, 60, 325, 1001])
def test_frames_are_the_middles_of_equal_parts(length):
    assert choose_frames(np.arange(length) / 25, 12).tolist() == released_rule(12, length)


def clip4clip_rule(num_frames, length, fps, start=None, end=None):
    """Choose frames as CLIP4Clip's extractor (framerate 1) and loader (slice_framepos 2) do in turn; -1: masked."""
    rate = int(fps)
    total = (length + rate - 1) // rate
    first, last = (0, total) if start is None else (start, min(end, total))
    read = [second * rate for second in range(first, last + 1) if second * rate < length]
    if len(read) > num_frames:
        read = [read[int(place)] for place in np.linspace(0, len(read) - 1, num_frames)]
    return read + [-1] * (num_frames - len(read))


@pytest.mark.parametrize("fps", [25, 29.97, 7.5])
@pytest.mark.parametrize("length", [1, 24, 25, 26, 301, 325, 1001])
def test_one_frame_a_second_and_from_first_to_last_are_the_released_rules(length, fps):
    times = np.arange(length) / fps
    assert choose_frames(times, 12, None, "one_per_second", fps).tolist() == clip4clip_rule(12, length, fps)
    ends = [int(place) for place in np.linspace(0, length - 1, 12)]  # CLIP-ViP, at test
    assert choose_frames(times, 12, None, "linspace").tolist() == ends


@pytest.mark.parametrize(("start", "end"), [(0, 3), (2, 9), (4, 30)])
def test_segment_of_whole_seconds_includes_both_ends(start, end):
    chosen = choose_frames(np.arange(250) / 25, 6, (start, end), "one_per_second", 25.0)
    assert chosen.tolist() == clip4clip_rule(6, 250, 25, start, end)


@pytest.mark.parametrize(("start", "end"), [(0, 1.3), (1, 3), (2.52, 9.9), (5, 400)])
def test_a_segment_at_constant_rate_follows_the_released_rule(start, end):
    first, stop = int(start * 25), min(int(end * 25), 250)
    chosen = choose_frames(np.arange(250) / 25, 8, (start, end))
    assert chosen.tolist() == [first + i for i in released_rule(8, stop - first)]


def test_a_segment_uses_real_times_where_the_rate_varies():
    times = np.concatenate([np.arange(10), 10 + np.arange(100) / 25])  # ten slow seconds, then 25 fps
    chosen = choose_frames(times, 5, (10, 12))
    assert times[chosen].min() >= 10
    assert times[chosen].max() < 12


def test_a_segment_shorter_than_a_frame_keeps_the_frame_on_screen():
    assert choose_frames(np.arange(10) / 25, 3, (0.121, 0.122)).tolist() == [3, 3, 3]


def test_a_segment_after_the_end_of_the_video_is_an_error(video):
    with pytest.raises(VideoError, match=r"segment starts at 7 s, but the video ends at 2.36 s"):
        decode_apart(video, Sampling(4, 32), (7, 9))
    for segment in [(3.0, 1.0), (-1.0, 1.0), (0.0, float("nan"))]:
        with pytest.raises(VideoError, match="0 <= start < end"):
            decode_apart(video, Sampling(4, 32), segment)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("num_frames", [1, 7, 12, 60, 64])
def test_decoded_frames_are_the_chosen_ones_with_their_times(video, decoder, num_frames):
    needs(decoder)
    clip = decode_apart(video, Sampling(num_frames, 96), decoder=decoder)
    expected = released_rule(num_frames, 60)
    assert clip.frames.shape == (num_frames, 96, 96, 3)
    assert clip.frames.dtype == np.uint8
    assert [read_number(f) for f in clip.frames] == expected
    np.testing.assert_allclose(clip.timestamps, np.asarray(expected) / 25, atol=1e-6)
    assert clip.decoder == decoder


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_segment_decodes_the_same_frames_as_the_whole(video, decoder):
    needs(decoder)
    whole = decode_apart(video, Sampling(60, 64), decoder=decoder)
    part = decode_apart(video, Sampling(10, 64), (1.0, 1.4), decoder=decoder)
    np.testing.assert_array_equal(part.frames, whole.frames[25:35])


@pytest.mark.parametrize("decoder", DECODERS)
def test_timestamps_of_a_variable_rate_are_those_of_the_file(tmp_path, decoder):
    needs(decoder)
    times = [0, 1, 2, 10, 11, 30, 31, 60]
    video = write_video(tmp_path / "vfr.mkv", frames=8, times=times)
    clip = decode_apart(video, Sampling(8, 64), decoder=decoder, limits=Limits(strict=False))
    np.testing.assert_allclose(clip.timestamps, np.asarray(times) / 25, atol=2e-3)
    assert [read_number(f) for f in clip.frames] == list(range(8))


@pytest.mark.parametrize("decoder", DECODERS[1:])
@pytest.mark.parametrize(
    ("ext", "codec"),
    [("mp4", "libx264"), ("mkv", "libx264"), ("avi", "mpeg4"), ("webm", "libvpx"), ("flv", "flv")],
)
def test_the_decoders_give_the_same_frames(tmp_path, ext, codec, decoder):
    needs(decoder)
    video = write_video(tmp_path / f"video.{ext}", codec=codec)
    a, b = (decode_apart(video, Sampling(9, 64), (0.3, 2.0), decoder=d) for d in (decoder, "pyav"))
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.timestamps, b.timestamps)


@pytest.mark.parametrize("decoder", DECODERS[1:])
@pytest.mark.parametrize("name", ["flipping_a_pancake.mkv", "nasa_13013.mp4", "video_90.mov"])
def test_public_clips_decode_equally_and_upright(shared, name, decoder):
    path = shared / "data" / "videos" / name
    if not path.exists():
        pytest.skip("needs the public clips")
    needs(decoder)
    a, b = (decode_apart(path, Sampling(12, 112), decoder=d) for d in (decoder, "pyav"))
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.timestamps, b.timestamps)
    if name == "video_90.mov":
        assert (probe(path).width, probe(path).height) == (320, 568)


def test_auto_falls_back_to_pyav_and_10_bits_differ(shared):
    path = shared / "data" / "videos" / "av1_video.mkv"
    if not path.exists() or not HAS_DECORD:
        pytest.skip("needs the public clips and decord")
    assert decode_apart(path, Sampling(4, 64), decoder="auto").decoder == "pyav"
    path = path.with_name("h264_10bits.mp4")
    a, b = (decode_apart(path, Sampling(2, 64), decoder=d).frames.astype(int) for d in ("decord", "pyav"))
    assert 0 < np.abs(a - b).mean() < 5, "the same frames, another interpolation of colour: no default for both"


def test_torchcodec_reads_av1_equally_and_10_bits_differ(shared):
    path = shared / "data" / "videos" / "av1_video.mkv"
    if not path.exists():
        pytest.skip("needs the public clips")
    needs("torchcodec")
    a, b = (decode_apart(path, Sampling(4, 64), decoder=d).frames for d in ("torchcodec", "pyav"))
    np.testing.assert_array_equal(a, b)
    path = path.with_name("h264_10bits.mp4")
    a, b = (decode_apart(path, Sampling(2, 64), decoder=d).frames.astype(int) for d in ("torchcodec", "pyav"))
    assert 0 < np.abs(a - b).mean() < 5


OPEN = {"x265-params": "log-level=none"}  # groups of pictures; so they are by default


@pytest.mark.parametrize(
    ("ext", "codec", "options"), [("mp4", "libx265", OPEN), ("wmv", "wmv2", {}), ("ts", "libx264", {})]
)
def test_films_of_which_decord_returns_other_frames_are_refused(tmp_path, ext, codec, options):
    needs("decord")
    video = write_video(tmp_path / f"video.{ext}", codec=codec, **options)
    found = decode_apart(video, Sampling(12, 64), decoder="auto")
    assert found.decoder == "pyav"
    for image, second in zip(found.frames, found.timestamps, strict=True):
        assert read_number(image) == pytest.approx(round(25 * second), abs=1)
    with pytest.raises(VideoError, match=rf"video\.{ext}: decord returns a wrong frame at \d"):
        decode_apart(video, Sampling(12, 64), decoder="decord")


def test_a_stream_of_which_torchcodec_returns_other_frames_is_refused(tmp_path):
    needs("torchcodec")
    video = write_video(tmp_path / "video.mpg", codec="mpeg2video")
    with pytest.raises(VideoError, match=r"video\.mpg: torchcodec('s frame times differ| cannot decode it)"):
        decode_apart(video, Sampling(12, 32), decoder="torchcodec", limits=Limits(strict=False))


def test_damage_that_torchcodec_patches_up_is_refused(tmp_path):
    needs("torchcodec")
    video = write_video(tmp_path / "video.avi", codec="mpeg4")
    data, good = video.read_bytes(), decode_apart(video, Sampling(12, 32), decoder="torchcodec").frames
    damaged, rng = tmp_path / "damaged.avi", random.Random(0)
    outcomes = []
    for _ in range(20):
        flipped = bytearray(data)
        start = rng.randrange(len(data) // 4, len(data) - 32)
        flipped[start : start + 32] = rng.randbytes(32)
        damaged.write_bytes(flipped)
        try:
            patched = decode_apart(damaged, Sampling(12, 32), decoder="torchcodec", limits=Limits(strict=False)).frames
        except VideoError:
            continue
        if not np.array_equal(patched, good):
            strict = []
            for decoder in ("torchcodec", "pyav"):
                try:
                    decode_apart(damaged, Sampling(12, 32), decoder=decoder)
                    strict.append("taken")
                except VideoError as error:
                    strict.append(error.reason)
            assert strict[0] == strict[1], "what PyAV sees"
            outcomes.append(strict[0])
    assert sum(reason != "taken" for reason in outcomes) > len(outcomes) / 2


def test_a_damaged_public_clip_is_refused_not_patched_up(shared):
    path = shared / "data" / "videos" / "corrupted.mp4"
    if not path.exists():
        pytest.skip("needs the public clips")
    with pytest.raises(VideoError, match=r"corrupted\.mp4: is damaged"):
        decode_apart(path, Sampling(12, 64))


@pytest.mark.parametrize(("ext", "codec"), [("mp4", "libx264"), ("mkv", "libx264"), ("avi", "mpeg4")])
def test_flipped_bits_give_frames_or_one_clear_line_and_most_are_noticed(tmp_path, ext, codec):
    data = write_video(tmp_path / f"video.{ext}", codec=codec).read_bytes()
    good = decode_apart(tmp_path / f"video.{ext}", Sampling(12, 32)).frames
    rng = random.Random(0)
    damaged = tmp_path / f"damaged.{ext}"
    refused: list[str] = []
    wrong = 0
    for _ in range(40):
        flipped = bytearray(data)
        start = rng.randrange(len(data) - 32)
        flipped[start : start + 32] = rng.randbytes(32)
        damaged.write_bytes(flipped)
        try:
            clip = decode_apart(damaged, Sampling(12, 32))
        except VideoError as error:
            refused.append(str(error))
        else:
            wrong += not np.array_equal(clip.frames, good)
    assert all(line.startswith(str(damaged)) and "\n" not in line for line in refused)
    assert wrong <= len(refused)  # without the strict check most of them go unnoticed


def test_lenient_limits_accept_what_the_decoder_patches_up(tmp_path):
    data = write_video(tmp_path / "video.mkv").read_bytes()
    damaged = tmp_path / "damaged.mkv"
    rng = random.Random(3)
    patched_up = 0
    # Which bytes the decoder stumbles over depends on the encoder's build, so several places are tried.
    for _ in range(40):
        flipped = bytearray(data)
        start = rng.randrange(len(data) // 4, len(data) - 64)
        flipped[start : start + 64] = rng.randbytes(64)
        damaged.write_bytes(flipped)
        try:
            decode_apart(damaged, Sampling(12, 32), decoder="pyav")
        except VideoError:
            try:
                clip = decode_apart(damaged, Sampling(12, 32), decoder="pyav", limits=Limits(strict=False))
            except VideoError:
                continue  # too much is lost for either
            patched_up += len(clip.frames) == 12
    assert patched_up > 0


@pytest.mark.parametrize("shape", [(48, 64), (64, 48), (33, 200), (10, 10), (64, 64)])
def test_the_shorter_side_becomes_the_size_and_the_centre_stays(shape):
    image = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    assert resize_and_crop(image, 32).shape == (32, 32, 3)
    constant = np.full((*shape, 3), 77, np.uint8)
    assert (resize_and_crop(constant, 32) == 77).all()


@pytest.mark.slow  # the import of torchvision takes seconds
def test_resize_agrees_with_torchvision():
    from torchvision.transforms.functional import InterpolationMode, center_crop, resize

    image = np.random.default_rng(0).integers(0, 255, (90, 171, 3), dtype=np.uint8)
    reference = center_crop(resize(Image.fromarray(image), 32, InterpolationMode.BICUBIC), [32, 32])
    np.testing.assert_array_equal(resize_and_crop(image, 32), np.asarray(reference))


@pytest.mark.parametrize("pattern", ["frame_{}_idx_{:04d}.png", "frame_{:03d}.jpg"])
def test_a_folder_of_frames_is_sorted_by_number_and_thinned_uniformly(tmp_path, pattern):
    for i in range(1, 13):
        image = np.full((20, 24, 3), 10 * i, np.uint8)
        Image.fromarray(image).save(tmp_path / pattern.format(i, 25 * i), quality=100)
    twelve, six, more = (decode_apart(tmp_path, Sampling(n, 16)) for n in (12, 6, 14))
    assert [round(f.mean() / 10) for f in twelve.frames] == list(range(1, 13))
    assert [round(f.mean() / 10) for f in six.frames] == [1, 3, 5, 7, 9, 11]
    assert [round(f.mean() / 10) for f in more.frames] == [*range(1, 13), 12, 12]
    assert np.isnan(six.timestamps).all()
    short = decode_apart(tmp_path, Sampling(14, 16, "one_per_second"))
    np.testing.assert_array_equal(short.frames[:12], twelve.frames)
    assert [(frame == missing_frame(16)).all() for frame in short.frames[11:]] == [False, True, True]


def test_a_damaged_frame_in_a_folder_is_named(tmp_path):
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "frame_001.png")
    data = (tmp_path / "frame_001.png").read_bytes()
    (tmp_path / "frame_002.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(VideoError, match=r"frame_002\.png is damaged"):
        decode_apart(tmp_path, Sampling(2, 16))


def test_frames_of_16_bits_and_rotated_ones_are_shown_correctly(tmp_path):
    grey = np.arange(20 * 24, dtype=np.uint16).reshape(20, 24) * 128
    Image.fromarray(grey).save(tmp_path / "frame_1.png")
    clip = decode_apart(tmp_path, Sampling(1, NATIVE))
    np.testing.assert_array_equal(clip.frames[0], np.repeat((grey // 256)[..., None], 3, axis=2))
    (tmp_path / "turned").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned to the right
    Image.fromarray(np.repeat((grey // 256).astype(np.uint8)[..., None], 3, axis=2)).save(
        tmp_path / "turned/frame_1.png", exif=exif
    )
    turned = decode_apart(tmp_path / "turned", Sampling(1, NATIVE))
    np.testing.assert_array_equal(turned.frames[0], np.rot90(clip.frames[0], -1))


def test_an_unknown_decoder_is_a_config_error(video):
    with refuses("ffmpeg", where="decoder"):
        decode_apart(video, Sampling(), decoder="ffmpeg")


def test_without_torchcodec_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        decoder_version("torchcodec")
    assert not missing_from(str(caught.value), "'torchcodec'", "Install", "FFmpeg's")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["__init__.py", "_core.py"])  # former releases fail at import, later ones when asked
def test_without_ffmpeg_one_line_says_what_to_install(monkeypatch, tmp_path, place):
    (tmp_path / "torchcodec").mkdir()
    for name in ("__init__.py", "_core.py"):
        (tmp_path / "torchcodec" / name).touch()
    pages = "raise RuntimeError('Could not load libtorchcodec. Likely causes:\\n 1. FFmpeg\\n 2. PyTorch')"
    (tmp_path / "torchcodec" / place).write_text(pages)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    decoders.torchcodec_version.cache_clear()
    with refuses("Install", "FFmpeg's"):
        decoder_version("torchcodec")
    for name in [name for name in sys.modules if name.split(".")[0] == "torchcodec"]:
        del sys.modules[name]


def test_the_version_names_torchcodec_and_its_ffmpeg():
    needs("torchcodec")
    assert re.match(r"torchcodec-\d+\.\d+.*-ffmpeg-.*\d+\.\d+", in_subprocess(decoder_version, "torchcodec"))


def test_the_version_differs_by_decoder_and_strictness():
    versions = [decoder_version("pyav", strict) for strict in (True, False)]
    if HAS_DECORD:
        versions += [decoder_version("auto"), decoder_version("decord")]
    assert len(set(versions)) == len(versions)
    assert decoder_version() == decoder_version(DataConfig().decoder) == versions[0], "what decodes once is the default"


@pytest.mark.parametrize("number", [4, 12, 60])
def test_an_open_group_of_pictures_is_no_damage(tmp_path, number):
    """Frames that are shown before a key frame need frames that precede it."""
    video = write_video(tmp_path / "open.mp4", **{"x264-params": "open-gop=1:keyint=10:bframes=3"})
    clip = decode_apart(video, Sampling(num_frames=number, size=64))
    lenient = decode_apart(video, Sampling(num_frames=number, size=64), limits=Limits(strict=False))
    np.testing.assert_array_equal(clip.frames, lenient.frames)
    step = 60 / number
    assert [read_number(image) for image in clip.frames] == [int(step * i + step / 2) for i in range(number)]
    data = bytearray(video.read_bytes())
    place = data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2
    data[place : place + 40] = bytes(40)
    video.write_bytes(data)
    with pytest.raises(VideoError, match="is damaged"):
        decode_apart(video, Sampling(num_frames=number, size=64))
