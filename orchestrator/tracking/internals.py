"""Private names and message texts of MLflow that we depend on, in one place.

tests/orchestrator/tracking/test_internals.py checks that the installed MLflow has all of them, hence the upper bound of
`mlflow` in pyproject.toml. To raise the bound, install that version and run that test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run

AUTOFLUSH = "(raised as a result of Query-invoked autoflush"  # text before SQLAlchemy's reason
PARENT = "mlflow.parentRunId"  # the tag that makes a run a child
KIND = "mlflow.experimentKind"  # tag for an experiment's kind; only MLflow's pages define the name
TRAINING = "custom_model_development"  # its value for training runs
NOTE = "mlflow.note.content"  # tag that the pages show as the description of a run or an experiment
VIEW = "mlflow.sharedViewState."  # prefix of an experiment's tags that store views of its table of runs
VIEW_ASKED = "viewStateShareKey"  # URL parameter for the key; only the pages define it
FIRST_CHOICES = {  # keys of the pages' localStorage: kind of work, assistant opened by itself, notice read, telemetry
    "mlflow.workflowType_v1": '"machine_learning"',
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.telemetry.info.alert.dismissed_v1": "true",
    "mlflow.settings.telemetry.enabled_v1": "false",
}
SOURCE = {"name": "mlflow.source.name", "type": "mlflow.source.type", "commit": "mlflow.source.git.commit"}
USER = "mlflow.user"
# Database columns that contain file URIs
LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)
SCHEMA = "dc11669786a5"  # revision of the SQLite file's tables that sqlite_records.py reads
# Loggers that are silenced, because we report their important errors ourselves
NOISY = ("alembic", "mlflow.store", "urllib3.connectionpool")


def latest_points(run: Run) -> dict[str, tuple[int, float]]:
    """Map each metric key to the (step, value) of its last step. The public `data.metrics` lacks steps."""
    return {metric.key: (metric.step, metric.value) for metric in run.data._metric_objs}


def schema_revisions() -> tuple[str, frozenset[str]]:
    """Return the newest schema revision of the installed MLflow, and all its revisions."""
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config

    scripts = ScriptDirectory.from_config(_get_alembic_config(db_url=""))
    return str(scripts.get_current_head()), frozenset(script.revision for script in scripts.walk_revisions())


def connect_once(uri: str) -> None:
    """Connect to a database, or raise the error immediately; MLflow's client tries ten times, which takes 100 s."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def migrate(uri: str) -> None:
    """Upgrade a database to the newest schema, as `mlflow db upgrade` does in a separate process."""
    import sqlalchemy
    from alembic import command
    from mlflow.store.db.utils import _get_alembic_config

    config, engine = _get_alembic_config(uri), sqlalchemy.create_engine(uri)
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "heads")
    finally:
        engine.dispose()
