"""`make setup` requests the build of torch that fits the machine from uv, and reports if that build is unreachable."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/../asked"
case "$*" in *--dry-run*--reinstall*) [ "$REACHED" = yes ];; esac
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return an environment whose programs do nothing; `asked` records the arguments of uv."""
    for name, text in (("uv", UV), ("python", "#!/bin/sh\n")):
        program = tmp_path / "venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path / "venv"


def set_up(venv: Path, torch: str, reached: str) -> tuple[str, str]:
    """Return what `make setup` printed, and the last request of uv."""
    words = ["make", "-s", "-C", str(ROOT), "setup", f"VENV={venv}", f"PYTHON={venv}/bin/python", f"TORCH={torch}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, capture_output=True, text=True, env={**environment, "REACHED": reached})
    assert done.returncode == 0, done.stderr
    return done.stdout, (venv / "asked").read_text().splitlines()[-1]


def test_torch_without_cuda_is_installed_with_the_other_pins(venv):
    printed, asked = set_up(venv, "cpu", "yes")
    assert printed == f"source {venv}/bin/activate\n"
    assert "--compile-bytecode" in asked
    assert f"--torch-backend cpu -c {venv}/pins.txt -e .[dev]" in asked
    pins = (venv / "pins.txt").read_text()
    assert "\ntorch==" in pins
    assert "nvidia-" not in pins


def test_an_unreachable_build_is_one_line_and_the_pinned_one_is_installed(venv):
    printed, asked = set_up(venv, "cpu", "no")
    assert printed.startswith("setup: torch's build for cpu cannot be reached, so the pinned build")
    assert len(printed.splitlines()) == 2
    assert asked.endswith("-c constraints.txt -e .[dev]")
    assert "--torch-backend" not in asked


def test_without_a_choice_the_pinned_build_is_installed(venv):
    _, asked = set_up(venv, "", "no")
    assert asked.endswith("-c constraints.txt -e .[dev]")
    assert len((venv / "asked").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["Dockerfile", "cluster/apptainer.def", "cluster/setup.sh"])
def test_environments_that_processes_may_not_write_are_compiled(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if "uv" in line and "pip install -q" in line]
    assert [line for line in lines if '"$@"' in line and "--compile-bytecode" not in line] == []
    assert any("--compile-bytecode" in line for line in lines)
