"""Checks of this machine by `ctvr doctor`: versions, decoders, processors, memory, GPUs. It does not import torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ctvr.orchestrator.doctor.findings import Finding, Level, listed
from ctvr.orchestrator.on_ray.memory import free_memory, trials_in_memory
from ctvr.orchestrator.processes import count_processors
from ctvr.sandbox.isolate import FAULT, REMEDY, is_permitted
from ctvr.sandbox.restrict import landlock

SAFE_FFMPEG = (8, 1, 2)  # first version with the fix of CVE-2026-8461 (MagicYUV, out-of-bounds write)
RAY = 1_300_000_000  # bytes of memory that Ray uses without trials
LOW_MEMORY = 4 * 10**9  # bytes; Ray with one small trial takes about 2 GB
DRIVERS = {"12": 525, "13": 580}  # CUDA's major version -> oldest driver (NVIDIA, CUDA compatibility)


def requirements() -> tuple[str, list[str], list[str]]:
    """Return the required Python versions, the packages of the core, and those of the extra `all`.

    They are read from pyproject.toml or from the installed package.
    """
    source = Path(__file__).absolute().parents[3] / "pyproject.toml"
    if sys.version_info >= (3, 11) and source.is_file():
        import tomllib

        project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
        if project.get("name") == "ctvr":
            return project["requires-python"], project["dependencies"], project["optional-dependencies"]["all"]
    wanted = importlib.metadata.requires("ctvr") or []
    python = importlib.metadata.metadata("ctvr")["Requires-Python"] or ""
    core = [text for text in wanted if "extra ==" not in text]
    return python, core, [text for text in wanted if 'extra == "all"' in text]


def versions() -> Iterator[Finding]:
    """Check the installed packages against pyproject.toml, without importing them."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    python, core, others = requirements()
    if not SpecifierSet(python).contains(platform.python_version(), prereleases=True):
        text = f"{platform.python_version()} is running, {python} is required"
        yield Finding("error", "Python", text, "Make a virtual environment with a newer Python and install ctvr in it.")
    found, absent = [f"Python {platform.python_version()}"], []
    for requirement in map(Requirement, [*core, *others]):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "all"}):
            continue
        remedy = f"pip install -U '{requirement.name}{requirement.specifier}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(requirement.name)
            continue
        found.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            yield Finding("error", requirement.name, f"is {version}, {requirement.specifier} is required", remedy)
    if absent:  # the core works without the others
        needed = {Requirement(text).name for text in core}
        level: Level = "error" if needed & set(absent) else "warning"
        text = f"{listed(absent)} {'is' if len(absent) == 1 else 'are'} not installed; sweeps need all packages"
        yield Finding(level, "packages", text, 'pip install "ctvr[all]"')
    yield Finding("ok", "versions", ", ".join(found))


def decoders() -> Iterator[Finding]:
    """Check the version of FFmpeg for known vulnerabilities."""
    import av

    ffmpeg = str(getattr(av, "ffmpeg_version_info", "unknown"))
    numbers = tuple(int(n) for n in re.findall(r"\d+", ffmpeg)[:3]) if re.match(r"n?\d+\.", ffmpeg) else ()
    if not numbers or numbers < SAFE_FFMPEG:
        safe = ".".join(map(str, SAFE_FFMPEG))
        yield Finding(
            "warning",
            "FFmpeg",
            f"PyAV {av.__version__} decodes with FFmpeg {ffmpeg}; CVE-2026-8461 is fixed from {safe} on",
            "pip install -U 'av>=18.1', and until then decode only videos from trusted sources.",
        )
    else:
        yield Finding("ok", "FFmpeg", f"{ffmpeg} in PyAV {av.__version__}")
    if importlib.util.find_spec("decord") is not None:
        yield Finding(
            "note",
            "decord",
            f"{importlib.metadata.version('decord')} has its own FFmpeg 4.1.6 of 2020, without later security fixes "
            "and built as 'nonfree and unredistributable'",
            "Do not use data.decoder=decord or auto for untrusted videos, and do not redistribute its files.",
        )
    if importlib.util.find_spec("torchcodec") is not None:
        version = importlib.metadata.version("torchcodec")  # its FFmpeg version is only known after a slow import
        yield Finding("ok", "torchcodec", f"{version}, for data.decoder=torchcodec; decodes with this system's FFmpeg")


