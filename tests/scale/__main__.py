"""`make scale NODES=64 TRIALS=1000`: the cost of driving a sweep of that size; nothing is trained.

Every node is a separate raylet on this machine, with one CPU for Ray. One small run is trained first; each trial
repeats its writes (fake_trials.py). The search, its journal, MLflow's server and the store are those of `ctvr
sweep`. Each node needs about 130 MB, each trial at work about 130 MB more.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from ctvr.orchestrator.console import say
from tests.chaos.watch import Server

METHOD, TASKS = "framefusion_moe", 4
SMALL = ("backbone.name=tiny-clip", "backbone.weights=shipped", "data.num_frames=2", "data.batch_size=2")


# Hundreds of processes start on one machine, where Ray thinks of as many machines: it is to wait for them, not to take
# a node for dead that could not answer, nor to end and begin again a process that has not come up in a minute
PATIENCE = {
    "RAY_health_check_initial_delay_ms": "120000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "30",
    "RAY_worker_register_timeout_seconds": "900",
    "RAY_gcs_server_request_timeout_seconds": "600",
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


class Driver(threading.Thread):
    """Measures the memory of this process, which drives the search, and the processor time of MLflow's server."""

    def __init__(self, server: int) -> None:
        super().__init__(daemon=True)
        self.me, self.server = psutil.Process(), psutil.Process(server)
        self.memory: list[float] = []
        self._over = threading.Event()
        self._cpu = self.cpu()

    def run(self) -> None:
        while not self._over.wait(1.0):
            self.memory.append(self.me.memory_info().rss / 2**20)

    def end(self) -> None:
        self._over.set()
        self.join()

    def cpu(self) -> tuple[float, float]:
        """Return the CPU seconds of this process, and of the server with its workers."""
        served = [self.server, *self.server.children(recursive=True)]
        return sum(self.me.cpu_times()[:2]), sum(sum(process.cpu_times()[:2]) for process in served)

    def since(self) -> tuple[float, float]:
        mine, served = self.cpu()
        return mine - self._cpu[0], served - self._cpu[1]


