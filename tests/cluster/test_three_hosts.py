"""`ray up`, `ray submit` and a host that dies, on three hosts made of network namespaces (see hosts.py).

cluster/onprem.yaml is used unchanged, except for the lines marked EDIT and the sizes of the nodes. MLflow (with its
password) and the object store (S3, in moto's server) run on the head; Ray requires its token. The tests run in order
and together cover the life of a cluster.
"""

import base64
import ipaddress
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.run import run
from ctvr.orchestrator.learning.record.run_state import MEASURED
from ctvr.orchestrator.store.store import Store
from tests.cluster.hosts import HOME, REPOSITORY, Host, Hosts, Unavailable, find_tools, make_image
from tests.small_stream import write_stream

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE = 1500  # seconds that one command may take on a loaded machine
STORE = "s3://ctvr/lab"
SECRET = "cAnArY" + "7Gk2Lq9Zx4Wn" * 3  # of the object store; made up
MANIFEST = "/srv/ctvr/small/small.json"
FIXED = ("optim.weight_decay=0.2", "method.train_scale=true", "method.frame_norm=none")
NOISE = re.compile(
    r"video/s|INFO|WARN|ensure this mount|\.py$|rsync|bytes|incremental|known hosts|ssh -|total size|connection to"
)
PARTS = (
    "ctvr",
    "orchestrator",
    "methods",
    "search_spaces",
    "cluster",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
)


@dataclass
class Lab:
    """The hosts, and the researcher's own machine, which controls them."""

    hosts: Hosts
    laptop: Path
    transcript: Path
    store: subprocess.Popen[bytes] | None = None

    @property
    def head(self) -> Host:
        return self.hosts.hosts[0]

    @property
    def workers(self) -> list[Host]:
        return self.hosts.hosts[1:]

    @property
    def yaml(self) -> Path:
        return self.laptop / "ctvr" / "cluster" / "lab.yaml"

    def say(self, line: str) -> None:
        with self.transcript.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')}  {line}\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command on the laptop, from the root of its copy of the repository."""
        self.say("laptop$ " + " ".join(words))
        environment = {
            "HOME": str(self.laptop),
            "PATH": f"{self.hosts.tools / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_TMPDIR": str(self.laptop),
            "TMPDIR": str(self.laptop),
            "RAY_UP_enable_autoscaler_v2": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TERM": "dumb",
        }
        return subprocess.Popen(
            words,
            cwd=self.laptop / "ctvr",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], status: int | None = 0, worth: str = ".") -> str:
        """Run a command and return its output; lines that contain `worth` also go to the transcript."""
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
        said = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", said.replace("\r", "\n"))
        for line in said.splitlines():
            if line.strip() and re.search(worth, line) and not NOISE.search(line):
                self.say(f"    {line.rstrip()}")
        assert status is None or process.returncode == status, said[-3000:]
        return said

    def command(self, *words: str, worth: str = ".") -> str:
        return self.finish(self.start(*words), worth=worth)

    def submit(self, *words: str) -> subprocess.Popen[str]:
        return self.start("bash", "cluster/submit.sh", str(self.yaml), *words)


