"""Ctrl-C while a command is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INTERRUPT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def interrupted(tmp_path, module, *command):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "AT": module}
    return subprocess.run([sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize(
    "module", ["ctvr.kernels", "ctvr.torch_import", "ctvr.orchestrator.cli.main", "ctvr.orchestrator.config", "psutil"]
)
def test_ctrl_c_in_an_import_of_the_command_is_one_line(tmp_path, module):
    done = interrupted(tmp_path, module, "-m", "ctvr", "methods")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ctvr: stopped.\n")


def test_ctrl_c_in_an_import_of_an_action_is_one_line(tmp_path):
    done = interrupted(tmp_path, "ctvr.orchestrator.catalog.methods", "-m", "ctvr", "methods")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ctvr: stopped.\n")


@pytest.mark.parametrize("name", ["train.py", "ctvr"])
def test_a_program_or_child_process_that_imports_ctvr_keeps_its_handler(tmp_path, name):
    code = "import multiprocessing, signal, ctvr\n"
    code += "def is_default(): return signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    code += "if __name__ == '__main__':\n"
    code += "    child = multiprocessing.get_context('spawn').Pool(1).apply(is_default)\n"
    code += "    print(is_default(), child)\n"
    (tmp_path / name).write_text(code)
    done = interrupted(tmp_path, "no.such", str(tmp_path / name))
    assert done.stdout.split() == [str(name != "ctvr"), "True"], done.stderr
