"""The scripts of a cluster: set-up of a node, MLflow's service, resumption, submission. Nothing is installed."""

import http.server
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_cluster import REPOSITORY, SERVICES, SETUP, Cluster, a100, commands

__all__ = ["a100"]  # a fixture


def script(home: Path, path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **more}
    return subprocess.run(["bash", str(path), *words], env=environment, capture_output=True, text=True, check=False)


def put_programs(folder: Path, **does: str) -> None:
    """Write the shell programs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in does.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


def shell(home: Path, line: str) -> str:
    """Return the output of a line in a new shell of a node."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True).stdout


def test_secrets_are_random_private_and_made_once(tmp_path: Path) -> None:
    assert script(tmp_path, SETUP, "secrets").returncode == 0
    files = [tmp_path / ".ctvr" / name for name in ("ray_token", "mlflow_credentials")]
    first = [file.read_text() for file in files]
    assert len(first[0]) == 64
    assert len(first[1].split("password = ")[1].strip()) >= 24
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert script(tmp_path, SETUP, "secrets").returncode == 0
    assert [file.read_text() for file in files] == first


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Make a home with the secrets in place and a `uv` that only records its arguments."""
    for name in (".ray/auth_token", ".mlflow/credentials"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    put_programs(tmp_path / "uv" / "bin", uv=f'echo "$@" >>{tmp_path}/asked')
    put_programs(tmp_path / "venv" / "bin", python="")
    (tmp_path / ".bashrc").write_text("# mine\nreturn\n")
    return tmp_path


def of_node(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a node's scripts; `programs` stand before the machine's own."""
    path = f"{home / 'programs'}:{os.environ['PATH']}"
    return {"CTVR_UV": str(home / "uv"), "CTVR_VENV": str(home / "venv"), "PATH": path, **more}