def fill(text: str, lab: Lab, hosts: list[Host]) -> dict[str, Any]:
    """Return cluster/onprem.yaml with its EDIT lines filled in, and with nodes of this machine's size."""
    filled: dict[str, Any] = yaml.safe_load(text)
    filled["cluster_name"] = f"ctvr-{os.getpid()}"
    filled["provider"].update(head_ip=hosts[0].address, worker_ips=[host.address for host in hosts[1:]])
    filled["auth"] = {"ssh_user": "root", "ssh_private_key": str(lab.hosts.key)}
    values = {"CTVR_STORE": STORE, "CTVR_RUNS": "/srv/ctvr/runs", "CTVR_NODES": "3", "CTVR_GPUS_PER_TRIAL": "0"}
    values |= {"AWS_ENDPOINT_URL": f"http://{hosts[0].address}:9000", "AWS_REGION": "us-east-1"}
    words = [word for word in filled["setup_commands"][0].split() if not re.match("[A-Z_]+=", word)]
    filled["setup_commands"] = [" ".join([*words, *(f"{name}={value}" for name, value in values.items())])]
    for kind, cpus in (("head", 1), ("worker", 2)):
        commands = filled[f"{kind}_start_ray_commands"]
        more = f"ray start --num-cpus={cpus} --object-store-memory=100000000 "
        filled[f"{kind}_start_ray_commands"] = [command.replace("ray start ", more) for command in commands]
    return filled


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="lab", dir="/tmp"))
    transcript = Path(os.environ.get("CTVR_TRANSCRIPT", folder / "transcript.log"))
    transcript.write_text("")
    try:
        tools, image = find_tools(folder / "tools"), make_image(folder)
        with Hosts(folder / "hosts", tools, image) as hosts:
            for name in ("head", "one", "two"):
                hosts.add(name)
            lab = Lab(hosts, folder / "laptop", transcript)
            furnish(lab)
            yield lab
            if lab.store is not None:
                lab.store.kill()
    except Unavailable as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def furnish(lab: Lab) -> None:
    """Put the repository and the secrets on the laptop, and the keys of the store, which runs on the head, on the
    hosts.
    """
    copy = lab.laptop / "ctvr"
    copy.mkdir(parents=True)
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(source, copy / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / part)
    lab.yaml.write_text(yaml.safe_dump(fill((copy / "cluster/onprem.yaml").read_text(), lab, lab.hosts.hosts)))
    lab.command("bash", "cluster/setup.sh", "secrets")
    write_stream(lab.hosts.shared / "small", num_tasks=4)
    for host in lab.hosts.hosts:
        keys = host.folder / "home" / ".ctvr_keys"
        keys.write_text(f"export AWS_ACCESS_KEY_ID=lab\nexport AWS_SECRET_ACCESS_KEY={SECRET}\n")
        keys.chmod(0o600)
    server = [f"{HOME}/ctvr_venv/bin/python", "-m", "moto.server", "-H", lab.head.address, "-p", "9000"]
    log = (lab.head.folder / "store.log").open("wb")
    lab.store = subprocess.Popen(lab.head.enter("env", "-i", *server), stdout=log, stderr=log)
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=f"http://{lab.head.address}:9000",
        region_name="us-east-1",
        aws_access_key_id="lab",
        aws_secret_access_key=SECRET,
    )
    wait_for(lambda: _made(client), 120)


def _made(client: Any) -> bool:
    try:
        client.create_bucket(Bucket="ctvr")
    except Exception:
        return False
    return True


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.3)
    return found


