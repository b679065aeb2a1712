"""The core's packages run `run`, `table` and `runs verify`; a command that needs another one names the extra `all`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_stream import write_stream

ROOT = Path(__file__).resolve().parent.parent
tomllib = pytest.importorskip("tomllib", reason="of Python 3.11")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules that only the packages of the extra `all` install; MLflow's client is in the core, its server is not
NOT_IN_CORE = ("ray", "optuna", "decord", "pandas", "pyarrow", "sklearn", "flask", "docker", "gunicorn")
CODE = """
import importlib.metadata, sys
from importlib.machinery import PathFinder

find, absent = PathFinder.find_spec, set(sys.argv[1].split())

def find_spec(name, path=None, target=None):
    return None if absent & {name, name.partition(".")[0]} else find(name, path, target)

PathFinder.find_spec = find_spec
found = importlib.metadata.distribution

def distribution(name):
    if name == "mlflow" and "flask" in absent:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

importlib.metadata.distribution = distribution
from ctvr.orchestrator.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
TINY = ("backbone.name=tiny-clip", "backbone.weights=shipped", "data.num_frames=2")


def ctvr(folder: Path, *words: str, absent: tuple[str, ...] = NOT_IN_CORE) -> subprocess.CompletedProcess[str]:
    """Give a command in `folder`, where the modules `absent` cannot be imported."""
    command = [sys.executable, "-c", CODE, " ".join(absent), *words]
    own = {**os.environ, "CTVR_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300)


def line_of(package: str) -> str:
    return f'ctvr: {package}: this command needs the package. Run: pip install "ctvr[all]"'


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each)[0].lower() for each in requirements}


def test_the_core_and_its_extra_name_each_package_once_and_the_setup_installs_both():
    core, others = names(PROJECT["dependencies"]), names(PROJECT["optional-dependencies"]["all"])
    assert core & others == set()
    assert {"torch", "numpy", "open_clip_torch", "safetensors", "av"} <= core
    assert {"ray", "mlflow", "decord", "optuna"} == others
    for file, words in (
        ("Makefile", "'.[all,dev]'"),
        ("Dockerfile", "-e '.[all]'"),
        ("docs/install.md", "-e '.[all]'"),
    ):
        assert words in (ROOT / file).read_text(), file
    for file in ("cluster/setup.sh", "cluster/apptainer.def", "cluster/skypilot.yaml", "docs/slurm.md", "docs/aws.md"):
        assert "[all]" in (ROOT / file).read_text(), file


def test_mlflow_and_its_client_have_one_range_of_versions():
    ranges = {
        each.removeprefix("mlflow-skinny").removeprefix("mlflow")
        for each in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["all"]]
        if each.startswith("mlflow")
    }
    assert len(ranges) == 1


@pytest.mark.slow
def test_a_run_its_table_and_its_bundle_need_the_core_only(tmp_path):
    manifest = write_stream(tmp_path / "small", num_tasks=2)
    for words in (
        ("run", "--method", "clip4clip", "--stream", str(manifest), "optim.epochs=1", *TINY),
        ("table", "--stream", "small"),
        ("report", "small"),
        ("runs", "publish", "small"),
        ("runs", "verify", "runs/bundles/small.zip", "--queries", "0"),
    ):
        done = ctvr(tmp_path, *words)
        assert done.returncode == 0, (words, done.stderr[:2000])
    assert "consistent: yes" in done.stdout
    ui = ctvr(tmp_path, "ui")
    assert (ui.returncode, ui.stderr) == (
        2,
        'ctvr: mlflow: this command needs the package. Run: pip install "ctvr[all]"\n',
    )
    kept = ctvr(tmp_path, "run", "--method", "zero_shot", "--stream", str(manifest), "--keep-model", *TINY)
    assert kept.returncode == 2
    assert line_of("pandas") in kept.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "words"),
    {
        "ray": ("sweep", "zero_shot", "shapes-5", "--smoke"),
        "torch": ("run", "zero_shot", "shapes-5", "--smoke"),
        "scipy": ("runs", "verify", str(ROOT / "examples/bundles/shapes-5-smoke.zip")),
    }.items(),
)
def test_an_absent_package_is_one_line_for_every_command(tmp_path, package, words):
    done = ctvr(tmp_path, *words, absent=(package,))
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr.splitlines()[-1] == f'ctvr: {package}: this command needs the package. Run: pip install "ctvr[all]"'
    )


def test_a_module_of_ours_that_is_absent_is_not_the_users_to_install(tmp_path):
    done = ctvr(tmp_path, "methods", absent=("ctvr.orchestrator.catalog.methods",))
    assert "No module named 'ctvr.orchestrator.catalog.methods'" in done.stderr
    assert "pip install" not in done.stderr
