"""A command that only reads leaves the database of any MLflow as it is."""

import errno
import fcntl
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.script import ScriptDirectory
from mlflow.store.db.utils import _get_alembic_config
from mlflow.store.tracking.dbmodels.initial_models import Base

from ctvr.orchestrator.tracking.internals import SCHEMA
from ctvr.orchestrator.tracking.readable import _make_copy, _prepare_in_place, readable_uri
from ctvr.orchestrator.tracking.server import create_database, new_client
from tests.refusing import refuses

ROWS = (
    "INSERT INTO experiments VALUES (1, 'mine', 'file:///x/artifacts/mine', 'active')",
    "INSERT INTO runs (run_uuid, name, status, start_time, lifecycle_stage, artifact_uri, experiment_id, user_id) "
    "VALUES ('0123456789abcdef0123456789abcdef', 'old', 'FINISHED', 1, 'active', 'file:///x/r', 1, 'me')",
)
REVISIONS = [
    script.revision
    for script in ScriptDirectory.from_config(_get_alembic_config("")).walk_revisions()
    if script.revision != SCHEMA
][::-1]


class OldDatabase:
    """A database with one run, as MLflow's own migrations from its first release leave it."""

    def __init__(self, file: Path) -> None:
        self.file, self.uri = file, f"sqlite:///{file}"
        self.engine = sqlalchemy.create_engine(self.uri)
        Base.metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            for row in ROWS:
                connection.exec_driver_sql(row)

    def migrate(self, revision: str) -> None:
        config = _get_alembic_config(self.uri)
        with self.engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OldDatabase]:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    monkeypatch.setattr(logging.getLogger("alembic"), "disabled", True)
    _make_copy.cache_clear()
    yield OldDatabase(tmp_path / "mlflow.db")
    _make_copy.cache_clear()


def names(uri: str) -> list[str]:
    return [run.info.run_name for run in new_client(uri).search_runs(["1"])]


def revision(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def test_an_older_database_is_read_from_a_copy_and_upgraded_by_a_command_that_writes(old, caplog):
    old.migrate(REVISIONS[-3])
    before = old.file.read_bytes()
    assert names(readable_uri(old.uri)) == ["old"]
    assert "temporary copy" in caplog.text
    assert old.file.read_bytes() == before
    create_database(old.uri)
    assert (revision(old.file), names(old.uri)) == (SCHEMA, ["old"])
    (kept,) = old.file.parent.glob("mlflow.db.before-*")
    assert revision(kept) == REVISIONS[-3]
    assert str(kept) in caplog.text


@pytest.mark.slow
def test_no_revision_of_the_schema_is_changed_by_reading(old):
    for number, each in enumerate(REVISIONS):
        old.migrate(each)
        before = old.file.read_bytes()
        assert not _prepare_in_place(old.file), each
        if number % 22 == 0:  # each upgrade of a copy takes seconds
            assert names(readable_uri(old.uri)) == ["old"], each
        assert old.file.read_bytes() == before, each


@pytest.mark.parametrize("use", [readable_uri, create_database])
def test_a_newer_database_is_named_and_stays(old, use):
    old.migrate("heads")
    with closing(sqlite3.connect(old.file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffff00001111'")
    before = old.file.read_bytes()
    with refuses("ffff00001111", where="mlflow.db"):
        use(old.uri)
    assert old.file.read_bytes() == before


def test_a_database_in_a_folder_without_locks_is_read_from_a_copy(old, monkeypatch):
    old.migrate("heads")
    real = fcntl.lockf

    def only_in_copies(file, *words):
        if "copies" not in str(file.name):
            raise OSError(errno.ENOLCK, "No locks available")
        return real(file, *words)

    monkeypatch.setattr(fcntl, "lockf", only_in_copies)
    before = old.file.read_bytes()
    assert names(readable_uri(old.uri)) == ["old"]
    assert old.file.read_bytes() == before


def test_without_locks_anywhere_reading_ends_at_once_with_one_line(old, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", none)
    with refuses("No locks available", "TMPDIR"):
        readable_uri(old.uri)
