"""cluster/skypilot.yaml fits the project, and SkyPilot's own parser accepts it.

SkyPilot's packages conflict with ours. To run the last tests, install it in a separate environment and name its
interpreter: `CTVR_SKYPILOT=/tmp/sky/bin/python pytest tests/cluster/test_skypilot.py`.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "cluster" / "skypilot.yaml"
PARSE = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
print(task.name, task.num_nodes, sorted(set().union(*(each.accelerators for each in task.resources))))
"""


@pytest.fixture
def task() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_scripts_of_the_skypilot_task_parse_and_call_existing_files(task: dict[str, Any]) -> None:
    for name in ("setup", "run"):
        done = subprocess.run(["bash", "-n"], input=task[name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    called = set(re.findall(r"cluster/\w+\.sh", task["run"]))
    assert called == {"cluster/services.sh", "cluster/resume.sh"}
    assert all((ROOT / script).is_file() for script in called)
    assert re.search(r"(?m)^uv==", (ROOT / "constraints.txt").read_text())


def test_the_token_is_demanded_and_no_secret_is_in_the_file(task: dict[str, Any]) -> None:
    assert "RAY_AUTH_MODE=token" in task["run"]
    assert set(task["file_mounts"]) >= {"~/.ctvr/ray_token", "~/.mlflow/credentials"}
    assert not [name for name in task["envs"] if re.search("(?i)key|secret|password|token", name)]
    starts = [line for line in task["run"].splitlines() if "ray start" in line]
    assert len(starts) == 2
    assert "ray stop" not in re.sub("(?m)^#.*", "", task["run"])  # it would end SkyPilot's own Ray
    assert "--dashboard-host=127.0.0.1" in task["run"]


def test_a_sweep_of_the_file_is_one_that_the_command_line_accepts(task: dict[str, Any]) -> None:
    from ctvr.orchestrator.cli.main import make_parser

    words = ["sweep", "--name", task["envs"]["NAME"], "--address", "10.0.0.1:6379", "--nodes", str(task["num_nodes"])]
    given = make_parser().parse_args([*words, *task["envs"]["WORDS"].split()])
    assert (given.method, given.overrides) == ("framefusion_moe", ["precision=bf16"])


@pytest.fixture
def sky() -> str:
    python = os.environ.get("CTVR_SKYPILOT", "")
    if not Path(python).is_file():
        pytest.skip("CTVR_SKYPILOT names no interpreter with SkyPilot")
    return python


def parsed(sky: str, file: Path, home: Path) -> subprocess.CompletedProcess[str]:
    for name in ("ray_token", "mlflow_credentials"):
        (home / ".ctvr").mkdir(exist_ok=True)
        (home / ".ctvr" / name).touch()
    variables = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return subprocess.run([sky, "-c", PARSE, str(file)], env=variables, cwd=ROOT, capture_output=True, text=True)


def test_skypilot_accepts_it(sky: str, tmp_path: Path) -> None:
    done = parsed(sky, FILE, tmp_path)
    assert done.stdout.split(maxsplit=2)[:2] == ["ctvr", "2"], done.stderr
    assert "A100-80GB" in done.stdout


def test_skypilot_would_refuse_an_unknown_field(sky: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FILE.read_text().replace("num_nodes:", "nodes:"))
    done = parsed(sky, wrong, tmp_path)
    assert done.returncode != 0
    assert "nodes" in done.stderr
