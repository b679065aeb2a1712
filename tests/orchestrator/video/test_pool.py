"""The pool of decoding children: whatever a file does to its child, the other files are decoded."""

import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.video import pool as video
from ctvr.orchestrator.video.decode_worker import READY
from ctvr.orchestrator.video.index import Limits
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling
from ctvr.sandbox.isolate import PERMIT
from ctvr.sandbox.restrict import landlock
from tests.in_subprocess import in_subprocess
from tests.orchestrator.video.clips import decode_apart, needs, write_video
from tests.refusing import refuses

SMALL = Sampling(4, 32)


@pytest.fixture(scope="module")
def video_file(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("video_files") / "video_file.mp4")


@pytest.fixture(scope="module")
def pool():
    with Decoder(workers=1) as decoder:
        yield decoder


def test_the_pool_decodes_exactly_what_decode_does(video_file, pool):
    for segment in (None, (0.5, 1.5)):
        ours, theirs = decode_apart(video_file, SMALL, segment), pool.decode(video_file, SMALL, segment)
        np.testing.assert_array_equal(ours.frames, theirs.frames)
        np.testing.assert_array_equal(ours.timestamps, theirs.timestamps)
        assert ours.decoder == theirs.decoder


def by_torchcodec(paths):
    with Decoder(workers=1, decoder="torchcodec") as decoder:
        return [result for _, result in decoder.map(Job(str(path), SMALL) for path in paths)]


def test_a_fenced_child_decodes_by_torchcodec(video_file, pool, tmp_path):
    needs("torchcodec")
    (tmp_path / "no.mp4").write_bytes(b"\0\0\0\x08ftyp")
    good, bad = in_subprocess(by_torchcodec, [video_file, tmp_path / "no.mp4"])
    ours = pool.decode(video_file, SMALL)
    np.testing.assert_array_equal(good.frames, ours.frames)
    np.testing.assert_array_equal(good.timestamps, ours.timestamps)
    assert (good.decoder, type(bad)) == ("torchcodec", VideoError)


def test_bad_files_are_errors_of_their_own_and_the_rest_is_decoded(video_file, pool, tmp_path):
    (tmp_path / "empty.mp4").touch()
    paths = [
        str(video_file),
        str(tmp_path / "empty.mp4"),
        str(video_file),
        str(tmp_path / "absent.mp4"),
        str(video_file),
    ]
    results = list(pool.map(Job(p, SMALL, label=str(i)) for i, p in enumerate(paths)))
    assert sorted(job.label for job, _ in results) == list("01234")
    for job, result in results:
        if job.path == str(video_file):
            assert not isinstance(result, VideoError)
        else:
            assert str(result).startswith(job.path)


def test_jobs_are_read_lazily(video_file, pool):
    taken = []

    def jobs():
        for i in range(100):
            taken.append(i)
            yield Job(str(video_file), SMALL)

    results = pool.map(jobs())
    next(results)
    results.close()
    assert len(taken) <= 2
    assert pool.decode(video_file, SMALL).frames.shape == (4, 32, 32, 3)  # the pool continues after an early end


def test_workers_of_a_pool_share_the_jobs(video_file):
    with Decoder(workers=2) as decoder:
        results = list(decoder.map(Job(str(video_file), SMALL, label=str(i)) for i in range(6)))
        assert len({job.label for job, _ in results}) == 6
        pids = [child.process.pid for child in decoder._children]
        assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def child_that(monkeypatch, *lines):
    """Replace the child's program; `request` is its first job."""
    begin = f"import os, sys, time, struct, signal\nsys.stdout.buffer.write({READY!r}); sys.stdout.flush()\n"
    program = begin + "request = sys.stdin.readline()\n" + "\n".join(lines)
    monkeypatch.setattr(video, "_CHILD", [sys.executable, "-c", program])
    monkeypatch.setattr(video, "_START_SECONDS", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"the decoder crashed \(SIGSEGV\)"),
        ("os.abort()", r"the decoder crashed \(SIGABRT\)"),
        ("sys.exit(3)", "the decoder ended with code 3"),
        ("raise RuntimeError('lost')", "ended with code 1: RuntimeError: lost"),
        ("time.sleep(600)", "hung for more than 0.1 seconds"),
        ("sys.stdout.buffer.write(struct.pack('<I', 2**31)); sys.stdout.flush(); time.sleep(600)", "malformed answer"),
        ("sys.stdout.buffer.write(struct.pack('<I', 4) + b'null'); sys.stdout.flush(); time.sleep(600)", "malformed"),
    ],
    ids=["segfault", "abort", "exit", "exception", "hang", "huge header", "no object"],
)
def test_a_child_that_misbehaves_costs_only_its_file(monkeypatch, line, reason):
    child_that(monkeypatch, line)
    with Decoder(workers=1, limits=Limits(max_seconds=0.1)) as decoder:
        results = list(decoder.map([Job("a.mp4", SMALL), Job("b.mp4", SMALL)]))
    assert [job.path for job, _ in results] == ["a.mp4", "b.mp4"]
    for job, result in results:
        assert isinstance(result, VideoError)
        assert result.path == job.path
        assert re.search(reason, result.reason)
        assert "\n" not in str(result)


