"""Number of trials that fit a cluster, of any shape; a plan that can never run is refused in one line."""

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.on_ray import capacity as capacity_module
from ctvr.orchestrator.on_ray import connection
from ctvr.orchestrator.on_ray.capacity import (
    DRIVER_CPU,
    cap_to_max_nodes,
    capacity,
    choose_gpus,
    count_fitting_trials,
    process_resources,
)
from ctvr.orchestrator.on_ray.connection import check_local
from ctvr.orchestrator.on_ray.memory import PROCESS, model_size, record_free_memory, trials_in_memory, worker_bytes
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.sweeps.session import describe_concurrency
from tests.http_server import Server
from tests.own_towers import write_json
from tests.refusing import refuses

REPOSITORY = Path(__file__).resolve().parents[3]
GB = 2**30


def plan(workers: int = 1, cpus: float = 0.9, gpus: float = 0.0) -> TrialPlan:
    return TrialPlan("s", "/r", "", "uri", None, "/r", workers=workers, cpus_per_worker=cpus, gpus_per_worker=gpus)


def node(cpus: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus}


@pytest.mark.parametrize(
    ("made", "nodes", "fits"),
    [
        (plan(), [node(2)], 2),
        (plan(cpus=1.0), [node(2)], 2),  # a trial of one worker has no driver
        (plan(workers=2, cpus=0.5), [node(2)], 1),  # two drivers would take what the last worker needs
        (plan(workers=2), [node(2)], 1),
        (plan(workers=2), [node(4)], 2),
        (plan(cpus=2.5), [node(4), node(4)], 2),  # eight CPUs, but one place on each node
        (plan(workers=2), [node(1), node(1), node(1), node(1)], 1),  # both drivers may land on one node
        (plan(gpus=0.5), [node(8, 1)], 2),
        (plan(gpus=0.3), [node(8, 1)], 3),
        (plan(gpus=0.6), [node(8, 4)], 4),  # a share never spans two GPUs
        (plan(workers=2, gpus=1), [node(96, 8)], 4),
        (plan(workers=2, gpus=0.25), [node(96, 1)], 2),
        (plan(gpus=2), [node(96, 3), node(96, 3)], 2),  # and four GPUs are not on one node
    ],
)
def test_trials_that_fit(made, nodes, fits):
    assert count_fitting_trials(made, nodes) == fits


def test_trials_that_want_one_model_of_gpu_fit_only_where_it_is():
    nodes = [{**node(96, 8), "accelerator_type:A100": 1.0}, {**node(96, 8), "accelerator_type:H100": 1.0}, node(16)]
    assert count_fitting_trials(plan(gpus=1), nodes) == 16
    a100 = replace(plan(gpus=1), accelerator_type="A100")
    assert count_fitting_trials(a100, nodes) == 8
    assert process_resources(a100) == {"CPU": 0.9, "GPU": 1, "accelerator_type:A100": 0.001}
    assert process_resources(replace(plan(), accelerator_type="A100")) == {"CPU": 0.9}
    assert cap_to_max_nodes(a100, 32, nodes, 5) == (24, 24)
    with refuses("--accelerator-type", "B200", "A100", "H100"):
        count_fitting_trials(replace(a100, accelerator_type="B200"), nodes)


@pytest.mark.parametrize(
    ("made", "nodes", "values"),
    [
        (plan(workers=4), [node(2)], "3.7 CPUs 2 --workers --cpus-per-worker"),
        (plan(gpus=1), [node(8)], "1 GPUs 0 --gpus-per-trial"),
        (plan(workers=3, gpus=1), [node(8, 2)], "3 GPUs 2"),
        (plan(cpus=3), [node(2), node(2)], "1 3 CPUs 0"),
        (plan(gpus=2), [node(8, 1), node(8, 1)], "1 0.9 CPUs 2 GPUs"),
        (plan(cpus=2.05), [node(2), node(0)], "2.05 CPUs"),
        (plan(workers=2, cpus=0.95), [node(1.9), node(0)], "2 CPUs 0.95 0.1"),
    ],
)
def test_a_plan_that_can_never_run_is_refused_in_one_line(made, nodes, values):
    with refuses(*values.split()):
        count_fitting_trials(made, nodes)


@pytest.mark.parametrize(
    ("worker", "workers", "nodes", "fits"),
    [
        (2 * GB, 1, [{"memory": 7.9 * GB}], 3),
        (2 * GB, 2, [{"memory": 3 * GB}, {"memory": 5 * GB}], 1),  # room for three workers, two per trial
        (9 * GB, 2, [{"memory": 3 * GB}], 1),  # a rough estimate refuses nothing
        (0, 1, [{"memory": 3 * GB}], None),
        (2 * GB, 1, [{"memory": 3 * GB}, {}], None),
    ],
)
def test_trials_that_memory_holds(worker, workers, nodes, fits):
    assert trials_in_memory(worker, workers, nodes) == fits


