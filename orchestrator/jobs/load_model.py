"""Loading of trained models by name: a folder, an MLflow run, a sweep, a method, or `best-STREAM`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ctvr.orchestrator.errors import ConfigError, MissingObject
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.find_model import find_run, is_folder, local_name
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.gallery_files import read_gallery
from ctvr.orchestrator.learning.run.factory import TrainedModel, load_trained, restore_from_commits
from ctvr.orchestrator.retrieval.model import Block, Model
from ctvr.orchestrator.settings.presets import get_method
from ctvr.orchestrator.settings.resolve import named_in, resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.json_reader import read_json
from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.streams.newer import with_newer
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.streams.videos import VideoPlaces
from ctvr.orchestrator.tracking.run_record import RunRecord


def load(name: str, execution: ExecutionConfig) -> Model:
    """Load a trained model for queries.

    Args:
        name: one of: a folder with a saved model; OWNER/NAME@REVISION on the Hugging Face Hub; the beginning of an
            MLflow run id; the name of a run; `best-STREAM` for the model that searches selected on validation videos
            (sweeps/best.py) or, with a warning, the run of the highest R@1 if no search selected a model; the name of
            a sweep for its best trial; the name of a method for its newest complete run.
        execution: the runs folder, and the folder of the videos.

    Raises:
        ConfigError: if no model has this name, or its weights are missing.
    """
    name = local_name(name)
    if is_folder(name):
        folder = Path(name).expanduser()
        trained = _read(folder)
        _check_searches(name, trained.experiment.run.method)
        return _attach_gallery(_make_model(name, trained, execution, None), folder)
    run = find_run(name, execution)
    stream = execution.stream_of(run)
    _check_run(name, run)
    model = _make_model(name, _load_from_run(run, execution, stream), execution, stream)
    model.run = run.name
    return model


def load_task_checkpoints(name: str, execution: ExecutionConfig) -> Iterator[Model]:
    """Yield the model of a run after each task; each model is loaded when it is needed.

    Arguments as for `load`, but `name` must not be a folder, because a folder contains only the final model.

    Raises:
        ConfigError: if no run has this name, or its commits are missing.
    """
    if is_folder(name):
        raise ConfigError(f"model {name}: a folder has only the model after the last task. Use a run or a method.")
    run = find_run(name, execution)
    stream = execution.stream_of(run)
    if stream is None:
        raise ConfigError(
            f"the stream of run {run.name} does not exist here, or has changed", f"model {name}", remedy="Run it again."
        )
    _check_run(name, run)
    if change := int(run.settings.get("upgrade.task", 0)):
        raise ConfigError(
            f"model {name}: run {run.name} changes its backbone at task {change} (upgrade.task), so its features "
            "before and after cannot be compared. Use a run without an upgrade."
        )
    for done in range(1, len(stream.tasks) + 1):
        try:
            yield Model(
                name, _restore_after_task(run, execution, stream, done), execution.places().open_store(), stream
            )
        except MissingObject as error:
            raise ConfigError(
                f"model {name}: run {run.name} has no model after task {done}. Train it with --fresh and "
                "tracking.keep_checkpoints=true."
            ) from error


def count_finished(run: RunRecord, execution: ExecutionConfig, num_tasks: int) -> int:
    """Return the number of finished tasks of a run in the store, from its newest commit; at most `num_tasks`."""
    store, key = execution.places().open_store(), run.tags.get("ctvr.commits", "")
    return next((done for done in range(num_tasks, 0, -1) if store.has("commits", f"{key}/task_{done:03d}")), 0)


def load_task(run: RunRecord, execution: ExecutionConfig, stream: Stream, done: int) -> Model:
    """Load the model of a run after `done` tasks; it searches the videos of these tasks, as stored.

    Raises:
        ConfigError: for a run that cannot be queried.
        MissingObject: if the commit or its weights are missing.
    """
    _check_run(run.name, run)
    trained = _restore_after_task(run, execution, stream, done)
    places = VideoPlaces(execution.videos) if execution.videos else None
    model = Model(run.name, trained, execution.places().open_store(), stream, run=run.name, places=places)
    items = [stream.items(index, trained.experiment.evaluation.split) for index in range(done)]
    if list(map(len, items)) != list(map(len, trained.galleries)):
        raise ConfigError(f"the stream of run {run.name} has changed since it ran", "model", remedy="Run it again.")
    model.set_gallery(
        [
            Block(each, rows, (model.stream or stream).method_task(index), stream.tasks[index].name)
            for index, (each, rows) in enumerate(zip(items, trained.galleries))
        ]
    )
    return model


def _load_from_run(run: RunRecord, execution: ExecutionConfig, stream: Stream | None) -> TrainedModel:
    """Load a run's model from the commits in the store or, without them, from MLflow (--keep-model)."""
    tracker = execution.existing_tracker()
    if stream is not None:
        try:
            return _restore_after_task(run, execution, stream, len(stream.tasks))
        except MissingObject:
            pass
    try:
        with named_in(f"run {run.name}"):
            folder = tracker.download(run.run_id, "model")
            return replace(_read(folder), galleries=tuple(rows for _, _, rows, _ in read_gallery(folder)))
    except FileNotFoundError as error:
        raise ConfigError(
            f"model: run {run.name} has no model: its commits are not in the store, or its stream has changed, and it "
            "ran without --keep-model. Run it again."
        ) from error


