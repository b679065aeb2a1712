"""Peak GPU memory of an earlier run with equal tensor shapes, for the start texts of `ctvr run` and `ctvr sweep`."""

from __future__ import annotations

from ctvr.orchestrator.errors import CtvrError
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.tables.setting_diff import provenance_of
from ctvr.orchestrator.tracking.run_record import as_text
from ctvr.orchestrator.tracking.tracker import Tracker

PEAK = "cost/train_memory_mb"
SHAPE = (
    *("method.base", "backbone.name", "data.batch_size", "data.num_frames", "data.image_size", "data.max_tokens"),
    *("precision", "compile", "workers", "optim.activation_checkpointing", "upgrade.task"),
)


def memory_text(tracker: Tracker, experiment: Experiment, workers: int = 1) -> list[str]:
    """Return a line on the memory of the newest GPU run that equals `experiment` in the settings SHAPE, if any."""
    try:
        finished = tracker.find_runs(tags={"ctvr.method": experiment.name, "ctvr.complete": "true"})
    except CtvrError:  # the server may be unavailable
        return []
    settings = {**experiment.settings, "workers": workers}
    shape = {name: as_text(settings[name]) for name in SHAPE if name in settings}
    for run in reversed(finished):
        alike = all(run.settings.get(name) == text for name, text in shape.items())
        if alike and (peak := run.last(PEAK)) and provenance_of(run).get("device") == "cuda":
            return [f"{peak[1] * 1e6 / 2**30:.1f} GiB of tensors on a GPU at most, measured in run {run.run_id[:8]}"]
    return []