def test_a_cluster_that_lost_its_raylet_is_not_too_small(monkeypatch):
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity.ray.nodes", lambda: [{"Alive": False, "Resources": {}}])
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity.ray.cluster_resources", dict)
    with pytest.raises(ConnectionError, match="raylet has died"):
        capacity(plan())


def test_memory_bounds_trials_unless_their_number_was_said(monkeypatch):
    there = [{"Alive": True, "Resources": {"CPU": 8.0, "memory": 9 * GB}}]
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity.ray.nodes", lambda: there)
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity.ray.cluster_resources", lambda: there[0]["Resources"])
    large = replace(plan(), memory_per_worker=2 * GB)
    said = describe_concurrency(capacity(large), 64)
    assert said.startswith("4 at once, limited by memory at 2.1 GB for a worker; the processors can run 8")
    assert describe_concurrency(capacity(large, 6), 64) == "6 at once"
    assert describe_concurrency(capacity(plan()), 64) == "8 at once"
    assert describe_concurrency(capacity(plan()), 4) == "4 at once; the cluster can run 8"
    record_free_memory(5 * GB)  # as if this process had started Ray while other programs use the rest
    try:
        assert capacity(large).concurrent == 2
    finally:
        record_free_memory(None)


def test_a_larger_backbone_a_larger_batch_and_more_frames_take_more_memory():
    clip = model_size("ViT-B-32")
    assert clip is not None
    assert abs(clip.parameters / 151.3e6 - 1) < 0.01  # of open_clip's model, its biases and norms included
    assert model_size("RN50") is None
    assert model_size("no-such-backbone") is None
    small = worker_bytes("tiny-clip", 4, 4)
    assert (
        worker_bytes("RN50", 12, 8)
        == PROCESS
        < small
        < worker_bytes("tiny-clip", 8, 4)
        < worker_bytes("ViT-B-32", 1, 1)
    )
    one, two, four = (worker_bytes("ViT-B-32", 12, pairs) for pairs in (1, 2, 4))
    assert four - two == 2 * (two - one)
    assert worker_bytes("ViT-B-32", 12, 8, on_gpu=True) == PROCESS + 8 * clip.parameters  # no activations


@pytest.mark.parametrize(
    ("name", "parameters"),  # of open_clip's model, biases and norms included
    [
        ("ViT-bigG-14", 2539567105),
        ("ViT-B-16-SigLIP2", 375187970),
        ("ViT-SO400M-14-SigLIP", 877360306),
        ("PE-Core-B-16", 447660545),
        ("EVA01-g-14", 1136435841),
        ("EVA02-L-14", 427755457),
        ("MobileCLIP2-B", 149777153),
    ],
)
def test_the_plan_estimates_towers_of_other_kinds(name, parameters):
    size = model_size(name)
    assert size is not None
    assert abs(size.parameters / parameters - 1) < 0.004
    assert worker_bytes(name, 12, 8) > PROCESS + 16 * size.parameters


def test_a_file_that_relies_on_open_clips_defaults_has_the_size_of_a_complete_one(tmp_path):
    full = {"layers": 12, "width": 768, "patch_size": 16, "image_size": 32, "mlp_ratio": 4.0}
    text = {"layers": 12, "width": 512, "vocab_size": 49408, "context_length": 77}
    name = str(tmp_path / "mine.json")

    def size(vision, text):
        write_json(tmp_path / "mine.json", {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text})
        return model_size(name)

    assert size(full, text) == size({"image_size": 32}, {}) == size({"image_size": 32, "layers": 12}, {"width": 512})
    assert size({**full, "layers": 6}, text).image_units == size(full, text).image_units / 2
    assert size({"image_size": 32, "timm_model_name": "convnext_base"}, {}) is None
    assert size({**full, "layers": [3, 4, 6, 3]}, text) is None
    assert size({**full, "mlp_ratio": "4"}, text) is None


def test_every_siglip_and_pe_tower_has_a_size():
    names = [name for name in open_clip.list_models() if name.startswith(("PE-Core", "EVA01")) or "SigLIP" in name]
    assert len(names) > 30
    assert [name for name in names if model_size(name) is None] == []


