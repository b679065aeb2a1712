"""Ray's workers import nothing from the user's current folder, except a method that the user names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import pytest

from ctvr.orchestrator.interpreter import child_environment
from tests.orchestrator.test_interpreter import canaries, imported_names

__all__ = ["canaries"]  # a fixture

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


@pytest.mark.slow
def test_a_worker_executes_no_file_of_the_present_folder_and_finds_the_users_method(canaries, tmp_path):
    (canaries / "my_file.py").write_text(METHOD, encoding="utf-8")
    names = sorted(imported_names() & {"random", "json", "queue", "statistics", "ctvr", "numpy", "yaml"})
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER.replace("NAMES", repr(names)), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        environment = {**child_environment(), "RAY_TMPDIR": folder}
        for name in ("RAY_ADDRESS", "CTVR_METHOD_FOLDERS"):
            environment.pop(name, None)
        command = [sys.executable, str(driver)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=canaries)
    assert done.returncode == 0, done.stderr
    path, here, name = json.loads(done.stdout.splitlines()[-1])
    assert name == "Mine"
    assert not {"", str(canaries), str(tmp_path)} & set(path)
    assert os.path.samefile(here, canaries)  # paths mean in a worker what they mean where it was started
