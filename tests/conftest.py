"""Fixtures that every test may use, and settings that keep Ray, MLflow and torch quiet and quick on two cores.

`make test` and `make test-all` run every test in a child of pytest's own process (pytest-xdist). The parent loads none
of the packages, so that native threads of an ending child cannot change the exit status. Packages that crashed together
are separated: decord is never loaded in a process of pytest, and the process that runs Ray opens no video
(tests/orchestrator/on_ray/conftest.py).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib.metadata
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.methods.released import Compared

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

# A shell ignores Ctrl-C for what it starts in the background, nohup a closed terminal, and children inherit that:
# commands that tests start and end by a signal would not hear it
with contextlib.suppress(ValueError):  # not the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

_read_entry_points = importlib.metadata.entry_points


@functools.lru_cache(maxsize=64)
def _selected(folders: tuple[tuple[str, int], ...], wanted: tuple[tuple[str, str], ...]) -> Any:
    return _read_entry_points(**dict(wanted))


def _entry_points(**wanted: str) -> Any:
    """Read the metadata of all packages again only after a change of `sys.path` or of one of its folders.

    A run asks for entry points 30 times, each of which reads 200 files. importlib.metadata lists the files of a folder
    by the same rule. Processes that tests start have the original function.
    """
    folders = ((path, os.stat(path or ".").st_mtime_ns if os.path.exists(path or ".") else 0) for path in sys.path)
    return _selected(tuple(folders), tuple(sorted(wanted.items())))


importlib.metadata.entry_points = _entry_points  # before any of our modules takes the function
gc.disable()  # until pytest has all tests: modules and tests stay to the end

_told: list[str] = []
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Fail the first test that loads decord in this process, and only that one."""
    if "decord" in sys.modules and not _told:
        _told.append("decord")
        pytest.fail("decord was loaded in the process of pytest. Give it a child: tests/in_subprocess.py")


_tokenizers: dict[Any, dict[str, Any]] = {}


def _read_vocabulary_once(tokenizer: Any) -> None:
    """Let equal tokenizers of open_clip share their tables: each reads 48,894 pairs from an archive, in 0.1 s."""
    read = tokenizer.__init__
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def init(self: Any, *given: Any, context_length: int | None = 77, **named: Any) -> None:
        key = repr((given, named))
        if key not in _tokenizers:
            read(self, *given, **named)
            _tokenizers[key] = vars(self).copy()
        vars(self).update(_tokenizers[key], context_length=context_length)

    tokenizer.__init__ = init
    tokenizer.__deepcopy__ = lambda self, memo: self  # a copy of a method copies 150,000 entries


def _seed(seed: int) -> None:
    """Seed unseeded draws, so that they do not depend on the tests that ran before in this process."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed(1)
    if "open_clip.tokenizer" in sys.modules:
        _read_vocabulary_once(sys.modules["open_clip.tokenizer"].SimpleTokenizer)
    if "ctvr.methods" in sys.modules:  # a command trusts what its user names, and the next test is another user
        sys.modules["ctvr.methods"]._trusted.clear()
    if "ctvr.orchestrator.addresses" in sys.modules:
        sys.modules["ctvr.orchestrator.addresses"]._named.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed(2)  # another: a test must not draw what its fixtures drew


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reword", action="store_true", help="reverse the words of our errors: no test may depend on them"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude the tests and packages, which stay to the end, from every later garbage collection."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make warnings errors in quick tests only: those of servers and Ray depend on their versions."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.filterwarnings("default"))
        if config.getoption("reword") and item.get_closest_marker("wording"):
            item.add_marker(pytest.mark.skip(reason="compares the wording of our errors"))


@pytest.fixture(autouse=True, scope="session")
def _reworded_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("reword"):
            from tests.rewording import reword

            reword(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    if not torch.accelerator.is_available():
        # torch.manual_seed would queue a call for each absent device, with a formatted stack: 0.6 ms and some memory
        for absent in (torch.cuda, torch.xpu, torch.mtia):
            absent.manual_seed_all = lambda seed: None


@pytest.fixture(autouse=True, scope="session")
def _unsynced_files() -> Iterator[None]:
    """Wait for no disk: a test ends long before a power failure. Processes that tests start sync as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_decoding_child() -> Iterator[None]:
    """Start one child for the small videos of a run: a start takes 0.2 s of CPU. Tests of the pool start several."""
    from ctvr.orchestrator.data import frames

    start = frames.Decoder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "Decoder", lambda workers, decoder: start(1, decoder=decoder))
        yield


