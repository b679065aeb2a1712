"""Recording of one run in MLflow during training: connects the loop's reports to the tracker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctvr.methods.base import Method, Task
from ctvr.methods.layers.transfer import trim_padding
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.digests import canonical
from ctvr.orchestrator.errors import Interrupted
from ctvr.orchestrator.learning.evaluation.cost import measure, query_cost
from ctvr.orchestrator.learning.evaluation.protocols import protocol_of
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.gallery_files import save_gallery
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.record.run_state import RunState
from ctvr.orchestrator.learning.run.execute import has_training
from ctvr.orchestrator.learning.training.budget import budget
from ctvr.orchestrator.learning.training.epoch_timing import training_costs
from ctvr.orchestrator.settings.experiment import Experiment
from ctvr.orchestrator.streams.metric_names import progress_text
from ctvr.orchestrator.streams.query_rank import Rank
from ctvr.orchestrator.streams.stream import Stream
from ctvr.orchestrator.tracking.internals import NOTE
from ctvr.orchestrator.tracking.left import find_complete, open_or_take_up
from ctvr.orchestrator.tracking.mirror import Mirror
from ctvr.orchestrator.tracking.mlflow_ui import code, dataset_of, import_signatures, plain, write_mlmodel
from ctvr.orchestrator.tracking.outbox import OFFLINE
from ctvr.orchestrator.tracking.tracker import Tracker

MOST_COLUMNS = 10  # a wider table does not fit next to MLflow's column of tags


@dataclass
class Recorder:
    """Sends a run's settings, metrics, matrices and model to MLflow. Pass `ready` and `report` to `run.execute`.

    A resumed run continues its MLflow run; existing data is not stored again. If all tasks were finished before and
    MLflow has the complete run, it is not written again.
    """

    tracker: Tracker
    experiment: Experiment
    name: str  # name of the MLflow run
    parent: str | None = None  # run id of the sweep
    tags: Mapping[str, str] = field(default_factory=dict)
    keep_model: bool = False  # whether to upload the trained model when the stream is learned
    run_id: str = ""
    _context: tuple[Method, StreamData] | None = None
    _commits: Commits | None = None
    _logged_epochs: int = 0
    _mirror: Mirror | None = None
    _is_closed: bool = False

    def __post_init__(self) -> None:
        if self.keep_model:
            import_signatures()  # before the training: the core lacks a package for it

    def ready(self, key: str, method: Method, data: StreamData, commits: Commits) -> None:
        """Open the MLflow run, and record the results that an earlier process committed."""
        stream = data.stream
        done = commits.finished(len(stream.tasks))
        self._context, self._commits = (method, data), commits
        tags = {
            "ctvr.method": self.experiment.name,
            "ctvr.result": key,
            "ctvr.commits": commits.run,
            "ctvr.split": self.experiment.evaluation.split,
            "ctvr.select": self.experiment.evaluation.select,
            "ctvr.select_split": self.experiment.evaluation.selects_on(stream.has_val) or "",
            "ctvr.mark": stream.table_caveat,
            "ctvr.trains_on_searched": str(self.experiment.trains_on_searched).lower(),
            "ctvr.keeps_videos": str(self.experiment.keeps_videos).lower(),
            "ctvr.is_joint": str(self.experiment.is_joint).lower(),
            "ctvr.protocol": protocol_of(stream).kind,  # determines the columns of tables
            "ctvr.stream_digest": stream.digest,
            "ctvr.stream_content": stream.content,
            **({"ctvr.upgrade_digest": stream.newer.digest} if stream.newer is not None else {}),
            "ctvr.frames": commits.made_of.get("frames", ""),
            "ctvr.presets": ",".join(self.experiment.presets),
            "ctvr.provenance": canonical(commits.made_of),
            "ctvr.reused_tasks": str(commits.reused),
            **self.tags,
        }
        if type(method).param_groups is not Method.param_groups:  # the method trains
            tags["ctvr.recommended_epochs"] = str(self.experiment.recommended_value("optim.epochs"))
        if stream.paper:
            tags["ctvr.paper"] = stream.paper
        if method.declared.is_transductive:
            tags["ctvr.transductive"] = "true"
        settings = self.experiment.settings
        may_exist = done == len(stream.tasks) and self.parent is None and not self.keep_model and not self.run_id
        if may_exist and (found := find_complete(self.tracker, stream.name, settings, tags)) is not None:
            self.run_id, self.name, self._is_closed = found.run_id, found.name, True
            return
        if self.parent is None and not self.run_id:
            self.run_id, self.name = open_or_take_up(self.tracker, stream.name, self.name, settings, tags)
        else:
            self.run_id = self.tracker.open_run(stream.name, self.name, settings, self.parent, tags)
        self.tracker.log_dataset(self.run_id, dataset_of(data, self.experiment.evaluation.split))
        self.tracker.log_environment(self.run_id)
        if self._mirror is None:  # after a commit conflict it already exists
            kind, folder = self.experiment.tracking.mirror, self.tracker.runs / "mirror"
            self._mirror = Mirror(kind, folder, self.name, stream.name, self.experiment.settings)
        if done:
            record = commits.record(done)
            for step in range(1, done + 1):
                self._log_task(record, step)
            self.log_training(record)

    def report(self, task: Task, record: RunState, seconds: float) -> None:
        """Record the results after a task."""
        step = task.index + 1
        self._log_task(record, step)  # first: MLflow's pages list metrics in the order of their first values
        self.log_training(record)
        if step == task.num_tasks:
            self.complete(record)

    def log_training(self, record: RunState) -> None:
        """Log the losses of every epoch that this process has not logged yet."""
        rows = _epoch_metrics(record)
        new = dict(list(rows.items())[self._logged_epochs :])
        self._logged_epochs = len(rows)
        if new:
            self.tracker.log_history(self.run_id, new)
            self._show(new)

    def _log_task(self, record: RunState, step: int) -> None:
        """Log the metrics after `step` tasks, and the time of the last task."""
        self.tracker.log_task(self.run_id, step, _task_metrics(record, step))
        self._show({step: _task_metrics(record, step)}, step)

    def _show(self, rows: Mapping[int, Mapping[str, float]], task: int | None = None) -> None:
        if self._mirror is not None:
            self._mirror.log(rows, task)

    def complete(self, record: RunState) -> None:
        """Record the final results of the stream, and close the run; without effect if it is closed."""
        if self._is_closed:
            return
        assert self._context is not None
        method, data = self._context
        num_tasks, split = len(data.stream.tasks), self.experiment.evaluation.split
        plain = data.with_features(None)  # a new video passes the whole tower, even if stored tokens enter later
        frames = next(plain.videos(0, split, [0], 1))
        cost = measure(method, frames)
        if data.stream.domain == "videos":
            tokens = trim_padding(data.queries(0, split).tokens[:1]).to(data.device)
            cost |= query_cost(method, tokens, num_tasks)
            cost |= budget(method, data, split, cost, record, self.experiment.run.seed)
        cost |= training_costs(record.timing)
        if not has_training(self.experiment):  # zero-shot CLIP, or a control without training
            cost["cost/trained_parameters"] = 0.0
        self.tracker.log_task(self.run_id, num_tasks, cost)
        self.tracker.log_json(self.run_id, "matrix_own.json", record.own)
        self.tracker.log_json(self.run_id, "matrix_union.json", record.union)
        if split == "test":  # a figure would cost more than a small trial of a search
            matrices = {"R@1 in each task's own gallery": record.own, "R@1 among all videos so far": record.union}
            self.tracker.log_heatmap(self.run_id, "matrices", matrices)
        task_of = {item.video: task for task in range(num_tasks) for item in data.stream.items(task, split)}
        tasks = [task_of[query.rpartition("#")[0]] for query in record.ranks]
        ranks: dict[str, Any] = {"query ids": list(record.ranks), "tasks": tasks, **_columns(record.ranks.values())}
        if record.aged_ranks:  # by the percentage of old videos that are re-encoded
            aged = record.aged_ranks.items()
            ranks["reencoded"] = {share: _columns(of[query] for query in record.ranks) for share, of in aged}
        if record.v2t:
            ranks["v2t"] = {"video ids": list(record.v2t), **_columns(record.v2t.values())}
        self.tracker.log_json(self.run_id, "ranks.json", ranks)
        if split == "test":
            self._log_similarities(method)
        self.tracker.log_json(self.run_id, "config.json", self.experiment.settings)
        if self.keep_model:
            with tempfile.TemporaryDirectory() as folder:
                save_model(method, self.experiment.settings, data.stream, Path(folder) / "model")
                if data.stream.domain == "videos" and self._commits is not None:
                    galleries = self._commits.load(num_tasks)[1]
                    save_gallery(galleries, data.stream, split, Path(folder) / "model")
                write_mlmodel(Path(folder) / "model", self.experiment)
                self.tracker.log_artifacts(self.run_id, Path(folder) / "model", into="model")
        note = run_note(self.experiment, data.stream, record, self.run_id)
        self.tracker.set_tags(self.run_id, {"ctvr.complete": "true", NOTE: note})
        self.tracker.close(self.run_id)
        self._is_closed = True
        if self._mirror is not None:
            self._mirror.close()

    def stop(self, error: BaseException) -> None:
        """Close an unfinished run as KILLED if it was stopped, otherwise as FAILED. The next start continues it."""
        if self.run_id and not self._is_closed:
            is_stopped = isinstance(error, Interrupted) or not isinstance(error, Exception)
            self.tracker.close(self.run_id, "KILLED" if is_stopped else "FAILED")

    def _log_similarities(self, method: Method) -> None:
        """Log `similarity.json`, `.png` and `.pdf`, if the method provides similarity matrices."""
        found = {name: matrix.double().cpu().tolist() for name, matrix in method.similarities().items()}
        if not found:
            return
        from ctvr.orchestrator.figures import figures  # matplotlib takes a second to import

        self.tracker.log_json(self.run_id, "similarity.json", found)
        figure = figures.draw_similarities(found, f"{self.name}: cosines among categories")
        with tempfile.TemporaryDirectory() as folder:
            for form in ("png", "pdf"):
                with (Path(folder) / f"similarity.{form}").open("wb") as file:
                    figures.save(figure, file, form)
                figure.set_layout_engine(None)  # laid out once for both formats
            self.tracker.log_artifacts(self.run_id, Path(folder))


def _epoch_metrics(record: RunState) -> dict[int, dict[str, float]]:
    """Map the last optimizer step of every epoch to its losses, speed and memory."""
    rows: dict[int, dict[str, float]] = {}
    for row in (*record.training, *record.timing):
        rows.setdefault(int(row["step"]), {}).update({k: v for k, v in row.items() if k != "step"})
    return rows


def _task_metrics(record: RunState, step: int) -> dict[str, float]:
    return {**record.metrics[step - 1], "cost/seconds_task": record.seconds[step - 1]}


def rows_of(record: RunState) -> dict[int, dict[str, float]]:
    """Return all values that a record contributes to MLflow: step -> key -> value."""
    rows = _epoch_metrics(record)
    for step in range(1, record.done + 1):
        rows[step] = {**rows.get(step, {}), **_task_metrics(record, step)}
    return rows


def _columns(ranks: Iterable[Rank]) -> dict[str, list[float]]:
    """Return the mean ranks of queries, and the counts (`Rank`) from which ranks under other tie rules follow."""
    kept = list(ranks)
    return {"ranks": [rank.mean for rank in kept]} | {
        name: [getattr(rank, name) for rank in kept] for name in Rank._fields
    }


def run_note(experiment: Experiment, stream: Stream, record: RunState, run_id: str) -> str:
    """Return the note as Markdown.

    Args:
        experiment: experiment of the run.
        stream: stream of the run.
        record: state of the run after the last task.
        run_id: id of the run in MLflow; commands cannot use an id that begins with OFFLINE.
    """
    split, last, epochs = experiment.evaluation.split, len(stream.tasks), experiment.optim.epochs
    items = sum(len(getattr(task, split)) for task in stream.tasks)
    trained = ", trained without gradients" if experiment.capabilities.learns_in_end_task else ", not trained"
    if experiment.trains_by_gradients:
        trained = f", {epochs} epoch{'s' * (epochs != 1)} per task"
    value = "R@1" if stream.domain == "videos" else "Accuracy"
    lines = [
        f"**{' '.join(progress_text(record.metrics[-1]).split())}**",
        f"{code(experiment.name)} on {plain(stream.name)}, after {last} tasks, on {items} {split} {stream.domain}; "
        f"seed {experiment.run.seed}{trained}.",
    ]
    if last <= MOST_COLUMNS:
        lines += [f"{value} of each task (column) in its own gallery, after each task (row):", _table(record.own)]
    name = code(stream.name)[1:-1]
    commands = [
        f"- compare it with the other runs of its stream: `ctvr table {name}`; with pictures: `ctvr report {name}`",
        "- train it again from `config.json` under Artifacts: `ctvr run --config config.json --fresh`",
    ]
    if not run_id.startswith(OFFLINE):
        commands.append(f"- files, and where its numbers come from: `ctvr runs show {run_id[:8]}`")
    return "\n\n".join([*lines, "\n".join(commands)])


def _table(matrix: list[list[float]]) -> str:
    """Return a matrix (row: task learned, column: task tested) as a Markdown table."""
    heads = [f"&ensp;task {column + 1}" for column in range(len(matrix[-1]))]
    rows = [["after", *heads], ["---:"] * (len(heads) + 1)]
    for number, values in enumerate(matrix, 1):
        cells = [f"&ensp;{value:.1f}" for value in values] + [""] * (len(heads) - len(values))  # not padded by MLflow
        rows.append([f"task {number}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
