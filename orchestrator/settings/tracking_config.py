"""The settings `tracking.*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ctvr.methods.settings import require, setting
from ctvr.orchestrator.settings.plugins import Plugins

Mirror = Literal["none", "csv", "tensorboard", "wandb", "trackio"]
MIRRORS = Plugins("mirror", "mirrors", "tracking.mirror", get_args(Mirror))


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Settings of a second tracker next to MLflow, and of stored weights. They do not affect results."""

    mirror: Mirror | str = setting(
        "none",
        doc="second tracker in addition to MLflow, which writes offline below the runs folder; or the name of "
        "another package's tracker, or MODULE:CLASS (docs/metrics.md)",
    )
    keep_checkpoints: bool = setting(
        False,
        doc="whether to keep the weights after every task instead of the last two tasks; the run then does not share "
        "finished tasks with other runs",
    )
    pause_minutes: float = setting(
        15.0,
        doc="minutes between two pauses (checkpoints between epochs), from which a killed run continues; 0: pauses "
        "only at a signal or at a machine's preemption notice",
    )

    def __post_init__(self) -> None:
        require(self, ">= 0", "pause_minutes", hint="Use 15.")
