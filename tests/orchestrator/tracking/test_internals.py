"""All internals of MLflow that we use exist in the installed version."""

import importlib
import importlib.metadata
import logging
import re
from pathlib import Path

from mlflow.entities import Metric, Run, RunData, RunInfo

from ctvr.orchestrator.tracking import internals

ROOT = Path(__file__).parents[3]


def test_mlflow_still_stores_the_steps_of_last_metrics():
    info = RunInfo(
        run_id="a",
        experiment_id="0",
        user_id="me",
        status="RUNNING",
        start_time=0,
        end_time=None,
        lifecycle_stage="active",
    )
    data = RunData(metrics=[Metric("stream/t2v/r1", 40.0, 0, 2), Metric("train/loss", 0.5, 0, 900)])
    assert internals.latest_points(Run(info, data)) == {"stream/t2v/r1": (2, 40.0), "train/loss": (900, 0.5)}


def test_the_tags_of_parents_notes_and_sources_are_still_called_so():
    tags = importlib.import_module("mlflow.utils.mlflow_tags")
    assert (internals.PARENT, internals.NOTE) == (tags.MLFLOW_PARENT_RUN_ID, tags.MLFLOW_RUN_NOTE)
    source = (tags.MLFLOW_SOURCE_NAME, tags.MLFLOW_SOURCE_TYPE, tags.MLFLOW_GIT_COMMIT)
    assert (*internals.SOURCE.values(), internals.USER) == (*source, tags.MLFLOW_USER)


def test_mlflow_still_uses_these_names_of_saved_views_and_choices():
    folder = Path(importlib.import_module("mlflow.server").__file__).parent / "js" / "build" / "static" / "js"
    told = b"".join(file.read_bytes() for file in folder.glob("*.js"))
    stored = [f'"{key.removesuffix("_v1")}"' for key in internals.FIRST_CHOICES]
    charts = '"compareRunCharts","compareRunSections"'
    view = f'"{internals.VIEW}"', f'"{internals.VIEW_ASKED}"', '"columnOrder","columnWidths"', '"Run Name"', charts
    for name in (*view, *stored):
        assert name.encode() in told


def test_the_loggers_that_are_quietened_exist():
    for module in ("mlflow.store.tracking.sqlalchemy_store", "alembic.runtime.migration", "urllib3.connectionpool"):
        importlib.import_module(module)
    known = set(logging.root.manager.loggerDict)
    assert all(any(name == noisy or name.startswith(f"{noisy}.") for name in known) for noisy in internals.NOISY)


def test_no_version_is_allowed_that_was_not_looked_at():
    """The bound is the first minor version after the one that constraints.txt pins, with which these tests run."""
    (pinned,) = re.findall(r"^mlflow==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.M)
    (bound,) = re.findall(r'"mlflow>=[\d.]+,<(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tuple(map(int, bound)) == (int(pinned[0]), int(pinned[1]) + 1)
    assert tuple(map(int, importlib.metadata.version("mlflow").split(".")[:2])) < tuple(map(int, bound))


def test_directly_read_database_has_the_known_schema():
    """If it differs, compare the new migrations with sqlite_records.py, whose tests check the reading."""
    assert importlib.import_module("mlflow.store.db.utils")._get_latest_schema_revision() == internals.SCHEMA


def test_the_columns_with_addresses_of_files_are_still_called_so():
    models = importlib.import_module("mlflow.store.db.base_sql_model").Base
    for module in ("mlflow.store.tracking.dbmodels.models", "mlflow.store.model_registry.dbmodels.models"):
        importlib.import_module(module)
    for table, column in internals.LOCATIONS:
        assert column in models.metadata.tables[table].columns
