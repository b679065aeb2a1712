"""Connection to a Ray cluster, joined or started for the length of a command."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from ctvr.methods import METHOD_FOLDERS
from ctvr.orchestrator import processes
from ctvr.orchestrator.addresses import require_own
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.interpreter import KERNELS, SAFE_PATH, method_folders, source_folders
from ctvr.orchestrator.on_ray.capacity import ask_for_nodes, count_fitting_trials, no_gpu_text, request_resources_for
from ctvr.orchestrator.on_ray.internals import bind_to_loopback, job_config
from ctvr.orchestrator.on_ray.memory import free_memory, record_free_memory
from ctvr.orchestrator.on_ray.nodes import await_nodes, await_sources
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.on_ray.ray_paths import (
    cluster_address,
    cluster_file,
    is_listening,
    temporary_folder,
    token_file,
    usable_folder,
)
from ctvr.orchestrator.processes import count_processors
from ctvr.orchestrator.proxies import EXCEPTIONS, exceptions, host_of

log = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = "300"  # successful starts took more than 40 s on a loaded machine
REPLACEMENT_SECONDS = "1800"  # on a cluster, where the replacement of a lost machine must boot and install first
ATTEMPTS = 3  # number of attempts to start Ray
PAUSE_SECONDS = 10.0  # wait before the second attempt; twice that before the third
POLL_SECONDS = "0.2"  # interval at which the controller polls for reports; the default of 2.0 s slows short tasks
_OURS = ("CTVR_KERNELS", "CTVR_WITHOUT_LANDLOCK")  # variables of the user that also apply to workers
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_TOKEN = secrets.token_hex(32)  # token of clusters that this process starts; Ray reads it once per process
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # disables Tune's banners; the lines of our callbacks contain more
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # disables Tune's logs; MLflow has the same data
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # our callback prints one line for each failed trial
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_worker_maximum_startup_concurrency": "8",  # a trial starts all its workers at once
}


def worker_environment(start_timeout: str = START_TIMEOUT_SECONDS, head: str = "") -> dict[str, str]:
    """Return the environment of every Ray process of a sweep, without credentials: Ray's dashboard displays it.

    Args:
        start_timeout: seconds that a group of workers may take to start.
        head: host of the cluster's dashboard, which Ray Train queries by HTTP; empty for this machine.
    """
    return {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": os.environ.get("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", POLL_SECONDS),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": os.environ.get(
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", start_timeout
        ),
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths have the same meaning in a trial
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),  # deterministic kernels
        **{name: os.environ[name] for name in (*KERNELS, *_OURS) if name in os.environ},
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **dict.fromkeys(EXCEPTIONS, exceptions(head)),
    }


@contextmanager
def cluster(
    address: str | None = None, local_cpus: int | None = None, nodes: int = 1, plan: TrialPlan | None = None
) -> Iterator[None]:
    """Connect to Ray for the length of a `with` block; an existing connection is used and left open.

    Args:
        address, local_cpus: see `connect`.
        nodes: number of nodes to wait for.
        plan: plan of the next trials; nodes for them are requested from an autoscaling cluster. The request is
            withdrawn at the end of the block or, if this process dies, ends by itself after `LEASE_SECONDS`.

    Raises:
        ConfigError: see `connect`, `await_nodes` and `await_sources`.
    """
    mine = connect(address, local_cpus)
    try:
        await_nodes(nodes, ask=None if plan is None else partial(ask_for_nodes, plan, nodes))
        await_sources()
        yield
    finally:
        if mine and plan is not None:
            request_resources_for(plan, 0)
        if mine:
            ray.shutdown()


def connect(address: str | None = None, local_cpus: int | None = None) -> bool:
    """Join a Ray cluster or start a cluster on this machine; return False if this process was already connected.

    Args:
        address: `auto` or an address joins a cluster; `local` starts one; None joins the cluster to which this
            machine belongs, or starts one if there is none.
        local_cpus: logical CPUs of a cluster started here.

    Raises:
        ConfigError: if there is no cluster at the address, or another user has written the file that names it.
    """
    if ray.is_initialized():
        return False
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    wanted = _choose_address(address)
    patience = START_TIMEOUT_SECONDS if wanted == "local" else REPLACEMENT_SECONDS
    if wanted == "auto":  # another user may have written this file, to get our token
        require_own(cluster_file(), 0, remedy="Pass the cluster's --address, or --address local")
    environment = worker_environment(patience, host_of(cluster_address() if wanted == "auto" else wanted))
    environment |= {SAFE_PATH: "1", METHOD_FOLDERS: os.pathsep.join(method_folders())}
    os.environ.update(environment)
    if wanted == "local" or not _join(wanted, environment, is_asked=bool(address or os.environ.get("RAY_ADDRESS"))):
        _start(environment, local_cpus)
    return True


def _choose_address(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or ("auto" if cluster_file().is_file() else "local")


def _quiet_options() -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR}


def _join(wanted: str, environment: Mapping[str, str], is_asked: bool) -> bool:
    """Join a cluster; return False if it does not respond and the user did not name it.

    Args:
        wanted: Ray's address of the cluster.
        environment: variables for its workers.
        is_asked: whether the user named the cluster.

    Raises:
        ConfigError: if a cluster that the user named does not respond, or if Ray refuses the connection.
    """
    bind_to_loopback(False)
    record_free_memory(None)
    if not is_asked and not is_listening(cluster_address(), 10):  # Ray would retry for minutes
        return False
    # Exceptions from the proxy on each node are kept
    variables = {**environment, **{name: f"{environment[name]},${{NO_PROXY}}" for name in EXCEPTIONS}}
    variables = {name: value for name, value in variables.items() if name not in _job_variables()}
    job: dict[str, Any] = {}
    if "://" not in wanted:  # Ray Client creates its own job configuration
        job["job_config"] = job_config(source_folders())
    try:
        ray.init(address=wanted, runtime_env={"env_vars": variables}, **job, **_quiet_options())
    except ConnectionError as error:
        if is_asked:
            raise ConfigError(
                f"--address: no Ray cluster responds at {wanted!r}. Start a cluster, or omit it."
            ) from error
        return False
    except (ValueError, RuntimeError, ray.exceptions.RayError) as error:  # versions, token, or variables of a job
        address = wanted if is_asked else cluster_address()
        elsewhere = "" if is_asked else ", or use --address local to start a cluster"
        raise ConfigError(
            f"Ray cannot join {address!r} ({_first_line(error)[:300]})", "--address", remedy=f"Fix this{elsewhere}."
        ) from error
    return True


def _job_variables() -> set[str]:
    """Return the variables that a submitted job (`ray job submit`) sets; Ray refuses to set them again."""
    try:
        job = json.loads(os.environ.get(_JOB) or "{}")
        return set((job.get("runtime_env") or {}).get("env_vars") or {})
    except (ValueError, AttributeError):  # Ray reports the error
        return set()


def _start(environment: dict[str, str], local_cpus: int | None) -> None:
    """Start a cluster on this machine; retry, because Ray's time limit of 30 s is too short on a busy machine."""
    bind_to_loopback(True)
    os.environ.pop(_JOB, None)  # set in a submitted job: it names another cluster and its files
    if not token_file().is_file():  # otherwise Ray would write a new token into the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", _TOKEN)
    folder, problem = usable_folder()
    if problem:
        log.warning("Ray keeps its files in %s/ray instead of %s: %s", folder, temporary_folder(), problem)
    mine = processes.descendants()
    record_free_memory(free_memory())
    for attempt in range(1, ATTEMPTS + 1):
        port = _free_port()
        environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{port}"
        os.environ.update(environment)
        try:
            ray.init(
                address="local",
                num_cpus=local_cpus,
                include_dashboard=True,  # Ray Train needs it to free the workers of stopped trials
                dashboard_host="127.0.0.1",
                dashboard_port=port,
                object_store_memory=200 * 2**20,
                runtime_env=_runtime_env(environment),
                job_config=job_config(source_folders()),
                _temp_dir=f"{folder.absolute()}/ray",
                **_quiet_options(),
            )
            with contextlib.suppress(PermissionError, FileNotFoundError):  # of another user, or not the folder in use
                os.chmod(f"{folder.absolute()}/ray", 0o1777)  # sticky, so that other users cannot replace our files
            _await_dashboard(port)
            return
        except Exception as error:
            ray.shutdown()
            processes.terminate(lambda: processes.descendants() - mine)  # Ray does not end them after a failed start
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # disk full: the command waits for space, or reports the error
            if _would_recur(error) or attempt == ATTEMPTS:
                busy = "run `ctvr doctor`" if _would_recur(error) else "try again when the machine is less busy"
                raise ConfigError(
                    f"Ray did not start on this machine: {_first_line(error)}. Finished tasks are kept; {busy}."
                ) from error
            log.warning("Ray did not start in time on this busy machine; attempt %d of %d", attempt + 1, ATTEMPTS)
            time.sleep(PAUSE_SECONDS * attempt)
        except BaseException:  # Ctrl-C
            ray.shutdown()
            processes.terminate(lambda: processes.descendants() - mine)
            raise


