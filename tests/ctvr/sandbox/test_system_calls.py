"""The filter of system calls, tried in children, permits threads, files and the end of the process only."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ctvr
from ctvr.sandbox import system_calls
from ctvr.sandbox.system_calls import leave_calls

START = (
    f"import sys; sys.path.append({str(Path(ctvr.__file__).parents[1])!r})\n"
    + """
import ctypes, mmap, os, signal, threading
from ctvr.sandbox.system_calls import leave_calls
libc = ctypes.CDLL(None, use_errno=True)
def fails(do):
    try:
        do()
    except PermissionError:
        return True
"""
)
FILTERED = START + "if not leave_calls(): print('none'); sys.exit()\n"


def child(code: str, *words: str, start: str = FILTERED) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", start + code, *words], capture_output=True, text=True, check=False
    )
    if done.stdout == "none\n":
        pytest.skip("this system has no seccomp, or an architecture that is not known")
    return done


def test_threads_start_and_libraries_load_after_the_filter():
    done = child(
        "import decimal, numpy\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(5))), numpy.ones((9, 9)).sum(axis=0)[0])"
    )
    assert done.stdout.split() == ["10", "9.0"], done.stderr


def test_a_thread_that_runs_already_is_held_too():
    code = """
ready, tried, found = threading.Event(), threading.Event(), []
def other():
    ready.wait()
    found.append(fails(lambda: os.memfd_create("x")))
thread = threading.Thread(target=other); thread.start()
done = leave_calls(); ready.set(); thread.join()
print(found if done else "none")
"""
    assert child(code, start=START).stdout.split() == ["[True]"]


def test_a_reader_opens_for_reading_alone_and_a_writer_for_writing(tmp_path):
    (tmp_path / "file").write_text("text")
    code = """
place = sys.argv[1]
print(open(place + "/file").read(), fails(lambda: open(place + "/file", "a")), fails(lambda: open(place + "/new", "x")),
      fails(lambda: os.open(place, os.O_TMPFILE | os.O_RDWR)), fails(lambda: os.remove(place + "/file")))
"""
    assert child(code, str(tmp_path)).stdout.split() == ["text", *["True"] * 4]
    writer = "assert leave_calls(may_write=True)\n" + "open(sys.argv[1] + '/new', 'w').write('x')\n"
    writer += (
        "os.rename(sys.argv[1] + '/new', sys.argv[1] + '/newer')\nprint(fails(lambda: os.chmod(sys.argv[1], 0o700)))"
    )
    if leave_calls_is_known():
        assert child(writer, str(tmp_path), start=START).stdout.split() == ["True"]
        assert (tmp_path / "newer").read_text() == "x"


def leave_calls_is_known() -> bool:
    return child("print('held')").stdout == "held\n"


def test_a_process_ends_itself_by_a_signal_and_reads_its_own_limits():
    code = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    code += "print(resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    assert child(code + "sys.stdout.flush(); os.abort()").returncode == -signal.SIGABRT
    assert child("os.kill(os.getpid(), signal.SIGTERM)").returncode == -signal.SIGTERM
    assert (
        child("print(fails(lambda: os.kill(0, 0)), fails(lambda: os.kill(os.getppid(), 0)))").stdout.split()
        == ["True"] * 2
    )


def test_calls_of_another_architecture_are_refused(tmp_path):
    """Both the bit of x32 and the entry of 32-bit programs are tried."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86_64 runs calls of three architectures")
    x32 = "print(libc.syscall(ctypes.c_long(0x40000000 | 39)))"
    assert child(x32).stdout.split() == ["-1"]
    gate = """
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")  # number 20 is getpid there: mov eax, 20; int 0x80; ret
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print(call() == os.getpid())
"""
    if child(gate, start=START).stdout.split() != ["True"]:
        pytest.skip("this kernel runs no 32-bit programs")
    assert child(gate).stdout.split() == ["False"]


def test_a_call_that_no_kernel_had_fails_as_on_an_older_kernel():
    code = "for number in (900, 435): print(libc.syscall(ctypes.c_long(number)), ctypes.get_errno())"
    assert child(code).stdout.split() == ["-1", "38"] * 2


def test_an_unknown_architecture_goes_on_without_a_filter(monkeypatch):
    monkeypatch.setattr(system_calls, "ARCHITECTURES", {})
    assert leave_calls() is False
    assert subprocess.run(["true"], check=False).returncode == 0
