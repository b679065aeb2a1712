"""Three hundred malformed inputs: each gives one line that names the file or the setting, no traceback and no hang."""

import json
import logging
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ctvr.orchestrator.cli import main as cli
from ctvr.orchestrator.data.frames import FrameSource
from ctvr.orchestrator.errors import VideoError
from ctvr.orchestrator.interpreter import child_environment
from ctvr.orchestrator.learning.run.execute import RunPaths
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.video.pool import Decoder, Job
from ctvr.orchestrator.video.sampling import Sampling
from tests.faults.corpus import ANNOTATIONS, COUNTS, NARRATIONS, SPLIT, TABLE, TEST_CSV, Malformed, corpus, video_files

HANG_SECONDS = 60  # a busy machine has needed more than 10
SMALL = Sampling(4, 32)


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canary") / "was executed"


@pytest.fixture(scope="module")
def inputs(canary: Path) -> dict[str, list[Malformed]]:
    return corpus(canary)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, filters = list(root.handlers), list(root.filters)
    yield
    root.handlers[:], root.filters[:] = before, filters


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Turn a hanging command into a failure."""

    def hung(number: int, frame: Any) -> None:
        raise AssertionError(f"it hangs for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Return problems of a command that must be refused in one line that mentions something; empty if none."""

    def run(wrong: Malformed, mention: str, words: list[str | Path]) -> list[str]:
        capsys.readouterr()
        try:
            with no_longer_than(HANG_SECONDS):
                status = cli.main([str(word) for word in words])
        except SystemExit as end:
            status = int(end.code or 0)
        except Exception as error:
            return [f"{wrong.name}: {type(error).__name__}: {error}"]
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if line and not line.startswith(("doctor: ", "decoding: "))]
        found = []
        if status != 2 or said.out:
            found.append(f"{wrong.name}: status {status}, stdout {said.out!r}")
        if len(lines) != 1 or not lines[0].startswith("ctvr") or len(lines[0]) > 1000:
            found.append(f"{wrong.name}: not one line: {said.err!r}")
        elif mention not in lines[0]:
            found.append(f"{wrong.name}: {mention!r} is not named: {lines[0]}")
        return found

    return run


@pytest.mark.slow
def test_the_corpus_is_three_hundred_and_the_same_each_time(inputs, canary):
    assert sum(map(len, inputs.values())) == sum(COUNTS.values()) == 300
    again = corpus(canary)
    for group, made in inputs.items():
        if group != "videos":  # only the kind and place of their cuts: encoders write dates into files
            assert made == again[group]


# ------------------------------------------------------------------------------------------------ videos