def set_up(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return script(home, SETUP, "node", *words, **of_node(home))


def test_a_node_is_set_up_once_however_often_it_is_asked(node: Path) -> None:
    for _ in range(3):
        done = set_up(node, "CTVR_STORE=s3://bucket/a b", "CTVR_NODES=2")
        assert done.returncode == 0, done.stderr
    asked = (node / "asked").read_text().splitlines()
    assert len(asked) == 1
    assert f"-c {REPOSITORY}/constraints.txt -e {REPOSITORY}" in asked[0]
    assert (node / ".bashrc").read_text() == "[ ! -f ~/.ctvr_env ] || . ~/.ctvr_env\n# mine\nreturn\n"
    shown = shell(node, 'source ~/.bashrc; echo "$CTVR_STORE|$CTVR_NODES|$RAY_AUTH_MODE|$PATH"')
    assert shown.startswith(f"s3://bucket/a b|2|token|{node}/venv/bin:")
    assert all(stat.S_IMODE((node / name).stat().st_mode) == 0o600 for name in (".ray/auth_token", ".ctvr_env"))


def test_a_start_brings_back_what_a_machine_had(node: Path) -> None:
    """Ray leaves the setup out where a machine was stopped and started, or where only files changed."""
    asked, shared, table = node / "asked", node / "mnt", node / "fstab"
    sudo = f'if [ "$1" = tee ] || [ "$1" = mkdir ]; then exec "$@"; fi; echo "$@" >>{asked}'
    put_programs(node / "programs", sudo=sudo, mountpoint="exit 1", **{"mount.nfs4": "exit 0"})
    more = of_node(node, CTVR_FSTAB=str(table))
    for _ in range(2):
        assert script(node, SETUP, "mount", "fs-1:/", str(shared), **more).returncode == 0
    (entry,) = table.read_text().splitlines()
    assert re.fullmatch(rf"fs-1:/ {shared} nfs4 \S+,_netdev,nofail 0 0", entry)
    videos = shared / "videos"
    assert script(node, SETUP, "node", f"CTVR_VIDEOS={videos}", **more).returncode == 0
    assert script(node, SETUP, "add", "boto3", **more).returncode == 0
    assert videos.is_dir()  # a sweep without it is refused
    videos.rmdir()
    asked.unlink()
    assert script(node, SETUP, "again", **more).returncode == 0
    assert f"mount -t nfs4 -o {entry.split()[3].removesuffix(',_netdev,nofail')} fs-1:/ {shared}" in asked.read_text()
    assert "pip install" not in asked.read_text()  # the installed packages are those that the files require
    assert videos.is_dir()
    (node / "venv" / ".ctvr_stamp").write_text("of other files")
    assert script(node, SETUP, "again", **more).returncode == 0
    assert re.search(rf"pip install .* -e {re.escape(str(REPOSITORY))}\[all\] boto3$", asked.read_text(), re.MULTILINE)


@pytest.fixture
def signed(node: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make an installer of EFA, its signature and the key next to it; return the settings that name them."""
    keys = tmp_path_factory.mktemp("keys")
    gpg = ["gpg", "--homedir", str(keys), "--batch", "-q", "--pinentry-mode", "loopback", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-gen-key", "EFA", "ed25519", "sign"], check=True, capture_output=True)
    listed = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    made = f"mkdir -p {node}/amazon/efa/lib {node}/amazon/ofi-nccl/lib"
    put_programs(node / "aws-efa-installer", **{"efa_installer.sh": f"echo $@ >{node}/installed\n{made}"})
    archive = node / "installer.tar.gz"
    subprocess.run(["tar", "czf", archive, "-C", node, "aws-efa-installer"], check=True)
    subprocess.run([*gpg, "-o", f"{archive}.sig", "--detach-sign", str(archive)], check=True)
    subprocess.run([*gpg, "--armor", "-o", str(node / "aws-efa-installer.key"), "--export"], check=True)
    subprocess.run(["gpgconf", "--homedir", str(keys), "--kill", "all"], check=False)
    put_programs(node / "programs", sudo=f'touch {node}/sudo; exec "$@"')
    (node / "infiniband").mkdir()
    return {
        "CTVR_EFA_INSTALLER": f"file://{archive}",
        "CTVR_EFA_KEY": re.findall(r"^fpr:+([0-9A-F]{40}):", listed, re.MULTILINE)[0],
        "CTVR_AMAZON": str(node / "amazon"),
        "CTVR_RDMA_DEVICES": str(node / "infiniband"),
    }


@pytest.mark.parametrize("devices", [(), ("efa_0",), ("mlx5_0",)])
@pytest.mark.parametrize("is_installed", [True, False])
def test_a_machine_with_an_efa_interface_has_its_libraries(
    node: Path, signed: dict[str, str], devices: tuple[str, ...], is_installed: bool
) -> None:
    amazon = node / "amazon"
    for name in devices:
        (node / "infiniband" / name).mkdir()
    if is_installed:
        for name in ("efa", "ofi-nccl"):
            (amazon / name / "lib").mkdir(parents=True)
    done = script(node, SETUP, "node", "CTVR_NODES=2", **of_node(node, **signed))
    assert done.returncode == 0, done.stderr
    is_efa = devices == ("efa_0",)
    assert (node / "installed").exists() is (is_efa and not is_installed)
    shown = shell(node, 'source ~/.ctvr_env; echo "$LD_LIBRARY_PATH"')
    assert shown.strip() == (f"{amazon}/ofi-nccl/lib:{amazon}/efa/lib" if is_efa else "")


@pytest.mark.parametrize("fault", ["changed", "no signature", "another key", "no gpg"])
def test_an_installer_without_a_valid_signature_is_not_run_as_root(
    node: Path, signed: dict[str, str], fault: str
) -> None:
    (node / "infiniband" / "efa_0").mkdir()
    if fault == "changed":
        with (node / "installer.tar.gz").open("ab") as file:
            file.write(b"x")
    elif fault == "no signature":
        (node / "installer.tar.gz.sig").unlink()
    elif fault == "another key":
        signed["CTVR_EFA_KEY"] = "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
    else:
        put_programs(node / "programs", gpg="exit 127")
    done = script(node, SETUP, "node", "CTVR_NODES=2", **of_node(node, **signed))
    assert done.returncode == 2
    assert not (node / "sudo").exists()
    line = done.stderr.splitlines()[-1]
    assert signed["CTVR_EFA_KEY"] in line
    assert signed["CTVR_EFA_INSTALLER"] in line
    of_curl = fault == "no signature"  # it names the fault of a download
    assert len(done.stderr.splitlines()) == 1 + of_curl, done.stderr


def test_every_download_of_a_script_has_a_version_or_a_signature() -> None:
    for file in sorted((REPOSITORY / "cluster").iterdir()):
        text = file.read_text(errors="replace")
        assert not re.search(r"(curl|wget)[^\n;]*\|\s*(sudo|sh|bash|tar)\b", text), file
        assert not re.search(r"https://\S*latest\S*\.(tar|tgz|zip|sh|deb|rpm)", text), file


@pytest.mark.parametrize("is_mounted", [True, False])
def test_the_cache_is_on_a_machines_own_disks_where_they_are_mounted(
    node: Path, a100: Cluster, is_mounted: bool
) -> None:
    """Their mount is root's, and empty after each start."""
    disks, made = node / "nvme", node / "by_root"
    disks.mkdir()
    put_programs(
        node / "programs",
        mountpoint=f'[ "$2" = {disks} ] && exit {int(not is_mounted)}',
        mkdir=f'[ "$2" != {disks}/ctvr_cache ] || exit 1; exec /bin/mkdir "$@"',  # of a user who is not root
        sudo=f'echo "$@" >>{made}; if [ "$1" = mkdir ]; then shift; exec /bin/mkdir "$@"; fi',
    )
    command = next(word for word in commands(a100, "setup_commands") if "setup.sh node" in word)
    setup = shlex.quote(str(SETUP))
    command = command.replace("~/ctvr_src/cluster/setup.sh", setup).replace("/mnt/ctvr", str(node / "mnt"))
    for start in (command.replace("/opt/dlami/nvme", str(disks)), f"bash {setup} again"):
        subprocess.run(["bash", "-c", start], env={"HOME": str(node), **of_node(node)}, check=True)
        cache = (disks if is_mounted else node) / "ctvr_cache"
        assert f"export CTVR_CACHE={cache}\n" in (node / ".ctvr_env").read_text()
        assert cache.is_dir()
        assert made.exists() == is_mounted
        cache.rmdir()


@pytest.mark.parametrize(("gpus", "started"), [("0.25", "-d\n"), ("1", ""), ("", "")])
def test_mps_is_started_where_trials_share_a_gpu(node: Path, gpus: str, started: str) -> None:
    asked = node / "mps"
    asked.touch()
    put_programs(node / "programs", pgrep="exit 1", **{"nvidia-cuda-mps-control": f'echo "$@" >>{asked}'})
    assert set_up(node, *([f"CTVR_GPUS_PER_TRIAL={gpus}"] if gpus else [])).returncode == 0
    assert script(node, SETUP, "again", **of_node(node)).returncode == 0
    assert asked.read_text() == started


def test_the_build_of_torch_can_be_that_of_an_older_driver(node: Path) -> None:
    for word, pinned in (("CTVR_TORCH_BACKEND=cu126", False), ("CTVR_NODES=1", True)):
        done = set_up(node, word)
        assert done.returncode == 0, done.stderr
        asked = (node / "asked").read_text().splitlines()[-1]
        assert (" --torch-backend " in asked) != pinned
        constraints = Path(asked.partition(" -c ")[2].partition(" -e ")[0]).read_text()
        assert "torch==" in constraints
        assert ("nvidia-cublas==" in constraints) == pinned


def test_a_node_is_not_started_again_below_a_sweep(node: Path) -> None:
    driver = node / "ctvr_drivers" / "20260101-000000"
    driver.mkdir(parents=True)
    words = [sys.executable, "-c", "import time; time.sleep(600)", "ctvr.orchestrator.cli.detached"]
    with subprocess.Popen(words) as running:
        (driver / "pid").write_text(str(running.pid))
        refused = script(node, SETUP, "again", **of_node(node))
        running.kill()
    assert refused.returncode == 2
    assert "a sweep is running here" in refused.stderr
    assert script(node, SETUP, "again", **of_node(node)).returncode == 0


def test_a_spot_machine_that_is_taken_away_is_drained(node: Path) -> None:
    """The machine's metadata is served here, with tokens as on AWS."""
    asked: list[str] = []
    is_taken = threading.Event()

    class Metadata(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

        def do_PUT(self) -> None:
            self.answer("token" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] else "")

        def do_GET(self) -> None:
            known = self.headers["X-aws-ec2-metadata-token"] == "token"
            path = self.path.removeprefix("/latest/meta-data/")
            asked.append(path)
            notice = '{"action": "terminate"}' if is_taken.is_set() else ""
            self.answer({"instance-life-cycle": "spot", "spot/instance-action": notice}[path] if known else "")

        def answer(self, text: str) -> None:
            self.send_response(200 if text else 404)
            self.end_headers()
            self.wfile.write(text.encode())

    put_programs(node / "programs", ray=f'echo "$@" >{node}/drained')
    more = of_node(node, CTVR_SPOT_SECONDS="0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        more["CTVR_METADATA"] = f"http://127.0.0.1:{server.server_port}"
        for _ in range(2):  # the second leaves the first alone
            assert script(node, SETUP, "again", **more).returncode == 0
        is_taken.set()
        until = time.monotonic() + 120
        while not (node / "drained").exists() or not (node / "drained").read_text():
            assert time.monotonic() < until, (node / "ctvr_spot.log").read_text()
            time.sleep(0.05)
        server.shutdown()
    assert asked.count("instance-life-cycle") == 1
    assert "AWS takes this machine away" in (node / "ctvr_spot.log").read_text()
    from click.testing import CliRunner  # what Ray itself understands of these words
    from ray.scripts.scripts import cli

    words = shlex.split((node / "drained").read_text().replace("spot notice", "'spot notice'"))
    assert "no cluster" in str(CliRunner().invoke(cli, [*words, "--address", "no cluster"]).exception)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY is not a setting of a node"),
        ("CTVR_STOR=x", "CTVR_STOR is not a setting of a node. Known: CTVR_STORE"),
        ("CTVR_STORE", "CTVR_STORE is not of the form NAME=VALUE"),
    ],
)
def test_a_node_refuses_other_settings_than_the_public_ones(node: Path, word: str, message: str) -> None:
    done = set_up(node, word)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (node / ".ctvr_env").exists()


def test_a_node_without_the_token_says_what_was_forgotten(node: Path) -> None:
    (node / ".ray" / "auth_token").unlink()
    done = set_up(node)
    assert done.returncode == 2
    assert "Run `bash cluster/setup.sh secrets` before `ray up`" in done.stderr


@pytest.mark.parametrize("path", [SETUP, SERVICES], ids=lambda path: path.name)
def test_a_script_without_a_command_lists_its_commands(tmp_path: Path, path: Path) -> None:
    done = script(tmp_path, path)
    assert done.returncode == 2
    assert re.search(r"use .+ or ", done.stderr)


def test_the_server_does_not_start_without_its_password(tmp_path: Path) -> None:
    done = script(tmp_path, SERVICES, "start", CTVR_HEAD_IP="127.0.0.1")
    assert done.returncode == 2
    assert ".mlflow/credentials is missing" in done.stderr


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """Make a home with the password and a `python` whose MLflow server only records its arguments."""
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow" / "credentials").write_text("[mlflow]\nmlflow_tracking_password = x\n")
    home = shlex.quote(str(tmp_path))
    put_programs(
        tmp_path / "bin",
        python=f"""
case "$*" in
  *"import psycopg"*) [ -e {home}/driver ] ;;
  *"mlflow server"*) echo "$@" >{home}/arguments; echo "$MLFLOW_BACKEND_STORE_URI" >{home}/uri; sleep 3 ;;
  *urllib*) [ -e {home}/uri ] ;;
  *) exec {shlex.quote(sys.executable)} "$@" ;;
esac""",
    )
    return tmp_path


def serve(home: Path, word: str, database: str) -> subprocess.CompletedProcess[str]:
    (home / ".ctvr_env").write_text(f"export CTVR_MLFLOW_DATABASE={database}\n")  # which reads ~/.ctvr_keys
    more = {"PATH": f"{home}/bin:{os.environ['PATH']}", "CTVR_HEAD_IP": "127.0.0.1", "CTVR_BACKUP_SECONDS": "1"}
    return script(home, SERVICES, word, **more)


@pytest.mark.slow
@pytest.mark.parametrize(("ignored", "ends"), [(0, "the first"), (1, "the second")])
def test_the_end_of_a_pod_lets_a_sweep_pause_and_ends_it(served: Path, ignored: int, ends: str) -> None:
    """`around` waits for the sweep itself, returns its status, and stops MLflow after it."""
    put_programs(
        served / "bin",
        sweep=f"""
trap 'n=$((${{n:-0}} + 1)); [ $n -le {ignored} ] || {{ echo ended >>{served}/order; exit 7; }}' INT
touch {served}/began; while :; do sleep 0.1; done""",
    )
    more = {"PATH": f"{served}/bin:{os.environ['PATH']}", "HOME": str(served), "CTVR_HEAD_IP": "127.0.0.1"}
    more |= {"CTVR_RUNS": str(served / "runs"), "CTVR_PAUSE_SECONDS": "2"}
    (served / "ctvr_mlflow").mkdir()
    sqlite3.connect(served / "ctvr_mlflow" / "mlflow.db").close()
    done = subprocess.Popen(["bash", str(SERVICES), "around", "sweep"], env={**os.environ, **more})
    until = time.monotonic() + 60
    while not (served / "began").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(0.5)
    asked = time.monotonic()
    done.terminate()
    assert done.wait(60) == 7, ends
    assert (time.monotonic() - asked >= 2) is bool(ignored)
    assert (served / "order").read_text() == "ended\n"


@pytest.mark.slow
def test_records_are_on_a_database_server_if_one_is_named(served: Path) -> None:
    database = "postgresql://me:secret@db/mlflow"
    (served / "driver").touch()
    done = serve(served, "start", database)
    assert done.returncode == 0, done.stderr
    assert (served / "uri").read_text() == f"{database}\n"
    assert "secret" not in (served / "arguments").read_text() + done.stdout + done.stderr
    assert not (served / "ctvr_mlflow" / "copies.log").exists()  # it keeps its own backups
    assert "keeps its own backups" in serve(served, "backup", database).stdout
    assert serve(served, "restore", database).returncode == 0
    assert not (served / "runs" / "backup").exists()
    assert serve(served, "stop", database).returncode == 0


@pytest.mark.slow
def test_records_are_in_sqlite_otherwise(served: Path) -> None:
    assert serve(served, "start", "").returncode == 0
    assert "--host 127.0.0.1 --port" in (served / "arguments").read_text()
    assert (served / "uri").read_text() == f"sqlite:///{served}/ctvr_mlflow/mlflow.db\n"
    ends = time.monotonic() + 30
    while not (served / "ctvr_mlflow" / "copies.log").exists():
        assert time.monotonic() < ends, "nothing copies the database"
        time.sleep(0.05)
    assert serve(served, "stop", "").returncode == 0


@pytest.mark.parametrize(
    ("database", "message"),
    [
        (
            "postgresql://me:secret@db/mlflow",
            "its driver is not installed. Run `bash cluster/setup.sh add psycopg[binary]~=3.2`.",
        ),
        ("mongodb://me:secret@db/mlflow", "must begin with postgresql://"),
    ],
)
def test_refused_database_server_hides_its_password(served: Path, database: str, message: str) -> None:
    done = serve(served, "start", database)
    assert done.returncode == 2
    assert f"CTVR_MLFLOW_DATABASE: {message}" in done.stderr
    assert "secret" not in done.stderr


def test_a_backup_of_the_database_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "ctvr_mlflow").mkdir()
    with sqlite3.connect(tmp_path / "ctvr_mlflow" / "mlflow.db") as database:
        database.execute("create table runs (name text)")
        database.execute("insert into runs values ('kept')")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = script(tmp_path, SERVICES, "backup", PATH=path, CTVR_HEAD_IP="127.0.0.1")
    copied = Path(done.stdout.strip())
    assert copied.parent == tmp_path / "runs" / "backup"
    assert sqlite3.connect(copied).execute("select name from runs").fetchall() == [("kept",)]
    (tmp_path / "ctvr_mlflow" / "mlflow.db").unlink()  # a new head
    copied.with_name("mlflow-20200101-000000.db").write_text("older")
    for _ in range(2):  # an existing database is not touched
        assert script(tmp_path, SERVICES, "restore", PATH=path, CTVR_HEAD_IP="127.0.0.1").returncode == 0
        with sqlite3.connect(tmp_path / "ctvr_mlflow" / "mlflow.db") as database:
            assert database.execute("select name from runs").fetchall() == [("kept",)]
        copied.write_text("newer")