@pytest.mark.parametrize("cpus", [1, 2, 7])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_counted_trials_fit_with_all_drivers_on_one_node(cpus, workers, share):
    made = plan(workers=workers, cpus=share)
    try:
        fits = count_fitting_trials(made, [node(cpus)])
    except ConfigError:
        fits = 0
    need = workers * share + DRIVER_CPU * (workers > 1)
    assert fits * need <= cpus + 1e-9
    if fits == 0:
        assert need > cpus - 1e-9


def test_a_plan_for_this_machine_is_refused_before_ray_starts():
    with refuses("1800.1", "CPUs"):
        check_local(plan(workers=2000), "local", 4)
    check_local(plan(), "local", 4)
    check_local(plan(workers=2000), "10.0.0.1:6379", None)  # another cluster is checked when it is joined


@pytest.mark.parametrize(
    ("asked", "workers", "there", "cuda", "chosen"),
    [
        (None, 1, 0, False, 0),
        (None, 1, 8, True, 1),
        (None, 2, 8, True, 2),
        (None, 2, 1, True, 0),
        (None, 1, 8, False, 0),  # a torch without CUDA: trials run on CPUs
        (0, 1, 8, True, 0),
        (0.5, 1, 8, True, 0.5),
        (4, 1, 2, True, 4),  # too few: `capacity` reports it
    ],
)
def test_gpus_are_used_where_there_are_any_and_torch_can(monkeypatch, caplog, asked, workers, there, cuda, chosen):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": float(there)})
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity._sees_cuda", lambda share: cuda)
    why = "2.15.0 is built for CUDA 13.2, and the driver is 535.54.03"
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity._why_no_cuda", lambda share: why)
    assert choose_gpus(asked, workers) == chosen
    assert (why in caplog.text) == (there > 0 and not cuda)


def test_gpus_that_were_asked_for_and_cannot_be_used_are_an_error(monkeypatch):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"GPU": 1.0})
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity._sees_cuda", lambda share: False)
    why = "2.15.0 is built for CUDA 13.2, and the driver is 535.54.03"
    monkeypatch.setattr("ctvr.orchestrator.on_ray.capacity._why_no_cuda", lambda share: why)
    with refuses("GPUs", "0.5", "CTVR_TORCH_BACKEND=auto"):
        choose_gpus(0.5, 1)


@pytest.mark.parametrize("said", ["The current node timed out during startup.", "Failed to start the dashboard"])
def test_slow_ray_start_is_retried_and_then_refused(monkeypatch, said):
    """Processes that an attempt has left are ended before the next one, since Ray does not know them."""
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr(connection, "PAUSE_SECONDS", 0.0)
    before, left, tries = subprocess.Popen(["sleep", "600"]), [], []

    def init(**options: object) -> None:
        tries.append(options)
        assert all(process.poll() is not None for process in left)
        left.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        raise Exception(f"{said}\nMore lines")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with refuses("Ray", *said.rstrip(".").split()):
        connection._start({}, 2)
    assert len(tries) == 3
    assert all(process.poll() is not None for process in left)
    assert before.poll() is None
    before.kill()
    assert all(options["include_dashboard"] for options in tries)  # without it stopped trials leak their workers


