"""A finished run is recognized by its command, and only by the same command."""

import os
import shutil
from pathlib import Path

import pytest

from ctvr.orchestrator import memo
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.finished import finished_run, question_of
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.streams.load import load_stream
from tests.entry_points import install
from tests.small_stream import write_stream

SETTINGS = {"method": "zero_shot", "backbone.name": "tiny-clip", "backbone.weights": "shipped", "data.num_frames": "2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a folder with a finished run, the remembered answers of its process, and its printed text."""
    root = tmp_path_factory.mktemp("finished")
    manifest = write_stream(root / "small", num_tasks=2)
    for file in [manifest, *manifest.parent.rglob("*.mp4")]:
        os.utime(file, (1e9, 1e9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memo, "_is_enabled", True)
        patch.setattr("ctvr.orchestrator.jobs.finished.is_settled", lambda identity: True)
        patch.setenv("CTVR_CACHE", str(root / "cache"))
        text = run({**SETTINGS, "stream": str(manifest)}, (), ExecutionConfig(runs=root / "runs"))
    return root, text


@pytest.fixture
def here(made, monkeypatch, tmp_path) -> Path:
    """Copy the runs; the videos stay where they were."""
    root, _ = made
    monkeypatch.setattr(memo, "_is_enabled", True)
    monkeypatch.setattr("ctvr.orchestrator.jobs.finished.is_settled", lambda identity: True)
    monkeypatch.setenv("CTVR_CACHE", str(root / "cache"))
    shutil.copytree(root / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def ask(made, runs: Path, presets: tuple[str, ...] = (), **settings: str) -> str | None:
    given = {**SETTINGS, "stream": str(made[0] / "small" / "small.json"), **settings}
    return finished_run(given, presets, ExecutionConfig(runs=runs))


def test_the_text_is_that_of_the_run(made, here):
    found = ask(made, here)
    assert found is not None
    assert found.replace(str(here), str(made[0] / "runs")) == made[1]  # the next commands name the runs folder
    assert "text to video" in made[1]


def test_another_setting_preset_stream_or_process_is_another_command(made, here, monkeypatch):
    assert ask(made, here, seed="1") is None
    assert ask(made, here, **{"data.num_frames": "3"}) is None
    assert ask(made, here, ("untrained",)) is None
    assert ask(made, here, stream="shapes-5") is None
    assert ask(made, here, method="no_such_method") is None
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert ask(made, here) is None


def test_without_its_commits_or_its_record_it_is_not_finished(made, here, tmp_path):
    config = ExecutionConfig(runs=here)
    (record,) = config.existing_tracker().find_runs(tags={"ctvr.complete": "true"})
    config.tracker().set_tags(record.run_id, {"ctvr.complete": "false"})
    assert ask(made, here) is None
    shutil.rmtree(here / "store")
    assert ask(made, here) is None
    assert ask(made, tmp_path / "empty") is None
    assert not (tmp_path / "empty" / "mlflow.db").exists()


def test_a_class_of_the_user_is_always_resolved(made, here):
    for name in ("method", "method.base"):
        assert ask(made, here, **{name: "mine:Method"}) is None


def test_code_of_an_installed_package_is_always_resolved(made, here, monkeypatch, tmp_path):
    assert ask(made, here, **{"optim.epochs": "1"}) is None
    groups = {f"ctvr.{kind}": {f"my-{kind}": "mine:Mine"} for kind in ("metrics", "optimizers", "backbones")}
    install(tmp_path / "site", "mine", groups, mine="")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    stream = load_stream(str(made[0] / "small" / "small.json"), made[0])
    assert question_of(SETTINGS, (), stream) is not None
    for name, value in (
        ("evaluation.metrics", "my-metrics"),
        ("evaluation.metrics", "['other', 'my-metrics']"),
        ("optim.name", "my-optimizers"),
        ("backbone.name", "my-backbones"),
        ("upgrade.backbone", "my-backbones"),
    ):
        assert question_of({**SETTINGS, name: value}, (), stream) is None


def test_files_next_to_weights_count_and_own_architectures_are_always_resolved(made, here, tmp_path):
    stream = load_stream(str(made[0] / "small" / "small.json"), made[0])
    weights, about = tmp_path / "own.safetensors", tmp_path / "open_clip_config.json"
    weights.touch()
    settings = {**SETTINGS, "backbone.weights": str(weights)}
    alone = question_of(settings, (), stream)
    about.write_text("{}")
    both = question_of(settings, (), stream)
    about.write_text("{ }")
    assert len({str(each) for each in (alone, both, question_of(settings, (), stream))}) == 3
    assert question_of({**SETTINGS, "backbone.name": str(about)}, (), stream) is None


def test_at_last_a_changed_video_is_another_command(made, here):
    (video, *_) = sorted((made[0] / "small").rglob("*test_0.mp4"))
    before = os.stat(video)
    os.utime(video, (2e9, 2e9))
    assert ask(made, here) is None
    os.utime(video, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ask(made, here) is None  # its status has changed since: the ordinary way reads it and decides


def test_files_that_were_just_written_count_only_as_verified_videos(tmp_path):
    manifest = write_stream(tmp_path / "small", num_tasks=2)
    stream, weights = load_stream(str(manifest), tmp_path), tmp_path / "own.safetensors"
    for file in (weights, *manifest.parent.rglob("*.mp4")):
        file.touch()
    assert question_of(SETTINGS, (), stream) is None
    assert question_of(SETTINGS, (), stream, is_verified=True) is not None
    settings = {**SETTINGS, "backbone.weights": str(weights)}
    assert question_of(settings, (), stream, is_verified=True) is None
    os.utime(manifest, (1e9, 1e9))
    (video, *_) = sorted(manifest.parent.rglob("*test_0.mp4"))
    asked = question_of(SETTINGS, (), stream, is_verified=True)
    video.write_bytes(video.read_bytes())
    assert question_of(SETTINGS, (), stream, is_verified=True) != asked
