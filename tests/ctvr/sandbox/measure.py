"""Measurement of the sandbox: a child, isolated like a decoder, tries every escape and reports which succeed."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctvr.sandbox.isolate import Isolation, isolate
from ctvr.sandbox.restrict import isolate_network, restrict_files
from ctvr.sandbox.system_calls import leave_calls
from tests.ctvr.sandbox.ways import ROOT, WAYS, Target, open_ways

PROGRAMS = "start a program"  # tried last: the program replaces the child
EVERY = {*WAYS, PROGRAMS}
ALWAYS = ("existence, size and times of files",)  # neither Landlock nor seccomp can hide these
_CHILD = "import sys; sys.path.append(sys.argv.pop(1)); from tests.ctvr.sandbox.measure import main; sys.exit(main())"
_SECONDS = 20
_RAN = "ran"
_HOLDS: dict[str, Callable[[str], Isolation]] = {
    "all": lambda given: isolate([given]),
    "files": lambda given: Isolation(restrict_files([given]), isolate_network(), False),
    "calls": lambda given: Isolation(0, False, leave_calls()),
    "none": lambda given: Isolation(0, False, False),
}


@dataclass(frozen=True)
class Measured:
    """The active restrictions of a child on this machine, and the names of the escapes that succeeded."""

    isolation: Isolation
    open: tuple[str, ...]


def measure(means: str = "all") -> Measured:
    """Try every escape in a child.

    Args:
        means: the restrictions: "all" as for decoders, "files" (files and network), "calls" (system calls) or "none".

    Raises:
        OSError: if the child does not answer.
    """
    with _target() as target:
        words = [json.dumps(dataclasses.asdict(target)), means]
        done = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD, str(ROOT), *words],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    lines = done.stdout.splitlines()
    try:
        report = json.loads(lines[0])
    except (IndexError, ValueError):
        raise OSError(f"the child ended with status {done.returncode}: {done.stderr.strip()[-200:]}") from None
    ran = (PROGRAMS,) if _RAN in lines[1:] else ()
    return Measured(Isolation(**report["isolation"]), (*report["open"], *ran))


def main() -> int:
    """Isolate the child process, try the escapes, and last try to execute another program."""
    target = Target(**json.loads(sys.argv[1]))
    held = _HOLDS[sys.argv[2]](target.given)
    sys.stdout.write(json.dumps({"isolation": dataclasses.asdict(held), "open": open_ways(target)}) + "\n")
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.execv(sys.executable, [sys.executable, "-I", "-c", f"print({_RAN!r})"])
    return 0


@contextlib.contextmanager
def _target() -> Iterator[Target]:
    """Create the files and processes that the child tries to reach; remove them on exit."""
    library = ctypes.CDLL(None, use_errno=True)
    read = ctypes.create_string_buffer(b"8 bytes", 8)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ways-")))
        for name in ("given", "kept"):
            (folder / name).mkdir()
        for name in ("given/clip", "kept/secret", "kept/spare"):
            (folder / name).write_text("secret")
        abstract = f"ctvr-{secrets.token_hex(8)}"
        places: list[tuple[int, int, Any]] = [
            (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "kept" / "s")),
            (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "kept" / "d")),
            (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract),
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        ]
        opened = [stack.enter_context(socket.socket(family, kind)) for family, kind, _ in places]
        for made, (_, kind, place) in zip(opened, places):
            made.bind(place)
            if kind == socket.SOCK_STREAM:
                made.listen(1)
        memory = library.shmget(0, 4096, 0o600 | 0o1000)
        stack.callback(library.shmctl, memory, 0, None)
        yield Target(
            given=str(folder / "given"),
            kept=str(folder / "kept"),
            stream=str(folder / "kept" / "s"),
            datagram=str(folder / "kept" / "d"),
            abstract=abstract,
            tcp=opened[3].getsockname()[1],
            udp=opened[4].getsockname()[1],
            memory=memory,
            parent=os.getpid(),
            address=ctypes.addressof(read),
        )
