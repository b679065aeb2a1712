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
assert restrict.restrict_files([given], [out]) == restrict.landlock()
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


def test_without_landlock_no_file_is_restricted_and_that_is_returned():
    assert child("restrict.landlock = lambda: 0\nprint(restrict.restrict_files([]))").stdout.split() == ["0"]