@pytest.mark.slow
def test_a_child_that_answers_byte_by_byte_is_ended(monkeypatch):
    trickle = "while True: sys.stdout.buffer.write(b' '); sys.stdout.flush(); time.sleep(0.2)"
    child_that(monkeypatch, "sys.stdout.buffer.write(struct.pack('<I', 60000))", trickle)
    monkeypatch.setattr(video, "_ANSWER_SECONDS", 1.0)
    with Decoder(workers=1, limits=Limits(max_seconds=0.1)) as decoder:
        ((_, result),) = decoder.map([Job("a.mp4", SMALL)])
    assert "hung for more than 0.1 seconds" in str(result)


def test_a_crash_under_decord_gives_the_file_to_pyav(monkeypatch, video_file):
    crash = "import json\nif json.loads(request)['decoder'] == 'auto': os.abort()"
    replay = "from ctvr.orchestrator.video import decode_worker as video\nr = os.fdopen(os.dup(0))\nsys.stdin = r"
    serve = "j = json.loads(request)\nc, e = video._answer(j, video.Limits())\n"
    answer = (
        "h = {'error': e, 'decoder': c.decoder, 'shape': c.frames.shape[1:3], 'info': None}\n"
        "video._write(sys.stdout.buffer, h, c.frames.data, c.timestamps.tobytes())"
    )
    child_that(monkeypatch, crash, replay, serve + answer, "time.sleep(600)")
    monkeypatch.setattr(video, "_START_SECONDS", 120.0)
    with Decoder(workers=1, decoder="auto") as decoder:
        clip = decoder.decode(video_file, SMALL)
    assert clip.decoder == "pyav"


def test_a_file_that_needs_too_much_memory_is_refused(tmp_path):
    import av

    big = tmp_path / "big.mp4"
    with av.open(str(big), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 3840, 2160, "yuv420p"
        for _ in range(2):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((2160, 3840, 3), np.uint8), format="rgb24")))
        file.mux(stream.encode())
    with Decoder(workers=1, limits=Limits(memory_bytes=20 * 2**20)) as decoder, pytest.raises(VideoError) as caught:
        decoder.decode(big, SMALL)
    assert "\n" not in str(caught.value)


def test_children_get_no_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    child_that(monkeypatch, "raise RuntimeError(sorted(k for k in os.environ if 'AWS' in k or 'MLFLOW' in k))")
    with Decoder(workers=1, limits=Limits(max_seconds=20), decoder="pyav") as decoder:
        ((_, result),) = decoder.map([Job("a.mp4", SMALL)])
    assert "RuntimeError: []" in str(result)


def test_bad_pool_settings_are_config_errors():
    with refuses("1", "0", where="decoder"):
        Decoder(workers=0)
    with refuses("'nope'"):
        Decoder(decoder="nope")


@pytest.mark.parametrize("permit", ["", "1"])
def test_without_landlock_a_video_is_decoded_only_if_the_user_permits_it(monkeypatch, video_file, permit):
    monkeypatch.setenv(PERMIT, permit)
    monkeypatch.setattr("ctvr.sandbox.isolate.landlock", lambda: 0)
    start = "from ctvr.sandbox import restrict\nrestrict.landlock = lambda: 0\n"
    start += "from ctvr.orchestrator.video.decode_worker import serve\nserve()"
    monkeypatch.setattr(video, "_CHILD", [sys.executable, "-c", start])
    with Decoder(workers=1, decoder="pyav") as decoder:
        if permit:
            assert decoder.decode(video_file, SMALL).decoder == "pyav"
            return
        with refuses("CTVR_WITHOUT_LANDLOCK=1"):
            decoder.decode(video_file, SMALL)
        assert decoder._children[0].process is None


