"""An isolated process keeps access to our packages and libraries; of root's capabilities it keeps only that to read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctvr
from ctvr.sandbox.measure import measure

ROOT = Path(ctvr.__file__).resolve().parents[1]


def child(code: str, where: Path) -> str:
    start = "import os\nfrom pathlib import Path\nfrom ctvr.sandbox.isolate import isolate\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=where, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_child_reads_our_packages_and_nothing_next_to_them(tmp_path):
    if not measure("files").isolation.files or not (ROOT / "README.md").is_file():
        pytest.skip("this system has neither Landlock nor namespaces, or this is no checkout")
    code = f"isolate([])\nimport ctvr.orchestrator.video.decode, ctvr.methods\ntry: open({str(ROOT / 'README.md')!r})\n"
    assert child(f"{code}except OSError as error: print(type(error).__name__)", tmp_path) in (
        *("PermissionError", "FileNotFoundError"),
    )


def test_root_keeps_only_the_right_to_read_files_of_others(tmp_path):
    before = "print(int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16))\n"
    had = int(child(before, tmp_path))
    has = int(child("isolate([])\n" + before, tmp_path))
    assert has & ~4 == 0
    assert has == had & 4 or os.geteuid() != 0  # others get it in a namespace of their own, where it opens nothing