def test_workers_get_cudas_variables(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    made = connection.worker_environment()
    assert made["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER" not in made  # Ray's default: it warns of a node's end
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert connection.worker_environment()["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.setenv("CTVR_WITHOUT_LANDLOCK", "1")
    assert connection.worker_environment()["CTVR_WITHOUT_LANDLOCK"] == "1"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (OSError("validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /x"), 1),
        (ValueError("Ray has no such option"), 1),
        (PermissionError(13, "Permission denied", "/x/ray"), 1),
        (TimeoutError("GCS did not answer"), 3),
        (BlockingIOError(11, "Resource temporarily unavailable"), 3),
    ],
)
def test_an_error_of_rays_start_that_comes_again_is_not_tried_again(monkeypatch, error, attempts):
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr(connection, "PAUSE_SECONDS", 0.0)
    tries: list[object] = []

    def init(**options: object) -> None:
        tries.append(options)
        raise error

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with refuses("Ray") as said:
        connection._start({}, 2)
    assert len(tries) == attempts
    assert ("doctor`" in str(said.value)) is (attempts == 1)


def test_a_full_disk_is_left_to_the_command_which_waits(monkeypatch):
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("ray.shutdown", lambda: None)

    def init(**options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(OSError, match="No space left"):
        connection._start({}, 2)


def test_ray_is_started_in_a_short_folder_where_its_own_is_too_long(monkeypatch, caplog):
    monkeypatch.setattr("os.environ", {**os.environ, "RAY_TMPDIR": "/tmp/" + "long/" * 17})
    given: list[dict] = []
    monkeypatch.setattr("ray.init", lambda **options: given.append(options))
    monkeypatch.setattr(connection, "_await_dashboard", lambda port: None)
    connection._start({}, 2)
    assert len(given[0]["_temp_dir"]) < 20
    (said,) = caplog.messages
    assert said.startswith(f"Ray keeps its files in {given[0]['_temp_dir']} instead of /tmp/long/")
    assert connection.cluster_file().is_relative_to(os.environ["RAY_TMPDIR"])  # where `ray start` writes it


def test_a_proxy_never_answers_for_the_dashboard(proxy, free_port):
    with refuses(free_port, "ray[default]"):
        connection._await_dashboard(free_port, seconds=0.2)
    with Server(401) as dashboard:  # it answers, but needs the token
        connection._await_dashboard(dashboard.server_port, seconds=60)
        dashboard.shutdown()
    assert dashboard.asked == ["/api/version"]
    assert not proxy.asked


def test_workers_ask_this_machine_and_the_head_without_a_proxy(monkeypatch, proxy):
    os.environ["no_proxy"] = ".corp"
    for name in ("no_proxy", "NO_PROXY"):
        assert connection.worker_environment()[name].startswith(".corp,127.0.0.1,localhost,")
    calls: list[dict] = []
    monkeypatch.setattr("ray.init", lambda **options: calls.append(options["runtime_env"]["env_vars"]))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    connection.connect("10.0.0.1:6379")
    assert calls[0]["NO_PROXY"].endswith(",10.0.0.1,${NO_PROXY}")  # and what the node itself excepts
    assert os.environ["NO_PROXY"].endswith(",10.0.0.1")


def test_both_ways_into_a_cluster_hand_the_environment_to_its_workers(monkeypatch):
    monkeypatch.setattr("os.environ", dict(os.environ))
    calls: list[dict] = []
    monkeypatch.setattr("ray.init", lambda **options: calls.append(options))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_await_dashboard", lambda port: None)
    connection.connect("10.0.0.1:6379")
    connection.connect("local", 2)
    for options in calls:
        assert options["runtime_env"]["env_vars"]["CUBLAS_WORKSPACE_CONFIG"]
    assert [options["address"] for options in calls] == ["10.0.0.1:6379", "local"]


def test_variables_that_a_submitted_job_sets_are_left_to_it(monkeypatch):
    """Ray refuses a variable that both a job and its driver set, as with `ray job submit --runtime-env-json`."""
    job = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "4"}}, "metadata": {}}
    monkeypatch.setattr("os.environ", {**os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)})
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    given: list[dict] = []
    monkeypatch.setattr("ray.init", lambda **options: given.append(options["runtime_env"]["env_vars"]))
    connection.connect("10.0.0.1:6379")
    assert "OMP_NUM_THREADS" not in given[0]
    assert given[0]["CUBLAS_WORKSPACE_CONFIG"]
    os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = "no JSON"
    connection.connect("10.0.0.1:6379")
    assert "OMP_NUM_THREADS" in given[1]


def test_a_cluster_that_a_submitted_job_starts_is_not_the_jobs(monkeypatch):
    """Otherwise Ray would merge the job's environment, and search its folder in a cluster that does not have it."""
    job = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "4"}, "working_dir": "gcs://_ray_pkg_0.zip"}}
    monkeypatch.setattr("os.environ", {**os.environ, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)})
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_await_dashboard", lambda port: None)
    seen: list[bool] = []
    monkeypatch.setattr("ray.init", lambda **options: seen.append("RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ))
    connection.connect("local")
    assert seen == [False]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("nobody"), "'10.0.0.1:6379'"),
        (ValueError("Failed to merge the Job's runtime env\nmore"), "Job's"),
        (
            RuntimeError("Version mismatch: The cluster was started with:\n  Ray: 2.9"),
            "mismatch",
        ),
    ],
)
def test_the_reason_why_a_cluster_cannot_be_joined_is_reported(monkeypatch, error, said):
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr("ray.is_initialized", lambda: False)

    def init(**options: object) -> None:
        raise error

    monkeypatch.setattr("ray.init", init)
    with refuses(said):
        connection.connect("10.0.0.1:6379")


def test_the_path_of_workers_has_no_folder_that_ray_adds():
    from ctvr.orchestrator.on_ray.internals import job_config

    made = job_config(["/sources"])
    made._py_driver_sys_path.extend(["/script", "/present"])  # as `ray.init` does
    assert list(made._get_proto_job_config().py_driver_sys_path) == ["/sources"]


