"""Network checks by `ctvr doctor`: proxies, Ray's cluster and its token, open ports, files with secrets."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ctvr.orchestrator.doctor.findings import Finding, Level
from ctvr.orchestrator.on_ray.ray_paths import (
    answers,
    cluster_address,
    cluster_file,
    temporary_folder,
    token_file,
    usable_folder,
)
from ctvr.orchestrator.proxies import exceptions, host_of, is_near, proxy_of

SECONDS = 1.5  # to connect to a cluster
PORTS = {8265: "Ray's dashboard", 6379: "Ray's control service", 10001: "Ray's client server", 5000: "MLflow"}


def proxies(tracking_uri: str) -> Iterator[Finding]:
    """Check that this machine and local servers are reached without the proxy, which cannot reach them."""
    local = [f"{scheme}://{host}" for scheme in ("http", "https") for host in ("127.0.0.1", "localhost")]
    if proxy := next(filter(None, map(proxy_of, local)), ""):
        text = f"{proxy} is also used for 127.0.0.1 and localhost; ctvr excludes them, `ray` and `mlflow` do not"
        yield Finding("warning", "proxy", text, f"export no_proxy={exceptions()} NO_PROXY=$no_proxy")
    servers = {"MLFLOW_TRACKING_URI": tracking_uri}
    servers |= {name: os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")}
    for name, address in servers.items():
        host = host_of(address)
        if address.startswith("http") and is_near(host) and (proxy := proxy_of(address)):
            text = f"{proxy} is used for {host} ({name})"
            remedy = f"If it cannot reach this host: export no_proxy={exceptions(host)} NO_PROXY=$no_proxy"
            yield Finding("warning", "proxy", text, remedy)


def ray_state() -> Iterator[Finding]:
    """Check the cluster that a sweep would join, and its token authentication."""
    wanted, known = os.environ.get("RAY_ADDRESS", ""), cluster_address()
    joins = wanted not in ("", "local")
    if wanted == "auto" and not known:
        yield Finding(
            "error", "Ray", "RAY_ADDRESS=auto, but this machine is in no cluster", "unset RAY_ADDRESS, or `ray start`"
        )
    elif joins and wanted != "auto" and not answers(wanted, SECONDS):
        remedy = "Start the cluster, correct the address, or unset RAY_ADDRESS to start one here."
        yield Finding("error", "Ray", f"nothing responds at RAY_ADDRESS={wanted}", remedy)
    if known and not answers(known, SECONDS):
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
    """Return the name or number of the user who owns a file; empty if it is this user."""
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


def _uses_token() -> bool:
    mode = os.environ.get("RAY_AUTH_MODE")
    return mode == "token" or (mode is None and token_file().is_file())


def _token() -> Iterator[Finding]:
    file = token_file()
    secret = "RAY_AUTH_MODE=token on every node, with one ~/.ray/auth_token (`bash cluster/setup.sh secrets`)"
    if not _uses_token():
        text = "the cluster requires no token: anybody who can reach its ports can run commands as you"
        yield Finding("warning", "Ray", text, f"Set {secret}.")
    elif not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        yield Finding(
            "error", "Ray", f"RAY_AUTH_MODE=token, but {file} does not exist", f"Copy it from the head node; {secret}."
        )
    elif file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding("warning", "Ray", f"other users of this machine can read {file}", f"chmod 600 {file}")
    else:
        yield Finding("ok", "Ray", "the cluster requires a token")


class Listener(NamedTuple):
    """A socket that listens on every interface."""

    port: int
    user: int
    inode: int


def public_listeners(table: str) -> list[Listener]:
    """Return the listeners on every interface from the text of /proc/net/tcp or tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == "0A":  # LISTEN
            host, _, port = words[1].rpartition(":")
            if not host.strip("0"):
                found.append(Listener(int(port, 16), int(words[7]), int(words[9])))
    return found


def owners(inodes: Collection[int]) -> dict[int, str]:
    """Return the command line of each socket's process, where this user may inspect the process."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if inode := wanted.get(os.readlink(descriptor)):
                        found[inode] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def ports() -> Iterator[Finding]:
    """Check for services that listen on every interface, from /proc/net/tcp."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].is_file():
        yield Finding("ok", "ports", "not examined: this system has no /proc/net/tcp")
        return
    listeners = [each for table in tables if table.is_file() for each in public_listeners(table.read_text())]
    commands = owners({each.inode for each in listeners})
    has_token = _uses_token()
    reported = set()
    for each in sorted(listeners):
        what = PORTS.get(each.port) or _service(commands.get(each.inode, ""))
        if not what or each.port in reported:
            continue
        if has_token and what.startswith("Ray") and each.port != 8265:
            continue
        reported.add(each.port)
        # Ray without a token runs commands of anybody who can reach it
        is_open_shell = each.port == 8265 and not has_token and each.user == os.getuid()
        level: Level = "error" if is_open_shell else "warning"
        yield Finding(level, "ports", f"{each.port} ({what}) listens on every interface", _port_remedy(each.port, what))
    if not reported:
        yield Finding(
            "ok", "ports", "neither Ray nor MLflow listens on every interface, as far as this user may inspect"
        )


def _service(command: str) -> str:
    """Return the service of a command line, empty if it is neither Ray nor MLflow."""
    if re.search(r"\bmlflow\b", command):
        return "MLflow"
    return "Ray" if re.search(r"/ray/|\braylet\b|\bgcs_server\b|^ray::", command) else ""


def _port_remedy(port: int, what: str) -> str:
    tunnel = f"and reach it by ssh -L {port}:127.0.0.1:{port} HOST."
    if what == "MLflow":
        return f"Start MLflow with `ctvr ui` (127.0.0.1) {tunnel} On a cluster: cluster/services.sh gives it passwords."
    if port == 8265:
        return f"`ray stop`, then start with --dashboard-host=127.0.0.1 {tunnel}"
    return "Set RAY_AUTH_MODE=token on every node and let a firewall admit only the cluster's nodes."


SECRET_FILES = (".ctvr_keys", ".ctvr_env", ".mlflow/credentials", ".aws/credentials", ".ctvr/ray_token", ".netrc")


def secret_files() -> Iterator[Finding]:
    """Check the permissions of files with secrets in the home folder."""
    for name in SECRET_FILES:
        file = Path.home() / name
        if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield Finding("warning", "secrets", f"other users of this machine can read {file}", f"chmod 600 {file}")