class Timed:
    """A function that records the duration of each of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return self.function(*arguments, **named)
        finally:
            self.seconds.append(time.monotonic() - began)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sweep and print the measurements."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description="Drive a sweep that trains nothing.")
    parser.add_argument("--nodes", type=int, default=64, help="raylets on this machine (%(default)s)")
    parser.add_argument("--trials", type=int, default=1000, help="of the sweep (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="that a task takes in the mean (%(default)s)")
    parser.add_argument("--at-once", type=int, help="trials at work at once; as many as there are nodes otherwise")
    parser.add_argument("--scheduler", choices=("halving", "none"), default="halving", help="(%(default)s)")
    parser.add_argument("--searcher", choices=("tpe", "random", "grouped_tpe"), default="tpe", help="(%(default)s)")
    parser.add_argument(
        "--laws", action="store_true", help="the driver's part alone, by the number of trials and nodes"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args(argv)
    if min(arguments.nodes, arguments.trials, arguments.at_once or 1) < 1 or arguments.seconds <= 0:
        parser.error("--nodes, --trials and --at-once must be >= 1, --seconds > 0")
    folder = Path(tempfile.mkdtemp(prefix="scale", dir="/tmp"))  # short: sockets of Ray lie below it
    try:
        if arguments.laws:
            return _tell_laws(folder)
        figures = _measure(folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in figures.items():
        say(f"{name:<52} {value:.6g}" if isinstance(value, float) else f"{name:<52} {value}")
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if figures["trials that ended"] == arguments.trials else 1


def _measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from tests.scale.fake_trials import pattern_of
    from tests.small_stream import write_stream

    manifest = write_stream(folder / "small", num_tasks=TASKS)
    _train_one(folder, manifest)
    pattern = pattern_of(folder / "one", folder / "one" / "store", TASKS)
    server = Server(folder)
    server.start()
    try:
        server.await_answer()
        assert server.process is not None
        os.environ["MLFLOW_TRACKING_URI"] = server.uri
        return _sweep(folder, manifest, arguments, pattern, server.process.pid)
    finally:
        server.close()


def _tell_laws(folder: Path) -> int:
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.sweeps.plan import plan_sweep, request_search
    from tests.scale.laws import of_nodes, of_trials

    execution = ExecutionConfig(folder / "runs", str(folder / "runs" / "store"))
    search = plan_sweep(request_search(METHOD, "shapes-5", "laws", {}), execution).searches[""]
    for trials in (100, 300, 1000):
        found = of_trials(folder, trials, search.search_space, search.experiment.settings)
        say(f"{trials:>5} trials  " + "  ".join(f"{name} {value:.3g}" for name, value in found.items()))
    for nodes, seconds in of_nodes():
        say(f"{nodes:>5} nodes   a look for room, s {seconds:.2g}")
    return 0


def _train_one(folder: Path, manifest: Path) -> None:
    """Train the run whose writing is repeated, in a separate process that loads torch."""
    execution = ["--runs", str(folder / "one")]
    command = [sys.executable, "-m", "ctvr", "run", "--method", METHOD, "--stream", str(manifest), *execution]
    done = subprocess.run([*command, *SMALL], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the run that is to be repeated failed: {done.stderr or done.stdout}")


def _sweep(folder: Path, manifest: Path, arguments: argparse.Namespace, pattern: Any, server: int) -> dict[str, Any]:
    import ray
    from ray.cluster_utils import Cluster

    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.on_ray import connection, tune
    from ctvr.orchestrator.on_ray.callbacks import TrialMonitor
    from ctvr.orchestrator.on_ray.optuna_searcher import OptunaSearcher
    from ctvr.orchestrator.on_ray.search_space import RowPlan
    from ctvr.orchestrator.sweeps.plan import plan_sweep, request_search
    from ctvr.orchestrator.sweeps.session import trial_plan
    from tests.scale.fake_trials import TIMES, trial

    def pretended(config: dict[str, Any], plans: Any) -> None:
        trial(config, plans, pattern, arguments.seconds)

    tune._trial = pretended
    suggested, reported, looked = (
        Timed(OptunaSearcher.suggest),
        Timed(TrialMonitor.on_trial_result),
        Timed(TrialMonitor.on_trial_complete),
    )
    OptunaSearcher.suggest = lambda *given: suggested(*given)
    TrialMonitor.on_trial_result = lambda *given, **named: reported(*given, **named)
    TrialMonitor.on_trial_complete = lambda *given, **named: looked(*given, **named)
    execution = ExecutionConfig(folder / "runs", str(folder / "runs" / "store"))
    search = {"trials": arguments.trials, "scheduler": arguments.scheduler, "searcher": arguments.searcher}
    overrides: dict[str, Any] = dict(word.split("=", 1) for word in SMALL)
    planned = plan_sweep(request_search(METHOD, str(manifest), "scale", overrides, search=search), execution)
    (found,) = planned.searches.values()
    os.environ.update({**connection.QUIET, **connection.worker_environment(), **PATIENCE})
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    began = time.monotonic()
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(arguments.nodes):
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, wait=False)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        while sum(node["Alive"] for node in ray.nodes()) <= arguments.nodes:
            time.sleep(0.5)
        started = time.monotonic() - began
        tracker = execution.tracker("small")
        plan = trial_plan(execution, "scale", [found.experiment])
        parent = tracker.open_sweep("scale", "small", {}, {})
        plan = replace(plan, settings=found.fixed_settings, presets=found.experiment.presets, parent=parent)
        watch = Driver(server)
        watch.start()
        rows = {"": RowPlan(plan, found.search_space)}
        outcome = tune.run_rows(rows, TASKS, planned.search_config, arguments.at_once)[""]
        watch.end()
        began = time.monotonic()
        records = tracker.find_runs(sweep="scale")
        read = time.monotonic() - began
        mine, served = watch.since()
    finally:
        ray.shutdown()
        cluster.shutdown()
    each = [json.loads(path.read_text()) for path in (folder / "runs" / TIMES).glob("*.json")]
    stored = [path.stat().st_size for path in (folder / "runs" / "store").rglob("*") if path.is_file()]
    ended = outcome.complete + outcome.stopped + outcome.failed
    return {
        "nodes": arguments.nodes,
        "trials at once, at most": arguments.at_once or arguments.nodes,
        "trials that ended": ended,
        "complete": outcome.complete,
        "stopped early": outcome.stopped,
        "failed": outcome.failed,
        "tasks": outcome.tasks,
        "start of the nodes, s": started,
        "the search, s": outcome.seconds,
        "tasks at work at once, mean": outcome.tasks * arguments.seconds / outcome.seconds,
        "driver: CPU-s per trial": mine / ended,
        "driver: memory at first, MB": statistics.median(watch.memory[:5]),
        "driver: memory at most, MB": max(watch.memory),
        "search: a suggestion among the first 100, median s": _median(suggested.seconds[:100]),
        "search: a suggestion among the last 100, median s": _median(suggested.seconds[-100:]),
        "driver: a report, median s": _median(reported.seconds),
        "driver: the end of a trial, median s": _median(looked.seconds),
        "MLflow's server: CPU-s per trial": served / ended,
        "MLflow: s that a task waited": _per_task(each, "mlflow"),
        "store: s that a task waited": _per_task(each, "store"),
        "search: s that a report waited": _per_task(each, "search"),
        "from one segment to the next of a process, median s": _between(each),
        "MLflow: reading all runs, s": read,
        "MLflow: runs read": len(records),
        "MLflow: database, MB": (folder / "mlflow.db").stat().st_size / 2**20,
        "journal, kB": tune.journal_path(plan).stat().st_size / 2**10,
        "store: objects": len(stored),
        "store: MB": sum(stored) / 2**20,
    }


def _per_task(each: list[dict[str, Any]], what: str) -> float:
    return sum(one.get(what, 0.0) for one in each) / max(1, sum(one["tasks"] for one in each))


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else math.nan


def _between(each: list[dict[str, Any]]) -> float:
    """Return the median time between the end of a segment and the beginning of the next one in the same process."""
    gaps = []
    for pid in {one["pid"] for one in each}:
        mine = sorted((one for one in each if one["pid"] == pid), key=lambda one: one["began"])
        gaps += [after["began"] - before["ended"] for before, after in pairwise(mine)]
    return _median(gaps)


if __name__ == "__main__":
    raise SystemExit(main())