def write_videos(folder: Path, inputs: list[Malformed]) -> list[str]:
    """Write the malformed video files, and a good one after every tenth; return the paths of the good ones."""
    folder.mkdir()
    good = []
    whole = video_files()
    for number, wrong in enumerate(inputs):
        if wrong.content is not None:
            (folder / f"bad{number:03d}{wrong.suffix}").write_bytes(wrong.content)
        if number % 10 == 0:
            suffix = list(whole)[number // 10 % len(whole)]
            good.append(str(folder / f"good{number:03d}{suffix}"))
            Path(good[-1]).write_bytes(whole[suffix])
    return good


def test_malformed_videos_are_named_and_good_ones_decoded(inputs, tmp_path):
    good = write_videos(tmp_path / "videos", inputs["videos"])
    bad = [str(tmp_path / "videos" / f"bad{n:03d}{wrong.suffix}") for n, wrong in enumerate(inputs["videos"])]
    with Decoder(workers=2) as pool, no_longer_than(HANG_SECONDS * len(bad)):
        results = {job.path: result for job, result in pool.map(Job(path, SMALL) for path in sorted([*bad, *good]))}
    served = [wrong.name for path, wrong in zip(bad, inputs["videos"]) if not isinstance(results[path], VideoError)]
    assert served == []
    for path in bad:
        said = str(results[path])
        assert said.startswith(f"{path}: ")
        assert "\n" not in said
        assert "hung" not in said
        assert len(said) < 700
    for path in good:
        assert not isinstance(results[path], VideoError), results[path]


def stream_of(folder: Path, videos: list[str]) -> Path:
    """Write a manifest with these videos for training and a good one for the search."""
    items = [{"video": Path(v).name, "path": Path(v).name, "category": "c", "captions": ["x"]} for v in videos]
    test = [{**items.pop(), "captions": ["y"]}]
    task = {"name": "task_01", "categories": ["c"], "train": items, "test": test}
    small = {"backbone.name": "tiny-clip", "backbone.weights": "shipped", "data.num_frames": 2}
    manifest = {"format": 1, "name": "m", "protocol": "ctvr", "videos": "videos", "tasks": [task], "settings": small}
    (folder / "m.json").write_text(json.dumps(manifest))
    return folder / "m.json"


def test_broken_videos_are_refused_or_left_out(inputs, refused, tmp_path, capsys):
    chosen = [wrong for wrong in inputs["videos"][::4] if wrong.content is not None]
    good = write_videos(tmp_path / "videos", chosen)
    bad = [str(path) for path in sorted((tmp_path / "videos").glob("bad*"))]
    manifest = stream_of(tmp_path, [*bad, *good])
    words = ["cache", "build", "--runs", tmp_path / "runs", "--stream", manifest]
    many = Malformed(f"{len(bad)} broken videos")
    with_progress = [
        problem for problem in refused(many, f"{len(bad)} videos are broken", words) if "bad000" not in problem
    ]
    assert with_progress == []
    stream = load_stream(manifest, tmp_path / "runs")
    experiment = resolve({"method": "zero_shot", "stream": str(manifest)}, stream.settings)
    source = FrameSource(RunPaths(tmp_path / "runs").open_store(), experiment.data, 64)
    kept: list[Item] = [item for split in ("train", "test") for item in stream.items(0, split) if item.path in good]
    assert len(kept) == len(good)
    store = source.store
    assert all(
        store.has("frames", source.key(item)) for item in kept
    )  # the good ones were stored although the command failed
    capsys.readouterr()
    assert cli.main(["cache", "build", "data.skip_missing=true", *map(str, words[2:])]) == 0
    assert "0 videos decoded" in capsys.readouterr().out


# ------------------------------------------------------------------------------------- files of commands


@pytest.fixture
def benchmark_files(tmp_path: Path) -> dict[str, Path]:
    """Write valid files of three importers."""
    (tmp_path / "videos").mkdir()
    actnet = {"train": {1: {"c": ["v_0"]}}, "val": {1: {"c": ["v_1"]}}}
    contents: dict[str, tuple[str, bytes]] = {
        "split": ("s.pkl", pickle.dumps(SPLIT)),
        "actnet_split": ("a.pkl", pickle.dumps(actnet)),
        "annotations": ("annotations.json", json.dumps(ANNOTATIONS).encode()),
        "captions": ("captions.csv", TEST_CSV.encode()),
        "train": ("train.json", json.dumps(NARRATIONS).encode()),
        "val": ("val.json", json.dumps({"v_1": NARRATIONS["v_0"]}).encode()),
        "table": ("table.csv", TABLE.encode()),
    }
    for name, content in contents.values():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "videos" / "v1.mp4").write_bytes(b"")  # a folder without any video of the table is refused
    return {role: tmp_path / name for role, (name, _) in contents.items()}


def import_words(files: dict[str, Path], role: str) -> list[str | Path]:
    """Return the command that reads the file of this role."""
    runs: list[str | Path] = ["--runs", files["table"].parent / "runs", "--videos", files["table"].parent / "videos"]
    if role in ("train", "val"):
        given = [f"split={files['actnet_split']}", f"train={files['train']}", f"val={files['val']}"]
        return ["streams", "import", "actnet", *given, *runs]
    if role == "table":
        return ["streams", "import", "csv", f"table={files['table']}", *runs]
    given = [f"{name}={files[name]}" for name in ("split", "annotations", "captions")]
    return ["streams", "import", "msrvtt", *given, *runs]