def test_a_dead_cluster_that_left_its_file_is_not_joined(monkeypatch, tmp_path):
    monkeypatch.setattr("os.environ", {**os.environ, "RAY_TMPDIR": str(tmp_path)})
    os.environ.pop("RAY_ADDRESS", None)
    calls: list[str] = []
    monkeypatch.setattr("ray.init", lambda **options: calls.append(options["address"]))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_await_dashboard", lambda port: None)
    connection.cluster_file().parent.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        connection.cluster_file().write_text(f"127.0.0.1:{listener.getsockname()[1]}")
        listener.listen()
        connection.connect()
    connection.connect()  # nothing listens any more
    connection.cluster_file().write_text("nonsense")
    connection.connect()
    assert calls == ["auto", "local", "local"]


@pytest.fixture
def asked(monkeypatch) -> list[list[dict[str, float]]]:
    """Return the bundles of each request for resources, on a cluster that was not started here."""
    made: list[list[dict[str, float]]] = []
    monkeypatch.setattr(capacity_module, "is_started_here", lambda: False)
    monkeypatch.setattr(capacity_module, "lease", lambda requester, bundles, seconds: made.append(bundles))
    return made


def test_an_autoscaler_is_asked_for_whole_trials(asked):
    two = plan(workers=2, cpus=1.5, gpus=0.5)
    connection.request_resources_for(two, 2)
    assert asked[0].count({"CPU": 1.5, "GPU": 0.5}) == 4
    assert asked[0].count({"CPU": DRIVER_CPU}) == 2
    connection.request_resources_for(two, 2, running=1)  # Ray Train leases the workers of that trial
    assert asked[1].count({"CPU": 1.5, "GPU": 0.5}) == 2
    connection.request_resources_for(plan(), 3, running=2)
    assert asked[2] == [{"CPU": 0.9}] * 3
    connection.request_resources_for(plan(), 0)
    assert asked[3] == []


def test_no_resources_are_requested_from_a_local_cluster(asked, monkeypatch):
    monkeypatch.setattr(capacity_module, "is_started_here", lambda: True)
    connection.request_resources_for(plan(), 3)
    assert asked == []


A100, HEAD = {"CPU": 96.0, "GPU": 8.0}, {"CPU": 16.0}


@pytest.mark.parametrize(
    ("workers", "trials", "nodes", "most", "asked"),
    [
        (1, 32, [HEAD, A100], 2, (8, 8)),  # no additional node
        (1, 32, [HEAD, A100], 3, (16, 16)),
        (1, 3, [HEAD, A100], 3, (3, 3)),
        (8, 32, [HEAD, A100, A100], 3, (2, 16)),
        (16, 4, [HEAD, A100], 3, (1, 16)),  # a trial that spans two
        (1, 32, [HEAD], 2, (1, 1)),  # the capacity of a new node is unknown
        (1, 32, [HEAD], 5, (4, 4)),  # at most a node for each
        (8, 32, [HEAD], 5, (1, 4)),
        (2, 32, [HEAD], 5, (2, 4)),
        (1, 32, [HEAD], 1, (0, 0)),
        (1, 32, [HEAD, A100, A100], 1, (0, 0)),  # another sweep's
    ],
)
def test_the_requested_machines_do_not_exceed_the_limit(workers, trials, nodes, most, asked):
    assert cap_to_max_nodes(plan(workers=workers, gpus=1.0), trials, nodes, most) == asked


def test_the_requested_machines_are_those_waited_for(asked, monkeypatch):
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": size} for size in (HEAD, A100)])
    connection.ask_for_nodes(plan(gpus=1.0), 4)
    assert asked[0].count({"CPU": 0.9, "GPU": 1.0}) == 24


def test_an_autoscaler_that_does_not_answer_does_not_end_a_sweep(asked, monkeypatch, caplog):
    def fail(requester: str, bundles: list[dict[str, float]], seconds: float) -> None:
        raise RuntimeError("away\nmore")

    monkeypatch.setattr(capacity_module, "lease", fail)
    connection.request_resources_for(plan(), 1)
    assert "the autoscaler request failed: away" in caplog.text


def test_an_interpreter_below_a_folder_with_a_space_starts_workers(monkeypatch, tmp_path):
    """Ray passes the command of a worker to bash with the unquoted path of the interpreter."""
    python = tmp_path / "my folder" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho started\n")
    python.chmod(0o755)
    monkeypatch.setattr(connection.sys, "executable", str(python))
    runtime = connection._runtime_env({"A": "b"})
    assert runtime["env_vars"] == {"A": "b"}
    command = ["bash", "-c", f"exec {runtime['py_executable']}"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "started\n"
    monkeypatch.setattr(connection.sys, "executable", "/usr/bin/python3")
    assert connection._runtime_env({}) == {"env_vars": {}}