def sandboxing() -> Iterator[Finding]:
    """Check that Landlock restricts the processes that read untrusted videos and pickled weights."""
    if version := landlock():
        text = f"Landlock {version} restricts the files of processes that read videos and pickled weights"
        yield Finding("ok", "sandboxing", text)
    else:
        yield Finding("note" if is_permitted() else "warning", "sandboxing", FAULT, REMEDY)


def machine(worker: int = 0) -> Iterator[Finding]:
    """Check processors and memory.

    Args:
        worker: bytes of memory of a CPU worker (on_ray/memory.py); 0 if unknown.
    """
    processors = count_processors()
    free = free_memory()
    text = f"{processors} processors" + ("" if free is None else f", {free / 1e9:.1f} GB of memory free")
    if free is not None and free < LOW_MEMORY:
        remedy = "Stop other programs, or lower --max-concurrent and --workers."
        yield Finding("warning", "machine", f"{text}; Ray and one trial take about 2 GB", remedy)
    else:
        yield Finding("ok", "machine", text)
    trials = trials_in_memory(worker, 1, [{"memory": free - RAY}]) if free is not None and free > RAY else None
    if trials is not None:
        few = "memory limits a sweep's concurrency" if trials < processors else "processors limit them"
        text = f"enough for {trials} concurrent trials of one worker, {worker / 1e9:.1f} GB each; {few}"
        yield Finding("note" if trials < processors else "ok", "memory", text)


def home() -> Iterator[Finding]:
    """Check the home folder, in which libraries store downloads and compiled code."""
    try:
        folder = Path.home()
    except RuntimeError:  # an unnamed user
        folder = Path("/nonexistent")
    if folder.is_dir() and os.access(folder, os.W_OK):
        return
    problem = "cannot be written" if folder.is_dir() else "does not exist"
    text = f"the home folder {folder} {problem}, so weights and copies of a remote store cannot be stored"
    yield Finding("warning", "home", text, "Set HOME to a writable folder, or set HF_HOME and CTVR_CACHE.")


def gpus() -> Iterator[Finding]:
    """Check the GPUs by nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding("ok", "GPUs", "none (no nvidia-smi); trials run on processors")
        return
    query = "--query-gpu=name,memory.total,memory.used,driver_version"
    answer = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, errors="replace", timeout=8
    )
    rows = [[word.strip() for word in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not rows:
        reason = next(iter((answer.stdout + answer.stderr).strip().splitlines()), "no device")
        yield Finding(
            "warning", "GPUs", f"nvidia-smi did not find one ({reason[:120]})", "Repair the driver, or train on CPUs."
        )
        return
    yield Finding("ok", "GPUs", ", ".join(f"{row[0]} ({row[1]} MiB)" for row in rows))
    busy = [f"{n}" for n, row in enumerate(rows) if row[2].isdigit() and int(row[2]) > 0.1 * int(row[1])]
    if busy:
        remedy = "Wait for the other programs, or choose devices with CUDA_VISIBLE_DEVICES."
        yield Finding("warning", "GPUs", f"more than a tenth of the memory of GPU {listed(busy)} is in use", remedy)
    built, driver = _torch_cuda(), rows[0][-1]
    if built == "":
        remedy = "Install a CUDA build (https://pytorch.org/get-started), or use --gpus-per-trial 0."
        yield Finding("warning", "GPUs", "torch is built without CUDA and cannot use them", remedy)
    least = DRIVERS.get((built or "").split(".")[0], 0)
    if (major := driver.split(".")[0]).isdigit() and int(major) < least:
        text = f"torch is built for CUDA {built}, which needs a driver of at least {least}, and the driver is {driver}"
        remedy = "Update the driver, or remove .venv and run: make setup TORCH=cu126 (docs/install.md, Older drivers)."
        yield Finding("warning", "GPUs", text, remedy)


def _torch_cuda() -> str | None:
    """Return the version of CUDA that torch is built for, "" for a build without CUDA, or None if unknown.

    It is read from torch's version file, because importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).parent / "version.py" if spec is not None and spec.origin else None
    if file is None or not file.is_file():
        return None
    found = re.search(r"^cuda[^=\n]*= *['\"]([\d.]+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""
