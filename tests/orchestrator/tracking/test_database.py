"""The SQLite file of a runs folder is complete or missing, and commands wait for a file in use."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from ctvr.orchestrator.tracking.database import UNFINISHED, await_lock, ensure_whole, is_half_made, revision_of, upgrade
from ctvr.orchestrator.tracking.relocate import follow_move
from tests.refusing import missing_from, refuses


def write(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def fill(uri: str) -> None:
    """Create the minimum that counts as a complete database."""
    write(Path(uri.removeprefix("sqlite:///")), "CREATE TABLE experiments (a)", "INSERT INTO experiments VALUES (0)")


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(f"SELECT * FROM {table}").fetchall()


HALVES = {
    "first tables": ["CREATE TABLE experiments (a)", "CREATE TABLE runs (a)"],
    "between migrations": ["CREATE TABLE alembic_version (a)", "INSERT INTO alembic_version VALUES ('x')"],
    "within a migration": ["CREATE TABLE _alembic_tmp_experiments (a)", "CREATE TABLE runs (a)"],
}


@pytest.mark.parametrize("kind", HALVES)
def test_a_half_made_file_is_made_again_and_kept(tmp_path, kind, caplog):
    file = tmp_path / "mlflow.db"
    write(file, *HALVES[kind])
    assert is_half_made(file)
    ensure_whole(file, fill)
    assert rows(file, "experiments") == [(0,)]
    assert file.with_name(f"mlflow.db{UNFINISHED}").is_file()
    assert "created again" in caplog.text


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE experiments (a)", "CREATE TABLE runs (a)", "INSERT INTO runs VALUES (1)"],
        ["CREATE TABLE alembic_version (a)", "CREATE TABLE experiments (a)", "INSERT INTO experiments VALUES (0)"],
        ["CREATE TABLE thesis (a)"],
    ],
)
def test_a_file_that_holds_something_stays(tmp_path, statements):
    file = tmp_path / "mlflow.db"
    write(file, *statements)
    before = file.read_bytes()
    ensure_whole(file, fill)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize("content", [None, b""])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_creation_leaves_no_incomplete_database(tmp_path, content, error):
    file = tmp_path / "mlflow.db"
    if content is not None:
        file.write_bytes(content)
    before = sorted(tmp_path.iterdir())

    def stop(uri: str) -> None:
        write(Path(uri.removeprefix("sqlite:///")), *HALVES["within a migration"])
        raise error

    with pytest.raises(error):
        ensure_whole(file, stop)
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "mlflow.db.new").write_bytes(b"of a process that was killed")
    (tmp_path / "mlflow.db-journal").write_bytes(b"of a file that is gone")
    ensure_whole(file, fill)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_locked_file_is_waited_for_and_never_said_to_be_moved_away(tmp_path, caplog):
    file = tmp_path / "mlflow.db"
    fill(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with refuses(file, "locked", "process") as no:
            await_lock(file, 0.0)
        assert missing_from(str(no.value), "Move", "move")
        threading.Timer(0.3, lambda: other.execute("ROLLBACK")).start()
        await_lock(file)  # returns once the other process has finished
    assert "another process has locked" in caplog.text
    await_lock(tmp_path / "none.db")


def test_a_database_that_cannot_be_written_is_one_line(tmp_path):
    file = tmp_path / "mlflow.db"
    file.write_bytes(b"no database" * 100)
    with refuses(where="mlflow.db"):
        follow_move(file)


@pytest.mark.parametrize("kind", HALVES)
def test_a_half_made_file_has_no_revision(tmp_path, kind):
    write(tmp_path / "mlflow.db", *HALVES[kind])
    assert revision_of(tmp_path / "mlflow.db", 1.0) is None
    assert revision_of(tmp_path / "none.db", 1.0) is None


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE thesis (a)"],
        ["CREATE TABLE alembic_version (a)", "INSERT INTO alembic_version VALUES ('v3')", "CREATE TABLE studies (a)"],
        ["CREATE TABLE runs (a)", "CREATE TABLE tags (a)"],
    ],
)
def test_the_database_of_another_program_is_named_and_stays(tmp_path, statements):
    file = tmp_path / "mlflow.db"
    write(file, *statements)
    before = file.read_bytes()
    with refuses(statements[-1].split()[2], where="mlflow.db"):
        revision_of(file, 1.0)
    assert file.read_bytes() == before


def test_an_upgrade_keeps_every_former_file_and_leaves_it_if_it_fails(tmp_path):
    file = tmp_path / "mlflow.db"
    fill(f"sqlite:///{file}")

    def add(uri: str) -> None:
        write(Path(uri.removeprefix("sqlite:///")), "INSERT INTO experiments VALUES (1)")

    def fail(uri: str) -> None:
        add(uri)
        raise OSError

    with pytest.raises(OSError):
        upgrade(file, fail, "3")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    first, second = upgrade(file, add, "3"), upgrade(file, add, "3")
    assert [len(rows(each, "experiments")) for each in (first, second, file)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, first.name, second.name])
