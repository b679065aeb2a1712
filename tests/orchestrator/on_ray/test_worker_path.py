"""Ray's workers import nothing from the user's current folder, except a method that the user names."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ctvr.orchestrator.interpreter import child_environment
from tests.orchestrator.test_interpreter import canaries, imported_names

__all__ = ["canaries"]  # a fixture

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "text_shift" / "text_shift.py"

DRIVER = """
import json
import ray
from ctvr.orchestrator.on_ray.connection import connect

def look(names):
    import importlib, os, sys
    from ctvr.methods import find_method, trust
    trust(["my_file:Mine"])  # as a sweep's plan hands on what the user has typed
    mine = find_method("my_file:Mine").__name__  # from here on modules that nobody else has are looked for there
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # of another system, or not installed
            pass
    return sys.path, os.getcwd(), mine

connect("local", 1)
found = ray.get(ray.remote(num_cpus=0)(look).remote(NAMES), timeout=100)
print(json.dumps(found))
ray.shutdown()
"""
METHOD = """
from dataclasses import dataclass
from ctvr.methods.zero_shot import ZeroShot

@dataclass(frozen=True, kw_only=True)
class MineConfig:
    x: int = 1

class Mine(ZeroShot):
    Config = MineConfig
"""


TRIALS = """
import json, os
from pathlib import Path
from ctvr.methods import trust
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.on_ray.connection import connect
from ctvr.orchestrator.on_ray.plan import TrialPlan
from ctvr.orchestrator.on_ray.tune import run_specs

execution = ExecutionConfig(runs=Path(RUNS))
uri, found = execution.tracker("small").uri, []
connect("local", 2)
for typed, numbers in (((), (1, 2)), (("method.base=my_file:TextShift",), (2,))):
    trust(typed)
    for workers in numbers:
        name, settings = f"{len(typed)}-{workers}", {"method": "lump", "stream": STREAM, "optim.epochs": 1}
        folder, share = str(execution.folder(name)), {"workers": workers, "cpus_per_worker": 0.9}
        plan = TrialPlan(name, RUNS, "", uri, None, folder, settings, **share)
        outcome = run_specs(plan, 2, [{}])
        executed = Path(EXECUTED).read_text().split() if Path(EXECUTED).exists() else []
        found.append((outcome.complete, outcome.failed, sorted(set(executed) - {str(os.getpid())})))
print(json.dumps(found))
"""


def run_driver(driver: str, here: Path, script: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that starts its own Ray in a folder with files of the user."""
    script.write_text(driver, encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        environment = {**child_environment(), "RAY_TMPDIR": folder}
        for name in ("RAY_ADDRESS", "CTVR_METHOD_FOLDERS"):
            environment.pop(name, None)
        done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, cwd=here)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_worker_ignores_the_working_folder_but_finds_the_plug_in(canaries, tmp_path):
    (canaries / "my_file.py").write_text(METHOD, encoding="utf-8")
    names = sorted(imported_names() & {"random", "json", "queue", "statistics", "ctvr", "numpy", "yaml"})
    done = run_driver(DRIVER.replace("NAMES", repr(names)), canaries, tmp_path / "driver.py")
    path, here, name = json.loads(done.stdout.splitlines()[-1])
    assert name == "Mine"
    assert not {"", str(canaries), str(tmp_path)} & set(path)
    assert os.path.samefile(here, canaries)  # paths mean in a worker what they mean where it was started


@pytest.mark.slow
def test_manifest_class_runs_only_if_the_user_typed_it(few, tmp_path):
    executed = str(tmp_path / "executed")
    marked = f"import os\n\nwith open({executed!r}, 'a') as file:\n    file.write(f'{{os.getpid()}} ')\n"
    (tmp_path / "my_file.py").write_text(EXAMPLE.read_text().replace("import os\n", marked))
    manifest = json.loads(Path(few).read_text())
    manifest["settings"] |= {"method.base": "my_file:TextShift"}
    (tmp_path / "few.json").write_text(json.dumps(manifest | {"videos": str(Path(few).parent / "videos")}))
    script = TRIALS
    for word, path in (("RUNS", tmp_path / "runs"), ("STREAM", tmp_path / "few.json"), ("EXECUTED", executed)):
        script = script.replace(word, repr(str(path)))
    done = run_driver(script, tmp_path, tmp_path / "driver.py")
    trial, worker, typed = json.loads(done.stdout.splitlines()[-1])
    assert trial == worker == [0, 1, []]
    assert done.stderr.count("the class my_file:TextShift is not named by this command") >= 2
    assert typed[:2] == [1, 0]
    assert len(typed[2]) >= 2  # processes besides the driver that have executed the file
