"""The exit status of a test run is that of its tests, whatever native code does when a process of tests ends."""

import subprocess
import sys

import pytest

BAD_END = "import atexit, os\natexit.register(os.abort)\n"  # as a native thread that outlives the interpreter
CASES = {
    "all passed": (BAD_END + "def test(): pass", 0, "1 passed"),
    "one failed": (BAD_END + "def test(): assert 1 == 2", 1, "1 failed"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_status_is_that_of_the_tests(tmp_path, case):
    source, status, said = CASES[case]
    (tmp_path / "test_it.py").write_text(source + "\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "1", "--dist", "worksteal"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr
