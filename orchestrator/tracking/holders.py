"""Who works on a run: its process, recorded as a tag, so that another process can judge whether it has ended."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ctvr.orchestrator.digests import digest_of

HOLDER = "ctvr.holder"
_FIRST_NAMESPACE = "pid:[4026531836]"  # of processes outside of containers


class Holder(NamedTuple):
    """A process, and where it runs.

    Attributes:
        host: the machine's name.
        machine: a digest of the machine's id, which is confidential; empty where it has none.
        boot: changes at each start of the machine.
        namespace: where `pid` counts; a container has its own.
        began: clock ticks from the start of the machine to that of the process: a number is given to many processes.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    began: int


def this_process() -> Holder | None:
    """This process; None on a system that does not say enough of its processes."""
    try:
        place = _place()
        state = _state_of(os.getpid())
    except OSError:
        return None
    return None if state is None else Holder(*place, os.getpid(), state[1])


def holder_tags() -> dict[str, str]:
    """The tag that says who works on a run; none on a system that does not say enough of its processes."""
    holder = this_process()
    return {} if holder is None else {HOLDER: json.dumps(holder._asdict())}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Whether the process that a run's tags name has ended for certain.

    A process on another machine, in another container, or of a run without this tag cannot be judged: False.
    """
    holder, here = _read(tags.get(HOLDER, "")), this_process()
    if holder is None or here is None or (holder.host, holder.machine) != (here.host, here.machine):
        return False
    if holder.boot != here.boot:  # the machine was started again; two containers may share a name and an id
        return bool(here.machine) and holder.namespace == here.namespace == _FIRST_NAMESPACE
    if holder.namespace != here.namespace:
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user, whose processes may be hidden in /proc
        pass
    try:
        state = _state_of(holder.pid)
    except OSError:
        return False
    return state is not None and (state[0] in "ZX" or state[1] != holder.began)


def _read(text: str) -> Holder | None:
    try:
        holder = Holder(**json.loads(text))
        whole = type(holder.pid) is int and type(holder.began) is int and holder.pid > 0
        return holder if whole else None
    except (ValueError, TypeError, RecursionError):
        return None


def _place() -> tuple[str, str, str, str]:
    machine = Path("/etc/machine-id")
    return (
        socket.gethostname(),
        digest_of(["ctvr", machine.read_text(errors="replace").strip()])[:16] if machine.is_file() else "",
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.readlink("/proc/self/ns/pid"),
    )


def _state_of(pid: int) -> tuple[str, int] | None:
    """A process's state (Z: it has ended) and when it began; None where the system says neither.

    Raises:
        OSError: if there is no such process, or it is hidden.
    """
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text.rpartition(")")[2].split()  # the process's name may hold spaces
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None
