"""Appearance of runs on MLflow's pages: short names, data sets, and the form of a stored model.

A run's name in MLflow is for display; the tag `ctvr.name` holds the name that our commands use.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctvr.methods import find_method
from ctvr.orchestrator.tracking.internals import KIND, NOTE, TRAINING, VIEW, VIEW_ASKED

if TYPE_CHECKING:
    from ctvr.orchestrator.data.batches import StreamData
    from ctvr.orchestrator.settings.experiment import Experiment

NAME = "ctvr.name"
OUR_VIEW = f"{VIEW}ctvr"  # tag of an experiment: columns of its table of runs, and their widths
OF_VIDEOS = ("stream/t2v/r1", "stream/t2v/r1_gain", "stream/t2v/bwf")
OF_IMAGES = ("stream/knn/accuracy", "stream/knn/forgetting")
OF_QUESTIONS = ("stream/qa/accuracy", "stream/qa/forgetting")
SECTION = "Results after each task"  # title of the charts of our view; charts of other metrics follow
WIDTH = 40  # characters of a run's name that fit into a narrow column


def experiment_tags(stream: str) -> dict[str, str]:
    """Return the tags of an experiment: its kind (training runs) and a description."""
    text = (
        f"Continual text-to-video retrieval on **{plain(stream)}**. A sweep or a rerun is a run with its trials "
        "below it; the step of `stream/...` and `task_.../...` is the number of tasks learned. "
        "R@1: `stream/t2v/r1`; gain over zero-shot: `stream/t2v/r1_gain`; forgetting: `stream/t2v/bwf`."
    )
    return {KIND: TRAINING, NOTE: text, OUR_VIEW: our_view()}


def plain(text: str) -> str:
    """Return a name escaped for Markdown, so that it cannot add markup, links or HTML."""
    return re.sub(r"([\\`*\[\]!|~])", r"\\\1", escape(text, quote=False))


def code(text: str) -> str:
    """Return a text as a Markdown code span; backticks, which would end it, are replaced."""
    return f"`{text.replace('`', chr(39))}`"


def our_view() -> str:
    """Return the JSON of a view of MLflow's page of runs: our columns of the table, and our charts first."""
    name, begun = "attributes.`Run Name`", "runDateAndNestInfo"  # column names of MLflow's pages
    metrics = [f"metrics.`{key}`" for key in (*OF_VIDEOS, *OF_IMAGES, *OF_QUESTIONS)]  # empty columns are hidden
    columns = ["params.`method`", "params.`optim.epochs`", *metrics]
    state = {
        "selectedColumns": columns,
        "columnOrder": [name, *columns, begun],
        "columnWidths": {name: 240, begun: 115, **dict.fromkeys(columns, 105)},
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "compareRunCharts": [_chart(key) for key in (*OF_VIDEOS, *OF_IMAGES, *OF_QUESTIONS)],
        "compareRunSections": [{"uuid": SECTION, "name": SECTION, "display": True, "isReordered": False}],
        "isAccordionReordered": True,  # otherwise sections are sorted by name, with `cost` first
    }
    return json.dumps({"name": "ctvr", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def _chart(key: str) -> dict[str, Any]:
    """Return one line chart of a saved view, with the number of tasks as x axis."""
    switches = {"isGenerated": False, "deleted": False, "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    scales = {"xAxisKey": "step", "yAxisKey": "metric", "xAxisScaleType": "linear", "scaleType": "linear"}
    shown = {"uuid": key, "type": "LINE", "metricSectionId": SECTION, "metricKey": key}
    return {**shown, **scales, **switches, "lineSmoothness": 0, "range": {}, "yAxisExpressions": []}


def page_of_runs(experiment: str) -> str:
    """Return the address of an experiment's runs in the view `our_view`, relative to the server."""
    return f"#/experiments/{experiment}/runs?{VIEW_ASKED}=ctvr&workflowType=machine_learning"


def dataset_of(data: StreamData, context: str) -> dict[str, str]:
    """Return MLflow's description (name, digest, size) of a run's stream; `context` is the evaluated split."""
    stream = data.stream
    counts = {
        split: sum(len(stream.items(task, split)) for task in range(len(stream.tasks))) for split in stream.splits
    }
    return {
        "name": stream.name,
        "digest": stream.digest[:36],
        "source_type": "ctvr",
        "source": json.dumps({"stream": stream.name, "protocol": stream.protocol}),
        "profile": json.dumps({"tasks": len(stream.tasks), **{f"{split}_videos": n for split, n in counts.items()}}),
        "context": context,
    }


def short_name(number: int | None, stopped: str, gain: float | None, differing: Mapping[str, Any]) -> str:
    """Return a trial's name for a narrow column: number, stop, gain over zero-shot in points, and its settings.

    Args:
        number: number of the trial, from 0; None if trials are not numbered.
        stopped: tag `ctvr.stopped`, for example "halving after task 2"; empty if the trial was not stopped.
        gain: gain in R@1 over zero-shot CLIP after the trial's last finished task, in points.
        differing: values of the searched settings that differ between trials.
    """
    words = [f"#{number}" if number is not None else "", f"stop@{stopped.rpartition(' ')[2]}" if stopped else ""]
    words.append("" if gain is None else f"{gain:+.1f}")
    words += [f"{name.rpartition('.')[2]}={_brief(value)}" for name, value in differing.items()]
    text = " ".join(filter(None, words))
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def _brief(value: Any) -> str:
    try:
        return f"{float(value):.2g}"
    except (TypeError, ValueError):
        return str(value)


def import_signatures() -> None:
    """Import what `write_mlmodel` needs.

    Raises:
        ModuleNotFoundError: if pandas is not installed; mlflow-skinny does not require it.
    """
    importlib.import_module("mlflow.models.signature")


def write_mlmodel(folder: Path, experiment: Experiment) -> None:
    """Write the file `MLmodel` of a saved model. A retriever of videos is a `pyfunc` that `ctvr/pyfunc.py` loads.

    The input of the `pyfunc` is texts, and its output has a row for each retrieved video. Its parameters are `k` and
    `folder`, the folder of the videos.
    """
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import ColSpec, ParamSchema, ParamSpec, Schema

    settings = experiment.settings
    about = {"method": str(settings["method"]), "backbone": str(settings["backbone.name"]), "load": "ctvr.load(FOLDER)"}
    model = Model(flavors={"ctvr": about})
    if find_method(experiment.run.method).domain == "videos":
        columns = {"text": "string", "rank": "long", "score": "double", "video": "string", "path": "string"}
        model.signature = ModelSignature(
            inputs=Schema([ColSpec("string", "text")]),
            outputs=Schema([ColSpec(kind, name) for name, kind in columns.items()]),
            params=ParamSchema([ParamSpec("k", "long", 10), ParamSpec("folder", "string", "")]),
        )
        # As `mlflow.pyfunc.add_to_model` does, whose import takes seconds and warns about MLflow's own types
        model.add_flavor("python_function", loader_module="ctvr.pyfunc", python_version=platform.python_version())
    model.save(str(folder / "MLmodel"))