def test_the_child_is_bounded_and_reaches_no_network_and_no_other_folder(monkeypatch, tmp_path):
    """The child's own program runs up to the limits of its first file; then it reports its permissions."""
    (tmp_path / "videos").mkdir()
    (tmp_path / "secret").write_text("canary")
    report = (
        "import json, resource, signal\n"
        "def names(kinds): return {k: resource.getrlimit(getattr(resource, 'RLIMIT_' + k))[0] for k in kinds}\n"
        "def told(request, limits):\n"
        "    left = signal.getitimer(signal.ITIMER_REAL)[0]\n"
        "    mine = os.readlink('/proc/self/ns/net')\n"
        "    try: said = open(sys.argv[2] + '/../secret').read()\n"
        "    except OSError: said = 'refused'\n"
        "    hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "    said = {'hard': hard, 'net': mine, 'folders': sys.argv[2:], 'canary': said}\n"
        "    return None, json.dumps({**names(['CORE', 'FSIZE', 'AS', 'CPU', 'NOFILE']), 'alarm': left, **said})\n"
        "from ctvr.orchestrator.video import decode_worker as video\n"
        "video._answer = told\n"
        "video.serve()"
    )
    monkeypatch.setattr(video, "_CHILD", [sys.executable, "-c", f"import os, sys\n{report}"])
    with Decoder(workers=1, limits=Limits(max_seconds=20, memory_bytes=2**30), decoder="pyav") as decoder:
        ((_, result),) = decoder.map([Job(str(tmp_path / "videos" / "a.mp4"), SMALL)])
    assert isinstance(result, VideoError)
    found = json.loads(result.reason)
    assert found["CORE"] == 0
    assert found["FSIZE"] == 2**20
    assert 2**30 < found["AS"] < 2**30 + 64 * 2**30  # its libraries, and what the file may take
    assert found["hard"] == found["AS"]  # which a process may not raise again
    assert found["NOFILE"] <= 256
    assert 0 < found["CPU"] < 300
    assert 0 < found["alarm"] <= 40
    if os.geteuid() == 0:
        assert found["net"] != os.readlink("/proc/self/ns/net")
    assert found["folders"] == [str(tmp_path / "videos")]
    assert found["canary"] == ("refused" if landlock() else "canary")


def test_folders_of_videos_grow_together_but_never_into_a_home(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/home/ann")
    near = video.with_parents([Path("/data/train/a")], Path("/data/train/b"))
    assert near == [Path("/data/train")]
    assert video.with_parents([*near, Path("/srv/home/ann/x")], Path("/data/train/deep/c")) == [
        Path("/srv/home/ann/x"),
        Path("/data/train"),
    ]
    assert video.with_parents([Path("/srv/home/ann/x")], Path("/srv/home/ann/y")) == [
        Path("/srv/home/ann/x"),
        Path("/srv/home/ann/y"),
    ]
    assert video.with_parents([Path("/data")], Path("/tmp")) == [Path("/data"), Path("/tmp")]


def test_a_child_follows_its_videos_into_another_folder_and_through_links(video_file, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "link.mp4").symlink_to(video_file)
    shutil.copy(video_file, tmp_path / "two" / "copy.mp4")
    with Decoder(workers=1) as decoder:
        clips = [decoder.decode(tmp_path / name, SMALL).frames for name in ("one/link.mp4", "two/copy.mp4")]
    assert (clips[0] == clips[1]).all()


PLAYLISTS = {
    "hls, a file": "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "hls, the network": "#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:{port}/x.ts\n#EXT-X-ENDLIST\n",
    "hls, concat": "#EXTM3U\n#EXTINF:10,\nconcat:http://127.0.0.1:{port}/x|file:///etc/passwd\n#EXT-X-ENDLIST\n",
    "hls, subfile": "#EXTM3U\n#EXTINF:10,\nsubfile,,start,0,end,99,,:/etc/passwd\n#EXT-X-ENDLIST\n",
    "hls behind a line": "\n\n#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:{port}/x\n",
    "concat script": "ffconcat version 1.0\nfile '/etc/passwd'\n",
    "concat, the network": "ffconcat version 1.0\nfile 'http://127.0.0.1:{port}/x.mp4'\n",
    "dash": "<?xml version='1.0'?><MPD><Period><BaseURL>http://127.0.0.1:{port}/</BaseURL></Period></MPD>",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video {port} RTP/AVP 96\n",
    "imf": "<?xml version='1.0'?><CompositionPlaylist><Id>http://127.0.0.1:{port}/</Id></CompositionPlaylist>",
    "rtsp": "RTSPtext\nrtsp://127.0.0.1:{port}/x\n",
}


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".m3u8", ".avi", ".ts"])
def test_playlists_read_no_other_file_and_open_no_connection(tmp_path, pool, suffix):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        files = []
        for number, text in enumerate(PLAYLISTS.values()):
            files.append(tmp_path / f"{number}{suffix}")
            files[-1].write_text(text.replace("{port}", str(server.getsockname()[1])))
        results = list(pool.map(Job(str(file), SMALL) for file in files))
        assert len(results) == len(PLAYLISTS)
        for _, result in results:
            assert isinstance(result, VideoError)
            assert "root:" not in str(result)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "name", ["http://127.0.0.1:9/a.mp4", "concat:a.mp4|b.mp4", "pipe:0", "data:video/mp4;base64,AAAA"]
)
def test_a_path_is_a_file_whatever_it_looks_like(pool, name):
    ((_, result),) = pool.map([Job(name, SMALL)])
    assert isinstance(result, VideoError)
    assert "no such file" in str(result).lower() or "missing" in str(result)