def _restore_after_task(run: RunRecord, execution: ExecutionConfig, stream: Stream, done: int) -> TrainedModel:
    """Restore the model from the commit of a run's `done`-th task.

    Raises:
        MissingObject: if the commit is missing.
    """
    settings = run.settings  # as text, until the run is complete
    if run.tags.get("ctvr.complete") == "true":
        settings = read_json(execution.existing_tracker().download(run.run_id, "config.json"))
    presets = [name for name in run.tags.get("ctvr.presets", "").split(",") if name]
    key = run.tags.get("ctvr.commits") or run.tags.get("ctvr.result", "")
    commits = Commits(execution.places().open_store(), key)
    with named_in(f"run {run.name}"):
        experiment = resolve(settings, None, presets)
    return restore_from_commits(experiment, commits, done, stream)


def _check_run(name: str, run: RunRecord) -> None:
    with named_in(f"run {run.name}"):
        _check_searches(name, str(run.settings["method"]))


def _check_searches(name: str, method: str) -> None:
    """Check that a method retrieves videos; raise ConfigError otherwise."""
    learned = {
        "images": "images without captions, so it cannot be queried",
        "questions": "questions, so it cannot be queried",
    }
    if what := learned.get(get_method(method).domain):
        raise ConfigError(f"{method} learned from {what}", f"model {name}", remedy="Use a run of a retriever.")


def _read(folder: Path) -> TrainedModel:
    try:
        return load_trained(folder)
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # a field of a task is missing or has another type
        raise ConfigError(error, f"model {folder}", remedy="Save the model again.") from error


def _attach_gallery(model: Model, folder: Path) -> Model:
    """Set a model's gallery to its saved features, with paths of videos if its stream exists; return the model."""
    if blocks := read_gallery(folder):
        split, stream = model.trained.experiment.evaluation.split, model.stream
        here = [] if stream is None else [stream.items(index, split) for index in range(len(stream.tasks))]
        names = [[item.video for item in items] for items in here]
        same = names == [[item.video for item in items] for _, items, _, _ in blocks]
        model.set_gallery(
            [Block(here[i] if same else items, rows, task, name) for i, (name, items, rows, task) in enumerate(blocks)]
        )
    return model


def _make_model(name: str, trained: TrainedModel, execution: ExecutionConfig, stream: Stream | None) -> Model:
    root = execution.runs.resolve()
    if stream is None and root.is_dir():
        try:
            stream = load_stream(trained.experiment.run.stream, root, execution.places().videos)
            stream = with_newer(stream, trained.experiment.upgrade.stream, root)
        except ConfigError:
            stream = None
    videos = execution.places().videos
    places = VideoPlaces(videos) if videos else None
    if root.is_dir():
        return Model(name, trained, execution.places().open_store(), stream, places=places)
    folder = tempfile.TemporaryDirectory(prefix="ctvr-")  # a saved model can be used without a runs folder
    model = Model(name, trained, Store.open(folder.name), stream, places=places)
    model.__dict__["_folder"] = folder  # removed with the model
    return model


def close(model: Model) -> None:
    """Remove the temporary store of a model that was loaded without a runs folder."""
    if folder := model.__dict__.pop("_folder", None):
        folder.cleanup()
