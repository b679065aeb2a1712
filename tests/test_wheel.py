"""Contents of the installed wheel: every package, every data file, and a command that runs without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.small_stream import write_stream

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("ctvr", "orchestrator", "methods", "search_spaces")
NO_PART_OF_IT = {"ruff.toml"}  # settings of the linter


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy, since setuptools packs leftovers of an earlier build in `build/`, moved files
    included.
    """
    copy = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy / name)
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", copy / "dist", copy]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the wheel and only our installed packages: a .pth path runs no .pth files."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", symlinks=True, with_pip=False)
    python = folder / "env" / "bin" / "python"
    words = ["--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", "pip", *map(str, words)], check=True)
    (site,) = (folder / "env" / "lib").glob("python3*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(elsewhere: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(elsewhere / "env" / "bin" / words[0]), *words[1:]]
    return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300)


def test_every_file_of_the_packages_is_in_the_wheel_below_one_name(wheel):
    files = {
        (path if name == "ctvr" else REPOSITORY / "ctvr" / path.relative_to(REPOSITORY))
        .relative_to(REPOSITORY)
        .as_posix()
        for name in PACKAGES
        for path in (REPOSITORY / name).rglob("*")
        if path.is_file() and path.name not in NO_PART_OF_IT
        if not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
    }
    assert {"ctvr/py.typed", "ctvr/methods/backbone/tiny_clip/weights.safetensors"} < files
    with zipfile.ZipFile(wheel) as packed:
        packed_files = {name for name in packed.namelist() if ".dist-info/" not in name}
        (metadata,) = {name.partition("/")[0] for name in packed.namelist()} - {"ctvr"}
        assert packed.read(f"{metadata}/top_level.txt").split() == [b"ctvr"]
    assert packed_files == files


def test_the_installed_command_lists_the_methods_and_learns_a_stream(elsewhere):
    where = run(elsewhere, "python", "-c", "import ctvr.orchestrator, ctvr.methods as m; print(ctvr.orchestrator, m)")
    assert where.stdout.count(str(elsewhere / "env")) == 2, where.stderr
    listed = run(elsewhere, "ctvr", "methods")
    assert (listed.returncode, "framefusion_moe" in listed.stdout) == (0, True), listed.stderr
    manifest = write_stream(elsewhere / "small", num_tasks=2)
    learned = run(elsewhere, "ctvr", "run", "--smoke", "--method", "clip4clip", "--stream", str(manifest))
    assert learned.returncode == 0, learned.stderr
    assert learned.stdout.startswith("clip4clip on small, test videos\n")
    assert "task 2/2" in learned.stderr


def test_python_example_trains_a_model_that_finds_its_clips(elsewhere):
    """The clips have two colors and differ in nothing else."""
    manifest = write_stream(elsewhere / "asked", num_tasks=2)
    lines = f"""
import ctvr
ctvr.run("clip4clip", {str(manifest)!r}, settings={{"optim.epochs": 1}})
model = ctvr.load("clip4clip")
for hit in model.search("a green star", k=3):
    print(hit.rank, hit.video)
"""
    asked = run(elsewhere, "python", "-c", lines)
    assert asked.returncode == 0, asked.stderr
    assert sorted(line.split()[1] for line in asked.stdout.splitlines()) == [
        "green_test_0",
        "green_test_1",
        "green_test_2",
    ]