@pytest.fixture(autouse=True, scope="session")
def _shipped_towers() -> Iterator[None]:
    """Read a shipped tower once for each process of tests; every caller gets a copy."""
    from ctvr.methods.backbone import load

    read, kept = load._tiny_clip, {}

    def tiny_clip(name: str, weights: str, seed: int, sha256: str) -> tuple[Any, ...]:
        if weights != "shipped":
            return read(name, weights, seed, sha256)
        place = load.SHIPPED[name], seed
        if place not in kept:
            kept[place] = read(name, weights, seed, sha256)
        tower, *rest = kept[place]
        return copy.deepcopy(tower), *rest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_tiny_clip", tiny_clip)
        yield


@pytest.fixture(autouse=True, scope="session")
def _tables_of_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let each process create MLflow's tables once, in 0.8 s, and start later databases from a copy of that file."""
    from ctvr.orchestrator.tracking import server

    empty = tmp_path_factory.mktemp("mlflow") / "empty.db"
    create = server.ensure_whole

    def ensure_whole(file: Path, fill: Callable[[str], object]) -> None:
        def fill_copy(uri: str) -> None:
            made = uri.removeprefix("sqlite:///")
            if empty.exists():
                shutil.copyfile(empty, made)
            fill(uri)
            if not empty.exists():
                with closing(sqlite3.connect(made)) as of, closing(sqlite3.connect(f"{empty}.{os.getpid()}")) as to:
                    of.backup(to)
                os.replace(f"{empty}.{os.getpid()}", empty)

        create(file, fill_copy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "ensure_whole", ensure_whole)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real videos and split files that the repository does not ship."""
    folder = Path(os.environ.get("CTVR_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("the real files are not on this machine (set CTVR_SHARED)")
    return folder


@pytest.fixture
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    """Count the values compared with an authors' outputs; orchestrator/tables/verified.json must agree."""
    from ctvr.orchestrator.tables.verified import read
    from tests.methods.released import Compared

    counts = Compared()
    yield counts
    if not counts.cases:  # skipped, or failed before the first comparison
        return
    path = request.path.relative_to(REPOSITORY).as_posix()
    test = f"{path}::{request.node.originalname}"
    checks = {(entry.method, check.what): check for entry in read()[1] for check in entry.checks if check.test == test}
    assert {key: check.cases for key, check in checks.items()} == dict(counts.cases)
    assert {key: check.tolerance for key, check in checks.items()} == counts.worst


def _records(runs: Path) -> dict[Path, int]:
    """Return the size of every file that a run writes: events, artifacts and commits."""
    folders = (runs / name for name in ("told", "artifacts", "store/commits"))
    return {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def _learned_is_only_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that writes into the folder that all tests of this process share."""
    yield
    if "learned" in request.fixturenames:
        runs = request.getfixturevalue("learned")
        before, _of_learned[runs] = _of_learned[runs], _records(runs)
        changed = {path.relative_to(runs) for path, _ in before.items() ^ _of_learned[runs].items()}
        assert not changed, "this test writes into the folder of the fixture `learned`: give it a copy"


_of_learned: dict[Path, dict[Path, int]] = {}


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with complete runs of zero_shot and framefusion_moe on `small/small.json`; do not write to
    it.
    """
    import ctvr
    from tests.small_stream import write_stream

    root = tmp_path_factory.mktemp("learned")
    manifest = write_stream(root / "small", num_tasks=2)
    for method in ("zero_shot", "framefusion_moe"):
        ctvr.run(method, manifest, settings={"optim.epochs": 1}, runs=root, keep_model=method != "zero_shot")
    _of_learned[root] = _records(root)
    return root