@pytest.mark.parametrize("role", ["split", "train", "table"])
def test_files_are_intact_before_they_are_damaged(benchmark_files, role, capsys):
    assert cli.main([str(word) for word in import_words(benchmark_files, role)]) == 0
    assert "written: " in capsys.readouterr().out


@pytest.mark.parametrize("group", ["captions", "splits"])
def test_files_of_benchmarks_are_refused_in_one_line(benchmark_files, inputs, refused, canary, group):
    problems = []
    for wrong in inputs[group]:
        place = benchmark_files[wrong.role]
        good = place.read_bytes()
        place.unlink()
        if wrong.content is not None:
            place.write_bytes(wrong.content)
        problems += refused(wrong, place.name, import_words(benchmark_files, wrong.role))
        place.write_bytes(good)
    assert not problems, "\n".join(problems)
    assert not canary.exists()
    assert not list((benchmark_files["table"].parent / "runs").rglob("*.json"))  # and none has left a manifest
    assert cli.main([str(word) for word in import_words(benchmark_files, "split")]) == 0


def test_manifests_are_refused_in_one_line(inputs, refused, tmp_path, canary):
    problems = []
    for number, wrong in enumerate(inputs["manifests"]):
        file = tmp_path / f"m{number}.json"
        assert wrong.content is not None
        file.write_bytes(wrong.content)
        problems += refused(wrong, file.name, ["streams", "check", file, "--runs", tmp_path / "runs"])
    assert not problems, "\n".join(problems)
    assert not canary.exists()


@pytest.mark.slow
def test_settings_are_refused_in_one_line_before_anything_is_trained(inputs, refused, runs, manifest):
    problems, before = [], RunPaths(runs).open_store().list("commits")
    for wrong in inputs["settings"]:
        words = ["run", "--runs", runs, "--method", "clip4clip", "--stream", manifest, wrong.text]
        problems += refused(wrong, wrong.role.partition(".")[2] or wrong.role, words)
    assert not problems, "\n".join(problems)
    assert RunPaths(runs).open_store().list("commits") == before


def test_search_words_are_refused_in_one_line(inputs, refused, runs, manifest, monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.doctor.run_checks.examine", lambda *place: [])  # seconds, for each
    problems = []
    for wrong in inputs["search"]:
        words = ["sweep", "--runs", runs, "--method", "clip4clip", "--stream", manifest, "--space", wrong.text]
        problems += refused(wrong, wrong.role.partition(".")[2] or "--space", words)
    assert not problems, "\n".join(problems)
    assert not (runs / "sweeps").exists()


def test_a_small_file_is_read_where_the_memory_is_limited(tmp_path):
    """`read` allocates as much as it may read, and a manifest may have 1 GiB."""
    (tmp_path / "a.json").write_text("{}")
    code = (
        "import resource, sys; from pathlib import Path; from ctvr.orchestrator.text_files import read_text\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "print(read_text(Path(sys.argv[1])), len(read_text(Path('/proc/self/maps'))) > 99)\n"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "a.json")]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert done.stdout == "{} True\n", done.stderr


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (MemoryError(), "ctvr: the memory does not suffice. "),
        (MemoryError("Unable to allocate 7 GiB"), "ctvr: the memory does not suffice (Unable to allocate 7 GiB). "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "(you tried"),
    ],
)
def test_too_little_memory_is_one_line(error, detail, monkeypatch, capsys):
    def fail() -> str:
        raise error

    monkeypatch.setattr("ctvr.orchestrator.catalog.methods.methods_text", fail)
    assert cli.main(["methods"]) == 1
    said = capsys.readouterr().err
    assert detail in said
    assert said.count("\n") == 1
    assert "ulimit -v" in said
