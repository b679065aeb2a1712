"""Generation and validation of names of runs and sweeps."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.output_dir import check_name

if TYPE_CHECKING:
    from ctvr.orchestrator.execution import ExecutionConfig


def generate_name(what: str) -> str:
    """Return `what`, the date and time, and four random hex digits, e.g. shapes-5-1125-093101-7be2.

    The digits distinguish sweeps that a shell loop or a job array starts in the same second. The name is the only key
    of a sweep in MLflow, in folders and for `--resume`.
    """
    return f"{what}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def require_free_name(name: str, execution: ExecutionConfig) -> None:
    """Check that a name is valid, and that no sweep with this name exists.

    Raises:
        ConfigError: otherwise; for an existing sweep, the message has the command that resumes it.
    """
    check_name(name, "--name", is_ascii=True)
    if (execution.folder(name) / "plan.json").exists():
        raise ConfigError(
            f"--name {name}: this sweep already exists. Resume it with `ctvr sweep --resume {name}`, or choose another "
            "name."
        )
