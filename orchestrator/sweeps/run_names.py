"""Names of runs and sweeps that the user did not name."""

from __future__ import annotations

import secrets
import time


def generate_name(what: str) -> str:
    """`what`, when, and four hex digits, as in shapes-5-1125-093101-7be2.

    The digits are drawn: a loop in a shell or a cluster's job array starts several in one second, and MLflow, folders
    and `--resume` tell them apart by name alone.
    """
    return f"{what}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
