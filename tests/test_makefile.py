"""`make setup` installs the build of torch that fits the machine, or the pinned one if that build is unreachable."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/../asked"
case "$*" in *--dry-run*--reinstall*) [ "$REACHED" = yes ];; esac
"""


@pytest.mark.parametrize("reached", ["yes", "no"])
def test_an_unreachable_build_is_one_line_and_the_pinned_one_is_installed(tmp_path, reached):
    for name, text in (("uv", UV), ("python", "#!/bin/sh\n")):  # programs that do nothing
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    words = ["make", "-s", "-C", str(ROOT), "setup", f"VENV={tmp_path}", f"PYTHON={program}", "TORCH=cpu"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, capture_output=True, text=True, env={**environment, "REACHED": reached}, check=True)
    [asked] = [line for line in (tmp_path / "asked").read_text().splitlines() if line.endswith(".[all,dev]")]
    assert ("\nsetup: torch's build for cpu cannot be reached" in done.stdout) == (reached == "no")
    wanted = f"--torch-backend cpu -c {tmp_path}/pins.txt" if reached == "yes" else "-c constraints.txt"
    assert f" {wanted} -e" in asked
    assert ("--torch-backend" in asked) == (tmp_path / "pins.txt").exists() == (reached == "yes")
