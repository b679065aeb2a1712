"""Three hundred malformed inputs, the same for the same seed: each is certainly invalid, and each may come from a user.

Videos are files for a decoder; the others are files or arguments of a command.
"""

import json
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.orchestrator.data.test_pickles import hostile
from tests.orchestrator.video.clips import write_video

SEED = 11
COUNTS = {"videos": 105, "captions": 45, "splits": 70, "manifests": 42, "settings": 28, "search": 10}


@dataclass(frozen=True)
class Malformed:
    """One input. `content` None: the file does not exist; for arguments of a command, only `text` counts."""

    name: str  # its fault
    content: bytes | None = None
    suffix: str = ""
    text: str = ""
    role: str = ""  # which file of its group it takes the place of


def corpus(canary: Path, seed: int = SEED) -> dict[str, list[Malformed]]:
    """Return group -> its inputs, COUNTS of them. Code that is executed by mistake creates the file `canary`."""
    groups: dict[str, Callable[[np.random.Generator, Path], Iterator[Malformed]]] = {
        "videos": videos,
        "captions": captions,
        "splits": splits,
        "manifests": manifests,
        "settings": settings,
        "search": search_words,
    }
    made = {
        name: list(islice(make(np.random.default_rng([seed, number]), canary), COUNTS[name]))
        for number, (name, make) in enumerate(groups.items())
    }
    assert {name: len(inputs) for name, inputs in made.items()} == COUNTS
    return made


# ------------------------------------------------------------------------------------------------ videos


def video_files() -> dict[str, bytes]:
    """Return whole video files by their suffix."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix, codec in ((".mp4", "libx264"), (".mkv", "libx264"), (".avi", "mpeg4")):
            found[suffix] = write_video(Path(folder) / f"video_file{suffix}", frames=20, codec=codec).read_bytes()
    return found


def audio(suffix: str, codec: str) -> bytes:
    """Return one second of a tone without a picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"tone{suffix}"
        with av.open(str(path), "w") as file:
            stream = file.add_stream(codec, rate=48_000)
            stream.layout = "mono"
            resampler = av.AudioResampler(
                format=stream.format, layout="mono", rate=48_000, frame_size=stream.frame_size
            )
            tone = (8000 * np.sin(np.arange(48_000) / 20)).astype(np.int16).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
            frame.rate = 48_000
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                file.mux(stream.encode(part))
            file.mux(stream.encode(None))
        return path.read_bytes()


def huge(width: int, height: int) -> bytes:
    """Return one gray frame of many pixels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "huge.mp4"
        with av.open(str(path), "w") as file:
            stream = file.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            file.mux(stream.encode(av.VideoFrame(width, height, "yuv420p")))
            file.mux(stream.encode())
        return path.read_bytes()


PLAYLISTS = {
    "HLS that reads a file": "#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "HLS that reads the network": "#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:1/x.ts\n",
    "concat": "ffconcat version 1.0\nfile /etc/passwd\n",
    "DASH": "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'><BaseURL>file:///etc/passwd</BaseURL></MPD>",
    "SDP": "v=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
    "ASX": "<asx version='3.0'><entry><ref href='file:///etc/passwd'/></entry></asx>",
    "RTSP address": "rtsp://127.0.0.1:1/stream\n",
    "subtitles": "1\n00:00:00,000 --> 00:00:01,000\nfile:///etc/passwd\n",
}
OTHERS = {
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(200),
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(200),
    "ZIP": b"PK\x03\x04" + bytes(200),
    "gzip": b"\x1f\x8b\x08" + bytes(200),
    "PDF": b"%PDF-1.7\n" + bytes(200),
    "program": b"\x7fELF\x02\x01\x01" + bytes(200),
    "error page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "JSON": b'{"error": "quota exceeded"}',
    "pickle": pickle.dumps({"frames": [1, 2]}),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
}


def videos(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield files that are not a whole video, then truncated ones endlessly."""
    whole = video_files()
    for suffix in (*whole, ".webm"):
        yield Malformed("no bytes", b"", suffix)
        yield Malformed("one byte", b"\0", suffix)
    for name, text in PLAYLISTS.items():
        for suffix in (".mp4", ".mkv"):
            yield Malformed(name, text.encode(), suffix)
    for name, content in OTHERS.items():
        yield Malformed(name, content, ".mp4")
    heads = (b"", whole[".mp4"][:36], whole[".mkv"][:48], whole[".avi"][:32], b"OggS", b"FLV\x01", b"\0\0\x01\xba")
    for head in heads:
        for size in (100, 5000):
            yield Malformed(f"noise after {head[:12]!r}", head + rng.bytes(size), ".mp4")
    for suffix, codec in ((".mp4", "aac"), (".mkv", "aac"), (".avi", "mp2"), (".ogg", "libopus")):
        yield Malformed("only sound", audio(suffix, codec), suffix)
    yield Malformed("8192 x 4096 pixels", huge(8192, 4096), ".mp4")
    yield Malformed("4096 x 16 pixels", huge(4096, 16), ".mp4")
    for length in (0, 1, 7, 2**31, 2**32 - 1):
        yield Malformed(f"a box of {length} bytes", struct.pack(">I4s", length, b"ftyp") + whole[".mp4"][8:], ".mp4")
    yield Malformed("a box of 2^64 bytes", struct.pack(">I4sQ", 1, b"ftyp", 2**64 - 1) + bytes(99), ".mp4")
    index = whole[".mp4"].index(b"moov")
    yield Malformed("no index", whole[".mp4"][: index - 4], ".mp4")
    yield Malformed("an index of zeros", whole[".mp4"][: index + 4] + bytes(len(whole[".mp4"]) - index - 4), ".mp4")
    data = whole[".mp4"].index(b"mdat")
    yield Malformed(
        "pictures of zeros", whole[".mp4"][: data + 4] + bytes(index - data - 8) + whole[".mp4"][index - 4 :], ".mp4"
    )
    yield Malformed("no such file", None, ".mp4")
    for suffix in cycle(whole):
        length = int(rng.integers(1, len(whole[suffix])))
        yield Malformed(f"cut after {length} bytes of {len(whole[suffix])}", whole[suffix][:length], suffix)


