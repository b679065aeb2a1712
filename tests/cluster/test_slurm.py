"""cluster/slurm.sbatch under a real Slurm of two nodes on this machine continues after a time limit and a lost node.

Both nodes are this machine, so Ray's two halves share it; only root may start Slurm's daemons. `make test-cluster`.
"""

import contextlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ctvr.orchestrator.store.store import Store
from tests.chaos.watch import below
from tests.small_stream import write_stream

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(2400)]

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 900  # seconds that anything may take on a loaded machine
SBIN = f"{os.environ['PATH']}:/usr/sbin"
CONFIGURATION = """ClusterName=t
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=30
MpiDefault=none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=2:00:00 State=UP
"""


def wait_for(condition: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.5)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@dataclass
class Slurm:
    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout

    def state(self, job: str) -> str:
        return dict(re.findall(r"(\w+)=(\S+)", self.run("scontrol", "show", "job", job)))["JobState"]

    def lose(self, node: str, job: str) -> None:
        """Kill a node that runs only the job's step 0, with Slurm's daemon and all processes; then start it again."""
        for pattern in (f"slurmd -N {node}", rf"slurmstepd: \[{job}\.0\]"):
            found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True).stdout
            for root in map(int, found.split()):
                for pid in (root, *below(root)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.state(job) == "PENDING", self.daemons())
        self.run("slurmd", "-N", node)
        self.wait_for_both_nodes()

    def wait_for_both_nodes(self) -> None:
        wait_for(lambda: self.run("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", "two idle nodes")

    def daemons(self) -> str:
        """Return the logs of Slurm's daemons."""
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("slurm*.log")))

    def log(self, job: str) -> str:
        file = self.folder / f"ctvr-{job}.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name, path=SBIN)]
    if missing or os.geteuid():
        pytest.skip(f"not here: {', '.join(missing) or 'root'} (apt-get install slurmctld slurmd slurm-client munge)")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "home").mkdir()
    text = CONFIGURATION.format(folder=folder, host=platform.node().split(".")[0], ports=free_ports(3))
    (folder / "slurm.conf").write_text(text)
    environment = {**os.environ, "PATH": SBIN, "SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder / "home")}
    environment |= {"CTVR_SRC": str(REPOSITORY), "CTVR_VENV": sys.prefix, "CTVR_RUNS": str(folder / "runs")}
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    started = Slurm(folder, environment)
    munge = None
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        started.run("bash", "-c", "mkdir -p /run/munge && chown munge /run/munge")
        munge = subprocess.Popen(["su", "-s", "/bin/sh", "munge", "-c", "exec munged --foreground"])
        wait_for(lambda: not subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode, "munge")
    for words in (["slurmctld"], ["slurmd", "-N", "n1"], ["slurmd", "-N", "n2"]):
        started.run(*words)
    try:
        started.wait_for_both_nodes()
        yield started
    finally:
        for job in started.run("squeue", "-h", "-o", "%A").split():
            started.run("scancel", "--full", job)
        wait_for(lambda: not started.run("squeue", "-h"), "the end of all jobs")
        for file in folder.glob("*.pid"):
            os.kill(int(file.read_text()), signal.SIGTERM)
        if munge:
            munge.terminate()
            munge.wait()


STUBS = {  # the programs that slurm.sbatch calls, except Slurm's own
    "python": f'exec {shlex.quote(sys.executable)} "$@"',
    "ray": """
case "$*" in *--block*) exec sleep 600 ;; esac
[ -e "$CTVR_RUNS/tried" ] || { touch "$CTVR_RUNS/tried"; exit 1; }""",  # the first start of a head, on a busy node
    "ctvr": """
echo "ctvr $*"
case "$*" in *--resume*) exit 0 ;; esac
mkdir -p "$CTVR_RUNS/sweeps/$3" && touch "$CTVR_RUNS/sweeps/$3/plan.json"
trap 'echo ended in order; exit 130' INT
while :; do sleep 0.2; done""",
}


def start_again(slurm: Slurm, job: str, start: int = 2) -> None:
    """Start a requeued job for the `start`th time."""
    wait_for(lambda: slurm.state(job) == "PENDING", slurm.log(job))
    # Slurm would wait two minutes. Not less than some seconds: a node takes a start for the one that was revoked in the
    # same second, and the job fails ("already killed, do not launch")
    wait_for(lambda: slurm.daemons().count(f"[{job}.batch] done with job") >= start - 1, slurm.log(job))
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
    wait_for(lambda: f"job {job}, start {start}, 2 nodes" in slurm.log(job), slurm.log(job))


def ended(slurm: Slurm, job: str) -> str:
    """Return a job's log after its last start has ended without an error."""
    wait_for(lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), slurm.log(job))
    assert slurm.state(job) == "COMPLETED", f"{slurm.log(job)}\n{slurm.daemons()}"
    return slurm.log(job)


