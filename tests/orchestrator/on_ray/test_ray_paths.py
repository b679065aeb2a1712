"""Ray's files are found in the folder where Ray writes them, whose path is short enough for sockets."""

import os
from pathlib import Path

import pytest

from ctvr.orchestrator.on_ray import ray_paths
from tests.refusing import refuses


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "given", [{}, {"TMPDIR": "/scratch/7"}, {"TMPDIR": "/a", "RAY_TMPDIR": "/b"}, {"RAY_TMPDIR": "/c"}]
)
def test_the_cluster_file_stands_where_ray_writes_it(plain, monkeypatch, given):
    from ray._common.utils import get_ray_address_file

    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert str(ray_paths.cluster_file()) == get_ray_address_file(None)


def test_a_folder_is_refused_from_the_length_on_at_which_rays_sockets_fail(plain, tmp_path):
    """Ray's own check of its path decides."""
    from ray._private.utils import validate_socket_filepath

    added = f"/ray/session_2026-11-25_14-18-18_123456_{os.getpid()}/sockets/plasma_store"
    for length in range(30, 60):
        folder = "/tmp/" + "x" * (length - 5)
        try:
            validate_socket_filepath(folder + added)
            fits = True
        except OSError:
            fits = False
        assert (ray_paths.socket_problem(Path(folder)) == "") is fits, length


def test_bytes_are_counted_and_not_letters(plain):
    assert "has 47 characters" in ray_paths.socket_problem(Path("/tmp/" + "\u00e4" * 21))


def test_unusable_temporary_folder_is_replaced(plain, monkeypatch, tmp_path):
    assert ray_paths.usable_folder() == (Path("/tmp"), "")
    monkeypatch.setenv("TMPDIR", "/tmp/" + "long/" * 17)
    folder, problem = ray_paths.usable_folder()
    assert str(folder) in ray_paths.SHORT_FOLDERS
    assert "has 89 characters" in problem
    monkeypatch.setenv("RAY_TMPDIR", "/proc/1")
    folder, problem = ray_paths.usable_folder()
    assert str(folder) in ray_paths.SHORT_FOLDERS
    assert "a socket cannot be made in it" in problem
    monkeypatch.setattr(ray_paths, "SHORT_FOLDERS", ("/proc",))
    with refuses("RAY_TMPDIR=/proc/1", "RAY_TMPDIR"):
        ray_paths.usable_folder()


def test_examining_a_folder_leaves_no_file(plain, monkeypatch):
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # of tmp_path the path is too long
    try:
        assert ray_paths.socket_problem(folder) == ""
        assert not list(folder.iterdir())
    finally:
        shutil.rmtree(folder)
