"""Holder of a run: the process that writes it, stored as a tag so that other processes can check whether it ended."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ctvr.orchestrator.digests import digest_of

HOLDER = "ctvr.holder"
_FIRST_NAMESPACE = "pid:[4026531836]"  # namespace of processes outside containers


class Holder(NamedTuple):
    """A process and its machine.

    Attributes:
        host: name of the machine.
        machine: digest of the machine's id, which is confidential; empty if the machine lacks an id.
        boot: id of the machine's boot.
        namespace: PID namespace of `pid`; each container has its own namespace.
        pid: process id.
        began: start of the process in clock ticks after the boot, because process ids are reused.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    began: int


def this_process() -> Holder | None:
    """Return the holder for this process; None on a system that provides too little information."""
    try:
        place = _identify_machine()
        state = _state_of(os.getpid())
    except OSError:
        return None
    return None if state is None else Holder(*place, os.getpid(), state[1])


def holder_tags() -> dict[str, str]:
    """Return the tag of a run's holder; empty on a system that provides too little information."""
    holder = this_process()
    return {} if holder is None else {HOLDER: json.dumps(holder._asdict())}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Return whether the process in a run's tags is known to have ended.

    False for a process on another machine or in another container, and for a run without this tag.
    """
    holder, here = _read(tags.get(HOLDER, "")), this_process()
    if holder is None or here is None or (holder.host, holder.machine) != (here.host, here.machine):
        return False
    if holder.boot != here.boot:  # the machine has rebooted; two containers may share a name and an id
        return bool(here.machine) and holder.namespace == here.namespace == _FIRST_NAMESPACE
    if holder.namespace != here.namespace:
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # the process is of another user, and /proc may hide it
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


def _identify_machine() -> tuple[str, str, str, str]:
    machine = Path("/etc/machine-id")
    return (
        socket.gethostname(),
        digest_of(["ctvr", machine.read_text(errors="replace").strip()])[:16] if machine.is_file() else "",
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.readlink("/proc/self/ns/pid"),
    )


def _state_of(pid: int) -> tuple[str, int] | None:
    """Return a process's state ("Z" if it has ended) and its start in clock ticks; None if the system omits them.

    Raises:
        OSError: if the process does not exist or is hidden.
    """
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text.rpartition(")")[2].split()  # the process's name may contain spaces
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None