@pytest.mark.parametrize("why", ["its time runs out", "a node dies"])
def test_the_requeued_script_resumes(slurm: Slurm, tmp_path: Path, why: str) -> None:
    """Trivial programs replace Ray and ctvr, so that the test takes no longer than Slurm's own minutes."""
    (tmp_path / "bin").mkdir()
    for name, does in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    size = ["--nodes=2", "--cpus-per-task=1", "--gpus-per-node=0", "--time=60"]
    if why == "its time runs out":
        size[-1:] = ["--time=2", "--signal=B:USR1@60"]  # Slurm may send it a minute earlier still
    more = f"ALL,CTVR_VENV={tmp_path},MLFLOW_TRACKING_URI=http://127.0.0.1:9,CTVR_RUNS={tmp_path / 'runs'}"
    script = str(REPOSITORY / "cluster" / "slurm.sbatch")
    job = slurm.run("sbatch", *size, f"--export={more}", script, "--name", "s", "--seeds", "0").split()[-1]
    wait_for(lambda: "ctvr sweep" in slurm.log(job), "the driver's start")
    if why == "a node dies":
        slurm.lose("n2", job)
    start_again(slurm, job)
    log = ended(slurm, job)
    assert "ctvr sweep --name s --address" in log
    assert why == "a node dies" or "ended in order" in log
    assert re.search(r"ctvr sweep --resume s --address \S+ --nodes 2$", log, re.MULTILINE)


def test_a_sweep_goes_on_after_the_end_of_its_time_and_the_loss_of_a_node(slurm: Slurm, tmp_path: Path) -> None:
    if not importlib.util.find_spec("flask_wtf"):
        pytest.skip("MLflow's passwords want Flask-WTF: pip install -c constraints.txt Flask-WTF")
    search = ["--searcher", "grid", "--space", "method.lr=0,4e-6", "--scheduler", "none", "--seeds", "0"]
    fixed = ["optim.weight_decay=0.2", "method.train_scale=true", "method.frame_norm=none", "optim.epochs=60"]
    words = ["--method", "clip4clip", "--stream", str(write_stream(tmp_path, 4)), *search]
    words += ["--confirm", "0", "--gpus-per-trial", "0", *fixed]
    size = ["--nodes=2", "--cpus-per-task=1", "--gpus-per-node=0", "--time=60"]
    said = slurm.run("sbatch", *size, str(REPOSITORY / "cluster" / "slurm.sbatch"), *words)
    job = said.split()[-1]
    folder = slurm.folder / "runs" / "store"

    def committed() -> dict[str, list[float]]:
        """Return commit -> seconds of every task up to it; training a task again would change them."""
        if not folder.is_dir():
            return {}
        store = Store.open(folder)
        keys = [key for key in store.list("commits") if not key.startswith("zero-")]
        return {key: store.get_json("commits", key)["record"]["seconds"] for key in keys}

    wait_for(committed, slurm.log(job))
    slurm.run("scancel", "--signal=USR1", "--batch", job)  # what Slurm sends before the time is over
    wait_for(lambda: slurm.state(job) == "PENDING", slurm.log(job))
    first = committed()
    assert len(first) < 8
    assert "is not finished; its finished tasks and mid-task checkpoints are kept" in slurm.log(job)
    start_again(slurm, job)
    wait_for(lambda: len(committed()) > len(first) or slurm.state(job) == "COMPLETED", slurm.log(job))
    first = committed()
    assert len(first) < 8
    slurm.lose("n2", job)
    start_again(slurm, job, 3)
    log = ended(slurm, job)
    assert "resumed: finished tasks are kept" in log
    assert "2 complete, 0 stopped early, 0 failed" in log
    assert {key: seconds for key, seconds in committed().items() if key in first} == first
    assert list((slurm.folder / "runs" / "slurm" / job / "backup").glob("mlflow-*.db"))
    assert not Path("/tmp", f"ctvr-{job}").exists()
