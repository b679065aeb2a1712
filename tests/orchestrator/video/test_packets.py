"""Packets are an index only where their times are proven to be those of presentation."""

from pathlib import Path

import av
import numpy as np
import pytest

from ctvr.orchestrator.video.sampling import Sampling
from tests.orchestrator.video.clips import decode_apart, write_video
from tests.orchestrator.video.test_formats import shown


def copied(path: Path, source: Path) -> Path:
    """Copy as `repacked`, but with the times of decoding as those of presentation."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        stream = old.streams.video[0]
        to = new.add_stream_from_template(stream)
        packets = [packet for packet in old.demux(stream) if packet.dts is not None]
        begin = packets[0].dts
        for packet in packets:
            packet.pts = packet.dts = packet.dts - begin
            packet.stream = to
            new.mux(packet)
    return path


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "mpeg4", {"bf": "2"}),
        ("a.mkv", "mpeg4", {"bf": "2"}),
        ("a.mov", "libx264", {"x264-params": "bframes=3:b-adapt=0:keyint=12:open-gop=1"}),
        ("a.mp4", "libx264", {"bf": "0"}),  # the times of decoding are those of presentation
    ],
)
def test_each_frame_alone_is_that_of_a_whole_decode_if_packets_have_times_of_decoding(tmp_path, name, codec, options):
    video = copied(tmp_path / name, write_video(tmp_path / "s.mp4", codec=codec, **options))
    truth = shown(video)
    times = decode_apart(video, Sampling(len(truth), 32)).timestamps
    for i in range(1, len(truth) - 1):
        image = decode_apart(video, Sampling(1, 96), (float(times[i]), float(times[i + 1]))).frames[0]
        np.testing.assert_array_equal(image, truth[i], err_msg=str(i))