def _would_recur(error: Exception) -> bool:
    """Return whether an error at the start of Ray would occur in every attempt, unlike a timeout."""
    if isinstance(error, (ConfigError, ConnectionError, TimeoutError)):  # ConfigError: the dashboard was too slow
        return False
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM):
        return False
    return isinstance(error, (OSError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError))


def _runtime_env(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's `runtime_env` for the workers of a cluster on this machine.

    Ray inserts the interpreter's path into a shell command without quotes. If the path contained a space, workers
    would silently fail to start.
    """
    runtime: dict[str, Any] = {"env_vars": dict(environment)}
    if (quoted := shlex.quote(sys.executable)) != sys.executable:
        runtime["py_executable"] = quoted
    return runtime


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_dashboard(port: int, seconds: float = 120) -> None:
    """Wait until Ray's State API responds; without it, stopped trials leak their workers' resources."""
    url = f"http://127.0.0.1:{port}/api/version"
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # without proxies
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with ask(url, timeout=5):
                return
        except urllib.error.HTTPError:  # it responds, but needs the token
            return
        except OSError:
            time.sleep(0.5)
    raise ConfigError(
        f"Ray's dashboard did not respond on port {port} within {seconds:.0f} s; without it a sweep would hang",
        remedy="Check that ray[default] is installed.",
    )


def check_local(plan: TrialPlan, address: str | None, local_cpus: int | None) -> None:
    """Check that a plan fits the cluster that `connect` would start on this machine, before it is started.

    Args:
        plan: plan of the trials.
        address, local_cpus: see `connect`.

    Raises:
        ConfigError: if not even one trial fits this machine.
    """
    if ray.is_initialized() or _choose_address(address) != "local":
        return
    import torch

    cpus = local_cpus or count_processors()
    gpus = torch.cuda.device_count()
    if plan.accelerator_type and not gpus:
        raise ConfigError(no_gpu_text(plan.accelerator_type))
    plan = replace(plan, accelerator_type="")  # Ray detects the GPU model only when it starts
    count_fitting_trials(plan, [{"CPU": float(cpus), "GPU": float(gpus)}])
