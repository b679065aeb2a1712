"""Where Ray keeps its files on a machine. Nothing of Ray is loaded, so that `ctvr doctor` can look at them too."""

from __future__ import annotations

import os
from pathlib import Path


def cluster_file() -> Path:
    """Holds the address of the cluster that this machine is part of; there is none otherwise."""
    return Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")


def token_file() -> Path:
    """Holds the token that a cluster asks for; not there until somebody has made one."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()
