"""Checks of Ray by `ctvr doctor`: its folder, the cluster that a sweep would join, and its token."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ctvr.orchestrator.doctor.findings import Finding, Level
from ctvr.orchestrator.on_ray.ray_paths import (
    cluster_address,
    cluster_file,
    is_listening,
    temporary_folder,
    token_file,
    usable_folder,
)

SECONDS = 1.5  # timeout of a connection to a cluster


def ray_state() -> Iterator[Finding]:
    """Check the cluster that a sweep would join, and its token authentication."""
    wanted, known = os.environ.get("RAY_ADDRESS", ""), cluster_address()
    joins = wanted not in ("", "local")
    if wanted == "auto" and not known:
        yield Finding("error", "Ray", "RAY_ADDRESS=auto, but no cluster runs here", "unset RAY_ADDRESS, or `ray start`")
    elif joins and wanted != "auto" and not is_listening(wanted, SECONDS):
        remedy = "Start the cluster, correct the address, or unset RAY_ADDRESS to start one here."
        yield Finding("error", "Ray", f"nothing responds at RAY_ADDRESS={wanted}", remedy)
    if known and not is_listening(known, SECONDS):
        level: Level = "error" if wanted == "auto" else "warning"
        text = f"{cluster_file()} names the cluster {known}, which no longer responds"
        yield Finding(level, "Ray", text, f"`ray stop`, or remove the file: rm {cluster_file()}")
        known = ""
    if known and not joins and (owner := _owner_of(cluster_file())):
        text = f"a sweep does not join the cluster {known}, because {cluster_file()} belongs to user {owner}"
        yield Finding(
            "warning", "Ray", text, f"Join it with --address {known}, or start your own with --address local."
        )
    if joins or known:
        yield from _token()
    else:
        yield Finding("ok", "Ray", "no cluster; `ctvr sweep` starts one that only this machine can reach")


def _owner_of(file: Path) -> str:
    """Return the name or ID of the user who owns a file; "" if it is the current user."""
    import pwd

    user = file.stat().st_uid
    if user == os.getuid():
        return ""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def ray_folder() -> Iterator[Finding]:
    """Check that the paths of Unix sockets in Ray's folder do not exceed the system's limit."""
    folder, problem = usable_folder()
    if problem:
        text = f"Ray cannot use {temporary_folder()}: {problem}; a sweep that starts Ray uses {folder}/ray"
        yield Finding("warning", "Ray", text, f"For `ray start` and other programs: export RAY_TMPDIR={folder}")


def _token() -> Iterator[Finding]:
    file, mode = token_file(), os.environ.get("RAY_AUTH_MODE")
    secret = "RAY_AUTH_MODE=token on every node, with one ~/.ray/auth_token (`bash cluster/setup.sh secrets`)"
    if mode != "token" and not (mode is None and file.is_file()):
        text = "the cluster requires no token, so anyone who can reach its ports can run commands as you"
        yield Finding("warning", "Ray", text, f"Set {secret}.")
    elif not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        yield Finding(
            "error", "Ray", f"RAY_AUTH_MODE=token, but {file} does not exist", f"Copy it from the head node; {secret}."
        )
    elif file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding("warning", "Ray", f"other users of this machine can read {file}", f"chmod 600 {file}")
    else:
        yield Finding("ok", "Ray", "the cluster requires a token")
