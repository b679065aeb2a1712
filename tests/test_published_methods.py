"""Published methods in examples/published: each keeps the contract, and a killed run equals an uninterrupted one."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from ctvr import methods
from ctvr.orchestrator.jobs.check_method import CHECKS
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.method_checks.subject import Subject
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.small_stream import write_stream

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "published"
FILES = sorted(FOLDER.glob("*.py"))
CASES = [*((file, ()) for file in FILES), (FOLDER / "wise_ft.py", ("ema",))]  # files with presets
MOST_LINES = 60  # without imports, settings and the docstring of the module


class Killed(Exception):
    """Simulates the end of a process."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stream of two tasks."""
    root = tmp_path_factory.mktemp("published")
    write_stream(root / "small", num_tasks=2, has_val=False)
    return root


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0].stem, *case[1]]))
def case(request, monkeypatch) -> tuple[str, tuple[str, ...]]:
    """Return `module:Class` of a file, which may be loaded, and presets."""
    file, presets = request.param
    monkeypatch.syspath_prepend(str(FOLDER))
    (found,) = re.findall(r"(?m)^class (\w+)\((?:Method|Strategy|ReplayStrategy)\)", file.read_text())
    name = f"{file.stem}:{found}"
    methods.trust([name])
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return name, presets


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_method_is_short_and_names_its_paper_and_equations(file):
    text = file.read_text(encoding="utf-8")
    module = ast.parse(text)
    lines = text.splitlines()
    left_out = (ast.Import, ast.ImportFrom, ast.Expr)
    kept = [
        line
        for node in module.body
        if not isinstance(node, left_out) and not getattr(node, "name", "").endswith("Config")
        for line in lines[node.lineno - 1 : node.end_lineno]
        if line.strip()
    ]
    assert len(kept) <= MOST_LINES
    about = ast.get_docstring(module) or ""
    assert re.search(r"arXiv:\d{4}\.\d{5}", about)
    assert re.search(r"(?m)^    .*(=|<-|~)", about)  # an equation
    imported = [node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in imported if str(name).startswith("ctvr.")]  # `ctvr` exports what a plug-in needs


@pytest.mark.slow
def test_a_published_method_keeps_the_contract(case):
    torch.set_num_threads(1)
    name, presets = case
    subject = Subject.of(name, presets=presets)
    for kind, (check, _) in CHECKS.items():
        if kind != "settings":  # it takes most of the time, and `ctvr methods check` includes it
            check(subject)


@pytest.mark.slow
def test_a_killed_run_of_a_published_method_equals_an_unbroken_one(case, runs):
    name, presets = case
    manifest = str(runs / "small" / "small.json")
    settings = {"method": name, "stream": manifest, "optim.epochs": 1}
    experiment = resolve(settings, load_stream(manifest, runs).settings, presets)
    unbroken = execute(experiment, RunPaths(runs), fresh=True)

    def die(task, record, seconds):
        raise Killed

    with pytest.raises(Killed):
        execute(experiment, RunPaths(runs), report=die)
    resumed = execute(experiment, RunPaths(runs))
    assert resumed.resumed == 1
    assert (resumed.record.metrics, resumed.record.ranks) == (unbroken.record.metrics, unbroken.record.ranks)
    mine, others = resumed.method.state_dict(), unbroken.method.state_dict()
    assert mine.keys() == others.keys()
    assert [name for name in mine if not torch.equal(mine[name], others[name])] == []