@pytest.fixture
def store(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{lab.head.address}:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return Store.open(STORE, tmp_path / "copies")


def listening(host: Host) -> dict[int, set[str]]:
    """Return port -> addresses that listen on it, in a host's own network."""
    found: dict[int, set[str]] = {}
    for line in host.run("cat /proc/net/tcp /proc/net/tcp6").splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == "0A":
            address, _, port = words[1].partition(":")
            swapped = b"".join(bytes.fromhex(address)[i : i + 4][::-1] for i in range(0, len(address) // 2, 4))
            execution = ipaddress.ip_address(swapped)
            found.setdefault(int(port, 16), set()).add(str(getattr(execution, "ipv4_mapped", None) or execution))
    return found


def bring_up(lab: Lab) -> None:
    """Run `ray up` and wait for the workers that join afterwards."""
    started = time.monotonic()
    style = ("--no-config-cache", "--log-style", "pretty", "--log-color", "false")
    lab.command("ray", "up", "-y", *style, str(lab.yaml), worth=r"status|/7\]|MLflow|runtime started|Confirm")
    lab.say(f"ray up took {time.monotonic() - started:.0f} s")
    wait_for(lambda: "nodes 3" in lab.head.run(NODES, check=False), 600)
    lab.say(f"three nodes after {time.monotonic() - started:.0f} s")


NODES = """python - 2>/dev/null <<'END'
import ray
ray.init("auto", log_to_driver=False)
print("nodes", sum(node["Alive"] for node in ray.nodes()))
END"""


def ask(url: str, *, data: bytes | None = None, method: str | None = None, **headers: str) -> int:
    """Return the status of an HTTP answer; 0 without an answer."""
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def ask_on(host: Host, url: str, *words: str) -> int:
    """Return the status of an HTTP answer to a host; 0 without an answer."""
    return int(host.run(f"curl -s -o /dev/null -w '%{{http_code}}' {' '.join(words)} {url}", check=False) or 0)


def sweep_words(name: str, values: str, *more: str) -> list[str]:
    search = [
        "--searcher",
        "grid",
        "--space",
        f"method.lr={values}",
        "--scheduler",
        "none",
        "--seeds",
        "0",
        "--confirm",
        "0",
    ]
    return ["--name", name, "--method", "clip4clip", "--stream", MANIFEST, *search, *FIXED, *more]


# ------------------------------------------------------------------------------------------- the cluster


def test_ray_up_brings_up_three_hosts(lab):
    bring_up(lab)


def test_dashboard_and_mlflow_do_not_listen_on_every_interface(lab):
    for host in lab.hosts.hosts:
        lab.say(f"{host.name} listens on {dict(sorted(listening(host).items()))}")
    ports = listening(lab.head)
    assert ports[8265] == {"127.0.0.1"}
    assert ports[5000] == {lab.head.address}


def test_a_request_without_the_token_cannot_run_a_job(lab):
    token = (lab.laptop / ".ctvr" / "ray_token").read_text()
    job = json.dumps({"entrypoint": "touch /srv/host/owned"})
    jobs = "http://127.0.0.1:8265/api/jobs/"
    post = ("-X POST -H 'Content-Type: application/json'", f"-d '{job}'")
    found = {
        "a job for the dashboard, on the head": ask_on(lab.head, jobs, *post),
        "the same with a wrong token": ask_on(lab.head, jobs, *post, "-H 'Authorization: Bearer 1234'"),
        "the same from elsewhere": ask_on(lab.workers[0], f"http://{lab.head.address}:8265/api/jobs/", *post),
        "a job for an agent": ask_on(lab.workers[0], f"http://{lab.head.address}:52365/api/job_agent/jobs/", *post),
        "the list of jobs": ask_on(lab.head, jobs),
        "stopping a job, as a web page would": ask_on(
            lab.head, f"{jobs}raysubmit_1", "-X DELETE -H 'Origin: http://evil.example'"
        ),
    }
    lab.say(f"without the token: {found}")
    assert set(found.values()) <= {0, 401, 403, 405}
    assert not (lab.head.folder / "owned").exists()
    for address in ("ray status --address", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=1234 ray status --address"):
        refused = lab.workers[0].run(
            f"HOME=/tmp RAY_AUTH_MODE=disabled {address} {lab.head.address}:6379 2>&1", check=False
        )
        assert "Resources" not in refused
        assert re.search("(?i)auth|token", refused), refused
    client = f"python -c \"import ray; ray.init('ray://{lab.head.address}:10001'); print('joined')\" 2>&1"
    refused = lab.workers[0].run(f"HOME=/tmp RAY_AUTH_MODE=disabled timeout 120 {client}", check=False)
    assert "joined" not in refused
    lab.say(f"Ray's client server, without the token: {(refused.splitlines() or ['no answer in time'])[-1][:150]}")
    assert "Resources" in lab.workers[0].run(f"ray status --address {lab.head.address}:6379")
    assert ask_on(lab.head, jobs, *post, f"-H 'Authorization: Bearer {token}'") == 200  # all this was the token's doing
    wait_for((lab.head.folder / "owned").exists, 120)


def test_mlflow_wants_its_password_and_its_own_name(lab):
    server = f"http://{lab.head.address}:5000/api/2.0/mlflow/experiments/search?max_results=1"
    password = re.findall("password = (.+)", (lab.laptop / ".ctvr" / "mlflow_credentials").read_text())[0]

    def basic(text: str) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    assert ask(server) == ask(server, **basic("admin:password1234")) == ask(server, **basic("ctvr:wrong")) == 401
    assert ask(server, **basic(f"ctvr:{password}")) == 200
    assert ask(server, **basic(f"ctvr:{password}"), Host="evil.example.com") == 403


def test_a_first_sweep_ends(lab):
    said = lab.finish(lab.submit(*sweep_words("first", "0,4e-6")))
    assert "2 complete, 0 stopped early, 0 failed" in said


# ------------------------------------------------------------------------------------------- edited code


def test_a_node_with_other_sources_is_named_before_anything_starts(lab):
    file = lab.workers[1].folder / "home" / "ctvr_src" / "orchestrator" / "tables" / "build.py"
    kept = file.read_text()
    file.write_text(f"{kept}# an edit\n")
    said = lab.finish(lab.submit(*sweep_words("stale", "0,4e-6")), status=1)
    assert re.search(
        rf"ctvr: code: nodes {lab.workers[1].name} \(.*\) run different source code than this node \(\w{{12}}\)", said
    )
    assert "Traceback" not in said
    file.write_text(kept)


def test_ray_up_sends_local_edits_to_every_node(lab):
    with (lab.laptop / "ctvr" / "orchestrator" / "tables" / "build.py").open("a") as file:
        file.write("# another edit\n")
    said = lab.finish(lab.submit(*sweep_words("stale", "0,4e-6")), status=1)
    assert "this machine has other sources" in said
    assert "Run `ray up`" in said
    bring_up(lab)
    for host in lab.hosts.hosts:
        assert (host.folder / "home/ctvr_src/orchestrator/tables/build.py").read_text().endswith("# another edit\n")


# ------------------------------------------------------------------------------------------- a lost host


def test_a_sweep_survives_the_loss_of_a_host(lab, store):
    before = set(store.list("commits"))
    process = lab.submit(*sweep_words("second", "0,4e-6", "optim.epochs=150"))

    def committed() -> dict[str, int]:
        """Return trial's key -> its committed tasks."""
        new = [key.split("/")[0] for key in set(store.list("commits")) - before]
        return dict(Counter(key for key in new if not key.startswith("zero-")))

    def victim() -> Host | None:
        """Return a host whose trial is between two of its tasks."""
        running = [host for host in lab.hosts.hosts if any("ImplicitFunc" in p for p in host.processes().values())]
        begun = [key for key, tasks in committed().items() if tasks < 4]
        return next((host for host in running if host != lab.head and len(begun) >= len(running)), None)

    lost = wait_for(lambda: process.poll() is not None or victim())
    assert isinstance(lost, Host), lab.finish(process, None)
    done, at = committed(), time.monotonic()
    seconds = {key: store.get_json("commits", f"{key}/task_{n:03d}")["record"]["seconds"] for key, n in done.items()}
    lab.say(f"{lost.name} loses its power; finished tasks of each trial: {sorted(done.values())}")
    lost.lose_power()
    said = lab.finish(process)
    lab.say(f"the sweep ended {time.monotonic() - at:.0f} s later")
    assert "2 complete, 0 stopped early, 0 failed" in said
    assert "nodes 2" in lab.head.run(NODES)
    for key, of_tasks in seconds.items():  # finished tasks were not computed again: their times would differ
        assert store.get_json("commits", f"{key}/task_004")["record"]["seconds"][: len(of_tasks)] == of_tasks
    lab.say("no finished task was computed again")


def test_every_slot_is_released(lab):
    code = (
        "from ray.util.state import list_placement_groups as l; print('left', [g for g in l() if g.state != 'REMOVED'])"
    )
    assert "left []" in wait_for(lambda: lab.head.run(f'python -c "{code}" 2>/dev/null', check=False), 120)


# ---------------------------------------------------------------------------------------------- numbers


def points(database: Path) -> dict[str, dict[tuple[str, int], list[float]]]:
    """Return run's learning rate and epochs -> (metric, step) -> every value that was recorded for it."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        trials = dict(opened.execute("select run_uuid, value from tags where key = 'ctvr.kind' and value = 'trial'"))
        params = {name: dict[str, str]() for name in trials}
        for run_id, key, value in opened.execute("select run_uuid, key, value from params"):
            if run_id in params:
                params[run_id][key] = value
        found: dict[str, dict[tuple[str, int], list[float]]] = {}
        for run_id, given in params.items():
            of_run = found.setdefault(f"lr {float(given['method.lr'])} epochs {given['optim.epochs']}", {})
            for key, step, value in opened.execute(
                "select key, step, value from metrics where run_uuid = ?", (run_id,)
            ):
                of_run.setdefault((key, step), []).append(value)
        return found


def test_ray_metrics_equal_a_local_run_and_are_logged_once(lab, store, tmp_path, monkeypatch):
    local = tmp_path / "local"
    for epochs in (2, 150):
        for lr in (0, 4e-6):
            settings = {"method": "clip4clip", "stream": str(lab.hosts.shared / "small" / "small.json")}
            settings |= dict(word.split("=") for word in FIXED)
            settings |= {"method.lr": lr, "optim.epochs": epochs, "evaluation.split": "val"}
            run(settings, (), ExecutionConfig(runs=local))
    mine = Store.open(local / "store")
    theirs = {key: store.get_json("commits", key) for key in store.list("commits")}
    assert set(theirs) == set(mine.list("commits"))
    for key, commit in theirs.items():
        expected = mine.get_json("commits", key)
        for each in (commit, expected):
            for name in MEASURED:
                each["record"].pop(name, None)
        assert commit == expected
    lab.say(f"{len(theirs)} commits of the cluster equal those of a local run, digests of weights included")
    found = points(lab.head.folder / "home" / "ctvr_mlflow" / "mlflow.db")
    expected = points(local / "mlflow.db")
    assert set(found) == set(expected)
    for name, of_run in expected.items():
        assert {point: len(values) for point, values in found[name].items()} == dict.fromkeys(of_run, 1)
        for (key, step), values in of_run.items():
            if not re.search("second|time|memory|cost", key):
                assert found[name][key, step] == values
    lab.say(f"{sum(map(len, found.values()))} metrics stand in MLflow on the head, each of them once")


# ---------------------------------------------------------------------------------------------- secrets


def test_no_secret_was_written_down_or_printed(lab):
    secrets = {
        "the store's key": SECRET,
        "Ray's token": (lab.laptop / ".ctvr" / "ray_token").read_text(),
        "MLflow's password": re.findall("password = (.+)", (lab.laptop / ".ctvr/mlflow_credentials").read_text())[0],
    }
    homes = [host.folder / "home" for host in lab.hosts.hosts]
    allowed = {home / name for home in homes for name in (".ctvr_keys", ".ray/auth_token", ".mlflow/credentials")}
    folders = [lab.hosts.shared, *(host.folder / "tmp" for host in lab.hosts.hosts), *homes]
    read = 0
    for file in [lab.transcript, *(file for folder in folders for file in folder.rglob("*"))]:
        if file.is_symlink() or not file.is_file() or file in allowed or "ctvr_venv" in file.parts:
            continue
        content = file.read_bytes()
        read += 1
        assert not [name for name, value in secrets.items() if value.encode() in content], file
    lab.say(f"none of {len(secrets)} secrets stands in {read} files of the hosts, nor in what was printed")


def test_ray_down_ends_it(lab):
    lab.command("ray", "down", "-y", str(lab.yaml), worth="shut down|remaining")

    def raylets() -> list[str]:
        return [line for host in lab.hosts.hosts for line in host.processes().values() if "raylet" in line]

    # On on-premises hosts the command stops Ray only on the head; the others miss it for 60 s, then end themselves.
    wait_for(lambda: not raylets(), 240)