# ------------------------------------------------------------------------------------------------ captions


ANNOTATIONS = {"sentences": [{"video_id": f"video{n}", "caption": f"a thing {n}"} for n in range(3)]}
NARRATIONS = {"v_0": {"timestamps": [[0, 2.5]], "sentences": ["a person sings"]}}
TEST_CSV = "video_id,sentence\nvideo7010,a boy\nvideo7011,a cat\n"
TABLE = "video,caption,category,split,task\nv1,a dog,pets,train,1\nv2,a cat,pets,test,1\n"
NOT_TEXT = b"\xff\xfe\x00video_id\x00"


def captions(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield annotation files of three importers, then truncated ones endlessly."""

    def of(role: str, name: str, value: Any) -> Malformed:
        content = (
            value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        )
        return Malformed(name, content, ".csv" if role in ("captions", "table") else ".json", role=role)

    entry = ANNOTATIONS["sentences"][0]
    yield Malformed("no such file", None, ".json", role="annotations")
    yield of("annotations", "empty", b"")
    yield of("annotations", "not text", NOT_TEXT)
    yield of("annotations", "a list", [entry])
    yield of("annotations", "a number", 3)
    yield of("annotations", "no sentences", {"sentences": []})
    yield of("annotations", "another key", {"captions": [entry]})
    yield of("annotations", "a caption that is a number", {"sentences": [{**entry, "caption": 3}]})
    yield of("annotations", "an id that is a list", {"sentences": [{**entry, "video_id": ["video0"]}]})
    yield of("annotations", "an entry that is text", {"sentences": ["video0"]})
    yield of("annotations", "another video's captions", {"sentences": [{**entry, "video_id": "video9"}]})
    yield of("annotations", "blank captions", {"sentences": [{**e, "caption": "  "} for e in ANNOTATIONS["sentences"]]})
    yield of("annotations", "nested without end", b'{"sentences":' + b"[" * 100_000)
    yield of("annotations", "digits without end", b'{"sentences": [' + b"9" * 10_000 + b"]}")
    yield of("annotations", "NaN", b'{"sentences": NaN}')
    yield of("annotations", "a video", b"\0\0\0\x20ftypisom" + bytes(100))
    yield of("captions", "empty", "")
    yield of("captions", "only a header", "video_id,sentence\n")
    yield of("captions", "other columns", "id,text\nvideo7010,a boy\n")
    yield of("captions", "an empty cell", TEST_CSV + "video7012,\n")
    yield of("captions", "a second caption", TEST_CSV + "video7010,a girl\n")
    yield of("captions", "an open quotation mark", TEST_CSV + 'video7012,"a bus\n')
    yield of("captions", "not text", TEST_CSV.encode() + b"video7012,\xff\xfe\n")
    yield of("captions", "zeros", bytes(300))
    yield of("train", "two sentences", {"v_0": {"timestamps": [[0, 1], [1, 2]], "sentences": ["a", "b"]}})
    yield of("train", "more times than sentences", {"v_0": {"timestamps": [[0, 1], [1, 2]], "sentences": ["a"]}})
    yield of("train", "a stretch that ends first", {**NARRATIONS, "v_0": {"timestamps": [[5, 1]], "sentences": ["a"]}})
    yield of("train", "a time that is text", {**NARRATIONS, "v_0": {"timestamps": [["0", 1]], "sentences": ["a"]}})
    yield of("train", "a time without number", b'{"v_0": {"timestamps": [[0, NaN]], "sentences": ["a"]}}')
    yield of("train", "no videos", {})
    yield of("train", "a list", [NARRATIONS])
    yield of("table", "empty", "")
    yield of("table", "only a header", "video,caption,category,split,task\n")
    yield of("table", "an unknown split", TABLE + "v3,a cow,farm,holdout,1\n")
    yield of("table", "one video in two splits", TABLE + "v1,a dog,pets,test,1\n")
    yield of("table", "a task without test videos", TABLE + "v3,a cow,farm,train,2\n")
    yield of("table", "a path that leads out", TABLE + "../../etc/passwd,a cow,pets,test,1\n")
    yield of("table", "a time that is none", TABLE.replace("task\n", "task,start,end\n").replace(",1\n", ",1,now,2\n"))
    whole = json.dumps(ANNOTATIONS).encode()
    while True:
        length = int(rng.integers(1, len(whole)))
        yield of("annotations", f"cut after {length} bytes", whole[:length])


# ------------------------------------------------------------------------------------------------ splits


SPLIT = {"train": {1: {"pets": ["video0", "video1", "video2"]}}, "val": {1: {"pets": ["video7010", "video7011"]}}}


def splits(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield pickles that would run code or do not hold a split, then damaged ones endlessly."""
    wrong: dict[str, Any] = {
        "a list": [SPLIT],
        "no val": {"train": SPLIT["train"]},
        "tasks from 0": {name: {0: tasks[1]} for name, tasks in SPLIT.items()},
        "a task is missing": {name: {1: tasks[1], 3: tasks[1]} for name, tasks in SPLIT.items()},
        "no tasks": {"train": {}, "val": {}},
        "an id that is a number": {**SPLIT, "train": {1: {"pets": [7]}}},
        "ids that are text": {**SPLIT, "train": {1: {"pets": "video0"}}},
        "other categories": {**SPLIT, "train": {1: {"cars": ["video0"]}}},
        "an id twice": {**SPLIT, "train": {1: {"pets": ["video0", "video0"]}}},
        "a task without videos": {**SPLIT, "val": {1: {"pets": []}}},
    }
    for name, value in wrong.items():
        yield Malformed(name, pickle.dumps(value), ".pkl", role="split")
    for name, content in hostile(f"touch {canary}").items():
        yield Malformed(name, content, ".pkl", role="split")
    whole = pickle.dumps(SPLIT)
    while True:
        length = int(rng.integers(0, len(whole)))
        yield Malformed(f"cut after {length} bytes", whole[:length], ".pkl", role="split")


# ------------------------------------------------------------------------------------------------ manifests


def _item(**more: Any) -> dict[str, Any]:
    return {"video": "v1", "path": "v1.mp4", "category": "pets", "captions": ["a dog"], **more}


def _manifest(**more: Any) -> dict[str, Any]:
    task = {"name": "task_01", "categories": ["pets"], "train": [_item()], "test": [_item(video="v2", path="v2.mp4")]}
    return {"format": 1, "name": "m", "protocol": "ctvr", "tasks": [task], **more}


def _with_task(**more: Any) -> dict[str, Any]:
    whole = _manifest()
    whole["tasks"][0].update(more)
    return whole


def manifests(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield streams that violate the format of streams.py, then truncated ones endlessly."""
    whole = json.dumps(_manifest())
    texts: dict[str, str | bytes] = {
        "empty": "",
        "a list": "[]",
        "null": "null",
        "not text": NOT_TEXT,
        "a key twice": whole.replace('"name": "m"', '"name": "m", "name": "n"', 1),
        "nested without end": "[" * 200_000,
        "digits without end": whole.replace('"format": 1', '"format": ' + "1" * 5000),
        "half a surrogate pair": whole.replace("a dog", "\\ud800"),
        "single quotation marks": whole.replace('"', "'"),
        "YAML": "format: 1\nname: m\ntasks: []\n",
        "a YAML tag": "!!python/object/apply:os.system ['touch " + str(canary) + "']\n",
    }
    for name, text in texts.items():
        yield Malformed(name, text if isinstance(text, bytes) else text.encode(), ".json")
    values: dict[str, Any] = {
        "another format": _manifest(format=2),
        "an unknown protocol": _manifest(protocol="class-incremental"),
        "an unknown field": _manifest(task=[]),
        "no tasks": _manifest(tasks=[]),
        "tasks that are an object": _manifest(tasks={"1": []}),
        "a name of two lines": _manifest(name="a\nb"),
        "a name that is a number": _manifest(name=3),
        "settings that are a list": _manifest(settings=["data.num_frames"]),
        "a setting that is an object": _manifest(settings={"data": {"num_frames": 3}}),
        "a task without categories": _with_task(categories=[]),
        "a category twice": _with_task(categories=["pets", "pets"]),
        "a task without train": _with_task(train=[]),
        "items that are text": _with_task(train=["v1.mp4"]),
        "a task without name": _with_task(name=" "),
        "a path that leads out": _with_task(train=[_item(path="../../etc/passwd")]),
        "an absolute path": _with_task(train=[_item(path="/etc/passwd")]),
        "a path with a zero": _with_task(train=[_item(path="a\0b.mp4")]),
        "no captions": _with_task(train=[_item(captions=[])]),
        "a blank caption": _with_task(train=[_item(captions=[" "])]),
        "captions that are text": _with_task(train=[_item(captions="a dog")]),
        "a category of no task": _with_task(train=[_item(category="cars")]),
        "a segment that ends first": _with_task(train=[_item(segment=[3, 1])]),
        "a segment of text": _with_task(train=[_item(segment=["0", "1"])]),
        "a segment without number": _with_task(train=[_item(segment=[0, float("nan")])]),
        "a segment of three": _with_task(train=[_item(segment=[0, 1, 2])]),
        "a twin that is nobody": _with_task(train=[_item(twin="v9")]),
        "a video in two splits": _with_task(test=[_item()]),
        "a file in two splits": _with_task(test=[_item(video="v2")]),
        "two tasks of one name": _manifest(tasks=_manifest()["tasks"] * 2),
    }
    for name, value in values.items():
        yield Malformed(name, json.dumps(value).encode(), ".json")
    while True:
        length = int(rng.integers(1, len(whole)))
        yield Malformed(f"cut after {length} bytes", whole.encode()[:length], ".json")


# ------------------------------------------------------------------------------------- settings and search


def settings(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield the words after `ctvr run --method clip4clip`; the message must name `role`."""
    words = {
        "optim.epochs": ("two", "-1", "1.5", "", "none", "1e9999", "0x10", "[1"),
        "optim.lr_scale": ("abc", "-1", "nan", "inf"),
        "data.batch_size": ("0", "-8"),
        "data.num_frames": ("0", "many"),
        "data.image_size": ("63",),
        "data.decoder": ("vlc",),
        "data.skip_missing": ("perhaps",),
        "seed": ("abc", "1.5", "9" * 30),
        "precision": ("fp8",),
        "evaluation.split": ("dev",),
        "method.lr": ("-1e-6", "nan"),
        "method.nothing": ("1",),
        "optin.epochs": ("1",),
        "backbone.weights": ("/no/such/file.pt",),
    }
    for name, values in words.items():
        for value in values:
            yield Malformed(f"{name}={value[:40]}", text=f"{name}={value}", role=name)
    yield Malformed("no value", text="optim.epochs", role="optim.epochs")


def search_words(rng: np.random.Generator, canary: Path) -> Iterator[Malformed]:
    """Yield the words after `ctvr sweep --method clip4clip --space`; the message must name `role`."""
    words = ("method.lr", "method.lr=", "=1,2", "method.lr=,,", "method.lrr=1,2", "method.lr=a,b", "method.lr=-1,2")
    words += ("optim.epochs=1.5,2", "method.lr=nan,1e-6", 'method.lr={"a": 1}')
    for word in words:
        yield Malformed(word, text=word, role=word.partition("=")[0])
