"""Environment of a run, stored with its metrics: versions, machine, commit. No paths, users or secrets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from ctvr.orchestrator.interpreter import kernels, processor_field
from ctvr.orchestrator.memo import version_of

PACKAGES = (
    *("torch", "open_clip_torch", "ray", "mlflow", "numpy", "av", "decord", "torchcodec", "safetensors", "obstore"),
    "optuna",
)


def environment() -> dict[str, Any]:
    """Return the environment as JSON values, None if unknown. GPUs are listed only if torch is imported."""
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch else []
    commit, changed = _commit()
    return {
        "python": platform.python_version(),
        "packages": {package: version_of(package) or None for package in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "host": platform.node(),
        "processors": os.cpu_count(),
        "processor": processor_field("model name"),
        "kernels": kernels(),
        "gpus": gpus,
        "commit": commit,
        "changed_since_commit": changed,
    }


def _commit() -> tuple[str | None, bool | None]:
    """Return the commit of this code and whether files differ from it; (None, None) outside its git checkout."""

    def git(*words: str) -> str:
        here = Path(__file__).resolve().parents[1]
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, check=True, timeout=10)
        return done.stdout.decode("utf-8", "replace")

    try:
        git("ls-files", "--error-unmatch", "config.py")  # excludes a repository that merely contains an installed copy
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None, None