@pytest.mark.parametrize("begun", [False, True])
def test_a_command_that_is_started_again_resumes(tmp_path: Path, begun: bool) -> None:
    """As Slurm and Kubernetes start it: the same words every time."""
    put_programs(tmp_path / "bin", ctvr='echo "$@"')
    if begun:
        (tmp_path / "sweeps" / "mine").mkdir(parents=True)
        (tmp_path / "sweeps" / "mine" / "plan.json").touch()
    words = ["mine", "--address", "10.0.0.1:6379", "--method", "lwf", "--nodes=2", "optim.epochs=3"]
    more = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CTVR_RUNS": str(tmp_path)}
    done = script(tmp_path, REPOSITORY / "cluster" / "resume.sh", *words, **more)
    fresh = "sweep --name mine --address 10.0.0.1:6379 --method lwf --nodes=2 optim.epochs=3"
    assert done.stdout.strip() == ("sweep --resume mine --address 10.0.0.1:6379 --nodes=2" if begun else fresh)


@pytest.mark.parametrize(
    ("status", "wanted", "ends"), [(0, "0", 0), (1, "0", 1), (2, "0", 0), (2, None, 2), (2, "2", 2), (143, "0", 143)]
)
def test_a_refused_sweep_ends_with_the_wanted_status(
    tmp_path: Path, status: int, wanted: str | None, ends: int
) -> None:
    put_programs(tmp_path / "bin", ctvr=f"exit {status}")
    more = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CTVR_RUNS": str(tmp_path)}
    more |= {} if wanted is None else {"CTVR_REFUSED_STATUS": wanted}
    done = script(tmp_path, REPOSITORY / "cluster" / "resume.sh", "mine", "--method", "lwf", **more)
    assert done.returncode == ends
    assert ("not repeated" in done.stderr) == (status != ends)


