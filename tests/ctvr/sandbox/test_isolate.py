"""An isolated process keeps access to our packages and libraries; of root's capabilities it keeps only that to read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctvr
from ctvr.sandbox.isolate import PERMIT, NoLandlock, require_landlock
from ctvr.sandbox.restrict import landlock

ROOT = Path(ctvr.__file__).resolve().parents[1]


def child(code: str, where: Path) -> str:
    start = "import os\nfrom pathlib import Path\nfrom ctvr.sandbox.isolate import isolate\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", start + code], cwd=where, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_child_reads_our_packages_and_nothing_next_to_them(tmp_path):
    if not landlock() or not (ROOT / "README.md").is_file():
        pytest.skip("this kernel has no Landlock, or this is no checkout")
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


def test_a_kernel_without_landlock_is_refused_unless_the_user_permits_it(monkeypatch, tmp_path):
    """The parent refuses before it starts a child, and a child refuses if Landlock fails only there."""
    monkeypatch.delenv(PERMIT, raising=False)
    monkeypatch.setattr("ctvr.sandbox.isolate.landlock", lambda: 0)
    code = "from ctvr.sandbox import isolate as own\nown.restrict_files = lambda *_: 0\n"
    code += "try: print(isolate([]).files)\nexcept own.NoLandlock as error: print(error)"
    for value in ("", "0", "yes"):
        monkeypatch.setenv(PERMIT, value)
        with pytest.raises(NoLandlock, match=r"^sandbox: this kernel has no Landlock, .*set CTVR_WITHOUT_LANDLOCK=1 "):
            require_landlock()
    assert child(code, tmp_path).startswith("sandbox: this kernel has no Landlock")
    monkeypatch.setenv(PERMIT, "1")
    require_landlock()
    assert child(code, tmp_path) == "0"
