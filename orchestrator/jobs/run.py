"""Training of one method over one stream in this process (`ctvr run`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from ctvr.methods.base import Task
from ctvr.orchestrator import memo
from ctvr.orchestrator.config import Settings
from ctvr.orchestrator.console import say
from ctvr.orchestrator.errors import ConfigError, CtvrError
from ctvr.orchestrator.execution import ExecutionConfig, find_manifest
from ctvr.orchestrator.jobs.finished import FINISHED, question_of
from ctvr.orchestrator.jobs.run_text import (
    backbone_text,
    cut_captions_text,
    next_text,
    result_text,
    start_text,
    time_left,
    warning_of,
)
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import check_streams, execute
from ctvr.orchestrator.learning.run.factory import check_backbone
from ctvr.orchestrator.learning.training.epoch_state import EpochReports
from ctvr.orchestrator.learning.training.interruption import stop_at_signals
from ctvr.orchestrator.output_dir import runs_option
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.settings.optim_config import refuse_unread
from ctvr.orchestrator.settings.presets import get_method
from ctvr.orchestrator.settings.resolve import check_domain, resolve
from ctvr.orchestrator.streams.load import is_embedded
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.sweeps.run_names import generate_name
from ctvr.orchestrator.sweeps.search_spaces import default_presets
from ctvr.orchestrator.sweeps.table import papers_of
from ctvr.orchestrator.sweeps.trust import trust_text
from ctvr.orchestrator.tables.footnotes import marks_of
from ctvr.orchestrator.tracking.mirror import check_mirror
from ctvr.orchestrator.tracking.recorder import Recorder
from ctvr.orchestrator.tracking.tracker import Tracker


@dataclass(frozen=True)
class CompleteRun:
    """A complete run with its experiment, stream, record and MLflow run id."""

    experiment: Experiment
    stream: Stream
    record: RunState
    run_id: str


def run(
    settings: Settings,
    presets: Sequence[str],
    execution: ExecutionConfig,
    fresh: bool = False,
    keep_model: bool = False,
) -> str:
    """Train one method over one stream as `train` does; return the results and the next commands as text."""
    done = train(settings, presets, execution, fresh, keep_model)
    if warning := warning_of(done.experiment, done.record.metrics[-1]):
        say(warning)
    split = done.experiment.evaluation.split
    found = result_text(done.experiment.name, split, done.stream, done.record.metrics[-1])
    following = next_text(done.stream, done.record.ranks, done.run_id, f"{runs_option(execution.runs)}{trust_text()}")
    return f"{found}\n{following}"


def train(
    settings: Settings,
    presets: Sequence[str],
    execution: ExecutionConfig,
    fresh: bool = False,
    keep_model: bool = False,
) -> CompleteRun:
    """Train one method over one stream in this process, tracked by MLflow.

    Args:
        settings: settings by dotted name, including `method` and `stream`.
        presets: names of presets; later presets override earlier ones.
        execution: runs folder, store and videos.
        fresh: whether to train again even if tasks are finished.
        keep_model: whether to upload the trained model to MLflow.

    Raises:
        ConfigError: before training, for a setting, stream or folder that cannot be used.
        Interrupted: after an epoch or task, if Ctrl-C or another signal stopped the run.
    """
    execution.check()
    settings = {**settings, "stream": find_manifest(str(settings.get("stream", "")))}
    get_method(str(settings.get("method", "")))
    places = execution.places()
    stream = execution.load_stream(settings["stream"], render=False)
    check_domain(str(settings["method"]), stream)
    chosen = default_presets(settings["method"], stream, presets)
    experiment = resolve(settings, stream.settings, chosen)
    _check(experiment)
    refuse_unread(experiment.optim, settings)
    check_streams(experiment, stream, places)
    places.open_store().check_writable()
    if is_embedded(settings["stream"]):  # videos are rendered only after all checks
        stream = execution.load_stream(settings["stream"])
    question = question_of(settings, presets, stream, is_verified=is_embedded(settings["stream"]))
    tracker = execution.tracker(stream.name)
    name = generate_name(f"{experiment.run.method}-seed{experiment.run.seed}")
    recorder = Recorder(tracker, experiment, name, keep_model=keep_model)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    took: list[float] = []

    def ready(*context: Any) -> None:  # reached after all checks of settings
        recorder.ready(*context)
        started = start_text(experiment, stream, device, f"{execution.runs}, run {recorder.name}", tracker)
        say("\n".join([started, *backbone_text(context[1]), *cut_captions_text(context[2])]))

    def report_task(task: Task, record: RunState, seconds: float) -> None:
        recorder.report(task, record, seconds)
        took.append(seconds)
        metrics = record.metrics[task.index]
        left = time_left(took, task.num_tasks - task.index - 1)
        say(f"task {task.index + 1}/{task.num_tasks}  {progress_text(metrics)}  {seconds:.1f} s{left}")
        if len(took) == 1 and left and (warning := warning_of(experiment, metrics)):
            say(f"{warning} Ctrl-C stops the run.")

    epochs = EpochReports()
    try:
        with nullcontext() if fresh else stop_at_signals(epochs.interruption):  # a fresh run cannot be resumed
            result = execute(
                experiment, places, report=report_task, fresh=fresh, on_ready=ready, stream=stream, epochs=epochs
            )
        if result.resumed == len(result.stream.tasks):
            recorder.complete(result.record)
    except BaseException as error:
        recorder.stop(error)
        raise
    if result.resumed == len(result.stream.tasks):
        say(FINISHED)
    if question:
        memo.keep(question, result.key)
        _prepare_table(tracker, result.key)
    return CompleteRun(experiment, stream, result.record, recorder.run_id)


def _prepare_table(tracker: Tracker, key: str) -> None:
    """Compute and cache the parts of this run's table that need torch, which this process has already imported."""
    with suppress(CtvrError):  # MLflow's server may be unavailable
        for run in tracker.find_runs(tags={"ctvr.result": key})[-1:]:
            marks_of(run)
            papers_of(run)


def _check(experiment: Experiment) -> None:
    check_backbone(experiment)
    if experiment.run.workers > 1:
        raise ConfigError(
            "`ctvr run` trains in one process", "workers", remedy="Use `ctvr rerun` or `ctvr sweep` for several."
        )
    check_mirror(experiment.tracking.mirror)