def test_a_slurm_job_ends_before_its_time_and_is_queued_again() -> None:
    batch = (REPOSITORY / "cluster" / "slurm.sbatch").read_text()
    asked = dict(re.findall(r"(?m)^#SBATCH --([a-z-]+)=?(.*)$", batch))
    assert re.fullmatch(r"B:USR1@\d+", asked["signal"])  # to the batch script alone
    assert {"requeue", "open-mode"} <= set(asked)
    assert re.search(
        r"scontrol requeue \S+ && sleep \d+", batch
    )  # ends with the job, not before: seen under a real Slurm
    assert subprocess.run(["bash", "-n", str(REPOSITORY / "cluster" / "slurm.sbatch")], check=False).returncode == 0
    refused = subprocess.run(["bash", str(REPOSITORY / "cluster" / "slurm.sbatch")], capture_output=True, check=False)
    assert (refused.returncode, b"this runs under Slurm" in refused.stderr) == (2, True)


def test_submit_passes_the_digest_of_the_sources(tmp_path: Path) -> None:
    from ctvr.orchestrator.digests import source_digest

    put_programs(tmp_path / "bin", ray='printf "%s\\n" "$@"')
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    onprem = REPOSITORY / "cluster" / "onprem.yaml"
    done = script(
        tmp_path,
        REPOSITORY / "cluster" / "submit.sh",
        str(onprem),
        "--method",
        "lwf",
        "--space",
        "a=(1, 2)",
        "it's",
        PATH=path,
    )
    sweep = REPOSITORY / "orchestrator" / "sweep.py"
    handed = done.stdout.splitlines()
    assert handed[:4] == ["submit", str(onprem), str(sweep), "--"]
    there = " ".join(handed[4:])  # as Ray joins them, for a shell on the head
    read = subprocess.run(["bash", "-c", f'printf "%s\\n" {there}'], capture_output=True, text=True, check=True).stdout
    assert read.splitlines() == ["--expect-sources", source_digest(), "--method", "lwf", "--space", "a=(1, 2)", "it's"]
    done = script(tmp_path, REPOSITORY / "cluster" / "submit.sh", "--method", "lwf", PATH=path)
    assert done.returncode == 2
    assert "pass the cluster's YAML file first" in done.stderr


