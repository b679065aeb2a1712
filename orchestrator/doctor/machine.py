"""What `ctvr doctor` says of this machine: versions, processors, GPUs, Ray, open ports; without importing torch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Level = Literal["ok", "note", "warning", "error"]  # a note is worth knowing once, and no reason to act before a sweep

SAFE_FFMPEG = (8, 1, 2)  # CVE-2026-8461 (MagicYUV, out-of-bounds write) is fixed from here on
LOW_MEMORY = 4 * 10**9  # Ray takes 1.3 GB when it has started and about 2 GB with one small trial
PORTS = {8265: "Ray's dashboard", 6379: "Ray's control service", 10001: "Ray's client server", 5000: "MLflow"}
SHOWN = 5  # names in one finding


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is empty where nothing is wrong."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def requirements() -> tuple[str, list[str]]:
    """(Python versions, packages with their minima) of this project: of its source, else of the installed copy."""
    source = Path(__file__).parents[2] / "pyproject.toml"
    if sys.version_info >= (3, 11) and source.is_file():
        import tomllib

        project = tomllib.loads(source.read_text())["project"]
        if project.get("name") == "ctvr":
            return project["requires-python"], project["dependencies"]
    wanted = importlib.metadata.requires("ctvr") or []
    python = importlib.metadata.metadata("ctvr")["Requires-Python"] or ""
    return python, [text for text in wanted if "extra ==" not in text]


def versions() -> Iterator[Finding]:
    """Packages against the minima of pyproject.toml; nothing is imported."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, packages = requirements()
    if not SpecifierSet(python).contains(platform.python_version(), prereleases=True):
        text = f"{platform.python_version()} runs here, {python} is needed"
        yield Finding("error", "Python", text, "Make a virtual environment of a newer Python and install ctvr in it.")
    found = [f"Python {platform.python_version()}"]
    for requirement in map(Requirement, packages):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install -U '{requirement.name}{requirement.specifier}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            level: Level = "warning" if requirement.name == "decord" else "error"  # PyAV decodes as well
            yield Finding(level, requirement.name, "is not installed", remedy)
            continue
        found.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            yield Finding("error", requirement.name, f"is {version}, {requirement.specifier} is needed", remedy)
    yield Finding("ok", "versions", ", ".join(found))


def decoders() -> Iterator[Finding]:
    """Which FFmpeg reads the videos, and whether its known holes are closed."""
    import av

    ffmpeg = str(getattr(av, "ffmpeg_version_info", "unknown"))
    numbers = tuple(int(n) for n in re.findall(r"\d+", ffmpeg)[:3]) if re.match(r"n?\d+\.", ffmpeg) else ()
    if not numbers or numbers < SAFE_FFMPEG:
        safe = ".".join(map(str, SAFE_FFMPEG))
        yield Finding(
            "warning",
            "FFmpeg",
            f"PyAV {av.__version__} decodes with FFmpeg {ffmpeg}; CVE-2026-8461 is fixed from {safe} on",
            "pip install -U 'av>=18.1', and decode only videos whose makers you trust until then.",
        )
    else:
        yield Finding("ok", "FFmpeg", f"{ffmpeg} in PyAV {av.__version__}")
    if importlib.util.find_spec("decord") is not None:
        yield Finding(
            "note",
            "decord",
            f"{importlib.metadata.version('decord')} brings its own FFmpeg 4.1.6 of 2020, without later security fixes "
            "and built as 'nonfree and unredistributable'",
            "For videos you do not trust write data.decoder=pyav (frames are decoded anew); do not pass its files on.",
        )


