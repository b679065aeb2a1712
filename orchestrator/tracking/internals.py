"""What we use of MLflow that MLflow does not promise: each private name and each text that is looked for, in one place.

tests/orchestrator/tracking/test_internals.py finds every one of them in the installed MLflow; it is what justifies the
upper bound of `mlflow` in pyproject.toml. To raise the bound: install that version, run that test, raise it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run

OUT_OF_DATE = "out-of-date database schema"  # of the error that a database of another MLflow version ends in
PARENT = "mlflow.parentRunId"  # the tag that makes a run a child
KIND = "mlflow.experimentKind"  # the tag of what an experiment holds; MLflow's pages alone know the name
TRAINING = "custom_model_development"  # its value for runs that train, as the pages have it
NOTE = "mlflow.note.content"  # the tag that the page of a run or an experiment shows as its description
VIEW = "mlflow.sharedViewState."  # an experiment's tag with this start, and a key, holds a view of its table of runs
VIEW_ASKED = "viewStateShareKey"  # what an address names the key by; the pages alone know these names, too
SOURCE = {"name": "mlflow.source.name", "type": "mlflow.source.type", "commit": "mlflow.source.git.commit"}
USER = "mlflow.user"
# Columns of its database that hold addresses of files
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)
NOISY = ("alembic", "mlflow.store", "urllib3.connectionpool")  # loggers; what matters of theirs is said by us


def latest_points(run: Run) -> dict[str, tuple[int, float]]:
    """Metric key -> (step, value) of its last step. The public `data.metrics` has lost the steps."""
    return {metric.key: (metric.step, metric.value) for metric in run.data._metric_objs}