@pytest.mark.parametrize("shadow", [False, True], ids=["alone", "beside a folder of its package's name"])
def test_the_sweep_runs_where_ray_submit_copies_it(tmp_path: Path, shadow: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "sweep.py").write_bytes((REPOSITORY / "orchestrator" / "sweep.py").read_bytes())
    if shadow:
        (home / "orchestrator").mkdir()
    done = subprocess.run([sys.executable, "sweep.py", "--help"], cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--gpus-per-trial" in done.stdout


def test_a_job_uses_only_a_folder_of_its_own_user(tmp_path):
    """The folder's name is predictable, so another user of the node may make it first."""
    script = (REPOSITORY / "cluster" / "slurm.sbatch").read_text()
    function = re.search(r"own_folder\(\) \{.*?\n\}", script, re.DOTALL)
    assert function is not None

    def made(folder: Path) -> int:
        code = f"fail() {{ echo $* >&2; exit 2; }}\nLOCAL={folder}\n{function[0]}\nown_folder"
        return subprocess.run(["bash", "-c", code], capture_output=True).returncode

    for mode in (None, 0o777):
        folder = tmp_path / f"mine{mode}"
        if mode:
            folder.mkdir()
            folder.chmod(mode)
        assert made(folder) == 0
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "mineNone")
    (tmp_path / "file").touch()
    assert (made(tmp_path / "link"), made(tmp_path / "file")) == (2, 2)
    if os.getuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        assert made(tmp_path / "theirs") == 2
