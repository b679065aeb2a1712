"""Every obstacle is found before the sweep, and every finding names a remedy."""

import http.server
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ctvr.orchestrator.doctor import machine, network
from ctvr.orchestrator.doctor import records as doctor_records
from ctvr.orchestrator.doctor import run_checks as doctor
from ctvr.orchestrator.doctor.findings import Finding
from ctvr.orchestrator.doctor.run_checks import blocking, examine, to_text
from ctvr.orchestrator.redaction import secret_values
from ctvr.orchestrator.tracking import tracker as tracking
from ctvr.orchestrator.tracking.outbox import REFUSED, Outbox
from ctvr.orchestrator.tracking.server import default_uri
from ctvr.orchestrator.tracking.tracker import Tracker

PLANTED = "kT7" + "x9Qw2" * 6  # made up


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide the clusters, servers, tokens and secrets of the machine that runs the tests."""
    for name in list(os.environ):
        if (
            name.startswith(("RAY_", "MLFLOW_", "AWS_", "CTVR_"))
            or name.lower().endswith("_proxy")
            or name in secret_values(os.environ)
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # `tmp_path` is too long for sockets
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def look(runs: Path, store: str = "", stream: str | None = None, uri: str = "") -> list[Finding]:
    return examine(runs, store, stream, None, uri or default_uri(runs))


def about(findings: list[Finding], subject: str, level: str | None = None) -> list[Finding]:
    return [f for f in findings if f.subject == subject and level in (None, f.level)]


def write_manifest(folder: Path, videos: int, present: int) -> Path:
    """Write a manifest of one task with `videos` videos in each split, of which the first `present` exist."""
    items = {}
    for split in ("train", "val", "test"):
        names = [f"{split}{n}" for n in range(videos)]
        items[split] = [{"video": v, "path": f"{v}.mp4", "category": "c", "captions": ["a video"]} for v in names]
        for name in names[:present]:
            (folder / f"{name}.mp4").write_bytes(b"frames")
    tasks = [{"name": "task_01", "categories": ["c"], **items}]
    settings = {"data.num_frames": 4, "backbone.name": "tiny-clip"}
    path = folder / "some.json"
    path.write_text(json.dumps({"format": 1, "name": "some", "protocol": "ctvr", "tasks": tasks, "settings": settings}))
    return path


# --- as a whole


def test_an_absent_runs_folder_is_no_obstacle_and_is_not_made(tmp_path):
    findings = look(tmp_path / "new", stream="shapes-5")
    assert blocking(findings) == []
    assert not (tmp_path / "new").exists()
    assert {
        "versions",
        "FFmpeg",
        "sandboxing",
        "machine",
        "GPUs",
        "disk",
        "store",
        "Ray",
        "MLflow",
        "outbox",
    } <= {f.subject for f in findings}


def test_the_doctor_is_quick_because_it_imports_neither_torch_nor_ray(runs):
    code = "import sys; from pathlib import Path; from ctvr.orchestrator.doctor import run_checks as doctor; "
    code += f"doctor.examine(Path({str(runs)!r}), '', 'shapes-5', None, 'sqlite:///{runs}/mlflow.db'); "
    code += "print([name for name in ('torch', 'ray', 'mlflow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_finding_that_is_not_ok_has_a_remedy(runs):
    findings = look(runs, store="ftp://nowhere", stream="shapes-6", uri="http://127.0.0.1:9")
    assert {f.subject for f in blocking(findings)} == {"stream", "store", "MLflow"}
    assert all(f.remedy for f in findings if f.level != "ok")
    assert not any(f.remedy for f in findings if f.level == "ok")


def test_a_failing_check_is_a_finding_and_the_others_continue(runs, monkeypatch):
    def broken() -> Iterator[Finding]:
        raise ZeroDivisionError("one organ")
        yield

    monkeypatch.setattr(machine, "gpus", broken)
    findings = look(runs)
    assert "one organ" in about(findings, "GPUs", "warning")[0].text
    assert about(findings, "outbox")


def test_the_report_puts_the_remedy_below_and_counts_at_the_end():
    text = to_text([Finding("ok", "clock", "agrees"), Finding("error", "store", "away", "start it")])
    assert text.splitlines() == ["ok      clock: agrees", "error   store: away", "        -> start it", "1 error"]
    assert to_text([Finding("ok", "clock", "agrees")]).endswith("ready for a sweep")


# --- this machine


def test_a_machine_of_little_memory_is_shown_how_many_trials_it_holds(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: machine.RAY + 5 * 10**9)
    monkeypatch.setattr(machine, "count_processors", lambda: 16)
    (found,) = about(look(runs, stream=str(write_manifest(tmp_path, 2, 2))), "memory")
    assert found.level == "note"
    assert found.text.startswith("enough for 2 concurrent trials of one worker, 1.9 GB each; memory limits")
    monkeypatch.setattr(machine, "count_processors", lambda: 2)
    assert [each.level for each in machine.machine(10**9) if each.subject == "memory"] == ["ok"]
    assert about(look(runs), "memory") == []


def test_versions_below_the_minimum_and_absent_packages_are_errors(monkeypatch):
    core, others = ["numpy>=999", "no-such-package>=1", "tqdm>=1"], ["decord>=0.6", "none-either>=1", "ray>=999"]
    monkeypatch.setattr(machine, "requirements", lambda: (">=3.99", core, others))
    errors = {f.subject: f for f in machine.versions() if f.level == "error"}
    assert set(errors) == {"Python", "numpy", "ray", "packages"}
    assert errors["numpy"].remedy == "pip install -U 'numpy>=999'"
    assert "no-such-package, none-either" in errors["packages"].text
    assert errors["packages"].remedy == 'pip install "ctvr[all]"'


def test_this_installation_fulfils_its_own_requirements():
    assert [f for f in machine.versions() if f.level == "error"] == []
    _, core, others = machine.requirements()
    assert any(text.startswith("torch") for text in core)
    assert any(text.startswith("ray") for text in others)


def test_an_ffmpeg_with_known_holes_is_named(monkeypatch):
    import av

    for version in ("7.1.1", "n6.0", "N-123-gabc"):
        monkeypatch.setattr(av, "ffmpeg_version_info", version)
        assert next(f for f in machine.decoders() if f.subject == "FFmpeg").level == "warning"
    monkeypatch.setattr(av, "ffmpeg_version_info", "8.1.2")
    assert next(f for f in machine.decoders() if f.subject == "FFmpeg").level == "ok"


def test_a_home_that_is_absent_or_read_only_is_named(monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    assert not list(machine.home())
    monkeypatch.setattr(machine.os, "access", lambda folder, how: False)
    assert "cannot be written" in next(machine.home()).text
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    assert "does not exist" in next(machine.home()).text


def test_gpus_come_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA A100, 81920, 40000, 570.86.15'\necho 'NVIDIA A100, 81920, 10, 570.86.15'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "_torch_cuda", lambda: "")
    found = list(machine.gpus())
    assert found[0].text.count("NVIDIA A100") == 2
    assert ["memory of GPU 0 " in found[1].text, "without CUDA" in found[2].text] == [True, True]
    for built, is_too_old in (("13.2", True), ("12.6", False), (None, False)):
        monkeypatch.setattr(machine, "_torch_cuda", lambda built=built: built)
        said = [each.text for each in machine.gpus() if "needs a driver of at least 580" in each.text]
        assert (
            said
            == ["torch is built for CUDA 13.2, which needs a driver of at least 580, and the driver is 570.86.15"]
            * is_too_old
        )
    program.write_text("#!/bin/sh\necho 'driver mismatch'; exit 9\n")
    assert "driver mismatch" in next(machine.gpus()).text


# --- folders and data


def test_missing_and_empty_videos_are_counted_and_named(runs):
    path = write_manifest(runs, videos=8, present=1)
    (runs / "train0.mp4").write_bytes(b"")
    errors = about(look(runs, stream=str(path)), "videos", "error")
    assert "21 of 24 are missing: train1, train2" in errors[0].text
    assert errors[0].text.endswith("and 16 more")
    assert "skip_missing" in errors[0].remedy
    assert "1 file is empty: train0" in errors[1].text


def test_a_stream_with_all_videos_is_reported_as_complete(runs):
    path = write_manifest(runs, videos=2, present=2)
    assert about(look(runs, stream=str(path)), "videos")[0].text == "some: all 6 are in place"


def test_the_disk_must_hold_the_frames_of_the_stream(runs, monkeypatch):
    path = write_manifest(runs, videos=2, present=2)
    stream = doctor.load_stream(path, runs)
    assert doctor.frame_bytes(stream) == 6 * 4 * 64 * 64 * 3
    assert about(look(runs, stream=str(path)), "disk")[0].text.endswith("take up to 0.00029 GB")
    for name, size in (("ViT-L-14-336", 336), ("RN50x4", 288), ("nobody's", 224)):
        settings = {"backbone.name": name, "data.num_frames": 4}
        assert doctor.frame_bytes(replace(stream, settings=settings)) == 6 * 4 * size**2 * 3
    monkeypatch.setattr(doctor, "frame_bytes", lambda stream: 10**18)
    assert about(look(runs, stream=str(path)), "disk", "warning")
    monkeypatch.setattr(doctor, "NO_DISK", 10**18)
    assert about(look(runs), "disk", "error")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    found = look(tmp_path / "file" / "runs")
    assert "cannot be written" in about(found, "disk", "error")[0].text


def test_a_store_that_does_not_answer_is_given_up(runs, monkeypatch):
    import threading

    monkeypatch.setattr(doctor, "STORE_SECONDS", 0.05)
    monkeypatch.setattr(doctor.Store, "open", lambda uri: threading.Event().wait(5))
    assert "does not respond" in about(look(runs, store="s3://bucket/x"), "store", "error")[0].text


# --- Ray


def test_the_file_of_a_dead_cluster_is_found(runs):
    assert "starts one" in about(look(runs), "Ray", "ok")[0].text
    file = network.cluster_file()
    file.parent.mkdir(parents=True)
    file.write_text("127.0.0.1:9")
    stale = about(look(runs), "Ray")
    assert [f.level for f in stale] == ["warning", "ok"]
    assert str(file) in stale[0].remedy


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_ray_address_that_leads_nowhere_is_an_error(runs, monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert "RAY_ADDRESS" in about(look(runs), "Ray", "error")[0].text


def test_too_long_temporary_path_is_named(runs, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR")
    assert not about(look(runs), "Ray", "warning")
    monkeypatch.setenv("TMPDIR", "/tmp/" + "long/" * 17)
    (found,) = about(look(runs), "Ray", "warning")
    assert "89 characters" in found.text
    assert found.remedy.endswith("export RAY_TMPDIR=/tmp")


def test_a_cluster_that_was_started_under_tmpdir_is_seen(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{server.getsockname()[1]}\n")
        assert network.cluster_address()
        assert "no token" in next(network.ray_state()).text  # a cluster that would be joined


def test_a_cluster_of_another_user_is_named(monkeypatch):
    file = network.cluster_file()
    file.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        file.write_text(f"127.0.0.1:{server.getsockname()[1]}")
        assert "belongs to" not in next(network.ray_state()).text
        mine = os.getuid()
        monkeypatch.setattr(network.os, "getuid", lambda: mine + 1)
        found = next(network.ray_state())
    assert found.text.startswith("a sweep does not join the cluster 127.0.0.1:")
    assert "--address local" in found.remedy


def test_the_doctor_requires_an_existing_private_token(runs, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        assert "no token" in about(look(runs), "Ray", "warning")[0].text
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        token = tmp_path / "home" / ".ray" / "auth_token"
        assert str(token) in about(look(runs), "Ray", "error")[0].text
        token.parent.mkdir(parents=True)
        token.write_text("planted")
        token.chmod(0o644)
        assert about(look(runs), "Ray", "warning")[0].remedy == f"chmod 600 {token}"
        token.chmod(0o600)
        found = look(runs)
    assert [f.level for f in about(found, "Ray")] == ["ok"]
    assert "other nodes" in about(found, "MLflow", "warning")[0].text


def test_a_note_of_the_doctor_does_not_block_a_sweep(runs):
    notes = [f for f in look(runs) if f.level == "note"]
    if notes:  # decord is installed
        assert notes[0].subject == "decord"
        assert notes[0].remedy
    text = to_text([Finding("note", "decord", "is old", "do this")])
    assert text.splitlines() == ["note    decord: is old", "        -> do this", "ready for a sweep"]


@pytest.mark.parametrize(("status", "level"), [(200, "warning"), (401, "ok")])
def test_a_remote_server_without_a_password_is_reported(status, level):
    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        uri = f"http://127.1:{server.server_port}"  # loopback by another name: to us an address like any other
        assert doctor_records.open_server(uri, urlsplit(uri)).level == level
        thread.join()


# --- MLflow, outbox, sweeps


def test_a_damaged_database_is_found(runs):
    (runs / "mlflow.db").write_bytes(b"no database at all" * 100)
    assert "not a database" in about(look(runs), "MLflow", "error")[0].text


def test_records_that_wait_or_were_refused_are_counted(runs):
    outbox = Outbox(runs / "outbox")
    for run_id in ("a", "a", "b", "c" + REFUSED):
        outbox.add(run_id, {"op": "metrics", "values": [], "time": 0})
    waiting, refused = about(look(runs), "outbox")
    assert waiting.text == "3 records wait for MLflow"
    assert waiting.remedy == f"`ctvr runs sync --runs {runs}`"
    assert refused.text == "MLflow refused records of c"


def test_unfinished_sweeps_have_their_resume_command(runs):
    uri = default_uri(runs)
    tracking.create_store(uri, runs, "shapes-5")
    tracker = Tracker(uri, runs)
    for name, status in (("done", "FINISHED"), ("stopped", "KILLED"), ("open", None)):
        (runs / "sweeps" / name).mkdir(parents=True)
        run_id = tracker.open_sweep(name, "shapes-5", {"trials": 2})
        if status:
            tracker.close(run_id, status)
    reruns: dict[str, dict[str, object]] = {
        "done-final-1": {"rerun_of": "done", "seeds": 3, "top": 1, "baselines": "zero_shot,lwf:shapes"},
        "done-final-2": {"rerun_of": "done", "seeds": 3, "top": 2},
        "table-final-1": {"rerun_of": "table", "seeds": 3, "rows": 11},
    }
    for name, settings in reruns.items():
        (runs / "sweeps" / name).mkdir()
        tracker.open_sweep(name, "shapes-5", settings)
    found = {f.text.split()[0]: f.remedy for f in about(look(runs), "sweeps", "warning")}
    assert set(found) == {"stopped", "open", *reruns}
    assert f"`ctvr sweep --resume stopped --runs {runs}`" in found["stopped"]
    whole = f"`ctvr rerun --sweep done --top 1 --seeds 3 --baselines zero_shot,lwf:shapes --runs {runs}`"
    assert (
        found["done-final-1"]
        == f"Resume with `ctvr sweep --resume done --runs {runs}` if that sweep started it, else {whole}."
    )
    assert f"`ctvr rerun --sweep done --top 2 --seeds 3 --runs {runs}`" in found["done-final-2"]
    assert found["table-final-1"] == f"Resume with `ctvr sweep --resume table --runs {runs}`."


@pytest.mark.parametrize("name", ["mlflow.db", "outbox", "told", "sweeps", "tables", "artifacts"])
def test_a_fifo_in_the_runs_folder_is_an_error(runs, name):
    os.mkfifo(runs / name)
    assert any(str(runs / name) in each.text for each in look(runs) if each.level == "error")
