"""Generated names of runs and sweeps."""

from __future__ import annotations

import secrets
import time


def generate_name(what: str) -> str:
    """Return `what`, the time and four random hex digits, e.g. shapes-5-1125-093101-7be2.

    The digits separate sweeps that a shell loop or a job array starts in the same second, since the name is the only
    key in MLflow, folders and `--resume`.
    """
    return f"{what}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
