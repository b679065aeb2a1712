"""A sandboxed process has no network and only the files it was given; a kernel without support is reported."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ctvr.sandbox import restrict


def child(code: str) -> subprocess.CompletedProcess[str]:
    """Return a Python program with this module's functions, for the children."""
    start = f"import sys; sys.path.insert(0, {str(Path(restrict.__file__).parent)!r}); import restrict\n"
    return subprocess.run([sys.executable, "-I", "-c", start + code], capture_output=True, text=True, check=False)


def test_a_fenced_process_reaches_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert child(reach).returncode == 0
        alone = child(
            f"import os; before = os.readlink('/proc/self/ns/net')\nassert restrict.isolate_network(), 'refused'\n"
            f"assert os.readlink('/proc/self/ns/net') != before\n{reach}"
        )
    if "AssertionError: refused" in alone.stderr:
        pytest.skip("this system refuses network namespaces to its users")
    assert "OSError" in alone.stderr or "Network is unreachable" in alone.stderr


FILES = """
import os, subprocess, sys
def refused(do):
    try:
        do()
    except PermissionError:
        return True
given, out, secret = sys.argv[1:]
assert restrict.restrict_files([given], [out]) == f"Landlock {restrict.landlock()}"
assert open(given + "/clip").read() == "clip"
open(out + "/made", "w").write("made")
import decimal, html.parser  # Python goes on
print(refused(lambda: open(secret).read()), refused(lambda: os.listdir(os.path.dirname(secret))),
      refused(lambda: open(secret, "w")), refused(lambda: open(given + "/clip", "w")),
      refused(lambda: open(given + "/new", "w")), refused(lambda: os.remove(secret)),
      refused(lambda: os.symlink("/", out + "/link")), refused(lambda: subprocess.run(["/bin/true"])),
      refused(lambda: open("/proc/1/environ").read()), refused(lambda: os.kill(os.getppid(), 0)))
"""


def test_a_fenced_process_reads_what_it_was_given_and_writes_where_it_may(tmp_path):
    if restrict.landlock() < 6:
        pytest.skip("this kernel has no Landlock, or one that lets signals through")
    for name in ("given", "out", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "given" / "clip").write_text("clip")
    secret = tmp_path / "home" / "secret"
    secret.write_text("secret")
    start = f"import sys; sys.path.insert(0, {str(Path(restrict.__file__).parent)!r}); import restrict\n"
    words = [str(tmp_path / "given"), str(tmp_path / "out"), str(secret)]
    ended = subprocess.run(
        [sys.executable, "-I", "-c", start + FILES, *words], capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["True"] * 10, ended.stderr
    assert secret.read_text() == "secret"
    assert (tmp_path / "out" / "made").read_text() == "made"


def test_without_landlock_a_tree_of_mounts_holds_what_was_given_alone(tmp_path):
    for name in ("given", "out", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "given" / "clip").write_text("clip")
    (tmp_path / "home" / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "given")
    code = f"""
import os
restrict.landlock = lambda: 0
given, out, home = (f"{tmp_path}/{{name}}" for name in ("link", "out", "home"))
assert restrict.restrict_files([given], [out]) == "mounts", "refused"
assert restrict.isolate_network()
assert open(given + "/clip").read() == "clip"
open(out + "/made", "w").write("made")
import decimal, html.parser  # Python goes on
def fails(do):
    try:
        do()
    except OSError:
        return True
again = lambda: restrict._mount(
    restrict.ctypes.CDLL(None, use_errno=True), "none", given, None, restrict._REMOUNT | restrict._BIND)
print(fails(lambda: os.listdir(home)), fails(lambda: open(given + "/new", "w")), fails(lambda: open("/new", "w")),
      fails(again), fails(lambda: open("/etc/passwd")), fails(lambda: open("/proc/1/environ")))
"""
    ended = child(code)
    if "AssertionError: refused" in ended.stderr:
        pytest.skip("this system refuses namespaces to its users")
    assert ended.stdout.split() == ["True"] * 6, ended.stderr
    assert (tmp_path / "out" / "made").read_text() == "made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "home", "link", "out"]


def test_missing_sandbox_support_is_reported(tmp_path):
    code = "restrict.landlock, restrict._PIVOT_ROOT = lambda: 0, {}\nprint(repr(restrict.restrict_files([])))"
    assert child(code).stdout.split() == ["''"]