def machine() -> Iterator[Finding]:
    """Processors and memory."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = _free_memory()
    text = f"{processors} processors" + ("" if free is None else f", {free / 1e9:.1f} GB of memory free")
    if free is not None and free < LOW_MEMORY:
        remedy = "End other programs, or lower --max-concurrent and --workers."
        yield Finding("warning", "machine", f"{text}; Ray and one trial take about 2 GB", remedy)
    else:
        yield Finding("ok", "machine", text)


def _free_memory() -> int | None:
    """Bytes that may still be used, by the machine and by the container we are in; None where it cannot be known."""
    room = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        room.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        room.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, KeyError, ValueError):  # no Linux, no container, or one without a limit ("max")
        pass
    return min(room, default=None)


def gpus() -> Iterator[Finding]:
    """What nvidia-smi sees."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding("ok", "GPUs", "none (no nvidia-smi); trials run on processors")
        return
    query = "--query-gpu=name,memory.total,memory.used"
    answer = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=8, check=False
    )
    rows = [[word.strip() for word in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not rows:
        reason = next(iter((answer.stdout + answer.stderr).strip().splitlines()), "no device")
        yield Finding(
            "warning", "GPUs", f"nvidia-smi finds none ({reason[:120]})", "Mend the driver, or use processors."
        )
        return
    yield Finding("ok", "GPUs", ", ".join(f"{row[0]} ({row[1]} MiB)" for row in rows))
    busy = [f"{n}" for n, row in enumerate(rows) if row[2].isdigit() and int(row[2]) > 0.1 * int(row[1])]
    if busy:
        remedy = "Wait for the other programs, or choose devices with CUDA_VISIBLE_DEVICES."
        yield Finding("warning", "GPUs", f"more than a tenth of the memory of GPU {listed(busy)} is in use", remedy)
    if not _torch_has_cuda():
        remedy = "Install a CUDA build (https://pytorch.org/get-started), or write --gpus-per-trial 0."
        yield Finding("warning", "GPUs", "torch is built without CUDA and cannot use them", remedy)


def _torch_has_cuda() -> bool:
    """What torch was built for, read from its version file: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).parent / "version.py" if spec is not None and spec.origin else None
    return (
        file is None or not file.is_file() or bool(re.search(r"^cuda[^=\n]*= *['\"]", file.read_text(), re.MULTILINE))
    )


# ------------------------------------------------------------------------------------------ Ray, ports


def ray_file() -> Path:
    """Where Ray notes the address of the cluster that this machine is part of."""
    return Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")


def _answers(address: str) -> bool:
    """Whether something listens at HOST:PORT (with or without ray://)."""
    host, _, port = address.rpartition("://")[2].partition("?")[0].rpartition(":")
    if not port.isdigit():
        host, port = host or port, "6379"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.5):
            return True
    except (OSError, OverflowError):
        return False


def cluster_address() -> str:
    """The address in Ray's file of this machine's cluster; empty if there is none."""
    file = ray_file()
    return file.read_text().strip() if file.is_file() else ""


def ray_state() -> Iterator[Finding]:
    """The cluster that a sweep would join, and whether it asks for a token."""
    wanted, known = os.environ.get("RAY_ADDRESS", ""), cluster_address()
    joins = wanted not in ("", "local")
    if wanted == "auto" and not known:
        yield Finding(
            "error", "Ray", "RAY_ADDRESS=auto, but this machine is in no cluster", "unset RAY_ADDRESS, or `ray start`"
        )
    elif joins and wanted != "auto" and not _answers(wanted):
        remedy = "Start the cluster, correct the address, or unset RAY_ADDRESS to start one here."
        yield Finding("error", "Ray", f"nothing answers at RAY_ADDRESS={wanted}", remedy)
    if known and not _answers(known):
        level: Level = "error" if wanted == "auto" else "warning"
        text = f"{ray_file()} names the cluster {known}, which no longer answers"
        yield Finding(level, "Ray", text, f"`ray stop`, or remove the file: rm {ray_file()}")
        known = ""
    if joins or known:
        yield from _token()
    else:
        yield Finding("ok", "Ray", "no cluster here; `ctvr sweep` starts one that only this machine can reach")


def _uses_token() -> bool:
    mode = os.environ.get("RAY_AUTH_MODE")
    return mode == "token" or (mode is None and _token_file().is_file())


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()


def _token() -> Iterator[Finding]:
    file = _token_file()
    secret = "RAY_AUTH_MODE=token on every node, with one ~/.ray/auth_token (`bash cluster/setup.sh secrets`)"
    if not _uses_token():
        text = "the cluster asks for no token: whoever reaches its ports can run commands as you"
        yield Finding("warning", "Ray", text, f"Set {secret}.")
    elif not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        yield Finding(
            "error", "Ray", f"RAY_AUTH_MODE=token, but there is no {file}", f"Copy it from the head node; {secret}."
        )
    elif file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield Finding("warning", "Ray", f"others on this machine can read {file}", f"chmod 600 {file}")
    else:
        yield Finding("ok", "Ray", "the cluster asks for a token")


class Listener(NamedTuple):
    """A socket that waits for connections from every network."""

    port: int
    user: int
    inode: int


def public_listeners(table: str) -> list[Listener]:
    """What listens on every interface: from the text of /proc/net/tcp or tcp6."""
    found = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == "0A":  # LISTEN
            host, _, port = words[1].rpartition(":")
            if not host.strip("0"):
                found.append(Listener(int(port, 16), int(words[7]), int(words[9])))
    return found


def owners(inodes: Collection[int]) -> dict[int, str]:
    """The command line behind each socket, of the processes that we may look into."""
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
    """Services that listen on every interface, as /proc/net/tcp has it."""
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
        # whoever reaches Ray without a token runs what he likes
        is_open_shell = each.port == 8265 and not has_token and each.user == os.getuid()
        level: Level = "error" if is_open_shell else "warning"
        yield Finding(level, "ports", f"{each.port} ({what}) listens on every interface", _port_remedy(each.port, what))
    if not reported:
        yield Finding("ok", "ports", "neither Ray nor MLflow listens on every interface, as far as we may look")


def _service(command: str) -> str:
    """What a command line is, if it is one of ours."""
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
    """Files of keys in the home folder that others on this machine can read."""
    for name in SECRET_FILES:
        file = Path.home() / name
        if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield Finding("warning", "secrets", f"others on this machine can read {file}", f"chmod 600 {file}")
